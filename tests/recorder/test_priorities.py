"""Priorities of lanes in graphs: when a graph heeds them, that it tells so, and that what is made of it does, too."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import CudaDevice, current
from capturekit.model.errors import CudaCallError
from capturekit.model.recording import LaneRecord, Recording
from capturekit.model.rules import Code
from tests.captured import graph_at, recorded, simulated


@pytest.fixture(params=['simulated', pytest.param('gpu', marks=pytest.mark.gpu)])
def cp(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == 'gpu':
        runtime = pytest.importorskip('cuda.bindings.runtime')
        code, least, greatest = runtime.cudaDeviceGetStreamPriorityRange()
        if int(code) or least - greatest < 2:
            pytest.skip('the device has fewer than three priorities of streams')
        with pytest.MonkeyPatch.context() as patch:
            _NOTED.clear()
            patch.setattr(CudaDevice, 'graph_instantiate', _noting(CudaDevice.graph_instantiate))
            yield pytest.importorskip('cupy')
            _ASKED.clear()
        return
    with simulated(5) as cp:
        yield cp


#: By executable graph that capturekit instantiated, not CuPy, whether with the priorities of its nodes.
#: ``cudaGraphExecGetFlags`` does not
#: tell: driver 580 with CUDA 13.0 answers 0 for both. That they are heeded is measured in tests/gpu.
_NOTED: dict[int, bool] = {}
#: The graphs that were asked about: while they live, CuPy makes no executable graph where one of them is noted.
_ASKED: list[ck.Graph] = []


def _noting(instantiate: Any) -> Any:
    def noted(device: Any, g: int, by_node_priority: bool = False) -> int:
        made: int = instantiate(device, g, by_node_priority)
        _NOTED[made] = by_node_priority
        return made

    return noted


def heeds(executable: int) -> bool:
    """Whether an executable graph was instantiated with the priorities of its nodes."""
    device = current().device
    return bool(device.executables[executable].by_priority) if current().simulated else _NOTED.get(executable, False)


def told(graph: ck.Graph) -> bool:
    """What the recording tells, which must be so."""
    if not current().simulated:
        _ASKED.append(graph)
    assert graph.recording.by_priority == heeds(graph.graphExec)
    return graph.recording.by_priority


def branches(cp: Any, x: Any, scale: float = 2.0, priority: Any = (None, -1)) -> Any:
    """Two lanes, and their sum."""
    with ck.fork(2, priority=priority) as (left, right):
        with left:
            a = x * scale
        with right:
            b = x + scale
    return a + b


def wanted(scale: float = 2.0) -> Any:
    return np.arange(4) * scale + np.arange(4) + scale


@pytest.mark.parametrize(
    ('priority', 'heeded', 'lanes'),
    [
        (None, False, [0, 0, 0]),
        (0, False, [0, 0, 0]),
        ((0, None), False, [0, 0, 0]),
        (7, False, [0, 0, 0]),
        (-1, True, [0, -1, -1]),
        ((None, -1), True, [0, 0, -1]),
        ((-2, -1), True, [0, -2, -1]),
    ],
)
def test_a_graph_heeds_them_where_its_lanes_differ(cp: Any, priority: Any, heeded: bool, lanes: list[int]) -> None:
    x = cp.arange(4.0)
    graph, y = recorded(lambda: branches(cp, x, priority=priority))
    assert told(graph) == heeded
    assert [lane.priority for lane in graph.recording.lanes] == lanes
    graph.launch()
    graph.launch(cp.cuda.Stream(non_blocking=True, priority=-1))
    cp.cuda.Device().synchronize()
    assert np.array_equal(y.get(), wanted())
    graph.close()


def test_streams_of_the_user_s_own_count(cp: Any) -> None:
    """And a graph that capturekit instantiates keeps its host functions, too."""
    x, side, called = cp.arange(4.0), cp.cuda.Stream(non_blocking=True, priority=-1), list[int]()
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x * 2
        cap.join(side)
        z = y + 1
        cap.stream.launch_host_func(called.append, 1)
    assert told(cap.graph)
    assert [lane.priority for lane in cap.recording.lanes] == [0, -1]
    gc.collect()
    cap.graph.launch()
    cp.cuda.Device().synchronize()
    assert np.array_equal(z.get(), np.arange(4) * 2 + 1) and called == [1]


def test_where_all_lanes_have_one_priority_the_launch_decides(cp: Any) -> None:
    x, origin = cp.arange(4.0), cp.cuda.Stream(non_blocking=True, priority=-1)
    graph, _y = recorded(lambda: x + 1, stream=origin)
    assert not told(graph)
    assert graph.recording.lanes[0].priority == -1
    graph, _y = recorded(lambda: branches(cp, x, priority=-1), stream=origin)
    assert not told(graph)
    graph, _y = recorded(lambda: branches(cp, x, priority=None), stream=origin)
    assert told(graph)
    assert [lane.priority for lane in graph.recording.lanes] == [-1, 0, 0]


def test_the_bodies_of_decisions_count(cp: Any) -> None:
    x, going = cp.arange(4.0), cp.ones((), bool)
    with ck.capture() as cap, cap.if_(going):
        y = branches(cp, x)
    assert told(cap.graph)
    cap.graph.launch()
    assert np.array_equal(y.get(), wanted())


def test_an_embedded_graph_keeps_its_priorities(cp: Any) -> None:
    x = cp.arange(4.0)
    inner, y = recorded(lambda: branches(cp, x))
    with ck.capture() as cap:
        cap.embed(inner)
        z = y + 1
    assert told(cap.graph)
    assert len({lane.priority for lane in cap.recording.lanes}) == 1
    cap.graph.launch()
    assert np.array_equal(z.get(), wanted() + 1)
    plain, _y = recorded(lambda: branches(cp, x, priority=None))
    with ck.capture() as cap:
        cap.embed(plain)
    assert not told(cap.graph)


def test_into_a_graph_of_somebody_else_s_says_what_to_do(cp: Any) -> None:
    x, device = cp.arange(4.0), current().device
    g = device.graph_create()
    with ck.capture(into=graph_at(g)) as cap:
        branches(cp, x)
    assert not cap.recording.by_priority
    assert any('cudaGraphInstantiateFlagUseNodePriority' in step.text for step in cap.recording.notes)
    with ck.capture(into=graph_at(g), after=cap.ends) as second:
        branches(cp, x, priority=None)
    assert second.recording.notes == []
    device.graph_destroy(g)
    cap.close()
    second.close()


def test_a_capture_begun_by_hand_says_they_are_not_heeded(cp: Any) -> None:
    from capturekit.guard.open_capture import LISTENERS

    heard: list[Recording] = []
    listen = lambda recording, graph: heard.append(recording)  # noqa: E731
    LISTENERS.append(listen)
    try:
        with ck.capture() as cap:  # so that the guard is there
            for priority in (-1, 0):
                one, two = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True, priority=priority)
                one.begin_capture()
                two.wait_event(one.record())
                one.wait_event(two.record())
                one.end_capture()
    finally:
        LISTENERS.remove(listen)
    assert [len(recording.notes) for recording in heard] == [1, 0, 0]
    assert 'CuPy instantiates graphs without them' in heard[0].notes[0].text
    assert [lane.priority for lane in heard[0].lanes] == [0, -1]
    assert not heard[0].by_priority
    assert not told(cap.graph)


def test_a_copy_and_a_changed_graph_heed_them(cp: Any) -> None:
    x = cp.arange(4.0)
    graph, _y = recorded(lambda: branches(cp, x))
    copy = graph.clone()
    assert told(copy)
    other, y = recorded(lambda: branches(cp, x, 3.0))
    assert graph.update(other).how == 'updated'
    assert told(graph)
    graph.disable(0)  # its nodes' names are found by instantiating anew
    assert told(graph)
    graph.enable(0)
    graph.launch()
    assert np.array_equal(y.get(), wanted(3.0))


@pytest.mark.parametrize(
    ('before', 'after', 'said', 'why'),
    [
        (None, (None, -1), 'priorities', 'priorities'),
        ((None, -1), None, 'priorities', 'priorities'),
        ((None, -1), (None, -2), 'has the priority -2, and had -1', 'attributes changed'),
    ],
)
def test_graphs_with_other_priorities_are_instantiated_anew(
    cp: Any, before: Any, after: Any, said: str, why: str
) -> None:
    x = cp.arange(4.0)
    graph, _y = recorded(lambda: branches(cp, x, priority=before))
    other, y = recorded(lambda: branches(cp, x, 3.0, after))
    with pytest.raises(ck.UpdateError, match=said) as info:
        graph.update(other)
    assert info.value.reason == why and [one.kind for one in info.value.differences] == ['priority']
    assert told(graph) == (before is not None) and told(other) == (after is not None)
    done = graph.update(other, instantiate=True)
    assert (done.how, done.why) == ('instantiated', why)
    assert told(graph) == (after is not None)
    graph.launch()
    assert np.array_equal(y.get(), wanted(3.0))


def test_a_capture_for_a_graph_that_is_there(cp: Any) -> None:
    x = cp.arange(4.0)
    graph, _y = recorded(lambda: branches(cp, x, priority=None))
    hows = []
    for scale, priority in ((3.0, -1), (4.0, -1), (5.0, -2), (6.0, None)):
        with ck.capture(update=graph) as cap:
            y = branches(cp, x, scale, priority)
        hows.append(cap.update.how)
        assert told(graph) == (priority is not None)
        graph.launch()
        assert np.array_equal(y.get(), wanted(scale))
    assert hows == ['instantiated', 'updated', 'instantiated', 'instantiated']


def test_every_part_of_a_function_with_checks_heeds_them(cp: Any) -> None:
    @ck.graphed
    def step(x: Any) -> Any:
        y = branches(cp, x)
        return branches(cp, y) if y.sum() > 0 else y

    for _ in range(4):
        x = np.arange(4.0) * 3 + 2
        assert np.array_equal(step(cp.arange(4.0)).get(), x * 3 + 2)
    (variant,) = step.variants
    assert variant.plan is not None and variant.graph is not None
    assert all(heeds(part.executable) for part in variant.plan.parts)
    assert variant.graph.recording.by_priority


def test_a_lost_capture_is_told_as_such(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams can not be asked for their priorities: that is not what is told."""
    device, side = sim.__capturekit_simulated__, sim.cuda.Stream(non_blocking=True)
    ask = device.stream_priority

    def lost(s: int) -> int:
        device._invalidate(device.captures)
        return int(ask(s))

    monkeypatch.setattr(device, 'stream_priority', lost)
    with pytest.raises(ck.InvalidatedError), ck.capture() as cap:
        side.wait_event(cap.stream.record())
        cap.join(side)


def test_the_recording_tells(sim: Any, tmp_path: Any) -> None:
    x = sim.arange(4.0)
    graph, _y = recorded(lambda: branches(sim, x))
    text = str(graph.recording)
    assert 'priorities used' in text and 'priority -1, forked from lane 0' in text
    assert 'priority 0' not in text
    graph.recording.save(tmp_path / 'one.json')
    loaded = Recording.load(tmp_path / 'one.json')
    assert loaded == graph.recording and loaded.by_priority
    old = graph.recording.to_json()
    del old['by_priority']
    for lane in old['lanes']:
        del lane['priority']
    assert not Recording.from_json(old).by_priority
    assert Recording.from_json(old).lanes[1] == LaneRecord(**{**old['lanes'][1], 'priority': 0})
    for name in ('to_text', 'to_svg', 'to_html'):
        drawn = getattr(ck.render, name)(graph.recording)
        assert 'priorities used' in drawn and 'priority -1, forked from lane 0' in drawn
    assert 'priorities used' not in str(recorded(lambda: branches(sim, x, priority=None))[0].recording)


def orders(priority: Any) -> list[tuple[int, ...]]:
    """In which order a graph ran what three lanes hold that nothing orders, launch by launch."""
    found, ran = [], list[int]()
    with simulated(1):
        with ck.capture() as cap, cap.fork(3, priority=priority) as lanes:
            for lane in lanes:
                current().device.submit(lane.ptr, partial(ran.append, lane.number), 'kernel')
        for _ in range(600):
            cap.graph.launch()
            found.append(tuple(ran))
            ran.clear()
    return found


def test_higher_priorities_run_first_and_every_order_comes() -> None:
    heeded, plain = orders((0, -1, -2)), orders(None)
    assert len(set(heeded)) == len(set(plain)) == 6
    assert heeded.count((2, 1, 0)) > heeded.count((0, 1, 2)) * 5
    first, evenly = (sum(order.index(2) < order.index(0) for order in found) / len(found) for found in (heeded, plain))
    assert 0.7 < first < 1 and 0.4 < evenly < 0.6


def test_cuda_is_given_the_flag() -> None:
    given: list[tuple[Any, int]] = []
    answers = iter([0, 0, 1])

    def instantiate(graph: Any, flags: int) -> tuple[int, int]:
        given.append((graph, flags))
        return next(answers), 77

    device = object.__new__(CudaDevice)
    device.rt = SimpleNamespace(
        cudaGraphInstantiate=instantiate, cudaGraph_t=lambda g: ('graph', g), cudaGetLastError=lambda: None
    )
    assert device.graph_instantiate(5) == device.graph_instantiate(5, by_node_priority=True) == 77
    with pytest.raises(CudaCallError) as info:
        device.graph_instantiate(6, True)
    assert info.value.code is Code.cudaErrorInvalidValue
    assert given == [(('graph', 5), 0), (('graph', 5), 8), (('graph', 6), 8)]


def test_the_flag_is_cuda_s() -> None:
    flags = pytest.importorskip('cuda.bindings.runtime').cudaGraphInstantiateFlags
    assert int(flags.cudaGraphInstantiateFlagUseNodePriority) == 8
