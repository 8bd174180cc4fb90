"""A launch of a graphed function that an exception ends, before it has reached the device or behind it.

The calls after it write the rows of the table that the device reads then, and not those beside them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.graphed import argument_slots, variant_recorder
from capturekit.guard import GUARD
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    'one': lambda x, y: x * 2,
    'two': lambda x, y: [x * 2, y + x],
    'a read that is checked': lambda x, y: x * (float(y[0]) + 2),
    'in place': lambda x, y: x.__iadd__(y),
}


def no_memory() -> BaseException:
    return CudaCallError(Code.cudaErrorMemoryAllocation, 'graphLaunch')


def flat(result: Any) -> list[Any]:
    several = result if isinstance(result, (list, tuple)) else [result]
    return [np.asarray(one.get() if hasattr(one, 'get') else one) for one in several]


def equal(result: Any, host: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(flat(result), host))


@pytest.fixture
def failing(sim: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], BaseException], bool], list[int]]:
    """Let one launch raise, before or after it has reached the device: that which the list tells by its number."""

    def made(error: Callable[[], BaseException], reached: bool) -> list[int]:
        device, left = current().device, [0]
        launch = device.graph_launch

        def fails(*args: Any) -> None:
            left[0] -= 1
            if reached or left[0]:
                launch(*args)
            if not left[0]:
                raise error()

        monkeypatch.setattr(device, 'graph_launch', fails)
        return left

    return made


@pytest.mark.parametrize('name', FUNCTIONS)
@pytest.mark.parametrize('error', [no_memory, KeyboardInterrupt])
@pytest.mark.parametrize('reached', [False, True])
def test_calls_after_a_launch_that_failed(sim: Any, failing: Any, name: str, error: Any, reached: bool) -> None:
    fn, left = FUNCTIONS[name], failing(error, reached)
    step, results = ck.graphed(pure=True)(fn), []
    for number in range(9):
        x, y = sim.arange(4.0) + number, sim.arange(4.0) * number
        left[0] = number in (4, 6)
        host = flat(fn(x.copy(), y.copy()))
        with contextlib.suppress(RuntimeError, KeyboardInterrupt):  # a call whose checks failed is answered eagerly
            results.append((step(x, y), host))
    assert len(results) >= 7 and all(equal(result, host) for result, host in results)
    assert [variant.state for variant in step.variants] == ['recorded']


@pytest.mark.parametrize('name', ['one', 'two'])
def test_ctrl_c_while_a_row_is_waited_for(sim: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """There the host waits where the device is far behind."""
    waiting: list[int] = []

    def free(_ports: Any, launch: int, _synchronize: Any) -> None:
        waiting.append(launch)
        if len(waiting) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(argument_slots.Ports, 'free', free)
    monkeypatch.setattr(variant_recorder, '_AHEAD', -1)  # each call looks how far the device is
    fn, right = FUNCTIONS[name], []
    step = ck.graphed(pure=True)(fn)
    for number in range(8):
        x, y = sim.arange(4.0) + number, sim.arange(4.0) * number
        try:
            right.append((step(x, y), flat(fn(x, y))))
        except KeyboardInterrupt:
            assert len(waiting) == 3
    assert len(right) == 7 and all(equal(got, host) for got, host in right)


def asked_in_vain(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise CudaCallError(Code.cudaErrorMemoryAllocation, 'deviceSynchronize')

    monkeypatch.setattr(device, 'device_synchronize', refuses)


def beside_a_capture(_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread has one open, which a question to the device would lose."""
    monkeypatch.setattr(GUARD.waits, 'unless_captured', lambda driver: False)


@pytest.mark.parametrize('why', [asked_in_vain, beside_a_capture])
@pytest.mark.parametrize('name', ['one', 'two', 'in place'])
@pytest.mark.parametrize('reached', [False, True])
def test_where_the_device_can_not_tell(sim: Any, name: str, reached: bool, why: Any) -> None:
    """Later calls run eagerly, and explain() says why; the exception of the launch arrives."""
    fn, device = FUNCTIONS[name], current().device
    step = ck.graphed(pure=True)(fn)
    for number in range(4):
        step(sim.arange(4.0) + number, sim.arange(4.0))
    with pytest.MonkeyPatch.context() as patch:
        launch = device.graph_launch

        def fails(*args: Any) -> None:
            if reached:
                launch(*args)
            why(device, patch)
            raise KeyboardInterrupt

        patch.setattr(device, 'graph_launch', fails)
        with pytest.raises(KeyboardInterrupt):
            step(sim.arange(4.0), sim.arange(4.0))
    (variant,) = step.variants
    assert variant.state == 'eager' and 'could not be asked whether it has begun' in variant.reason
    for number in range(3):
        x, y = sim.arange(4.0) + number, sim.arange(4.0) * number
        expected = flat(fn(x.copy(), y.copy()))
        assert equal(step(x, y), expected)


class Model:
    """What functions keep between calls: a count on the host, and weights on the device, changed in place."""

    def __init__(self, cp: Any) -> None:
        self.cp, self.count, self.w = cp, 0, cp.zeros(3)

    def in_place(self, x: Any) -> Any:
        self.count += 1
        self.w += x
        return self.w * 2

    def checked(self, x: Any) -> Any:
        self.count += 1
        self.w += x
        if float(self.w[0]) > 1e9:
            return x
        self.w *= 1
        return self.w * 2

    def in_pieces(self, x: Any) -> Any:
        self.count += 1
        self.w += x
        values = self.cp.linalg.eigh(self.cp.outer(x, x))[0]
        self.w *= 1
        return values


@pytest.mark.parametrize('name', ['in_place', 'checked', 'in_pieces'])
@pytest.mark.parametrize('error', [no_memory, KeyboardInterrupt])
@pytest.mark.parametrize('reached', [False, True])
@pytest.mark.parametrize('number', [1, 2])
def test_nothing_is_done_twice_or_undone_twice(
    sim: Any, failing: Any, name: str, error: Any, reached: bool, number: int
) -> None:
    """One launch of a call raises, before or after it has reached the device."""
    model, left = Model(sim), failing(error, reached)
    step = ck.graphed(getattr(model, name))
    for call in range(10):
        count, w = model.count, float(model.w[0])
        left[0] = number if call in (5, 7) else 0
        try:
            step(sim.ones(3))
            done = 1
        except (RuntimeError, KeyboardInterrupt):
            done = 0
            assert call in (5, 7)
        left[0] = 0
        assert model.count == count + done
        # what has begun and can't be undone is done once: it has no check or call behind it
        assert float(model.w[0]) == w + (1 if done or (reached and name == 'in_place') else 0)
    assert step.variants[0].launches > 0
