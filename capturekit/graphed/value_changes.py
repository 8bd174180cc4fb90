"""What changed in a value since it was kept, in words."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from capturekit.model.class_layout import MISSING, among, attributes_of, layout_of, name_of, own_layout, solid_base
from capturekit.model.counted import counted
from capturekit.model.kept_values import UNCHANGING, IsArray, Keeper, Kept, contents_of
from capturekit.model.plain_values import (
    BUILT_IN,
    BY_EQUALITY,
    a,
    attribute_text,
    index_text,
    may_change,
    member_key,
    plain_key,
    show,
)


class ValueDifference(NamedTuple):
    """Where (``'["lr"]'``) and how (``'is 0.05 and was 0.1'``) a value differs from what was kept."""

    path: str
    text: str


def difference(kept: Kept, value: Any, seen: set[tuple[int, int]] | None = None) -> ValueDifference | None:
    """Compare a value with one that was kept; None if they are the same. ``seen`` holds pairs that were compared."""
    if kept.kind == 'carried':
        return None
    if kept.kind == 'same':
        return None if value is kept.value else _other(value, kept)
    if kept.kind == 'plain':
        cls = type(value)
        if type(cls) is type and cls in BY_EQUALITY:  # a metaclass may have a hash of its own
            return None if (cls, value) == kept.data else _other(value, kept)
        same = value is kept.value and not may_change(value)
        return None if same or plain_key(value) == kept.data else _other(value, kept)
    if value is MISSING or type(value) is not type(kept.value):
        return _other(value, kept)
    if kept.kind == 'method':
        same = value.__self__ is kept.value.__self__ and value.__func__ is kept.value.__func__
        return None if same else _other(value, kept)
    seen = set() if seen is None else seen
    pair = (id(kept.value), id(value))
    if pair in seen:
        return None
    seen.add(pair)
    if value is not kept.value and (kept.kind in ('object', 'big') or not _may_stand_for(value, kept.value)):
        return _other(value, kept)
    if kept.kind == 'object':
        attributes = attributes_of(value)
        return _entries(kept, list(attributes), list(attributes.values()), seen, attribute_text, str)
    return _difference_of_contents(kept, value, seen)


def _may_stand_for(value: Any, other: Any) -> bool:
    """Whether a container is the same as another one of its class if it holds the same: neither has attributes."""
    if among(type(value), BUILT_IN):
        return True
    has_dictionary, has_slots = own_layout(type(value))
    if not has_dictionary or has_slots:
        return not has_slots
    get: Any = layout_of(type(value)).dictionary
    return not get(value) and not get(other)


def _difference_of_contents(kept: Kept, value: Any, seen: set[tuple[int, int]]) -> ValueDifference | None:
    contents = contents_of(value)
    if kept.kind == 'big':
        return _length(-1 if contents is None else len(contents[2]), kept.data)
    if contents is None:
        return ValueDifference('', 'holds nothing that can be read')  # a view of memory was released
    _, labels, items, data = contents
    if kept.kind == 'set':
        return _difference_of_members(kept, [member_key(item) for item in items])
    if data != kept.data:
        if issubclass(type(value), np.ndarray) and data[:2] != kept.data[:2]:
            return ValueDifference(
                '', f'is of {data[0]}, shape {data[1]} and was of {kept.data[0]}, shape {kept.data[1]}'
            )
        return ValueDifference('', 'does not hold the values that it held')
    if kept.kind == 'dict':
        return _entries(kept, labels, items, seen, index_text, member_key)
    if len(items) != len(kept.parts):
        return _length(len(items), len(kept.parts))
    for number, (part, item) in enumerate(zip(kept.parts, items)):
        found = difference(part, item, seen)
        if found is not None:
            return ValueDifference(f'[{number}]{found.path}', found.text)
    return None


def _difference_of_members(kept: Kept, members: list[Any]) -> ValueDifference | None:
    if tuple(members) == kept.data:
        return None
    if frozenset(members) == frozenset(kept.data):
        return ValueDifference('', 'does not have its members in the order that they were in')
    return _length(len(members), len(kept.data)) or ValueDifference('', 'does not have the members that it had')


def _entries(
    kept: Kept,
    labels: list[Any],
    items: list[Any],
    seen: set[tuple[int, int]],
    write: Callable[[Any], str],
    key: Callable[[Any], Any],
) -> ValueDifference | None:
    """Compare the entries of a dict, or the attributes of an object, of which the order counts for a dict only."""
    is_dict = kept.kind == 'dict'
    now = {key(label): item for label, item in zip(labels, items)}
    before = set(kept.labels)
    for label in kept.labels:
        if label not in now:
            return ValueDifference(write(label.value if is_dict else label), 'is gone and was there')
    for label in labels:
        if key(label) not in before:
            return ValueDifference(write(label), 'is there and was not')
    if is_dict and list(now) != kept.labels:
        return ValueDifference('', 'does not have its keys in the order that they were in')
    for label, part in zip(kept.labels, kept.parts):
        found = difference(part, now[label], seen)
        if found is not None:
            return ValueDifference(write(label.value if is_dict else label) + found.path, found.text)
    return None


def _length(now: int, before: int) -> ValueDifference | None:
    if now == before:
        return None
    return ValueDifference('', f'has {counted(now, "item")} and had {before}')


def _other(value: Any, kept: Kept) -> ValueDifference:
    if value is MISSING:
        return ValueDifference('', f'is gone and was {show(kept.value)}')
    if kept.value is MISSING:
        return ValueDifference('', f'is {show(value)} and was not there')
    now, before = show(value), show(kept.value)
    if now == before:
        return ValueDifference('', f'is not the {name_of(type(value))} that it was')
    return ValueDifference('', f'is {now} and was {before}')


def kept_in(values: Iterable[Kept]) -> Iterator[Kept]:
    """Kept values, and those in them, at any depth."""
    todo, seen = [*values], set[int]()
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            todo += one.parts


#: Kinds of kept values that are no containers, or are compared by identity.
ALONE = frozenset({'plain', 'same', 'method', 'carried'})


def in_pairs(values: Iterable[tuple[Kept, Any]]) -> list[tuple[Kept, Any]]:
    """Values that were kept, each with the one in its place now, and those in them, at any depth."""
    todo, seen, found = [*values], set[tuple[int, int]](), list[tuple[Kept, Any]]()
    for kept, value in todo:
        if kept.kind not in ALONE:
            if (id(kept.value), id(value)) in seen:
                continue
            seen.add((id(kept.value), id(value)))
            contents = contents_of(value)
            todo += zip(kept.parts, attributes_of(value).values() if contents is None else contents[2])
        found.append((kept, value))
    return found


def is_unchanging(value: Any) -> bool:
    """Whether a value always holds what it held: an equal one is as good."""
    return issubclass(type(value), UNCHANGING) and not own_layout(type(value))[0]


def containers(values: Iterable[tuple[Kept, Any]]) -> Iterator[tuple[Any, Any]]:
    """The containers that can be changed in values that were kept, each with the one in its place now."""
    for kept, value in in_pairs(values):
        if kept.kind not in ALONE and not is_unchanging(value):
            yield kept.value, value


def replaced(kept: Kept, value: Any) -> Any:
    """A container in a value that is equal to the one that was kept, and not the same; None if there is none."""
    return next((now for then, now in containers([(kept, value)]) if then is not now), None)


def snapshot(value: object, is_array: IsArray, opaque: Callable[[Any], bool] | None = None) -> Kept:
    """Keep a value's containers as they are before a run, for :func:`shape_of_change`.

    Of objects for which ``opaque`` returns True only identity is kept.
    """

    def whole(found: Any) -> bool:
        cls = type(found)
        layout = layout_of(cls)
        can = solid_base(cls) in (object, types.SimpleNamespace) and bool(layout.dictionary or layout.slots)
        return can and not (opaque is not None and opaque(found))

    return Keeper(is_array, whole).keep(value)


def shape_of_change(before: Kept, value: object) -> str | None:
    """Say what changed in the containers since ``snapshot``, in words; None if nothing did.

    ``args[0] has 3 items and had 2 before``. Arrays are compared by identity; a container in the place of an equal one
    is a change, too: the caller may hold the one that was there.
    """
    found = difference(before, value)
    if found is not None:
        return f'args{found.path} {found.text} before'
    another = replaced(before, value)
    return None if another is None else f'args hold {a(type(another))} in the place of an equal one'
