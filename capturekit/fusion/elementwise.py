"""What a node computes for each element, where it is one of CuPy's own elementwise kernels: operation and operands.

CuPy makes the source of such a kernel from an operation in C++, the dtypes of its arguments, and a preamble. A node has
the compiled function, by which the kernel object is found (``cupy/_core/_kernel.pyx``), so that the operation is known
without guessing by a name. Tested with CuPy 14.2; 14.0 and 14.1 keep the same things.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from capturekit.driver.cupy_kernels import _memo, _objects, axes
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_accesses import Access

_WORD = 8
#: ``_ArgKind`` of CuPy's.
ARRAY, INDEXER, SCALAR = 1, 2, 3
#: Words of an operation that make it more than work on one element.
_BEYOND = re.compile(
    r'\b(return|break|goto|asm|static|threadIdx|blockIdx|blockDim|gridDim|printf|assert|__\w*shared\w*|__sync\w*|'
    r'atomic\w*|_ind|_raw_\w+|warpSize|clock\w*)\b'
)
#: Options of the compiler under which CuPy's own kernels are compiled.
_PLAIN_OPTIONS = ((), ('--std=c++17',))
#: Why an operation is rounded otherwise next to another one.
PRODUCTS = 'it may add two products, and compilers round such a sum in more than one way'
_DEFINE = re.compile(r'^\s*#\s*define\s+(\w+)', re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """A part of an array that lies somewhere else.

    ``whole`` is the shape of the array, ``offsets`` and ``lengths`` say which box of it the part is. The elements of
    the part lie from ``address`` on, ``strides`` bytes apart.
    """

    address: int
    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    whole: tuple[int, ...]
    offsets: tuple[int, ...]

    def access(self, dtype: str) -> Access:
        """The memory that is read."""
        return Access(self.address, self.lengths, self.strides, itemsize(dtype), False)


@dataclass(frozen=True)
class ElementOperand:
    """One argument of an elementwise operation.

    An array has ``address``, ``shape`` (that of the iteration) and ``strides`` in bytes. A number has its bytes in
    ``number`` instead (on the simulated device the number itself, in a tuple). ``sure`` says that the operation writes
    each element before it reads it.
    """

    dtype: str
    address: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    number: Any = None
    reads: bool = True
    writes: bool = False
    sure: bool = False
    #: Where its elements are read from instead.
    pieces: tuple[Piece, ...] = ()

    @property
    def access(self) -> Access:
        """The memory of an array that lies in one piece."""
        return Access(self.address, self.shape, self.strides, itemsize(self.dtype), self.writes)

    @property
    def accesses(self) -> list[Access]:
        """The memory that it uses; none where it is a number."""
        if self.pieces:
            return [one.access(self.dtype) for one in self.pieces]
        return [] if self.number is not None else [self.access]


@dataclass(frozen=True)
class Elementwise:
    """What a node does to each element: an operation, which is equal for equal code, and its operands in order.

    ``copies``: it gives an array the elements of another one, of one dtype.
    """

    name: str
    operation: Any
    operands: tuple[ElementOperand, ...]
    copies: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(next((one.shape for one in self.operands if one.number is None), ()))


class Rounded(str):
    """Why a node takes no part in fusing that keeps every bit; ``does`` is what it does, for fusing that does not.

    As a part of another kernel it would be rounded otherwise.
    """

    does: Any

    @classmethod
    def of(cls, why: str, does: Any) -> Rounded:
        """The reason ``why``, of something that does ``does``."""
        found = cls(why)
        found.does = does
        return found


@dataclass(frozen=True)
class OperationParameter:
    """A parameter of an operation: the name in its code, the element's dtype, the dtype that the code computes with."""

    name: str
    dtype: str
    computed: str
    kind: int
    written: bool = False


@dataclass(frozen=True)
class ElementOperation:
    """The code of an operation of CuPy's. ``ufunc``: its operands are converted to the dtypes that it computes with.

    ``types`` are names of types in the code with their dtypes.
    """

    code: str
    preamble: str
    parameters: tuple[OperationParameter, ...]
    types: tuple[tuple[str, str], ...]
    ufunc: bool


# -- from CuPy's kernel objects ---------------------------------------------------------------------------------


def operations() -> dict[int, ElementOperation | str]:
    """The operations of all elementwise kernels that CuPy has compiled, by function; or why one is no such operation.

    A user's elementwise kernels are among them.
    """
    found: dict[int, ElementOperation | str] = {}
    for one in _objects():
        for key, function in list(getattr(one, '_kernel_memo', {}).items()):
            found[int(function.ptr)] = _of_ufunc(one, key)
        for key, function in list(getattr(one, '_elementwise_kernel_memo', {}).items()):
            given = (key[1], key[2], one.params, one.operation, one.preamble)
            found[int(function.ptr)] = _of_kernel(*given, **one.kwargs)
    found.update(_remembered())
    return found


def _remembered() -> Iterable[tuple[int, ElementOperation | str]]:
    """Those of kernel objects that are gone: CuPy remembers what it has compiled."""
    import sys

    for key, function in _memo(getattr(sys.modules.get('cupy._core._kernel'), '_get_elementwise_kernel', None)):
        arguments, options = key[1], dict(key[2]) if len(key) > 2 else {}
        if len(arguments) != 6 or not hasattr(function, 'ptr'):
            continue
        infos, types, params, operation, _name, preamble = arguments
        yield int(function.ptr), _of_kernel(infos, types, params, operation, preamble, **options)


def _of_ufunc(ufunc: Any, key: tuple[Any, ...]) -> ElementOperation | str:
    _device, op, infos, has_where = key
    if ufunc._loop_prep or getattr(op, '_resolution_func', None) is not None:  # CuPy 14.0 has none
        return 'its code does more than work on one element'
    params = ufunc._params_with_where if has_where else ufunc._params
    computed = (*op.in_types, *((np.dtype(bool),) if has_where else ()), *op.out_types)
    found = []
    for param, info, dtype in zip(params, infos, computed):
        name, written = str(param.name), not param.is_const and param.name != '_where'
        found.append(OperationParameter(name, str(info.dtype), str(np.dtype(dtype)), int(info.arg_kind), written))
    sides = ('in', op.in_types), ('out', op.out_types)
    types = tuple((f'{side}{n}_type', str(np.dtype(one))) for side, every in sides for n, one in enumerate(every))
    code = ('if (!_where) continue;\n' if has_where else '') + str(op.routine)
    return checked(ElementOperation(code, str(ufunc._preamble), tuple(found), types, True))


def _of_kernel(
    infos: Sequence[Any], types: Any, params: Sequence[Any], operation: Any, preamble: Any, **more: Any
) -> ElementOperation | str:
    if more.get('loop_prep') or more.get('after_loop'):
        return 'its code does more than work on one element'
    if tuple(more.get('options', ())) not in _PLAIN_OPTIONS:
        return 'it is compiled with options of its own'
    if any(one.raw for one in params):
        return 'it has raw arguments, which it may use at any index'
    found = tuple(
        OperationParameter(str(p.name), str(info.dtype), str(info.dtype), int(info.arg_kind), not p.is_const)
        for p, info in zip(params[:-1], infos)
    )
    names = tuple((str(name), str(np.dtype(dtype))) for name, dtype in types._pairs)
    return checked(ElementOperation(str(operation), str(preamble), found, names, False))


#: What is done to complex numbers part by part, or without rounding.
_PARTWISE = frozenset(
    {
        'out0 = in0', 'out0 = +in0', 'out0 = -in0', 'out0 = conj(in0)', 'out0 = in0 + in1', 'out0 = in0 - in1',
        'out0 = in0 == in1', 'out0 = in0 != in1', 'out0 = in0.real()', 'out0 = in0.imag()', 'out0 = in0 ? in1 : in2',
        'out0 = !in0', 'out0 = isnan(in0)', 'out0 = isinf(in0)', 'out0 = isfinite(in0)',
    }
)  # fmt: skip
#: Functions of CUDA's that add products, and names in libraries of which that is not known.
_SUMS = re.compile(r'\b(r?hypotf?|r?norm\w*)\s*\(|::')


def _sums_products(one: ElementOperation) -> bool:
    """Whether an operation may add two products: which of them a compiler contracts depends on what is around it."""
    dtypes = {kind_of(dtype) for _name, dtype in one.types} | {kind_of(p.dtype) for p in one.parameters}
    if 'c' in dtypes:
        return not one.ufunc or ' '.join(one.code.split()) not in _PARTWISE
    if 'f' not in dtypes:
        return False
    called = re.findall(r'\b(\w+)\s*\(', one.code)
    own = any(re.search(rf'__device__[^;{{}}()]*\b{name}\s*\(', one.preamble) for name in called)
    return own or one.code.count('*') > 1 or _SUMS.search(one.code) is not None


def checked(one: ElementOperation) -> ElementOperation | str:
    """An operation, or why it is not one that can be fused."""
    beyond = _BEYOND.search(one.code)
    if beyond is not None:
        return f'its code has {beyond[0]!r}'
    if any(p.kind not in (ARRAY, SCALAR) or not _plain(p.dtype) for p in one.parameters):
        return 'it has arguments that are neither arrays nor numbers of plain dtypes'
    if any(re.search(rf'(^|[=(,;{{?:!~*|^+-])\s*&(?!&)\s*{p.name}\b', one.code) for p in one.parameters):
        return 'its code takes the address of an element'
    for name in _DEFINE.findall(one.preamble):
        if not re.search(rf'#\s*ifndef\s+{name}\s*\n\s*#\s*define', one.preamble):
            return 'its preamble defines macros'
    return Rounded.of(PRODUCTS, one) if _sums_products(one) else one


def kind_of(dtype: str) -> str:
    """The kind of a dtype, as NumPy has it; that of bfloat16, which NumPy does not know, is that of other floats."""
    return 'f' if dtype == 'bfloat16' else np.dtype(dtype).kind


def itemsize(dtype: str) -> int:
    """The bytes of an element."""
    return 2 if dtype == 'bfloat16' else np.dtype(dtype).itemsize


def _plain(dtype: str) -> bool:
    try:
        return kind_of(dtype) in 'biufc'
    except TypeError:
        return False


#: Code because of which an operation may leave an element as it was.
_CHOICE = re.compile(r'\b(if|for|while|do|switch|continue)\b|\?|&&|\|\|')


@cache
def written_first(one: ElementOperation) -> tuple[bool, ...]:
    """For each parameter whether the operation surely writes the element before it reads it."""
    whole = not _CHOICE.search(one.code) if not one.ufunc else not one.code.startswith('if (!_where)')
    found = []
    for p in one.parameters:
        first = re.search(rf'\b{p.name}\b\s*(=(?!=))?', one.code)
        found.append(p.written and whole and (one.ufunc or (first is not None and first[1] is not None)))
    return tuple(found)


# -- from nodes -------------------------------------------------------------------------------------------------


@cache
def copying(dtype: str) -> ElementOperation:
    """The operation that copies an element, as CuPy's own kernel does it."""
    parameters = OperationParameter('in0', dtype, dtype, ARRAY), OperationParameter('out0', dtype, dtype, ARRAY, True)
    return ElementOperation('out0 = in0', '', parameters, (('in0_type', dtype), ('out0_type', dtype)), True)


def array_operand(dtype: str, data: bytes, reads: bool, writes: bool, sure: bool) -> ElementOperand | None:
    """The array that an argument of a kernel of CuPy's is; None where it has another form."""
    ndim = axes(len(data))
    if ndim < 0:
        return None
    address, _size, *words = struct.unpack(f'{len(data) // _WORD}q', data)
    return ElementOperand(dtype, address, tuple(words[:ndim]), tuple(words[ndim:]), None, reads, writes, sure)


def of_node(name: str, operation: ElementOperation | str, arguments: Sequence[Argument]) -> Elementwise | str:
    """What a node with these arguments, the last of which is CuPy's index, computes."""
    if isinstance(operation, Rounded):
        does = of_node(name, operation.does, arguments)
        return does if isinstance(does, str) else Rounded.of(operation, does)
    if isinstance(operation, str):
        return operation
    if len(arguments) != len(operation.parameters) + 1:
        return 'it has other arguments than its kernel'
    sure = written_first(operation)
    found = []
    for parameter, argument, first in zip(operation.parameters, arguments, sure):
        if parameter.kind == SCALAR:
            found.append(ElementOperand(parameter.dtype, number=argument.data))
            continue
        operand = array_operand(parameter.dtype, argument.data, not first, parameter.written, first)
        if operand is None:
            return 'it has arguments of another form than its kernel'
        found.append(operand)
    if not any(one.writes for one in found):
        return 'it writes nothing'
    dtypes = {p.dtype for p in operation.parameters}
    copies = operation.ufunc and operation.code.strip() == 'out0 = in0' and len(dtypes) == 1 and len(found) == 2
    return Elementwise(name, operation, tuple(found), copies and found[0].number is None)


# -- between which operations of a fused kernel a compiler could round otherwise, and how it is kept from that --------
#
# A compiler may make a product and a sum one instruction, which rounds once. It does so only where neither is written
# as an intrinsic that rounds by itself: CUDA Math API, ``__fmul_rn`` and ``__fadd_rn`` "will never be merged". So sums,
# differences and products by themselves are written like that, which costs nothing. A value of another operation, which
# may end in a product, is *sealed* where it goes into one that may begin with a sum: it is combined with a zero that
# the compiler does not know.


_PREFIX = {'float32': '__f', 'float64': '__d'}
#: Universal functions of one rounding, by their code, and the intrinsics that do the same.
_ALONE = {
    'out0 = in0 + in1': 'add_rn(in0, in1)',
    'out0 = in0 - in1': 'sub_rn(in0, in1)',
    'out0 = in0 * in1': 'mul_rn(in0, in1)',
    'out0 = in0 * in0': 'mul_rn(in0, in0)',
}
#: Functions whose result is rounded correctly by definition, so that they end in no product that could be merged, and
#: begin with no sum.
_DEFINED = frozenset(
    {
        'out0 = static_cast<out0_type>(in0) / static_cast<out0_type>(in1)', 'out0 = sqrt(in0)', 'out0 = in0 < in1',
        'out0 = in0 <= in1', 'out0 = in0 > in1', 'out0 = in0 >= in1', 'out0 = in0 == in1', 'out0 = in0 != in1',
        'out0 = !in0', 'out0 = isnan(in0)', 'out0 = isinf(in0)', 'out0 = isfinite(in0)', 'out0 = !!in0',
    }
)  # fmt: skip
#: Functions that hand a value on.
_HANDING = frozenset({'out0 = in0', 'out0 = +in0', 'out0 = -in0', 'out0 = in0 ? in1 : in2'})


@cache
def rounded_code(operation: ElementOperation) -> str:
    """The code of an operation, with intrinsics where it is a sum, a difference or a product alone."""
    words = _words(operation)
    kinds = {dtype for _name, dtype in operation.types}
    if operation.ufunc and words in _ALONE and len(kinds) == 1 and kinds <= set(_PREFIX):
        return f'out0 = {_PREFIX[kinds.pop()]}{_ALONE[words]}'
    return operation.code


def sealed(steps: Sequence[tuple[ElementOperation, Sequence[int]]]) -> list[bool]:
    """For each step, an operation and the numbers of its values, whether what it computes has to be sealed."""
    found = [False] * len(steps)
    loose: dict[int, int] = {}  # by the number of a value that may end in a product the step that computes it
    for n, (operation, operands) in enumerate(steps):
        pairs = list(zip(operands, operation.parameters))
        read = [loose[value] for value, _parameter in pairs if value in loose]
        hands, apart = _hands_on(operation), _apart(operation)
        if not hands and not apart:
            for one in read:
                found[one] = True
        for value, parameter in pairs:
            if not parameter.written:
                continue
            loose.pop(value, None)
            if kind_of(parameter.dtype) in 'fc' and not apart and (not hands or read):
                loose[value] = n
    return found


def _words(operation: ElementOperation) -> str:
    return ' '.join(operation.code.split()).rstrip('; ')


@cache
def _apart(operation: ElementOperation) -> bool:
    """Whether an operation neither begins with a sum that could be merged nor ends in such a product."""
    if not operation.ufunc or any(kind_of(dtype) == 'c' for _name, dtype in operation.types):
        return False
    floats = any(kind_of(dtype) == 'f' for _name, dtype in operation.types)
    return _words(operation) in _DEFINED or not floats or rounded_code(operation) != operation.code


@cache
def _hands_on(operation: ElementOperation) -> bool:
    return operation.ufunc and _words(operation) in _HANDING
