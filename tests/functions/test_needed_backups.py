"""Arrays that a function reaches and does not use: the caller changes them while it is launched, and that stays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall

CALLS = 8


def told(over: Callable[[Any], Any], seed: int, device: int, seam: bool) -> list[Any]:
    """What the arrays of a list hold at the end, of which the function uses the first one, and what the caller saw."""
    install(SimulatedDevice(seed, devices=2), late=True)
    try:
        cp: Any = sys.modules['cupy']
        with cp.cuda.Device(device):
            side, other, seen = cp.cuda.Stream(non_blocking=True), cp.zeros(5), cp.zeros((CALLS, 5))
            cp.cuda.Device().synchronize()
        both = [cp.zeros(5), other]

        def step(x: Any) -> Any:
            both[0][...] += x
            if seam:
                both[0][...] += cp.linalg.eigvalsh(cp.outer(x, x) + cp.eye(5)) * 1e-3
            if float(both[0].sum()) > 60:
                both[0][...] = 0
            return both[0] * 2

        fn, results = over(step), []
        for n in range(CALLS):
            with cp.cuda.Device(device), side:
                for _ in range(4):
                    both[1][...] = both[1] * 0.5 + n
                seen[n] = both[1]
            results.append(fn(cp.arange(5.0) + n))
        for number in (0, 1):
            cp.cuda.Device(number).synchronize()
        with cp.cuda.Device(device):
            return [[one.tolist() for one in results], both[0].tolist(), both[1].get().tolist(), seen.get().tolist()]
    finally:
        uninstall()


@pytest.mark.parametrize('seam', [False, True])
@pytest.mark.parametrize('device', [0, 1])
@pytest.mark.parametrize('seed', range(2))
def test_what_the_caller_writes_stays(seed: int, device: int, seam: bool) -> None:
    made = []

    def over(fn: Any) -> Any:
        made.append(ck.graphed(fn))
        return made[-1]

    wanted = told(lambda fn: fn, seed, device, seam)
    assert told(over, seed, device, seam) == wanted
    assert sum(one.launches for one in made[0].variants) >= 2
