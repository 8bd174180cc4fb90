"""Priorities of lanes in graphs on a GPU: of two lanes that each fill it, the one of higher priority ends first.

Each block of threads waits on the device's own nanosecond clock, and the last one of a lane leaves its stamp. No length
of time is asserted, only which lane has ended first, in most of many launches; whichever lane was recorded first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.gpu.world import SPIN

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = [pytest.mark.gpu, pytest.mark.serial]

US, THREADS, KERNELS, LAUNCHES = 20, 1024, 3, 60
#: Blocks for each multiprocessor: several times what it holds at once.
WAVES = 8


@pytest.fixture(scope='module')
def greatest() -> int:
    from cuda.bindings import runtime

    code, least, greatest = runtime.cudaDeviceGetStreamPriorityRange()
    assert int(code) == 0
    if least == greatest:
        pytest.skip('the device has one priority of streams only')
    return int(greatest)


class Lanes:
    """Two lanes of kernels that each fill the GPU several times over, and the stamps of their last blocks."""

    def __init__(self) -> None:
        self.kernel = cp.RawKernel(SPIN, 'spin')
        self.stamps = cp.zeros((2, 2), np.uint64)
        self.blocks = WAVES * cp.cuda.Device().attributes['MultiProcessorCount']
        self.kernel((1,), (1,), (np.uint64(1), self.stamps[0]))
        cp.cuda.Device().synchronize()

    def work(self, number: int) -> None:
        for _ in range(KERNELS):
            self.kernel((self.blocks,), (THREADS,), (np.uint64(US), self.stamps[number]))

    def record(self, priorities: tuple[int, int], order: tuple[int, int]) -> None:
        """Fork two lanes of these priorities, and give them their work in this order."""
        with ck.fork(2, priority=priorities) as lanes:
            for number in order:
                with lanes[number]:
                    self.work(number)

    def assert_first(self, high: int, launch: Callable[[], Any]) -> None:
        """Most launches end with this lane first."""
        found = []
        for _ in range(LAUNCHES):
            launch()
            cp.cuda.get_current_stream().synchronize()
            found.append(int(np.argmin(cp.asnumpy(self.stamps)[:, 1])))
        assert found.count(high) > LAUNCHES / 2, found


@pytest.fixture(scope='module')
def lanes() -> Lanes:
    return Lanes()


@pytest.mark.parametrize('order', [(0, 1), (1, 0)])
@pytest.mark.parametrize('high', [0, 1])
def test_the_lane_of_higher_priority_ends_first(lanes: Lanes, greatest: int, high: int, order: tuple[int, int]) -> None:
    priorities = (greatest, 0) if high == 0 else (0, greatest)
    with ck.capture() as cap:
        lanes.record(priorities, order)
    assert cap.recording.by_priority
    lanes.assert_first(high, cap.graph.launch)
    copy = cap.graph.clone()
    lanes.assert_first(high, copy.launch)
    copy.close()
    cap.graph.close()


@pytest.mark.parametrize('order', [(0, 1), (1, 0)])
def test_a_graph_that_takes_over_another_keeps_them(lanes: Lanes, greatest: int, order: tuple[int, int]) -> None:
    with ck.capture() as cap:
        lanes.record((0, 0), order)
    graph = cap.graph
    assert not graph.recording.by_priority
    for high, how in ((1, 'instantiated'), (1, 'updated'), (0, 'instantiated')):
        with ck.capture(update=graph) as again:
            lanes.record((greatest, 0) if high == 0 else (0, greatest), order)
        assert again.update.how == how
        lanes.assert_first(high, graph.launch)
    graph.close()


@pytest.mark.parametrize('order', [(0, 1), (1, 0)])
@pytest.mark.parametrize('inside', ['a decision', 'an embedded graph'])
def test_bodies_and_embedded_graphs_keep_them(lanes: Lanes, greatest: int, order: tuple[int, int], inside: str) -> None:
    if inside == 'a decision':
        with ck.capture() as cap, cap.if_(cp.ones((), bool)):
            lanes.record((0, greatest), order)
    else:
        with ck.capture() as inner:
            lanes.record((0, greatest), order)
        with ck.capture() as cap:
            cap.embed(inner.graph)
    assert cap.recording.by_priority
    lanes.assert_first(1, cap.graph.launch)
    cap.graph.close()


@pytest.mark.parametrize('order', [(0, 1), (1, 0)])
def test_the_timeline_shows_it(lanes: Lanes, greatest: int, order: tuple[int, int]) -> None:
    with ck.capture() as cap:
        lanes.record((0, greatest), order)
    line = cap.graph.measure(launches=LAUNCHES)
    ends: dict[int, float] = {}
    quick = next(lane.number for lane in cap.recording.lanes if lane.priority)
    for node, span in zip(cap.graph.nodes, line.nodes):
        if node.kind == 'kernel' and node.lane is not None and span is not None:
            ends[node.lane] = max(span[1], ends.get(node.lane, 0.0))
    assert len(ends) == 2
    assert min(ends, key=lambda lane: ends[lane]) == quick
    cap.graph.close()
