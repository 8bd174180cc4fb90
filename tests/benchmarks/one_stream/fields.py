"""Elementwise work: chunks copied in and out, a bank of filters, chains, plates; and fields that fill the device."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.one_stream import Parallel, Program, sample


def copies(cp: Any, small: bool) -> Program:
    """The chunks of samples/copy_compute_pipeline.py: brought in from pinned memory, worked on, brought back."""
    chunks = sample('copy_compute_pipeline')
    pipeline = chunks.Pipeline(64 if small else 500_000, 2 if small else 20)
    return Program(f'copies beside work, {chunks.CHUNKS} chunks', chunks.CHUNKS, pipeline.program)


def filters(cp: Any, small: bool) -> Program:
    """A signal smoothed at several scales, by differences of boxes that grow: each scale from the signal itself."""
    count, length, taps = (3, 256, 2) if small else (8, 1 << 15, 12)
    x = cp.random.RandomState(6).standard_normal(length).astype('f4')

    def scale(n: int) -> Any:
        y, step = x, 1 << n
        for tap in range(taps):
            weight = 1 / (tap + 2)
            z = y * (1 - weight)
            z[step:] += y[:-step] * weight
            y = z
        return y * y

    def run(parallel: Parallel) -> list[Any]:
        bands = parallel(*[lambda n=n: scale(n) for n in range(count)])
        total = bands[0] + bands[1]
        for band in bands[2:]:
            total += band
        return [*bands, total]

    return Program(f'a bank of {count} filters', count, run)


def chains(cp: Any, small: bool) -> Program:
    """Two iterations that know nothing of each other."""
    length, steps = (32, 4) if small else (1 << 14, 60)
    starts = [cp.linspace(0, 1, length) + n for n in range(2)]

    def one(x: Any, factor: float) -> Any:
        y = x
        for _ in range(steps):
            y = cp.sin(y) * factor + x
        return y

    def run(parallel: Parallel) -> list[Any]:
        return parallel(*[lambda n=n: one(starts[n], 0.5 + 0.25 * n) for n in range(2)])

    return Program('two chains', 2, run)


def plates(cp: Any, small: bool) -> Program:
    """The heat equation on six plates, each with another conductivity."""
    count, side, steps = (2, 8, 2) if small else (6, 128, 20)
    start = cp.random.RandomState(8).random_sample((side, side))

    def one(conductivity: float) -> Any:
        u = start.copy()
        for _ in range(steps):
            v = u.copy()
            near = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]
            v[1:-1, 1:-1] += conductivity * near
            u = v
        return u

    def run(parallel: Parallel) -> list[Any]:
        return parallel(*[lambda n=n: one(0.05 + 0.02 * n) for n in range(count)])

    return Program(f'{count} plates', count, run)


def large(cp: Any, small: bool) -> Program:
    """Two branches whose kernels fill the device each: lanes bring nothing."""
    length, steps = (64, 2) if small else (1 << 24, 10)
    x = cp.linspace(0, 1, length)

    def one(factor: float) -> Any:
        y = x * factor
        for _ in range(steps):
            y = y * y + x
        return y

    def run(parallel: Parallel) -> list[Any]:
        return parallel(lambda: one(0.5), lambda: one(0.25))

    return Program('two fields that fill the device', 2, run)
