"""What calls of libraries touch, from their arguments: functions of cuBLAS, transforms of cuFFT, reductions of CUB.

A kernel of a library takes a structure that only its library understands, but the call that launched it names every
matrix, with its leading dimension, stride and batch. All that such a call may touch is said here, never less; a call
whose arguments are not understood (pointers to pointers, an unknown dtype) has no answer. cuBLAS documentation, "cuBLAS
Level-1 Function Reference" to "BLAS-like Extension"; cuFFT documentation, "Data Layout".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capturekit.driver.node_accesses import Access, linear

#: ``cudaDataType``: the bytes of an element.
_SIZES = {0: 4, 1: 8, 2: 2, 3: 1, 4: 8, 5: 16, 6: 4, 8: 1, 10: 4, 14: 2, 15: 4}
#: The letter of a function's dtype: the bytes of an element.
_LETTERS = {'s': 4, 'd': 8, 'c': 8, 'z': 16}
#: No factor is larger than a complex number of double precision.
_FACTOR = 16
#: Which of these letters a name begins with: any, those of real numbers, those of complex ones.
_LETTERS_OF = {'{t}': 'sdcz', '{r}': 'sd', '{c}': 'cz'}
#: The arguments of each function behind its handle, by name; ``{t}`` and its like are letters of :data:`_LETTERS_OF`.
_ARGUMENTS = {
    'gemmEx': 'ta tb m n k alpha A A: lda B B: ldb beta C C: ldc compute algo',
    'sgemmEx': 'ta tb m n k alpha A A: lda B B: ldb beta C C: ldc',
    'gemmStridedBatchedEx': 'ta tb m n k alpha A A: lda A+ B B: ldb B+ beta C C: ldc C+ batch compute algo',
    '{t}gemm': 'ta tb m n k alpha A lda B ldb beta C ldc',
    '{t}gemmStridedBatched': 'ta tb m n k alpha A lda A+ B ldb B+ beta C ldc C+ batch',
    '{t}gemv': 'ta m n alpha A lda x incx beta y incy',
    '{r}ger': 'm n alpha x incx y incy A lda',
    '{c}geru': 'm n alpha x incx y incy A lda',
    '{c}gerc': 'm n alpha x incx y incy A lda',
    '{t}geam': 'ta tb m n alpha A lda beta B ldb C ldc',
    '{t}dgmm': 'side m n A lda x incx C ldc',
    '{t}syrk': 'uplo ta n k alpha A lda beta C ldc',
    '{t}trsm': 'side uplo ta diag m n alpha A lda B ldb',
    '{t}axpy': 'n alpha x incx y incy',
    '{t}scal': 'n alpha x incx',
    '{r}dot': 'n x incx y incy result',
    '{c}dotu': 'n x incx y incy result',
    '{c}dotc': 'n x incx y incy result',
}


@dataclass(frozen=True)
class _Function:
    """A function of cuBLAS: its arguments' names, the kind of product that it is, and its elements' bytes."""

    names: tuple[str, ...]
    kind: str
    itemsize: int


def _functions() -> Iterator[tuple[str, _Function]]:
    for pattern, text in _ARGUMENTS.items():
        letters = _LETTERS_OF.get(pattern[:3], '')
        name = pattern[3:] if letters else pattern
        kind = name.removesuffix('Ex').removesuffix('StridedBatched')
        names = tuple(text.split())
        if not letters:
            yield name, _Function(names, kind.removeprefix('s'), 0)
        for letter in letters:
            yield f'{letter}{name}', _Function(names, kind, _LETTERS[letter])


#: The functions by the names that CuPy's module has for them.
FUNCTIONS: Mapping[str, _Function] = dict(_functions())


@dataclass(frozen=True)
class _Call:
    """The arguments of one call, by name."""

    given: Mapping[str, int]
    itemsize: int

    def __getitem__(self, name: str) -> int:
        return self.given[name]

    def size(self, name: str) -> int:
        """The bytes of an element of a matrix."""
        code = self.given.get(f'{name}:')
        return self.itemsize if code is None else _SIZES[code]

    def matrix(self, name: str, rows: int, columns: int, *, writes: bool = False) -> Access:
        """A matrix as cuBLAS has it, column by column, as often as the batch has it."""
        size = self.size(name)
        ld, batch, step = self[f'ld{name.lower()}'], self.given.get('batch', 1), self.given.get(f'{name}+', 0)
        if ld < rows or min(rows, columns, batch, size) < 1:
            raise LookupError(name)
        once = Access(self[name], (columns, rows), (ld * size, size), size, writes)
        if batch == 1:
            return once
        return replace(once, shape=(batch, *once.shape), strides=(step * size, *once.strides))

    def turned(self, which: str, name: str, rows: int, columns: int) -> Access:
        """A matrix that is read, of so many rows and columns once it has been transposed, if it is."""
        return self.matrix(name, *((columns, rows) if self[which] else (rows, columns)))

    def vector(self, name: str, length: int, *, writes: bool = False) -> Access:
        step = abs(self[f'inc{name}'])
        if length < 1 or not step:
            raise LookupError(name)
        return Access(self[name], (length,), (step * self.itemsize,), self.itemsize, writes)

    def factors(self) -> Iterator[Access]:
        """Numbers of the host, or of the device: whichever the handle is set to."""
        for name in ('alpha', 'beta'):
            if name in self.given:
                yield linear(self[name], _FACTOR, False, exact=False)


_Accesses = Callable[[_Call, int, int, int], list[Access]]


def _ger(call: _Call, m: int, n: int, _k: int) -> list[Access]:
    return [call.vector('x', m), call.vector('y', n), call.matrix('A', m, n, writes=True)]


def _dot(call: _Call, _m: int, n: int, _k: int) -> list[Access]:
    return [call.vector('x', n), call.vector('y', n), linear(call['result'], call.itemsize, True)]


#: What each kind of function touches, from its call and the numbers m, n and k among its arguments.
_KINDS: dict[str, _Accesses] = {
    'gemm': lambda c, m, n, k: [
        c.turned('ta', 'A', m, k), c.turned('tb', 'B', k, n), c.matrix('C', m, n, writes=True),
    ],
    'gemv': lambda c, m, n, _k: [
        c.matrix('A', m, n), c.vector('x', m if c['ta'] else n), c.vector('y', n if c['ta'] else m, writes=True),
    ],
    **dict.fromkeys(('ger', 'geru', 'gerc'), _ger),
    'geam': lambda c, m, n, _k: [
        c.turned('ta', 'A', m, n), c.turned('tb', 'B', m, n), c.matrix('C', m, n, writes=True),
    ],
    'dgmm': lambda c, m, n, _k: [
        c.matrix('A', m, n), c.vector('x', n if c['side'] else m), c.matrix('C', m, n, writes=True),
    ],
    'syrk': lambda c, _m, n, k: [c.turned('ta', 'A', n, k), c.matrix('C', n, n, writes=True)],
    'trsm': lambda c, m, n, _k: [c.matrix('A', *[n if c['side'] else m] * 2), c.matrix('B', m, n, writes=True)],
    'axpy': lambda c, _m, n, _k: [c.vector('x', n), c.vector('y', n, writes=True)],
    'scal': lambda c, _m, n, _k: [c.vector('x', n, writes=True)],
    **dict.fromkeys(('dot', 'dotu', 'dotc'), _dot),
}  # fmt: skip


def of_cublas(name: str, given: Sequence[Any]) -> list[Access] | None:
    """All memory that a call of a function of cuBLAS may touch, besides its workspace; None where that is not known.

    ``given``: its arguments, the handle first, as CuPy passes them.
    """
    function = FUNCTIONS.get(name)
    if function is None or len(given) != len(function.names) + 1:
        return None
    call = _Call(dict(zip(function.names, map(int, given[1:]))), function.itemsize)
    try:
        return [*_KINDS[function.kind](call, *(call.given.get(name, 0) for name in 'mnk')), *call.factors()]
    except LookupError:
        return None


# -- arrays -----------------------------------------------------------------------------------------------------


def of_array(array: Any, *, writes: bool) -> Access:
    """The elements of an array of CuPy's."""
    size = int(array.itemsize)
    return Access(int(array.data.ptr), tuple(array.shape), tuple(array.strides), size, writes)


def _to_the_end(array: Any, *, writes: bool) -> Access:
    """From the first element of an array to the end of its memory block."""
    block, start = array.data.mem, int(array.data.ptr)
    return linear(start, int(block.ptr) + int(block.size) - start, writes)


#: ``CUFFT_C2R``, ``CUFFT_Z2D``: these may write into what they transform.
_TO_REAL = (0x2C, 0x6C)


def of_cufft(plan: Any, array: Any, out: Any, area: tuple[int, int] | None) -> list[Access] | None:
    """All memory that a transform may touch, its work area among it; None where that is not known.

    A plan has its own idea of how many elements there are, which need not be the arrays': so it is taken to go on to
    the ends of their memory blocks.
    """
    kind = getattr(plan, 'fft_type', None)
    if kind is None or getattr(plan, 'gpus', None) is not None or not (hasattr(array, 'data') and hasattr(out, 'data')):
        return None
    found = [_to_the_end(array, writes=int(kind) in _TO_REAL), _to_the_end(out, writes=True)]
    return found if area is None else [*found, linear(*area, True)]


#: Functions of ``cupy.cuda.cub``: whether they write into the array that they get.
CUB = {'cub_reduction': False, 'cub_scan': True}


def of_cub(name: str, array: Any, result: Any) -> list[Access]:
    """The arrays of a reduction or scan; its workspace and what is made in between is memory of its own."""
    found = [of_array(array, writes=CUB[name])] if array.size else []
    return found + ([of_array(result, writes=True)] if result.size else [])


#: The reductions of CUB whose meaning is known, and the dtypes that CUB adds in the dtype itself.
_REDUCTIONS = ('SUM', 'PROD', 'MIN', 'MAX')
_REDUCED = ('int32', 'int64', 'uint32', 'uint64', 'float32', 'float64')


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
    known = name in _REDUCTIONS and dtype in _REDUCED and str(result.dtype) == dtype
    if not known or not (array.size and result.size):
        return None
    if array.size % result.size or not any(result.flags[one] for one in ('C_CONTIGUOUS', 'F_CONTIGUOUS')):
        return None
    return Rows(name, dtype, int(array.data.ptr), int(array.size), int(result.data.ptr), int(result.size))
