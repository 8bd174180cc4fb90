"""``graph.measure()``: when each node ran. What marks cost is taken off; a simulated device has a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.driver.event_timing import Times
from capturekit.graph.measure import timeline
from capturekit.model.recording import Recording, Timeline
from capturekit.model.rules import Code
from capturekit.simulated.device.machine import BYTES_PER_US, NODE_US

MIB = 1 << 20


def diamond(cp: Any) -> ck.Capture:
    """A root, two lanes of one node each, a join."""
    x = cp.linspace(0, 1, MIB)
    y, a, b, z = (cp.empty_like(x) for _ in range(4))
    with ck.capture() as cap:
        cp.tanh(x, out=y)
        with cap.fork(2) as (left, right):
            with left:
                cp.sin(y, out=a)
            with right:
                cp.cos(y, out=b)
        cp.add(a, b, out=z)
    return cap


# -- what marks cost is taken off ---------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[float | None], list[tuple[int, int]]]:
    """What each node takes, None for what has no marks; and edges from lower to higher numbers."""
    costs = draw(st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=12))
    edges = [(a, b) for b in range(len(costs)) for a in range(b) if draw(st.booleans())]
    return costs, edges


def ran(costs: list[float | None], edges: list[tuple[int, int]], mark: float) -> Any:
    """Start and end marks of each node, if nothing is waited for but what the edges say; and the last mark's."""
    marks: list[tuple[float, float]] = []
    passed: list[float] = []
    for number, cost in enumerate(costs):
        ready = max((passed[a] for a, b in edges if b == number), default=mark)
        start = ready if cost is None else ready + mark
        end = start if cost is None else start + cost
        marks.append((start, end if cost is None else end + mark))
        passed.append(marks[-1][1])
    last = max((end for _start, end in marks), default=mark)
    return [(a - mark, b - mark) for a, b in marks], last


@settings(deadline=None)
@given(graphs(), st.floats(0, 5))
def test_of_any_graph_the_marks_are_taken_off(
    graph: tuple[list[float | None], list[tuple[int, int]]], mark: float
) -> None:
    costs, edges = graph
    marks, last = ran(costs, edges, mark)
    wanted, _ = ran(costs, edges, 0)
    nodes = {100 + n: [marks[n]] * 2 for n, cost in enumerate(costs) if cost is not None}
    times = Times('measured', [7.0, 9.0], [last, last], [mark] * 5, nodes)
    found = timeline(times, {100 + n: n for n in range(len(costs))}, edges, len(costs))
    zero = min((start for (start, _end), cost in zip(wanted, costs) if cost is not None), default=0)
    for got, want, cost in zip(found.nodes, wanted, costs):
        assert (got is None) == (cost is None)
        if got is not None:
            assert got == pytest.approx((want[0] - zero, want[1] - zero), abs=0.01)
    assert (found.plain_us, found.launches) == (8.0, 2)
    assert found.mark_us == pytest.approx(mark, abs=0.001)
    assert found.spread_us == [0.0] * len(costs)


def test_nothing_takes_less_than_no_time() -> None:
    """A node that took less than what a mark costs, as clocks with steps make it, takes none."""
    times = Times('measured', [5.0], [9.0], [2.0], {1: [(2.0, 3.0)], 2: [(4.0, 9.0)]})
    found = timeline(times, {1: 0, 2: 1}, [(0, 1)], 2)
    assert found.nodes == [(0.0, 0.0), (0.0, 3.0)]


def test_waits_that_no_edge_explains_stay() -> None:
    times = Times('measured', [50.0], [60.0], [1.0], {1: [(1.0, 12.0)], 2: [(33.0, 39.0)]})
    assert timeline(times, {1: 0, 2: 1}, [(0, 1)], 2).nodes == [(0, 10), (30, 35)]


def test_medians_and_spread() -> None:
    pairs = [(0.0, 10.0), (0.0, 11.0), (0.0, 12.0), (0.0, 13.0), (0.0, 90.0)]
    found = timeline(Times('measured', [1.0] * 5, [1.0] * 5, [0.0], {1: pairs}), {1: 0}, [], 1)
    assert (found.nodes, found.spread_us, found.span_us) == ([(0.0, 12.0)], [2.0], 12.0)


# -- on the simulated device --------------------------------------------------------------------------------------


def test_times_come_from_a_model_and_say_so(sim: Any) -> None:
    cap = diamond(sim)
    found = cap.graph.measure(4, 0)
    one, two = NODE_US + 2 * 8 * MIB / BYTES_PER_US, NODE_US + 3 * 8 * MIB / BYTES_PER_US
    wanted = [(0, one), (one, 2 * one), (one, 2 * one), (2 * one, 2 * one + two)]
    assert found.nodes == [pytest.approx(pair, abs=0.001) for pair in wanted]
    assert (found.source, found.launches, found.mark_us) == ('modelled', 4, 0)
    assert found.span_us == found.plain_us == found.marked_us == found.nodes[3][1]  # type: ignore[index]
    assert found.sum_us == pytest.approx(3 * one + two, abs=0.01)
    assert cap.graph.measure(2).nodes == found.nodes, 'the same at each call'
    assert str(found).startswith('modelled, medians of 4 launches, 4 nodes with times, in microseconds\n')
    assert f'{found.sum_us / found.span_us:.2f} at once' in str(found)


def test_the_recording_keeps_it_with_nodes_and_edges(sim: Any, tmp_path: Path) -> None:
    cap = diamond(sim)
    assert cap.recording.timeline is None and cap.recording.graph == []
    found = cap.graph.measure(1, 0)
    assert cap.recording.timeline is found
    assert len(cap.recording.graph) == len(found.nodes) == 4
    assert [cap.recording.graph[n].kind for n in range(4)] == ['kernel'] * 4
    assert cap.recording.arrows == cap.graph.edges
    cap.recording.save(tmp_path / 'measured.json')
    assert Recording.load(tmp_path / 'measured.json') == cap.recording


def test_it_launches_as_often_as_it_says(sim: Any) -> None:
    count = sim.zeros(4)
    with ck.capture() as cap:
        count += 1
    cap.graph.measure(5, 2)
    assert count.tolist() == [2 * (5 + 2) + 1] * 4
    assert cap.graph.launches == 5 + 2 + 1, "those of the copy are not the graph's"


def test_what_takes_no_time_has_none(sim: Any) -> None:
    x, device = sim.zeros(4), current().device
    with ck.capture() as cap:
        x += 1
        device.event_record(device.event_create(), cap.stream.ptr, True)
        x *= 2
    cap.graph.disable(2)
    found = cap.graph.measure(1)
    kinds = [node.kind for node in cap.graph.nodes]
    assert kinds == ['kernel', 'event record', 'kernel']
    assert [node is None for node in found.nodes] == [False, True, True]
    assert found.durations_us[1:] == [0.0, 0.0]
    cap.graph.launch()
    assert x.tolist() == [cap.graph.launches + 4] * 4, 'disabled in the copy, too'


def test_an_updated_graph_is_measured_as_it_is_now(sim: Any) -> None:
    x = sim.zeros(MIB)
    with ck.capture() as cap:
        x += 1
    graph = cap.graph
    graph.measure(1)
    with ck.capture(update=graph):
        x *= 2
        x += 1
    assert graph.recording.timeline is None, 'the recording is another one'
    assert len(graph.measure(1).nodes) == 2
    clone = graph.clone()
    clone.disable(0)
    assert clone.measure(1).nodes[0] is None
    assert graph.measure(1).nodes[0] is not None


def test_a_graph_without_nodes(sim: Any) -> None:
    with ck.capture() as cap:
        pass
    found = cap.graph.measure(2, 0)
    assert (found.nodes, found.span_us, found.launches) == ([], 0.0, 2)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('given', 'kind', 'says'),
    [
        ({'launches': 0}, ValueError, 'launches must be at least 1, got 0'),
        ({'launches': True}, TypeError, 'launches must be a whole number, got bool'),
        ({'launches': 2.0}, TypeError, 'launches must be a whole number, got float'),
        ({'warmup': -1}, ValueError, 'warmup must be at least 0, got -1'),
        ({'warmup': '3'}, TypeError, 'warmup must be a whole number, got str'),
    ],
)
def test_bad_numbers(sim: Any, given: dict[str, Any], kind: type[Exception], says: str) -> None:
    graph = diamond(sim).graph
    with pytest.raises(kind, match=says):
        graph.measure(**given)
    assert graph.launches == 0


def test_in_a_capture(sim: Any) -> None:
    graph = diamond(sim).graph
    x = sim.zeros(4)
    with ck.capture() as cap:
        x += 1
        with pytest.raises(ck.UnmatchedError, match='Measure outside of it'):
            graph.measure()
        x += 1
    assert cap.graph.recording.node_count == 2
    assert graph.launches == 0 and graph.recording.timeline is None


def test_what_can_not_be_copied(sim: Any) -> None:
    x, going = sim.zeros(4), sim.ones((), dtype=bool)
    with ck.capture() as cap:
        with cap.if_(going):
            x += 1
    with pytest.raises(ck.UpdateError, match='conditional or memory nodes: 2: conditional if') as info:
        cap.graph.measure()
    assert info.value.location is not None and info.value.location.file == __file__
    assert cap.graph.launches == 0 and cap.recording.timeline is None


def test_the_graph_of_a_graphed_function(sim: Any) -> None:
    """Its launches take rows of a table that calls fill: only calls may launch it."""
    fn = ck.graphed(lambda x: sim.tanh(x) * 2)
    x = sim.ones(4)
    for _ in range(3):
        fn(x)
    with pytest.raises(ck.UnsupportedCallError, match='graphed function'):
        fn.variants[0].graph.measure()
    assert np.allclose(fn(x).tolist(), 2 * np.tanh(1))


def test_a_device_that_refuses(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = diamond(sim).graph
    for code, kind in (
        (Code.cudaErrorNotSupported, ck.UpdateError),
        (Code.cudaErrorMemoryAllocation, ck.CudaCallError),
    ):
        refusal = ck.CudaCallError(code, 'graphClone')

        def refuse(*_args: Any, refusal: Exception = refusal) -> Any:
            raise refusal

        monkeypatch.setattr(current().device, 'graph_measure', refuse)
        with pytest.raises(kind, match='graphClone'):
            graph.measure()
        assert graph.recording.timeline is None


# -- plain data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'line',
    [
        5, [1], {'nodes': 5}, {'nodes': [[1]], 'spread_us': [0]}, {'nodes': [[2, 1]], 'spread_us': [0]},
        {'nodes': [[-1, 1]], 'spread_us': [0]}, {'nodes': [[0, 'x']], 'spread_us': [0]}, {'nodes': [[0, 1]]},
        {'nodes': [[0, float('nan')]], 'spread_us': [0]}, {'span_us': float('inf')}, {'launches': '3'},
    ],
)  # fmt: skip
def test_what_is_no_timeline(line: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Recording.from_json({'version': 1, 'timeline': line})


def test_json_out_and_in() -> None:
    line = Timeline('measured', 3, 10.5, 9.25, 14.0, 0.75, [(0.0, 2.5), None, (2.5, 9.25)], [0.1, 0.0, 0.2])
    recording = Recording(timeline=line)
    assert Recording.from_json(json.loads(json.dumps(recording.to_json()))) == recording
    assert line.durations_us == [2.5, 0.0, 6.75]
    assert line.sum_us == 9.25
    assert str(Timeline()).startswith('measured, medians of 0 launches')
