"""The values that changed inside a watched value, and the objects that a run makes and puts there.

Each launch puts another object there, of the same class, with its arrays. Such an object is of a class written in
Python and has nothing but attributes, which hold arrays, numbers, texts, lists, tuples, dicts and objects of that
kind. Nobody else may hold it, or the one that was there before.
"""

from __future__ import annotations

from abc import ABCMeta
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from capturekit.functions.carried_state import DICTS
from capturekit.functions.readable_state import in_package, is_whole
from capturekit.model.class_layout import (
    MISSING,
    among,
    attributes_of,
    bases_of,
    found_in_class,
    made_by_class_statement,
    solid_base,
)
from capturekit.model.kept_values import Kept, contents_of
from capturekit.model.value_changes import difference, replaced


class NotUnderstood(Exception):
    """No launch can make this change again."""


class PlaceChange(NamedTuple):
    """One value that changed: where it is kept (in ``inside``, or the watched value itself), and its value now."""

    path: tuple[Any, ...]
    inside: Kept | None
    number: int
    kept: Kept
    now: Any


def changes_in(
    kept: Kept, value: Any, path: tuple[Any, ...], inside: Kept | None = None, number: int = 0
) -> Iterator[PlaceChange]:
    """The values that changed inside a watched value, each by its full path. Raises NotUnderstood."""
    if difference(kept, value) is None:
        if replaced(kept, value) is not None:
            raise NotUnderstood
        return
    is_dict = type(value) in DICTS
    if value is not kept.value or not (is_dict or type(value) is list):
        if kept.kind == 'carried' or value is kept.value:
            raise NotUnderstood
        yield PlaceChange(path, inside, number, kept, value)
        return
    if type(value) is list and not path and kept.kind == 'items' and len(value) > len(kept.parts):
        yield PlaceChange(path, inside, number, kept, value)
        return
    labels: list[Any] = list(range(len(value)))
    if is_dict:
        labels, was = list(value), [label.value for label in kept.labels[: len(value)]]
        if not all(map(is_label, labels)) or labels != was or [*map(_types_in, labels)] != [*map(_types_in, was)]:
            raise NotUnderstood
    factory = [value.default_factory] if type(value) is defaultdict and value.default_factory is not None else []
    rest = kept.parts[len(labels) :]
    if kept.kind not in ('dict', 'items') or len(kept.parts) != len(labels) + len(factory):
        raise NotUnderstood
    if any(difference(part, made_by) is not None for part, made_by in zip(rest, factory)):
        raise NotUnderstood
    for position, (label, part) in enumerate(zip(labels, list(kept.parts))):
        yield from changes_in(part, value[label], (*path, label), kept, position)


def is_label(key: Any) -> bool:
    """Whether a launch finds an item again by its key: texts, whole numbers, and tuples of such."""
    return all(map(is_label, key)) if type(key) is tuple else type(key) in (str, int)


def _types_in(key: Any) -> Any:
    """The type of a key, and those in it: equal keys may be of other types."""
    return [_types_in(one) for one in key] if type(key) is tuple else type(key)


_METACLASSES = (type, ABCMeta)


def is_remade(value: Any) -> bool:
    """Whether a value is an object of a class of which a launch can make another object."""
    cls = type(value)
    if not among(type(cls), _METACLASSES) or cls is object or solid_base(cls) is not object or is_whole(cls):
        return False
    if contents_of(value) is not None or found_in_class(cls, '__del__') is not MISSING:
        return False
    bases = bases_of(cls)[:-1]
    return all(made_by_class_statement(base) for base in bases) and not any(map(in_package, bases))


def parts_of(value: Any) -> list[Any] | None:
    """What a launch puts into the container or the object that it makes in the place of this one; None for others."""
    cls = type(value)
    if cls is tuple or cls is list:
        return list(value)
    if cls is dict:
        return [*value.values()] if all(type(key) is str for key in value) else None
    return [*attributes_of(value).values()] if is_remade(value) else None


def consists_of(value: Any, is_leaf: Callable[[Any], bool]) -> bool:
    """Whether a value is made of such containers and objects, and of nothing else than ``is_leaf`` returns True for."""
    todo, seen = [value], set[int]()
    while todo:
        one = todo.pop()
        if is_leaf(one) or (id(one) in seen and type(one) is tuple):
            continue
        parts = parts_of(one)
        if parts is None or id(one) in seen:
            return False
        seen.add(id(one))
        todo += parts
    return True


def made_in(value: Any) -> Iterator[Any]:
    """The containers and objects in a value, but for empty tuples, of which Python has one.

    One that is in two places comes twice, and what is in it once.
    """
    todo, seen = [value], set[int]()
    while todo:
        one = todo.pop()
        parts = parts_of(one)
        if parts is not None and (parts or type(one) is not tuple):
            yield one
        todo += [] if id(one) in seen else parts or []
        seen.add(id(one))


def objects_in(value: Any) -> dict[int, Any]:
    """The objects, lists and dicts in any value, by id. What was there before may hold itself, or a part twice."""
    found: dict[int, Any] = {}
    todo, seen = [value], set[int]()
    while todo:
        one = todo.pop()
        parts = None if id(one) in seen else parts_of(one)
        seen.add(id(one))
        if parts is not None and type(one) is not tuple:
            found[id(one)] = one
        todo += parts or []
    return found


def holds_one_of(kept: Kept, objects: dict[int, Any]) -> bool:
    """Whether a value that was kept is or holds one of these objects."""
    todo, seen = [kept], set[int]()
    while todo:
        one = todo.pop()
        if id(one.value) in objects:
            return True
        if one.parts and id(one) not in seen:
            seen.add(id(one))
            todo += one.parts
    return False
