"""Training a perceptron with one hidden layer: dropout, mean squared error, SGD with momentum, gradients by hand.

Dropout masks come from ``cp.random.random``, or from a ``cp.random.Generator`` with ``--generator``.

python samples/wild/mlp.py [--n BATCH] [--steps STEPS] [--generator]                       on a GPU
python -m capturekit run samples/wild/mlp.py [--n BATCH] [--steps STEPS] [--generator]     anywhere
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp
from side_by_side import Results, arguments, compare

INPUTS, HIDDEN, OUTPUTS = 128, 256, 16
RATE = 0.01
MOMENTUM = 0.9
DROPOUT = 0.5
BATCHES = 16  # in the data set
SIZES = {'gpu': (32, 1_000), 'simulated': (32, 40)}  # n, steps

Parameters = dict[str, cp.ndarray]


def train_step(params: Parameters, velocity: Parameters, x: cp.ndarray, y: cp.ndarray, rng: Any = None) -> cp.ndarray:
    """Train on one batch, in place; return the loss. Without ``rng`` dropout uses CuPy's global random state."""
    # forward
    z1 = x @ params['W1'] + params['b1']
    a1 = cp.maximum(z1, 0)
    if rng is None:
        mask = (cp.random.random(a1.shape) >= DROPOUT).astype(cp.float32) / (1 - DROPOUT)
    else:
        mask = (rng.random(a1.shape, dtype=cp.float32) >= DROPOUT).astype(cp.float32) / (1 - DROPOUT)
    d1 = a1 * mask
    out = d1 @ params['W2'] + params['b2']
    diff = out - y
    loss = (diff**2).mean()

    # backward
    grads = {}
    dout = 2 * diff / diff.size
    grads['W2'] = d1.T @ dout
    grads['b2'] = dout.sum(axis=0)
    dz1 = dout @ params['W2'].T * mask
    dz1[z1 <= 0] = 0
    grads['W1'] = x.T @ dz1
    grads['b1'] = dz1.sum(axis=0)

    # update
    for key in params:
        velocity[key] *= MOMENTUM
        velocity[key] -= RATE * grads[key]
        params[key] += velocity[key]
    return loss


def initial(seed: int = 0) -> tuple[Parameters, Parameters]:
    """Return parameters (He) and velocities."""
    cp.random.seed(seed)
    params = {
        'W1': cp.random.randn(INPUTS, HIDDEN).astype(cp.float32) * (2 / INPUTS) ** 0.5,
        'b1': cp.zeros(HIDDEN, dtype=cp.float32),
        'W2': cp.random.randn(HIDDEN, OUTPUTS).astype(cp.float32) * (2 / HIDDEN) ** 0.5,
        'b2': cp.zeros(OUTPUTS, dtype=cp.float32),
    }
    return params, {key: cp.zeros_like(value) for key, value in params.items()}


def data(batch: int, seed: int = 1) -> tuple[cp.ndarray, cp.ndarray]:
    """Return inputs, and targets that are a smooth function of them."""
    cp.random.seed(seed)
    x = cp.random.randn(BATCHES * batch, INPUTS).astype(cp.float32)
    w = cp.random.randn(INPUTS, OUTPUTS).astype(cp.float32) / INPUTS**0.5
    return x, cp.sin(x @ w)


def run(step: Callable[..., Any], n: int, steps: int, generator: bool = False) -> Results:
    params, velocity = initial()
    x, y = data(n)
    cp.random.seed(2)
    rng = cp.random.default_rng(2) if generator else None
    losses = cp.zeros(steps, dtype=cp.float32)
    for i in range(steps):
        at = i % BATCHES * n
        losses[i] = step(params, velocity, x[at : at + n], y[at : at + n], rng)
    return {**params, 'losses': losses}


step = train_step  # what tests and benchmarks call it


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(argv, __doc__, SIZES, flags=['--generator'])
    program = functools.partial(run, generator=given.generator)
    found = compare(program, train_step, given.n, given.steps)
    losses = found['losses']
    print(f'loss {float(losses[:10].mean()):.4f} in the first ten steps, {float(losses[-10:].mean()):.4f} in the last')


if __name__ == '__main__':
    main()
