"""Numbers that launches compute with, beside other threads, interrupts and profilers; what is said of them.

Programs that compute with numbers are in ``tests/corpus/numbers.txt`` and ``numbers_kept.txt``.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.graphed import call_turns
from capturekit.graphed.outcomes import FunctionPlace
from capturekit.graphed.read_numbers import NumberSlots
from capturekit.graphed.recorded_number import taking_numbers
from tests.captured import launches
from tests.twins import plain

FLOATS = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1.0, 0.1, 1e300, math.inf, math.nan])
NUMBERS = st.one_of(
    st.lists(FLOATS, min_size=8, max_size=8),
    st.lists(st.integers(-(2**31), 2**31) | st.integers(-9, 9), min_size=8, max_size=8),
)
OPERATIONS = ('x + n', 'n - x', 'x * n', 'x / n', 'x < n', 'n == x', 'x // n', 'x % n', 'x**n', '(x * n) * (n / 3)')


def both(cp: Any, fn: Callable[..., Any], calls: list[tuple[Any, Any]]) -> Any:
    """Compare a function with itself graphed, call by call, bit by bit; return the graphed one."""
    graphed = ck.graphed(fn)
    for array, number in calls:
        mine, theirs = cp.array(array), cp.array(array)
        assert plain((_tried(graphed, theirs, number), theirs), cp) == plain((_tried(fn, mine, number), mine), cp)
    return graphed


def _tried(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return type(error).__name__, str(error)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(OPERATIONS), st.sampled_from('?bBhHiIqQefdFD'), NUMBERS)
@pytest.mark.filterwarnings('ignore::RuntimeWarning')
def test_every_bit_is_as_eager(cp: Any, text: str, dtype: str, numbers: list[Any]) -> None:
    work = eval(f'lambda x, n: {text}')
    both(cp, work, [(np.array([0, 1, 2, 3, 100, 127]).astype(dtype), number) for number in numbers])


STEPS: list[tuple[Any, Any]] = [(np.arange(1.0, 7.0), 0.1 * n) for n in range(1, 11)]
#: What a graph does not follow a number through.
REFUSED: list[Callable[[Any, Any], Any]] = [
    lambda x, step: x * step if step else x,
    lambda x, step: (x + step).clip(0, step),
    lambda x, step: (x * step, f'{step}'),
    lambda x, step: x * {step: 2.0}[step],
    lambda x, step: x * step.real,
    lambda x, step: (lambda: x * step)(),
    lambda x, step: x * len(locals()),
    lambda x, step: x.astype('f2') * step,
]


@pytest.mark.parametrize('work', REFUSED)
def test_a_number_that_is_not_followed_has_a_reason(sim: Any, work: Callable[[Any, Any], Any]) -> None:
    graphed = both(sim, work, STEPS[:7])
    assert re.search('more is done with it than arithmetic|it meets an array as float16', graphed.numbers.reason)
    assert graphed.numbers.positions == () and launches(graphed) == 0


def test_numbers_are_explained_and_told_of(
    sim: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    both(sim, lambda x, step: x * step, STEPS).explain()
    assert 'numbers that each call brings to the graph: argument 1' in capsys.readouterr().out
    with caplog.at_level(logging.WARNING, 'capturekit'):
        both(sim, lambda x, step: x * round(step, 3), [(STEPS[0][0], 0.1 * n) for n in range(1, 40)]).explain()
    assert 'numbers that are a part of the kind: A number among the arguments can' in capsys.readouterr().out
    (said,) = [record.getMessage() for record in caplog.records]
    assert 'step has another value at nearly each call' in said
    assert 'can not be followed: more is done with it than arithmetic' in said and 'test_numbers_computed.py:' in said
    fn = ck.graphed(lambda x: x * x.max().item())
    for number in range(5):
        fn(sim.ones(3) * number)
    fn.explain()
    told = 'called by the host at each launch: a number that is read at test_numbers_computed.py'
    assert told in capsys.readouterr().out


@pytest.mark.parametrize('draws', [False, True])
def test_the_first_launches_are_compared(cp: Any, monkeypatch: pytest.MonkeyPatch, draws: bool) -> None:
    """A fault in how numbers reach the graph gives the eager answer, and numbers are parts of the kind from then on."""
    fill = NumberSlots.fill
    monkeypatch.setattr(NumberSlots, 'fill', lambda slots, target, values: fill(slots, target, [v + 1 for v in values]))

    def work(x: Any, step: Any) -> Any:
        x += x * step
        return x * 2 + (cp.random.random_sample(x.shape) if draws else 0)

    found = []
    for fn in (work, ck.graphed(work)):
        cp.random.seed(3)
        found.append([*[fn(cp.array(x), step).tolist() for x, step in STEPS], cp.random.random_sample(2).tolist()])
    assert found[0] == found[1]
    assert 'differs' in fn.numbers.reason  # type: ignore[attr-defined]


def test_a_profiler_that_is_on_is_left_alone(sim: Any) -> None:
    seen = []
    fn = ck.graphed(lambda x: x * x.max().item())
    sys.setprofile(lambda *event: seen.append(event[1]))
    try:
        for number in range(6):
            assert fn(sim.ones(2) * number).get().tolist() == [number**2] * 2
        assert seen and sys.getprofile() is not None
    finally:
        sys.setprofile(None)


# -- what stands in the place of functions while calls are recorded --------------------------------------------------


class Interrupted(dict[str, Any]):
    """A module's globals; Ctrl-C comes as something is put there."""

    def setdefault(self, *_: Any) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_leaves_no_other_object_in_a_module() -> None:
    """It comes after the first place was taken, and before the recording has begun."""
    first: dict[str, Any] = {'sqrt': math.sqrt}
    places = [FunctionPlace(first, 'sqrt', math.sqrt), FunctionPlace(Interrupted(), 'float', float)]
    with pytest.raises(KeyboardInterrupt), taking_numbers(None, places):  # type: ignore[arg-type]
        raise AssertionError('it began')
    assert first == {'sqrt': math.sqrt}
    with taking_numbers(None, places[:1]):  # type: ignore[arg-type]
        assert first['sqrt'] is not math.sqrt
    assert first == {'sqrt': math.sqrt}


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[list[threading.Thread]]:
    """Another thread does this again and again."""
    ends = threading.Event()

    def again() -> None:
        while not ends.is_set():
            work()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield [thread]
    finally:
        ends.set()
        thread.join()


#: A module's text, what another thread does with it, and what that gives as long as nothing is seen to stand there.
MEANWHILE = {
    'asks for the type': (
        'def other(y): return isinstance(y, float), type(y) is float, float("2.5"), float(y)',
        'x * float(x.sum())', (True, True, 2.5, 1.5),
    ),
    'calls it': ('def other(y): return float(y), float("1e3")', 'x * float(x.sum())', (1.5, 1e3)),
    'calls math': (
        'def other(y): return math.sqrt(2.25), math.hypot(3, 4), math.isnan(y)', 'x * math.sqrt(x.sum().item() ** 2)',
        (1.5, 5.0, False),
    ),
}  # fmt: skip


@pytest.mark.parametrize('what', MEANWHILE)
def test_other_threads_find_what_they_know(sim: Any, what: str) -> None:
    other, text, wanted = MEANWHILE[what]
    space: dict[str, Any] = {'math': math}
    exec(f'{other}\ndef work(x): return {text}\n', space)
    wrong: list[Any] = []

    def look() -> None:
        if not wrong and (found := space['other'](1.5)) != wanted:
            wrong.append(found)

    with beside(look):
        for _ in range(6):
            fn = ck.graphed(types.FunctionType(space['work'].__code__, space))
            for number in range(6):
                x = sim.arange(3.0) + number
                assert fn(x).tolist() == (x * x.sum()).tolist()
    assert wrong == [] and 'float' not in space and space['math'] is math


@pytest.mark.parametrize(('code', 'launched'), [('math.pi * math.floor(x)', True), ('[math.pi, math.floor]', False)])
def test_code_that_names_constants_may_run_beside_threads(sim: Any, code: str, launched: bool) -> None:
    """All of the module's functions count where other threads run: one that keeps a function of ``math`` is the reason
    that the value is assumed."""
    space: dict[str, Any] = {'math': math}
    exec(f'def other(x): return {code}\ndef work(x): return x * math.sqrt(x.sum().item())\n', space)
    fn = ck.graphed(space['work'])
    with beside(lambda: threading.Event().wait(0.01)):
        for number in range(12):
            fn(sim.arange(3.0) + number)
    assert (launches(fn) >= 8) == launched


def test_a_thread_that_comes_before_the_recording(sim: Any) -> None:
    space: dict[str, Any] = {}
    exec('def kinds(y): return isinstance(y, float)\ndef work(x): return x * float(x.sum())\n', space)
    fn, ends = ck.graphed(space['work']), threading.Event()
    thread = threading.Thread(target=ends.wait)
    for number in range(12):
        if number == 1:  # the first run was watched without it
            thread.start()
            assert not call_turns.is_alone()
        x = sim.arange(3.0) + number
        assert fn(x).tolist() == (x * x.sum()).tolist() and space['kinds'](1.5)
    ends.set()
    thread.join()
    assert launches(fn) == 0
