"""Memory that holds other last digits once kernels are fused without keeping every bit: which numbers lie where.

Such numbers are compared with a tolerance, that of their dtype. Whole numbers and truth values are not rounded: every
bit of them counts, and so it does where it is not known what lies in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.analysis.node_memory import Memory
from capturekit.driver.node_accesses import Access, covers
from capturekit.fusion.elementwise import Elementwise, Rounded, kind_of
from capturekit.fusion.reduction import Reduction

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How far two numbers may be apart, as a part of the number itself plus the mean of all in its array.
TOLERANCES = {'float16': 1e-2, 'bfloat16': 4e-2, 'float32': 1e-5, 'float64': 1e-12}
#: Real numbers of which numbers of other dtypes are made.
_PARTS = {'complex64': 'float32', 'complex128': 'float64'}
#: What elements of so many bytes may be that a library computes.
_COMPUTED = {2: ('float16',), 4: ('float32',), 8: ('float64', 'complex64'), 16: ('complex128',)}


@dataclass(frozen=True)
class RoundedNumbers:
    """Elements that were computed: where they lie, and the dtypes that they may have; none where every bit counts."""

    access: Access
    dtypes: tuple[str, ...] = ()

    @property
    def low(self) -> int:
        """The first byte."""
        return self.access.extent[0]

    @property
    def high(self) -> int:
        """The byte after the last one."""
        return self.access.extent[1]

    def keep(self, differ: NDArray[Any], apart: NDArray[Any], a: NDArray[Any], b: NDArray[Any]) -> None:
        """Note in ``differ`` which bytes differ by more than rounding.

        All are of the bytes from ``low`` to ``high - 1``; ``apart`` tells which are not the same.
        """
        self._elements(differ)[...] = self._elements(apart) & ~self._alike(a, b)[..., None]

    def _alike(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """For each element whether both have the same number, as far as rounding goes."""
        x, y = self._elements(a), self._elements(b)
        found = [_near(x, y, dtype) for dtype in self.dtypes]
        if not found:
            return np.zeros(self.access.shape, np.bool_)
        return next((one for one in found if one.all()), found[0])

    def _elements(self, of: NDArray[Any]) -> NDArray[Any]:
        """The bytes of each element."""
        access, item = self.access, self.access.itemsize
        shape, strides = (*access.shape, item), (*access.strides, 1)
        found: NDArray[Any] = np.ndarray(shape, of.dtype, of.data, access.address - self.low, strides)
        return found


def _near(x: NDArray[Any], y: NDArray[Any], dtype: str) -> NDArray[Any]:
    """For each element, given by its bytes, whether two numbers are equal but for rounding."""
    real = _PARTS.get(dtype, dtype)
    a, b = (_reals(one, real) for one in (x, y))
    with np.errstate(all='ignore'):
        size = np.abs(a[np.isfinite(a)])
        far = TOLERANCES[real] * (np.abs(a) + (size.mean() if size.size else 0.0))
        near = (np.abs(a - b) <= far) & np.isfinite(a) & np.isfinite(b)
    same = near | (a == b) | (np.isnan(a) & np.isnan(b))
    return np.asarray(same.all(axis=-1))


def _reals(of: NDArray[Any], real: str) -> NDArray[Any]:
    """The real numbers in bytes, in double precision; the last axis has those of one element."""
    given = np.ascontiguousarray(of)
    if real == 'bfloat16':  # the upper half of a float32
        return (given.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return given.view(real).astype(np.float64)


# -- which numbers lie where --------------------------------------------------------------------------------------


def rounded_numbers(
    sequence: Sequence[int],
    does: Sequence[Any],
    memory: Sequence[Memory],
    fused: Collection[int],
    calls: Mapping[int, tuple[str, ...] | None],
    copies: Mapping[int, tuple[int, int, int]],
) -> list[RoundedNumbers]:
    """The elements that a launch may leave rounded otherwise, in the order in which they are written.

    Args:
        sequence: the nodes, in an order that their edges allow.
        does: what each computes for each element or reduces, or why it is not fused.
        memory: what each touches; None where that is not known.
        fused: those that become part of a fused kernel.
        calls: of those that a library's call has recorded the dtypes that it computes; None for real or complex ones.
        copies: of nodes that copy bytes where to, where from, and how many.
    """
    found: list[RoundedNumbers] = []
    does = [one.does if isinstance(one, Rounded) else one for one in does]
    for node in sequence:
        touched = memory[node]
        if touched is None and node in fused:  # a kernel of the user's, whose code tells what it writes
            touched = _told(does[node])
        if touched is None:
            found = []
            continue
        written = [replace(one, exact=True) for one in touched if one.writes is not False]
        follows = node in fused or any(_meets(one, piece) for one in touched if not one.writes for piece in found)
        more = list(_made(node, does[node], written, calls, copies, found)) if follows else []
        found = [one for one in found if not any(covers(over, one.access) for over in written)]
        if not follows:  # what it writes is as it was recorded
            more = [RoundedNumbers(one) for one in written if any(_meets(one, piece) for piece in found)]
        found += more
    return found


def _told(does: Any) -> Memory:
    """What a fused kernel touches, by its operands; None if they are not known."""
    if not isinstance(does, (Elementwise, Reduction)):
        return None
    return [one.access for one in does.operands if one.number is None]


def _made(
    node: int,
    does: Any,
    written: Sequence[Access],
    calls: Mapping[int, tuple[str, ...] | None],
    copies: Mapping[int, tuple[int, int, int]],
    found: Sequence[RoundedNumbers],
) -> Iterator[RoundedNumbers]:
    """What a node writes that computes with numbers which are rounded otherwise."""
    if isinstance(does, (Elementwise, Reduction)):
        for operand in does.operands:
            if operand.writes and operand.number is None:
                yield RoundedNumbers(operand.access, (operand.dtype,) if kind_of(operand.dtype) in 'fc' else ())
    elif node in copies:
        yield from _copied(*copies[node], found)
    elif node in calls:
        dtypes = calls[node]
        for one in written:
            yield RoundedNumbers(one, _COMPUTED.get(one.itemsize, ()) if dtypes is None else dtypes)
    else:
        yield from map(RoundedNumbers, written)


def _copied(to: int, source: int, nbytes: int, found: Sequence[RoundedNumbers]) -> Iterator[RoundedNumbers]:
    """Bytes that are copied: numbers, if all that lies there are numbers of one dtype."""
    inside = [one for one in found if one.low < source + nbytes and source < one.high]
    dtypes, size = {one.dtypes for one in inside}, {one.access.itemsize for one in inside}
    item = size.pop() if len(dtypes) == len(size) == 1 else 1
    whole = item > 1 and not nbytes % item and all((one.low - source) % item == 0 for one in inside)
    item = item if whole else 1
    access = Access(to, (nbytes // item,), (item,), item, True)
    yield RoundedNumbers(access, inside[0].dtypes if whole else ())


def _meets(one: Access, piece: RoundedNumbers) -> bool:
    low, high = one.extent
    return low < piece.high and piece.low < high
