"""Nodes at the end of a run that a later run takes in, where fewer bytes are moved then.

Each node goes into the first run that takes it. If a later run has what it reads anyway, and reads its result, the
result need not be written to memory and read again if that run computes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from capturekit.driver.node_accesses import Access
from capturekit.fusion.elementwise import Elementwise
from capturekit.fusion.runs import Item, Key, Run, conflict

Stores = Mapping[Key, bool]
#: So many later runs are looked at for each run, and so many of its last nodes.
_RUNS, _LAST = 8, 8


def later(line: Sequence[Item], runs: Sequence[Run], stores: Sequence[Stores]) -> set[int]:
    """The places of nodes with which runs should begin, so that later runs take in the last nodes of earlier ones."""
    found = set()
    loads = [{key._replace(turn=0) for key, use in run.used.items() if use.reads} for run in runs]
    for n, (run, written) in enumerate(zip(runs, stores)):
        handed = {key._replace(turn=0) for key, needed in written.items() if needed}
        gains = [
            (gain, run.members[first])
            for m in range(n + 1, min(n + 1 + _RUNS, len(runs)))
            if not handed.isdisjoint(loads[m])
            for first in range(max(1, len(run.members) - _LAST), len(run.members))
            if (gain := _gain(run, written, first, loads[m])) > 0 and _moves(line, run, first, runs[m])
        ]
        if gains:
            found.add(max(gains)[1])
    return found


def _gain(run: Run, written: Stores, first: int, loads: Collection[Key]) -> int:
    """How many bytes less are read if a later run takes in the members of a run from a number on.

    ``loads`` is what the later run reads.
    """
    read, made = _used(run, range(first, len(run.members)))
    values = {key for n, place in enumerate(run.members) if place in run.spread for key in run.operands[n]}
    if not values.isdisjoint([*read, *made]):  # what each thread computes stays with those who read it
        return 0
    before = [key for several in _used(run, range(first)) for key in several]
    saved = sum(_bytes(key) for key in made if written[key] and key._replace(turn=0) in loads)
    return saved - sum(_bytes(key) for key in read if key in before and key._replace(turn=0) not in loads)


def _used(run: Run, members: Iterable[int]) -> tuple[dict[Key, None], dict[Key, None]]:
    """What members read that none of them has made, and what they make."""
    read: dict[Key, None] = {}
    made: dict[Key, None] = {}
    for n in members:
        pairs = [(one, key) for one, key in zip(run.does[n].operands, run.operands[n]) if key is not None]
        read |= {key: None for one, key in pairs if one.reads and not one.pieces and key not in made}
        read |= {key: None for one, _key in pairs for key in run.used if key.part and one.pieces}
        made |= {key: None for one, key in pairs if one.writes}
    return read, made


def _bytes(key: Key) -> int:
    """The bytes of memory that the elements lie in."""
    found: int = np.dtype(key.dtype).itemsize * prod(n for n, stride in zip(key.shape, key.strides) if stride)
    return found


def _moves(line: Sequence[Item], run: Run, first: int, after: Run) -> bool:
    """Whether members of a run can be moved to a later run, and be part of it."""
    moved, made = run.members[first:], Run()
    steps = [(place, does, False) for place, does in zip(moved, run.does[first:])]
    steps += [(place, does, place in after.spread) for place, does in zip(after.members, after.does)]
    for number, (place, does, spread) in enumerate(steps):
        between = range(steps[number - 1][0] + 1, place) if number else ()
        inside = {*moved, *after.members}
        if any(conflict(made, line[one].memory) for one in between if one not in inside):
            return False
        grown = made.joined(place, does, spread)
        if isinstance(grown, str):
            return False
        made = grown
    return True


# -- how much is moved ------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Cost:
    """How many nodes are left of a line, and how many bytes those that are known read and write."""

    nodes: int
    bytes: int


def cost(line: Sequence[Item], runs: Sequence[Run], stores: Sequence[Stores]) -> Cost:
    """The cost of a line that is divided into runs; copies that are left out touch nothing."""
    inside = {place for run in runs for place in run.members}
    alone = [item for place, item in enumerate(line) if place not in inside and item.memory != ()]
    moved = sum(_moved(item) for item in alone)
    for run, written in zip(runs, stores):
        moved += sum(_bytes(key) for key, use in run.used.items() if use.reads)
        moved += sum(_bytes(key) for key in run.used if written[key])
    return Cost(len(alone) + len(runs), moved)


def _moved(item: Item) -> int:
    return sum(_extent(one) for one in _known(item))


def _known(item: Item) -> Iterator[Access]:
    if isinstance(item.does, Elementwise) or item.copies is not None:
        yield from item.memory or ()


def _extent(one: Access) -> int:
    return one.itemsize * prod(n for n, stride in zip(one.shape, one.strides) if stride)
