"""Reductions that a library's kernel does, and that CuPy's own template can do as well, in another order of sums.

CuPy hands sums, products, minima and maxima of rows that lie in one piece to CUB (``cupy/cuda/cub.pyx``). The arguments
of that call say what is reduced. A kernel of CuPy's template adds the same numbers in another order, so that the last
bits differ: only those who do not need them get it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from capturekit.driver.elementwise import Operand, Rounded
from capturekit.driver.node_accesses import Touched
from capturekit.driver.reduction import Input, Made, Reduction, ReductionCode

#: Types of C++, by dtype, of those that CUB adds in the dtype itself.
_C_TYPES = {
    'int32': 'int', 'int64': 'long long', 'uint32': 'unsigned int', 'uint64': 'unsigned long long',
    'float32': 'float', 'float64': 'double',
}  # fmt: skip
_LARGEST = '(a > b || a != a) ? a : b'
_SMALLEST = '(a < b || a != a) ? a : b'
#: For each of CUB's operations the expression that combines two values.
_COMBINED = {'SUM': 'a + b', 'PROD': 'a * b', 'MIN': _SMALLEST, 'MAX': _LARGEST}
#: So many elements of a row one thread has, as long as a block has threads; the least and the most threads of a block.
_EACH, _LEAST, _MOST = 4, 32, 512
#: Shorter rows share a block, as CuPy's own do.
_SHORT = 64


@dataclass(frozen=True, eq=False)
class Rows:
    """What a call of CUB reduces: ``count`` elements at ``source``, in ``results`` rows, to as many at ``output``."""

    operation: str
    dtype: str
    source: int
    count: int
    output: int
    results: int


def rows_of(array: Any, operation: Any, result: Any) -> Rows | None:
    """What ``cub_reduction`` reduces, from its arguments and its result; None if it is none of these."""
    name, dtype = str(getattr(operation, 'name', '')).removeprefix('CUPY_CUB_'), str(array.dtype)
    if name not in _COMBINED or dtype not in _C_TYPES or str(result.dtype) != dtype or not (array.size and result.size):
        return None
    if array.size % result.size or not any(result.flags[one] for one in ('C_CONTIGUOUS', 'F_CONTIGUOUS')):
        return None
    return Rows(name, dtype, int(array.data.ptr), int(array.size), int(result.data.ptr), int(result.size))


def of_calls(
    known: Mapping[int, Any], calls: Mapping[int, Rows], touched: Mapping[int, Touched], why: str
) -> dict[int, Reduction | str]:
    """What nodes of a library reduce, by their handles.

    Args:
        known: of nodes why they are not fused; those for which it is ``why`` are the library's.
        calls: of nodes the call that recorded them. A call of several kernels is not understood.
        touched: what each node touches.
    """
    nodes = [handle for handle in calls if known.get(handle) == why]
    each = Counter(id(calls[handle]) for handle in nodes)
    found: dict[int, Reduction | str] = {}
    for handle in nodes:
        rows = calls[handle]
        if each[id(rows)] == 1 and _uses(touched[handle], (rows.source, rows.output)):
            found[handle] = Rounded.of(why, _reduction(rows))
    return found


def _uses(touched: Touched, addresses: Iterable[int]) -> bool:
    """Whether a node's arguments have these addresses: a call may work on a copy of its array."""
    return {*addresses} <= {one.address for one in touched.accesses}


def _reduction(rows: Rows) -> Reduction:
    item, length = np.dtype(rows.dtype).itemsize, rows.count // rows.results
    source = Operand(rows.dtype, rows.source, (length, rows.results), (item, item * length))
    output = Operand(rows.dtype, rows.output, (rows.results,), (item,), None, False, True, True)
    block = _MOST if length < _SHORT else min(max(_power(-(-length // _EACH)), _LEAST), _MOST)
    stride = 1 << (block // length).bit_length() - 1 if length < _SHORT else 1
    code = _code(rows, block, length)
    return Reduction(code.made.name, code, (source,), output, -(-rows.results // stride), stride)


def _power(number: int) -> int:
    """The power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def _code(rows: Rows, block: int, length: int) -> ReductionCode:
    kind, combine, identity = _C_TYPES[rows.dtype], _COMBINED[rows.operation], _identity(rows)
    names = ('type_in0_raw', 'type_out0_raw')
    index = ('IndexT', 'int64' if length >= 1 << 31 else 'int32')
    types = tuple((name, np.dtype(dtype).type) for name, dtype in (*((one, rows.dtype) for one in names), index))
    name = f'cupy_{rows.operation.lower()}'
    made = Made(name, block, kind, (), (), identity, 'in0', combine, 'out0 = a', types, '', ())
    text = (str(block), combine, identity, *(f'{one} {np.dtype(dtype)}' for one, dtype in types))
    inputs = (Input('in0', names[0], rows.dtype),)
    return ReductionCode(inputs, Input('out0', names[1], rows.dtype), block, made, text, library=True)


def _identity(rows: Rows) -> str:
    """The value that changes nothing, as C++ has it."""
    if rows.operation in ('SUM', 'PROD'):
        return str(int(rows.operation == 'PROD'))
    lowest, dtype = rows.operation == 'MAX', np.dtype(rows.dtype)
    if dtype.kind == 'f':
        bits = np.array(-np.inf if lowest else np.inf, dtype).view(f'u{dtype.itemsize}')
        return f'__int_as_float({bits:#x})' if dtype.itemsize == 4 else f'__longlong_as_double({bits:#x}ull)'
    limits = np.iinfo(dtype)
    if lowest:
        return f'({limits.min + 1} - 1)' if limits.min else '0'
    return f'{limits.max}{"u" * (dtype.kind == "u")}{"ll" * (dtype.itemsize == 8)}'
