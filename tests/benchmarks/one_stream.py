"""Programs written for one stream, with no thought of lanes, and one that lanes do nothing for.

Each is a function of ``parallel``, which calls several functions and returns what they return: one after the other, as
the program was written; or on lanes by hand, by ``cap.parallel``.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Branch = Callable[[], Any]
Parallel = Callable[..., list[Any]]


@dataclass(frozen=True)
class Program:
    """``run(parallel)`` makes at most ``branches`` branches at a time, and returns arrays."""

    title: str
    branches: int
    run: Callable[[Parallel], list[Any]]


def one_after_the_other(*branches: Branch) -> list[Any]:
    """The program as it was written."""
    return [branch() for branch in branches]


def beside_each_other(
    title: str, count: int, branch: Callable[[int], Any], joined: Callable[[list[Any]], list[Any]] = list
) -> Program:
    """A program that calls a branch ``count`` times, with the number of the call, and what it makes of the results."""
    return Program(title, count, lambda parallel: joined(parallel(*[lambda n=n: branch(n) for n in range(count)])))


def total(found: list[Any]) -> Any:
    """The sum of arrays, in an array of its own."""
    made = found[0] + found[1]
    for one in found[2:]:
        made += one
    return made


def sample(name: str) -> Any:
    """The functions of a sample, with the CuPy that is imported now."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / 'samples' / f'{name}.py')))


def net(cp: Any, small: bool) -> Program:
    """The net of samples/inference_branches.py: blocks of four branches, as Inception has them."""
    net_of = sample('inference_branches')
    batch, size, width, depth = (2, 6, 4, 2) if small else (4, 28, 64, 3)
    rng = cp.random.RandomState(7)
    x = rng.standard_normal((batch, size, size, 3)).astype('f4')
    channels = [4 * width if n else 3 for n in range(depth)]
    layers = [{key: w.astype('f4') for key, w in net_of.weights(rng, one, width).items()} for one in channels]

    def run(parallel: Parallel) -> list[Any]:
        y = x
        for layer in layers:
            y = net_of.block(y, layer, parallel)
        return [y.mean(axis=(1, 2))]

    return Program(f'a net of {depth} blocks of 4 branches', 4, run)


def ensemble(cp: Any, small: bool) -> Program:
    """Eight small perceptrons on one batch, and the mean of what they say."""
    count, batch, width, depth = (3, 4, 8, 2) if small else (8, 64, 256, 4)
    rng = cp.random.RandomState(1)
    x = rng.standard_normal((batch, width)).astype('f4')
    shape = (count, depth, width, width)
    weights = (rng.standard_normal(shape) / width**0.5).astype('f4')

    def member(n: int) -> Any:
        y = x
        for w in weights[n]:
            y = cp.tanh(y @ w)
        return y

    return beside_each_other(f'an ensemble of {count} models', count, member, lambda found: [total(found) / count])


def attention(cp: Any, small: bool) -> Program:
    """Cross-attention, head by head, as one writes it first."""
    heads, rows, others, width = (2, 4, 6, 4) if small else (8, 256, 384, 64)
    rng = cp.random.RandomState(2)
    x, y = (rng.standard_normal((n, heads * width)).astype('f4') for n in (rows, others))
    wq, wk, wv = ((rng.standard_normal((heads, heads * width, width)) / 16).astype('f4') for _ in range(3))

    def head(n: int) -> Any:
        q, k, v = x @ wq[n], y @ wk[n], y @ wv[n]
        scores = q @ k.T / width**0.5
        scores -= scores.max(axis=1, keepdims=True)
        e = cp.exp(scores)
        return (e / e.sum(axis=1, keepdims=True)) @ v

    return beside_each_other(
        f'cross-attention of {heads} heads', heads, head, lambda found: [cp.concatenate(found, axis=1)]
    )


def folds(cp: Any, small: bool) -> Program:
    """A ridge regression by gradient descent for each fold of a cross-validation, and its error on what is left out."""
    count, rows, width, steps = (2, 8, 4, 3) if small else (6, 2048, 64, 20)
    rng = cp.random.RandomState(3)
    x = rng.standard_normal((count, rows, width)).astype('f4')
    y = rng.standard_normal((count, rows, 1)).astype('f4')
    rest = [[n for n in range(count) if n != fold] for fold in range(count)]
    sets = [(cp.concatenate([x[n] for n in r]), cp.concatenate([y[n] for n in r])) for r in rest]

    def fit(fold: int) -> Any:
        a, b = sets[fold]
        w = cp.zeros((width, 1), 'f4')
        for _ in range(steps):
            w -= (a.T @ (a @ w - b)) * (0.5 / (rows * (count - 1))) + w * 0.001
        left = x[fold] @ w - y[fold]
        return (left * left).mean()

    return beside_each_other(f'a fit of {count} folds', count, fit)


def solves(cp: Any, small: bool) -> Program:
    """The systems of samples/many_small_solves.py, each far too small for the device."""
    systems = sample('many_small_solves')
    count, n, steps = (4, 8, 3) if small else (32, 64, 8)
    problems = list(systems.systems(count, n))
    return beside_each_other(f'{count} solves', count, lambda number: systems.solve(*problems[number], steps))


def spectra(cp: Any, small: bool) -> Program:
    """The power spectrum of each channel: windows, their transforms, the mean of the squares."""
    count, windows, length = (3, 2, 16) if small else (8, 32, 1024)
    x = cp.random.RandomState(4).standard_normal((count, windows, length)).astype('f4')
    taper = cp.hanning(length).astype('f4')

    def one(n: int) -> Any:
        bins = cp.fft.rfft((x[n] - x[n].mean(axis=1, keepdims=True)) * taper)
        power = (bins.real**2 + bins.imag**2).mean(axis=0)
        return cp.log(power + 1e-12)

    return beside_each_other(f'spectra of {count} channels', count, one)


def summaries(cp: Any, small: bool) -> Program:
    """Mean, deviation, range and running sum of each column, of arrays of their own."""
    count, length = (3, 32) if small else (12, 1 << 16)
    rng = cp.random.RandomState(5)
    columns = [rng.standard_normal(length) for _ in range(count)]

    def one(n: int) -> Any:
        x = columns[n]
        mean = x.mean()
        middle = (x - mean) ** 2
        deviation = cp.sqrt(middle.mean())
        scaled = (x - mean) / deviation
        return cp.stack([mean, deviation, x.min(), x.max(), abs(cp.cumsum(scaled)).max()])

    return beside_each_other(f'summaries of {count} columns', count, one)


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

    return beside_each_other(f'a bank of {count} filters', count, scale, lambda bands: [*bands, total(bands)])


def chains(cp: Any, small: bool) -> Program:
    """Two iterations that know nothing of each other."""
    length, steps = (32, 4) if small else (1 << 14, 60)
    starts = [cp.linspace(0, 1, length) + n for n in range(2)]

    def one(n: int) -> Any:
        y = starts[n]
        for _ in range(steps):
            y = cp.sin(y) * (0.5 + 0.25 * n) + starts[n]
        return y

    return beside_each_other('two chains', 2, one)


def plates(cp: Any, small: bool) -> Program:
    """The heat equation on six plates, each with another conductivity."""
    count, side, steps = (2, 8, 2) if small else (6, 128, 20)
    start = cp.random.RandomState(8).random_sample((side, side))

    def one(n: int) -> Any:
        u, conductivity = start.copy(), 0.05 + 0.02 * n
        for _ in range(steps):
            v = u.copy()
            near = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1]
            v[1:-1, 1:-1] += conductivity * near
            u = v
        return u

    return beside_each_other(f'{count} plates', count, one)


def large(cp: Any, small: bool) -> Program:
    """Two branches whose kernels fill the device each: lanes bring nothing."""
    length, steps = (64, 2) if small else (1 << 24, 10)
    x = cp.linspace(0, 1, length)

    def one(n: int) -> Any:
        y = x * (0.5, 0.25)[n]
        for _ in range(steps):
            y = y * y + x
        return y

    return beside_each_other('two fields that fill the device', 2, one)


def programs(cp: Any, small: bool) -> dict[str, Callable[[], Program]]:
    """The programs by name, each made when its turn comes; ``small``: sizes for the simulated device."""
    makers = (
        net, ensemble, attention, folds, solves, spectra,
        summaries, copies, filters, chains, plates, large,
    )  # fmt: skip
    return {maker.__name__: lambda maker=maker: maker(cp, small) for maker in makers}
