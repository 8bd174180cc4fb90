"""What is not the user's own and changes between calls: CuPy's functions, settings of arithmetic, what lies beyond."""

from __future__ import annotations

import decimal
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.settings import DECIMALS, ERRORS, setting_for
from capturekit.functions.understood import reads


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


strided = np.lib.stride_tricks.as_strided


def three(fn: Callable[[], Any]) -> list[Any]:
    return [fn().get().tolist() for _ in range(3)]


# -- CuPy's functions, replaced -----------------------------------------------------------------------------------


def test_a_function_of_cupys_that_is_replaced_is_seen(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = ck.graphed(lambda x: cp.exp(x) * 2)
    x = cp.zeros(2)
    assert three(lambda: fn(x)) == [[2.0, 2.0]] * 3
    monkeypatch.setattr(cp, 'exp', lambda a: a + 7)
    assert three(lambda: fn(x)) == [[14.0, 14.0]] * 3
    monkeypatch.undo()
    assert three(lambda: fn(x)) == [[2.0, 2.0]] * 3
    assert {variant.state for variant in fn.variants} == {'recorded'}


@pytest.mark.parametrize('name', ['sum', '__add__'])
def test_a_method_of_arrays_that_is_replaced_is_seen(cp: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fn = ck.graphed((lambda x: x.sum() * x) if name == 'sum' else (lambda x: x + 1))
    x = cp.ones(2)
    assert three(lambda: fn(x)) == [[2.0, 2.0]] * 3
    monkeypatch.setattr(cp.ndarray, name, lambda self, *others: self * 5)
    assert three(lambda: fn(x)) == [[5.0, 5.0]] * 3


def test_what_cupys_own_code_calls_and_is_replaced_is_seen(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = cp.linalg.norm.__globals__
    called = next(n for n in cp.linalg.norm.__code__.co_names if callable(inside.get(n)))
    fn = ck.graphed(lambda x: cp.linalg.norm(x) * x)
    x = cp.ones(1)
    assert three(lambda: fn(x)) == [[1.0]] * 3
    states = len(fn.variants)
    before = inside[called]
    monkeypatch.setitem(inside, called, lambda *args, **kwargs: before(*args, **kwargs) * 1)
    fn(x)
    assert len(fn.variants) == states + 1, called


@pytest.mark.parametrize(
    'change',
    [
        lambda core: core.set_routine_accelerators([]),
        lambda core: core.set_reduction_accelerators(['cub', 'cutensor']),
        lambda core: core.set_elementwise_accelerators([]),
        lambda core: core.set_compute_type(np.float32, 3),
        lambda core: core.set_compute_type(np.complex128, 4),
    ],
)
def test_another_choice_of_routines_is_seen(cp: Any, change: Callable[[Any], None]) -> None:
    fn = ck.graphed(lambda x: x @ x)
    x = cp.ones((2, 2))
    for _ in range(4):
        fn(x)
    before = sum(variant.launches for variant in fn.variants)
    change(cp._core)
    fn(x)
    assert sum(variant.launches for variant in fn.variants) == before
    for _ in range(3):
        fn(x)
    assert [variant.state for variant in fn.variants] == ['recorded', 'recorded']


def test_compute_types_count_only_where_there_are_products(cp: Any) -> None:
    core, x = cp._core, cp.ones((2, 2), 'f4')
    before = core.get_compute_type(np.float32)
    fn = ck.graphed(lambda x: x + 1)
    try:
        for kind in (before, before, before, 2, 1, 2):
            core.set_compute_type(np.float32, kind)
            assert fn(x).get().tolist() == [[2.0, 2.0]] * 2
    finally:
        core.set_compute_type(np.float32, before)
    assert [variant.launches for variant in fn.variants] == [5]


@pytest.mark.parametrize(
    'ask',
    [
        lambda core: core.get_compute_type(np.float32),
        lambda core: next(map(core.get_compute_type, [np.float32])),
        lambda core: getattr(core, f'get_compute_{"epyt"[::-1]}')(np.float32),
    ],
)
def test_a_compute_type_that_a_function_reads_counts(cp: Any, ask: Callable[[Any], int]) -> None:
    core, x = cp._core, cp.zeros(1)
    before = core.get_compute_type(np.float32)
    fn = ck.graphed(lambda x: x + ask(core))
    try:
        for kind in (1, 1, 1, 2, 2, 1):
            core.set_compute_type(np.float32, kind)
            assert fn(x).get().tolist() == [float(kind)]
    finally:
        core.set_compute_type(np.float32, before)


def test_a_generator_that_gets_another_source_of_bits_is_seen(cp: Any) -> None:
    rng = cp.random.default_rng(5)
    fn = ck.graphed(lambda x: x + rng.random(x.shape))
    for _ in range(3):
        fn(cp.zeros(2))
    assert {variant.state for variant in fn.variants} == {'recorded'}
    rng.bit_generator = cp.random.XORWOW(7)
    expected = cp.random.Generator(cp.random.XORWOW(7))
    for _ in range(3):
        assert fn(cp.zeros(2)).get().tolist() == expected.random(2).get().tolist()


def test_a_check_between_draws_of_a_generator_is_recorded(cp: Any) -> None:
    rng, twin = cp.random.default_rng(5), cp.random.default_rng(5)

    def fn(x: Any) -> Any:
        noise = rng.random(x.shape)
        return noise * 2 if float(x[0]) > 2 else noise

    graphed = ck.graphed(fn)
    for first in (0, 0, 0, 3, 3, 0, 3):
        expected = twin.random(2).get() * (2 if first > 2 else 1)
        assert graphed(cp.full(2, float(first))).get().tolist() == expected.tolist()
    assert {variant.state for variant in graphed.variants} == {'recorded'}


def test_the_wrappers_of_a_capture_elsewhere_are_no_replacement(cp: Any) -> None:
    fn = ck.graphed(lambda x: cp.concatenate([x, x + cp.cuda.get_current_stream().ptr * 0]))
    plain = ck.graphed(lambda x: cp.exp(x.sum()) + cp.linalg.norm(x))
    x = cp.zeros(2)
    for _ in range(3):
        plain(x)
        fn(x)
    environment = plain.variants[0].environment
    assert environment is not None
    with ck.capture():
        assert environment.changed() is None
    assert environment.changed() is None and len(plain.variants) == 1


@pytest.mark.parametrize(
    'asks',
    [
        lambda cp: cp.get_default_memory_pool().used_bytes(), lambda cp: cp.cuda.runtime.memGetInfo(),
        lambda cp: cp.cuda.Device().mem_info,
    ],
)  # fmt: skip
def test_what_the_device_tells_of_its_memory_is_not_recorded(cp: Any, asks: Callable[[Any], Any]) -> None:
    fn = ck.graphed(lambda x: x * (2 if asks(cp) else 3))
    for _ in range(4):
        fn(cp.ones(2))
    assert {variant.state for variant in fn.variants} <= {'eager'}


def test_rows_of_functions_in_c_that_tell_a_state() -> None:
    def told(name: str) -> Any:
        return types.SimpleNamespace(__name__=name, __self__=None, __module__='cupy_backends.cuda.api.runtime')

    assert reads(told('memGetInfo')) is None
    assert reads(told('getDeviceCount')) == 'arguments'


# -- settings of arithmetic ---------------------------------------------------------------------------------------


@pytest.fixture
def contexts() -> Iterator[None]:
    with decimal.localcontext(), np.errstate(all='ignore'):
        yield


THIRD = decimal.Decimal(1)


@pytest.mark.parametrize('way', ['global', 'argument', 'inside'])
def test_the_context_of_decimal_numbers_is_compared(cp: Any, contexts: None, way: str) -> None:
    fn = ck.graphed(
        {
            'global': lambda x, _k: x * float(THIRD / 3),
            'argument': lambda x, k: x * float(k / 3),
            'inside': lambda x, _k: x * float(decimal.Decimal(1) / 3),
        }[way]
    )
    given = THIRD if way == 'argument' else None
    assert three(lambda: fn(cp.ones(1), given)) == [[float(THIRD / 3)]] * 3
    decimal.getcontext().prec = 3
    assert three(lambda: fn(cp.ones(1), given)) == [[0.333]] * 3
    assert all(variant.launches for variant in fn.variants)


def test_numpys_handling_of_errors_is_compared(cp: Any, contexts: None) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        try:
            return x * float(np.isinf(np.float64(1) / np.float64(0)))
        except FloatingPointError:
            return x * 5

    assert three(lambda: fn(cp.ones(1))) == [[1.0]] * 3
    with np.errstate(all='raise'):
        assert three(lambda: fn(cp.ones(1))) == [[5.0]] * 3
    assert three(lambda: fn(cp.ones(1))) == [[1.0]] * 3
    assert len(fn.variants) == 2


def test_settings_are_those_of_what_is_met() -> None:
    assert setting_for(THIRD) == setting_for(decimal) == setting_for(decimal.Decimal) == DECIMALS
    assert setting_for(np) == setting_for(np.float32(1)) == ERRORS
    assert setting_for(1.0) is setting_for(len) is setting_for(Any) is None


def test_a_setting_that_numpy_itself_changes_is_no_change(cp: Any) -> None:
    fn = ck.graphed(lambda x: x * float(np.linalg.det(np.eye(2))))
    assert three(lambda: fn(cp.ones(1))) == [[1.0]] * 3
    assert fn.variants[0].launches == 2


# -- memory beyond an array ---------------------------------------------------------------------------------------


def by_hand(cp: Any) -> Callable[[Any], Any]:
    return lambda x: cp.ndarray((3,), x.dtype, x.data) * 2


def from_the_start(cp: Any) -> Callable[[Any], Any]:
    return lambda x: cp.ndarray((3,), x.dtype, cp.cuda.MemoryPointer(x.data.mem, 0)) * 2


@pytest.mark.parametrize('make', [by_hand, from_the_start])
@pytest.mark.parametrize('part', [slice(None, None, 2), slice(1, 2), None])
def test_an_array_made_by_hand_reads_what_eager_reads(cp: Any, make: Callable[..., Any], part: slice | None) -> None:
    plain = make(cp)
    fn = ck.graphed(plain)
    for value in range(5):
        whole = cp.arange(8.0) + value
        x = whole if part is None else whole[part]
        assert fn(x).get().tolist() == plain(x).get().tolist()
    assert sum(variant.launches for variant in fn.variants) == (4 if part is None else 0)


def test_a_kernel_of_ones_own_reads_what_eager_reads(cp: Any, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    from capturekit.simulated import body

    @body('halo_of_a_view')
    def halo(_grid: Any, _block: Any, args: Any) -> None:
        x, y = args
        beyond = strided(x, (5,), (8,))
        y[...] = beyond[:-2] + beyond[2:]

    kernel = cp.RawKernel('extern "C" __global__ void halo_of_a_view(const double* x, double* y) {}', 'halo_of_a_view')

    def plain(x: Any) -> Any:
        y = cp.empty(3)
        kernel((1,), (3,), (x, y))
        return y

    fn = ck.graphed(plain)
    for value in range(4):
        whole = cp.arange(5.0) + value
        assert fn(whole[:3]).get().tolist() == plain(whole[:3]).get().tolist()
    assert 'part of another array' in caplog.text
    fn.explain()
    assert 'Pass the whole array, or a copy of the part.' in capsys.readouterr().out
