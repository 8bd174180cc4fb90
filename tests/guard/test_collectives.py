"""NCCL's collectives in captures, by ``cupy.cuda.nccl``: on the simulated machine, and on GPUs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.captured import simulated

N = 1024
#: Making them takes seconds on a GPU.
_COMMUNICATORS: dict[Any, list[Any]] = {}


def world_of(cupy: Any) -> SimpleNamespace:
    """Communicators of all devices, and on each two arrays: ``x`` is full of the device's number and 1, ``y`` empty."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        from cupy.cuda import nccl
    if not nccl.available:
        pytest.skip('this CuPy finds no NCCL')
    count = cupy.cuda.runtime.getDeviceCount()
    w = SimpleNamespace(cp=cupy, nccl=nccl, n=count, x=[], y=[])
    for device in range(count):
        with cupy.cuda.Device(device):
            w.x.append(cupy.full(N, device + 1.0, 'f4'))
            w.y.append(cupy.zeros(N * count, 'f4'))
            cupy.cuda.Device().synchronize()
    w.comms = _COMMUNICATORS.get(cupy) or nccl.NcclCommunicator.initAll(count)
    if not hasattr(cupy, '__capturekit_simulated__'):
        _COMMUNICATORS[cupy] = w.comms
    return w


@pytest.fixture
def w(several: Any) -> SimpleNamespace:
    return world_of(several)


def in_group(w: Any, lanes: Any, call: Callable[[Any, Any, Any, int], Any]) -> None:
    """Call ``call(comm, x, y, stream)`` for each rank, in one group."""
    w.nccl.groupStart()
    for comm, x, y, lane in zip(w.comms, w.x, w.y, lanes):
        call(comm, x.data.ptr, y.data.ptr, lane.ptr)
    w.nccl.groupEnd()


def all_reduce(w: Any) -> Callable[[Any, Any, Any, int], Any]:
    return lambda comm, x, y, s: comm.allReduce(x, y, N, w.nccl.NCCL_FLOAT32, w.nccl.NCCL_SUM, s)


def results(w: Any) -> list[Any]:
    for device in range(w.n):  # what was launched on the first one's stream is done
        w.cp.cuda.Device(device).synchronize()
    return [w.cp.asnumpy(y) for y in w.y]


def recorded(w: Any, call: Callable[[Any, Any, Any, int], Any]) -> Any:
    for device, y in enumerate(w.y):
        with w.cp.cuda.Device(device):
            y.fill(0)
            w.cp.cuda.Device().synchronize()
    with ck.capture() as cap, cap.fork(devices=range(w.n)) as lanes:
        in_group(w, lanes, call)
    assert all(not y.any() for y in results(w))
    return cap


# -- what is recorded -----------------------------------------------------------------------------------------


def test_a_sum_over_all_devices_is_one_launch(w: Any) -> None:
    """Each lane works before the sum and after it; the second launch sums what the first has left."""
    after = []
    with ck.capture() as cap, cap.fork(devices=range(w.n)) as lanes:
        for lane, x in zip(lanes, w.x):
            with lane:
                x *= 2
        in_group(w, lanes, all_reduce(w))
        for lane, y in zip(lanes, w.y):
            with lane:
                after.append(y[:N] + 1)
    total = w.n * (w.n + 1) / 2
    for times in (2, 4):
        cap.graph.launch()
        for y, z in zip(results(w), after):
            np.testing.assert_array_equal(y[:N], total * times)
            np.testing.assert_array_equal(w.cp.asnumpy(z), total * times + 1)
    assert [array.device.id for array in after] == list(range(w.n))
    assert sum('ncclDevKernel' in node.name for node in cap.graph.nodes) == w.n
    assert all('test_collectives.py' in str(node.at) for node in cap.graph.nodes)
    kernels = [node for node in cap.graph.nodes if 'ncclDevKernel' in node.name]
    assert sorted(node.lane or 0 for node in kernels) == list(range(1, w.n + 1))
    beside = [node for node in cap.graph.nodes if 'event' in node.kind]
    assert {node.at.line for node in beside} == {node.at.line for node in kernels}
    assert all(node.lane for node in beside)
    assert any('run alone' in note for note in cap.graph.races(observe=True).notes)
    cap.graph.close()


def test_every_collective_is_recorded(w: Any) -> None:
    nccl, n = w.nccl, w.n
    f, total, part = nccl.NCCL_FLOAT32, w.n * (w.n + 1) / 2, N // w.n
    ring = lambda c, step: (c.rank_id() + step) % n  # noqa: E731
    calls: dict[str, tuple[Any, Callable[[int], Any]]] = {
        'broadcast': (lambda c, x, y, s: c.broadcast(x, y, N, f, 1, s), lambda rank: np.full(N, 2.0)),
        'allGather': (
            lambda c, x, y, s: c.allGather(x, y, N, f, s),
            lambda rank: np.repeat(np.arange(1.0, n + 1), N),
        ),
        'reduceScatter': (
            lambda c, x, y, s: c.reduceScatter(x, y, part, f, nccl.NCCL_SUM, s),
            lambda rank: np.full(part, total),
        ),
        'reduce': (
            lambda c, x, y, s: c.reduce(x, y, N, f, nccl.NCCL_MAX, 0, s),
            lambda rank: np.full(N, n if rank == 0 else 0.0),
        ),
        'send and recv': (
            lambda c, x, y, s: (c.send(x, N, f, ring(c, 1), s), c.recv(y, N, f, ring(c, -1), s)),
            lambda rank: np.full(N, (rank - 1) % n + 1.0),
        ),
    }
    for name, (call, wanted) in calls.items():
        cap = recorded(w, call)
        cap.graph.launch()
        for rank, y in enumerate(results(w)):
            np.testing.assert_array_equal(y[: len(wanted(rank))], wanted(rank), name)
        cap.graph.close()
    cap = recorded(w, lambda c, x, y, s: c.bcast(x, N, f, 0, s))  # in place
    cap.graph.launch()
    for x in w.x:
        np.testing.assert_array_equal(w.cp.asnumpy(x), 1)
    cap.graph.close()


def test_communicators_and_arrays_live_as_long_as_the_graph(w: Any) -> None:
    cap = recorded(w, all_reduce(w))
    held = cap.graph._state.memory.held()
    assert all(any(one is comm for one in held) for comm in w.comms)
    blocks = {int(one.mem.ptr) for one in held if hasattr(one, 'mem')}
    assert {int(array.data.mem.ptr) for array in (*w.x, *w.y)} <= blocks
    del held
    cap.graph.close()


# -- what is refused ------------------------------------------------------------------------------------------


def test_what_is_refused_leaves_the_capture_good(w: Any) -> None:
    """Every refusal, in one block that goes on: its graph sums as if nothing had been tried."""
    call, outside = all_reduce(w), w.cp.cuda.Stream(non_blocking=True)
    first, last = (w.x[0].data.ptr, w.y[0].data.ptr), (w.x[-1].data.ptr, w.y[-1].data.ptr)
    with ck.capture() as cap, cap.fork(devices=range(w.n)) as lanes:
        for error, refused_call in (
            (ck.LegacyStreamError, lambda: call(w.comms[0], *first, 0)),
            (ck.EscapedWorkError, lambda: call(w.comms[0], *first, outside.ptr)),
            (ck.UnsupportedCallError, lambda: call(w.comms[-1], *last, lanes[0].ptr)),
            (ck.UnsupportedCallError, lambda: w.comms[0].destroy()),
            (ck.UnsupportedCallError, lambda: w.comms[0].abort()),
            (ck.UnsupportedCallError, lambda: w.nccl.NcclCommunicator.initAll(w.n)),
            (ck.UnsupportedCallError, lambda: w.comms[0].commSplit(0, 0)),
        ):
            with pytest.raises(error, match=r'NcclCommunicator\.\w+\(\)') as info:
                refused_call()
            assert info.value.location is not None and info.value.location.file == __file__
        in_group(w, lanes, call)
    assert all(not y.any() for y in results(w))
    for _ in range(2):
        cap.graph.launch()
        for y in results(w):
            np.testing.assert_array_equal(y[:N], w.n * (w.n + 1) / 2)
    assert sum('ncclDevKernel' in node.name for node in cap.graph.nodes) == w.n
    cap.graph.close()


def test_adapting_forks_the_streams_of_a_group(w: Any) -> None:
    streams = []
    for device in range(w.n):
        with w.cp.cuda.Device(device):
            streams.append(w.cp.cuda.Stream(non_blocking=True))
    with ck.capture(strict=False) as cap:
        in_group(w, streams, all_reduce(w))
    assert cap.recording.devices == list(range(w.n))
    cap.graph.launch()
    for y in results(w):
        np.testing.assert_array_equal(y[:N], w.n * (w.n + 1) / 2)
    cap.graph.close()


# -- the stand-in alone ---------------------------------------------------------------------------------------


@pytest.fixture
def s() -> Iterator[SimpleNamespace]:
    with simulated(0, devices=2) as cp:
        yield world_of(cp)


def test_a_group_left_open_is_told_at_the_end_of_the_block(s: Any) -> None:
    with pytest.raises(ck.UnsupportedCallError, match='group of NCCL was left open') as info:
        with ck.capture() as cap, cap.fork(devices=range(2)) as lanes:
            s.nccl.groupStart()
            all_reduce(s)(s.comms[0], s.x[0].data.ptr, s.y[0].data.ptr, lanes[0].ptr)
    assert all(not y.any() for y in results(s))
    assert info.value.location is not None and info.value.location.file == __file__
    with pytest.raises(s.nccl.NcclError):
        s.nccl.groupEnd()
    cap = recorded(s, all_reduce(s))  # its own group ends, though that of the block before never did
    cap.graph.launch()
    assert [y[0] for y in results(s)] == [3.0, 3.0]


def test_what_would_wait_for_ever_is_refused_by_the_stand_in(s: Any) -> None:
    lanes = [s.cp.cuda.Stream.null] * 2
    s.nccl.groupStart()
    all_reduce(s)(s.comms[0], s.x[0].data.ptr, s.y[0].data.ptr, 0)
    with pytest.raises(s.nccl.NcclError, match='for ever'):
        s.nccl.groupEnd()
    with pytest.raises(NotImplementedError, match='group'):
        all_reduce(s)(s.comms[0], s.x[0].data.ptr, s.y[0].data.ptr, 0)
    with pytest.raises(s.nccl.NcclError):
        s.nccl.groupEnd()
    in_group(s, lanes, all_reduce(s))
    with pytest.raises(NotImplementedError, match='NCCL in one process alone'):
        s.nccl.NcclCommunicator(2, s.nccl.get_unique_id(), 0)


def test_nccl_is_not_imported_for_our_sake(sim: Any) -> None:
    from capturekit.guard import GUARD

    backend = sys.modules.pop('cupy_backends.cuda.libs.nccl')
    try:
        with ck.capture():
            assert not any('nccl' in name for name in GUARD.installation.originals)
            assert 'cupy_backends.cuda.libs.nccl' not in sys.modules
    finally:
        sys.modules['cupy_backends.cuda.libs.nccl'] = backend
    with ck.capture():
        assert any('nccl' in name for name in GUARD.installation.originals)
