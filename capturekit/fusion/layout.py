"""How the threads of a fused kernel are laid over its elements: rows of the innermost axis, in tiles of one block each.

The columns of a row are worked on several at a time by one thread, so that several loads are under way and one index is
found for all of them. Where there are more rows than one, a block has a tile of both, so that what lies in the rows
beside an element is in the block's cache. Which tile a block has is one division, done by multiplying.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from capturekit.fusion.elementwise import Piece
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, narrow

#: Threads of a block.
THREADS = 128
#: The most threads of a block that lie along a row where there are several rows: with several columns each, the
#: addresses of a warp lie one after the other.
_ALONG = 64
#: So many elements a thread works on, and for how many elements there are threads enough to do so.
_TOGETHER, _MANY = 4, 1 << 16
#: Rows that are shorter than this have one element a thread.
_SHORT = 16
#: Distances and sizes above this do not fit into 32 bits, with what one tile may go beyond.
_MOST = (1 << 31) - (1 << 16)


@dataclass(frozen=True)
class TileLayout:
    """Rows and columns, how many columns a thread has, the block's threads (along a row, rows), and the tiles of a row.

    ``narrow``: 32 bits are enough for all indices and distances.
    """

    rows: int
    columns: int
    together: int
    block: tuple[int, int]
    narrow: bool

    @property
    def across(self) -> int:
        """How many tiles a row of them has."""
        return -(-self.columns // (self.together * self.block[0]))

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.across * -(-self.rows // self.block[1])

    @property
    def even(self) -> bool:
        """Whether no thread has fewer columns than others."""
        return self.columns % self.together == 0


def layout_of(kernel: FusedKernel) -> TileLayout:
    """The layout for a kernel."""
    *outer, columns = kernel.shape
    rows = prod(outer)
    together = _TOGETHER if columns >= _SHORT and kernel.size >= _MANY else 1
    along = min(THREADS if rows == 1 else _ALONG, _power(-(-columns // together)))
    return TileLayout(rows, columns, together, (along, min(THREADS // along, _power(rows))), _narrow(kernel))


def _power(number: int) -> int:
    """The power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def _narrow(kernel: FusedKernel) -> bool:
    if kernel.size > _MOST:
        return False
    for place in kernel.places:
        if place.in_memory and not place.pieces and not narrow(place):
            return False
        size = np.dtype(place.dtype).itemsize
        for piece in place.pieces:
            part = FusedPlace(place.dtype, piece.address, piece.lengths, piece.strides, True, False)
            reach = sum((n - 1) * abs(s) for n, s in zip(kernel.shape, through(kernel.shape, piece, size)))
            if not narrow(part) or reach > _MOST or abs(shift(piece, size)) > _MOST:
                return False
    return True


def steps(shape: tuple[int, ...], whole: tuple[int, ...]) -> list[dict[int, int]]:
    """For each axis of ``whole`` the axes of ``shape`` that it is split into, each with its step."""
    found = []
    for n, length in enumerate(whole):
        inner = prod(whole[n + 1 :])
        every = {k: prod(shape[k + 1 :]) for k in range(len(shape)) if shape[k] > 1}
        found.append({k: step // inner for k, step in every.items() if inner <= step < inner * length})
    return found


def through(shape: tuple[int, ...], piece: Piece, size: int) -> tuple[int, ...]:
    """The distances in bytes between elements of a piece along the axes of the whole kernel."""
    found = [0] * len(shape)
    for axis, stride in zip(steps(shape, piece.whole), _strides(piece, size)):
        for k, step in axis.items():
            found[k] += step * stride
    return tuple(found)


def shift(piece: Piece, size: int) -> int:
    """How many bytes before its first element the first element of the whole would lie, if it went on like that."""
    return sum(offset * stride for offset, stride in zip(piece.offsets, _strides(piece, size)))


def _strides(piece: Piece, size: int) -> list[int]:
    """Those of a piece; where it has one element along an axis that of the whole, so that it equals others."""
    own = [size * prod(piece.whole[n + 1 :]) for n in range(len(piece.whole))]
    return [one if length == 1 else stride for one, length, stride in zip(own, piece.lengths, piece.strides)]


def in_order(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of elements that lie one after the other."""
    size = np.dtype(dtype).itemsize
    return tuple(size * prod(shape[n + 1 :]) if length > 1 else 0 for n, length in enumerate(shape))


def divisor(number: int) -> tuple[int, int]:
    """A factor and a shift that divide by a number: (high word of n times factor, plus n) >> shift, for n below 2^31.

    Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994).
    """
    places = (number - 1).bit_length()
    return ((1 << 32) * ((1 << places) - number)) // number + 1, places
