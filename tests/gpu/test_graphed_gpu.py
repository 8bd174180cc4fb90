"""``@ck.graphed`` on the GPU: what only a device can show."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from tests.gpu.world import Started
from tests.twins import twins

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu


@pytest.fixture
def sim() -> Iterator[Any]:
    """Where the other file has the simulated CuPy, the real one; each test leaves it clean."""
    yield cp
    gc.collect()
    cp.cuda.Device().synchronize()
    assert not GUARD.installation.installed and not GUARD.lives
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null


def texts_of_graphs(variant: Any) -> str:
    """The driver's own description of all graphs of a variant, in capitals."""
    plan = variant.plan
    graphs = [variant.graph.graph] if plan is None else [g for p in plan.parts for g in (p.graph, *p.bodies)]
    return ''.join(current().device.graph_dot(graph) for graph in graphs).upper()


def four_calls(fn: Any, *args: Any) -> Any:
    """Compare four calls with the eager answer, and return the only variant."""
    wanted = [array.get() for array in fn.__wrapped__(*args)]
    for _ in range(4):
        for got, want in zip(fn(*args), wanted):
            np.testing.assert_array_equal(got.get(), want)
    (variant,) = fn.variants
    assert variant.state == 'recorded' and variant.launches == 3
    return variant


def test_libraries_allocate_nothing(sim: Any) -> None:
    """The workspaces of CuPy's cuBLAS handle, of cuFFT and of CUB are the graph's own."""
    a = sim.asarray(np.random.default_rng(1).random((64, 64)) + 8 * np.eye(64))
    fn = ck.graphed(lambda a: (a @ a.T, sim.fft.rfft(a, axis=0), sim.sort(a, axis=1), a.sum()), strict=True)
    text = texts_of_graphs(four_calls(fn, a))
    assert 'MEM_ALLOC' not in text and 'MEM_FREE' not in text and 'MEMALLOC' not in text and 'KERNEL' in text


def test_a_solver_in_any_capture_of_the_process(sim: Any) -> None:
    """From the second capture on, cuSOLVER's own cuBLAS handle records an allocation for each triangular solve."""
    rng = np.random.default_rng(1)
    a, b = sim.asarray(rng.random((64, 64)) + 8 * np.eye(64)), sim.asarray(rng.random((64, 3)))
    for _ in range(3):
        variant = four_calls(ck.graphed(lambda a, b: (sim.linalg.solve(a @ a.T, b),), strict=True), a, b)
        assert variant.plan is None


def test_what_came_from_the_host_is_listed(sim: Any) -> None:
    x = sim.arange(8.0)
    table = np.arange(8.0) * 2
    with ck.capture() as cap:
        y = x * 3.5 + sim.asarray(table)
    cap.graph.launch()
    np.testing.assert_array_equal(y.get(), np.arange(8.0) * 5.5)
    found = cap.graph.constants()
    (upload,) = [entry for entry in found if entry['kind'] == 'upload']
    assert upload['nbytes'] == 64 and upload['at'][2] == 'test_what_came_from_the_host_is_listed'
    scalars = [entry for entry in found if entry['kind'] == 'scalar']
    assert any(entry['value'] == 3.5 and 'multiply' in entry['kernel'] for entry in scalars), found


@pytest.mark.parametrize('call', ['svd', 'eigh', 'lstsq', 'pinv'])
def test_seams(sim: Any, call: str) -> None:
    def make(cp: Any) -> Any:
        def fn(a: Any) -> Any:
            b = a @ a.T + 4 * cp.eye(8)
            found = cp.linalg.lstsq(b, a, rcond=None)[0] if call == 'lstsq' else getattr(cp.linalg, call)(b)
            return [part * 2 for part in found] if isinstance(found, tuple) else found * 2

        return fn

    inputs = [lambda cp, s=s: cp.asarray(np.random.default_rng(s).random((8, 8))) for s in range(6)]
    fn = twins(sim, make, inputs)
    (variant,) = fn.variants
    assert variant.state == 'pieces' and variant.launches == 4 and len(variant.seams) == 1
    assert 'test_graphed_gpu.py' in str(variant.seams[0]) and variant.seams[0].microseconds > 0


def test_generators_go_on_as_they_do_eagerly(sim: Any) -> None:
    def make(cp: Any) -> Any:
        rng = cp.random.default_rng(5)
        philox = cp.random.Generator(cp.random.Philox4x3210(5))

        def fn(x: Any) -> Any:
            noise = rng.random(x.shape) + philox.standard_normal(x.shape)
            if float(x[0]) > 2:
                return noise * 2 + rng.integers(0, 10, x.shape)
            return x + noise

        return fn

    fn = twins(sim, make, [lambda cp, v=v: cp.arange(4.0) + v for v in (0, 0, 0, 3, 3, 3, 0, 3, 0, 4, 0, 0, 3, 3)])
    assert 'recorded' in {variant.state for variant in fn.variants}


def test_a_pool_that_functions_share(sim: Any) -> None:
    """Functions may take from one pool; none overwrites what another has returned."""
    pool = sim.cuda.MemoryPool()
    fns = [ck.graphed(lambda x, k=k: (x * k).sum() + x * k, pool=pool) for k in (2, 3, 4)]
    kept = []
    for v in range(4):
        for k, fn in zip((2, 3, 4), fns):
            x = sim.arange(1 << 12, dtype='f8') + v
            kept.append((fn(x), (x.get() * k).sum() + x.get() * k))
    for got, want in kept:
        np.testing.assert_allclose(got.get(), want, rtol=1e-12)
    assert pool.total_bytes() > 0


def test_calls_of_one_function_on_two_streams_at_once(sim: Any) -> None:
    fn = ck.graphed(lambda x: (x * 2 + 1).cumsum())
    for _ in range(3):
        fn(sim.arange(4096.0))

    def work(number: int) -> None:
        with sim.cuda.Stream(non_blocking=True) as stream:
            found = [(fn(sim.arange(4096.0) + v), v) for v in range(number, number + 50)]
            stream.synchronize()
            for got, v in found:
                np.testing.assert_allclose(got.get(), ((np.arange(4096.0) + v) * 2 + 1).cumsum(), rtol=1e-12)

    for thread in [Started(lambda n=n: work(n)) for n in range(4)]:
        thread.result(60)


@pytest.mark.serial
def test_nothing_grows_over_many_calls(sim: Any) -> None:
    fn = ck.graphed(lambda x: x * 2 + 1)
    for _ in range(3):
        fn(sim.arange(65536.0) + 1)
    sim.cuda.Device().synchronize()
    free, used = sim.cuda.runtime.memGetInfo()[0], sim.get_default_memory_pool().used_bytes()
    for _ in range(2000):
        fn(sim.arange(65536.0) + 1)
    sim.cuda.Device().synchronize()
    assert sim.get_default_memory_pool().used_bytes() <= used
    assert sim.cuda.runtime.memGetInfo()[0] >= free - (8 << 20)
