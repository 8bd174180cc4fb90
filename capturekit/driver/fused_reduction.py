"""One kernel that computes what a reduction reads, reduces it, and works on the results: description and source.

The source is that of CuPy's own template, with the same block and the same order in which values are combined: only the
expression that loads an element, and what is done with a result, are others. The operations in front and behind are
those of :mod:`capturekit.driver.fused_kernel`, sealed in the same way.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from capturekit.driver.fused_kernel import (
    _C_TYPES,
    _INCLUDE,
    _SEALS,
    FusedKernel,
    Place,
    Step,
    _array,
    _function,
    contiguous,
    narrow,
)
from capturekit.driver.reduction import Input, Reduction

_LOOP = '    for (ptrdiff_t _j = _i + _j_offset;'
_LAST = 'POST_MAP(_s);\n'
_GLOBAL = 'extern "C" __global__ void '


@dataclass(frozen=True)
class FusedReduction:
    """What a fused reduction does.

    ``front`` is done to each element before it is reduced, ``behind`` to each result; both have as many axes.
    ``inputs`` says for each input of the reduction which place of ``front`` it is, or for a number its bytes; the
    result is the place ``output`` of ``behind``.
    """

    reduction: Reduction
    front: FusedKernel
    behind: FusedKernel
    inputs: tuple[Any, ...]
    output: int

    @property
    def places(self) -> tuple[Place, ...]:
        """All places: those in front first."""
        return (*self.front.places, *self.behind.places)

    @property
    def size(self) -> int:
        """How many elements are reduced."""
        return self.front.size


# -- its arguments ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Argument:
    """An argument: how it is declared, its bytes, its dtype, and which elements it is."""

    declared: str
    data: bytes
    dtype: str
    place: Place | None = None


def _inputs(kernel: FusedReduction) -> Iterator[_Argument]:
    """Arrays that are only read, numbers, the numbers of the reduction's own code, and the zero of the seals."""
    for n, place in enumerate(kernel.places):
        if place.loads and not place.stores:
            yield _Argument(f'{place.dtype} ck_m{n}', _array(place), place.dtype, place)
    for n, (dtype, data) in enumerate((*kernel.front.numbers, *kernel.behind.numbers)):
        yield _Argument(f'{dtype} ck_n{n}', data, dtype)
    for one, given in zip(kernel.reduction.code.inputs, kernel.inputs):
        if one.number:
            yield _Argument(f'{one.dtype} {one.name}', given, one.dtype)
    yield _Argument('uint32 ck_zero', struct.pack('I', 0), 'uint32')


def _outputs(kernel: FusedReduction) -> Iterator[_Argument]:
    for n, place in enumerate(kernel.places):
        if place.stores:
            yield _Argument(f'{place.dtype} ck_m{n}', _array(place), place.dtype, place)


def declared(kernel: FusedReduction) -> tuple[str, str]:
    """The parameters that it reads, and those that it writes, as ``cupy.ReductionKernel`` takes them."""
    return ', '.join(one.declared for one in _inputs(kernel)), ', '.join(one.declared for one in _outputs(kernel))


def arguments(kernel: FusedReduction) -> list[bytes]:
    """The bytes of its arguments, CuPy's indices and the block's stride last."""
    found = [one.data for one in (*_inputs(kernel), *_outputs(kernel))]
    for half in (kernel.front, kernel.behind):
        ndim = len(half.shape)
        found.append(struct.pack(f'{1 + 2 * ndim}q', half.size, *half.shape, *[0] * ndim))
    return [*found, struct.pack('i', kernel.reduction.stride)]


def infos(kernel: FusedReduction, cupy: Any) -> tuple[Any, ...]:
    """CuPy's descriptions of the arguments, in their order."""
    from importlib import import_module

    scalar, index = import_module('cupy._core._scalar').CScalar, import_module('cupy._core._carray').Indexer
    make = import_module('cupy._core._kernel')._ArgInfo

    def info(one: _Argument) -> Any:
        if one.place is None:
            return make(3, scalar, np.dtype(one.dtype), 0, True, True)
        place = one.place
        return make(1, cupy.ndarray, np.dtype(one.dtype), len(place.shape), contiguous(place), narrow(place))

    indices = [make(2, index, None, len(h.shape), True, h.size <= 1 << 31) for h in (kernel.front, kernel.behind)]
    stride = make(3, scalar, np.dtype('int32'), 0, True, True)
    return (*map(info, _inputs(kernel)), *map(info, _outputs(kernel)), *indices, stride)


# -- its source -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """The parts of the source that differ from CuPy's: what loads an element, what is done with a result, functions."""

    load: str
    result: str
    after: str
    functions: str


def parts(kernel: FusedReduction) -> Parts:
    """The parts of a kernel's source."""
    known: dict[Any, int] = {}
    load = _half(kernel.front, 0, 0, '_in_ind', '_j', known)
    for one, given in zip(kernel.reduction.code.inputs, kernel.inputs):
        load += [] if one.number else [f'const {one.ctype} {one.name} = ck_v{given};']
    first, numbers = len(kernel.front.places), len(kernel.front.numbers)
    whole = _half(kernel.behind, first, numbers, '_out_ind', '_i', known)
    loads = len(kernel.behind.places)  # each place has a line before the steps
    result, code = first + kernel.output, kernel.reduction.code
    before = [*whole[:loads], f'{code.output.ctype} &{code.output.name} = ck_v{result};']
    sealed = [_seal(result)] if _rounds(code.output) else []
    includes: dict[str, None] = {}
    for operation in known:
        includes.update(dict.fromkeys(line.strip() for line in _INCLUDE.findall(operation.preamble)))
    functions = [_SEALS, *includes, *(_function(operation, number) for operation, number in known.items())]
    return Parts('\n'.join(load), '\n'.join(before), '\n'.join([*sealed, *whole[loads:]]), '\n'.join(functions))


def _half(half: FusedKernel, first: int, numbers: int, index: str, at: str, known: dict[Any, int]) -> list[str]:
    """A line for each place, the steps, and what is stored."""
    lines = []
    for n, place in enumerate(half.places, first):
        value = f' = _raw_ck_m{n}[{index}.get()];' if place.loads else ';'
        lines.append(f'{_C_TYPES[place.dtype]} ck_v{n}{value}')
    for step in half.steps:
        lines += _step(step, first, numbers, at, known)
    return lines + [f'_raw_ck_m{n}[{index}.get()] = ck_v{n};' for n, p in enumerate(half.places, first) if p.stores]


def _step(step: Step, first: int, numbers: int, at: str, known: dict[Any, int]) -> list[str]:
    number = known.setdefault(step.operation, len(known))
    names = [f'ck_v{first + n}' if n >= 0 else f'ck_n{numbers - 1 - n}' for n in step.operands]
    lines = [f'ck_{number}::run({", ".join([at, *names])});']
    for n, parameter in zip(step.operands, step.operation.parameters):
        if parameter.written and np.dtype(parameter.dtype).kind in 'fc':
            lines.append(_seal(first + n))
    return lines


def _seal(n: int) -> str:
    return f'ck_seal(ck_v{n}, ck_zero);'


def _rounds(output: Input) -> bool:
    return np.dtype(output.dtype).kind in 'fc'


def uses_number(operation: Any) -> bool:
    """Whether an operation asks for the number of its element."""
    return re.search(r'\bi\b', str(getattr(operation, 'code', ''))) is not None


def source(
    kernel: FusedReduction, name: str, params: tuple[Any, ...], described: tuple[Any, ...], together: int
) -> str:
    """The source, by CuPy's template. ``together``: so many elements may be loaded at once, and are combined in order.

    Raises:
        ValueError: the template of this CuPy is another one.
    """
    import sys

    made, text = kernel.reduction.code.made, parts(kernel)
    create = sys.modules['cupy._core._reduction']._create_reduction_function_code
    code: str = create(
        name, made.block, made.reduce_type, params, described, made.identity, made.each, made.combine, made.result,
        made.types, text.load, text.result, f'{made.preamble}\n{text.functions}', (),
    )  # fmt: skip
    if any(code.count(one) != 1 for one in (_LOOP, _LAST, _GLOBAL)):
        raise ValueError("CuPy's template of reductions is not the one that is known")
    code = code.replace(_LAST, f'{_LAST}{text.after}\n')
    code = code.replace(_GLOBAL, f'{_GLOBAL}__launch_bounds__({made.block}) ')
    return code.replace(_LOOP, f'    #pragma unroll {together}\n{_LOOP}')
