"""A training step: Linear(128, 256), dropout, Linear(256, 16), dropout; mean squared error, SGD, 32 samples.

CuPy's gradients are written by hand, its masks drawn on the device by a ``Generator``, anew at each launch. All
parameters lie in one array, and so do the gradients, so that one update does for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.benchmarks.workloads.way import (
    Array,
    InTorch,
    Results,
    Way,
    Workload,
    cupys,
    torch_eager,
    torch_graph,
    torch_here,
)

RATE = 0.1
DROPOUT = 0.2
SCALE = 1 / (1 - DROPOUT)
SEED = 7


def workloads(cp: Any, small: bool) -> Iterator[Workload]:
    yield Training(cp, *((4, 8, 16, 4) if small else (32, 128, 256, 16)))


def split(flat: Any, shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    """Views of consecutive pieces of a flat array."""
    parts, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        parts.append(flat[at : at + size].reshape(shape))
        at += size
    return parts


def forward_written_out(z: Any, bias: Any, mask: Any) -> Any:
    z += bias
    z *= mask
    return z


def steps_of(cp: Any, layers: tuple[tuple[int, ...], ...], units: tuple[tuple[int, ...], ...]) -> tuple[Any, Any]:
    """The step in plain CuPy, and with its elementwise parts fused. Both change the parameters and return the loss."""
    drawn = sum(int(np.prod(shape)) for shape in units)

    def plain(params: Any, x: Any, t: Any, rng: Any) -> Any:
        w1, b1, w2, b2 = split(params, layers)
        grads = cp.empty_like(params)
        dw1, db1, dw2, db2 = split(grads, layers)
        mask = (rng.random(drawn, dtype=np.float32) >= DROPOUT).astype(np.float32)
        mask *= SCALE
        mask1, mask2 = split(mask, units)

        hidden = forward_written_out(x @ w1, b1, mask1)
        difference = forward_written_out(hidden @ w2, b2, mask2)
        difference -= t
        loss = (difference * difference).mean()

        difference *= 2 / difference.size
        difference *= mask2
        cp.matmul(hidden.T, difference, out=dw2)
        cp.sum(difference, axis=0, out=db2)
        dhidden = difference @ w2.T
        dhidden *= mask1
        cp.matmul(x.T, dhidden, out=dw1)
        cp.sum(dhidden, axis=0, out=db1)
        grads *= RATE
        params -= grads
        return loss

    @cp.fuse()
    def forward(z: Any, bias: Any, u: Any) -> Any:
        return (z + bias) * (u >= DROPOUT) * SCALE

    @cp.fuse()
    def ending(z: Any, bias: Any, u: Any, t: Any, factor: Any) -> Any:
        difference = (z + bias) * (u >= DROPOUT) * SCALE - t
        return difference * difference, difference * factor * (u >= DROPOUT) * SCALE

    @cp.fuse()
    def backward(d: Any, u: Any) -> None:
        d[...] = d * (u >= DROPOUT) * SCALE

    @cp.fuse()
    def update(params: Any, grads: Any) -> None:
        params -= grads * RATE

    def fused(params: Any, x: Any, t: Any, rng: Any) -> Any:
        w1, b1, w2, b2 = split(params, layers)
        grads = cp.empty_like(params)
        dw1, db1, dw2, db2 = split(grads, layers)
        u1, u2 = split(rng.random(drawn, dtype=np.float32), units)

        hidden = forward(x @ w1, b1, u1)
        squared, difference = ending(hidden @ w2, b2, u2, t, 2 / t.size)

        cp.matmul(hidden.T, difference, out=dw2)
        cp.sum(difference, axis=0, out=db2)
        dhidden = difference @ w2.T
        backward(dhidden, u1)
        cp.matmul(x.T, dhidden, out=dw1)
        cp.sum(dhidden, axis=0, out=db1)
        update(params, grads)
        return squared.mean()

    return plain, fused


class Training(Workload):
    #: Of the way that the parameters went, which is a small part of what they are.
    tolerance = 1e-4

    def __init__(self, cp: Any, batch: int, inputs: int, hidden: int, outputs: int) -> None:
        self.cp = cp
        self.title = f'training step, Linear({inputs}, {hidden}) and Linear({hidden}, {outputs}), batch {batch}'
        self.layers = ((inputs, hidden), (hidden,), (hidden, outputs), (outputs,))
        self.units = ((batch, hidden), (batch, outputs))
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((batch, inputs), dtype='f4')
        self.t = rng.standard_normal((batch, outputs), dtype='f4')
        w1, w2 = (rng.standard_normal(self.layers[k], dtype='f4') / np.sqrt(self.layers[k][0]) for k in (0, 2))
        b1, b2 = (rng.standard_normal(self.layers[k], dtype='f4') / 10 for k in (1, 3))
        self.params = np.concatenate([part.ravel() for part in (w1, b1, w2, b2)]).astype('f4')

    def generator(self) -> Any:
        return self.cp.random.Generator(self.cp.random.Philox4x3210(SEED))

    def reference(self) -> Results:
        """With the masks that a generator of the same seed draws."""
        rng, drawn = self.generator(), sum(int(np.prod(shape)) for shape in self.units)
        masks = [(rng.random(drawn, dtype=np.float32).get() >= np.float32(DROPOUT)) * SCALE for _ in range(self.calls)]
        assert any((mask != masks[0]).any() for mask in masks)
        return self.trained(masks)

    def without_dropout(self) -> Results:
        return self.trained([np.ones(sum(int(np.prod(shape)) for shape in self.units))] * self.calls)

    def trained(self, masks: list[Array]) -> Results:
        """One step with each mask; how far the parameters went, and the last loss."""
        params, x, t = (array.astype('f8') for array in (self.params, self.x, self.t))
        w1, b1, w2, b2 = split(params, self.layers)
        loss = np.zeros(())
        for mask in masks:
            mask1, mask2 = split(mask, self.units)
            hidden = (x @ w1 + b1) * mask1
            difference = (hidden @ w2 + b2) * mask2 - t
            loss = (difference**2).mean()
            dout = 2 * difference / t.size * mask2
            dhidden = dout @ w2.T * mask1
            gradients = (x.T @ dhidden, dhidden.sum(0), hidden.T @ dout, dout.sum(0))
            params -= RATE * np.concatenate([gradient.ravel() for gradient in gradients])
        return {'moved': params - self.params, 'loss': np.asarray(loss)}

    def ways(self) -> dict[str, Callable[[], Way]]:
        cp = self.cp
        plain, fused = steps_of(cp, self.layers, self.units)

        def arguments() -> tuple[Any, ...]:
            return cp.asarray(self.params), cp.asarray(self.x), cp.asarray(self.t), self.generator()

        def results(args: tuple[Any, ...], loss: Any) -> Results:
            return {'moved': args[0] - cp.asarray(self.params), 'loss': loss}

        return {
            **cupys(plain, fused, arguments, results),
            'torch eager': lambda: self.in_torch(torch_eager),
            'torch graph': lambda: self.in_torch(torch_graph),
        }

    def in_torch(self, way: Callable[[InTorch], Way]) -> Way:
        """Torch's masks are its own: what is checked is the same step without dropout."""
        torch = torch_here()
        made = way(self.torch(torch, DROPOUT))
        made.twin = way(self.torch(torch, 0.0)), self.without_dropout()
        return made

    def torch(self, torch: Any, dropout: float) -> InTorch:
        nn = torch.nn
        (inputs, hidden), _, (_hidden, outputs), _ = self.layers
        model = nn.Sequential(nn.Linear(inputs, hidden), nn.Dropout(dropout), nn.Linear(hidden, outputs),
                              nn.Dropout(dropout)).cuda()  # fmt: skip
        x, t = (torch.from_numpy(array).cuda() for array in (self.x, self.t))
        start = torch.from_numpy(self.params).cuda()
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), split(start, self.layers)):
                parameter.copy_(part.T if part.ndim == 2 else part)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        loss_of = nn.MSELoss()

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(x), t)
            loss.backward()
            optimizer.step()
            return loss.detach()

        def results(loss: Any) -> Results:
            parts = [part.detach().T if part.ndim == 2 else part.detach() for part in model.parameters()]
            return {'moved': torch.cat([part.reshape(-1) for part in parts]) - start, 'loss': loss}

        return InTorch(step, results, model.parameters())
