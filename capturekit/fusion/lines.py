"""The fusion of a whole definition: its lines of nodes, the runs in them, and the kernels for these.

A line is a row of nodes with one path along it and no edge from or to others but at its ends. Nodes of different lanes
lie in different lines, and a fused kernel never reaches beyond its line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from capturekit.analysis.free_memory import FreeMemory
from capturekit.analysis.needed_order import Memory
from capturekit.driver.node_accesses import Access
from capturekit.fusion.division import runs_of
from capturekit.fusion.elementwise import Elementwise
from capturekit.fusion.fused_kernel import FusedKernel
from capturekit.fusion.fused_reduction import FusedReduction
from capturekit.fusion.joins import joined
from capturekit.fusion.kernels import harmless, kernel_of
from capturekit.fusion.liveness import Liveness
from capturekit.fusion.regroup import Cost, cost, later
from capturekit.fusion.runs import Item, Key, Run
from capturekit.model.dag import Order

Edges = list[tuple[int, int]]


@dataclass(frozen=True)
class Fusing:
    """One kernel for several nodes, which are given by number; it takes the place of the last of them.

    ``copies`` are nodes that it does without, because it reads from what these copy.
    """

    nodes: tuple[int, ...]
    kernel: FusedKernel | FusedReduction
    names: tuple[str, ...]
    copies: tuple[int, ...] = ()

    @property
    def parts(self) -> list[int]:
        """The nodes whose work it does, in the order of their numbers."""
        return sorted((*self.copies, *self.nodes))


@dataclass
class Fusion:
    """What becomes of a definition.

    Attributes:
        kernels: the fused kernels. why: for each kernel's node that is in none the reason, by number.
        gone: the nodes that are left out. edges: the edges that the nodes which are left then have.
        unneeded: of those that are left out because nobody needs them the reason, by number.
        stands: for nodes that are in no kernel the nodes whose results theirs stand for.
    """

    kernels: list[Fusing] = field(default_factory=list)
    why: dict[int, str] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    edges: Edges = field(default_factory=list)
    unneeded: dict[int, str] = field(default_factory=dict)
    stands: dict[int, list[int]] = field(default_factory=dict)


def lines_of(order: Order) -> list[list[int]]:
    """The nodes in lines, in topological order."""
    line_of: dict[int, list[int]] = {}
    found: list[list[int]] = []
    for node in order.sequence:
        before = order.before_each[node]
        if len(before) == 1 and len(order.after_each[before[0]]) == 1:
            line = line_of[before[0]]
        else:
            line = []
            found.append(line)
        line.append(node)
        line_of[node] = line
    return found


class _Line:
    """A line of nodes, and how it is divided. ``alone`` are places that begin a run, ``stays`` copies that stay."""

    def __init__(self, items: list[Item], alone: Collection[int] = (), stays: Collection[int] = ()) -> None:
        self.items = items
        self._first = frozenset(alone)
        self.alone = set(alone)
        self.stays = set(stays)
        self.divide()

    def divide(self) -> None:
        """Find the runs."""
        self.joins = joined(self.items, frozenset(self.stays))
        self.plan = runs_of(self.joins.line, frozenset(self.alone))

    def number(self, place: int) -> int:
        """The number of the node at a place."""
        return self.items[place].number

    def runs(self) -> list[tuple[Run, list[int]]]:
        """The runs, each with the numbers of its members."""
        return [(run, [self.number(place) for place in run.members]) for run in self.plan.runs]

    def left_out(self) -> set[int]:
        """The places of copies that are left out."""
        return set().union(*self.joins.used.values())

    def copies_of(self, run: Run) -> tuple[int, ...]:
        """The numbers of the copies that a run does without."""
        places = set().union(*(self.joins.used.get(place, set()) for place in run.members))
        return tuple(self.number(place) for place in sorted(places))

    def as_recorded(self, memory: list[Memory]) -> None:
        """Note what the nodes touch in their own places, where members read from the sources of copies."""
        for place in {place for run in self.plan.runs for place in run.members} & set(self.joins.used):
            memory[self.number(place)] = self.joins.line[place].memory
        for place in self.left_out():
            memory[self.number(place)] = _written(self.items[place])

    def mended(self, live: Liveness, stores: Sequence[Mapping[Key, bool]]) -> bool:
        """Whether all is as it has to be; if not, what is in the way is noted, and the line is divided anew.

        ``live``: of the nodes as they were recorded, for a run may write behind a copy what was written before it.
        """
        members = {place for run in self.plan.runs for place in run.members}
        stays: set[int] = set()
        for place, copies in self.joins.used.items():
            needed = {one for one in copies if live.needed(self.number(one), _written(self.items[one]))}
            stays |= needed if place in members else copies
        alone = {place for run, written in zip(self.plan.runs, stores) for place in _ends(run, written)}
        if not stays and not alone:
            return True
        assert stays - self.stays or alone - self.alone, 'what is in the way was noted before'
        # other runs are possible where copies stay
        self.alone = self.alone | alone if stays <= self.stays else set(self._first)
        self.stays |= stays
        self.divide()
        return False

    def regrouped(self, stores: Sequence[Mapping[Key, bool]]) -> _Line | None:
        """The same line in which later runs have the last nodes of earlier ones; None where nothing speaks for it."""
        first = later(self.joins.line, self.plan.runs, stores) - self.alone
        return _Line(self.items, self.alone | first, self.stays) if first else None

    def cost(self, stores: Sequence[Mapping[Key, bool]]) -> Cost:
        """What is left of it."""
        return cost(self.joins.line, self.plan.runs, stores)


def _ends(run: Run, written: Mapping[Key, bool]) -> Iterator[int]:
    """The places of members that can not belong to a run, because of what the run has to write."""
    for key, use in run.used.items():
        if written[key] and use.across:
            yield use.since
        elif written[key] and use.gone >= 0:
            yield use.gone
    if not any(written.values()) and not harmless(run):
        yield from (use.since for use in run.used.values() if use.across)


def _written(item: Item) -> list[Access]:
    return [one for one in item.memory or () if one.writes]


@dataclass(frozen=True)
class _Graph:
    """A definition: its order, what each node touches, and the graph's own memory that no array lies in any more."""

    order: Order
    memory: Sequence[Memory]
    free: FreeMemory

    def settled(self, lines: Sequence[_Line]) -> list[list[dict[Key, bool]]]:
        """Divide lines until all is as it has to be; return for each run of each line what it has to write."""
        while True:
            left_out = {line.number(place) for line in lines for place in line.left_out()}
            seen = [() if n in left_out else one for n, one in enumerate(self.memory)]
            live = Liveness(self.order, seen, [run for line in lines for run in line.runs()], self.free)
            stores = [[live.stores(run, numbers) for run, numbers in line.runs()] for line in lines]
            recorded = list(seen)
            for line in lines:
                line.as_recorded(recorded)
            before = Liveness(self.order, recorded, [], self.free)
            mended = [line.mended(before, one) for line, one in zip(lines, stores)]
            if all(mended):
                return stores


def fusion_of(
    order: Order,
    does: Sequence[Elementwise | str | None],
    memory: Sequence[Memory],
    free: FreeMemory,
    blind: frozenset[int] = frozenset(),
    copies: Mapping[int, tuple[int, int, int]] | None = None,
    copying: Callable[[str], Any] | None = None,
    reduces: Collection[int] = (),
) -> Fusion:
    """Find what of a definition can become fused kernels.

    Args:
        order: the order of its nodes.
        does: what each computes for each element, or why that is not known; None for nodes that are no kernels.
        memory: what each touches; None where that is not known.
        free: the graph's own memory that no array lies in any more.
        blind: nodes of unknown memory that surely use no memory of the graph's own.
        copies: of nodes that copy bytes on the device where to, where from, and how many.
        copying: by a dtype the operation that does such a copy element by element; None: kernels do no such copies.
        reduces: nodes that are reductions, which may take in the kernels in front of them.
    """
    known = copies or {}
    lines = [
        _Line([Item(n, does[n] or 'it is no kernel', memory[n], known.get(n), copying, n in reduces) for n in numbers])
        for numbers in lines_of(order)
    ]
    graph = _Graph(order, [() if n in blind and one is None else one for n, one in enumerate(memory)], free)
    stores = graph.settled(lines)
    others = [line.regrouped(one) or line for line, one in zip(lines, stores)]
    if others != lines:
        costs = [line.cost(one) for line, one in zip(lines, stores)]
        less = [line.cost(one) < was for line, one, was in zip(others, graph.settled(others), costs)]
        lines = [other if better else line for line, other, better in zip(lines, others, less)]
        stores = graph.settled(lines)
    left_out = {line.number(place) for line in lines for place in line.left_out()}
    found = Fusion()
    for line, written in zip(lines, stores):
        for (run, numbers), one in zip(line.runs(), written):
            names = tuple(does.name for does in run.does)
            found.kernels.append(Fusing(tuple(numbers), kernel_of(run, one), names, line.copies_of(run)))
        left = {line.number(place): why for place, why in line.plan.why.items()}
        found.why.update({n: why for n, why in left.items() if does[n] is not None and n not in left_out})
    found.gone = sorted(left_out | {node for one in found.kernels for node in one.nodes[:-1]})
    found.edges = edges_between(order, [[item.number for item in line.items] for line in lines], set(found.gone))
    return found


def edges_between(order: Order, lines: Sequence[Sequence[int]], gone: Collection[int]) -> Edges:
    """The edges between the nodes that are left: each line keeps its order, and the edges at its ends."""
    first, found = {}, []
    for line in lines:
        left = [node for node in line if node not in gone]
        first[line[0]] = left[0]
        found += list(pairwise(left))
    for line in lines:  # a line's last node is always left
        found += [(a, first[line[0]]) for a in order.before_each[line[0]]]
    return found
