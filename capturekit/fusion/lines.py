"""The fusion of a whole definition: its lines of nodes, the runs in them, and the kernels for these.

A line is a row of nodes with one path along it and no edge from or to others but at its ends. Nodes of different lanes
lie in different lines, and a fused kernel never reaches beyond its line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from math import prod
from typing import Any

import numpy as np

from capturekit.analysis.node_memory import FreeMemory, Memory
from capturekit.driver.node_accesses import Access, covers, overlap
from capturekit.fusion.elementwise import ElementOperand, Elementwise, Piece
from capturekit.fusion.fused_kernel import FusedKernel
from capturekit.fusion.fused_reduction import FusedReduction
from capturekit.fusion.reduction import Halves, Reduction
from capturekit.fusion.runs import (
    Item,
    Key,
    Run,
    access_of,
    common,
    harmless,
    kernel_of,
    key_of,
    runs_of,
    shortest,
    split,
)
from capturekit.model.dag import Order

# -- temporaries that copies fill, read straight from what was copied -------------------------------------------------
#
# ``roll``, ``concatenate`` of a few arrays and slices that are assigned make a new array by copies of its parts. A node
# that reads such an array element by element can take each element from the source of its part, by index. If nobody
# else reads the array, the copies are not needed.


#: Of so many parts at most.
MOST_PARTS = 4
#: Larger arrays have places that do not fit into 32 bits.
MOST_BYTES = (1 << 31) - 1
#: So many copies are looked at for each node.
MOST_LIVE = 32
_ABSORBED = 'it is part of a fused kernel'


@dataclass(frozen=True)
class Copied:
    """A node that copies elements: its place in the line, where to and where from."""

    place: int
    to: ElementOperand
    source: ElementOperand


@dataclass
class FusionJoins:
    """A line of nodes in which some read from the sources of copies.

    Attributes:
        line: the nodes; copies that may go touch nothing. used: by a node's place those of the copies it does without.
    """

    line: list[Item]
    used: dict[int, set[int]]


def joined(line: Sequence[Item], stays: frozenset[int]) -> FusionJoins:
    """Let the nodes of a line read from the sources of copies, but for copies at the places ``stays``."""
    found = FusionJoins(list(line), {})
    live: list[Copied] = []
    for place, item in enumerate(line):
        if isinstance(item.does, Elementwise) and live:
            found.line[place] = _reading(item, place, live, found.used)
        live = [one for one in live[-MOST_LIVE:] if _holds(one, item)]
        copied = _copied(place, item)
        if copied is not None and place not in stays:
            live.append(copied)
    for place in set().union(*found.used.values()):
        found.line[place] = Item(line[place].number, _ABSORBED, ())
    return found


def _copied(place: int, item: Item) -> Copied | None:
    if item.copies is not None:
        to_address, address, nbytes = item.copies
        return Copied(place, _bytes(to_address, nbytes), _bytes(address, nbytes))
    does = item.does
    if not isinstance(does, Elementwise) or not does.copies:
        return None
    (source,), (to,) = ([one for one in does.operands if one.writes is writes] for writes in (False, True))
    return Copied(place, to, source)


def _bytes(address: int, nbytes: int) -> ElementOperand:
    return ElementOperand('uint8', address, (nbytes,), (1,))


def _holds(one: Copied, item: Item) -> bool:
    """Whether a copy and its source are as they were after a node."""
    if item.memory is None:
        return False
    written = [access for access in item.memory if access.writes is not False]
    return not any(overlap(access, end.access) is not False for access in written for end in (one.to, one.source))


def _reading(item: Item, place: int, live: Sequence[Copied], used: dict[int, set[int]]) -> Item:
    """A node that reads from the sources of copies where it can."""
    does = item.does
    assert isinstance(does, Elementwise)
    operands, instead = [], set()
    for operand in does.operands:
        parts = None if operand.number is not None or operand.writes else _parts(operand, live)
        if parts is not None:
            instead |= {one.place for one, _piece in parts}
            if prod(operand.shape) == 1:  # one element has a single place, whatever it is copied from
                operand = replace(operand, address=parts[0][1].address)
            else:
                operand = replace(operand, pieces=tuple(piece for _one, piece in parts))
        operands.append(operand)
    if not instead:
        return item
    used[place] = instead
    memory = [access for operand in operands for access in operand.accesses]
    return Item(item.number, replace(does, operands=tuple(operands)), memory)


def _parts(operand: ElementOperand, live: Sequence[Copied]) -> list[tuple[Copied, Piece]] | None:
    """The copies that fill an array in one piece, each element once; None if there are none such."""
    item, key = np.dtype(operand.dtype).itemsize, key_of(operand)
    count = prod(key.shape)
    if key.shape not in ((), (count,)) or key.strides not in ((), (item,)) or count * item > MOST_BYTES:
        return None
    inside = [one for one in live if overlap(one.to.access, operand.access) is not False]
    pieces = [_piece(one, operand, count) for one in inside]
    if not 1 <= len(pieces) <= MOST_PARTS or sum(prod(one.lengths) for one in pieces if one is not None) != count:
        return None
    if any(overlap(a.to.access, b.to.access) is not False for a, b in combinations(inside, 2)):
        return None
    return [(one, piece) for one, piece in zip(inside, pieces) if piece is not None]


def _piece(one: Copied, operand: ElementOperand, count: int) -> Piece | None:
    """A copy as a part of an array of so many elements in one piece."""
    item = np.dtype(operand.dtype).itemsize
    ends = []
    for end in (one.to, one.source):
        shape, strides = shortest(end.shape, end.strides)
        if end.dtype == 'uint8' and operand.dtype != 'uint8':  # a copy of bytes that lie one after the other
            if shape not in ((), (prod(shape),)) or prod(shape) % item:
                return None
            shape, strides = (prod(shape) // item,), (item,)
        elif end.dtype != operand.dtype:
            return None
        ends.append((shape, strides))
    lengths = common(shape for shape, _strides in ends)
    if lengths is None:
        return None
    to, source = (split(*end, lengths) for end in ends)
    # a copy may go through its elements in any order: here in that of the array
    axes = sorted(zip(to, lengths, source), key=lambda axis: -axis[0])
    if any(stride <= 0 or stride % item for stride, _length, _source in axes):
        return None
    if not axes or axes[-1][0] != item:
        axes.append((item, 1, 0))
    steps, lengths, source = zip(*((stride // item, *more) for stride, *more in axes))
    place, rest = divmod(one.to.address - operand.address, item)
    if rest or place < 0 or any(a % b for a, b in zip([count, *steps], steps)):
        return None
    whole = tuple(a // b for a, b in zip([count, *steps], steps))
    offsets = []
    for step in steps:
        offset, place = divmod(place, step)
        offsets.append(offset)
    if any(o + n > w for o, n, w in zip(offsets, lengths, whole)):
        return None
    return Piece(one.source.address, lengths, source, whole, tuple(offsets))


# -- what is known of a definition, and where its nodes touch memory ---------------------------------------------------


Edges = list[tuple[int, int]]
Does = Elementwise | Reduction | str | None
#: The extent of what is not known.
_ANYWHERE = (-(1 << 62), 1 << 62)


@dataclass(frozen=True)
class Definition:
    """A definition, by the numbers of its nodes.

    Attributes:
        order: the order of its nodes.
        does: what each computes for each element or reduces, or why that is not known; None for nodes that are no
            kernels.
        memory: what each touches; None where that is not known.
        free: the graph's own memory that no array lies in any more.
        blind: nodes of unknown memory that surely use no memory of the graph's own.
        copies: of nodes that copy bytes on the device where to, where from, and how many.
        fills: nodes that only fill memory of the device.
        copying: by a dtype the operation that does such a copy element by element; None: kernels do no such copies.
        halves: pairs of nodes that reduce together.
    """

    order: Order
    does: Sequence[Does]
    memory: Sequence[Memory]
    free: FreeMemory
    blind: frozenset[int] = frozenset()
    copies: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)
    fills: Collection[int] = ()
    copying: Callable[[str], Any] | None = None
    halves: Sequence[Halves] = ()

    def seen(self, memory: Sequence[Memory], without: Collection[int] = ()) -> list[Memory]:
        """What nodes touch of memory that fusing changes, if they touch ``memory``; some are left out."""
        return [() if n in without or (n in self.blind and one is None) else one for n, one in enumerate(memory)]


class Touches:
    """What nodes touch, by their numbers, found by where it lies: in topological order, what a node reads first."""

    def __init__(self, order: Order, memory: Mapping[int, Memory]) -> None:
        self.place = {node: n for n, node in enumerate(order.sequence)}
        #: Whether each node comes after the one before it.
        self.row = all(a in order.before_each[b] for a, b in pairwise(order.sequence))
        self._memory: dict[int, Memory] = {}
        self.change(memory)

    def change(self, memory: Mapping[int, Memory]) -> None:
        """Note what nodes touch now."""
        self._memory |= memory
        touches: list[tuple[int, bool, int, Access | None]] = []
        for node, several in self._memory.items():
            for one in (None,) if several is None else several:
                touches.append((self.place[node], one is not None and bool(one.writes), node, one))
        self._touches = sorted(touches, key=lambda touch: touch[:2])
        extents = [_ANYWHERE if access is None else access.extent for *_place, access in self._touches]
        self._low, self._high = np.array(extents, np.int64).reshape(-1, 2).T.copy()

    def meeting(self, access: Access, since: int = 0, until: int = 1 << 62) -> Iterator[tuple[int, Access | None]]:
        """The nodes that may share a byte with an access, each with what it touches.

        Where the nodes are a row, only those from the place ``since`` to the place ``until``.
        """
        low, high = access.extent
        first, last = (bisect_left(self._touches, (n,)) for n in ((since, until + 1) if self.row else (0, 1 << 62)))
        for n in np.flatnonzero((self._low[first:last] < high) & (self._high[first:last] > low)):
            yield self._touches[first + int(n)][2:]


# -- what a fused kernel has to write: all that anybody reads afterwards, in the graph or outside of it ---------------
#
# Memory of the graph's own that no array lies in any more can be seen by nobody outside. Of such memory a write is
# needed if a later node reads it before another one has written over all of it. A node of unknown memory may read
# anything.


class Liveness:
    """What each run of a graph has to write.

    Args:
        order: the order of the graph's nodes.
        memory: what each node touches; None where that is not known.
        runs: each run, with the numbers of its members in order: it stands at the last one.
        free: the graph's own memory that no array lies in any more.
    """

    def __init__(
        self, order: Order, memory: Sequence[Memory], runs: Sequence[tuple[Run, Sequence[int]]], free: FreeMemory
    ) -> None:
        self._order, self._free = order, free
        inside = {number for _run, numbers in runs for number in numbers}
        alone = {n: accesses for n, accesses in enumerate(memory) if n not in inside}
        self._touches = Touches(order, alone | {numbers[-1]: list(_of(run)) for run, numbers in runs})

    def stores(self, run: Run, numbers: Sequence[int]) -> dict[Key, bool]:
        """For each of a run's elements whether the fused kernel has to write them."""
        found = {}
        for key, use in run.used.items():
            over = [one.access for one in run.used.values() if one.writes and use.gone >= 0 and one.since >= use.gone]
            found[key] = use.writes and self._needed(numbers[-1], use.access, over)
        return found

    def needed(self, node: int, accesses: Sequence[Access], without: Collection[int] = ()) -> bool:
        """Whether anybody but the nodes ``without`` reads what a node that is in no run writes."""
        return any(self._needed(node, access, (), without) for access in accesses)

    def _needed(self, node: int, access: Access, over: Sequence[Access], without: Collection[int] = ()) -> bool:
        """Whether anybody reads what a node writes. ``over``: what the node itself writes later."""
        covering = [(node, one) for one in over]
        before = self._order.before
        first = self._touches.place[node] + 1
        for other, touch in self._touches.meeting(access, first):
            if other in without or other == node or before(other, node):
                continue
            if touch is not None and touch.writes:
                if before(node, other):
                    covering.append((other, touch))
                    if self._touches.row and covers(touch, access):
                        return False
            elif touch is None or overlap(touch, access) is not False:
                wanted = [access] if touch is None else [access, touch]
                if not any(before(n, other) and any(covers(a, one) for one in wanted) for n, a in covering):
                    return True
        return self._stays(access, [one for _node, one in covering])

    def _stays(self, access: Access, over: Sequence[Access]) -> bool:
        """Whether somebody outside of the graph sees what was written, after other writes."""
        if self._free.meets(access) or any(covers(one, access) for one in over):
            return False
        low, high = access.extent
        for begin, end in sorted(one.extent for one in over if one.exact and one.dense):
            if begin > low:
                break
            low = max(low, end)
        return low < high


def _of(run: Run) -> Iterator[Access]:
    """What a run touches in memory."""
    for key, use in run.used.items():
        yield from (access_of(key, writes) for writes, does in ((False, use.reads), (True, use.writes)) if does)


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

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.alone: set[int] = set()
        self.stays: set[int] = set()
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
        self.alone = self.alone | alone if stays <= self.stays else set()
        self.stays |= stays
        self.divide()
        return False


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


def _settled(known: Definition, lines: Sequence[_Line]) -> list[list[dict[Key, bool]]]:
    """Divide lines until all is as it has to be; return for each run of each line what it has to write."""
    while True:
        seen = known.seen(known.memory, {line.number(place) for line in lines for place in line.left_out()})
        live = Liveness(known.order, seen, [run for line in lines for run in line.runs()], known.free)
        stores = [[live.stores(run, numbers) for run, numbers in line.runs()] for line in lines]
        recorded = list(seen)
        for line in lines:
            line.as_recorded(recorded)
        before = Liveness(known.order, recorded, [], known.free)
        mended = [line.mended(before, one) for line, one in zip(lines, stores)]
        if all(mended):
            return stores


def fusion_of(known: Definition) -> Fusion:
    """Find what of a definition can become fused kernels. Reductions may take in the kernels in front of them."""
    does = ['it is a reduction' if isinstance(one, Reduction) else one for one in known.does]
    fronts = {pair.nodes[0] for pair in known.halves}
    fronts |= {n for n, one in enumerate(known.does) if isinstance(one, Reduction)}

    def item(n: int) -> Item:
        what = does[n] or 'it is no kernel'
        return Item(n, what, known.memory[n], known.copies.get(n), known.copying, n in fronts)

    lines = [_Line([item(n) for n in numbers]) for numbers in lines_of(known.order)]
    stores = _settled(known, lines)
    left_out = {line.number(place) for line in lines for place in line.left_out()}
    found = Fusion()
    for line, written in zip(lines, stores):
        for (run, numbers), one in zip(line.runs(), written):
            names = tuple(does.name for does in run.does)
            found.kernels.append(Fusing(tuple(numbers), kernel_of(run, one), names, line.copies_of(run)))
        left = {line.number(place): why for place, why in line.plan.why.items()}
        found.why.update({n: why for n, why in left.items() if does[n] is not None and n not in left_out})
    found.gone = sorted(left_out | {node for one in found.kernels for node in one.nodes[:-1]})
    found.edges = edges_between(known.order, found.gone)
    return found


def edges_between(order: Order, gone: Collection[int]) -> Edges:
    """Edges between the nodes that are left, with the order that those which are gone made."""
    before, after = ([set(one) for one in several] for several in (order.before_each, order.after_each))
    for node in gone:
        for a in before[node]:
            after[a] = (after[a] - {node}) | after[node]
        for b in after[node]:
            before[b] = (before[b] - {node}) | before[node]
        before[node], after[node] = set(), set()
    return [(a, b) for a, several in enumerate(after) for b in sorted(several)]
