"""One kernel that does what several elementwise kernels do, element by element: its description, its operations' code.

Each operation keeps the code that CuPy has for it, in a function of its own. Between operations a value has the dtype
that it would have in memory, and is kept from being computed together with the next one, so that each result is rounded
as if it had been stored (:mod:`capturekit.fusion.elementwise`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from capturekit.driver.node_accesses import Access
from capturekit.fusion.elementwise import (
    SCALAR,
    ElementOperation,
    OperationParameter,
    Piece,
    itemsize,
    kind_of,
    rounded_code,
)

#: Types of CUDA's, by dtype.
_C_TYPES = {
    'bool': 'bool', 'int8': 'signed char', 'int16': 'short', 'int32': 'int', 'int64': 'long long',
    'uint8': 'unsigned char', 'uint16': 'unsigned short', 'uint32': 'unsigned int', 'uint64': 'unsigned long long',
    'float16': 'float16', 'bfloat16': 'bfloat16', 'float32': 'float', 'float64': 'double',
    'complex64': 'thrust::complex<float>', 'complex128': 'thrust::complex<double>',
}  # fmt: skip
_SEALS = """
#include "cupy/float16.cuh"
template <typename T> __device__ __forceinline__ void ck_seal(T &, unsigned int) {}
__device__ __forceinline__ void ck_seal(float &x, unsigned int z) { x = __uint_as_float(__float_as_uint(x) ^ z); }
__device__ __forceinline__ void ck_seal(double &x, unsigned int z) {
  x = __hiloint2double(__double2hiint(x), static_cast<int>(static_cast<unsigned int>(__double2loint(x)) ^ z));
}
__device__ __forceinline__ void ck_seal(float16 &x, unsigned int z) {
  unsigned short &bits = reinterpret_cast<unsigned short &>(x);
  bits = static_cast<unsigned short>(bits ^ z);
}
class bfloat16;
__device__ __forceinline__ void ck_seal(bfloat16 &x, unsigned int z) {
  unsigned short &bits = reinterpret_cast<unsigned short &>(x);
  bits = static_cast<unsigned short>(bits ^ z);
}
template <typename T> __device__ __forceinline__ void ck_seal(thrust::complex<T> &x, unsigned int z) {
  T re = x.real(), im = x.imag();
  ck_seal(re, z);
  ck_seal(im, z);
  x = thrust::complex<T>(re, im);
}
"""
_INCLUDE = re.compile(r'^\s*#\s*include\b.*$', re.MULTILINE)


@dataclass(frozen=True)
class FusedPlace:
    """Elements of memory that a fused kernel has in a register: how they lie, whether it loads and stores them.

    With ``pieces`` they are loaded from these instead.
    """

    dtype: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    loads: bool
    stores: bool
    pieces: tuple[Piece, ...] = ()

    @property
    def in_memory(self) -> bool:
        """Whether the kernel touches the memory."""
        return self.loads or self.stores

    @property
    def one(self) -> bool:
        """Whether it is one element of memory for all elements of the kernel."""
        return not any(self.strides) and prod(self.shape) > 1

    @property
    def parts(self) -> list[FusedPlace]:
        """Its pieces, each as a place that is only read."""
        return [FusedPlace(self.dtype, one.address, one.lengths, one.strides, True, False) for one in self.pieces]

    def access(self, writes: bool) -> Access:
        """The memory of its elements."""
        return Access(self.address, self.shape, self.strides, itemsize(self.dtype), writes)

    @property
    def accesses(self) -> list[Access]:
        """What the kernel touches for it: what is read comes first."""
        reads = [one.access(False) for one in self.parts] or ([self.access(False)] if self.loads else [])
        return [*reads, *([self.access(True)] if self.stores else [])]


@dataclass(frozen=True)
class FusedStep:
    """One operation. ``operands`` are numbers of places, and for a number among its arguments -1 - its place in
    ``FusedKernel.numbers``."""

    operation: Any
    operands: tuple[int, ...]


@dataclass(frozen=True)
class FusedKernel:
    """What a fused kernel does to each of its elements: steps in order, over places of one shape.

    ``fast``: the compiler may round the result of one step together with the next one.
    """

    shape: tuple[int, ...]
    places: tuple[FusedPlace, ...]
    numbers: tuple[tuple[str, Any], ...]
    steps: tuple[FusedStep, ...]
    fast: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


# -- its name and its operations ---------------------------------------------------------------------------------


def name_of(names: Sequence[str], text: Sequence[str]) -> str:
    """A name that tells the first operations, and is another one for another source."""
    from hashlib import sha256  # with OpenSSL, for those who fuse

    words = '_'.join(name.removeprefix('cupy_').partition('__')[0] for name in names)
    words = re.sub(r'\W|_+', '_', words)[:48].rstrip('_')
    digest = sha256('\0'.join(text).encode()).hexdigest()[:8]
    return f'cupy_fused_{words}_{digest}'


def _function(operation: ElementOperation, number: int, fast: bool) -> str:
    """An operation as a function, in a namespace with the names of its types and its preamble."""
    types = [f'typedef {_C_TYPES[dtype]} {name};' for name, dtype in operation.types]
    taken = ['const ptrdiff_t i', *(_taken(p, operation.ufunc) for p in operation.parameters)]
    dtypes = {dtype for _name, dtype in operation.types} | {one.dtype for one in operation.parameters}
    lines = ['#include "cupy/bfloat16.cuh"'] if 'bfloat16' in dtypes else []
    lines += [f'namespace ck_{number} {{', *types, _INCLUDE.sub('', operation.preamble)]
    lines += [f'__device__ __forceinline__ void run({", ".join(taken)}) {{', 'do {']
    code = operation.code if fast else rounded_code(operation)
    lines += _converted(operation, code) if operation.ufunc else [operation.code, ';']
    return '\n'.join([*lines, '} while (0);', '}', '}'])


def _taken(p: OperationParameter, ufunc: bool) -> str:
    kind = _C_TYPES[p.dtype]
    if p.kind == SCALAR:
        return f'const {kind} {p.name}'
    name = f'ck_{p.name}' if ufunc and p.name != '_where' else p.name
    return f'{kind} &{name}' if p.written else f'const {kind} &{name}'


def _converted(operation: ElementOperation, code: str) -> list[str]:
    """The code of a ufunc, between the conversions of its operands, as CuPy makes it."""
    lines, after = [], []
    if code.startswith('if (!_where)'):
        first, _, code = code.partition('\n')
        lines.append(first)
    for p in operation.parameters:
        if p.name == '_where' or p.kind == SCALAR:
            continue
        if p.written:
            lines.append(f'{p.name}_type {p.name};')
            after.append(f'ck_{p.name} = {_cast(p.computed, p.dtype, p.name)};')
        else:
            lines.append(f'const {p.name}_type {p.name}({_cast(p.dtype, p.computed, f"ck_{p.name}")});')
    return [*lines, code, ';', *after]


def _cast(of: str, to: str, code: str) -> str:
    kind, wanted = kind_of(of), kind_of(to)
    if kind == wanted or kind not in 'bc':
        return code
    if kind == 'b':
        return f'({code}) ? 1 : 0'
    return f'({code}) != {_C_TYPES[of]}()' if wanted == 'b' else f'({code}).real()'


def functions(operations: Iterable[ElementOperation], fast: bool) -> list[str]:
    """The functions of operations in their order, behind all headers that they include."""
    operations = list(operations)
    includes = dict.fromkeys(line.strip() for one in operations for line in _INCLUDE.findall(one.preamble))
    return [*includes, *(_function(one, number, fast) for number, one in enumerate(operations))]


# -- its arguments -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FusedArgument:
    """A parameter of the kernel: how CuPy declares it, its bytes, which elements it is, and how C++ declares it."""

    declared: str
    data: bytes
    place: FusedPlace | None = None
    code: str = ''

    @property
    def dtype(self) -> str:
        """The dtype of a number or of an array's elements."""
        return self.declared.split()[-2]

    @classmethod
    def array(cls, name: str, place: FusedPlace, raw: str = '') -> FusedArgument:
        """The elements of a place."""
        ndim = len(place.shape)
        data = struct.pack(f'{2 + 2 * ndim}q', place.address, prod(place.shape), *place.shape, *place.strides)
        kind = ('' if place.stores else 'const ') + _C_TYPES[place.dtype]
        return cls(f'{raw}{place.dtype} {name}', data, place, f'const ck_array<{kind}, {ndim}> {name}')

    @classmethod
    def number(cls, name: str, dtype: str, data: bytes) -> FusedArgument:
        """A number."""
        return cls(f'{dtype} {name}', data, None, f'const {_C_TYPES[dtype]} {name}')


def index_of(kernel: FusedKernel) -> bytes:
    """CuPy's index of a kernel's elements: their number, the shape, the place of a thread."""
    ndim = len(kernel.shape)
    return struct.pack(f'{1 + 2 * ndim}q', kernel.size, *kernel.shape, *[0] * ndim)


def _power(number: int) -> int:
    """The power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def in_order(size: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of elements of so many bytes that lie one after the other."""
    return tuple(size * prod(shape[n + 1 :]) for n in range(len(shape)))


def contiguous(shape: Sequence[int], strides: Sequence[int], size: int) -> bool:
    """Whether elements of so many bytes lie one after the other."""
    return all(n == 1 or one == own for n, one, own in zip(shape, strides, in_order(size, shape)))


def narrow(place: FusedPlace) -> bool:
    """Whether 32 bits are enough for the distances between its elements."""
    low, high = place.access(False).extent
    return high - low <= 1 << 31 and prod(place.shape) <= 1 << 31
