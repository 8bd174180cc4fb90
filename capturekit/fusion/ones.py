"""Work on one element as a part of a kernel over many, as the quotient of two sums that scales an array.

Each thread of the kernel does it, which takes less time than a kernel of its own. A kernel that reads the result has it
in a register. A kernel that has nothing to do with it can do it as well: it only has to run when the work may be done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from capturekit.analysis.needed_order import Memory
from capturekit.fusion.elementwise import Elementwise
from capturekit.fusion.fused_reduction import uses_number
from capturekit.fusion.runs import Item, Run, conflict, key_of

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
