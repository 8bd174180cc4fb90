"""Numbers that are compared with a tolerance: how far they may be apart, and where they are taken to lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capturekit.driver.node_accesses import Access, linear
from capturekit.fusion.elementwise import ElementOperand, Elementwise
from capturekit.fusion.rounded_memory import TOLERANCES, RoundedNumbers, rounded_numbers

BASE = 1 << 40


def left(one: RoundedNumbers, a: Any, b: Any) -> int:
    """How many bytes still differ."""
    then, now = (np.frombuffer(x.tobytes(), np.uint8) for x in (a, b))
    apart = then != now
    differ = apart.copy()
    one.keep(differ, apart, then, now)
    return int(differ.sum())


def numbers(dtype: str, count: int = 8, itemsize: int = 0) -> RoundedNumbers:
    size = itemsize or np.dtype(dtype).itemsize
    return RoundedNumbers(Access(BASE, (count,), (size,), size, True), (dtype,))


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64', 'complex64', 'complex128'])
def test_numbers_may_differ_by_rounding(dtype: str) -> None:
    real = {'complex64': 'float32', 'complex128': 'float64'}.get(dtype, dtype)
    a = np.linspace(1, 2, 8).astype(dtype)
    for factor, alike in ((0.5, True), (8, False)):
        b = a.copy()
        b[3] *= 1 + factor * TOLERANCES[real]
        assert (left(numbers(dtype), a, b) == 0) is alike
    for value in (np.nan, np.inf):
        b = a.copy()
        b[0] = value
        assert left(numbers(dtype), a, b) > 0 and left(numbers(dtype), b, b) == 0
        other = b.copy()
        other[5] *= 1 + TOLERANCES[real] / 2
        assert left(numbers(dtype), b, other) == 0
    assert left(numbers(dtype), a, -a) > 0
    assert left(numbers(dtype), a * 0, -(a * 0)) == 0


def test_small_numbers_count_beside_the_mean_of_all() -> None:
    a = np.array([0, 1, 1, 1, 1, 1, 1, 1], 'f4')
    assert left(numbers('float32'), a, a + np.float32(5e-6)) == 0
    b = a.copy()
    b[0] = 1e-4
    assert left(numbers('float32'), a, b) > 0
    huge = np.array([1e30, 1, 1, 1, 1, 1, 1, 1], 'f4')
    assert left(numbers('float32'), a * 0, a * 0 + np.float32(1e-30)) > 0 and left(numbers('float32'), huge, huge) == 0


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    a = np.linspace(1, 2, 8).astype('f4')
    near, far = a * np.float32(1.02), a * np.float32(1.2)
    a, near, far = ((one.view('u4') >> 16).astype('u2') for one in (a, near, far))
    assert left(numbers('bfloat16', 8, 2), a, near) == 0
    assert left(numbers('bfloat16', 8, 2), a, far) > 0


def test_every_bit_of_whole_numbers_counts() -> None:
    a = np.arange(8, dtype='i4') + (1 << 24)
    access = Access(BASE, (8,), (4,), 4, True)
    assert left(RoundedNumbers(access), a, a + 1) == 8 and left(RoundedNumbers(access), a, a) == 0


def test_only_elements_of_the_access_are_looked_at() -> None:
    a = np.arange(16, dtype='f4') + 1
    b = a * np.float32(1 + 1e-6)
    every_second = RoundedNumbers(Access(BASE, (8,), (8,), 4, True), ('float32',))
    backwards = RoundedNumbers(Access(BASE + 56, (8,), (-8,), 4, True), ('float32',))
    for one in (every_second, backwards):
        assert (one.low, one.high) == (BASE, BASE + 60)
        then, now = a[:15], b[:15]
        others = [np.frombuffer(of[1::2].tobytes(), np.uint8) for of in (then, now)]
        assert left(one, then, now) == int((others[0] != others[1]).sum()) > 0


def test_what_a_library_computes_may_be_real_or_complex() -> None:
    a = np.linspace(1, 2, 8).astype('c8') * (1 + 2j)
    one = RoundedNumbers(Access(BASE, (8,), (8,), 8, True), ('float64', 'complex64'))
    assert left(one, a, a * np.float32(1 + 1e-6)) == 0
    assert left(one, a, a * np.float32(1.01)) > 0


# -- where they lie -----------------------------------------------------------------------------------------------


def does(dtype: str, to: int, of: int) -> Elementwise:
    item = np.dtype(dtype).itemsize
    source = ElementOperand(dtype, BASE + of, (8,), (item,))
    return Elementwise('f', 'op', (source, ElementOperand(dtype, BASE + to, (8,), (item,), None, False, True, True)))


def touched(one: Elementwise) -> list[Access]:
    item = np.dtype(one.operands[0].dtype).itemsize
    return [Access(o.address, o.shape, o.strides, item, o.writes) for o in one.operands]


def found(nodes: list[Any], memory: list[Any], fused: set[int], **more: Any) -> list[tuple[int, tuple[str, ...]]]:
    given = {'calls': {}, 'copies': {}, **more}
    result = rounded_numbers(range(len(nodes)), nodes, memory, fused, **given)
    return [(one.low - BASE, one.dtypes) for one in result]


def test_what_fused_kernels_write_and_who_reads_it() -> None:
    a, b, c = does('float32', 512, 0), does('float32', 1024, 512), does('int32', 1536, 1024)
    other = does('float32', 4096, 2048)
    nodes = [a, b, c, other]
    wanted = [(512, ('float32',)), (1024, ('float32',)), (1536, ())]
    assert found(nodes, [touched(one) for one in nodes], {0}) == wanted


def test_what_is_written_over_does_not_count() -> None:
    a, over, part = does('float32', 512, 0), does('float64', 512, 2048), does('int32', 512, 2048)
    assert found([a, over], [touched(one) for one in (a, over)], {0}) == []
    wide = does('float64', 512, 0)
    assert found([wide, part], [touched(one) for one in (wide, part)], {0}) == [(512, ('float64',)), (512, ())]


def test_copies_and_calls_of_libraries_hand_numbers_on() -> None:
    a = does('float32', 512, 0)
    copy = [linear(BASE + 1024, 16, True), linear(BASE + 512, 16, False)]
    call = [Access(BASE + 2048, (8,), (8,), 8, True), linear(BASE + 1024, 16, False)]
    nodes = [a, None, None]
    more = {'copies': {1: (BASE + 1024, BASE + 512, 16)}, 'calls': {2: None}}
    wanted = [(512, ('float32',)), (1024, ('float32',)), (2048, ('float64', 'complex64'))]
    assert found(nodes, [touched(a), copy, call], {0}, **more) == wanted
    whole = {**more, 'calls': {2: ()}}
    assert found(nodes, [touched(a), copy, call], {0}, **whole) == [*wanted[:2], (2048, ())]
    askew = {'copies': {1: (BASE + 1024, BASE + 514, 14)}}
    assert found(nodes[:2], [touched(a), copy], {0}, **askew) == [(512, ('float32',)), (1024, ())]


def test_every_bit_counts_where_a_node_is_not_known() -> None:
    a = does('float32', 512, 0)
    assert found([a, None], [touched(a), None], {0}) == []
    kernel = [linear(BASE + 1024, 64, None, exact=False), linear(BASE + 512, 16, False)]
    assert found([a, 'not CuPy'], [touched(a), kernel], {0}) == [(512, ('float32',)), (1024, ())]


def test_a_fused_kernel_of_the_users_tells_what_it_writes() -> None:
    a, own = does('float32', 512, 0), does('float32', 1024, 512)
    assert found([a, own], [touched(a), None], {0, 1}) == [(512, ('float32',)), (1024, ('float32',))]
    assert found([a, own], [touched(a), None], {0}) == []
    assert found([a, 'two kernels'], [touched(a), None], {0, 1}) == []
