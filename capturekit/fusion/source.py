"""The source of a fused kernel in CUDA's C++, and the bytes of its arguments.

The arguments have CuPy's layout: an array is its address, its number of elements, its shape and its strides, and the
index comes last. So all that reads or changes the nodes of CuPy's own kernels reads and changes these. Shapes, strides
and addresses are arguments; the source says only how they relate, so that one source serves many kernels.

A thread loads all of its elements, works on each, and stores them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from capturekit.fusion.elementwise import ElementOperation
from capturekit.fusion.fused_kernel import _C_TYPES, _INCLUDE, _SEALS, FusedKernel, FusedPlace, _array, _function
from capturekit.fusion.layout import THREADS, TileLayout, divisor, layout_of
from capturekit.fusion.places import ACCESS, JOINS, Places
from capturekit.fusion.rounding import sealed
from capturekit.fusion.source_numbers import SourceNumbers


@dataclass(frozen=True)
class FusedArgument:
    """A parameter of the kernel: as ``cupy.ElementwiseKernel`` declares it, as C++ does, and its bytes."""

    declared: str
    code: str
    data: bytes


@dataclass(frozen=True)
class Source:
    """A kernel's source but for its name, its parameters (those that are only read first), and how it is launched."""

    inputs: tuple[FusedArgument, ...]
    outputs: tuple[FusedArgument, ...]
    index: FusedArgument
    functions: str
    body: str
    layout: TileLayout

    @property
    def text(self) -> tuple[str, str, str, str]:
        """What the kernel reads and writes, as CuPy declares it, and all else that makes one source another one."""
        code = ', '.join(one.code for one in (*self.inputs, *self.outputs, self.index))
        reads, writes = (', '.join(one.declared for one in part) for part in (self.inputs, self.outputs))
        return reads, writes, self.functions, f'({code}) {{\n{self.body}\n}}\n'

    @property
    def operation(self) -> str:
        """Code that tells CuPy which elements are written: all."""
        return '\n'.join(f'{one.declared.split()[-1]} = 0;' for one in self.outputs)

    def code(self, name: str) -> str:
        """The whole source."""
        return f'{self.functions}\nextern "C" __global__ void __launch_bounds__({THREADS}) {name}{self.text[-1]}'

    def arguments(self) -> list[bytes]:
        """The bytes of the arguments, in their order."""
        return [one.data for one in (*self.inputs, *self.outputs, self.index)]


@lru_cache(maxsize=64)
def source(kernel: FusedKernel) -> Source:
    """The source and the arguments of a kernel."""
    layout = layout_of(kernel)
    numbers, known = SourceNumbers(layout.narrow), _known(kernel)
    body = '\n'.join(_body(kernel, layout, numbers, known))
    inputs = [*_arrays(kernel), *_given(kernel)]
    inputs += [_word(name, number) for name, number in numbers.named()]
    inputs.append(_word('ck_zero', 0))
    outputs = [_argument(f'ck_m{n}', place) for n, place in enumerate(kernel.places) if place.stores]
    ndim = len(kernel.shape)
    index = struct.pack(f'{1 + 2 * ndim}q', kernel.size, *kernel.shape, *[0] * ndim)
    last = FusedArgument('', f'const ck_index<{ndim}> ck_at', index)
    return Source(tuple(inputs), tuple(outputs), last, _functions(kernel, layout, known), body, layout)


def _known(kernel: FusedKernel) -> dict[ElementOperation, int]:
    """The operations of a kernel, each with the number of its function."""
    found: dict[ElementOperation, int] = {}
    for step in kernel.steps:
        found.setdefault(step.operation, len(found))
    return found


def _functions(kernel: FusedKernel, layout: TileLayout, known: dict[ElementOperation, int]) -> str:
    """All that stands before the kernel."""
    kind = 'int' if layout.narrow else 'long long'
    parts = [_SEALS, f'typedef {kind} ck_int;', f'typedef unsigned {kind} ck_uint;', ACCESS]
    if any(place.pieces for place in kernel.places):
        parts.append(JOINS)
    for operation in known:
        parts += dict.fromkeys(line.strip() for line in _INCLUDE.findall(operation.preamble))
    return '\n'.join([*parts, *(_function(one, number, kernel.fast) for one, number in known.items())])


# -- parameters -------------------------------------------------------------------------------------------------


def _arrays(kernel: FusedKernel) -> Iterator[FusedArgument]:
    """The arrays that are only read, and parts of arrays."""
    for n, place in enumerate(kernel.places):
        for k, piece in enumerate(place.pieces):
            part = FusedPlace(place.dtype, piece.address, piece.lengths, piece.strides, True, False)
            yield _argument(f'ck_s{n}_{k}', part, 'raw ')
        if place.loads and not place.stores and not place.pieces:
            yield _argument(f'ck_m{n}', place)


def _argument(name: str, place: FusedPlace, raw: str = '') -> FusedArgument:
    kind = ('' if place.stores else 'const ') + _C_TYPES[place.dtype]
    code = f'const ck_array<{kind}, {len(place.shape)}> {name}'
    return FusedArgument(f'{raw}{place.dtype} {name}', code, _array(place))


def _given(kernel: FusedKernel) -> Iterator[FusedArgument]:
    """The numbers among the operands."""
    for n, (dtype, data) in enumerate(kernel.numbers):
        yield FusedArgument(f'{dtype} ck_n{n}', f'const {_C_TYPES[dtype]} ck_n{n}', data)


def _word(name: str, number: int) -> FusedArgument:
    return FusedArgument(f'uint32 {name}', f'const unsigned int {name}', struct.pack('I', number))


# -- the body ---------------------------------------------------------------------------------------------------


def _body(
    kernel: FusedKernel, layout: TileLayout, numbers: SourceNumbers, known: dict[ElementOperation, int]
) -> Iterator[str]:
    places = Places(kernel, layout, numbers)
    in_memory = [n for n, place in enumerate(kernel.places) if place.in_memory]
    yield from _here(kernel.shape, layout, numbers)
    yield from places.checks()
    for n in in_memory:
        yield from places.declare(n)
    yield from places.load()
    yield '#pragma unroll'
    yield f'for (int ck_e = 0; ck_e < {layout.together}; ck_e++) {{'
    yield 'const ptrdiff_t ck_i = static_cast<ptrdiff_t>(ck_flat) + ck_e;'
    yield from (f'{_C_TYPES[place.dtype]} ck_v{n};' for n, place in enumerate(kernel.places) if not place.in_memory)
    name = {n: f'ck_v{n}[ck_e]' if place.in_memory else f'ck_v{n}' for n, place in enumerate(kernel.places)}
    for step, seals in zip(kernel.steps, _sealed(kernel)):
        given = [name[n] if n >= 0 else f'ck_n{-1 - n}' for n in step.operands]
        yield f'ck_{known[step.operation]}::run({", ".join(["ck_i", *given])});'
        if seals:
            pairs = zip(given, step.operation.parameters)
            yield from (f'ck_seal({one}, ck_zero);' for one, parameter in pairs if parameter.written)
    yield '}'
    for n in in_memory:
        if kernel.places[n].stores:
            yield from places.store(n)


def _sealed(kernel: FusedKernel) -> list[bool]:
    """For each step whether what it computes is kept apart from what comes next."""
    if kernel.fast:
        return [False] * len(kernel.steps)
    return sealed([(one.operation, one.operands) for one in kernel.steps])


def _here(shape: tuple[int, ...], layout: TileLayout, numbers: SourceNumbers) -> Iterator[str]:
    """Which elements a thread has: the index along each axis, that of the first one among all, how many are left."""
    inner = len(shape) - 1
    columns, together, tile, row = f'static_cast<ck_uint>(ck_at.shape[{inner}])', layout.together, 'blockIdx.x', ''
    if layout.rows > 1:
        across, factor, places = (numbers.word(one) for one in (layout.across, *divisor(layout.across)))
        yield f'const unsigned int ck_down = ck_over(blockIdx.x, {factor}, {places});'
        yield 'const ck_uint ck_row = static_cast<ck_uint>(ck_down) * blockDim.y + threadIdx.y;'
        yield from _axes(shape, layout, numbers)
        tile, row = f'(blockIdx.x - ck_down * {across})', f' + static_cast<ck_int>(ck_row * {columns})'
    yield f'const ck_uint ck_first = (static_cast<ck_uint>({tile}) * blockDim.x + threadIdx.x) * {together};'
    yield f'if (ck_first >= {columns}) return;'
    yield f'const ck_int ck_i{inner} = static_cast<ck_int>(ck_first);'
    yield f'const ck_int ck_flat = ck_i{inner}{row};'
    if not layout.even:
        rest = f'{columns} - ck_first'
        yield f'const int ck_left = {rest} < {together} ? static_cast<int>({rest}) : {together};'


def _axes(shape: tuple[int, ...], layout: TileLayout, numbers: SourceNumbers) -> Iterator[str]:
    """The index along each axis but the innermost one, of the number of a row."""
    yield 'ck_uint ck_rest = ck_row;'
    for axis in range(len(shape) - 2, 0, -1):
        length = f'static_cast<ck_uint>(ck_at.shape[{axis}])'
        over = f'ck_rest / {length}'
        if layout.narrow:
            factor, places = (numbers.word(one) for one in divisor(shape[axis]))
            over = f'ck_over(ck_rest, {factor}, {places})'
        yield f'const ck_uint ck_q{axis} = {over};'
        yield f'const ck_int ck_i{axis} = static_cast<ck_int>(ck_rest - ck_q{axis} * {length});'
        yield f'ck_rest = ck_q{axis};'
    yield 'if (ck_rest >= static_cast<ck_uint>(ck_at.shape[0])) return;'
    yield 'const ck_int ck_i0 = static_cast<ck_int>(ck_rest);'
