"""What a user would pick instead: programs of plain array code in CuPy, ``torch.compile`` and ``jax.jit``, in one run.

Each program is one formula, written once; a library is the handful of functions that the formulas need. All ways get
the same numbers (float32, TF32 off), and are checked against NumPy in double precision before anything is timed. JAX is
not waited for at each call, which would add 30 us and more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.benchmarks.workloads import Absent, Last, Way, Workload

Formula = Callable[..., Any]


@dataclass(frozen=True)
class Library:
    """The functions of an array library. ``amax`` and ``total`` keep the axis that they go along."""

    exp: Any
    log: Any
    sqrt: Any
    tanh: Any
    where: Any
    roll: Any
    amax: Any
    total: Any
    turned: Any


def like_numpy(xp: Any) -> Library:
    return Library(
        xp.exp, xp.log, xp.sqrt, xp.tanh, xp.where, xp.roll,
        lambda a, axis: a.max(axis, keepdims=True), lambda a, axis: a.sum(axis, keepdims=True),
        lambda a: xp.swapaxes(a, -1, -2),
    )  # fmt: skip


def of_torch(torch: Any) -> Library:
    return Library(
        torch.exp, torch.log, torch.sqrt, torch.tanh, torch.where, torch.roll,
        lambda a, axis: a.amax(axis, keepdim=True), lambda a, axis: a.sum(axis, keepdim=True),
        lambda a: a.transpose(-1, -2),
    )  # fmt: skip


# -- the programs -------------------------------------------------------------------------------------------------


def gelu(on: Library) -> Formula:
    return lambda x: 0.5 * x * (1 + on.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def heat(on: Library) -> Formula:
    def step(u: Any) -> Any:
        for _ in range(10):
            around = on.roll(u, 1, 0) + on.roll(u, -1, 0) + on.roll(u, 1, 1) + on.roll(u, -1, 1)
            u = u + 0.125 * (around - 4 * u)
        return u

    return step


def black_scholes(on: Library) -> Formula:
    def normal(x: Any) -> Any:
        size = on.where(x < 0, -x, x)
        k = 1 / (1 + 0.2316419 * size)
        terms = 0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429)))
        tail = 0.3989422804 * on.exp(-0.5 * size * size) * k * terms
        return on.where(x < 0, tail, 1 - tail)

    def price(spot: Any, strike: Any, years: Any) -> Any:
        root = 0.3 * on.sqrt(years)
        high = (on.log(spot / strike) + 0.065 * years) / root
        return spot * normal(high) - strike * on.exp(-0.02 * years) * normal(high - root)

    return price


def attention(on: Library) -> Formula:
    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = (q @ on.turned(k)) * 0.125
        weights = on.exp(scores - on.amax(scores, -1))
        return (weights / on.total(weights, -1)) @ v

    return attend


def training(on: Library) -> Formula:
    def step(x: Any, wanted: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        hidden = on.tanh(x @ w1 + b1)
        off = (hidden @ w2 + b2 - wanted) * (2 / 512)
        back = (off @ on.turned(w2)) * (1 - hidden * hidden)
        changes = on.turned(x) @ back, on.total(back, 0), on.turned(hidden) @ off, on.total(off, 0)
        return tuple(one - 0.1 * change for one, change in zip((w1, b1, w2, b2), changes))

    return step


def scaled_sum(_on: Library) -> Formula:
    return lambda x, y: 2.5 * x + y


class Peers(Workload):
    """One program at one size, in all libraries that are here."""

    def __init__(
        self, cp: Any, title: str, formula: Callable[[Library], Formula], shapes: list[tuple[int, ...]], off: float
    ) -> None:
        numbers = np.random.default_rng(0)
        super().__init__(cp, title, *(numbers.random(shape, dtype='f4') + np.float32(0.5) for shape in shapes))
        self.formula, self.tolerance = formula, off

    def function(self, xp: Any) -> Formula:
        return self.formula(like_numpy(xp))

    def ways(self) -> dict[str, Callable[[], Way]]:
        torchs = {'torch eager': lambda: self._torch(False), 'torch compile': lambda: self._torch(True)}
        return {**super().ways(), **torchs, 'jax': self._jax}

    def _torch(self, compiled: bool) -> Way:
        torch = torch_here()
        fn = self.formula(of_torch(torch))
        if compiled:
            torch._dynamo.reset()
            fn = torch.compile(fn, mode='reduce-overhead')
        last = Last(fn, tuple(torch.from_numpy(one).cuda() for one in self.given))
        return Way(last, lambda: {name: one.cpu().numpy() for name, one in self.results((), last.out).items()})

    def _jax(self) -> Way:
        jax = jax_here()
        last = Last(jax.jit(self.function(jax.numpy)), tuple(jax.device_put(one) for one in self.given))
        results = lambda: {name: np.asarray(one) for name, one in self.results((), last.out).items()}  # noqa: E731
        return Way(last, results, wait=lambda: jax.block_until_ready(last.out))


def torch_here() -> Any:
    """PyTorch with a GPU, TF32 off. Raises Absent."""
    try:
        import torch
    except ImportError as error:
        raise Absent(f'torch can not be imported: {error}'.splitlines()[0]) from None
    if not torch.cuda.is_available():
        raise Absent('torch finds no GPU')
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch


def jax_here() -> Any:
    """JAX with a GPU, which takes no more of its memory than it needs. Raises Absent."""
    os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
    try:
        import jax
    except ImportError as error:
        raise Absent(f'jax can not be imported: {error}'.splitlines()[0]) from None
    if jax.default_backend() != 'gpu':
        raise Absent('jax finds no GPU')
    jax.config.update('jax_default_matmul_precision', 'highest')
    return jax


def parts(cp: Any, small: bool) -> dict[str, Callable[[], Iterator[Peers]]]:
    """The programs by name; ``small``: sizes for the simulated device."""

    def many(title: str, formula: Any, off: float, *sizes: list[tuple[int, ...]]) -> Callable[[], Iterator[Peers]]:
        def made() -> Iterator[Peers]:
            for shapes in sizes:
                yield Peers(cp, f'{title} {" x ".join(map(str, shapes[0]))}', formula, shapes, off)

        return made

    layers = [(32, 128), (32, 16), (128, 256), (1, 256), (256, 16), (1, 16)]
    if small:
        images, fields, options, vectors = [(1, 3, 8, 8)], [(8, 8)], [(64,)], [(256,)]
    else:
        images, fields = [(1, 3, 224, 224), (32, 3, 224, 224)], [(256, 256), (2048, 2048)]
        options, vectors = [(10_000,), (4_000_000,)], [(1 << 24,)]
    return {
        'gelu': many('GELU', gelu, 2e-6, *[[one] for one in images]),
        'heat': many('heat equation, 10 steps,', heat, 2e-6, *[[one] for one in fields]),
        'options': many('Black-Scholes', black_scholes, 2e-5, *[[one] * 3 for one in options]),
        'attention': many('attention', attention, 1e-5, [(2, 8, 4) if small else (8, 256, 64)] * 3),
        'training': many('training step, batch and inputs', training, 1e-5, layers),
        'sum': many('2.5 x + y', scaled_sum, 1e-6, *[[one] * 2 for one in vectors]),
    }
