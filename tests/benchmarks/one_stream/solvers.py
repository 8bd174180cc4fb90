"""Many small problems: systems of equations, spectra of channels, summaries of columns."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.one_stream import Parallel, Program, sample


def solves(cp: Any, small: bool) -> Program:
    """The systems of samples/many_small_solves.py, each far too small for the device."""
    systems = sample('many_small_solves')
    count, n, steps = (4, 8, 3) if small else (32, 64, 8)
    problems = list(systems.systems(count, n))

    def run(parallel: Parallel) -> list[Any]:
        return parallel(*[lambda a=a, b=b: systems.solve(a, b, steps) for a, b in problems])

    return Program(f'{count} solves', count, run)


def spectra(cp: Any, small: bool) -> Program:
    """The power spectrum of each channel: windows, their transforms, the mean of the squares."""
    count, windows, length = (3, 2, 16) if small else (8, 32, 1024)
    x = cp.random.RandomState(4).standard_normal((count, windows, length)).astype('f4')
    taper = cp.hanning(length).astype('f4')

    def one(n: int) -> Any:
        bins = cp.fft.rfft((x[n] - x[n].mean(axis=1, keepdims=True)) * taper)
        power = (bins.real**2 + bins.imag**2).mean(axis=0)
        return cp.log(power + 1e-12)

    def run(parallel: Parallel) -> list[Any]:
        return parallel(*[lambda n=n: one(n) for n in range(count)])

    return Program(f'spectra of {count} channels', count, run)


def summaries(cp: Any, small: bool) -> Program:
    """Mean, deviation, range and running sum of each column, of arrays of their own."""
    count, length = (3, 32) if small else (12, 1 << 16)
    rng = cp.random.RandomState(5)
    columns = [rng.standard_normal(length) for _ in range(count)]

    def one(x: Any) -> Any:
        mean = x.mean()
        middle = (x - mean) ** 2
        deviation = cp.sqrt(middle.mean())
        scaled = (x - mean) / deviation
        return cp.stack([mean, deviation, x.min(), x.max(), abs(cp.cumsum(scaled)).max()])

    def run(parallel: Parallel) -> list[Any]:
        return parallel(*[lambda x=x: one(x) for x in columns])

    return Program(f'summaries of {count} columns', count, run)
