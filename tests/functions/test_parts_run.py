"""Parts of a function run while it is recorded, if the host makes a call between two: on what the caller left there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall

CALLS = 6


def test_what_parts_wrote_is_put_back(sim: Any) -> None:
    """With ``pure=True`` nobody knows which arrays the function reaches: it is not recorded, and they change once."""

    def changes(over: Callable[[Any], Any]) -> tuple[list[Any], Any]:
        kept, other = sim.zeros(5), sim.zeros(6)[1:]

        def step(x: Any) -> Any:
            kept[...] += x
            values = sim.linalg.eigvalsh(sim.outer(x, x) + sim.eye(5))
            other[...] += values
            more = sim.linalg.eigvalsh(sim.outer(x, x))
            return kept * 2 + more

        fn, found = over(step), []
        for n in range(CALLS):
            fn(sim.arange(5.0) + n)
            found.append([kept.get().tolist(), other.get().tolist()])
        return found, fn

    wanted, _ = changes(lambda fn: fn)
    found, fn = changes(lambda fn: ck.graphed(fn, pure=True))
    assert found == wanted
    assert 'reaches arrays in a way that is not followed' in fn.variants[0].reason


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('check', [False, True])
def test_they_come_after_work_on_another_device(seed: int, check: bool) -> None:
    """The caller waits for nothing. Its work there and the call's are ordered by the null streams of both devices."""

    def told(over: Callable[[Any], Any]) -> list[Any]:
        install(SimulatedDevice(seed, devices=2), late=True)
        try:
            cp: Any = sys.modules['cupy']
            with cp.cuda.Device(1):
                kept, seen = cp.zeros(5), cp.zeros((CALLS, 5))
                cp.cuda.Device().synchronize()

            def step(x: Any) -> Any:
                here = cp.cuda.get_current_stream().record()
                with cp.cuda.Device(1):
                    cp.cuda.get_current_stream().wait_event(here)
                    kept[...] += cp.asarray(x)
                    values = cp.linalg.eigvalsh(cp.outer(kept, kept) + cp.eye(5))
                    kept[...] += values * 1e-3
                    if float(kept.sum()) > 40:
                        kept[...] *= 0.25
                    there = cp.cuda.get_current_stream().record()
                cp.cuda.get_current_stream().wait_event(there)
                return x + 1

            fn = over(step)
            for n in range(CALLS):
                with cp.cuda.Device(1):
                    seen[n] = kept
                    for _ in range(3):
                        kept[...] = kept * 0.5 + n
                fn(cp.arange(5.0) + n)
            with cp.cuda.Device(1):
                return list(seen.get().tolist())
        finally:
            uninstall()

    assert told(lambda fn: ck.graphed(fn, check=check)) == told(lambda fn: fn)


@pytest.mark.parametrize('seed', range(3))
def test_a_comparison_waits_for_both_devices(seed: int) -> None:
    """The copies that the eager run begins with are there before it begins, on whatever stream it works."""
    install(SimulatedDevice(seed, devices=2), late=True)
    try:
        cp: Any = sys.modules['cupy']
        with cp.cuda.Device(1):
            side, kept = cp.cuda.Stream(non_blocking=True), cp.zeros(5)

        def step(x: Any) -> Any:
            with cp.cuda.Device(1), side:
                kept[...] += cp.asarray(x)
                y = kept * 2
            side.synchronize()
            return cp.asarray(y) + x

        fn = ck.graphed(step, check=True)
        for n in range(CALLS):
            x = cp.arange(5.0) + n
            for device in (0, 1):
                with cp.cuda.Device(device):
                    cp.cuda.Device().synchronize()
            fn(x)
        assert fn.variants[0].launches == CALLS - 1, fn.variants[0].reason
    finally:
        uninstall()


def test_numbers_drawn_for_parts_are_drawn_once(sim: Any) -> None:
    """Also where it turns out behind the last part that the function can't be recorded."""

    def told(over: Callable[[Any], Any]) -> list[Any]:
        kept, random = sim.zeros(5), sim.random.RandomState(3)

        def step(x: Any) -> Any:
            kept[...] += x
            values = sim.linalg.eigvalsh(sim.outer(x, x) + sim.diag(random.random_sample(5)))
            return values + random.random_sample(5) + kept

        fn = over(step)
        return [fn(sim.arange(5.0) + n).get().tolist() for n in range(CALLS)]

    assert told(lambda fn: ck.graphed(fn, pure=True)) == told(lambda fn: fn)
