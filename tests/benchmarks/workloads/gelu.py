"""GELU, the tanh form, written out: nine elementwise operations on one array. Torch has a kernel for it besides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.benchmarks.workloads.way import InTorch, Results, Way, Workload, cupys, torchs

SHAPES = ((1, 3, 224, 224), (32, 3, 224, 224))
SMALL = ((1, 3, 8, 8), (2, 3, 8, 8))


def workloads(cp: Any, small: bool) -> Iterator[Workload]:
    for shape in SMALL if small else SHAPES:
        yield Gelu(cp, shape)


def formula(tanh: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))

    return gelu


class Gelu(Workload):
    tolerance = 2e-6

    def __init__(self, cp: Any, shape: tuple[int, ...]) -> None:
        self.cp = cp
        self.title = f'GELU {shape}'
        self.x = np.random.default_rng(0).standard_normal(shape, dtype='f4')

    def reference(self) -> Results:
        return {'y': formula(np.tanh)(self.x.astype('f8'))}

    def ways(self) -> dict[str, Callable[[], Way]]:
        cp = self.cp
        plain = formula(cp.tanh)
        return {
            **cupys(plain, cp.fuse()(formula(cp.tanh)), lambda: (cp.asarray(self.x),), lambda _args, y: {'y': y}),
            **torchs(self.torch),
            **dict(zip(("torch's own kernel", "torch's own kernel in a graph"), torchs(self.own_kernel).values())),
        }

    def torch(self, torch: Any) -> InTorch:
        x = torch.from_numpy(self.x).cuda()
        gelu = formula(torch.tanh)
        return InTorch(lambda: gelu(x), lambda y: {'y': y})

    def own_kernel(self, torch: Any) -> InTorch:
        x = torch.from_numpy(self.x).cuda()
        gelu = torch.nn.functional.gelu
        return InTorch(lambda: gelu(x, approximate='tanh'), lambda y: {'y': y})
