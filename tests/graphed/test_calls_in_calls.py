"""A destructor or a handler of signals may call a graphed function in the middle of a call of the same function."""

from __future__ import annotations

import gc
import math
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.graphed.call_turns import TURNS
from capturekit.model.cleanup import Uncollected
from capturekit.model.source_line import is_ours
from tests.captured import launches
from tests.twins import plain


class State:
    """What functions change."""

    def __init__(self) -> None:
        self.n = 0
        self.held: Any = None


def one_array(_state: State, x: Any) -> Any:
    return x * 2


def several(_state: State, x: Any) -> Any:
    return x * 2 + 1, x - 1


def checked(_state: State, x: Any) -> Any:
    return x * 2 if float(x.sum()) > 3 else x - 1


def reckoning(_state: State, x: Any) -> Any:
    v, w = x.sum().item(), float(x.max())
    return x * math.sqrt(abs(v)) + w, np.array([v, w])


def counting(state: State, x: Any) -> Any:
    state.n += 1
    return x + 1


def in_place(_state: State, x: Any) -> Any:
    x += 1
    return x * 2


class Once:
    """Calls a function once: when capturekit's own code has entered or left so many functions, also those in C.

    Python runs handlers and destructors there.
    """

    def __init__(self, after: int, call: Callable[[], Any]) -> None:
        self._left, self._call = after, call
        self.made = False

    def __enter__(self) -> Once:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _argument: Any) -> None:
        if (
            event not in ('call', 'return', 'c_return')
            or not is_ours(frame.f_code.co_filename)
            or _of_the_device(frame)
        ):
            return
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            self.made = True
            self._call()


def _of_the_device(frame: FrameType | None) -> bool:
    """Whether the simulated device runs code in the place of a kernel."""
    while frame is not None and 'simulated' not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


FUNCTIONS = [one_array, several, checked, reckoning, counting, in_place]


@pytest.mark.parametrize('other', [False, True], ids=['alike', 'of another kind'])
@pytest.mark.parametrize('function', FUNCTIONS, ids=lambda one: one.__name__)
def test_both_calls_are_right(sim: Any, function: Any, other: bool) -> None:
    state = State()
    fn: Any = ck.graphed(lambda x: function(state, x))
    numbers = [1.0, 5.0, 2.0, 7.0, 3.0, 4.0] * 3
    for number in numbers:
        fn(sim.asarray([number, 2.0, 3.0]))
        fn(sim.asarray([number, 2.0, 3.0, 1.0])) if other else None
    before, after, rounds = launches(fn), 0, 0
    while True:
        rounds += 1
        after += 1 if after < 60 else 3  # in the end one of three, for the time it takes
        x, y = (sim.asarray([after % most, 1.0, 0.5]) for most in (7, 5))
        y, found = sim.concatenate([y, y[:other]]), list[Any]()
        wanted = [(plain(function(State(), one), sim), plain(one, sim)) for one in (x.copy(), y.copy())]
        state.n = 0
        once = Once(after, lambda: found.append((plain(fn(y), sim), plain(y, sim))))  # noqa: B023
        with once:
            result = fn(x)
        if not once.made:
            break
        assert [(plain(result, sim), plain(x, sim)), found[0]] == wanted, after
        assert state.n == 2 * (function is counting), after
    assert after > 5 and launches(fn) > before + rounds // 2


def ends(call: Callable[[], Any]) -> bool:
    """Whether a call comes to its end, and does not wait for itself."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_a_call_may_begin_while_another_one_begins(sim: Any) -> None:
    fn: Any = ck.graphed(lambda x: x * 2)
    x = sim.asarray([1.0, 2.0])

    def call() -> None:
        with TURNS.alone():
            fn(x)

    assert ends(call)


def test_a_destructor_may_change_state_in_the_same_way(sim: Any) -> None:
    """It is that of an object which the launch takes out of an attribute."""
    outer, inner = State(), State()
    count: Any = ck.graphed(lambda x: counting(inner, x))

    @ck.graphed
    def put(x: Any) -> None:
        outer.held = x * 2

    x = sim.asarray([1.0, 2.0])

    class Held:
        def __del__(self) -> None:
            count(x)

    def call() -> None:
        for _ in range(4):
            count(x)
            put(x)
            outer.held = Held()
        put(x)

    assert ends(call) and inner.n == 4 + 4
    assert launches(put) == 4 and launches(count) >= 5


def test_a_destructor_may_hold_off_the_collector_again(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    enable = gc.enable

    def enabled() -> None:
        monkeypatch.setattr(gc, 'enable', enable)
        enable()
        with Uncollected():
            assert not gc.isenabled()

    def hold() -> None:
        with Uncollected():
            pass

    monkeypatch.setattr(gc, 'enable', enabled)
    assert ends(hold) and gc.isenabled()


@pytest.mark.parametrize('function', [one_array, checked], ids=lambda one: one.__name__)
def test_what_is_dropped_in_a_call_ends_after_it(sim: Any, function: Any) -> None:
    fn: Any = ck.graphed(lambda x: function(State(), x))
    x = sim.asarray([1.0, 2.0, 3.0])
    after, launched = 0, 0
    while after < 60:
        after += 1
        for _ in range(3):
            wanted = plain(fn(x), sim)
        launched += launches(fn) > 0
        with Once(after, fn.clear) as once:
            assert plain(fn(x), sim) == wanted, after
        if not once.made:
            break
    assert after > 40 and launched == after
    gc.collect()
    fn.clear()
    assert fn.variants == []
