"""A call by ``f(*args)`` is seen to be of the function that it enters, also where Python hides what is between."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions import return_paths
from capturekit.functions.instructions import plain_steps
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
    assert FOUND == [True]


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


MADE_AT_THE_CALL = """
def first(x, more=0):
    if isinstance(x, cp.ndarray):
        return x[0].item()
    return 2.0 if isinstance(x, float) and x > 5 else 1.0

def second(*args):
    return 3.0 if isinstance(args[0], float) and args[0] > 5 else 1.0

class Once:
    def __init__(self, x): self.left = [x]
    def __iter__(self): return self
    def __next__(self):
        if not self.left:
            raise StopIteration
        return first(self.left.pop())

class Shown(tuple):
    def __iter__(self): return map(first, super().__iter__())

class Of:
    def first(self, x): return first(x)
    def second(self, x): return second(x)

OF = Of()

def work(x):
    found = map(first, [x])
    return x * {call}

def kept(x):
    found = map(first, [x])
    return x, {call}
"""
#: Calls that take their arguments from something else than a tuple: what they make of it first enters functions, too.
TAKEN_FIRST = (
    'first(*map(first, [x]))', 'second(*map(first, [x]))', 'first(*map(first, [x]), **{})', 'second(*found)',
    'first(*Once(x))', 'second(*Once(x))', 'second(*Shown((x,)))', 'OF.first(*map(OF.first, [x]))',
    'OF.second(*map(first, [x]))', 'first(x, *map(first, [x]))', 'second(*(first(one) for one in [x]))',
)  # fmt: skip


@pytest.mark.parametrize('work', ['work', 'kept'])
@pytest.mark.parametrize('call', TAKEN_FIRST)
def test_arguments_that_the_call_makes_a_tuple_of(sim: Any, call: str, work: str) -> None:
    """Functions that are entered then return to what makes the tuple, and not to the code that calls."""
    space: dict[str, Any] = {'cp': sim}
    exec(MADE_AT_THE_CALL.replace('{call}', call), space)
    fn = ck.graphed(space[work])
    for value in (1.5, 2.5, 0.5, 1.25, 2.25, 0.75, 9.5, 1.5):
        given, plain = fn(sim.arange(3.0) + value), space[work](sim.arange(3.0) + value)
        if work == 'work':
            assert given.tolist() == plain.tolist(), value
        else:
            assert given[1] == plain[1], value


def test_arrays_that_numpy_asks_for(sim: Any) -> None:
    """A function that NumPy dispatches computes with what ``__array__`` returns; it returns something else."""

    class Held:
        def __init__(self, x: Any) -> None:
            self.x = x

        def __array__(self, *args: Any, **named: Any) -> Any:
            return self.x.get()

    def chosen(x: Any) -> Any:
        return x, np.where(Held(x), 2, 3)

    fn = ck.graphed(chosen)
    for values in [[1.0, 2.0, 3.0 + number] for number in range(6)] + [[0.0, 1.0, 0.0], [4.0, 0.0, 1.0]]:
        x = sim.array(values)
        assert fn(x)[1].tolist() == chosen(x)[1].tolist(), values


def test_an_array_function_is_returned(sim: Any) -> None:
    """What ``__array_function__`` returns is returned as it is."""

    class Own:
        def __init__(self, x: Any) -> None:
            self.x = x

        def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
            return self.x.get()

    def chosen(x: Any) -> Any:
        return x, np.where(Own(x), 2, 3)

    fn = ck.graphed(chosen)
    for number in range(8):
        x = sim.arange(3.0) + number
        assert fn(x)[1].tolist() == chosen(x)[1].tolist()
    assert sum(variant.launches for variant in fn.variants) >= 6
