"""The source of a fused reduction, made from CuPy's template; and which reductions are not for fusing."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from capturekit.driver.kernel_args import Argument
from capturekit.fusion.elementwise import ARRAY, SCALAR, ElementOperand
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, FusedStep
from capturekit.fusion.fused_reduction import FusedReduction, arguments, declared, parts, source, uses_number
from capturekit.fusion.reduction import Made, Reduction, ReductionCode, code_of, of_node
from tests.fusion.test_source import PRODUCT, SUM, ufunc

BASE = 1 << 40
SQUARES = 'template <typename T> __device__ T my_norm(T x) { return x * x; }'


def made(
    each: str = 'in0', combine: str = 'a + b', result: str = 'out0 = a', dtype: str = 'float32', **more: Any
) -> Made:
    """What CuPy made a reduction of, of one input and one output."""
    params = [SimpleNamespace(name=name, ctype='T', is_const=name == 'in0', raw=False) for name in ('in0', 'out0')]
    infos = [SimpleNamespace(arg_kind=ARRAY, dtype=np.dtype(dtype)) for _ in params]
    for name in more.pop('numbers', ()):
        params.insert(1, SimpleNamespace(name=name, ctype='float', is_const=True, raw=False))
        infos.insert(1, SimpleNamespace(arg_kind=SCALAR, dtype=np.dtype('float32')))
    own = [SimpleNamespace() for _ in range(3)]
    types = SimpleNamespace(_pairs=(('type_in0_raw', dtype), ('type_out0_raw', dtype)))
    values = {'name': 'cupy_sum', 'preamble': '', 'options': (), 'identity': '0', **more}
    return Made(
        block=512, reduce_type='float', params=(*params, *own), infos=(*infos, *own), types=types,
        each=each, combine=combine, result=result, **values,
    )  # fmt: skip


def code(**given: Any) -> ReductionCode:
    found = code_of(made(**given))
    assert isinstance(found, ReductionCode), found
    return found


def column_sum(of: ReductionCode | None = None) -> Reduction:
    source = ElementOperand('float32', BASE, (64, 32), (128, 4))
    output = ElementOperand('float32', BASE + 9 * 4096, (32,), (4,), None, False, True, True)
    return Reduction('cupy_sum', of or code(), (source,), output, 1, 32)


def fused(numbers: tuple[Any, ...] = ()) -> FusedReduction:
    """A product and a sum in front, a square behind."""
    where = [FusedPlace('float32', BASE + 4096 * (3 + n), (64, 32), (128, 4), True, False) for n in range(2)]
    register = FusedPlace('float32', 0, (), (), False, False)
    front = FusedKernel(
        (64, 32), (*where, register, register), (), (FusedStep(PRODUCT, (0, 1, 2)), FusedStep(SUM, (2, 0, 3)))
    )
    result = FusedPlace('float32', BASE + 9 * 4096, (1, 32), (0, 4), False, True)
    behind = FusedKernel((1, 32), (register, result), numbers, (FusedStep(PRODUCT, (0, 0, 1)),))
    return FusedReduction(column_sum(), front, behind, (3,), 0)


def test_the_parts_of_a_source() -> None:
    text = parts(fused())
    assert text.values == ('float ck_v0', 'float ck_v1', 'float ck_v2', 'float ck_v3')
    assert text.loads.splitlines() == [
        'int ck_at[2]; ck_at[0] = static_cast<int>(_J); ck_at[1] = static_cast<int>(_i);',
        'ck_v0[ck_k] = _raw_ck_m0[ck_at];',
        'ck_v1[ck_k] = _raw_ck_m1[ck_at];',
    ]
    assert text.steps.splitlines() == [
        'ck_0::run(_j, ck_v0[ck_k], ck_v1[ck_k], ck_v2[ck_k]);',
        'ck_seal(ck_v2[ck_k], ck_zero);',
        'ck_1::run(_j, ck_v2[ck_k], ck_v0[ck_k], ck_v3[ck_k]);',
        'ck_seal(ck_v3[ck_k], ck_zero);',
    ]
    assert text.stores == '' and text.inputs == 'const type_in0_raw in0 = ck_v3[ck_k];'
    assert text.result.splitlines() == ['float ck_v4;', 'float ck_v5;', 'type_out0_raw &out0 = ck_v4;']
    assert text.after.splitlines() == [
        'ck_seal(ck_v4, ck_zero);',
        'ck_0::run(_i, ck_v4, ck_v4, ck_v5);',
        'ck_seal(ck_v5, ck_zero);',
        '_raw_ck_m5[_out_ind.get()] = ck_v5;',
    ]
    assert 'namespace ck_0' in text.functions and 'namespace ck_1' in text.functions


def test_the_arguments_are_those_that_are_declared() -> None:
    kernel = fused()
    assert declared(kernel) == ('float32 ck_m0, float32 ck_m1, uint32 ck_zero', 'float32 ck_m5')
    data = arguments(kernel)
    assert [len(one) for one in data] == [48, 48, 4, 48, 40, 40, 4]
    assert struct.unpack('6q', data[3]) == (BASE + 9 * 4096, 32, 1, 32, 0, 4)
    assert struct.unpack('3q', data[4][:24]) == (2048, 64, 32) and struct.unpack('i', data[-1]) == (32,)
    assert kernel.size == 2048 and len(kernel.places) == 6


def test_what_all_elements_have_is_stored_with_the_first() -> None:
    kernel = fused()
    value = FusedPlace('float32', BASE + 20 * 4096, (64, 32), (0, 0), False, True)
    front = replace(kernel.front, places=(*kernel.front.places[:3], value))
    text = parts(replace(kernel, front=front))
    assert text.stores.splitlines()[1:] == ['if (_j == 0) _raw_ck_m3[ck_at] = ck_v3[ck_k];']
    value = replace(value, shape=(1, 32))
    behind = replace(kernel.behind, places=(kernel.behind.places[0], value))
    assert parts(replace(kernel, behind=behind)).after.endswith('if (_i == 0) _raw_ck_m5[_out_ind.get()] = ck_v5;')


def test_axes_that_were_split_are_found_by_division() -> None:
    front = FusedKernel((4, 16, 32), (FusedPlace('float32', BASE, (4, 16, 32), (2048, 128, 4), True, False),), (), ())
    behind = FusedKernel((1, 1, 32), (FusedPlace('float32', BASE + 4096, (1, 1, 32), (0, 0, 4), False, True),), (), ())
    text = parts(FusedReduction(column_sum(), front, behind, (0,), 0))
    assert 'ck_at[1] = static_cast<int>(_J) % static_cast<int>(_raw_ck_m0.shape()[1]);' in text.loads
    assert 'ck_at[0] = static_cast<int>(_J) / static_cast<int>(_raw_ck_m0.shape()[1]);' in text.loads
    flat = FusedKernel((2048,), (FusedPlace('float32', BASE, (2048,), (4,), True, False),), (), ())
    text = parts(FusedReduction(column_sum(), flat, behind, (0,), 0))
    assert text.loads.startswith('_in_ind.set(_j);')


def template(name: str, block: int, *more: Any) -> str:
    """What the code has to have in common with CuPy's template."""
    load, result = more[8], more[9]
    return f"""extern "C" __global__ void {name}() {{
    IndexT _J = 0;
    for (ptrdiff_t _j = _i + _j_offset; _j < _in_ind.size();) {{
      {load}
      _type_reduce _a = {more[4]};
      _s = REDUCE(_s, _a);
    }}
      {result}
      POST_MAP(_s);
}}"""


def test_the_template_is_walked_with_several_elements_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(_create_reduction_function_code=template)
    monkeypatch.setitem(sys.modules, 'cupy._core._reduction', fake)
    text = source(fused(), 'some_name', (), (), 4)
    assert text.startswith('extern "C" __global__ void __launch_bounds__(512) some_name')
    assert 'ck_j + 3 * _j_stride < _in_ind.size(); ck_j += 4 * _j_stride, ck_J += 4 * _J_stride' in text
    assert text.count('float ck_v3[4];') == text.count('float ck_v3[1];') == 1
    many, alone = text.index('float ck_v3[4];'), text.index('float ck_v3[1];')
    assert many < text.index('_raw_ck_m0[ck_at]') < text.index('ck_0::run') < text.index('_s = REDUCE') < alone
    assert text.index('POST_MAP(_s);') < text.index('ck_seal(ck_v4, ck_zero);')
    fake._create_reduction_function_code = lambda *given: 'another template'
    with pytest.raises(ValueError, match='is not the one that is known'):
        source(fused(), 'some_name', (), (), 4)


@pytest.mark.parametrize(
    ('given', 'why'),
    [
        ({'each': 'x * x + in0 * in0'}, 'it may add two products'),
        ({'each': 'in0 * in0', 'combine': 'a * b'}, 'it may add two products'),
        ({'combine': 'a * b', 'dtype': 'complex64'}, 'it may add two products'),
        ({'each': 'hypot(in0, in0)'}, 'it may add two products'),
        ({'each': 'in0 + threadIdx.x'}, 'its code does more than combine elements'),
        ({'each': 'in0 * _raw_in0[0]'}, 'its code does more than combine elements'),
        ({'each': 'in0 + _in_ind.get()[0]'}, 'its code does more than combine elements'),
        ({'result': 'out0 += a'}, 'it reads what it writes'),
        ({'result': 'out0 = out0 + a'}, 'it reads what it writes'),
        ({'preamble': '#define X 1'}, 'its preamble defines macros'),
        ({'options': ('-use_fast_math',)}, 'its code does more than combine elements'),
        ({'each': 'my_norm(x - mean)', 'preamble': SQUARES, 'name': 'mine', 'result': 'out0 = a * a'}, 'two products'),
    ],
)
def test_reductions_that_are_left_as_they_are(given: dict[str, Any], why: str) -> None:
    found = code_of(made(**given))
    assert isinstance(found, str) and why in found


VAR = {'each': 'my_norm(x - mean)', 'name': 'cupy_var_core_float32', 'preamble': SQUARES, 'result': 'out0 = alpha * a'}


@pytest.mark.parametrize(
    'given',
    [
        {},
        {'combine': 'a + b', 'dtype': 'complex64'},
        {'each': 'in0 * in0', 'result': 'out0 = sqrt(a)'},
        {'combine': 'a * b', 'dtype': 'int64'},
        {'result': 'out0 = a / _type_reduce(_in_ind.size() / _out_ind.size())'},
        VAR,
        {'numbers': ('alpha',), 'result': 'out0 = alpha * a'},
    ],
)
def test_reductions_that_can_be_fused(given: dict[str, Any]) -> None:
    assert code(**given).output.ctype == 'type_out0_raw'


def test_equal_code_is_equal() -> None:
    assert code() == code() and hash(code()) == hash(code())
    assert code() != code(combine='max(a, b)') and code() != code(dtype='float64')


def test_a_node_has_the_arrays_in_its_arguments() -> None:
    info = SimpleNamespace(name='cupy_sum', detail={'block': (512, 1, 1), 'grid': (3, 1, 1)})
    given = [
        struct.pack('6q', BASE, 2048, 64, 32, 128, 4),
        struct.pack('4q', BASE + 4096, 32, 32, 4),
        struct.pack('5q', 2048, 64, 32, 0, 0),
        struct.pack('3q', 32, 32, 0),
        struct.pack('i', 32),
    ]
    found = of_node(info, code(), [Argument(one) for one in given])
    assert isinstance(found, Reduction)
    assert (found.inner, found.output.shape, found.blocks, found.stride) == ((64, 32), (32,), 3, 32)
    assert found.size == 2048 and found.in_turn == 4 and found.operands == (*found.inputs, found.output)
    other = [given[0], given[1], struct.pack('3q', 2048, 2048, 0), *given[3:]]
    assert isinstance(of_node(info, code(), [Argument(one) for one in other]), str)
    info.detail['block'] = (256, 1, 1)
    assert isinstance(of_node(info, code(), [Argument(one) for one in given]), str)


def test_operations_that_ask_for_their_number() -> None:
    assert uses_number(ufunc('out0 = in0 + i', 'f4 f4')) and not uses_number(ufunc('out0 = in0', 'f4 f4'))
