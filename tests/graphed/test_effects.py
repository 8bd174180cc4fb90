"""What a graphed function is to Python, and what is said where it is needlessly eager."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.simulated import body

# -- what it is to Python ---------------------------------------------------------------------------------------------


class Methods:
    @ck.graphed
    @staticmethod
    def static(x: Any) -> Any:
        return x * 2

    @ck.graphed
    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * 3, cls.__name__

    # Python 3.14 binds a partial to the instance, as it does functions
    plain = functools.partial(lambda *given, k: (given[-1] * k, len(given)), k=4)
    part = ck.graphed(plain)


class Derived(Methods):
    pass


@ck.graphed
def doubled(x: Any) -> Any:
    return x * 2


@pytest.mark.filterwarnings('ignore:functools.partial:FutureWarning')
def test_static_and_class_methods(sim: Any) -> None:
    x = sim.arange(3.0)
    for _ in range(4):
        assert Methods.static(x).get().tolist() == Methods().static(x).get().tolist() == [0, 2, 4]
        assert Methods.of_class(x)[1] == Methods().of_class(x)[1] == 'Methods'
        assert Derived().of_class(x)[1] == 'Derived'
        assert Methods().part(x)[0].get().tolist() == [0, 4, 8]
        assert Methods().part(x)[1] == Methods().plain(x)[1]
    for fn in (Methods.static, Methods.part):
        fn.clear()
    Methods.__dict__['of_class'].clear()


def test_lists_of_a_closure_are_counted_anew(sim: Any) -> None:
    found: list[float] = []
    step = ck.graphed(lambda x: (found.append(0.0), x * len(found))[1])
    assert [step(sim.ones(1)).item() for _ in range(6)] == [1, 2, 3, 4, 5, 6]


def test_annotations_of_a_class_count_at_each_call(sim: Any) -> None:
    class Kind: ...

    step = ck.graphed(lambda x: x * Kind.__annotations__['factor'])
    for factor in (2.0, 2.0, 2.0, 2.0, 3.0):
        Kind.__annotations__ = {'factor': factor}
        assert step(sim.ones(1)).item() == factor


def test_copies_and_pickles_are_the_function(sim: Any) -> None:
    doubled(sim.ones(3))
    assert copy.deepcopy({'fn': doubled})['fn'] is doubled is copy.copy(doubled)
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    doubled.clear()


# -- not needlessly eager, and said -----------------------------------------------------------------------------------


def test_an_argument_that_is_reached_otherwise_is_told(sim: Any, caplog: pytest.LogCaptureFixture) -> None:
    w = sim.arange(6.0)
    fn = ck.graphed(lambda x: w * 2 + x.sum())
    for _ in range(3):
        fn(sim.ones(6))
    for _ in range(3):
        fn(w[1:][:6])
        fn(w)
    assert sum('also reaches otherwise' in one.message for one in caplog.records) == 1


def test_a_new_shape_at_each_call_is_called_a_shape(sim: Any, caplog: pytest.LogCaptureFixture) -> None:
    fn = ck.graphed(lambda x, step: x * 2)
    for n in range(60):
        fn(sim.ones(n + 1), 2.0)
    (said,) = [one.message for one in caplog.records]
    assert 'x has another shape, dtype or strides at nearly each call' in said and 'value' not in said


def test_a_kernel_of_ones_own_reads_what_eager_reads(sim: Any, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    @body('halo_of_a_view')
    def halo(_grid: Any, _block: Any, args: Any) -> None:
        x, y = args
        beyond = np.lib.stride_tricks.as_strided(x, (5,), (8,))
        y[...] = beyond[:-2] + beyond[2:]

    kernel = sim.RawKernel('extern "C" __global__ void halo_of_a_view(const double* x, double* y) {}', 'halo_of_a_view')

    def plain(x: Any) -> Any:
        y = sim.empty(3)
        kernel((1,), (3,), (x, y))
        return y

    fn = ck.graphed(plain)
    for value in range(4):
        whole = sim.arange(5.0) + value
        assert fn(whole[:3]).get().tolist() == plain(whole[:3]).get().tolist()
    assert 'part of another array' in caplog.text
    fn.explain()
    assert 'Pass the whole array, or a copy of the part.' in capsys.readouterr().out
