"""What a graphed function does besides CuPy's work, and what it is to Python: as eagerly, or eager with a reason."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.recordable import host_arrays

# -- refusals that are caught -----------------------------------------------------------------------------------------


def caught(_cp: Any) -> Any:
    def fn(x: Any) -> Any:
        y = x * 2
        try:
            y.set(np.full(3, 5.0))
        except Exception:
            y = x * 100
        return y

    return fn


# -- checks that nobody has waited for --------------------------------------------------------------------------------


@pytest.mark.parametrize('how', ['clear', 'evict'])
def test_later_checks_are_told_before_a_graph_goes(sim: Any, how: str) -> None:
    total = sim.zeros(3)

    @ck.graphed(checks='later', limit=1)
    def fn(x: Any) -> Any:
        total[...] = total + x
        return x * 2 if float(x[0]) > 5 else x

    for _ in range(3):
        fn(sim.ones(3))
    held = total.get().tolist()
    fn(sim.full(3, 9.0))
    call = fn.last
    assert call is not None
    if how == 'clear':
        fn.clear()
    else:
        fn(sim.ones(5)[:3] * 1)
        fn(sim.ones((1, 3))[0])
        fn.clear()
    assert not call.holds()
    if how == 'clear':
        assert total.get().tolist() == held


def test_the_last_call_is_none_where_a_call_ran_eagerly(sim: Any) -> None:
    over: Any = ck.graphed(checks='later')
    fn = over(lambda x: x * 2 if float(x[0]) > 5 else x)
    for _ in range(3):
        fn(sim.ones(3))
    assert fn.last is not None and fn.last.holds()
    fn(sim.ones(7))
    assert fn.last is None


def within_another_one(fn: Any, x: Any) -> Any:
    return ck.graphed(lambda x: fn(x))(x)


def with_what_can_not_be_compared(fn: Any, x: Any) -> Any:
    cycle: list[Any] = []
    cycle.append(cycle)
    return fn(x, cycle)


def of_one_more_kind(fn: Any, x: Any) -> Any:
    return fn(x, 'one more')


@pytest.mark.parametrize('call', [within_another_one, with_what_can_not_be_compared, of_one_more_kind])
def test_the_last_call_is_none_where_no_kind_answers(sim: Any, call: Callable[[Any, Any], Any]) -> None:
    """Who asks an earlier call that did not hold runs the function again, which changes its arrays twice."""
    over: Any = ck.graphed(checks='later')
    fn = over(lambda x, _other=None: x * 2 if float(x[0]) > 5 else x)
    for number in range(200):  # new kinds of calls are not watched after that
        fn(sim.ones(3), f'{number}')
    for _ in range(4):
        fn(sim.ones(3))
    fn(sim.full(3, 9.0))
    earlier = fn.last
    call(fn, sim.full(3, 9.0))
    assert fn.last is None
    assert not earlier.holds()


# -- generators, masks, the host's memory -----------------------------------------------------------------------------


def test_each_thing_in_an_argument_is_looked_into_once() -> None:
    """Without that a recording took seconds where an argument held a module, or objects that hold each other."""
    array = np.arange(6.0)
    row: list[Any] = [array[2:]]
    ring = [SimpleNamespace(row=row, library=np) for _ in range(12)]
    for one in ring:
        one.others = ring
    assert [found is array for found in host_arrays((ring, {'more': row}))] == [True]
    assert host_arrays(SimpleNamespace(library=SimpleNamespace(np=np))) == []


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


@pytest.mark.parametrize('what', [lambda n: f'{n}', lambda n: (n,), lambda n: [float(n)], lambda n: lambda v: v])
def test_a_new_value_at_each_call_is_told_once(sim: Any, what: Any, caplog: pytest.LogCaptureFixture) -> None:
    fn = ck.graphed(lambda x, step: x * 2)
    for n in range(60):
        assert fn(sim.ones(2), what(n)).get().tolist() == [2] * 2
    said = [one.message for one in caplog.records]
    assert len(said) == 1 and 'nearly each call' in said[0], said  # an object's address may come back


def test_a_new_shape_at_each_call_is_called_a_shape(sim: Any, caplog: pytest.LogCaptureFixture) -> None:
    fn = ck.graphed(lambda x, step: x * 2)
    for n in range(60):
        fn(sim.ones(n + 1), 2.0)
    (said,) = [one.message for one in caplog.records]
    assert 'x has another shape, dtype or strides at nearly each call' in said and 'value' not in said


def test_explain(sim: Any, capsys: pytest.CaptureFixture[str]) -> None:
    factor = [2.0]
    fn = ck.graphed(lambda x: x * factor[0] if float(x[0]) < 5 else x)
    for _ in range(3):
        fn(sim.ones(3))
    refused = ck.graphed(caught(sim))
    for _ in range(3):
        refused(sim.ones(3))
    fn.explain()
    told = capsys.readouterr().out
    assert 'float64[3]' in told and 'recorded: 3 calls, 2 launches' in told and 'factor' in told
    assert 'checked on the device' in told
    out = io.StringIO()
    refused.explain(out)
    assert 'eager because' in out.getvalue() and 'what would change that' in out.getvalue()
