"""What is not the user's own and changes between calls: CuPy's functions, settings of arithmetic, what lies beyond."""

from __future__ import annotations

import decimal
import types
from collections.abc import Callable
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


def test_rows_of_functions_in_c_that_tell_a_state() -> None:
    def told(name: str) -> Any:
        return types.SimpleNamespace(__name__=name, __self__=None, __module__='cupy_backends.cuda.api.runtime')

    assert reads(told('memGetInfo')) is None
    assert reads(told('getDeviceCount')) == 'arguments'


# -- settings of arithmetic ---------------------------------------------------------------------------------------


THIRD = decimal.Decimal(1)


def test_settings_are_those_of_what_is_met() -> None:
    assert setting_for(THIRD) == setting_for(decimal) == setting_for(decimal.Decimal) == DECIMALS
    assert setting_for(np) == setting_for(np.float32(1)) == ERRORS
    assert setting_for(1.0) is setting_for(len) is setting_for(Any) is None


# -- memory beyond an array ---------------------------------------------------------------------------------------


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
