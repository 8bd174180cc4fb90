"""Which of the containers that a function read are one object, or share their memory; and equal ones in their places.

A function may change a container, read it by another name, and change it back. What it computes then depends on whether
both names lead to one container. So equal containers may stand in for those that were read only if they are one object,
or share memory, in the same places. One that may get attributes has to be asked for them from then on.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from capturekit.functions.watched_values import WatchedValue
from capturekit.model.class_layout import among, name_of, own_layout
from capturekit.model.kept_values import Kept, contents_of
from capturekit.model.plain_values import BUILT_IN
from capturekit.model.value_changes import ALONE, containers

#: Kinds of objects that show memory, which others may show, too.
_WITH_MEMORY = (np.ndarray, memoryview, bytearray, array.array)
#: The first address of some memory, and the one after its last.
Extent = tuple[int, int]
#: An object that was read, its class, how its ``__dict__`` is got, and the one that it had.
Attributes = tuple[Any, type, Any, Any]


class Sharing:
    """What was one object, or one memory, when a run read it.

    Arguments:
        entries: what was read.
        objects: objects that were read, and their dictionaries of attributes.
    """

    def __init__(self, entries: Sequence[WatchedValue], objects: Iterable[Attributes]) -> None:
        self._entries = [entry for entry in entries if holds_containers(entry)]
        self._objects = [one for one in objects if one[3] is not None]
        self._extents: dict[int, Extent] = {}
        for then, _ in containers((entry.kept, entry.value) for entry in self._entries):
            if issubclass(type(then), _WITH_MEMORY):
                self._extents[id(then)] = extent_of(then)

    def changed(self) -> str | None:
        """Say what is one object, or shares memory, and did not when recorded, or the other way round."""
        now_by_then: dict[int, Any] = {}
        then_by_now: dict[int, Any] = {}
        for then, now in self._pairs():
            name = name_of(type(now))
            if now_by_then.setdefault(id(then), now) is not now:
                return f'two names lead to two {name} objects now, and led to one'
            if then_by_now.setdefault(id(now), then) is not then:
                return f'two names lead to one {name} object now, and led to two'
        memory = [(then, now_by_then[then]) for then in self._extents if then in now_by_then]
        if layout([self._extents[then] for then, _ in memory]) != layout([extent_of(now) for _, now in memory]):
            return 'arrays or buffers share memory in another way than they did'
        return None

    def _pairs(self) -> list[tuple[Any, Any]]:
        """Each container that was read, and what is in its place now; without what only replaced ones hold."""
        found = [*containers((entry.kept, entry.read()) for entry in self._entries)]
        gone = {id(then) for then, now in found if then is not now}
        if any(id(entry.holder) in gone for entry in self._entries):
            there = [entry for entry in self._entries if id(entry.holder) not in gone]
            found = [*containers((entry.kept, entry.read()) for entry in there)]
        return found + [(then, get(value)) for value, _, get, then in self._objects if id(value) not in gone]

    def containers(self) -> Iterator[Any]:
        """All containers that were read, as they are now."""
        return (now for _, now in containers((entry.kept, entry.read()) for entry in self._entries))

    def memory(self) -> Iterator[Callable[[], bool]]:
        """Functions that return True while objects show the memory that they show now, where they share it."""
        if not self._extents:
            return
        shown = [now for now in self.containers() if issubclass(type(now), _WITH_MEMORY)]
        extents = [extent_of(now) for now in shown]
        if any(layout(extents)):
            yield lambda: [*map(extent_of, shown)] == extents


def holds_containers(entry: WatchedValue) -> bool:
    """Whether a watched value is or holds something that may be reached in another way, too. What settings hold is read
    by nobody else."""
    return entry.kept.kind not in ALONE and entry.kind not in ('state', 'draws', 'contents')


def overlap(arrays: Sequence[Any], others: Iterable[Any]) -> bool:
    """Whether one of some arrays shares memory with another one of them, or with one of the others."""
    shown = [one for one in others if issubclass(type(one), _WITH_MEMORY)]
    places = layout([extent_of(one) for one in (*arrays, *shown)])
    return any(place is not None for place in places[: len(arrays)])


def layout(extents: Sequence[Extent]) -> list[tuple[int, Extent] | None]:
    """How memory is shared: for each extent the first of those with which it overlaps, at once or by others, and where
    it lies as seen from the lowest of them; None if it overlaps none."""
    found: list[tuple[int, Extent] | None] = [None] * len(extents)
    groups: list[list[int]] = []
    end = 0
    for number in sorted(range(len(extents)), key=extents.__getitem__):
        low, high = extents[number]
        if low == high:
            continue
        if low < end:
            groups[-1].append(number)
        else:
            groups.append([number])
        end = max(end, high)
    for group in groups:
        if len(group) > 1:
            start = extents[group[0]][0]
            for number in group:
                found[number] = min(group), (extents[number][0] - start, extents[number][1] - start)
    return found


def extent_of(value: Any) -> Extent:
    """Where the memory lies that an object shows; (0, 0) if there is none."""
    if type(value) is array.array:
        start, length = value.buffer_info()
        return start, start + length * value.itemsize
    try:
        seen = value if issubclass(type(value), np.ndarray) else np.asarray(memoryview(value))
    except (ValueError, TypeError):  # it is released, or of a format that NumPy does not know
        return 0, 0
    low, high = np.lib.array_utils.byte_bounds(seen) if seen.size else (0, 0)
    return low, high


_Row = TypeVar('_Row', bound='tuple[Any, ...]')


class Replaced:
    """The containers in watched values that are others now."""

    def __init__(self) -> None:
        self._others: dict[int, dict[int, Any]] = {}
        self._seen: set[tuple[int, int]] = set()

    def look(self, kept: Kept, value: Any) -> None:
        """Look at what is in the place of a value that was kept, and holds the same."""
        if not kept.parts and value is kept.value:
            return
        pair = id(kept), id(value)
        if pair in self._seen or kept.kind in ('plain', 'same', 'method', 'carried'):
            return
        self._seen.add(pair)
        if not among(type(value), BUILT_IN) and own_layout(type(value))[0]:
            self._others.setdefault(id(kept.value), {})[id(value)] = value
        contents = contents_of(value)
        for part, item in zip(kept.parts, [] if contents is None else contents[2]):
            self.look(part, item)

    def moved(self, rows: Iterable[_Row], position: int) -> Iterator[_Row]:
        """Rows about objects, each at this position in its row, with those that are there now."""
        for row in rows:
            others = self._others.get(id(row[position]))
            for value in [row[position]] if others is None else others.values():
                made: Any = (*row[:position], value, *row[position + 1 :])
                yield made
