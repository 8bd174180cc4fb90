"""Between which operations of a fused kernel a compiler could round otherwise, and how it is kept from that.

A compiler may make a product and a sum one instruction, which rounds once. It does so only where neither is written as
an intrinsic that rounds by itself: CUDA Math API, ``__fmul_rn`` and ``__fadd_rn`` "will never be merged". So sums,
differences and products by themselves are written like that, which costs nothing. A value of another operation, which
may end in a product, is *sealed* where it goes into one that may begin with a sum: it is combined with a zero that the
compiler does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from capturekit.fusion.elementwise import ElementOperation, kind_of

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
