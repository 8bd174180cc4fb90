"""``relane(rounds=...)``: both orders are launched in turn and timed, and the graph keeps the faster one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.lanes.report import OrderTimes
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code
from tests.captured import flag, values
from tests.lanes.test_relane import SAME, chain, launch_right, steps_of


def beside_long_work(sim: Any) -> tuple[ck.Graph, list[Any]]:
    """Two short nodes in a row that need no order, beside one that takes longer than both."""
    large, outs, x = sim.zeros(400_000), [sim.zeros(8) for _ in range(2)], sim.arange(8.0)
    with ck.capture() as cap, cap.fork(2) as (one, other):
        with one:
            sim.add(large, 1, out=large)
        with other:
            for out in outs:
                sim.add(out, x, out=out)
    return cap.graph, [large, *outs]


def test_the_faster_order_is_kept_with_its_figures(sim: Any) -> None:
    graph, outs, _x = chain(sim)
    report = graph.relane(rounds=5)
    assert report and graph.edges == [(0, 1), (2, 3), (4, 5), (6, 7)] and report.times is not None
    assert len(report.times.recorded) == len(report.times.needed) == 5 and report.times.modelled
    was, now = report.times.medians
    assert was == pytest.approx(4 * now) and now > 4
    assert (
        'one launch, medians of 5 rounds: 16.0 us as recorded, 4.0 us as the data needs it, '
        '6.0 us so behind one node, 8.0 us on 2 lanes' in str(report)
    )
    assert graph.launches == 0 and [values(out) for out in outs] == [[0.0] * 8] * 4
    launch_right(graph, outs)
    assert report.compared == SAME


def test_the_recorded_order_is_kept_where_it_is_as_fast(sim: Any) -> None:
    graph, arrays = beside_long_work(sim)
    edges = graph.edges
    report = graph.relane(rounds=3)
    assert not report and report.loosened and graph.edges == edges
    assert report.kept == (
        'it is not faster: 8.4 us as recorded, 8.4 us as the data needs it, '
        '10.4 us so behind one node, 10.4 us on 2 lanes, by the model of the simulated device'
    )
    assert report.kept in str(report) and graph.recording.edge_count == len(edges)
    for launch in (1, 2):
        graph.launch()
        assert [values(one)[7] for one in arrays] == [1.0 * launch, 7.0 * launch, 7.0 * launch]
    assert graph.launches == 2


def test_what_launches_change_in_place_is_put_back(cp: Any) -> None:
    x, y = cp.zeros(8), cp.arange(8.0)
    with ck.capture() as cap:
        cp.add(x, 1, out=x)
        cp.multiply(y, 2, out=y)
    cap.graph.relane(rounds=4)
    assert (values(x), values(y)) == ([0.0] * 8, np.arange(8.0).tolist())
    for launch in (1, 2):
        cap.graph.launch()
        assert (values(x), values(y)) == ([1.0 * launch] * 8, (np.arange(8.0) * 2**launch).tolist())


@pytest.mark.parametrize('launched', [False, True])
def test_an_order_that_is_there_already_is_timed(sim: Any, launched: bool) -> None:
    graph, _arrays = beside_long_work(sim)
    edges = graph.edges
    graph.disable(2)
    assert graph.relane() and graph.edges != edges
    if launched:
        graph.launch()
    report = graph.relane(rounds=2)
    assert not report and report.kept.startswith('it is not faster: 8.4 us') and graph.edges == edges
    assert not graph.enabled(2)
    before = values(_arrays[2])
    graph.launch()
    assert values(_arrays[2]) == before and values(_arrays[1])[7] == 7.0 * (1 + launched)
    faster, _outs, _x = chain(sim)
    faster.relane()
    if launched:
        faster.launch()
    new = faster.edges
    assert faster.relane(rounds=2) and faster.edges == new
    faster.launch()
    assert faster.relane(rounds=1).compared == SAME


@pytest.mark.parametrize('long', [False, True])
def test_a_fused_graph_is_timed_as_it_is(sim: Any, long: bool) -> None:
    x, y, beside = sim.arange(8.0), sim.arange(9.0), sim.zeros(400_000 if long else 10)
    with ck.capture() as cap, cap.fork(2) as (one, other):
        with one:
            sim.add(beside, 1, out=beside)
        with other:
            for array in (x, y):
                array += array * 2
                array -= 1
    assert cap.graph.fuse()
    report = cap.graph.relane(rounds=2)
    assert bool(report) is not long and report.times is not None
    for _ in range(2):
        cap.graph.launch()
    assert values(x) == values(y)[:8] == (np.arange(8.0) * 9 - 4).tolist()


def test_an_order_that_is_needed_is_not_timed(cp: Any) -> None:
    report = steps_of(cp, cp.arange(8.0)).relane(rounds=2)
    assert report.times is None and report.kept == 'its data needs the order that was recorded'


def test_what_can_not_be_launched_twice_is_not_timed(cp: Any) -> None:
    a, b, c, called = cp.arange(8.0), cp.zeros(8), cp.zeros(8), []
    with ck.capture() as cap:
        cp.add(a, 1, out=b)
        cp.add(a, 1, out=c)
        cap.stream.launch_host_func(called.append, 1)
    report = cap.graph.relane(rounds=3)
    assert report and report.untimed.startswith('a node of it (host') and not called
    assert f'not timed: {report.untimed}' in str(report)
    with ck.capture() as cap:
        cp.add(a, 1, out=b)
        cp.add(a, 1, out=c)
        with cap.if_(flag(cp)):
            cp.add(a, 2, out=b)
    assert cap.graph.relane(rounds=3).untimed.startswith('a node of it (')


@pytest.mark.parametrize(
    ('error', 'told'),
    [
        (MemoryError('64 bytes'), 'no memory for copies (64 bytes)'),
        (CudaCallError(Code.cudaErrorNotSupported, 'timing'), 'CUDA refuses: cudaErrorNotSupported from timing'),
    ],
)
def test_where_nothing_can_be_timed_that_is_told(
    sim: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    graph, outs, _x = chain(sim)

    def refuse(*_args: Any) -> float:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(current().device, 'graph_time', refuse)
        report = graph.relane(rounds=2)
    assert report and report.times is None and report.untimed == told
    launch_right(graph, outs)
    assert report.compared == SAME


def test_memory_is_put_back_where_timing_ends_early(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = sim.zeros(8), sim.zeros(8)
    with ck.capture() as cap:
        sim.add(x, 1, out=x)
        sim.add(y, 1, out=y)
    time_one, count = current().device.graph_time, []

    def interrupted(*args: Any) -> float:
        us: float = time_one(*args)
        count.append(us)
        if len(count) == 3:
            raise KeyboardInterrupt
        return us

    with monkeypatch.context() as patch:
        patch.setattr(current().device, 'graph_time', interrupted)
        with pytest.raises(KeyboardInterrupt):
            cap.graph.relane(rounds=9)
    assert values(x) == values(y) == [0.0] * 8
    cap.graph.launch()
    assert values(x) == values(y) == [1.0] * 8


@pytest.mark.parametrize(
    ('recorded', 'needed', 'best'),
    [
        ((10.0, 11.0, 12.0, 30.0), (8.0, 8.0, 9.0, 9.0), -1),
        ((10.0, 11.0, 12.0, 30.0), (8.0, 9.0, 13.0, 14.0), 0),
        ((10.0,), (10.0,), 0),
    ],
)
def test_faster_is_what_is_so_beyond_doubt(recorded: Any, needed: Any, best: int) -> None:
    assert OrderTimes(recorded, needed).best == best
    assert OrderTimes(recorded, needed, lanes={4: (1.0,)}).best == 4
    assert str(OrderTimes((1234.0,), (8.0,))) == '1,234.0 us as recorded, 8.0 us as the data needs it'


def test_wrong_arguments(cp: Any) -> None:
    graph, _outs, _x = chain(cp)
    with pytest.raises(ValueError, match='report=True launches nothing'):
        graph.relane(report=True, rounds=2)
    with ck.capture(), pytest.raises(ck.UnmatchedError, match='this thread has a capture or a rehearsal open'):
        graph.relane(rounds=2)
    assert graph.launches == 0


def test_memory_of_the_host_is_compared_and_put_back(cp: Any) -> None:
    """Launches that do not count write copies of two arrays, which they change, into memory of the host."""
    arrays = [cp.zeros(8), cp.arange(8.0)]
    hosts = [np.frombuffer(cp.cuda.alloc_pinned_memory(64), 'f8', 8) for _ in arrays]
    for host in hosts:
        host[...] = -1.0
    with ck.capture() as cap:
        for array, host in zip(arrays, hosts):
            array += 1
            cp.cuda.runtime.memcpyAsync(host.ctypes.data, array.data.ptr, 64, 2, cap.stream.ptr)
    report = cap.graph.relane(rounds=2)
    assert report.times is not None and not report.untimed
    assert [host.tolist() for host in hosts] == [[-1.0] * 8] * 2 and values(arrays[0]) == [0.0] * 8
    cap.graph.launch()
    cp.cuda.Device().synchronize()
    assert report.compared in (SAME, '') and bool(report) == (report.compared == SAME)
    assert [host.tolist() for host in hosts] == [[1.0] * 8, (np.arange(8.0) + 1).tolist()]
