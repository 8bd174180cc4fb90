"""Conjugate gradients for Poisson's equation on a square, in double precision: a number of steps, and to convergence.

To convergence, eagerly, the host asks after each step; in a graph the device does, by ``cap.while_``. A graphed step
and torch's graph are one step each, and the host asks after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import capturekit as ck
from tests.benchmarks.workloads.way import (
    Array,
    InTorch,
    Results,
    Way,
    Workload,
    captured_by_torch,
    cupys,
    fetched,
    nothing,
    on_host,
    states,
    torch_here,
    torchs,
)

STEPS = 50
MOST = 5_000
#: How much smaller the residual has to become.
GOAL = 1e-6


def workloads(cp: Any, small: bool) -> Iterator[Workload]:
    side, steps = (8, 6) if small else (256, STEPS)
    yield Fixed(cp, side, steps)
    yield Converged(cp, side)


# -- one step, for CuPy, NumPy and torch alike --------------------------------------------------------------------


class State:
    """What one step hands to the next, all changed in place; the direction ``p`` has zeros around."""

    def __init__(self, b: Any, make: Callable[..., Any]) -> None:
        self.x, self.r, self.q = (make(b.shape) for _ in range(3))
        self.padded = make((b.shape[0] + 2, b.shape[1] + 2))
        self.p = self.padded[1:-1, 1:-1]
        padded = self.padded
        self.beside = padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]
        self.rr, self.goal = make(()), make(())

    def start(self, xp: Any, b: Any) -> None:
        self.x[...] = 0
        self.r[...] = b
        self.p[...] = b
        self.rr[...] = xp.sum(b * b)
        self.goal[...] = self.rr * GOAL**2

    def arrays(self) -> tuple[Any, ...]:
        return self.x, self.r, self.q, self.padded, self.rr, self.goal


def laplacian(q: Any, p: Any, up: Any, down: Any, left: Any, right: Any) -> Any:
    """A p into q; returns p * q."""
    q[...] = 4 * p - up - down - left - right
    return p * q


def descend(x: Any, r: Any, p: Any, q: Any, rr: Any, pq: Any) -> Any:
    """Along the direction; returns r * r."""
    alpha = rr / pq
    x += alpha * p
    r -= alpha * q
    return r * r


def turn(p: Any, r: Any, new: Any, rr: Any) -> None:
    """The next direction."""
    p[...] = r + new / rr * p


class Steps:
    """A step made of three pieces, which may be fused; the sums between them are not."""

    def __init__(self, xp: Any, fuse: Callable[[Any], Any]) -> None:
        self.xp = xp
        self.laplacian, self.descend, self.turn = fuse(laplacian), fuse(descend), fuse(turn)

    def step(self, s: State) -> None:
        xp = self.xp
        pq = xp.sum(self.laplacian(s.q, s.p, *s.beside))
        new = xp.sum(self.descend(s.x, s.r, s.p, s.q, s.rr, pq))
        self.turn(s.p, s.r, new, s.rr)
        s.rr[...] = new


def as_it_is(fn: Any) -> Any:
    return fn


def solved(steps: Steps, b: Any, make: Callable[..., Any], count: int) -> Any:
    state = State(b, make)
    state.start(steps.xp, b)
    for _ in range(count):
        steps.step(state)
    return state.x


def right_side(side: int) -> Array:
    at = np.arange(side)
    return np.sin(at[:, None] * 0.7) * np.cos(at * 0.3) + 0.1


# -- a number of steps --------------------------------------------------------------------------------------------


class Fixed(Workload):
    tolerance = 1e-8

    def __init__(self, cp: Any, side: int, count: int) -> None:
        self.cp = cp
        self.title = f'conjugate gradients, {side} x {side}, {count} steps'
        self.b = right_side(side)
        self.count = count

    def reference(self) -> Results:
        return {'x': solved(Steps(np, as_it_is), self.b, np.zeros, self.count)}

    def ways(self) -> dict[str, Callable[[], Way]]:
        cp = self.cp

        def solve_by(fuse: Callable[[Any], Any]) -> Callable[..., Any]:
            steps, count = Steps(cp, fuse), self.count
            return lambda b: solved(steps, b, cp.zeros, count)

        return {
            **cupys(solve_by(as_it_is), solve_by(cp.fuse()), lambda: (cp.asarray(self.b),), lambda _args, x: {'x': x}),
            **torchs(self.torch),
        }

    def torch(self, torch: Any) -> InTorch:
        b = torch.from_numpy(self.b).cuda()
        steps, make = Steps(torch, as_it_is), torch_zeros(torch)
        return InTorch(lambda: solved(steps, b, make, self.count), lambda x: {'x': x})


def torch_zeros(torch: Any) -> Callable[..., Any]:
    return lambda shape: torch.zeros(shape, dtype=torch.float64, device='cuda')


# -- to convergence -----------------------------------------------------------------------------------------------


class Converged(Workload):
    """Judged by its residual, which NumPy works out: roundings decide after which step it is small enough."""

    tolerance = 1.1 * GOAL

    def __init__(self, cp: Any, side: int) -> None:
        self.cp = cp
        self.title = f'conjugate gradients, {side} x {side}, to convergence'
        self.b = right_side(side)

    def reference(self) -> Results:
        return {}

    def error(self, found: Results, wanted: Results) -> float:
        p = np.pad(found['x'].astype('f8'), 1)
        q = np.empty_like(self.b)
        laplacian(q, p[1:-1, 1:-1], p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:])
        return float(np.linalg.norm(self.b - q) / np.linalg.norm(self.b))

    def ways(self) -> dict[str, Callable[[], Way]]:
        plain, fused = Steps(self.cp, as_it_is), Steps(self.cp, self.cp.fuse())
        return {
            'eager': lambda: self.by_the_host(plain),
            'fused': lambda: self.by_the_host(fused),
            'graph': lambda: self.by_the_device(plain),
            'fused graph': lambda: self.by_the_device(fused),
            'graphed': lambda: self.by_the_host(plain, graphed=True),
            'torch eager': lambda: self.in_torch(graph=False),
            'torch graph': lambda: self.in_torch(graph=True),
        }

    def by_the_host(self, steps: Steps, graphed: bool = False) -> Way:
        cp, b = self.cp, self.cp.asarray(self.b)
        state = State(b, cp.zeros)
        graphed_step = ck.graphed(step_of(steps, state))
        step = graphed_step if graphed else step_of(steps, state)
        taken = [0]

        def solve() -> None:
            state.start(cp, b)
            taken[0] = until(step)

        def about() -> str:
            return f'{taken[0]} steps{", one step " + states(graphed_step) if graphed else ""}'

        return Way(solve, lambda: fetched({'x': state.x}), graphed_step.clear, about)

    def by_the_device(self, steps: Steps) -> Way:
        cp, b = self.cp, self.cp.asarray(self.b)
        with ck.capture() as cap:
            state, going = State(b, cp.zeros), cp.ones((), '?')
            state.start(cp, b)
            going.fill(True)
            with cap.while_(going, limit=MOST) as loop:
                steps.step(state)
                cp.greater(state.rr, state.goal, out=going)
        graph = cap.graph
        return Way(
            graph.launch,
            lambda: fetched({'x': state.x}),
            graph.close,
            lambda: f'{int(loop.passes)} steps in one launch',
        )

    def in_torch(self, graph: bool) -> Way:
        torch = torch_here()
        b, make = torch.from_numpy(self.b).cuda(), torch_zeros(torch)
        state, steps = State(b, make), Steps(torch, as_it_is)
        step, close = step_of(steps, state), nothing
        if graph:
            state.start(torch, b)
            captured, going = captured_by_torch(step, state.arrays())
            step, close = replaying(captured, going), captured.reset
        taken = [0]

        def solve() -> None:
            state.start(torch, b)
            taken[0] = until(step)

        return Way(solve, lambda: on_host({'x': state.x}), close, lambda: f'{taken[0]} steps')


def until(step: Callable[[], Any]) -> int:
    """Steps until one says that it was the last; how many."""
    for count in range(1, MOST + 1):
        if not bool(step()):
            return count
    return MOST


def replaying(graph: Any, going: Any) -> Callable[[], Any]:
    def step() -> Any:
        graph.replay()
        return going

    return step


def step_of(steps: Steps, state: State) -> Callable[[], Any]:
    """One step; returns whether there is more to do."""

    def step() -> Any:
        steps.step(state)
        return state.rr > state.goal

    return step
