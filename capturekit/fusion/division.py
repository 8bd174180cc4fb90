"""A line of nodes divided into runs, each of which becomes one kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from capturekit.analysis.node_memory import Memory
from capturekit.fusion.elementwise import ElementOperand, Elementwise
from capturekit.fusion.fused_reduction import uses_number
from capturekit.fusion.runs import Item, Key, Run, Used, conflict, key_of

# -- nodes that copy bytes, taken as elementwise work: so a kernel that has the values writes them itself -------------
#
# CuPy copies an array that lies in one piece (``y[...] = x``, ``x.copy()``) by a node that copies bytes.


#: Dtypes that move so many bytes as one element, whatever they are.
_WORDS = {1: 'uint8', 2: 'uint16', 4: 'uint32', 8: 'uint64'}
_NAME = 'cupy_copy'


def as_elements(item: Item, now: Sequence[Run]) -> Elementwise | None:
    """A copy as work on the elements that a run has in a register; None if no run has what is copied."""
    assert item.copies is not None
    _to, source, nbytes = item.copies
    for run in reversed(now):
        for key, use in run.used.items():
            size = np.dtype(key.dtype).itemsize
            count = prod(key.shape)
            dense = (key.shape, key.strides) in (((), ()), ((count,), (size,)))
            if dense and (key.address, count * size) == (source, nbytes) and use.gone < 0 and _every_bit(key, use):
                return _copy(item, key.dtype, count)
    return None


def as_one_element(item: Item) -> Elementwise | None:
    """A copy of a few bytes as work on one element."""
    assert item.copies is not None
    dtype = _WORDS.get(item.copies[2])
    return _copy(item, dtype, 1) if dtype is not None else None


def _every_bit(key: Key, use: Used) -> bool:
    """Whether a register keeps all bits of an element: memory that is read as a truth value may hold other numbers."""
    return key.dtype != 'bool' or not use.reads


def _copy(item: Item, dtype: str, count: int) -> Elementwise | None:
    if item.copying is None or item.copies is None:
        return None
    to, source, _nbytes = item.copies
    size = np.dtype(dtype).itemsize
    shape, strides = ((count,), (size,)) if count > 1 else ((), ())
    if to % size or source % size:
        return None
    ends = (
        ElementOperand(dtype, source, shape, strides),
        ElementOperand(dtype, to, shape, strides, None, False, True, True),
    )
    return Elementwise(_NAME, item.copying(dtype), ends, True)


# -- work on one element as a part of a kernel over many, as the quotient of two sums that scales an array ------------
#
# Each thread of the kernel does it, which takes less time than a kernel of its own. A kernel that reads the result has
# it in a register. A kernel that has nothing to do with it can do it as well: it only has to run when the work may be
# done.


#: Each thread does so many operations on one element at most.
MOST_ONES = 8
_FULL = 'each thread does as much work on one element as it may'
#: So many runs on either side are looked at for work that nobody in them reads.
_BESIDE = 8


def _is_one(run: Run) -> bool:
    """Whether each thread of another kernel can do the work of a run."""
    return run.size == 1 and not any(uses_number(does.operation) for does in run.does)


def _spread(does: Elementwise, size: int) -> Elementwise:
    """The same work done for each of so many elements."""
    operands = [one if one.number is not None else replace(one, shape=(size,), strides=(0,)) for one in does.operands]
    return replace(does, operands=tuple(operands))


def ones_before(does: Elementwise, memory: Memory, now: Sequence[Run]) -> list[list[Run]]:
    """Runs of one element that have to be done before a node: what to take into its run, the most promising first.

    First all of them, then those alone whose results it reads for all of its elements. ``now`` are the runs that can
    still be moved to the node.
    """
    if does.size <= 1:
        return [[]]
    every = [run for run in now if _is_one(run) and conflict(run, memory)]
    whole = {key_of(one)[:2] for one in does.operands if one.number is None and not one.writes and not any(one.strides)}
    read = [run for run in every if any(use.writes and key[:2] in whole for key, use in run.used.items())]
    return [several for n, several in enumerate((every, read, [])) if several or n == 2]


def with_ones(run: Run, ones: Sequence[Run], size: int) -> Run | str:
    """A run over so many elements that does the work of runs of one element before its next member."""
    for one in ones:
        for place, does in zip(one.members, one.does):
            grown = run.joined(place, _spread(does, size), spread=True)
            if isinstance(grown, str) or len(grown.spread) > MOST_ONES:
                return grown if isinstance(grown, str) else _FULL
            run = grown
    return run


def ridden(runs: Sequence[Run], line: Sequence[Item]) -> list[Run]:
    """Runs where those over many elements do the work of runs of one element, if they can be moved to one place.

    A run that a reduction may take in does only what can be moved to the reduction.
    """
    left = list(runs)
    for one in runs:
        if not _is_one(one):
            continue
        at = next(n for n, run in enumerate(left) if run is one)
        for n in _beside(at, len(left)):
            run = left[n]
            taken = run.until < len(line) and line[run.until].reduces and one.until <= run.until
            whole = _together(run, one) if run.size > 1 and not taken else None
            if whole is not None:
                left[n] = whole
                del left[at]
                break
    return left


def _beside(at: int, count: int) -> Iterator[int]:
    """The numbers of the runs around one, later ones first."""
    yield from range(at + 1, min(at + 1 + _BESIDE, count))
    yield from range(at - 1, max(at - 1 - _BESIDE, -1), -1)


def _together(run: Run, one: Run) -> Run | None:
    """A run over many elements and one of one element in one place; None where that can not be.

    Where each can be moved behind the other, neither touches what the other one writes.
    """
    until = min(run.until, one.until)
    if max(*run.members, *one.members) >= until:
        return None
    steps = [(place, does, place in run.spread) for place, does in zip(run.members, run.does)]
    steps += [(place, _spread(does, run.size), True) for place, does in zip(one.members, one.does)]
    made = Run()
    for place, does, spread in sorted(steps, key=lambda step: step[0]):
        grown = made.joined(place, does, spread)
        if isinstance(grown, str) or len(grown.spread) > MOST_ONES:
            return None
        made = grown
    made.until = until
    return made


#: So many runs are looked at for each node.
MOST_OPEN = 8


@dataclass
class FusionPlan:
    """The runs of a line, and for other elementwise nodes why they are in none, by place."""

    runs: list[Run]
    why: dict[int, str]


def runs_of(line: Sequence[Item], alone: Collection[int] = ()) -> FusionPlan:
    """Divide a line of nodes, each of which comes after the one before it, into runs of two members and more.

    A run may have one member if that reads an array from several parts.

    Args:
        alone: the places of nodes that begin a run of their own.
    """
    division = _Division(alone)
    for place, item in enumerate(line):
        division.take(place, item)
    made = ridden(division.made, line)
    found = [run for run in made if _is_kernel(run, line)]
    inside = {place for run in found for place in run.members}
    for run in made:
        if len(run.members) == 1 and not run.joins:
            division.why.setdefault(run.members[0], 'no elementwise kernel of the same elements is next to it')
    return FusionPlan(found, {place: text for place, text in division.why.items() if place not in inside})


def _is_kernel(run: Run, line: Sequence[Item]) -> bool:
    """Whether a run becomes a kernel: it takes the place of a kernel at least."""
    return (len(run.members) > 1 or bool(run.joins)) and any(line[place].copies is None for place in run.members)


class _Division:
    """A line that is being divided. ``now`` are the runs that may have further members, the last one used last."""

    def __init__(self, alone: Collection[int]) -> None:
        self._alone = alone
        self._now: list[Run] = []
        self.made: list[Run] = []
        self.why: dict[int, str] = {}

    def take(self, place: int, item: Item) -> None:
        """Put the next node into a run, and end the runs that can not be moved behind it."""
        chosen, does = None, item.does
        if isinstance(does, str) and item.copies is not None:
            does = as_elements(item, self._now) or as_one_element(item) or does
        if isinstance(does, str):
            self.why[place] = does
        else:
            chosen = self._member(place, does, item.memory) or self._first(place, does)
        for run in self._now:
            if run is not chosen and conflict(run, item.memory):
                run.until = place
        self._now = [run for run in self._now if run is chosen or run.until != place]
        if chosen is not None:
            self._now = [*(run for run in self._now if run is not chosen), chosen]
        for run in self._now[:-MOST_OPEN]:
            run.until = place + 1
        del self._now[:-MOST_OPEN]

    def _member(self, place: int, does: Elementwise, memory: Memory) -> Run | None:
        """The run that takes a node as its last member, which is then in it."""
        now = self._now if place not in self._alone else []
        before = ones_before(does, memory, now)
        for run in reversed(now):
            if run.size == does.size and any(self._grown(run, place, does, ones) for ones in before):
                return run
        run = Run()
        if any(self._grown(run, place, does, ones) for ones in before if ones):
            self.made.append(run)
            return run
        return None

    def _grown(self, run: Run, place: int, does: Elementwise, ones: Sequence[Run]) -> bool:
        """Let a run take a node, and the work of runs of one element before it, if it can."""
        before = with_ones(run, ones, does.size)
        grown = before if isinstance(before, str) else before.joined(place, does)
        if isinstance(grown, str):
            self.why[place] = grown
            return False
        vars(run).update(vars(grown))
        self.why.pop(place, None)
        self._now = [one for one in self._now if not any(one is other for other in ones)]
        self.made = [one for one in self.made if not any(one is other for other in ones)]
        return True

    def _first(self, place: int, does: Elementwise) -> Run | None:
        """A run that begins with a node; None if that can be in no run."""
        run = Run()
        if not self._grown(run, place, does, ()):
            return None
        self.made.append(run)
        return run
