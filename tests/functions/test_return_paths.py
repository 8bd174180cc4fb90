"""A call by ``f(*args)`` is seen to be of the function that it enters, also where Python hides what is between."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions import return_paths
from capturekit.functions.code_reads import plain_steps
from capturekit.functions.return_paths import ReturnPaths

FOUND: list[bool] = []


def note() -> None:
    """Note whether the function that calls this was called directly, as far as the calling code shows."""
    calls, frame = ReturnPaths(), sys._getframe(1)
    assert frame.f_back is not None
    caller = id(frame.f_back.f_code), frame.f_back.f_lasti
    calls.enters(caller, frame)
    FOUND.append(calls.is_direct(caller, frame.f_code))


def free(*args: Any, **named: Any) -> None:
    note()


class Way:
    def go(self, *args: Any, **named: Any) -> None:
        note()

    @staticmethod
    def plainly(*args: Any, **named: Any) -> None:
        note()

    @classmethod
    def of_class(cls, *args: Any) -> None:
        note()


def wrapped(function: Callable[..., None]) -> Callable[..., None]:
    def wrapper(first: Any, *args: Any, **named: Any) -> None:
        function(first, *args, **named)

    return wrapper


WAY, THERE, ARGS, NAMED = Way(), Way(), (1,), {'b': 2}
THERE.free = free  # type: ignore[attr-defined]


def of_a_global() -> None:
    free(*ARGS)


def with_more() -> None:
    free(1, *ARGS, **NAMED, c=3)


def of_a_method() -> None:
    WAY.go(*ARGS, **NAMED)


def of_a_static_method() -> None:
    Way.plainly(*ARGS)


def of_a_static_method_of_an_object() -> None:
    WAY.plainly(*ARGS, **NAMED)


def of_a_class_method() -> None:
    WAY.of_class(*ARGS)


def of_an_attribute() -> None:
    THERE.free(*ARGS)  # type: ignore[attr-defined]


DIRECT = [of_a_global, with_more, of_a_method, of_a_static_method, of_a_static_method_of_an_object, of_a_class_method,
          of_an_attribute]  # fmt: skip


def by_a_partial() -> None:
    functools.partial(free, 1)(*ARGS)


def by_map() -> None:
    list(map(free, *[ARGS]))


def by_a_class() -> None:
    Made(*ARGS)


class Made:
    def __init__(self, *args: Any) -> None:
        note()


def by_an_object() -> None:
    CALLED(*ARGS)


class Called:
    def __call__(self, *args: Any) -> None:
        note()


CALLED, HANDED = Called(), Way()
HANDED.free = functools.partial(free, 2)  # type: ignore[attr-defined]


def by_a_partial_under_its_name() -> None:
    HANDED.free(*ARGS)  # type: ignore[attr-defined]


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python not show what is between in such calls, as from 3.12.2 on."""
    FOUND.clear()
    shown = return_paths.was_called_directly

    def was_called_directly(frame: FrameType) -> bool:
        below = frame.f_back
        assert below is not None
        kinds = {step.offset: step.opname for step in plain_steps(below.f_code)}
        return shown(frame) and kinds.get(below.f_lasti) != 'CALL_FUNCTION_EX'

    monkeypatch.setattr(return_paths, 'was_called_directly', was_called_directly)


@pytest.mark.parametrize('call', DIRECT, ids=lambda one: one.__name__)
def test_what_is_called_is_found(hidden: None, call: Callable[[], None]) -> None:
    call()
    assert [sys.version_info >= (3, 11) or call in (of_a_global, with_more)] == FOUND  # 3.10 tells no line


@pytest.mark.parametrize('function', [free, WAY.go, Way.plainly])
def test_what_a_wrapper_calls_is_found(hidden: None, function: Callable[..., None]) -> None:
    wrapped(function)(1, 2, c=3)
    assert FOUND == [True]


@pytest.mark.parametrize('call', [by_a_partial, by_map, by_a_class, by_an_object, by_a_partial_under_its_name])
def test_others_between_are_no_direct_calls(hidden: None, call: Callable[[], None]) -> None:
    call()
    assert FOUND == [False]


SOLVER = """
def support(function):
    def wrapper(operator, *args, **named):
        return function(operator, *args, **named)
    return wrapper

class Solver:
    def norm(self, y): return float(cp.linalg.norm(y))
    def solve(self, y, count, **more):
        costs = []
        for number in range(count):
            costs.append(self.norm(y * (number + 1)))
        return y / 2, costs

@support
def solved(operator, y, count=3, **more):
    solver = Solver()
    return solver.solve(y, *[count], **more)

def work(x):
    return solved(None, x, count=2, **{})
"""


def test_numbers_are_followed_through_such_calls(sim: Any, hidden: None) -> None:
    """As in packages whose functions are decorated, where Python does not show these calls."""
    space: dict[str, Any] = {'cp': sim}
    exec(SOLVER, space)
    fn = ck.graphed(space['work'])
    for number in range(8):
        x = sim.arange(3.0) + number
        (y, costs), (y2, costs2) = fn(x), space['work'](x)
        assert y.tolist() == y2.tolist() and costs == costs2
    assert sum(variant.launches for variant in fn.variants) >= 6
