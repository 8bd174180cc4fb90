"""Libraries that allocate memory on their stream: their calls are recorded outside of conditional nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.model.errors import CudaCallError

CALLS = ['solve', 'inv', 'qr', 'cholesky', 'slogdet', 'tensorsolve']


def matrix(cp: Any) -> Any:
    return cp.asarray(np.eye(3) * 2 + 1)


def called(cp: Any, name: str, a: Any, b: Any) -> Any:
    found = getattr(cp.linalg, name)(a, b) if name.endswith('solve') else getattr(cp.linalg, name)(a)
    return found if isinstance(found, cp.ndarray) else found[1]


@pytest.mark.parametrize('name', CALLS)
def test_a_call_behind_a_checked_read(cp: Any, name: str) -> None:
    a, b = matrix(cp), cp.ones(3)

    def work() -> Any:
        y = called(cp, name, a, b) if float(b[0]) < 2 else b
        return y * 3 if float(y.sum()) < 1e6 else y

    with ck.capture(rehearsal=ck.rehearse(work)) as cap:
        y = work()
    for _ in range(2):
        cap.graph.launch()
        assert np.allclose(y.get(), work().get())


def test_nothing_of_the_call_runs_if_the_check_fails(cp: Any) -> None:
    a, b = matrix(cp), cp.ones(3)
    out = cp.zeros(3)

    def work() -> None:
        if float(b[0]) < 2:
            out[...] = cp.linalg.solve(a, b)

    with ck.capture(rehearsal=ck.rehearse(work)) as cap:
        work()
    cap.graph.launch()
    assert np.allclose(out.get(), np.linalg.solve(a.get(), np.ones(3)))
    out.fill(7)
    b.fill(5)
    with pytest.raises(ck.AssumptionError, match=r'test_library_memory\.py'):
        cap.graph.launch()
    assert out.get().tolist() == [7.0] * 3


@pytest.mark.parametrize('name', CALLS)
def test_a_graphed_function(cp: Any, name: str) -> None:
    def work(a: Any, b: Any) -> Any:
        return called(cp, name, a, b) * 2 if float(b[0]) < 2 else b * 7

    fn = ck.graphed(work)
    kept = []
    for first in (1.0, 1.0, 1.0, 5.0, 1.0, 5.0, 5.0):
        b = cp.full(3, first)
        kept.append(fn(matrix(cp), b))
        assert np.allclose(kept[-1].get(), work(matrix(cp), b).get())
    if hasattr(cp, '__capturekit_simulated__'):  # a GPU's kernels may hold words that only look like addresses
        assert sum(variant.launches for variant in fn.variants) >= 2


def test_in_a_branch_of_the_device_it_is_refused(cp: Any) -> None:
    a, b, out, yes = matrix(cp), cp.ones(3), cp.zeros(3), cp.ones((), bool)
    with ck.capture() as cap, cap.if_(yes):
        with pytest.raises(ck.UnsupportedCallError, match='allocate') as raised:
            out[...] = cp.linalg.solve(a, b)
        out += 5
    assert raised.value.location is not None and raised.value.location.function == raised.traceback[0].name
    cap.graph.launch()
    assert out.get().tolist() == [5.0] * 3


def test_with_open_lanes_it_is_refused(cp: Any) -> None:
    a, b = matrix(cp), cp.ones(3)

    def work() -> Any:
        return b * 2 if float(b[0]) < 2 else b

    rehearsal = ck.rehearse(work)
    with ck.capture(rehearsal=rehearsal) as cap:
        y = work()
        with cap.fork(2) as (one, two):
            with one:
                y += 1
            with two, pytest.raises(ck.UnjoinedError, match='allocates memory itself while lanes are open'):
                cp.linalg.solve(a, b)
    cap.graph.launch()
    assert y.get().tolist() == [3.0] * 3


def test_memory_that_is_freed_behind_a_checked_read_is_refused(cp: Any) -> None:
    b = cp.ones(3)
    runtime = cp.cuda.runtime
    pointers: list[int] = []

    def work() -> Any:
        return b * 2 if float(b[0]) < 2 else b

    rehearsal = ck.rehearse(work)
    with pytest.raises(ck.UnsupportedCallError, match=r'mem ?[Ff]ree node behind a host read'):
        with ck.capture(rehearsal=rehearsal):
            stream = cp.cuda.get_current_stream()
            pointers.append(runtime.mallocAsync(64, stream.ptr))
            work()
            runtime.freeAsync(pointers[0], stream.ptr)
    with ck.capture() as cap:
        y = b * 4
    cap.graph.launch()
    assert y.get().tolist() == [4.0] * 3


def test_the_simulated_device_refuses_such_a_body(sim: Any) -> None:
    device = current().device
    graph = device.graph_create()
    condition = device.condition_create(graph)
    _, body = device.add_if(graph, (), condition)
    stream = sim.cuda.Stream(non_blocking=True)
    device.begin_capture_to(stream.ptr, body)
    pointer = sim.cuda.runtime.mallocAsync(64, stream.ptr)
    sim.cuda.runtime.freeAsync(pointer, stream.ptr)
    device.end_capture(stream.ptr)
    with pytest.raises(CudaCallError, match='InvalidValue'):
        device.graph_instantiate(graph)
