"""The values that changed inside a watched value: an attribute, or items of the dicts and lists in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from capturekit.functions.carried_state import DICTS
from capturekit.model.kept_values import Kept
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
