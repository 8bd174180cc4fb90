"""One kernel that computes what a reduction reads, reduces it, and works on the results: description and source.

The source is that of CuPy's own template, with the same block and the same order in which values are combined: only the
expression that loads an element, and what is done with a result, are others. The operations in front and behind are
those of :mod:`capturekit.fusion.fused_kernel`, sealed in the same way.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from capturekit.fusion.fused_kernel import (
    _C_TYPES,
    _SEALS,
    FusedArgument,
    FusedKernel,
    FusedPlace,
    FusedStep,
    contiguous,
    functions,
    index_of,
    narrow,
)
from capturekit.fusion.reduction import Reduction


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
    def places(self) -> tuple[FusedPlace, ...]:
        """All places: those in front first."""
        return (*self.front.places, *self.behind.places)

    @property
    def size(self) -> int:
        """How many elements are reduced."""
        return self.front.size


# -- its arguments ----------------------------------------------------------------------------------------------


def _inputs(kernel: FusedReduction) -> Iterator[FusedArgument]:
    """Arrays that are only read, numbers, the numbers of the reduction's own code, and the zero of the seals."""
    for n, place in enumerate(kernel.places):
        if place.loads and not place.stores:
            yield FusedArgument.array(f'ck_m{n}', place)
    for n, (dtype, data) in enumerate((*kernel.front.numbers, *kernel.behind.numbers)):
        yield FusedArgument.number(f'ck_n{n}', dtype, data)
    for one, given in zip(kernel.reduction.code.inputs, kernel.inputs):
        if one.number:
            yield FusedArgument.number(one.name, one.dtype, given)
    yield FusedArgument.number('ck_zero', 'uint32', struct.pack('I', 0))


def _outputs(kernel: FusedReduction) -> list[FusedArgument]:
    return [FusedArgument.array(f'ck_m{n}', place) for n, place in enumerate(kernel.places) if place.stores]


def declared(kernel: FusedReduction) -> tuple[str, str]:
    """The parameters that it reads, and those that it writes, as ``cupy.ReductionKernel`` takes them."""
    return ', '.join(one.declared for one in _inputs(kernel)), ', '.join(one.declared for one in _outputs(kernel))


def arguments(kernel: FusedReduction) -> list[bytes]:
    """The bytes of its arguments, CuPy's indices and the block's stride last."""
    found = [one.data for one in (*_inputs(kernel), *_outputs(kernel))]
    found += [index_of(half) for half in (kernel.front, kernel.behind)]
    return [*found, struct.pack('i', kernel.reduction.stride)]


def infos(kernel: FusedReduction, cupy: Any) -> tuple[Any, ...]:
    """CuPy's descriptions of the arguments, in their order."""
    from importlib import import_module

    scalar, index = import_module('cupy._core._scalar').CScalar, import_module('cupy._core._carray').Indexer
    make = import_module('cupy._core._kernel')._ArgInfo

    def info(one: FusedArgument) -> Any:
        if one.place is None:
            return make(3, scalar, np.dtype(one.dtype), 0, True, True)
        place, dtype = one.place, np.dtype(one.dtype)
        dense = contiguous(place.shape, place.strides, dtype.itemsize)
        return make(1, cupy.ndarray, dtype, len(place.shape), dense, narrow(place))

    indices = [make(2, index, None, len(h.shape), True, h.size <= 1 << 31) for h in (kernel.front, kernel.behind)]
    stride = make(3, scalar, np.dtype('int32'), 0, True, True)
    return (*map(info, _inputs(kernel)), *map(info, _outputs(kernel)), *indices, stride)


# -- its source -------------------------------------------------------------------------------------------------


class SourceParts(NamedTuple):
    """The parts of the source that differ from CuPy's.

    The front loads an element, computes, stores, and gives the reduction its inputs, each in lines of its own.
    ``result`` comes before the result is known, ``after`` behind it. ``functions`` are the operations.
    """

    values: tuple[str, ...]
    loads: str
    steps: str
    stores: str
    inputs: str
    result: str
    after: str
    functions: str

    @property
    def text(self) -> tuple[str, ...]:
        """All of it."""
        return (*self.values, *self[1:])


def parts(kernel: FusedReduction) -> SourceParts:
    """The parts of a kernel's source."""
    known: dict[Any, int] = {}
    front, behind, code = kernel.front, kernel.behind, kernel.reduction.code
    values = tuple(f'{_C_TYPES[place.dtype]} ck_v{n}' for n, place in enumerate(front.places))
    at = _element(kernel)
    loads = [at, *(f'ck_v{n}[ck_k] = _raw_ck_m{n}[ck_at];' for n, place in enumerate(front.places) if place.loads)]
    stores = [
        f'{_by("_j", place)}_raw_ck_m{n}[ck_at] = ck_v{n}[ck_k];'
        for n, place in enumerate(front.places)
        if place.stores
    ]
    steps = [line for step in front.steps for line in _step(step, (0, 0), '[ck_k]', '_j', known, front.fast)]
    inputs = [
        f'const {one.ctype} {one.name} = ck_v{given}[ck_k];'
        for one, given in zip(code.inputs, kernel.inputs)
        if not one.number
    ]
    first, numbers = len(front.places), len(front.numbers)
    before = [
        f'{_C_TYPES[place.dtype]} ck_v{n}' + (f' = _raw_ck_m{n}[_out_ind.get()];' if place.loads else ';')
        for n, place in enumerate(behind.places, first)
    ]
    result = first + kernel.output
    before.append(f'{code.output.ctype} &{code.output.name} = ck_v{result};')
    fast = front.fast
    after = [f'ck_seal(ck_v{result}, ck_zero);'] if np.dtype(code.output.dtype).kind in 'fc' and not fast else []
    after += [line for step in behind.steps for line in _step(step, (first, numbers), '', '_i', known, fast)]
    after += [
        f'{_by("_i", p)}_raw_ck_m{n}[_out_ind.get()] = ck_v{n};' for n, p in enumerate(behind.places, first) if p.stores
    ]
    lines = [loads, steps, [at, *stores] if stores else [], inputs, before, after, [_SEALS, *functions(known, fast)]]
    return SourceParts(values, *map('\n'.join, lines))


def _by(number: str, place: FusedPlace) -> str:
    """What all elements have is stored with the first one."""
    return f'if ({number} == 0) ' if place.one else ''


def _step(step: FusedStep, first: tuple[int, int], of: str, at: str, known: dict[Any, int], fast: bool) -> list[str]:
    """A call of an operation. ``first``: the numbers of the first place and of the first number."""
    number, (place, numbers) = known.setdefault(step.operation, len(known)), first
    names = [f'ck_v{place + n}{of}' if n >= 0 else f'ck_n{numbers - 1 - n}' for n in step.operands]
    lines = [f'ck_{number}::run({", ".join([at, *names])});']
    for n, parameter in zip(step.operands, step.operation.parameters):
        if not fast and parameter.written and np.dtype(parameter.dtype).kind in 'fc':
            lines.append(f'ck_seal(ck_v{place + n}{of}, ck_zero);')
    return lines


def _element(kernel: FusedReduction) -> str:
    """Code that finds the indices of an element: from the numbers that its result and it have, without division."""
    shape, results = kernel.front.shape, prod(kernel.behind.shape)
    held = next((n for n, place in enumerate(kernel.front.places) if place.in_memory), None)
    first = len(shape)
    while first and prod(shape[first:]) < results:
        first -= 1
    if held is None or prod(shape[first:]) != results or sum(n > 1 for n in shape) < 2:
        return '_in_ind.set(_j); const auto &ck_at = _in_ind.get();'
    kind = 'int' if kernel.size < 1 << 31 else 'ptrdiff_t'
    lines = [f'{kind} ck_at[{len(shape)}];']
    lines += [f'ck_at[{d}] = 0;' for d, length in enumerate(shape) if length == 1]
    for number, part in (('_J', range(first)), ('_i', range(first, len(shape)))):
        axes, rest = [d for d in part if shape[d] > 1], f'static_cast<{kind}>({number})'
        for d in reversed(axes):
            size = f'static_cast<{kind}>(_raw_ck_m{held}.shape()[{d}])'
            lines.append(f'ck_at[{d}] = {rest}' + (f' % {size};' if d != axes[0] else ';'))
            rest = f'{rest} / {size}'
    return ' '.join(lines)


def uses_number(operation: Any) -> bool:
    """Whether an operation asks for the number of its element."""
    return re.search(r'\bi\b', str(getattr(operation, 'code', ''))) is not None


_LOOP = '    for (ptrdiff_t _j = _i + _j_offset;'
_END = '_s = REDUCE(_s, _a);\n    }\n'
_LAST = 'POST_MAP(_s);\n'
_GLOBAL = 'extern "C" __global__ void '
_HERE = '/* ck */'
#: Threads that have no result of their own walk along elements of others in CuPy's template, for nothing.
_WALK = """
    ptrdiff_t ck_j = _i < _out_ind.size() ? _i + _j_offset : _in_ind.size();
    IndexT ck_J = _J;
    for (; ck_j + {more} * _j_stride < _in_ind.size(); ck_j += {many} * _j_stride, ck_J += {many} * _J_stride) {{
{together}
    }}
    for (; ck_j < _in_ind.size(); ck_j += _j_stride, ck_J += _J_stride) {{
{alone}
    }}
"""
_EACH = """
      #pragma unroll
      for (int ck_k = 0; ck_k < {many}; ck_k++) {{
        const ptrdiff_t _j = ck_j + ck_k * _j_stride;
        const IndexT _J = ck_J + ck_k * _J_stride;
        {lines}
      }}
"""


def source(
    kernel: FusedReduction, name: str, params: tuple[Any, ...], described: tuple[Any, ...], together: int
) -> str:
    """The source, by CuPy's template. So many elements as ``together`` says are loaded at once; they are combined one
    after the other, in the template's order.

    Raises:
        ValueError: the template of this CuPy is another one.
    """
    made, text = kernel.reduction.code.made, parts(kernel)
    create = sys.modules['cupy._core._reduction']._create_reduction_function_code
    types = sys.modules['cupy._core._kernel']._TypeMap(made.types) if isinstance(made.types, tuple) else made.types
    code: str = create(
        name, made.block, made.reduce_type, params, described, made.identity, made.each, made.combine, made.result,
        types, _HERE, text.result, f'{made.preamble}\n{text.functions}', (),
    )  # fmt: skip
    if any(code.count(one) != 1 for one in (_LOOP, _END, _LAST, _GLOBAL, _HERE)):
        raise ValueError("CuPy's template of reductions is not the one that is known")
    start, end, inside = code.index(_LOOP), code.index(_END), code.index(_HERE) + len(_HERE)
    combine = code[inside:end] + _END.partition('\n')[0]
    bodies = [_body(text, combine, many) for many in (together, 1)]
    walk = _WALK.format(more=together - 1, many=together, together=bodies[0], alone=bodies[1])
    code = code[:start] + walk + code[end + len(_END) :]
    code = code.replace(_LAST, f'{_LAST}{text.after}\n')
    return code.replace(_GLOBAL, f'{_GLOBAL}__launch_bounds__({made.block}) ')


def _body(text: SourceParts, combine: str, many: int) -> str:
    """Code for so many elements: all are loaded before the first is computed, and combined after the last is stored."""
    lines = [f'      {one}[{many}];' for one in text.values]
    for part in (text.loads, text.steps, text.stores, f'{text.inputs}{combine}'):
        lines += [_EACH.format(many=many, lines=part)] if part else []
    return '\n'.join(lines)
