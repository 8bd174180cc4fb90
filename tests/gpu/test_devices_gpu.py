"""Captures over several GPUs: what only GPUs can show. Written for any number of them, and skipped where there is one.

What holds on the simulated machine as well is in ``tests/guard/test_devices.py`` and
``tests/guard/test_collectives.py``, whose tests run on GPUs, too.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.command import python
from tests.gpu.world import SPIN, in_process

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = [pytest.mark.gpu, pytest.mark.serial]

#: Seconds that a process of a test may take.
LIMIT = 60
N = 1 << 16


@pytest.fixture(autouse=True)
def count() -> Iterator[int]:
    """How many devices there are."""
    found = int(cp.cuda.runtime.getDeviceCount())
    if found < 2:
        pytest.skip(f'this needs two devices, and there are {found}')
    cp.cuda.Device(0).use()
    yield found
    assert cp.cuda.Device().id == 0


@pytest.fixture(scope='module')
def nccl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        from cupy.cuda import nccl
    if not nccl.available:
        pytest.skip('this CuPy finds no NCCL')
    return nccl


@pytest.fixture(scope='module')
def comms(nccl: Any) -> Any:
    return nccl.NcclCommunicator.initAll(cp.cuda.runtime.getDeviceCount())


def filled(value: float, device: int) -> Any:
    with cp.cuda.Device(device):
        x = cp.full(N, value, 'f4')
        cp.cuda.Device().synchronize()
        return x


@pytest.fixture
def spin() -> Any:
    """A kernel that takes so many microseconds, loaded on each device."""
    kernel = cp.RawKernel(SPIN, 'spin')
    for device in range(cp.cuda.runtime.getDeviceCount()):
        with cp.cuda.Device(device):
            kernel((1,), (1,), (np.uint64(1), np.uint64(0)))
            cp.cuda.Device().synchronize()
    return lambda us: kernel((1,), (1,), (np.uint64(us), np.uint64(0)))


def summed(nccl: Any, comms: Any, xs: list[Any], ys: list[Any], streams: Any) -> None:
    """Add up the arrays of all devices into one on each, in streams of theirs."""
    nccl.groupStart()
    for comm, x, y, stream in zip(comms, xs, ys, streams):
        comm.allReduce(x.data.ptr, y.data.ptr, N, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
    nccl.groupEnd()


@pytest.mark.usefixtures('profiler_beside_threads')
def test_a_row_from_device_to_device_is_measured_by_one_clock(count: int, spin: Any) -> None:
    """Each node comes after one of another device: a clock that is off would let nodes overlap, or leave a gap."""
    us, hops = 100, 4 * count
    with ck.capture() as cap, cap.fork(devices=list(range(count))) as lanes:
        for hop in range(hops):
            if hop:
                with lanes[(hop - 1) % count] as before:
                    event = before.stream.record()
                lanes[hop % count].stream.wait_event(event)
            with lanes[hop % count]:
                spin(us)
    line = cap.graph.measure()
    assert (line.source, line.by) == ('measured', 'profiler')
    spans = [span for node, span in zip(cap.graph.nodes, line.nodes) if node.kind == 'kernel']
    assert len(spans) == hops and None not in spans
    assert all(abs(end - start - us) < 3 for start, end in spans)
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(spans)]
    assert all(-2 < gap < 20 for gap in gaps), gaps
    assert abs(line.span_us - line.plain_us) < max(20, 0.03 * line.plain_us)


@pytest.mark.usefixtures('profiler_beside_threads')
def test_lanes_of_all_devices_are_seen_to_run_at_once(count: int, spin: Any) -> None:
    us = 500
    with ck.capture() as cap, cap.fork(devices=list(range(count))) as lanes:
        for lane in lanes:
            with lane:
                spin(us)
    report = cap.graph.concurrency()
    assert report.devices == {number + 1: number for number in range(count)}
    assert all(shared > 0.9 * us for shared in report.overlap_us.values()), report.overlap_us
    assert len(report.overlap_us) == count * (count - 1) // 2


@pytest.mark.usefixtures('profiler_beside_threads')
def test_the_parts_of_a_collective_end_together(count: int, comms: Any, nccl: Any) -> None:
    xs = [filled(1, device) for device in range(count)]
    with ck.capture() as cap, cap.fork(devices=list(range(count))) as lanes:
        summed(nccl, comms, xs, xs, lanes)
    line = cap.graph.measure()
    ends = [span[1] for node, span in zip(cap.graph.nodes, line.nodes) if node.kind == 'kernel' and span is not None]
    assert len(ends) == count and max(ends) - min(ends) < 5, ends
    cap.graph.close()


def test_bare_cupy_loses_the_work_of_a_device_without_a_lane() -> None:
    """Why it is refused: nothing fails, the work runs at once, and the graph has no node."""
    x, stream = filled(1, 1), cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with cp.cuda.Device(1):
            x *= 2
        graph = stream.end_capture()
    with cp.cuda.Device(1):
        cp.cuda.Device().synchronize()
        assert float(x[0]) == 2
    del graph


def test_the_first_copy_between_two_devices_may_be_recorded() -> None:
    """CuPy enables peer access at the first copy, which the relaxed mode allows; in a process of its own."""
    said = in_process("""
        import cupy as cp, numpy as np, capturekit as ck
        x = cp.arange(10.)
        with cp.cuda.Device(1):
            y = cp.zeros(10); cp.cuda.Device().synchronize()
        for mode in ('relaxed', 'thread_local', 'global'):
            with ck.capture(mode=mode) as cap:
                cp.copyto(y, x)
            x += 1
            cap.graph.launch(); cp.cuda.Device().synchronize()
            np.testing.assert_array_equal(cp.asnumpy(y), cp.asnumpy(x))
        print('fine')
        """)
    assert said.strip() == 'fine'


SUM = """
    import sys
    import cupy as cp, capturekit as ck
    from cupy.cuda import nccl
    n = cp.cuda.runtime.getDeviceCount()
    comms = nccl.NcclCommunicator.initAll(n)
    xs, ys = [], []
    for device in range(n):
        with cp.cuda.Device(device):
            xs.append(cp.full(100, device + 1, 'f4')); ys.append(cp.zeros(100, 'f4')); cp.cuda.Device().synchronize()
    with ck.capture() as cap, cap.fork(devices=range(n)) as lanes:
        nccl.groupStart()
        for comm, x, y, lane in zip(comms, xs, ys, lanes):
            comm.allReduce(x.data.ptr, y.data.ptr, 100, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, lane.ptr)
        nccl.groupEnd()
    cap.graph.launch()
    cp.cuda.Device().synchronize()
    print([float(cp.asnumpy(y)[0]) for y in ys] == [n * (n + 1) / 2] * n, flush=True)
    """


@pytest.mark.parametrize(
    'end',
    [
        pytest.param('', id='all alive'),
        pytest.param('del comms, comm', id='communicators dropped first'),
        pytest.param('del cap', id='graph dropped first'),
        pytest.param('cap.graph.close(); [comm.destroy() for comm in comms]', id='closed, destroyed'),
        pytest.param('class Kept: pass\n    Kept.cap = Kept; Kept.all = cap, comms, Kept', id='in a cycle'),
    ],
)
def test_a_process_with_collectives_in_a_graph_ends(nccl: Any, end: str) -> None:
    """``ncclCommDestroy`` waits for graphs that hold the communicator: an end in the wrong order would never come."""
    assert in_process(SUM + end, timeout=LIMIT).strip() == 'True'


def test_a_failed_capture_lets_communicators_go(nccl: Any) -> None:
    good, failing = SUM.split('    with ck.capture()')
    failing = failing.partition('    cap.graph.launch()')[0].replace('\n    ', '\n        ')
    in_process(
        f"""{good}
    try:
        with ck.capture(){failing}
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    """,
        timeout=LIMIT,
    )


def test_a_graph_on_each_device_launched_one_by_one(count: int, nccl: Any, comms: Any) -> None:
    """A capture on each device, a collective over all: one launch on each, by one thread."""
    xs, ys = [filled(d + 1, d) for d in range(count)], [filled(0, d) for d in range(count)]
    caps = []
    with ExitStack() as stack:
        for device in range(count):
            stack.enter_context(cp.cuda.Device(device))
            caps.append(stack.enter_context(ck.capture()))
        summed(nccl, comms, xs, ys, [cap.stream for cap in caps])
    assert [cap.recording.devices for cap in caps] == [[device] for device in range(count)]
    for times in (1, 2):
        for device, cap in enumerate(caps):
            with cp.cuda.Device(device):
                cap.graph.launch()
        for device, (x, y) in enumerate(zip(xs, ys)):
            with cp.cuda.Device(device):
                cp.cuda.Device().synchronize()
                assert float(abs(y - times * count * (count + 1) / 2).max()) == 0
                x *= 2
                cp.cuda.Device().synchronize()
    for cap in caps:
        cap.graph.close()


RANK = """
    import sys
    import cupy as cp, capturekit as ck
    from cupy.cuda import nccl
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    cp.cuda.Device(rank).use()
    if rank == 0:
        print(nccl.get_unique_id().hex(), flush=True)
    comm = nccl.NcclCommunicator(size, bytes.fromhex(sys.stdin.readline()), rank)
    x, y = cp.full(1000, rank + 1, 'f4'), cp.zeros(1000, 'f4')
    cp.cuda.Device().synchronize()
    with ck.capture() as cap:
        x *= 2
        comm.allReduce(x.data.ptr, y.data.ptr, 1000, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, cap.stream.ptr)
        z = y + 1
    for _ in range(5):
        cap.graph.launch()
    print(float(z[0]), cap.recording.devices, flush=True)
    """


def test_a_process_for_each_device(count: int, nccl: Any) -> None:
    """Each records its own graph, with the collective in it, and launches it."""
    ranks = [
        subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', textwrap.dedent(RANK), str(rank), str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        assert ranks[0].stdout is not None
        unique = ranks[0].stdout.readline()
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write(unique)
            rank.stdin.flush()
        said = [rank.communicate(timeout=LIMIT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    total = 2**5 * count * (count + 1) / 2 + 1
    assert [out.strip() for out, _err in said] == [f'{total} [{d}]' for d in range(count)], said


def test_threads_capture_on_devices_of_their_own(count: int) -> None:
    """Each thread on its own device, at once; a device-wide wait outside of the captures ends."""

    def work(device: int) -> None:
        with cp.cuda.Device(device):
            x = cp.zeros(1000)
            cp.cuda.Device().synchronize()
            for times in range(1, 6):
                with ck.capture() as cap:
                    x += 1
                cap.graph.launch()
                cp.cuda.Device().synchronize()
                assert float(x[0]) == times

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count), timeout=LIMIT))


def test_the_sample_runs_on_all_devices(count: int, tmp_path: Any) -> None:
    done = python('samples/two_devices.py', '--out', str(tmp_path / 'picture.svg'), timeout=300)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f'{count} devices')
