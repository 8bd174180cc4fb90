"""Code that times itself is recorded where no reading of the clock can get to the caller."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck


class Solver:
    """What many solvers look like: it notes when it began and how long it took."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.took = 0.0 if False else time.time()

    def run(self, x: Any) -> Any:
        self.begun = time.time()
        y = x * 2
        self.took = time.time() - self.begun
        return y

    def report(self) -> str:
        return f'{self.took}'


class StepByStep:
    def run(self, x: Any) -> Any:
        self.begun = time.time()
        y = x * 2
        self.ended = time.time()
        self.took = self.ended - self.begun
        self.again = self.took - self.took
        return y


def of_differences(x: Any) -> Any:
    return StepByStep().run(x)


def of_a_solver(x: Any) -> Any:
    return Solver().run(x)


class Timed:
    def __enter__(self) -> Timed:
        self.start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        end = self
        self.passed = time.monotonic() - end.start


def of_a_block(x: Any) -> Any:
    with Timed():
        return x * 2


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


@pytest.mark.skipif(sys.version_info < (3, 12), reason='which lines ran is known from Python 3.12 on')
@pytest.mark.parametrize('function', [of_a_solver, of_a_block, of_differences], ids=lambda f: f.__name__)
def test_times_that_nobody_sees(cp: Any, function: Callable[..., Any]) -> None:
    fn = ck.graphed(function)
    for number in range(5):
        assert fn(cp.full(2, float(number))).get().tolist() == [2.0 * number] * 2
    assert launches(fn) >= 3


class App:
    """A loop that keeps how long its steps took, in a list, under the name of a function of the module time."""

    def __init__(self) -> None:
        self.time: list[float] = [0]
        self.longest = 0.0

    def run(self, x: Any) -> Any:
        for _ in range(2):
            start = time.time()
            x = x * 2
            self.time.append(self.time[-1] + time.time() - start)
        return x


def of_an_app(x: Any) -> Any:
    return App().run(x)


def in_variables(x: Any) -> Any:
    begun = time.perf_counter()
    y = x * 2
    took = time.perf_counter() - begun
    both = [took, begun]  # noqa: F841
    return y


@pytest.mark.skipif(sys.version_info < (3, 12), reason='which lines ran is known from Python 3.12 on')
@pytest.mark.parametrize('function', [of_an_app, in_variables], ids=lambda f: f.__name__)
def test_times_in_lists_and_variables(cp: Any, function: Callable[..., Any]) -> None:
    fn = ck.graphed(function)
    for number in range(5):
        assert fn(cp.full(2, float(number))).get().tolist() == [(4.0 if function is of_an_app else 2.0) * number] * 2
    assert launches(fn) >= 3


def the_list_itself(x: Any) -> Any:
    app = App()
    return app.run(x), app.time


def the_last_of_the_list(x: Any) -> Any:
    app = App()
    return app.run(x), app.time[-1] - app.time[0]


def the_app_itself(x: Any) -> Any:
    app = App()
    app.run(x)
    return app


def on_the_device(x: Any) -> Any:
    begun = time.time()
    y = x * 2
    y += time.time() - begun
    return y


def compared(x: Any) -> Any:
    app = App()
    app.run(x)
    return x + 1 if app.time[-1] < 1000 else x


def by_another_list(x: Any) -> Any:
    app = App()
    times = app.time
    app.run(x)
    return x * 0 + times[-1]


LISTS: list[list[float]] = []


def in_a_list_that_stays(x: Any) -> Any:
    app = App()
    app.time = app.time if not LISTS else LISTS[-1]
    app.run(x)
    LISTS[:] = [app.time]
    return x


class Watched(App):
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == 'longest':
            SEEN[0] = value


SEEN = [0.0]


def by_a_setter(x: Any) -> Any:
    app = Watched()
    app.longest = time.time()
    return x * 0 + SEEN[0]


ELSEWHERE = [
    the_list_itself, the_last_of_the_list, the_app_itself, on_the_device, compared, by_another_list,
    in_a_list_that_stays, by_a_setter,
]  # fmt: skip


@pytest.mark.parametrize('function', ELSEWHERE, ids=lambda f: f.__name__)
def test_times_that_get_elsewhere(cp: Any, function: Callable[..., Any]) -> None:
    fn = ck.graphed(function)
    for number in range(4):
        fn(cp.full(2, float(number)))
    assert not launches(fn)


OLD = Solver()


def kept_by_an_old_object(x: Any) -> Any:
    return OLD.run(x)


def read_elsewhere(x: Any) -> Any:
    solver = Solver()
    y = solver.run(x)
    return y + 0 * len(solver.report())


def returned(x: Any) -> Any:
    solver = Solver()
    solver.run(x)
    return solver.took


def read_by_name(x: Any) -> Any:
    solver = Solver()
    y = solver.run(x)
    return y + 0 * getattr(solver, 'took')  # noqa: B009


def read_with_all(x: Any) -> Any:
    solver = Solver()
    y = solver.run(x)
    return y + 0 * sum(vars(solver).values())


def in_a_variable(x: Any) -> Any:
    begun = time.time()
    return x * 2 + 0 * begun


@dataclasses.dataclass
class Answer:
    value: Any
    begun: float = 0.0


def in_the_result(x: Any) -> Any:
    answer = Answer(x * 2)
    answer.begun = time.time()
    return answer


class WithSetter(StepByStep):
    @property
    def took(self) -> float:
        return 0.0

    @took.setter
    def took(self, value: float) -> None:
        self.hidden = value


def a_difference_through_a_property(x: Any) -> Any:
    one = WithSetter()
    return one.run(x) + 0 * one.hidden


def a_difference_that_is_read(x: Any) -> Any:
    one = StepByStep()
    return one.run(x) + 0 * one.again


class Property:
    @property
    def begun(self) -> float:
        return self._hidden_time

    @begun.setter
    def begun(self, value: float) -> None:
        self._hidden_time = value


def through_a_property(x: Any) -> Any:
    one = Property()
    one.begun = time.time()
    return x * 2 + 0 * one._hidden_time


class Sees:
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, 'seen', value)


def through_setattr(x: Any) -> Any:
    one = Sees()
    one.begun = time.time()  # type: ignore[attr-defined]
    return x * 2 + 0 * one.seen  # type: ignore[attr-defined]


@dataclasses.dataclass
class Compared:
    begun: float = 0.0


def compared(x: Any) -> Any:
    one, two = Compared(), Compared()
    one.begun = time.time()
    return x * 2 if one == two else x * 3


OTHERWISE = [
    kept_by_an_old_object, read_elsewhere, returned, read_by_name, read_with_all, in_a_variable, in_the_result,
    through_a_property, through_setattr, compared, a_difference_through_a_property, a_difference_that_is_read,
]  # fmt: skip


@pytest.mark.parametrize('function', OTHERWISE, ids=lambda f: f.__name__)
def test_times_that_may_be_seen_leave_it_eager(sim: Any, function: Callable[..., Any]) -> None:
    fn = ck.graphed(function)
    for _ in range(5):
        fn(sim.ones(2))
    assert launches(fn) == 0


def test_an_old_object_has_the_time_of_each_call(sim: Any) -> None:
    fn = ck.graphed(kept_by_an_old_object)
    times = []
    for _ in range(5):
        fn(sim.ones(2))
        times.append(OLD.begun)
    assert len(set(times)) == 5
