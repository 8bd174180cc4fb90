"""What kinds of calls keep in mind from call to call."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck
from capturekit.graphed import environment, faster_way
from capturekit.graphed.environment import Environment
from tests.graphed.test_faster_way import Clock

CALLS, SETTLED = 32, 8


class Steps:
    """A function whose eager way is not understood: it makes code."""

    def __init__(self) -> None:
        self.by = 2.0
        self.traced = True

    def __call__(self, x: Any) -> Any:
        return x * (eval('self.by') if self.traced else 3.0)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Environment]:
    """The comparisons that were made."""
    found: list[Environment] = []
    changed = Environment.changed

    def noted(self: Environment) -> str | None:
        found.append(self)
        return changed(self)

    monkeypatch.setattr(Environment, 'changed', noted)
    return found


def test_a_function_that_stays_eager_is_seldom_compared(
    sim: Any, compared: list[Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(30e-6, 30e-6)
    clock.fn = fn = ck.graphed(Steps())
    monkeypatch.setattr(faster_way, 'STOPWATCH', lambda _platform: clock)
    told = []
    for _ in range(CALLS):
        compared.clear()
        assert fn(sim.ones(2)).get().tolist() == [2.0, 2.0]
        told.append(bool(compared))
    (variant,) = fn.variants
    assert variant.state == 'eager' and not any(told[CALLS // 2 :])


def test_what_changes_is_seen_by_a_function_that_stays_eager(sim: Any) -> None:
    steps = Steps()
    fn = ck.graphed(steps)
    for number in range(CALLS):
        steps.by = float(number)
        assert fn(sim.ones(2)).get().tolist() == [number, number]
    steps.traced = False
    for _ in range(4):
        assert fn(sim.ones(2)).get().tolist() == [3.0, 3.0]
    assert [variant.state for variant in fn.variants] == ['recorded', 'eager']
    steps.traced = True
    for number in range(4):
        steps.by = float(number)
        assert fn(sim.ones(2)).get().tolist() == [number, number]


def test_values_that_come_back_are_found_by_a_quick_look(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function with a variant for each of two values is not compared closely with the other one at each call."""
    steps = Steps()
    steps.traced = False
    fn = ck.graphed(lambda x: x * (2.0 if steps.by else 4.0))
    close: list[Any] = []
    for number in range(4 * SETTLED):
        steps.by = bool(number // 2 % 2)
        if number == 2 * SETTLED:
            monkeypatch.setattr(environment, 'difference', lambda *given: close.append(given))
        assert fn(sim.ones(2)).get().tolist() == ([2.0, 2.0] if steps.by else [4.0, 4.0])
    assert [variant.state for variant in fn.variants] == ['recorded', 'recorded']
    assert sum(variant.launches for variant in fn.variants) >= 3 * SETTLED
    assert close == []
