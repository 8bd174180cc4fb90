"""Reductions that a library's kernel does, and that CuPy's own template can do as well, in another order of sums.

CuPy hands sums, products, minima and maxima of rows that lie in one piece to CUB (``cupy/cuda/cub.pyx``). The arguments
of that call say what is reduced. A kernel of CuPy's template adds the same numbers in another order, so that the last
bits differ: only those who do not need them get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from capturekit.driver.library_accesses import Rows
from capturekit.driver.node_accesses import Access, Touched, linear
from capturekit.fusion.elementwise import ElementOperand
from capturekit.fusion.reduction import Input, Made, Reduction, ReductionCode

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
#: The fewest and the most partial results: enough for all of a device's multiprocessors, few enough for one block.
_FEWEST, _PARTS = 64, 1024
#: Shorter rows share a block, as CuPy's own do.
_SHORT = 64


@dataclass(frozen=True)
class Halves:
    """The two kernels by which CUB reduces many elements to one: to partial results, and these to the result.

    ``memory`` is what each touches, also where CUB's own kernels do it. Only both can be replaced, or none: they have
    another number of partial results.
    """

    nodes: tuple[int, int]
    does: tuple[Reduction, Reduction]
    memory: tuple[tuple[Access, ...], tuple[Access, ...]]


def of_calls(
    nodes: Iterable[int], calls: Mapping[int, Rows], touched: Mapping[int, Touched], blocks: Mapping[int, int]
) -> tuple[dict[int, Reduction], list[Halves]]:
    """What nodes of a library reduce, by their handles; and pairs of nodes that do it together.

    Args:
        nodes: the library's.
        calls: of nodes the call that recorded them.
        touched: what each node touches. blocks: by how many blocks of threads.
    """
    every: dict[int, list[int]] = {}
    for handle in nodes:
        if handle in calls:
            every.setdefault(id(calls[handle]), []).append(handle)
    found: dict[int, Reduction] = {}
    halves: list[Halves] = []
    for handles in every.values():
        rows = calls[handles[0]]
        ends = {handle: _ends(touched[handle]) for handle in handles}
        if len(handles) == 1 and ends[handles[0]] == (rows.source, rows.output):  # a call may work on a copy
            found[handles[0]] = _reduction(rows)
        elif len(handles) == 2 and rows.results == 1:
            halves += _halves(rows, ends, blocks)
    return found, halves


def _ends(touched: Touched) -> tuple[int, int]:
    """What CUB's kernel reads and writes: its first two arguments. Later ones have numbers that may look alike."""
    known = {one.argument: one.address for one in touched.accesses if not one.offset}
    return known.get(0, 0), known.get(1, 0)


def _halves(rows: Rows, ends: Mapping[int, tuple[int, int]], blocks: Mapping[int, int]) -> Iterator[Halves]:
    """The two nodes that reduce all elements to one, by way of partial results."""
    first, second = sorted(ends, key=lambda handle: ends[handle][0] != rows.source)
    (source, place), (parted, output) = ends[first], ends[second]
    most = min(blocks[first], _PARTS)
    parts = next((n for n in range(most, _FEWEST - 1, -1) if rows.count % n == 0), 0)
    if (source, output) != (rows.source, rows.output) or parted != place:
        return
    if not parts or rows.count // parts < _MOST:
        return
    item = np.dtype(rows.dtype).itemsize
    does = (
        _reduction(replace(rows, output=place, results=parts)),
        _reduction(replace(rows, source=place, count=parts)),
    )
    ws = linear(place, blocks[first] * item, True)
    ends_of = (rows.source, rows.source + rows.count * item), (rows.output, rows.output + item)
    if any(low < ws.extent[1] and place < high for low, high in ends_of):
        return
    memory = (
        (linear(rows.source, rows.count * item, False), ws),
        (replace(ws, writes=False), linear(rows.output, item, True)),
    )
    yield Halves((first, second), does, memory)


def _reduction(rows: Rows) -> Reduction:
    item, length = np.dtype(rows.dtype).itemsize, rows.count // rows.results
    source = ElementOperand(rows.dtype, rows.source, (length, rows.results), (item, item * length))
    output = ElementOperand(rows.dtype, rows.output, (rows.results,), (item,), None, False, True, True)
    block, stride = threads(length)
    code = _code(rows, block, length)
    return Reduction(code.made.name, code, (source,), output, -(-rows.results // stride), stride)


def threads(length: int) -> tuple[int, int]:
    """The threads of a block for rows of a length, and how many rows it does at once."""
    block = _MOST if length < _SHORT else min(max(_power(-(-length // _EACH)), _LEAST), _MOST)
    return block, 1 << (block // length).bit_length() - 1 if length < _SHORT else 1


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
