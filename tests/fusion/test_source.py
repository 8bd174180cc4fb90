"""The source of a fused kernel, made from operations as CuPy has them; and which operations are not for fusing."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from capturekit.driver.kernel_args import Argument
from capturekit.fusion.elementwise import (
    ARRAY,
    SCALAR,
    ElementOperation,
    OperationParameter,
    checked,
    of_node,
    sealed,
    written_first,
)
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, FusedStep, name_of
from capturekit.fusion.source import source

BASE = 1 << 40


def ufunc(code: str, dtypes: str, preamble: str = '', computed: str = '', number: bool = False) -> ElementOperation:
    """An operation of a universal function, with inputs and one output of these dtypes (``'f4 f8 f8'``)."""
    names = {'f2': 'float16', 'f4': 'float32', 'f8': 'float64', '?': 'bool', 'i8': 'int64', 'c8': 'complex64'}
    given = [names[one] for one in dtypes.split()]
    inside = [names[one] for one in (computed or dtypes).split()]
    words = [*(f'in{n}' for n in range(len(given) - 1)), 'out0']
    kinds = [SCALAR if number and n == 1 else ARRAY for n in range(len(given))]
    found = tuple(OperationParameter(word, *one, word == 'out0') for word, *one in zip(words, given, inside, kinds))
    return ElementOperation(
        code, preamble, found, tuple((f'{word}_type', kind) for word, kind in zip(words, inside)), True
    )


def place(dtype: str, loads: bool, stores: bool, n: int = 0) -> FusedPlace:
    size = {'float32': 4, 'float64': 8, 'float16': 2, 'bool': 1, 'complex64': 8}[dtype]
    return FusedPlace(dtype, BASE + 4096 * n, (8,), (size,), loads, stores)


LOADED, STORED = place('float32', True, False), place('float32', False, True, 1)
REGISTER = FusedPlace('float32', 0, (), (), False, False)


def kernel(places: Sequence[FusedPlace], *steps: tuple[Any, ...], numbers: Any = ()) -> FusedKernel:
    """A kernel of eight elements, whose steps are an operation and its operands each."""
    does = tuple(FusedStep(operation, tuple(operands)) for operation, *operands in steps)
    return FusedKernel((8,), tuple(places), numbers, does)


PRODUCT, SUM = ufunc('out0 = in0 * in1', 'f4 f4 f4'), ufunc('out0 = in0 + in1', 'f4 f4 f4')


def product_and_sum() -> FusedKernel:
    places = LOADED, place('float32', True, False, 1), REGISTER, place('float32', False, True, 2)
    return kernel(places, (PRODUCT, 0, 1, 2), (SUM, 2, 0, 3))


def steps_of(kernel: FusedKernel) -> list[str]:
    """What the kernel does to each element."""
    lines = source(kernel).body.splitlines()
    return lines[lines.index('#pragma unroll') + 2 : lines.index('}')]


def test_a_product_and_a_sum_are_intrinsics_that_round() -> None:
    made = source(product_and_sum())
    assert made.text[:2] == ('float32 ck_m0, float32 ck_m1, uint32 ck_zero', 'float32 ck_m3')
    assert made.operation == 'ck_m3 = 0;'
    assert steps_of(product_and_sum())[1:] == [
        'float ck_v2;',
        'ck_0::run(ck_i, ck_v0[ck_e], ck_v1[ck_e], ck_v2);',
        'ck_1::run(ck_i, ck_v2, ck_v0[ck_e], ck_v3[ck_e]);',
    ]
    assert 'out0 = __fmul_rn(in0, in1)' in made.functions and 'out0 = __fadd_rn(in0, in1)' in made.functions


EXP, LOG, DIVIDE = (
    ufunc('out0 = exp(in0)', 'f4 f4'),
    ufunc('out0 = log1p(in0)', 'f4 f4'),
    ufunc('out0 = static_cast<out0_type>(in0) / static_cast<out0_type>(in1)', 'f4 f4 f4'),
)
NEGATIVE, MASKED = ufunc('out0 = -in0', 'f4 f4'), ufunc('if (!_where) continue;\nout0 = in0 * in1', 'f4 f4 f4')
HALVES = ufunc('out0 = in0 * in1', 'f2 f2 f2'), ufunc('out0 = in0 + in1', 'f2 f2 f2')


@pytest.mark.parametrize(
    ('steps', 'seals'),
    [
        ([(EXP, 0, 1), (LOG, 1, 2)], [True, False]),  # a product, perhaps, that goes into a sum, perhaps
        ([(EXP, 0, 1), (SUM, 1, 0, 2)], [False, False]),  # the sum rounds by itself
        ([(PRODUCT, 0, 0, 1), (LOG, 1, 2)], [False, False]),  # so does the product
        ([(EXP, 0, 1), (DIVIDE, 1, 0, 2), (LOG, 2, 3)], [False, False, False]),
        ([(EXP, 0, 1), (NEGATIVE, 1, 2), (LOG, 2, 3)], [False, True, False]),  # it hands it on
        ([(SUM, 0, 0, 1), (NEGATIVE, 1, 2), (LOG, 2, 3)], [False, False, False]),
        ([(EXP, 0, 1), (SUM, 0, 0, 1), (LOG, 1, 2)], [False, False, False]),  # it is written over
        ([(MASKED, 0, 0, 1), (LOG, 1, 2)], [True, False]),
        ([(EXP, 0, 1), (LOG, 0, 2), (LOG, 1, 3)], [True, False, False]),
        ([(HALVES[0], 0, 0, 1), (HALVES[1], 1, 0, 2)], [True, False]),
    ],
)
def test_possible_products_are_sealed_before_possible_sums(steps: list[tuple[Any, ...]], seals: list[bool]) -> None:
    assert sealed([(operation, operands) for operation, *operands in steps]) == seals


def test_a_seal_is_written_behind_the_operation() -> None:
    lines = steps_of(kernel([LOADED, REGISTER, STORED], (EXP, 0, 1), (LOG, 1, 2)))
    assert lines[2:] == [
        'ck_0::run(ck_i, ck_v0[ck_e], ck_v1);',
        'ck_seal(ck_v1, ck_zero);',
        'ck_1::run(ck_i, ck_v1, ck_v2[ck_e]);',
    ]


def test_an_operation_keeps_its_code_types_and_preamble() -> None:
    includes = '#include <x.h>\n#ifndef NAN\n#define NAN 1\n#endif'
    operation = ufunc('out0 = max(in0, in1)', 'f2 f4 f4', includes, 'f4 f4 f4')
    places = place('float16', True, False), place('float32', True, True, 1)
    preamble = source(kernel(places, (operation, 0, 1, 1))).functions
    function = preamble[preamble.index('namespace ck_0') :]
    assert preamble.index('#include <x.h>') < preamble.index('namespace ck_0') and '#include' not in function
    for text in (
        'typedef float in0_type;', '#define NAN 1', 'const in0_type in0(ck_in0);', 'out0 = max(in0, in1)',
        'run(const ptrdiff_t i, const float16 &ck_in0, const float &ck_in1, float &ck_out0)', 'ck_out0 = out0;',
    ):  # fmt: skip
        assert text in function


def test_numbers_are_arguments_and_not_part_of_the_source() -> None:
    operation = ufunc('out0 = in0 * in1', 'f4 f4 f4', number=True)
    made = []
    for number, address in ((1.5, 0), (2.5, 3)):
        places = place('float32', True, False, address), place('float32', False, True, address + 1)
        one = source(kernel(places, (operation, 0, -1, 1), numbers=(('float32', struct.pack('f', number)),)))
        made.append((one.text, one.arguments()))
    (text, first), (other, second) = made
    assert text == other and name_of(('cupy_add__x',), text) == name_of(('cupy_add__y',), other)
    assert 'const float in1' in text[2] and first[1] == struct.pack('f', 1.5) and second[1] == struct.pack('f', 2.5)
    assert first[2] == bytes(4) and first[-1] == struct.pack('3q', 8, 8, 0)
    assert first[0] == struct.pack('4q', BASE, 8, 8, 4) and second[0][:8] == struct.pack('q', BASE + 3 * 4096)


@pytest.mark.parametrize(
    ('of', 'to', 'code'),
    [
        ('? f4', 'f4 f4', '(ck_in0) ? 1 : 0'),
        ('c8 f4', 'f4 f4', '(ck_in0).real()'),
        ('c8 f4', '? f4', '!= thrust::complex'),
    ],
)
def test_inputs_are_converted_as_cupy_does(of: str, to: str, code: str) -> None:
    operation = ufunc('out0 = in0', of, computed=to)
    given, made = (one.dtype for one in operation.parameters)
    places = place(given, True, False), place(made, False, True, 1)
    assert code in source(kernel(places, (operation, 0, 1))).functions


def test_elements_that_where_leaves_out_keep_their_values() -> None:
    operation = ufunc('if (!_where) continue;\nout0 = in0', 'f4 f4')
    assert written_first(operation) == (False, False)
    assert written_first(ufunc('out0 = in0', 'f4 f4')) == (False, True)
    text = source(kernel([LOADED, place('float32', True, True, 1)], (operation, 0, 1)))
    assert 'do {\nif (!_where) continue;' in text.functions


def user(code: str, preamble: str = '', kind: str = 'float32') -> ElementOperation:
    parameters = OperationParameter('x', kind, kind, ARRAY), OperationParameter('y', kind, kind, ARRAY, True)
    return ElementOperation(code, preamble, parameters, (), False)


@pytest.mark.parametrize(
    'operation, why',
    [
        (user('y = x * 2'), ''),
        (user('y = x * x + x'), ''),
        (user('y = x * x + x * 3'), 'two products'),
        (user('y = hypot(x, x)'), 'two products'),
        (user('y = f(x)', '__device__ float f(float x) { return x; }'), 'two products'),
        (user('y = f(x) * x + x * 2', kind='int64'), ''),
        (user('if (x > 0) return; y = x'), "'return'"),
        (user('y = __shfl_sync(1, x, 0) + threadIdx.x'), "'threadIdx'"),
        (user('y = _ind.size()'), "'_ind'"),
        (user('y = *(&x + 1)'), 'address of an element'),
        (user('y = x & 3', kind='int64'), ''),
        (user('y = TWO', '#define TWO 2'), 'macros'),
        (ufunc('out0 = in0 * in1', 'c8 c8 c8'), 'two products'),
        (ufunc('out0 = in0 + in1', 'c8 c8 c8'), ''),
    ],
)
def test_what_is_not_for_fusing(operation: ElementOperation, why: str) -> None:
    found = checked(operation)
    assert found is operation if not why else isinstance(found, str) and why in found


def test_a_users_output_that_is_read_first_is_loaded() -> None:
    assert written_first(user('y = x * 2')) == (False, True)
    assert written_first(user('y += x')) == written_first(user('if (x > 0) y = x')) == (False, False)
    assert written_first(user('y = x == y ? 1 : 2')) == (False, False)


def test_a_node_has_the_operands_that_its_arguments_say() -> None:
    data = struct.pack('4q', BASE, 8, 8, 4), struct.pack('4q', BASE + 4096, 8, 8, 4), struct.pack('3q', 8, 8, 0)
    found = of_node('cupy_negative__float32_float32', ufunc('out0 = -in0', 'f4 f4'), [Argument(one) for one in data])
    assert not isinstance(found, str) and found.size == 8 and not found.copies
    assert [(one.address, one.reads, one.writes, one.sure) for one in found.operands] == [
        (BASE, True, False, False),
        (BASE + 4096, False, True, True),
    ]
    copy = of_node('cupy_copy', ufunc('out0 = in0', 'f4 f4'), [Argument(one) for one in data])
    assert not isinstance(copy, str) and copy.copies
    assert of_node('x', ufunc('out0 = -in0', 'f4 f4'), [Argument(data[0])]) == 'it has other arguments than its kernel'
