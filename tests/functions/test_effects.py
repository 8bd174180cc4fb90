"""What a graphed function does besides CuPy's work, and what it is to Python: as eagerly, or eager with a reason."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import functools
import io
import logging
import pickle
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.recordable import host_arrays
from tests.twins import twins

Make = Callable[[Any], Any]
NOTHING: dict[str, float] = {}


def seq(*values: float, n: int = 3) -> list[Make]:
    return [lambda cp, v=v: cp.arange(n, dtype='f8') + v for v in values]  # type: ignore[misc]


def states(fn: ck.Graphed) -> set[str]:
    return {variant.state for variant in fn.variants}


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


def caught_in_a_helper(cp: Any) -> Any:
    def attempt(y: Any) -> bool:
        try:
            cp.cuda.get_current_stream().done  # noqa: B018
            y.set(np.full(3, 5.0))
        except RuntimeError:
            return False
        return True

    return lambda x: x * 2 if attempt(x * 1) else x * 100


#: Python 3.14 warns of such a ``return`` where it compiles one, as users' files may still have it.
LEFT_BY_FINALLY = """
def fn(x):
    y = x * 2
    try:
        y.set(np.full(3, 5.0))
    finally:
        return y
"""


def left_by_finally(_cp: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', SyntaxWarning)
        code = compile(LEFT_BY_FINALLY, __file__, 'exec')
    names: dict[str, Any] = {'np': np}
    exec(code, names)
    return names['fn']


def an_allocators_refusal(cp: Any) -> Any:
    pool = cp.cuda.MemoryPool()

    def fn(x: Any) -> Any:
        try:
            with cp.cuda.using_allocator(pool.malloc):
                return x * 2
        except RuntimeError:
            return x * 100

    return fn


@pytest.mark.parametrize('make', [caught, caught_in_a_helper, left_by_finally, an_allocators_refusal])
def test_a_refusal_that_is_caught(sim: Any, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    fn = twins(sim, make, seq(0, 1, 2, 3))
    assert states(fn) == {'eager'}
    assert sum('runs eagerly' in one.message for one in caplog.records) == 1


#: What a function does where a call raises something; no eager run comes there. ``seen`` is a list.
HANDLERS = {
    'a list': 'except Exception as error:\n        seen.append(repr(error))\n        raise',
    'a helper': 'except RuntimeError as error:\n        note(error)\n        raise',
    'a log': "except Exception:\n        logging.getLogger('training').exception('failed')\n        raise",
    'an attribute': 'except Exception:\n        note.failures = 1\n        raise',
    'another way': 'except Exception:\n        seen.append(1)\n        y = x * 100',
}


@pytest.mark.parametrize('handler', HANDLERS)
def test_no_handler_sees_a_refusal(sim: Any, handler: str, caplog: pytest.LogCaptureFixture) -> None:
    source = f'def fn(x):\n    y = x * 2\n    try:\n        y.set(host)\n    {HANDLERS[handler]}\n    return y\n'
    seen: list[Any] = []

    def note(error: Any) -> None:
        seen.append(repr(error))

    names: dict[str, Any] = {'host': np.full(3, 5.0), 'seen': seen, 'note': note, 'logging': logging}
    exec(source, names)
    fn = ck.graphed(names['fn'])
    for number in range(4):
        assert fn(sim.full(3, float(number))).get().tolist() == [5.0] * 3
    assert states(fn) == {'eager'}
    assert 'set()' in fn.variants[0].reason
    assert (seen, vars(note)) == ([], {})
    assert {record.name for record in caplog.records} == {'capturekit'}


BARE = """
failures, errors, last = 0, [], None
def fn(x):
    global failures, last
    try:
        y = x * 2
        y.set(host)
        return y
    except:
        failures += 1
        errors.append(1)
        last = y
        {then}
"""


@pytest.mark.parametrize('then', ['raise', 'return y * 100'])
def test_what_a_bare_except_changes_is_put_back(sim: Any, then: str) -> None:
    names: dict[str, Any] = {'host': np.full(3, 5.0)}
    exec(BARE.format(then=then), names)
    fn = ck.graphed(names['fn'])
    for number in range(4):
        assert fn(sim.full(3, float(number))).get().tolist() == [5.0] * 3
    assert states(fn) == {'eager'}
    assert (names['failures'], names['errors'], names['last']) == (0, [], None)


def test_the_functions_own_exceptions_are_its_own(sim: Any) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any) -> Any:
            try:
                return x * NOTHING['factor']
            except KeyError:
                return x * 3

        return fn

    assert states(twins(sim, make, seq(0, 1, 2))) == {'recorded'}


# -- memory that is not the graph's -----------------------------------------------------------------------------------


def from_a_pool(cp: Any) -> Any:
    pool = cp.cuda.MemoryPool()

    def fn(x: Any) -> Any:
        y = cp.ndarray(x.shape, x.dtype, pool.malloc(x.nbytes))
        cp.multiply(x, 2, out=y)
        return y

    return fn


def under_an_allocator(cp: Any) -> Any:
    pool = cp.cuda.MemoryPool()

    def fn(x: Any) -> Any:
        with cp.cuda.using_allocator(pool.malloc):
            y = x * 2
        return y + 1

    return fn


def managed(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        y = cp.ndarray(x.shape, x.dtype, cp.cuda.malloc_managed(x.nbytes))
        cp.multiply(x, 2, out=y)
        return y

    return fn


@pytest.mark.parametrize('make', [from_a_pool, under_an_allocator, managed])
def test_memory_of_other_allocators(sim: Any, make: Make) -> None:
    assert states(twins(sim, make, seq(0, 1, 2, 3))) == {'eager'}


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


def replaced_state(cp: Any) -> Any:
    calls = [0]
    states_ = [cp.random.RandomState(n) for n in (3, 4)]

    def before() -> None:
        calls[0] += 1
        if calls[0] == 4:
            cp.random.set_random_state(states_[0])
        elif calls[0] == 8:
            cp.random.reset_states()
            cp.random.seed(5)
        elif calls[0] > 10:
            cp.random.set_random_state(states_[calls[0] % 2])

    fn = lambda x: x + cp.random.random_sample(3)  # noqa: E731
    return fn, before


def test_a_generators_state_that_is_replaced(sim: Any) -> None:
    found = []
    overs: list[Any] = [lambda fn: fn, ck.graphed]
    for over in overs:
        sim.random.set_random_state(sim.random.RandomState(1))
        fn, before = replaced_state(sim)
        fn = over(fn)
        told = []
        for v in range(16):
            before()
            told.append((fn(sim.arange(3.0) + v).get().tolist(), sim.random.random_sample(2).tolist()))
        found.append(told)
    assert found[0] == found[1]


def test_a_generator_made_where_cupy_has_none_yet(sim: Any) -> None:
    sim.random.reset_states()
    fn = ck.graphed(lambda x: x + sim.random.RandomState(3).random_sample(3))
    found = [fn(sim.zeros(3)).get().tolist() for _ in range(3)]
    assert [variant.launches for variant in fn.variants] == [2]
    assert found == [sim.random.RandomState(3).random_sample(3).tolist()] * 3


def test_each_thing_in_an_argument_is_looked_into_once() -> None:
    """Without that a recording took seconds where an argument held a module, or objects that hold each other."""
    array = np.arange(6.0)
    row: list[Any] = [array[2:]]
    ring = [SimpleNamespace(row=row, library=np) for _ in range(12)]
    for one in ring:
        one.others = ring
    assert [found is array for found in host_arrays((ring, {'more': row}))] == [True]
    assert host_arrays(SimpleNamespace(library=SimpleNamespace(np=np))) == []


@pytest.mark.parametrize('dtype', ['f8', 'i8', 'u1', '?'])
@pytest.mark.parametrize('over', [1, 100])
def test_values_for_a_mask(sim: Any, dtype: str, over: int) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any, value: Any) -> Any:
            x[x >= over] = value
            return x * 2

        return fn

    values = [1, 2.5, -0.0, True, 1j, 300, -1, float('nan'), 2**70, np.float32(2), np.complex64(1j)]
    twins(sim, make, [lambda cp, v=v: (cp.arange(3).astype(dtype), v) for v in values for _ in range(3)])  # type: ignore[misc]


def test_host_memory_that_is_filled(sim: Any) -> None:
    host = np.zeros((2, 3))
    fn = ck.graphed(lambda x: (x.get(out=host[1]), x + 1)[1])
    for _ in range(4):
        fn(sim.ones(3))
        assert host[1].tolist() == [1.0] * 3
        host[...] = 0
    assert states(fn) == {'eager'}
    own = twins(sim, lambda _cp: lambda x: x * x.get(out=np.zeros(3))[1], seq(1, 1, 1, 2, 2))
    assert 'recorded' in states(own)


# -- threads ----------------------------------------------------------------------------------------------------------


FEEDS = {'start': 'Thread.start()', 'submit': 'ThreadPoolExecutor.submit()', 'set': 'Condition.notify()'}


@pytest.mark.parametrize('how', FEEDS)
def test_threads_that_the_function_starts_or_feeds(sim: Any, how: str) -> None:
    done: list[int] = [0]
    event = threading.Event()

    def work() -> None:
        done[0] += 1

    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def fn(x: Any) -> Any:
            if how == 'start':
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
            elif how == 'submit':
                pool.submit(work).result()
            else:
                event.set()
            return x * 2

        graphed = ck.graphed(fn)
        for call in range(1, 5):
            graphed(sim.ones(3))
            assert event.is_set() if how == 'set' else done[0] == call
            event.clear()
        noted = ck.rehearse(fn, sim.ones(3)).effects
        assert any(f'({FEEDS[how]}, at test_effects.py:' in effect for effect in noted), noted


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


def test_coroutines_and_generators(sim: Any) -> None:
    @ck.graphed
    async def later(x: Any) -> Any:
        return x * 2

    @ck.graphed
    def each(x: Any) -> Any:
        for n in range(3):
            yield x * n

    for v in range(4):
        assert asyncio.run(later(sim.full(2, v))).get().tolist() == [2 * v] * 2
        assert [one.get().tolist() for one in each(sim.full(2, v))] == [[v * n] * 2 for n in range(3)]
    assert states(later) == states(each) == {'eager'}


def test_copies_and_pickles_are_the_function(sim: Any) -> None:
    doubled(sim.ones(3))
    assert copy.deepcopy({'fn': doubled})['fn'] is doubled is copy.copy(doubled)
    assert pickle.loads(pickle.dumps(doubled)) is doubled
    doubled.clear()


def test_defaults_are_the_functions(sim: Any) -> None:
    def make(_cp: Any) -> Any:
        def fn(x: Any, k: float = 2.0) -> Any:
            return x * k

        return fn

    fn = ck.graphed(make(sim))
    for k in (2.0, 5.0):
        fn.__defaults__ = (k,)
        for _ in range(3):
            assert fn(sim.ones(2)).get().tolist() == [k, k]


# -- not needlessly eager, and said -----------------------------------------------------------------------------------


def columns(cp: Any, v: float) -> Any:
    xy = cp.arange(12.0).reshape(6, 2) + v
    return xy[:, 0], xy[:, 1]


def neighbours(cp: Any, v: float) -> Any:
    x = cp.arange(8.0) + v
    return x[1:], x[:-1]


@pytest.mark.parametrize('views', [columns, neighbours])
@pytest.mark.parametrize('write', [False, True])
def test_arguments_that_share_memory_are_recorded(sim: Any, views: Any, write: bool) -> None:
    def make(_cp: Any) -> Any:
        def fn(a: Any, b: Any) -> Any:
            if write:
                b += a
            return a - 2 * b

        return fn

    fn = twins(sim, make, [lambda cp, v=v: views(cp, v) for v in range(5)])  # type: ignore[misc]
    assert states(fn) == {'recorded'}


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
    assert len(said) == 1 and 'step has another value at nearly each call' in said[0], said


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


def test_functions_that_have_the_same_code(sim: Any) -> None:
    """Nothing in a frame tells which of them runs, where no closure does: all are watched."""

    def keyword(value: float) -> Callable[[], float]:
        return lambda *, given=value: given

    first, second = keyword(2.0), keyword(3.0)

    def other() -> Callable[[], float]:
        return second

    fn = ck.graphed(lambda x: x * first() * other()())
    found = []
    for call in range(8):
        if call == 4:
            second.__kwdefaults__ = {'given': 5.0}
        found.append(float(fn(sim.ones(1))[0]))
    assert found == [6.0] * 4 + [10.0] * 4
    assert [variant.state for variant in fn.variants] == ['recorded', 'recorded']
