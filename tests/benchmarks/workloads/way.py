"""Ways to run one workload, and the check that each has to pass before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import capturekit as ck

Array = NDArray[Any]
#: What a workload leaves behind, by name; a dict of NumPy arrays once it is on the host.
Results = dict[str, Any]


class CheckFailed(Exception):
    """A result is not the reference's."""


class Absent(Exception):
    """A peer that is not installed here."""


def nothing() -> None:
    pass


@dataclass
class Way:
    """One way to run a workload: the call that is timed, and the results of the last one.

    ``twin``: the way that is checked in this one's place, where chance keeps this one from being checked. ``wait``
    waits for calls that have not reached the device yet.
    """

    call: Callable[[], Any]
    results: Callable[[], Results]
    close: Callable[[], None] = nothing
    about: Callable[[], str] = str
    twin: tuple[Way, Results] | None = None
    wait: Callable[[], Any] = nothing


class Workload:
    """What all ways have in common. Each starts from a state of its own, and is called ``calls`` times for its check:
    a graphed function runs eagerly, is recorded, and is launched in these."""

    title: str
    tolerance: float
    calls = 3

    def reference(self) -> Results:
        """The results after ``calls`` calls, by NumPy in double precision."""
        raise NotImplementedError

    def ways(self) -> dict[str, Callable[[], Way]]:
        """Each way by name, not yet made; the first is ``eager``."""
        raise NotImplementedError

    def error(self, found: Results, wanted: Results) -> float:
        """How far off the results are, to be held against ``tolerance``."""
        return max(largest_error(name, found[name], wanted[name]) for name in wanted)


def largest_error(name: str, found: Array, wanted: Array) -> float:
    """The largest difference, in terms of the reference's largest value."""
    if found.shape != wanted.shape:
        raise CheckFailed(f'{name} has the shape {found.shape} and the reference {wanted.shape}')
    error = float(np.abs(found.astype('f8') - wanted).max() / np.abs(wanted).max())
    return error if np.isfinite(error) else np.inf


def check(workload: Workload, way: Way, wanted: Results) -> None:
    """Call it, and hold its results against the reference. Raises CheckFailed."""
    if way.twin is not None:
        twin, wanted_of_twin = way.twin
        way.twin = None
        try:
            check(workload, twin, wanted_of_twin)
        finally:
            twin.close()
        way.call()  # and the way itself runs
        return
    for _ in range(workload.calls):
        way.call()
    found = way.results()
    error = workload.error(found, wanted)
    if not error <= workload.tolerance:
        raise CheckFailed(f'off by {error:.2g} from the float64 reference; {workload.tolerance:.0e} is let through')


# -- CuPy ---------------------------------------------------------------------------------------------------------


class Last:
    """Calls a function on the same arguments again and again, and keeps its last result."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn = fn
        self.args = args
        self.out: Any = None

    def __call__(self) -> None:
        self.out = self.fn(*self.args)


def fetched(results: Results) -> Results:
    return {name: array.get() for name, array in results.items()}


def cupys(
    plain: Callable[..., Any],
    fused: Callable[..., Any],
    arguments: Callable[[], tuple[Any, ...]],
    results: Callable[[tuple[Any, ...], Any], Results],
) -> dict[str, Callable[[], Way]]:
    """The ways of CuPy to run a function; ``results`` tells them by the arguments and what was returned."""

    def eager(fn: Callable[..., Any]) -> Way:
        last = Last(fn, arguments())
        return Way(last, lambda: fetched(results(last.args, last.out)))

    def recorded(fn: Callable[..., Any], fuse: bool | Literal['fast'] = False) -> Way:
        args = arguments()
        with ck.capture(fuse=fuse) as cap:
            out = fn(*args)
        return Way(
            cap.graph.launch,
            lambda: fetched(results(args, out)),
            cap.graph.close,
            lambda: f'{cap.recording.node_count} nodes',
        )

    def graphed() -> Way:
        fn = ck.graphed(plain)
        way = eager(fn)
        return Way(way.call, way.results, fn.clear, lambda: states(fn))

    return {
        'eager': lambda: eager(plain),
        'fused': lambda: eager(fused),
        'graph': lambda: recorded(plain),
        'fused graph': lambda: recorded(fused),
        'graph, fused': lambda: recorded(plain, True),
        'graph, fast': lambda: recorded(plain, 'fast'),
        'graphed': graphed,
    }


def states(fn: Any) -> str:
    """What became of a graphed function: ``recorded``, or why not."""
    return ', '.join(f'{variant.state}{": " * bool(variant.reason)}{variant.reason}' for variant in fn.variants)


# -- torch --------------------------------------------------------------------------------------------------------


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


@dataclass
class InTorch:
    """A workload in torch: a function without arguments, the tensors that it changes, and its results."""

    fn: Callable[[], Any]
    results: Callable[[Any], Results]
    changes: Iterable[Any] = ()


def on_host(results: Results) -> Results:
    return {name: tensor.detach().cpu().numpy() for name, tensor in results.items()}


def torchs(make: Callable[[Any], InTorch]) -> dict[str, Callable[[], Way]]:
    """The two ways of torch."""

    def eager() -> Way:
        return torch_eager(make(torch_here()))

    def graph() -> Way:
        return torch_graph(make(torch_here()))

    return {'torch eager': eager, 'torch graph': graph}


def torch_eager(job: InTorch) -> Way:
    last = Last(job.fn, ())
    return Way(last, lambda: on_host(job.results(last.out)))


def torch_graph(job: InTorch) -> Way:
    graph, out = captured_by_torch(job.fn, job.changes)
    return Way(graph.replay, lambda: on_host(job.results(out)), graph.reset)


def captured_by_torch(fn: Callable[[], Any], changes: Iterable[Any]) -> tuple[Any, Any]:
    """The graph and its static result: warmed up on a side stream, as torch's documentation has it."""
    torch = torch_here()
    changes = list(changes)
    before = [tensor.detach().clone() for tensor in changes]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fn()
    with torch.no_grad():
        for tensor, was in zip(changes, before):
            tensor.copy_(was)
    torch.cuda.synchronize()
    return graph, out
