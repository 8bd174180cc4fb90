"""The workloads by which graphs are usually judged, in CuPy: eagerly, fused, recorded, fused and recorded, and with
``ck.graphed``, beside torch's eager run and torch's graph.

Each is checked against NumPy in double precision before anything is timed. Float32 throughout, TF32 off on both sides,
except for the conjugate gradients, which are float64. ``torch.compile`` is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.workloads.way import Workload

Parts = dict[str, Callable[[], Iterator[Workload]]]


def parts(cp: Any, small: bool) -> Parts:
    """The workloads by name, each made when its turn comes; ``small``: sizes for the simulated device."""
    from tests.benchmarks.workloads import classifier, dsp, gelu, solver, stencil, training

    modules = (gelu, training, classifier, stencil, dsp, solver)
    return {module.__name__.rpartition('.')[2]: lambda module=module: module.workloads(cp, small) for module in modules}
