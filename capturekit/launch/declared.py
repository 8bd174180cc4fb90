"""What the user says that nodes touch, by ``ck.reads`` and ``ck.writes``: for nodes of which nobody else knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capturekit.driver.node_accesses import Access

#: Memory that other memory has taken the place of: its first address, the one after its last, and where it is now.
Moves = Sequence[tuple[int, int, int]]


@dataclass(frozen=True)
class Said:
    """One block of ``ck.reads`` or ``ck.writes``: it holds for the nodes ``first`` to ``last - 1`` of a graph.

    Attributes:
        writes: whether it is one of ``ck.writes``.
        accesses: the elements of its arrays.
        blocks: the memory blocks that these lie in.
    """

    graph: int
    first: int
    last: int
    writes: bool
    accesses: tuple[Access, ...]
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Declared:
    """What is said of one node. ``reads`` and ``writes`` tell which of the two was said; it counts if both were."""

    reads: bool = False
    writes: bool = False
    accesses: tuple[Access, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether both are said, what the node reads and what it writes."""
        return self.reads and self.writes

    def has(self, address: int) -> bool:
        """Whether an address lies in the memory block of an array that was named."""
        return any(low <= address < high for low, high in self.blocks)

    def with_(self, said: Said) -> Declared:
        """This, and what one more block says."""
        return Declared(
            self.reads or not said.writes,
            self.writes or said.writes,
            self.accesses + said.accesses,
            self.blocks + said.blocks,
        )

    def moved(self, moves: Moves) -> Declared | None:
        """The same of other memory. None where an array lies in replaced memory with a part of it only."""
        found = []
        for access in self.accesses:
            low, high = access.extent
            hit = [move for move in moves if low < move[1] and move[0] < high]
            if any(low < start or end < high for start, end, _to in hit):
                return None
            found.append(replace(access, address=access.address - hit[0][0] + hit[0][2]) if hit else access)
        blocks = dict.fromkeys(self.blocks + tuple((to, to + high - low) for low, high, to in moves))
        return replace(self, accesses=tuple(found), blocks=tuple(blocks))


def by_node(device: Any, said: Iterable[Said]) -> dict[int, Declared]:
    """What is said of each node, by its handle. The graphs still exist."""
    handles: dict[int, list[int]] = {}
    found: dict[int, Declared] = {}
    for one in said:
        if one.graph not in handles:
            handles[one.graph] = device.graph_nodes(one.graph)
        for handle in handles[one.graph][one.first : one.last]:
            found[handle] = found.get(handle, Declared()).with_(one)
    return found
