"""What nodes touch of which nobody else knows: by ``ck.reads`` and ``ck.writes``, or by the call that recorded them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from capturekit.driver.library_accesses import Rows
from capturekit.driver.node_accesses import Access

#: Memory that other memory has taken the place of: its first address, the one after its last, and where it is now.
Moves = Sequence[tuple[int, int, int]]


@dataclass(frozen=True)
class Said:
    """One block of ``ck.reads`` or ``ck.writes``, for the nodes ``first`` to ``last - 1`` of a graph: the elements of
    its arrays, and the memory blocks that these lie in."""

    graph: int
    first: int
    last: int
    writes: bool
    accesses: tuple[Access, ...]
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Called:
    """One call of a library, whose arguments show all that the nodes touch which it has recorded.

    Attributes:
        before, after: the nodes that the stream's next work came after when the call began, and when it ended.
        accesses: all memory that it may touch, besides memory of the graph's own that a node gets by an argument.
        rows: what it reduces; None where it reduces nothing.
    """

    graph: int
    call: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    accesses: tuple[Access, ...]
    rows: Rows | None = None

    def nodes(self, edges: Mapping[int, Sequence[int]]) -> set[int]:
        """The nodes that the call has recorded. ``edges``: by each node's handle, those of the nodes before it."""
        found: set[int] = set()
        waiting = list(self.after)
        while waiting:
            node = waiting.pop()
            if node not in self.before and node not in found:
                found.add(node)
                waiting += edges.get(node, ())
        return found


@dataclass(frozen=True)
class Declared:
    """What is said of one node. ``reads`` and ``writes`` tell which of the two was said; it counts if both were.

    ``call``: the library's call that shows it; '' where the user says it. ``rows``: what that call reduces.
    """

    reads: bool = False
    writes: bool = False
    accesses: tuple[Access, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    call: str = ''
    rows: Rows | None = None

    @property
    def whole(self) -> bool:
        """Whether both are said, what the node reads and what it writes."""
        return self.reads and self.writes

    def has(self, address: int) -> bool:
        """Whether an address lies in the memory block of an array that was named."""
        return any(low <= address < high for low, high in self.blocks)

    def moved_with(self, own: Iterable[Access], moves: Moves) -> Declared | None:
        """The same of other memory, with those blocks of the graph's own that moved whole or not at all."""
        parts = [
            one
            for one in own
            if all(
                (low <= start and end <= high) or end <= low or high <= start
                for start, end in [one.extent]
                for low, high, _to in moves
            )
        ]
        blocks = tuple(one.extent for one in parts)
        return replace(self, accesses=(*self.accesses, *parts), blocks=self.blocks + blocks).moved(moves)

    def moved(self, moves: Moves) -> Declared | None:
        """The same of other memory. None where an array lies in replaced memory with a part of it only."""
        found = []
        for access in self.accesses:
            low, high = access.extent
            hit = [move for move in moves if low < move[1] and move[0] < high]
            if any(low < start or end < high for start, end, _to in hit):
                return None
            found.append(replace(access, address=access.address - hit[0][0] + hit[0][2]) if hit else access)
        blocks = dict.fromkeys(piece for block in self.blocks for piece in _moved_block(block, moves))
        return replace(self, accesses=tuple(found), blocks=tuple(blocks))


def _moved_block(block: tuple[int, int], moves: Moves) -> Iterator[tuple[int, int]]:
    """Where the parts of a block lie now. Other moved memory is none of it, though a node may have its address."""
    low, high = block
    for start, end, to in sorted(moves):
        if low < end and start < high:
            if low < start:
                yield low, start
            first, low = max(low, start), min(high, end)
            yield to + first - start, to + low - start
    if low < high:
        yield low, high


def by_node(device: Any, said: Iterable[Said], called: Iterable[Called] = ()) -> dict[int, Declared]:
    """What is said of each node, by its handle. The graphs still exist, with the edges that they were recorded with."""
    handles, edges = cache(device.graph_nodes), cache(lambda graph: _before_each(device, graph))
    found: dict[int, Declared] = {}
    for one in said:
        for handle in handles(one.graph)[one.first : one.last]:
            was = found.get(handle, Declared())
            found[handle] = replace(
                was,
                reads=was.reads or not one.writes,
                writes=was.writes or one.writes,
                accesses=was.accesses + one.accesses,
                blocks=was.blocks + one.blocks,
            )
    for call in called:
        for handle in call.nodes(edges(call.graph)):
            was = found.get(handle, Declared())
            blocks = was.blocks + tuple(access.extent for access in call.accesses)
            found[handle] = Declared(True, True, was.accesses + call.accesses, blocks, call.call, call.rows)
    return found


def _before_each(device: Any, graph: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for a, b in device.graph_edges(graph):
        found.setdefault(b, []).append(a)
    return found


def moved(
    declared: Mapping[int, Declared], moves: Moves, own: Mapping[int, Iterable[Access]] | None = None
) -> dict[int, Declared]:
    """The same of other memory, but for nodes with an array that lies in replaced memory with a part of it only.

    ``own``: blocks of the graph's own that nodes have by an argument, where they were. Packed, their ends are not seen
    any more, and what lies beside them would count as touched.
    """
    blocks = own or {}
    found = {handle: one.moved_with(blocks.get(handle, ()), moves) for handle, one in declared.items()}
    return {handle: one for handle, one in found.items() if one is not None}


def of_copy(declared: Mapping[int, Declared], device: Any, g: int, copies: Iterable[int]) -> dict[int, Declared]:
    """The same of the nodes of a copy of a definition, which has them in the same order."""
    pairs = zip(device.graph_nodes(g), copies) if declared else ()
    return {other: declared[mine] for mine, other in pairs if mine in declared}
