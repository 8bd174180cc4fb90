"""Numbers that are others at each call of a graphed function: the graph reads them, or they are a part of the kind."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from tests.twins import plain

STEPS = [0.1 * n for n in range(1, 11)]


def both(cp: Any, fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], **options: Any) -> Any:
    """Compare a function with itself graphed, call by call, bit by bit; return the graphed one."""
    graphed = ck.graphed(fn, **options)
    for call in calls:
        mine, theirs = ([cp.array(a) if isinstance(a, np.ndarray) else a for a in call] for _ in range(2))
        found, wanted = tried(graphed, theirs), tried(fn, mine)
        assert plain((found, theirs), cp) == plain((wanted, mine), cp), call
    return graphed


def tried(fn: Callable[..., Any], args: list[Any]) -> Any:
    try:
        return fn(*args)
    except RecursionError:
        return 'RecursionError'  # its text depends on where the limit is met
    except Exception as error:
        return type(error).__name__, str(error)


def follows(graphed: Any, launches: int = 4) -> bool:
    """Whether one graph has answered nearly all calls."""
    (first, *_) = graphed.variants
    return first.state == 'recorded' and first.launches >= launches and not graphed.numbers.reason


X = np.arange(1.0, 7.0).reshape(2, 3)


def in_place(x: Any, step: float) -> None:
    x -= step


def many_times(x: Any, step: float) -> list[Any]:
    found = []
    for _ in range(40):
        found.append(x * step)
    return found


def by_steps(x: Any, step: float, scale: float = 2.0) -> Any:
    half = step * 0.5
    rest = 1 - half
    for _ in range(3):
        half = half * rest
    return x * half + rest / scale - step


FOLLOWED: dict[str, Callable[..., Any]] = {
    'one product': lambda x, step: x * step,
    'from the left': lambda x, step: step - x,
    'computed in Python first': lambda x, step: x * (1 - step) + step**2 / x,
    'with another constant': lambda x, step: (x - 2 * step) / (step + 3),
    'in place': in_place,
    'compared with an array': lambda x, step: (x > step, step <= x, x == step),
    'many times': many_times,
    'by steps': by_steps,
    'a remainder and a power': lambda x, step: (x % step, x // step, x**step, step**x),
    'negative': lambda x, step: x + -step,
    'not used': lambda x, step: x + 1,
    'before a sum': lambda x, step: (x * step).sum(axis=0),
    'in an argument of a function': lambda x, step: abs(x * step) + min(3, 2),
    'beside a host read': lambda x, step: x * step if float(x.sum()) > 3 else x,
}


@pytest.mark.parametrize('name', FOLLOWED)
def test_a_number_that_changes_is_read_by_the_graph(cp: Any, name: str) -> None:
    assert follows(both(cp, FOLLOWED[name], [(X, step) for step in STEPS]))


def kept(x: Any, step: float) -> Any:
    return (lambda: x * step)()


def tried_first(x: Any, step: float) -> Any:
    try:
        scale = round(step)
    except Exception:
        scale = 1
    return x * scale


own_locals = locals


def by_another_name(x: Any, step: float) -> Any:
    return x * step + len(own_locals())


class Scaled:
    """Something that goes by the value of what it is multiplied with."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __mul__(self, factor: float) -> Any:
        return self.x * 0 if isinstance(factor, float) and factor > 0.65 else self.x * factor

    def __iadd__(self, other: float) -> Any:
        self.x = [self.x, other][0]
        return self


def scaled(x: Any, step: float) -> Any:
    return Scaled(x) * step


def gathered(x: Any, step: float) -> Any:
    found = Scaled(x)
    found += step
    return found.x * 2


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    'the truth': (lambda x, step: x * step if step else x, 'not understood|bool'),
    'a function of CuPy': (lambda x, step: (x + step).clip(0, step), 'given to a function'),
    'its type': (lambda x, step: x * step if isinstance(step, float) else x, 'given to a function'),
    'a text': (lambda x, step: (x * step, f'{step}'), 'FORMAT'),
    'a key': (lambda x, step: x * {step: 2.0}[step], 'BUILD_MAP'),
    'a sum of floats': (lambda x, step: x * sum([step, 0.1, step]), 'BUILD_LIST'),
    'identity': (lambda x, step: x * step if step is not x else x, 'IS_OP'),
    'an attribute': (lambda x, step: x * step.real, 'LOAD_ATTR'),
    'another function': (kept, 'inside of it uses step'),
    'locals': (lambda x, step: x * len(locals()), 'uses locals'),
    'an exception that is caught': (tried_first, 'has a try'),
    'locals by another name': (by_another_name, 'uses locals'),
    'an operator of a class': (scaled, 'code that is not followed|code outside of the function'),
    'an operator that keeps it': (gathered, 'another exception|catches the refusal|operator of another class'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_a_number_that_decides_is_a_part_of_the_kind(cp: Any, name: str) -> None:
    fn, why = REFUSED[name]
    graphed = both(cp, fn, [(X, step) for step in STEPS[:7]])
    assert re.search(why, graphed.numbers.reason), graphed.numbers.reason
    assert graphed.numbers.positions == ()
    assert all(not variant.launches for variant in graphed.variants)


def test_python_computes_again_what_meets_no_array(cp: Any) -> None:
    def fn(x: Any, step: float) -> Any:
        scale = 1 / step
        return x * scale if float(x.sum()) > 0 else x + 1

    assert follows(both(cp, fn, [*((-X, step) for step in STEPS), (-X, 0.0), (X, 0.0), (-X, 0.3)]), 3)


def test_a_keyword_that_is_no_parameter_is_left_alone(cp: Any) -> None:
    def fn(x: Any, step: float, /, **more: float) -> Any:
        return x * step if more['step'] > 0.65 else x + step

    graphed = ck.graphed(fn)
    x = cp.array(X)
    for step in STEPS:
        np.testing.assert_array_equal(graphed(x, 2.0, step=step).get(), fn(x, 2.0, step=step).get())
    assert re.search('in \\*args|code that is not followed', graphed.numbers.reason)


def test_arrays_on_the_left_with_operators_of_their_own(cp: Any) -> None:
    class Halving(cp.ndarray):  # type: ignore[misc, name-defined]
        def __mul__(self, other: Any) -> Any:
            return cp.asarray(self) * (0 if isinstance(other, float) and other > 0.85 else 1)

    both(cp, lambda x, step: x.view(Halving) * step, [(X, step) for step in STEPS])


def test_an_exception_of_the_recorded_value_is_no_way_to_go(cp: Any) -> None:
    calls = [(X, step) for step in (4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 5.0, 6.0)]
    both(cp, lambda x, step: x * (1 / step), calls)
    assert follows(both(cp, lambda x, n: x * (n * 10**5000 // 10**5000), [(X, n) for n in range(1, 11)]))


def test_what_is_computed_may_become_another_type(cp: Any) -> None:
    assert follows(both(cp, lambda x, n: x * (2**n), [(X, n) for n in (*range(12), -2, 3)]))

    def root(x: Any, step: float) -> Any:
        half = step**0.5
        return x * 2 + half * 0

    assert follows(both(cp, root, [(X, step) for step in (*STEPS, -4.0, 0.3)]))


def test_long_arithmetic_is_left_alone(cp: Any) -> None:
    def long(x: Any, step: float) -> Any:
        for _ in range(400):
            step = step * 0.999
        return x * step

    def doubling(x: Any, step: float) -> Any:
        for _ in range(60):
            step = step * 0.5 + step * 0.25
        return x * step

    assert both(cp, long, [(X, step) for step in STEPS]).variants[0].state == 'pieces'  # the host computes
    assert follows(both(cp, doubling, [(X, step) for step in STEPS]))


def test_arrays_with_operators_of_their_own_are_left_alone(cp: Any) -> None:
    class Doubling(cp.ndarray):  # type: ignore[misc, name-defined]
        def __radd__(self, other: Any) -> Any:
            return (cp.asarray(self) * 2 + other).view(cp.ndarray)

    def fn(x: Any, step: float) -> Any:
        return cp.asarray(step + x.view(Doubling)) * 2

    calls = [(X * 0, step) for step in STEPS] + [(X, 0.3), (X, 0.4)]
    assert 'it meets a Doubling' in both(cp, fn, calls).numbers.reason


def test_an_index_goes_on_as_a_part_of_the_kind(cp: Any) -> None:
    graphed = both(cp, lambda x, n: x[n] * 2, [(X, n % 2) for n in range(4)] + [(X, n % 2 - 2) for n in range(12)])
    states = [variant.state for variant in graphed.variants]
    assert states.count('recorded') == 4, [variant.reason for variant in graphed.variants]


def test_an_axis_that_stays_is_a_part_of_the_kind(cp: Any) -> None:
    graphed = both(cp, lambda x, step, axis: (x * step).sum(axis=axis), [(X, step, 1) for step in STEPS])
    assert follows(graphed) and graphed.numbers.positions == (1,)
    assert follows(both(cp, lambda x, step, axis: x.sum(axis=axis) * step, [(X, step, 0) for step in STEPS]))


def test_numbers_by_name(cp: Any) -> None:
    @ck.graphed
    def fn(x: Any, *, step: float, offset: int = 3) -> Any:
        return x * step + offset

    x = cp.array(X)
    for step in STEPS:
        np.testing.assert_array_equal(fn(x, step=step).get(), (x * step + 3).get())
    for offset in range(8):
        np.testing.assert_array_equal(fn(x, step=0.5, offset=offset).get(), (x * 0.5 + offset).get())
    assert fn.numbers.positions == ('offset', 'step')


def test_what_python_computes_may_fail(cp: Any) -> None:
    fn = FOLLOWED['with another constant']
    calls = [*STEPS, -3.0, math.inf, math.nan, 1e300, -0.0, 5e-324, 2.0]
    assert follows(both(cp, fn, [(X, step) for step in calls]), 10)
    inverse = both(cp, lambda x, step: x * (1 / step), [(X, step) for step in (*STEPS, 0.0, 2.0)])
    assert follows(inverse), 'a division by zero is raised, and the graph goes on'


def test_numbers_that_do_not_fit_run_eagerly(cp: Any) -> None:
    small = np.arange(3, dtype='int8')
    graphed = both(cp, lambda x, n: x + n, [(small, n) for n in (*range(12), 200, -300, 10**30, 5)])
    assert follows(graphed)
    wide = both(cp, lambda x, n: x + n, [(X.astype('f4'), n) for n in (*range(12), 2**24 + 1, 2**60 + 1, 7)])
    assert follows(wide)


def test_another_type_is_another_kind(cp: Any) -> None:
    graphed = both(cp, lambda x, n: x + n, [(np.arange(3), n) for n in (*range(8), *STEPS, True, np.float64(2), 1j)])
    assert sorted(variant.launches > 2 for variant in graphed.variants if variant.state == 'recorded') == [True] * 2


def test_half_precision_is_left_alone(cp: Any) -> None:
    assert 'float16' in both(cp, lambda x, step: x * step, [(X.astype('f2'), s) for s in STEPS]).numbers.reason


def test_numbers_beside_calls_of_the_host(cp: Any) -> None:
    graphed = both(cp, lambda a, step: cp.linalg.eigh(a * step)[0] * 2, [(np.eye(3), step) for step in STEPS])
    assert graphed.variants[0].state == 'pieces' and graphed.variants[0].launches >= 4


@pytest.mark.parametrize('options', [{'strict': True}, {'pure': True}, {'checks': 'later'}, {'check': 2}], ids=str)
def test_numbers_with_each_option(cp: Any, options: dict[str, Any]) -> None:
    def fn(x: Any, step: float) -> Any:
        return x * step if float(x.sum()) > 3 else x

    assert follows(both(cp, fn, [(X, step) for step in STEPS], **options))


def test_a_strict_function_goes_on_where_numbers_decide(cp: Any) -> None:
    graphed = both(cp, lambda x, step: x * round(step, 3), [(X, step) for step in STEPS[:7]], strict=True)
    assert 'given to' in graphed.numbers.reason


def test_launches_in_flight_have_numbers_of_their_own(cp: Any) -> None:
    fn = ck.graphed(lambda x, step: x * step)
    x = cp.array(X)
    found = [fn(x, float(n)) for n in range(20)]
    for n, array in enumerate(found):
        np.testing.assert_array_equal(array.get(), X * n)


def test_the_first_launches_are_compared(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in how numbers reach the graph gives the eager answer, and numbers are parts of the kind from then on."""
    from capturekit.functions.recorded_number import NumberSlots

    fill = NumberSlots.fill
    monkeypatch.setattr(NumberSlots, 'fill', lambda slots, target, values: fill(slots, target, [v + 1 for v in values]))
    graphed = both(cp, lambda x, step: x.__iadd__(x * step), [(X, step) for step in STEPS])
    assert 'differs' in graphed.numbers.reason


def test_the_eager_run_instead_draws_the_same_numbers(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from capturekit.functions.recorded_number import NumberSlots

    def drawn(work: Any) -> list[Any]:
        cp.random.seed(3)
        return [*[work(cp.array(X), step).tolist() for step in STEPS], cp.random.random_sample(2).tolist()]

    def work(x: Any, step: Any) -> Any:
        return cp.random.random_sample(x.shape) + x * step

    fill = NumberSlots.fill
    monkeypatch.setattr(NumberSlots, 'fill', lambda slots, target, values: fill(slots, target, [v + 1 for v in values]))
    graphed = ck.graphed(work)
    assert drawn(graphed) == drawn(work)
    assert 'differs' in graphed.numbers.reason


def test_what_is_said_where_numbers_decide(cp: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, 'capturekit'):
        both(cp, lambda x, step: x * round(step, 3), [(X, 0.1 * n) for n in range(1, 40)])
    (said,) = [record.getMessage() for record in caplog.records]
    assert 'step has another value at nearly each call' in said
    assert 'can not be followed: it is given to a function' in said


def test_explain_names_the_numbers(cp: Any, capsys: pytest.CaptureFixture[str]) -> None:
    both(cp, FOLLOWED['one product'], [(X, step) for step in STEPS]).explain()
    assert 'numbers that each call brings to the graph: argument 1' in capsys.readouterr().out
    both(cp, lambda x, step: x * round(step, 3), [(X, step) for step in STEPS]).explain()
    assert 'numbers that are a part of the kind: A number among the arguments can' in capsys.readouterr().out


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    '+': lambda x, n: x + n, '-': lambda x, n: n - x, '*': lambda x, n: x * n, '/': lambda x, n: x / n,
    '<': lambda x, n: x < n, '==': lambda x, n: n == x, '//': lambda x, n: x // n, '%': lambda x, n: x % n,
    '**': lambda x, n: x**n, 'in place': in_place, 'twice': lambda x, n: (x * n) * (n / 3),
}  # fmt: skip
FLOATS = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1.0, 0.1, 1e300, math.inf, math.nan])
NUMBERS = st.one_of(
    st.lists(FLOATS, min_size=8, max_size=8),
    st.lists(st.integers(-(2**31), 2**31) | st.integers(-9, 9), min_size=8, max_size=8),
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(OPERATIONS)), st.sampled_from('?bBhHiIqQefdFD'), NUMBERS)
@pytest.mark.filterwarnings('ignore::RuntimeWarning')
def test_every_bit_is_as_eager(cp: Any, name: str, dtype: str, numbers: list[Any]) -> None:
    x = np.array([0, 1, 2, 3, 100, 127]).astype(dtype)
    both(cp, OPERATIONS[name], [(x, number) for number in numbers])
