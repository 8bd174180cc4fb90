"""Models of small matrices: a net of branches, an ensemble, attention of several heads, a fit of several folds."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.one_stream import Parallel, Program, sample


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

    def member(layers: Any) -> Any:
        y = x
        for w in layers:
            y = cp.tanh(y @ w)
        return y

    def run(parallel: Parallel) -> list[Any]:
        found = parallel(*[lambda layers=list(weights[n]): member(layers) for n in range(count)])
        mean = found[0] + found[1]
        for one in found[2:]:
            mean += one
        return [mean / count]

    return Program(f'an ensemble of {count} models', count, run)


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

    def run(parallel: Parallel) -> list[Any]:
        return [cp.concatenate(parallel(*[lambda n=n: head(n) for n in range(heads)]), axis=1)]

    return Program(f'cross-attention of {heads} heads', heads, run)


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

    def run(parallel: Parallel) -> list[Any]:
        return parallel(*[lambda fold=fold: fit(fold) for fold in range(count)])

    return Program(f'a fit of {count} folds', count, run)
