"""Ten steps of the heat equation: five points, in place between two plates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.benchmarks.workloads.way import InTorch, Results, Way, Workload, cupys, torchs

STEPS = 10
RATE = 0.2


def workloads(cp: Any, small: bool) -> Iterator[Workload]:
    for side in (12,) if small else (256, 2048):
        yield Stencil(cp, side)


def around(u: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The inner points and their four neighbours."""
    return u[1:-1, 1:-1], u[:-2, 1:-1], u[2:, 1:-1], u[1:-1, :-2], u[1:-1, 2:]


def spread(new: Any, here: Any, up: Any, down: Any, left: Any, right: Any) -> None:
    new[...] = here + RATE * (up + down + left + right - 4 * here)


def steps_by(spread: Callable[..., None]) -> Callable[..., None]:
    def heat(u: Any, v: Any) -> None:
        for old, new in [(u, v), (v, u)] * (STEPS // 2):
            spread(new[1:-1, 1:-1], *around(old))

    return heat


class Stencil(Workload):
    tolerance = 1e-5

    def __init__(self, cp: Any, side: int) -> None:
        self.cp = cp
        self.title = f'heat equation, {side} x {side}, {STEPS} steps'
        self.plate = np.zeros((side, side), 'f4')
        self.plate[0] = 100
        self.plate[side // 3 : side // 2, side // 4 : side // 2] = 50

    def reference(self) -> Results:
        u = self.plate.astype('f8')
        v = u.copy()
        for _ in range(self.calls):
            steps_by(spread)(u, v)
        return {'u': u}

    def ways(self) -> dict[str, Callable[[], Way]]:
        cp = self.cp
        return {
            **cupys(
                steps_by(spread),
                steps_by(cp.fuse()(spread)),
                lambda: (cp.asarray(self.plate), cp.asarray(self.plate)),
                lambda args, _none: {'u': args[0]},
            ),
            **torchs(self.torch),
        }

    def torch(self, torch: Any) -> InTorch:
        u, v = (torch.from_numpy(self.plate).cuda() for _ in range(2))
        heat = steps_by(spread)
        return InTorch(lambda: heat(u, v), lambda _none: {'u': u}, (u, v))
