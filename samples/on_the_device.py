"""Solvers whose convergence test runs on the device: a whole solve is one launch.

A conjugate-gradient solve of Poisson's equation on a square and the power iteration for its largest eigenvalue. Each is
written twice: as a loop of the host, which reads the residual back after every step, and with `cap.while_`, where the
device asks it. Both give the same numbers.

python samples/on_the_device.py [--n SIDE]                       on a GPU
python -m capturekit run samples/on_the_device.py [--n SIDE]     anywhere
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp

import capturekit as ck

TOLERANCE = 1e-6
MOST = 2_000


def laplacian(x: cp.ndarray, out: cp.ndarray) -> None:
    """Five points, with zeros around the square."""
    cp.multiply(x, 4, out=out)
    out[1:] -= x[:-1]
    out[:-1] -= x[1:]
    out[:, 1:] -= x[:, :-1]
    out[:, :-1] -= x[:, 1:]


class Solver:
    """Conjugate gradients. What a step hands to the next is written in place, so that it can be a loop's body."""

    def __init__(self, b: cp.ndarray) -> None:
        self.b = b
        self.x, self.r, self.p, self.q = (cp.zeros_like(b) for _ in range(4))
        self.rr, self.goal = cp.zeros(()), cp.zeros(())
        self.going = cp.zeros((), '?')

    def start(self) -> None:
        self.x.fill(0)
        self.r[...] = self.b
        self.p[...] = self.b
        cp.sum(self.r * self.r, out=self.rr)
        cp.multiply(self.rr, TOLERANCE**2, out=self.goal)
        cp.greater(self.rr, self.goal, out=self.going)

    def step(self) -> None:
        laplacian(self.p, self.q)
        alpha = self.rr / cp.sum(self.p * self.q)
        self.x += alpha * self.p
        self.r -= alpha * self.q
        new = cp.sum(self.r * self.r)
        self.p *= new / self.rr
        self.p += self.r
        self.rr[...] = new
        cp.greater(self.rr, self.goal, out=self.going)

    def on_the_host(self) -> int:
        self.start()
        steps = 0
        while bool(self.going) and steps < MOST:
            self.step()
            steps += 1
        return steps

    def recorded(self) -> tuple[ck.Graph, Any]:
        with ck.capture() as cap:
            self.start()
            with cap.while_(self.going, limit=MOST) as loop:
                self.step()
        return cap.graph, loop


class Power:
    """The largest eigenvalue of the same operator, by applying it again and again."""

    def __init__(self, b: cp.ndarray) -> None:
        self.b = b
        self.v, self.w = cp.zeros_like(b), cp.zeros_like(b)
        self.value, self.last = cp.zeros(()), cp.zeros(())
        self.going = cp.zeros((), '?')

    def start(self) -> None:
        self.v[...] = self.b / cp.sqrt(cp.sum(self.b * self.b))
        self.value.fill(0)
        self.going.fill(True)

    def step(self) -> None:
        self.last[...] = self.value
        laplacian(self.v, self.w)
        cp.sum(self.v * self.w, out=self.value)
        self.v[...] = self.w / cp.sqrt(cp.sum(self.w * self.w))
        cp.greater(cp.abs(self.value - self.last), 1e-7 * cp.abs(self.value), out=self.going)

    on_the_host = Solver.on_the_host
    recorded = Solver.recorded


def seconds(call: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of some runs, each waited for."""
    taken = []
    for _ in range(repeats):
        cp.cuda.Device().synchronize()
        start = time.perf_counter()
        call()
        cp.cuda.Device().synchronize()
        taken.append(time.perf_counter() - start)
    return min(taken)


def compare(name: str, job: Any, answer: Callable[[], cp.ndarray]) -> tuple[float, float]:
    """Solve both ways; check that they agree, and return the seconds of each."""
    steps = job.on_the_host()
    wanted = answer().copy()
    graph, loop = job.recorded()
    graph.launch()
    found = answer().copy()
    error = float(abs(found - wanted).max() / abs(wanted).max())
    passes = int(loop.passes)
    host, device = seconds(job.on_the_host), seconds(graph.launch)
    print(f'{name}: {steps} steps by the host, {passes} on the device, largest difference {error:.2g}')
    print(f'  {host * 1e3:.2f} ms by the host, {device * 1e3:.2f} ms in one launch: {host / device:.2f} times as fast')
    graph.close()
    if passes != steps or error > 1e-9:
        raise SystemExit(f'{name}: the device went another way')
    return host, device


def jobs(n: int) -> dict[str, tuple[Any, Callable[[], cp.ndarray]]]:
    at = cp.arange(n, dtype=cp.float64)
    b = cp.sin(at[:, None] * 0.7) * cp.cos(at * 0.3) + 0.1
    solver, power = Solver(b), Power(b)
    return {
        'conjugate gradients': (solver, lambda: solver.x),
        'power iteration': (power, lambda: power.value.reshape(1)),
    }


def main(argv: Sequence[str] | None = None) -> None:
    simulated = 'simulated' in cp.cuda.runtime.getDeviceProperties(0)['name'].decode()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--n', type=int, default=12 if simulated else 256, help='side of the square')
    given = parser.parse_args(argv)
    for name, (job, answer) in jobs(given.n).items():
        compare(name, job, answer)


if __name__ == '__main__':
    main()
