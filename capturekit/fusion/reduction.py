"""What a node reduces, where it is one of CuPy's own reduction kernels: the code around its tree, and its operands.

CuPy makes the source of such a kernel from one template, with an expression for each element, one that combines two
values, and one for each result. CuPy remembers what it made a function of (``cupy/_core/_reduction.pyx``), so that the
code of a node's function is known for sure. Reductions of rows that lie in one piece go to CUB instead, whose kernels
are a library's. Tested with CuPy 14.2; 14.0 and 14.1 keep the same things.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from capturekit.driver.cupy_kernels import _memo, axes
from capturekit.driver.kernel_args import Argument
from capturekit.fusion.elementwise import _BEYOND, _SUMS, ARRAY, PRODUCTS, SCALAR, ElementOperand, Rounded

_WORD = 8
#: Parameters that follow the arrays and numbers: the index of the inputs, that of the outputs, the block's stride.
_OWN = 3
#: What an expression may ask of the indices: how many elements there are.
_SIZES = re.compile(r'_(in|out)_ind\s*\.\s*size\s*\(\s*\)')
#: The squares of ``var`` and ``std``: of real numbers one product, which is added as it is in CuPy's own kernel.
_SQUARES = 'my_norm(x - mean)'
#: Reasons for which a reduction is none of these.
CUB = 'CUB reduces it: for rows that lie in one piece CuPy takes kernels of that library'
OTHER = 'its code does more than combine elements'


@dataclass(frozen=True)
class Input:
    """An input of a reduction's code: its name there, the name of its type, its dtype, whether it is a number."""

    name: str
    ctype: str
    dtype: str
    number: bool = False


@dataclass(frozen=True)
class ReductionCode:
    """The code of a reduction of CuPy's. ``output`` is the result, ``made`` all that CuPy made the function of.

    ``library``: it stands for a kernel of a library.
    """

    inputs: tuple[Input, ...]
    output: Input
    block: int
    made: Made = field(compare=False)
    text: tuple[str, ...] = ()
    library: bool = False


@dataclass(frozen=True)
class Made:
    """What CuPy made a function of; ``types`` is its map of type names."""

    name: str
    block: int
    reduce_type: str
    params: tuple[Any, ...]
    infos: tuple[Any, ...]
    identity: str
    each: str
    combine: str
    result: str
    types: Any
    preamble: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Reduction:
    """What a node reduces: arrays of ``inner`` elements, first the axes that go, to an array of ``outer`` elements.

    ``inputs`` are arrays or numbers, in the order of the code. ``code`` is equal for equal code. ``blocks`` and
    ``stride`` are those that CuPy has launched it with.
    """

    name: str
    code: Any
    inputs: tuple[ElementOperand, ...]
    output: ElementOperand
    blocks: int = 1
    stride: int = 1

    @property
    def inner(self) -> tuple[int, ...]:
        """The shape in which the inputs are gone through."""
        return next(one.shape for one in self.inputs if one.number is None)

    @property
    def operands(self) -> tuple[ElementOperand, ...]:
        """The inputs and the output."""
        return (*self.inputs, self.output)

    @property
    def size(self) -> int:
        """How many elements are reduced."""
        return prod(self.inner)

    @property
    def in_turn(self) -> int:
        """How many elements a thread combines one after the other; 0 where no thread does, or a library's does."""
        if getattr(self.code, 'library', False):
            return 0
        threads: int = getattr(self.code, 'block', 0) // self.stride
        return self.size // (max(prod(self.output.shape), 1) * threads) if threads else 0


# -- from CuPy's memory of what it has compiled -----------------------------------------------------------------


def reductions() -> dict[int, ReductionCode | str]:
    """The codes of all reduction kernels that CuPy has compiled, by function; or why one can not be fused."""
    return {function: code_of(made) for function, made in _remembered()}


def _remembered() -> Iterable[tuple[int, Made]]:
    module = sys.modules.get('cupy._core._reduction')
    for key, function in _memo(getattr(module, '_SimpleReductionKernel_get_cached_function', None)):
        if len(key[1]) == 14 and hasattr(function, 'ptr'):
            each, combine, result, kind, params, infos, types, name, block, identity, _in, _out, preamble, options = (
                key[1]
            )
            more = (identity, each, combine, result, types, preamble, options)
            yield int(function.ptr), Made(name, block, kind, params, infos, *more)
    for key, function in _memo(getattr(module, '_ReductionKernel_get_cached_function', None)):
        if len(key[1]) == 14 and hasattr(function, 'ptr'):
            _nin, _nout, params, infos, types, name, block, kind, identity, each, combine, result, preamble, options = (
                key[1]
            )
            more = (identity, each, combine, result, types, preamble, options)
            yield int(function.ptr), Made(name, block, kind, params, infos, *more)


def code_of(made: Made) -> ReductionCode | str:
    """The code of a kernel, or why it can not be part of a fused one."""
    params, infos = made.params[:-_OWN], made.infos[:-_OWN]
    written = [not one.is_const for one in params]
    if made.options or sum(written) != 1 or not written[-1] or any(one.raw for one in params):
        return OTHER
    found = []
    for param, info in zip(params, infos):
        if int(info.arg_kind) not in (ARRAY, SCALAR) or np.dtype(info.dtype).kind not in 'biufc':
            return 'it has arguments that are neither arrays nor numbers of plain dtypes'
        ctype = _ctype(made, str(param.ctype), str(param.name))
        found.append(Input(str(param.name), ctype, str(np.dtype(info.dtype)), int(info.arg_kind) == SCALAR))
    why = _checked(made, found)
    pairs = tuple(f'{name} {np.dtype(dtype)}' for name, dtype in made.types._pairs)
    text = (made.each, made.combine, made.result, str(made.reduce_type), made.identity, made.preamble, *pairs)
    code = ReductionCode(tuple(found[:-1]), found[-1], int(made.block), made, text)
    return (Rounded.of(why, code) if why == PRODUCTS else why) or code


def _ctype(made: Made, ctype: str, name: str) -> str:
    """The name of a parameter's type in the code: CuPy's own reductions have one of their own for it."""
    raw = f'type_{name}_raw'
    return raw if any(known == raw for known, _dtype in made.types._pairs) else ctype


def _checked(made: Made, found: Sequence[Input]) -> str:
    """Why a reduction can not be part of a fused kernel; '' if it can."""
    each, combine, result = (_SIZES.sub('1', one) for one in (made.each, made.combine, made.result))
    code = '; '.join((each, combine, result))
    output = found[-1].name
    if _BEYOND.search(code) or re.search(r'\b_(in|out)_ind\b|\b_(type_)?raw_\w+|\b_[sij]\b', code) or '\n' in result:
        return OTHER
    if not re.match(rf'\s*{output}\s*=(?!=)', result) or re.search(rf'\b{output}\b', result.partition('=')[2]):
        return 'it reads what it writes'
    if re.search(r'#\s*define', made.preamble):
        return 'its preamble defines macros'
    kinds = {np.dtype(one.dtype).kind for one in found}
    if not kinds & set('fc'):
        return ''
    if each == _SQUARES and str(made.name).startswith('cupy_var_core'):
        return PRODUCTS if 'c' in kinds else ''
    if 'c' in kinds and '*' in code + made.preamble:
        return PRODUCTS
    products = max((each + combine + made.preamble).count('*'), (result + made.preamble).count('*'))
    return PRODUCTS if products > 1 or _SUMS.search(code + made.preamble) else ''


# -- from nodes -------------------------------------------------------------------------------------------------


def of_node(info: Any, code: ReductionCode | str, arguments: Sequence[Argument]) -> Reduction | str:
    """What a node with these arguments reduces. ``info`` is its description."""
    if isinstance(code, Rounded):
        does = of_node(info, code.does, arguments)
        return does if isinstance(does, str) else Rounded.of(code, does)
    if isinstance(code, str):
        return code
    other = 'it has arguments of another form than its kernel'
    if len(arguments) != len(code.inputs) + 1 + _OWN or info.detail['block'] != (code.block, 1, 1):
        return other
    operands = []
    for one, argument in zip((*code.inputs, code.output), arguments):
        if one.number:
            operands.append(ElementOperand(one.dtype, number=argument.data))
            continue
        ndim = axes(len(argument.data))
        if ndim < 0:
            return other
        words = struct.unpack(f'{len(argument.data) // _WORD}q', argument.data)
        written = one is code.output
        shape, strides = words[2 : 2 + ndim], words[2 + ndim :]
        operands.append(ElementOperand(one.dtype, words[0], shape, strides, None, not written, written, written))
    inner, outer = (_shape(one.data) for one in arguments[-_OWN:-1])
    arrays = [one.shape for one in operands[:-1] if one.number is None]
    if not arrays or any(shape != inner for shape in arrays) or operands[-1].shape != outer or 0 in (*inner, *outer):
        return other
    (stride,) = struct.unpack('i', arguments[-1].data)
    return Reduction(info.name, code, tuple(operands[:-1]), operands[-1], int(info.detail['grid'][0]), stride)


def _shape(index: bytes) -> tuple[int, ...]:
    """The shape in CuPy's index: the number of elements, the shape, the place of a thread."""
    words = struct.unpack(f'{len(index) // _WORD}q', index)
    return words[1 : 1 + (len(words) - 1) // 2]
