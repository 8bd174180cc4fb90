"""A line of nodes divided into runs, each of which becomes one kernel."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from capturekit.analysis.needed_order import Memory
from capturekit.fusion.copied import as_elements, as_one_element
from capturekit.fusion.elementwise import Elementwise
from capturekit.fusion.ones import ones_before, ridden, with_ones
from capturekit.fusion.runs import Item, Run, conflict

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
