"""One kernel that does what several elementwise kernels do, element by element: its description and its source.

Each operation keeps the code that CuPy has for it, in a function of its own. Between operations a value has the dtype
that it would have in memory, and is *sealed*: combined with a zero that the compiler does not know, so that nothing is
computed across two operations (a product and a sum as one FMA) and each result is rounded as if it had been stored.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from capturekit.driver.elementwise import SCALAR, Operation, Parameter, Piece

#: Types of CUDA's, by dtype.
_C_TYPES = {
    'bool': 'bool', 'int8': 'signed char', 'int16': 'short', 'int32': 'int', 'int64': 'long long',
    'uint8': 'unsigned char', 'uint16': 'unsigned short', 'uint32': 'unsigned int', 'uint64': 'unsigned long long',
    'float16': 'float16', 'float32': 'float', 'float64': 'double',
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
template <typename T> __device__ __forceinline__ void ck_seal(thrust::complex<T> &x, unsigned int z) {
  T re = x.real(), im = x.imag();
  ck_seal(re, z);
  ck_seal(im, z);
  x = thrust::complex<T>(re, im);
}
"""
_TAKE = """
template <typename T, typename A, int N>
__device__ __forceinline__ bool ck_take(T &to, const A &from, const int (&at)[N]) {
  for (int d = 0; d < N; d++) {
    if (static_cast<unsigned int>(at[d]) >= static_cast<unsigned int>(from.shape()[d])) return false;
  }
  to = from[at];
  return true;
}
"""
_INCLUDE = re.compile(r'^\s*#\s*include\b.*$', re.MULTILINE)


@dataclass(frozen=True)
class Place:
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


@dataclass(frozen=True)
class Step:
    """One operation. ``operands`` are numbers of places, and for a number among its arguments -1 - its place in
    ``FusedKernel.numbers``."""

    operation: Any
    operands: tuple[int, ...]


@dataclass(frozen=True)
class FusedKernel:
    """What a fused kernel does to each of its elements: steps in order, over places of one shape."""

    shape: tuple[int, ...]
    places: tuple[Place, ...]
    numbers: tuple[tuple[str, Any], ...]
    steps: tuple[Step, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


# -- its source -------------------------------------------------------------------------------------------------


def source(kernel: FusedKernel) -> tuple[str, str, str, str]:
    """The arguments of a ``cupy.ElementwiseKernel``: inputs, outputs, operation, preamble."""
    inputs = [one.declared for one in _inputs(kernel)]
    outputs = [f'{p.dtype} ck_m{n}' for n, p in enumerate(kernel.places) if p.stores]
    known: dict[Any, int] = {}
    lines = []
    for n, place in enumerate(kernel.places):
        lines.append(f'{_C_TYPES[place.dtype]} ck_v{n}' + (f' = ck_m{n};' if place.loads and not place.pieces else ';'))
        lines += _pieces(kernel.shape, n, place.pieces)
    for step in kernel.steps:
        number = known.setdefault(step.operation, len(known))
        names = [f'ck_v{n}' if n >= 0 else f'ck_n{-1 - n}' for n in step.operands]
        lines.append(f'ck_{number}::run({", ".join(["i", *names])});')
        for n, parameter in zip(step.operands, step.operation.parameters):
            if parameter.written and np.dtype(parameter.dtype).kind in 'fc':
                lines.append(f'ck_seal(ck_v{n}, ck_zero);')
    lines += [f'ck_m{n} = ck_v{n};' for n, p in enumerate(kernel.places) if p.stores]
    parts = [_SEALS, *([_TAKE] if any(p.pieces for p in kernel.places) else [])]
    for operation in known:
        parts += dict.fromkeys(line.strip() for line in _INCLUDE.findall(operation.preamble))
    parts += [_function(operation, number) for operation, number in known.items()]
    return ', '.join(inputs), ', '.join(outputs), '\n'.join(lines), '\n'.join(parts)


def _function(operation: Operation, number: int) -> str:
    """An operation as a function, in a namespace with the names of its types and its preamble."""
    types = [f'typedef {_C_TYPES[dtype]} {name};' for name, dtype in operation.types]
    taken = ['const ptrdiff_t i', *(_taken(p, operation.ufunc) for p in operation.parameters)]
    lines = [f'namespace ck_{number} {{', *types, _INCLUDE.sub('', operation.preamble)]
    lines += [f'__device__ __forceinline__ void run({", ".join(taken)}) {{', 'do {']
    lines += _converted(operation) if operation.ufunc else [operation.code, ';']
    return '\n'.join([*lines, '} while (0);', '}', '}'])


def _taken(p: Parameter, ufunc: bool) -> str:
    kind = _C_TYPES[p.dtype]
    if p.kind == SCALAR:
        return f'const {kind} {p.name}'
    name = f'ck_{p.name}' if ufunc and p.name != '_where' else p.name
    return f'{kind} &{name}' if p.written else f'const {kind} &{name}'


def _converted(operation: Operation) -> list[str]:
    """The code of a ufunc, between the conversions of its operands, as CuPy makes it."""
    lines, after = [], []
    code = operation.code
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
    kind, wanted = np.dtype(of).kind, np.dtype(to).kind
    if kind == wanted or kind not in 'bc':
        return code
    if kind == 'b':
        return f'({code}) ? 1 : 0'
    return f'({code}) != {_C_TYPES[of]}()' if wanted == 'b' else f'({code}).real()'


# -- its arguments ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Input:
    """An argument that is only read: how it is declared, its bytes, and as what it is described to CuPy."""

    declared: str
    data: bytes
    dtype: str
    place: Place | None = None


def _inputs(kernel: FusedKernel) -> list[_Input]:
    """Arrays, parts of arrays with their places, numbers, and the zero of the seals."""
    found = []
    for n, place in enumerate(kernel.places):
        for k, piece in enumerate(place.pieces):
            part = Place(place.dtype, piece.address, piece.lengths, piece.strides, True, False)
            found.append(_Input(f'raw {place.dtype} ck_s{n}_{k}', _array(part), place.dtype, part))
            steps = [step for axis in _axes(kernel.shape, piece.whole) for _k, step in axis]
            for m, number in enumerate((*piece.offsets, *steps)):
                found.append(_Input(f'int64 ck_p{n}_{k}_{m}', struct.pack('q', number), 'int64'))
        if place.loads and not place.stores and not place.pieces:
            found.append(_Input(f'{place.dtype} ck_m{n}', _array(place), place.dtype, place))
    found += [_Input(f'{dtype} ck_n{n}', data, dtype) for n, (dtype, data) in enumerate(kernel.numbers)]
    return [*found, _Input('uint32 ck_zero', struct.pack('I', 0), 'uint32')]


def _axes(shape: tuple[int, ...], whole: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    """For each axis of ``whole`` the axes of ``shape`` that it is split into, each with its step."""
    found = []
    for n, length in enumerate(whole):
        inner = prod(whole[n + 1 :])
        steps = [(k, prod(shape[k + 1 :])) for k in range(len(shape)) if shape[k] > 1]
        found.append([(k, step // inner) for k, step in steps if inner <= step < inner * length])
    return found


def _pieces(shape: tuple[int, ...], n: int, pieces: Sequence[Piece]) -> list[str]:
    """Code that loads a place from the piece in which the element lies."""
    lines, takes = [], []
    for k, piece in enumerate(pieces):
        number, places = len(piece.offsets), []
        for axis, split in enumerate(_axes(shape, piece.whole)):
            terms = []
            for at, _step in split:
                terms.append(f'static_cast<int>(_ind.get()[{at}]) * static_cast<int>(ck_p{n}_{k}_{number})')
                number += 1
            places.append(f'{" + ".join(terms) or "0"} - static_cast<int>(ck_p{n}_{k}_{axis})')
        lines.append(f'const int ck_a{n}_{k}[{len(places)}] = {{{", ".join(places)}}};')
        takes.append(f'ck_take(ck_v{n}, ck_s{n}_{k}, ck_a{n}_{k})')
    return [*lines, f'{" || ".join(takes)};'] if takes else []


def arguments(kernel: FusedKernel) -> list[bytes]:
    """The bytes of its arguments, in the order of :func:`source`, CuPy's index last."""
    found = [one.data for one in _inputs(kernel)] + [_array(p) for p in kernel.places if p.stores]
    ndim = len(kernel.shape)
    return [*found, struct.pack(f'{1 + 2 * ndim}q', kernel.size, *kernel.shape, *[0] * ndim)]


def _array(place: Place) -> bytes:
    ndim = len(place.shape)
    return struct.pack(f'{2 + 2 * ndim}q', place.address, prod(place.shape), *place.shape, *place.strides)


def contiguous(place: Place) -> bool:
    """Whether its elements lie one after the other."""
    step = np.dtype(place.dtype).itemsize
    for length, stride in zip(reversed(place.shape), reversed(place.strides)):
        if length != 1 and stride != step:
            return False
        step *= length
    return True


def narrow(place: Place) -> bool:
    """Whether 32 bits are enough for the distances between its elements."""
    low = sum(min(0, (n - 1) * s) for n, s in zip(place.shape, place.strides))
    high = sum(max(0, (n - 1) * s) for n, s in zip(place.shape, place.strides))
    return high - low + np.dtype(place.dtype).itemsize <= 1 << 31 and prod(place.shape) <= 1 << 31


def infos(kernel: FusedKernel, cupy: Any) -> Sequence[Any]:
    """CuPy's descriptions of the arguments, in their order."""
    from importlib import import_module

    internal = import_module('cupy._core._kernel')
    scalar, index = import_module('cupy._core._scalar').CScalar, import_module('cupy._core._carray').Indexer
    make = internal._ArgInfo

    def array(p: Place) -> Any:
        return make(1, cupy.ndarray, np.dtype(p.dtype), len(p.shape), contiguous(p), narrow(p))

    found = [
        make(3, scalar, np.dtype(one.dtype), 0, True, True) if one.place is None else array(one.place)
        for one in _inputs(kernel)
    ]
    found += [array(p) for p in kernel.places if p.stores]
    return (*found, make(2, index, None, len(kernel.shape), True, kernel.size <= 1 << 31))
