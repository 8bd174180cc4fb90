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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from capturekit.driver.cupy_kernels import _memo
from capturekit.driver.kernel_args import Argument
from capturekit.driver.library_accesses import Rows
from capturekit.driver.node_accesses import Access, Touched, linear, overlap
from capturekit.fusion.elementwise import (
    _BEYOND,
    _SUMS,
    ARRAY,
    PRODUCTS,
    SCALAR,
    ElementOperand,
    Rounded,
    array_operand,
)
from capturekit.fusion.fused_kernel import _C_TYPES, _power

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
        own = isinstance(self.code, ReductionCode) and not self.code.library
        threads = self.code.block // self.stride if own else 0
        return self.size // (max(prod(self.output.shape), 1) * threads) if threads else 0


# -- from CuPy's memory of what it has compiled -----------------------------------------------------------------


#: What CuPy makes a function of, in order, by what remembers the functions; '_' is not asked for.
_REMEMBERED = {
    '_reduction._SimpleReductionKernel_get_cached_function': (
        'each combine result reduce_type params infos types name block identity _ _ preamble options'
    ),
    '_reduction._ReductionKernel_get_cached_function': (
        '_ _ params infos types name block reduce_type identity each combine result preamble options'
    ),
    '_cub_reduction._SimpleCubReductionKernel_get_cached_function': (
        'each combine result reduce_type params infos types name block identity preamble options _'
    ),
}
_TEMPLATES = tuple(_REMEMBERED)[:2]


def reductions() -> dict[int, ReductionCode | str]:
    """The codes of all reduction kernels that CuPy has compiled, by function; or why one can not be fused."""
    return {function: code_of(made) for maker in _TEMPLATES for function, made in _remembered(maker)}


def _remembered(maker: str) -> Iterator[tuple[int, Made]]:
    module, _, name = maker.partition('.')
    names = _REMEMBERED[maker].split()
    for key, function in _memo(getattr(sys.modules.get(f'cupy._core.{module}'), name, None)):
        if len(key[1]) == len(names) and hasattr(function, 'ptr'):
            yield int(function.ptr), Made(**{of: given for of, given in zip(names, key[1]) if of != '_'})


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
        raw = f'type_{param.name}_raw'  # CuPy's own reductions have a name of their own for the type
        ctype = raw if any(name == raw for name, _dtype in made.types._pairs) else str(param.ctype)
        found.append(Input(str(param.name), ctype, str(np.dtype(info.dtype)), int(info.arg_kind) == SCALAR))
    why = _checked(made, found)
    pairs = tuple(f'{name} {np.dtype(dtype)}' for name, dtype in made.types._pairs)
    text = (made.each, made.combine, made.result, str(made.reduce_type), made.identity, made.preamble, *pairs)
    code = ReductionCode(tuple(found[:-1]), found[-1], int(made.block), made, text)
    return (Rounded.of(why, code) if why == PRODUCTS else why) or code


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
        written = one is code.output
        operand = array_operand(one.dtype, argument.data, not written, written, written)
        if operand is None:
            return other
        operands.append(operand)
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


# -- reductions that a library's kernel does, and that CuPy's own template can do as well, in another order of sums ---
#
# CuPy hands sums, products, minima and maxima of rows that lie in one piece to CUB (``cupy/cuda/cub.pyx``). The
# arguments of that call say what is reduced. A kernel of CuPy's template adds the same numbers in another order, so
# that the last bits differ: only those who do not need them get it.


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
    given, ws, made = (
        linear(rows.source, rows.count * item, False),
        linear(place, blocks[first] * item, True),
        linear(rows.output, item, True),
    )
    if any(overlap(ws, end) for end in (given, made)):
        return
    does = _reduction(replace(rows, output=place, results=parts)), _reduction(replace(rows, source=place, count=parts))
    yield Halves((first, second), does, ((given, ws), (replace(ws, writes=False), made)))


def _reduction(rows: Rows) -> Reduction:
    length = rows.count // rows.results
    code = _code(rows, threads(length)[0], length)
    return _of_rows(code.made.name, code, rows.source, rows.output, length, rows.results)


def _of_rows(name: str, code: ReductionCode, source: int, output: int, length: int, results: int) -> Reduction:
    """The reduction of rows of one length that lie one after the other."""
    (given,), made, stride = code.inputs, code.output, threads(length)[1]
    item, size = (np.dtype(one.dtype).itemsize for one in (given, made))
    elements = ElementOperand(given.dtype, source, (length, results), (item, item * length))
    result = ElementOperand(made.dtype, output, (results,), (size,), None, False, True, True)
    return Reduction(name, code, (elements,), result, -(-results // stride), stride)


def threads(length: int) -> tuple[int, int]:
    """The threads of a block for rows of a length, and how many rows it does at once."""
    block = _MOST if length < _SHORT else min(max(_power(-(-length // _EACH)), _LEAST), _MOST)
    return block, 1 << (block // length).bit_length() - 1 if length < _SHORT else 1


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


# ---------------------------------------------------------------------------------------------------------------------
# CuPy's reductions by CUB's blocks of threads, as reductions of CuPy's own template: the same code in another tree.
#
# Where an array lies in one piece along the axes that go, CuPy makes a kernel around CUB's ``BlockReduce`` of the same
# expressions that its own template takes (``cupy/_core/_cub_reduction.pyx``), with one block for each row. CuPy
# remembers what it made a function of. Kernels of two passes are left to CUB. Tested with CuPy 14.2.


#: How the length of a row is called in CUB's kernels, and what it is in CuPy's.
_ROW, _LENGTH = '_segment_size', '(_in_ind.size() / _out_ind.size())'


def block_codes() -> dict[int, ReductionCode]:
    """The codes of kernels of one pass that CuPy has compiled, by function."""
    found: dict[int, ReductionCode] = {}
    own = (None,) * _OWN  # what CuPy's template has behind the arrays, where these have two sizes
    for function, made in _remembered('_cub_reduction._SimpleCubReductionKernel_get_cached_function'):
        params, infos = (*made.params[:2], *own), (*made.infos[:2], *own)
        code = code_of(replace(made, params=params, infos=infos, result=made.result.replace(_ROW, _LENGTH)))
        code = code.does if isinstance(code, Rounded) else code
        if isinstance(code, ReductionCode):
            found[function] = replace(code, library=True)
    return found


def of_block_node(info: Any, code: ReductionCode | None, arguments: Sequence[Argument]) -> Reduction | None:
    """What a node with these arguments reduces: each block a row. ``info`` is its description."""
    sizes = [len(one.data) for one in arguments]
    if code is None or sizes[:2] != [8, 8] or len(sizes) != 4 or not {*sizes[2:]} <= {4, 8}:
        return None
    source, output = (struct.unpack('Q', one.data)[0] for one in arguments[:2])
    length, more = (int.from_bytes(one.data, sys.byteorder) for one in arguments[2:])
    results = int(info.detail['grid'][0])
    if more or not length or not results:
        return None
    block = threads(length)[0]
    code = replace(code, block=block, made=replace(code.made, block=block), text=(str(block), *code.text))
    return _of_rows(info.name, code, source, output, length, results)
