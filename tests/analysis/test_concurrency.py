"""The concurrency report: five obstacles planted, each named with its line; figures of known graphs."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import capturekit as ck
from capturekit.analysis.concurrency import Obstacle, Study, most_at_once, shared
from capturekit.analysis.node_memory import joined
from capturekit.analysis.node_view import Node
from capturekit.driver.node_accesses import Touched, linear
from capturekit.model.recording import Timeline
from capturekit.simulated import body

BASE = 0x7F0000000000

#: Takes ``ns`` nanoseconds on a GPU; on the simulated device as long as its bytes say.
SPIN = """
unsigned long long begun, now;
asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begun < ns);
y = x + 1;
"""


@body('spins')
def _spins(x: Any, ns: int, y: Any) -> None:
    y[...] = x + 1


@pytest.fixture(params=['simulated', pytest.param('gpu', marks=[pytest.mark.gpu, pytest.mark.serial])])
def cp(request: pytest.FixtureRequest) -> Any:
    if request.param == 'gpu':
        return pytest.importorskip('cupy')
    return request.getfixturevalue('sim')


class Bench:
    """Arrays, and work on them of about 10 microseconds times ``long`` that can run beside other work."""

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        self.simulated = hasattr(cp, '__capturekit_simulated__')
        self.spin = cp.ElementwiseKernel('T x, uint64 ns', 'T y', SPIN, 'spins')

    def arrays(self, count: int, long: int = 1) -> list[Any]:
        size = 1_000_000 * long if self.simulated else 1024
        return [self.cp.zeros(size, self.cp.float32) for _ in range(count)]

    def work(self, array: Any, long: int = 1) -> None:
        self.spin(array, 10_000 * long, array)


@pytest.fixture
def bench(cp: Any) -> Bench:
    return Bench(cp)


def line() -> int:
    """The caller's line."""
    return sys._getframe(1).f_lineno


def only(report: ck.Concurrency, kind: str, at: int | None = None) -> Obstacle:
    """The first obstacle of a kind, which is at a line of this file."""
    found = [one for one in report.obstacles if one.kind == kind]
    assert found, str(report)
    assert at is None or (found[0].at is not None and found[0].at.line == at)
    return found[0]


# -- planted --------------------------------------------------------------------------------------------------


def test_an_edge_that_nothing_needs_is_named_with_its_wait(bench: Bench) -> None:
    x, y = bench.arrays(2)
    with ck.capture() as cap, cap.fork(2) as (a, b):
        with a:
            bench.work(x)
        b.stream.wait_event(a.stream.record())
        planted = line() - 1
        with b:
            bench.work(y)
    report = cap.graph.concurrency()
    found = only(report, 'needless edge', planted)
    assert found.nodes == (0, 1)
    assert found.gain_us == pytest.approx(report.ideal_us / 2, rel=0.4)
    assert not cap.graph.races()


def test_an_edge_that_is_needed_is_not_called_needless(bench: Bench) -> None:
    x, y = bench.arrays(2)
    with ck.capture() as cap, cap.fork(2) as (a, b):
        with a:
            bench.work(x)
        b.stream.wait_event(a.stream.record())
        with b:
            bench.spin(x, 10_000, y)
    assert not [one for one in cap.graph.concurrency().obstacles if one.kind == 'needless edge']


def test_a_lane_that_stands_still_is_named_with_its_wait(bench: Bench) -> None:
    (x,), (y,) = bench.arrays(1, 4), bench.arrays(1)
    with ck.capture() as cap:
        with cap.fork(1) as (a,):
            with a:
                bench.work(x, 4)
            bench.work(y)
            cap.join(a)
            planted = line() - 1
            bench.spin(x[: y.size], 10_000, y)
    found = only(cap.graph.concurrency(), 'waits', planted)
    assert found.gain_us == pytest.approx(30, rel=0.4)
    assert found.text.startswith('lane 0 is idle')


def test_a_lane_too_short_to_matter_is_named_with_its_fork(bench: Bench) -> None:
    (x,), tiny = bench.arrays(1, 2), bench.cp.zeros(16)
    with ck.capture() as cap:
        planted = line() + 1
        with cap.fork(2) as (a, b):
            with a:
                bench.work(x, 2)
            with b:
                bench.cp.add(tiny, 1, out=tiny)
    found = only(cap.graph.concurrency(), 'short lane', planted)
    assert found.text.startswith('lane 2 has ')


def test_independent_work_on_one_lane_is_named(bench: Bench) -> None:
    x, y = bench.arrays(2)
    with ck.capture() as cap:
        bench.work(x)
        bench.work(x)
        bench.spin(y, 10_000, y)
        planted = line() - 1
        bench.work(y)
    found = only(cap.graph.concurrency(), 'needless edge', planted)
    assert 'comes after, on the same lane' in found.text


def test_work_in_turns_is_told_by_what_its_data_would_allow(bench: Bench) -> None:
    x, y = bench.arrays(2)
    with ck.capture() as cap:
        for _ in range(3):
            bench.work(x)
            bench.work(y)
    report = cap.graph.concurrency()
    assert report.data_us == pytest.approx(report.ideal_us / 2, rel=0.3)
    assert report.data_width == 2
    assert only(report, 'mixed lanes').gain_us == pytest.approx(report.ideal_us / 2, rel=0.3)


def test_redundant_edges_are_named_with_their_wait(bench: Bench) -> None:
    x, y, z = bench.arrays(3)
    with ck.capture() as cap, cap.fork(2) as (a, b):
        with a:
            bench.work(x)
            early = a.stream.record()
            bench.work(y)
        b.stream.wait_event(a.stream.record())
        with b:
            bench.spin(y, 10_000, z)
        b.stream.wait_event(early)
        with b:
            bench.spin(x, 10_000, z)
    report = cap.graph.concurrency()
    redundant = [one for one in report.obstacles if one.kind == 'redundant edge']
    assert all(one.gain_us == 0 for one in redundant)
    assert {one.nodes for one in redundant} == {
        edge for edge in cap.graph.edges if edge not in {(0, 1), (1, 2), (2, 3)}
    }


# -- figures --------------------------------------------------------------------------------------------------


def node(number: int, lane: int = 0, **detail: Any) -> Node:
    return Node(number, 'kernel', f'k{number}', lane, None, detail)


def studied(
    lanes: list[int], edges: list[tuple[int, int]], spans: list[tuple[float, float]], capacity: int = 0,
    devices: dict[int, int] | None = None, **detail: Any,
) -> ck.Concurrency:  # fmt: skip
    nodes = [node(n, lane, **detail) for n, lane in enumerate(lanes)]
    touched = {n: Touched((linear(BASE + 512 * n, 4, True),)) for n in range(len(nodes))}
    end = max(end for _start, end in spans)
    line_ = Timeline('measured', 1, end, end, end, 0.0, list(spans), [0.0] * len(spans))
    return Study(nodes, edges, line_, touched, [], capacity, devices or {}).report


def test_the_figures_of_a_diamond() -> None:
    report = studied([0, 1, 2, 0], [(0, 1), (0, 2), (1, 3), (2, 3)], [(0, 10), (10, 30), (12, 20), (30, 35)])
    assert (report.nodes, report.edges, report.width) == (4, 4, 2)
    assert (report.alone_us, report.ideal_us, report.measured_us) == (43, 35, 35)
    assert [one.number for one in report.critical] == [0, 1, 3]
    assert report.lanes == {0: 15, 1: 20, 2: 8}
    assert report.overlap_us == {(0, 1): 0, (0, 2): 0, (1, 2): 8}
    assert report.speedup == pytest.approx(43 / 35)
    assert 'lanes 1 and 2: 8.0 us, 100 %' in str(report)


def test_a_kernel_that_fills_the_device_is_named() -> None:
    spans = [(0.0, 40.0), (40.0, 80.0)]
    report = studied([1, 2], [], spans, 132 * 2048, grid=(1056, 1, 1), block=(256, 1, 1))
    assert [one.nodes for one in report.obstacles if one.kind == 'fills the GPU'] == [(0,), (1,)]
    assert only(report, 'one after the other').nodes == (0, 1)
    small = studied([1, 2], [], spans, 132 * 2048, grid=(16, 1, 1), block=(256, 1, 1))
    alone = studied([1, 2], [(0, 1)], spans, 132 * 2048, grid=(4000,), block=(256,))
    assert not [one for one in (*small.obstacles, *alone.obstacles) if one.kind == 'fills the GPU']


def test_a_kernel_does_not_fill_the_devices_beside_its_own() -> None:
    spans = [(0.0, 40.0), (10.0, 50.0)]
    where: Any = {'devices': {1: 0, 2: 1}, 'grid': (1056, 1, 1), 'block': (256, 1, 1)}
    report = studied([1, 2], [], spans, 132 * 2048, **where)
    assert not report.obstacles
    assert report.devices == {1: 0, 2: 1}
    assert 'lanes 1 and 2 (devices 0 and 1): 30.0 us, 75 %' in str(report)
    apart = studied([1, 2], [], [(0.0, 40.0), (40.0, 80.0)], 132 * 2048, **where)
    said = str(only(apart, 'one after the other'))
    assert 'lanes 1 and 2 (devices 0 and 1)' in said and 'one is over before' in said and 'fills' not in said


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=9), st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=9))  # fmt: skip
def test_times_at_once_are_counted_by_the_microsecond(one: list[Any], other: list[Any]) -> None:
    first, second = ([(start, start + took) for start, took in spans] for spans in (one, other))
    moments = [{n for start, end in spans for n in range(start, end)} for spans in (first, second)]
    assert shared(joined(first, True), joined(second, True)) == len(moments[0] & moments[1])
    counts = [sum(start <= n < end for start, end in first) for n in range(30)]
    assert most_at_once(first) == max(counts)


# -- the call -------------------------------------------------------------------------------------------------


def added(cp: Any, times: int) -> ck.Graph:
    x = cp.zeros(64)
    with ck.capture() as cap:
        for _ in range(times):
            cp.add(x, 1, out=x)
    return cap.graph


def test_the_report_is_data_and_text(cp: Any) -> None:
    graph = added(cp, 1)
    report = graph.concurrency()
    assert report.source == graph.recording.timeline.source
    assert json.loads(json.dumps(report.to_json()))['critical'] == [0]
    assert 'no obstacle was found' in str(report)


def test_a_timeline_that_is_there_is_used(sim: Any) -> None:
    made = added(sim, 1)
    timeline = made.measure(launches=2)
    launched = made.launches
    made.concurrency()
    made.concurrency(timeline)
    assert made.launches == launched


def test_a_timeline_of_before_a_change_is_measured_anew(bench: Bench) -> None:
    x, y = bench.arrays(2)
    with ck.capture() as cap, cap.fork(2) as (a, b):
        with a:
            bench.work(x)
        b.stream.wait_event(a.stream.record())
        with b:
            bench.spin(x, 10_000, y)
    before = cap.graph.concurrency()
    cap.graph.disable(0)
    assert cap.graph.recording.timeline is None
    assert cap.graph.concurrency().alone_us < 0.8 * before.alone_us
    cap.graph.enable(0)
    assert cap.graph.concurrency().alone_us > 0.8 * before.alone_us


def test_bad_arguments_are_told_at_the_call(sim: Any) -> None:
    graph = added(sim, 1)
    with pytest.raises(TypeError, match='measure'):
        graph.concurrency(3)
    with pytest.raises(ValueError, match='another graph'):
        graph.concurrency(added(sim, 2).measure(launches=1))
    graph.close()
    with pytest.raises(ck.ClosedError):
        graph.concurrency()
