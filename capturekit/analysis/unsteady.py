"""Memory whose last bits differ from launch to launch of one graph: sums in no fixed order, and what is made of them.

CUB's scan adds what other blocks of threads have so far, as soon as it is there: floating-point sums are rounded in
another order each time (cub::DeviceScan, "run-to-run nondeterministic"). Two launches of the very same graph differ
there, so bits can not tell whether another order of the nodes is right. Numbers can, with some tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.analysis.node_memory import Definitions, Memory, memory_of
from capturekit.analysis.races import MemoryBlocks
from capturekit.driver.node_accesses import Access

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Calls of libraries that add in no fixed order.
_CALLS = ('cub_scan', 'cub_scan()')
#: Parts of the names of kernels that work with complex numbers of two floats: eight bytes, and no one number.
_PAIRS = ('complexIf', 'complex<float>', 'complex64')
#: Of more pieces nothing is followed: then every bit counts.
_MOST = 1024
_FLOATS: dict[int, Any] = {2: np.float16, 4: np.float32, 8: np.float64, 16: np.float64}


@dataclass(frozen=True)
class Unsteady:
    """Memory from ``low`` to ``high - 1`` with numbers of ``size`` bytes; 0 where it is a library's own workspace."""

    low: int
    high: int
    size: int

    def alike(self, a: NDArray[np.uint8], b: NDArray[np.uint8]) -> bool:
        """Whether the bytes of two launches hold the same numbers, to half of the digits of the largest number."""
        if self.size == 0:
            return True
        kind = _FLOATS.get(self.size)
        if kind is None or len(a) % self.size:
            return bool((a == b).all())
        x, y = a.copy().view(kind).astype(np.float64), b.copy().view(kind).astype(np.float64)
        finite = np.isfinite(x)
        if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not np.isfinite(y[finite]).all():
            return False
        x, y = x[finite], y[finite]
        scale = float(np.abs(x).max(initial=0.0))
        return bool(np.abs(x - y).max(initial=0.0) <= np.sqrt(np.finfo(kind).eps) * scale)


def unsteady(definitions: Definitions, g: int, handles: Sequence[int], blocks: MemoryBlocks) -> list[Unsteady]:
    """The memory that sums in no fixed order write, and nodes that read it, in a definition.

    ``handles``: its nodes, in an order that its edges allow. Of nodes of unknown memory nothing is taken for unsteady.
    """
    sources = {handle for handle in handles if _adds(definitions, handle)}
    if not sources:
        return []
    names = {info.handle: info.name for info in definitions.infos(g)}
    memory = memory_of(definitions, g, blocks, by_word=True)
    found: list[Unsteady] = []
    calls: set[int] = set()
    for handle in handles:
        touched = memory[handle]
        if touched is None:
            continue
        follows = any(_reads(touched, piece) for piece in found)
        if handle not in sources and not follows:
            found = [piece for piece in found if not _replaced(touched, piece)]
            continue
        if len(found) > _MOST or any(part in names[handle] for part in _PAIRS):
            return []
        shown = _shown(definitions, handle)
        calls |= {handle} if shown is not None else set()
        found += [_piece(one, shown) for one in touched if one.writes]
    others = [one.extent for handle in handles if handle not in calls for one in memory[handle] or ()]
    found = [piece for piece in found if piece.size or not any(a < piece.high and piece.low < b for a, b in others)]
    return sorted(set(found), key=lambda one: (one.low, one.high, one.size))


def adds_loosely(definitions: Definitions) -> bool:
    """Whether any node is one that adds in no fixed order."""
    return any(said.call.endswith(_CALLS) for said in definitions.declared.values())


def _adds(definitions: Definitions, handle: int) -> bool:
    said = definitions.declared.get(handle)
    return said is not None and said.call.endswith(_CALLS)


def _shown(definitions: Definitions, handle: int) -> Mapping[tuple[int, int], int] | None:
    """The arrays of a library's call, and the bytes of their elements; None for a node that no such call has recorded.

    All else that the call writes is memory of its own, with partial sums.
    """
    said = definitions.declared.get(handle)
    return {one.extent: one.itemsize for one in said.accesses} if said is not None and said.call else None


def _piece(access: Access, shown: Mapping[tuple[int, int], int] | None) -> Unsteady:
    return Unsteady(*access.extent, access.itemsize if shown is None else shown.get(access.extent, 0))


def _reads(touched: Memory, piece: Unsteady) -> bool:
    return any(not one.writes and one.extent[0] < piece.high and piece.low < one.extent[1] for one in touched or ())


def _replaced(touched: Memory, piece: Unsteady) -> bool:
    inside = [one for one in touched or () if one.writes and one.exact and one.dense]
    return any(one.extent[0] <= piece.low and piece.high <= one.extent[1] for one in inside)
