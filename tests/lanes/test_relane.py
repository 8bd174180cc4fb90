"""Graphs with the edges that their data needs: which these are, that launches give the same, and what happens later."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.lanes import new_order
from capturekit.launch.declared import Declared
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code
from tests.analysis.test_needed_order import closure
from tests.analysis.test_races import ARRAYS, N, Op, Wait, conflict, ops, programs, record, told
from tests.captured import flag, values
from tests.examples import examples

SAME = 'the same as with the recorded edges'
quiet = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def chain(cp: Any, count: int = 4) -> tuple[ck.Graph, list[Any], Any]:
    """Work on arrays that have nothing in common, recorded on one lane: two nodes for each array."""
    x, outs = cp.arange(8.0), [cp.zeros(8) for _ in range(count)]
    with ck.capture() as cap:
        for number, out in enumerate(outs):
            cp.sqrt(x, out=out)
            cp.multiply(out, number + 1, out=out)
    return cap.graph, outs, x


def wanted(count: int) -> list[list[float]]:
    return [(np.sqrt(np.arange(8.0)) * (number + 1)).tolist() for number in range(count)]


def launch_right(graph: ck.Graph, outs: list[Any]) -> None:
    graph.launch()
    assert [values(out) for out in outs] == wanted(len(outs))


# -- which edges ------------------------------------------------------------------------------------------------


one_lane = st.lists(ops.map(lambda op: Op(0, op.dst, op.src)), min_size=2, max_size=14)


def by_definition(program: list[Op | Wait], fixed: set[int]) -> set[tuple[int, int]]:
    """All pairs that are ordered if each pair of nodes is, whose order was recorded and which share a byte."""
    meant = told(program)
    pairs = {
        (a, b)
        for b, before in enumerate(meant.before)
        for a in before
        if a in fixed or b in fixed or conflict(meant.ops[a], meant.ops[b])
    }
    return closure(len(meant.ops), pairs)


@settings(quiet, max_examples=examples(200))
@given(program=st.one_of(one_lane, programs))
def test_no_pair_is_ordered_that_the_data_leaves_open(cp: Any, program: list[Op | Wait]) -> None:
    arrays = [cp.zeros(N, cp.float32) for _ in range(ARRAYS)]
    graph = record(cp, arrays, program)
    count, before = len(graph.nodes), {race.missing for race in graph.races()}
    report = graph.relane()
    assert count == len(told(program).ops)
    needed = by_definition(program, {node.number for node in report.fixed})
    edges = set(graph.edges)
    if report:
        assert closure(count, edges) == needed
        assert all(edge not in closure(count, edges - {edge}) for edge in edges), 'an edge is made by others'
    else:
        assert closure(count, edges) == needed == closure(count, {(a, b) for a, b in graph.edges})
    assert {race.missing for race in graph.races()} == before
    graph.close()


OPERATIONS = ('add', 'multiply', 'sort', 'sum', 'matmul', 'where', 'copy', 'set', 'cumsum')
steps = st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 3))


def run(cp: Any, program: list[tuple[str, int, int]], arrays: list[Any]) -> None:
    """Ordinary code with temporaries, reductions, views and kernels whose memory is not known."""
    for name, first, second in program:
        a, b = arrays[first], arrays[second]
        if name in ('add', 'multiply'):
            arrays[first] = getattr(cp, name)(a, b) * 0.5 + 1
        elif name == 'sort':
            arrays[first] = cp.sort(a, axis=None).reshape(4, 4)
        elif name == 'sum':
            arrays[first] = a * 0.25 + b.sum()
        elif name == 'matmul':
            arrays[first] = (a @ b) * 0.125
        elif name == 'where':
            arrays[first] = cp.where(a > b, a, b)
        elif name == 'copy':
            arrays[first] = b.copy()
        elif name == 'set':
            a[::2] = b[1::2] + 1
        else:
            arrays[first] = cp.cumsum(b, axis=0) * 0.25


def test_independent_work_of_one_lane_has_no_order(cp: Any) -> None:
    graph, outs, _x = chain(cp)
    assert len(graph.edges) == 7
    report = graph.relane()
    assert report and graph.edges == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert (report.edges, report.graphs[0].longest, report.graphs[0].at_once) == ((7, 4), (8, 2), (1, 4))
    assert [(a.number, b.number) for a, b in report.loosened] == [(1, 2), (3, 4), (5, 6)]
    launch_right(graph, outs)
    assert report.compared == SAME and graph.launches == 1 and graph.recording.edge_count == 4


def test_work_that_needs_its_order_stays_as_it_was(cp: Any) -> None:
    x = cp.arange(8.0)
    with ck.capture() as cap:
        for _ in range(4):
            cp.add(x, 1, out=x)
    before = cap.graph.graphExec
    report = cap.graph.relane()
    assert not report and report.kept == 'its data needs the order that was recorded'
    assert cap.graph.graphExec == before
    assert 'the graph is as it was recorded: its data needs' in str(report)


def test_only_a_report(cp: Any) -> None:
    graph, _outs, _x = chain(cp)
    edges, executable = graph.edges, graph.graphExec
    report = graph.relane(report=True)
    assert not report and len(report.loosened) == 3
    assert (graph.edges, graph.graphExec) == (edges, executable)


# -- what is not known ------------------------------------------------------------------------------------------


def test_a_kernel_of_somebody_elses_keeps_its_order(cp: Any) -> None:
    from tests.analysis.test_races import WRITES_FIRST

    kernel = cp.RawKernel(WRITES_FIRST, 'writes_first')
    a, b, c, d, e = (cp.arange(8.0) for _ in range(5))
    with ck.capture() as cap:
        cp.add(a, 1, out=b)
        cp.add(a, 1, out=c)
        kernel((1,), (8,), (d, a))
        cp.add(a, 1, out=e)
    report = cap.graph.relane()
    assert [node.number for node in report.fixed] == [2]
    assert cap.graph.edges == [(0, 2), (1, 2), (2, 3)]
    cap.graph.launch()
    assert values(d) == (np.arange(8.0) + 1).tolist() and report.compared == SAME
    assert 'kept in order, as it is not known what they touch, 1 node: 2: kernel writes_first' in str(report)


def test_a_host_function_keeps_its_order_and_is_called_once(cp: Any) -> None:
    a, b, c, d, called = cp.arange(8.0), cp.zeros(8), cp.zeros(8), cp.zeros(8), []
    with ck.capture() as cap:
        cp.add(a, 1, out=b)
        cp.add(a, 1, out=c)
        cap.stream.launch_host_func(called.append, 1)
        cp.add(a, 1, out=d)
    report = cap.graph.relane()
    assert report and cap.graph.edges == [(0, 2), (1, 2), (2, 3)]
    cap.graph.launch()
    cp.cuda.Device().synchronize()
    assert called == [1]
    assert report.compared.startswith('not compared: a node of it (host')


def test_a_body_of_a_conditional_node_is_treated_by_itself(cp: Any) -> None:
    going, x, outs = flag(cp), cp.arange(8.0), [cp.zeros(8) for _ in range(4)]
    with ck.capture() as cap:
        cp.sqrt(x, out=outs[0])
        cp.square(x, out=outs[1])
        with cap.if_(going):
            cp.sqrt(x, out=outs[2])
            cp.square(x, out=outs[3])
    (condition,) = (node.number for node in cap.graph.nodes if node.kind == 'conditional')
    report = cap.graph.relane()
    assert [len(one.loosened) for one in report.graphs] == [1, 1]
    inside = {b for a, b in cap.graph.edges if a == condition}
    assert len(inside) == 2 and not inside & {a for a, _b in cap.graph.edges}
    host = [np.sqrt(np.arange(8.0)).tolist(), np.square(np.arange(8.0)).tolist()]
    for on in (True, False):
        for out in outs:
            out.fill(-1)
        going.fill(on)
        cap.graph.launch()
        assert [values(out) for out in outs] == host + (host if on else [[-1.0] * 8] * 2)
    assert report.compared.startswith('not compared: a node of it (')


def test_a_loop_runs_as_often_as_before(cp: Any) -> None:
    x, y, n, going = cp.ones(4), cp.ones(4), cp.zeros((), 'i8'), flag(cp)
    with ck.capture() as cap:
        n.fill(0)
        x.fill(1)
        y.fill(1)
        cp.less(n, 5, out=going)
        with cap.while_(going) as loop:
            cp.multiply(x, 2, out=x)
            cp.multiply(y, 3, out=y)
            n += 1
            cp.less(n, 5, out=going)
    assert cap.graph.relane()
    for _ in range(3):
        cap.graph.launch()
        assert [values(one) for one in (x, y, n, loop.passes)] == [[32.0] * 4, [243.0] * 4, [5], [5]]


def test_a_graph_in_several_parts_stays_as_it_was(cp: Any) -> None:
    x, outs = cp.arange(4.0), [cp.zeros(4) for _ in range(2)]

    def work() -> None:
        cp.add(x, 1, out=outs[0])
        if float(x.sum()) > 3:
            cp.add(x, 2, out=outs[1])

    rehearsal = ck.rehearse(work)
    for options in ({}, {'lanes': 'auto'}):
        with ck.capture(rehearsal=rehearsal, **options) as cap:  # type: ignore[arg-type]
            work()
        report = cap.graph.relane()
        assert not report and report.kept == 'it is launched in several parts'
        cap.graph.launch()
        assert [values(out)[0] for out in outs] == [1, 2]
    x.fill(0)
    with pytest.raises(ck.AssumptionError):
        cap.graph.launch()


def test_a_graph_in_a_graph(cp: Any) -> None:
    inner, outs, x = chain(cp, 2)
    inner.relane()
    more = [cp.zeros(8) for _ in range(2)]
    with ck.capture() as cap:
        cp.sqrt(x, out=more[0])
        cap.embed(inner)
        cp.add(outs[1], 0, out=more[1])
    assert cap.graph.relane() and cap.graph.edges == [(1, 2)]
    cap.graph.launch()
    assert [values(out) for out in (*outs, more[0], more[1])] == [*wanted(2), wanted(1)[0], wanted(2)[1]]


# -- the first launch -------------------------------------------------------------------------------------------


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The needed edges are not found, and no race is seen either."""
    monkeypatch.setattr(new_order, 'needed_edges', lambda order, touched: [])
    monkeypatch.setattr(new_order, '_worse', lambda before, after: '')


def steps_of(cp: Any, x: Any) -> ck.Graph:
    with ck.capture() as cap:
        for step in range(40):
            cp.add(x, step, out=x) if step % 2 else cp.multiply(x, 0.5, out=x)
    return cap.graph


def test_a_launch_that_differs_gets_the_recorded_edges_again(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sim.arange(8.0)
    graph = steps_of(sim, x)
    edges, executable = graph.edges, graph.graphExec
    graph.launch()
    expected = values(x)
    x[...] = sim.arange(8.0)
    broken(monkeypatch)
    report = graph.relane()
    assert report and graph.edges == []
    with pytest.warns(
        RuntimeWarning, match=r'Graph.relane\(\) is undone: the first launch gave something else'
    ) as seen:
        graph.launch()
    assert seen[0].filename == __file__
    assert values(x) == expected, 'what the recorded edges gave is what the launch gives'
    assert not report and report.kept.startswith('the first launch gave something else')
    assert (graph.edges, graph.graphExec, graph.recording.edge_count) == (edges, executable, len(edges))
    x[...] = sim.arange(8.0)
    graph.launch()
    assert values(x) == expected and graph.launches == 3


def test_the_first_launch_on_a_stream_of_its_own(cp: Any) -> None:
    graph, outs, _x = chain(cp)
    report = graph.relane()
    side = cp.cuda.Stream(non_blocking=True)
    graph.launch(side)
    side.synchronize()
    assert report.compared == SAME and graph.launches == 1
    assert [values(out) for out in outs] == wanted(4)


def test_without_memory_for_copies_nothing_is_compared(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, outs, _x = chain(cp)
    report = graph.relane()

    def full(*_args: Any) -> str:
        raise MemoryError('64 bytes')

    monkeypatch.setattr('capturekit.graph.first_launch.FirstLaunch.run', full)
    graph.launch()
    assert report.compared == 'not compared: no memory for copies (64 bytes)'
    assert [values(out) for out in outs] == wanted(4)


def test_sums_in_no_fixed_order_are_not_compared(cp: Any) -> None:
    graph, outs, _x = chain(cp)
    (first, *_more) = current().device.graph_nodes(graph.graph)
    graph._state.declared[first] = Declared(True, True, call='cupy.cuda.cub.cub_scan()')
    report = graph.relane()
    assert report and report.compared.startswith("not compared: sums of it (CUB's scan) are rounded in another order")
    launch_right(graph, outs)


def test_an_edge_too_few_is_seen_before_anything_is_launched(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, outs, _x = chain(cp)
    edges = graph.edges
    monkeypatch.setattr(new_order, 'needed_edges', lambda order, touched: [])
    report = graph.relane()
    assert not report and report.kept.startswith('race: ') and graph.edges == edges
    launch_right(graph, outs)


@pytest.mark.parametrize('verb', ['graph_rewire', 'graph_instantiate'])
def test_where_cuda_refuses_the_graph_is_as_it_was(sim: Any, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    graph, outs, _x = chain(sim)
    edges, executable = graph.edges, graph.graphExec

    def refuse(*_args: Any) -> None:
        raise CudaCallError(Code.cudaErrorInvalidValue, verb)

    with monkeypatch.context() as patch:
        patch.setattr(current().device, verb, refuse)
        report = graph.relane()
    assert report.kept == f'CUDA refuses: cudaErrorInvalidValue from {verb}'
    assert (graph.edges, graph.graphExec) == (edges, executable)
    launch_right(graph, outs)


# -- the report -------------------------------------------------------------------------------------------------


def test_the_python_by_hand_makes_the_same_edges(cp: Any) -> None:
    a, outs = cp.arange(8.0), [cp.zeros(8) for _ in range(5)]

    def work(node: int) -> None:
        ins = {0: (a, a), 1: (outs[0], a), 2: (outs[0], outs[0]), 3: (outs[1], outs[2]), 4: (a, a)}[node]
        cp.add(*ins, out=outs[node])

    with ck.capture() as cap:
        for node in range(5):
            work(node)
    report = cap.graph.relane()
    assert cap.graph.edges == [(0, 1), (0, 2), (1, 3), (2, 3)]
    lines = [line.replace('...  # node ', 'work(') for line in report.python.splitlines()]
    code = '\n'.join(line.partition(' (cupy')[0] + ')' if 'work(' in line else line for line in lines)
    with ck.capture() as again:
        exec(code, {'cap': again, 'work': work})
    order = [int(line.strip().removeprefix('work(').removesuffix(')')) for line in code.splitlines() if 'work(' in line]
    assert {(order[a], order[b]) for a, b in again.graph.edges} == set(cap.graph.edges)


def test_the_report_tells_lines_and_draws_both_orders(cp: Any) -> None:
    graph, _outs, _x = chain(cp)
    report = graph.relane()
    text = str(report)
    assert text.startswith('8 nodes: 7 edges as recorded, 4 that the data needs\n')
    assert 'the graph: longest path 8 nodes, 2; at most 1 and 4 at once' in text
    assert '  as recorded\n    [0-------[1-------' in text and '  as the data needs it\n    [0----' in text
    assert 'and 2 pairs like it' in text and text.count('test_relane.py:') == 2
    assert text.endswith('the graph has these edges now\nfirst launch: not yet')
    assert repr(report) == '<Relaned: 8 nodes, 7 edges, 4 needed>'


def test_the_picture_cuts_no_number(cp: Any) -> None:
    graph, _outs, _x = chain(cp, 20)
    lines = str(graph.relane(report=True)).splitlines()
    row = lines[lines.index('  as recorded') + 1]
    numbers = [int(number) for number in re.findall(r'\d+', row)]
    assert len(numbers) > 5 and numbers == sorted(set(numbers)), 'node 10 is not taken for node 1'
    assert row.count('[') == 40 and 'time goes to the right' in lines[2]


def test_measured_times_are_the_ones_of_the_report(cp: Any) -> None:
    graph, _outs, _x = chain(cp)
    timeline = graph.measure(launches=2)
    report = graph.relane()
    took = [0.0 if span is None else span[1] - span[0] for span in timeline.nodes]
    assert report.unit == 'us' and report.graphs[0].longest[0] == pytest.approx(sum(took))
    assert graph.recording.timeline is None and graph.recording.arrows == graph.edges


def decided(cp: Any) -> tuple[ck.Graph, list[Any]]:
    """A graph with a conditional node, in whose body are two kernels that have nothing in common."""
    going, x, outs = flag(cp), cp.arange(8.0), [cp.zeros(8) for _ in range(2)]
    going.fill(True)
    with ck.capture() as cap:
        with cap.if_(going):
            cp.sqrt(x, out=outs[0])
            cp.square(x, out=outs[1])
    return cap.graph, outs


def full(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """No memory for an executable graph, so many times, where CUDA would have made one."""
    make, left = current().device.graph_instantiate, [None] * times

    def refuse(*args: Any) -> int:
        x = int(make(*args))
        if not left:
            return x
        left.pop()
        current().device.graph_exec_destroy(x)
        raise CudaCallError(Code.cudaErrorMemoryAllocation, 'graphInstantiate')

    monkeypatch.setattr(current().device, 'graph_instantiate', refuse)


def test_a_refusal_leaves_a_graph_with_decisions_whole(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA makes one executable graph at a time of it: the old one has gone when the new one is refused."""
    graph, outs = decided(sim)
    edges, both = graph.edges, [np.sqrt(np.arange(8.0)).tolist(), np.square(np.arange(8.0)).tolist()]
    full(monkeypatch, 1)
    report = graph.relane()
    assert report.kept == 'CUDA refuses: cudaErrorMemoryAllocation from graphInstantiate' and graph.edges == edges
    graph.launch()
    assert [values(out) for out in outs] == both
    assert graph.relane() and graph.edges != edges
    graph.launch()
    assert [values(out) for out in outs] == both


def test_a_graph_that_can_not_be_made_whole_again_says_so(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, outs = decided(sim)
    full(monkeypatch, 2)
    with pytest.raises(ck.CaptureError, match='CUDA makes no executable graph any more') as told:
        graph.relane()
    assert 'record again' in str(told.value)
    with pytest.raises(ck.ClosedError):
        graph.launch()
    assert [values(out) for out in outs] == [[0.0] * 8] * 2
    graph.close()
