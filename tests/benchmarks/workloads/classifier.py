"""Inference of a small image classifier: twice convolution (3 x 3), ReLU and pooling (2 x 2), then two dense layers.

Images come as (batch, channels, height, width). CuPy has no convolution of its own: the windows are laid out with
strides and multiplied, with the channels before the batch inside, so that each convolution is one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.benchmarks.workloads.way import InTorch, Results, Way, Workload, cupys, torchs


def workloads(cp: Any, small: bool) -> Iterator[Workload]:
    for batch in (1, 2) if small else (1, 32):
        yield Classifier(cp, batch, *((8, 4, 6, 12) if small else (32, 32, 64, 128)))


def windows(cp: Any, x: Any) -> Any:
    """Every 3 x 3 window of (channels, batch, height, width) with zeros around, as (channels * 9, pixels)."""
    channels, batch, height, width = x.shape
    padded = cp.zeros((channels, batch, height + 2, width + 2), x.dtype)
    padded[:, :, 1:-1, 1:-1] = x
    by_channel, by_image, by_row, by_column = padded.strides
    shape = (channels, 3, 3, batch, height, width)
    strides = (by_channel, by_row, by_column, by_image, by_row, by_column)
    return cp.ndarray(shape, x.dtype, padded.data, strides).reshape(channels * 9, batch * height * width)


def quarters(x: Any) -> tuple[Any, Any, Any, Any]:
    """The four pixels of each 2 x 2 field."""
    return x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]


def classifiers(cp: Any) -> tuple[Any, Any]:
    """The network in plain CuPy, and with its elementwise parts fused."""

    def convolved(x: Any, w: Any) -> Any:
        _channels, batch, height, width = x.shape
        return (w @ windows(cp, x)).reshape(w.shape[0], batch, height, width)

    def layer(x: Any, w: Any, b: Any) -> Any:
        y = convolved(x, w)
        y += b[:, None, None, None]
        cp.maximum(y, 0, out=y)
        one, two, three, four = quarters(y)
        y = cp.maximum(one, two)
        cp.maximum(y, three, out=y)
        return cp.maximum(y, four, out=y)

    def flat(x: Any) -> Any:
        return x.transpose(1, 0, 2, 3).reshape(x.shape[1], -1)

    def plain(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, w4: Any, b4: Any) -> Any:
        y = layer(layer(x.transpose(1, 0, 2, 3), w1, b1), w2, b2)
        y = flat(y) @ w3
        y += b3
        cp.maximum(y, 0, out=y)
        y = y @ w4
        y += b4
        return y

    @cp.fuse()
    def pooled(one: Any, two: Any, three: Any, four: Any, b: Any) -> Any:
        # The largest of four, and then bias and ReLU: the same as the other way round, on a quarter of the pixels.
        return cp.maximum(cp.maximum(cp.maximum(one, two), cp.maximum(three, four)) + b, 0)

    @cp.fuse()
    def rectified(y: Any, b: Any) -> Any:
        return cp.maximum(y + b, 0)

    def fused_layer(x: Any, w: Any, b: Any) -> Any:
        return pooled(*quarters(convolved(x, w)), b[:, None, None, None])

    def fused(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, w4: Any, b4: Any) -> Any:
        y = fused_layer(fused_layer(x.transpose(1, 0, 2, 3), w1, b1), w2, b2)
        y = rectified(flat(y) @ w3, b3) @ w4
        y += b4
        return y

    return plain, fused


class Classifier(Workload):
    #: TF32 would be off by more.
    tolerance = 2e-5

    def __init__(self, cp: Any, batch: int, side: int, first: int, second: int, dense: int) -> None:
        self.cp = cp
        self.title = f'image classifier, {side} x {side} pixels, batch {batch}'
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((batch, 3, side, side), dtype='f4')
        self.shapes = ((first, 3, 3, 3), (second, first, 3, 3), (second * (side // 4) ** 2, dense), (dense, 10))
        self.weights = []
        for shape in self.shapes:
            inputs, outputs = (np.prod(shape[1:]), shape[0]) if len(shape) == 4 else shape
            self.weights.append((rng.standard_normal(shape) * np.sqrt(2 / inputs)).astype('f4'))
            self.weights.append((rng.standard_normal(outputs) / 10).astype('f4'))

    def reference(self) -> Results:
        x = self.x.astype('f8')
        w1, b1, w2, b2, w3, b3, w4, b4 = (weight.astype('f8') for weight in self.weights)
        for w, b in ((w1, b1), (w2, b2)):
            side = x.shape[2]
            padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
            y = sum(
                np.einsum('oc,nchw->nohw', w[:, :, i, j], padded[:, :, i : i + side, j : j + side], optimize=True)
                for i in range(3)
                for j in range(3)
            )
            y = np.maximum(y + b[:, None, None], 0)
            x = np.maximum.reduce(quarters(y))
        hidden = np.maximum(x.reshape(len(x), -1) @ w3 + b3, 0)
        return {'scores': hidden @ w4 + b4}

    def ways(self) -> dict[str, Callable[[], Way]]:
        cp = self.cp
        plain, fused = classifiers(cp)
        return {
            **cupys(plain, fused, self.arguments, lambda _args, scores: {'scores': scores}),
            **torchs(self.torch),
        }

    def arguments(self) -> tuple[Any, ...]:
        """The images and the weights; those of convolutions as matrices."""
        matrices = [w.reshape(len(w), -1) if w.ndim == 4 else w for w in self.weights]
        return tuple(self.cp.asarray(array) for array in (self.x, *matrices))

    def torch(self, torch: Any) -> InTorch:
        nn = torch.nn
        (first, *_), (second, *_), (flat, dense), (_dense, scores) = self.shapes
        model = nn.Sequential(
            nn.Conv2d(3, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(flat, dense), nn.ReLU(), nn.Linear(dense, scores),
        ).cuda().eval()  # fmt: skip
        x = torch.from_numpy(self.x).cuda()
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), self.weights):
                parameter.copy_(torch.from_numpy(weight.T if weight.ndim == 2 else weight))

        def classify() -> Any:
            with torch.no_grad():
                return model(x)

        return InTorch(classify, lambda scores: {'scores': scores})
