"""Graphs whose nodes were laid on few lanes, because launches took less time so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit import render
from capturekit.lanes import contest
from capturekit.lanes.contest import behind_one, on_lanes
from capturekit.lanes.new_order import laid
from capturekit.model.dag import Order
from tests.captured import values
from tests.examples import examples
from tests.lanes.test_relane import SAME, chain, launch_right, wanted


def closure(count: int, edges: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """All pairs of nodes with a path from the first to the second, found step by step; lanes may turn numbers round."""
    found = set(edges)
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


edges_ = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30)


@settings(deadline=None, max_examples=examples(200))
@given(edges=edges_, lanes=st.integers(1, 5))
def test_lanes_are_rows_and_keep_the_order(edges: list[tuple[int, int]], lanes: int) -> None:
    needed = sorted({(min(pair), max(pair)) for pair in edges if pair[0] != pair[1]})
    pairs = on_lanes(Order(12, needed), lanes)
    assert len({a for a, _b in pairs}) == len({b for _a, b in pairs}) == len(pairs), 'each is followed by one'
    assert 12 - len(pairs) <= lanes
    found = laid(12, needed, pairs)
    assert closure(12, found) == closure(12, {*needed, *pairs})
    assert all(edge not in closure(12, set(found) - {edge}) for edge in found)


def test_branches_of_their_own_stay_whole() -> None:
    """As one would lay them by hand: eight chains on four lanes, two of them on each, and a sum of all behind them."""
    chains = {(n * 5 + step, n * 5 + step + 1) for n in range(8) for step in range(4)}
    pairs = on_lanes(Order(41, [*chains, *((n * 5 + 4, 40) for n in range(8))]), 4)
    assert len(pairs) == 37 and chains <= set(pairs)


def test_one_beginning_is_the_shortest() -> None:
    assert behind_one(Order(5, [(0, 1), (2, 1)]), [3.0, 1.0, 2.0, 2.5, 9.0]) == [(2, 0), (2, 3), (2, 4)]
    assert behind_one(Order(4, [(0, 1)]), [2.0, 1.0, 1.0, 1.0], [(0, 1), (2, 3)]) == [(0, 1), (2, 3), (2, 0)]
    assert behind_one(Order(3, [(0, 1), (1, 2)]), [1.0] * 3) == [] == behind_one(Order(0, []), [])


def test_lanes_for_another_order_are_given_up() -> None:
    assert laid(3, [(0, 1), (1, 2)], [(2, 0)]) == [(0, 1), (1, 2)]
    assert laid(3, [(0, 2)], [(0, 1), (1, 2)]) == [(0, 1), (1, 2)]


@pytest.fixture
def fastest(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let launches of one order take less time than all others: that of so many lanes."""

    def choose(name: int) -> None:
        def timed(_device: Any, start: Any, executables: Any, rounds: int, _stream: int) -> Any:
            start()
            return {one: (5.0 if one == name else 10.0,) * rounds for one in executables}

        monkeypatch.setattr(contest, 'timed', timed)

    return choose


def on_two_lanes(cp: Any, fastest: Any) -> tuple[ck.Graph, list[Any], Any]:
    graph, outs, _x = chain(cp)
    fastest(2)
    return graph, outs, graph.relane(rounds=3)


def rows(graph: ck.Graph) -> int:
    """How many nodes have no other behind them that alone follows: the number of lanes."""
    count = len(graph.nodes)
    order = closure(count, set(graph.edges))
    free = {n for n in range(count) if not any((a, n) in order for a in range(count))}
    return len(free)


def test_the_lanes_that_are_faster_are_kept(cp: Any, fastest: Any) -> None:
    graph, outs, report = on_two_lanes(cp, fastest)
    assert report and report.times.best == 2
    assert rows(graph) == 2 and len(graph.edges) == 6
    assert {(0, 1), (2, 3), (4, 5), (6, 7)} <= closure(8, set(graph.edges)), 'what the data needs'
    assert 'the graph has 6 edges now, chosen by times' in str(report) and '  as chosen by times' in str(report)
    assert report.edges == (7, 4)
    assert report.python.startswith('with cap.fork(2) as (lane1, lane2):')
    for _ in range(2):
        launch_right(graph, outs)
    assert report.compared == SAME
    assert not graph.races()


def test_asking_again_leaves_the_lanes(sim: Any, fastest: Any) -> None:
    graph, outs, _report = on_two_lanes(sim, fastest)
    edges, executable = graph.edges, graph.graphExec
    assert graph.relane() and (graph.edges, graph.graphExec) == (edges, executable)
    graph.launch()
    again = graph.relane(rounds=2)
    assert again and rows(graph) == 2 and again.times.best == 2
    fastest(contest.NEEDED)
    assert graph.relane(rounds=2) and graph.edges == [(0, 1), (2, 3), (4, 5), (6, 7)]
    fastest(2)
    graph.relane(rounds=2)
    fastest(contest.RECORDED)
    kept = graph.relane(rounds=2)
    assert not kept and graph.edges == [(n, n + 1) for n in range(7)]
    assert kept.kept.startswith(
        'it is not faster: 5.0 us as recorded, 10.0 us as the data needs it, '
        '10.0 us so behind one node, 10.0 us on 2 lanes'
    )
    launch_right(graph, outs)


def test_beginnings_may_come_after_one_of_them(cp: Any, fastest: Any) -> None:
    graph, outs, _x = chain(cp)
    fastest(contest.BEHIND_ONE)
    report = graph.relane(rounds=3)
    assert report and report.times is not None and report.times.best == contest.BEHIND_ONE
    needed = [(0, 1), (2, 3), (4, 5), (6, 7)]
    first = [n for n in range(0, 8, 2) if all((n, m) in graph.edges for m in range(0, 8, 2) if m != n)]
    assert set(needed) <= set(graph.edges) and len(first) == 1 and len(graph.edges) == 7
    assert report.in_short.startswith('as the data needs it, behind one node, 7 edges before and 7 now; first launch')
    for _ in range(2):
        launch_right(graph, outs)
    assert report.compared == SAME and not graph.races()


def test_copies_changes_and_updates_keep_the_lanes(cp: Any, fastest: Any) -> None:
    graph, outs, _report = on_two_lanes(cp, fastest)
    edges, copy = graph.edges, graph.clone()
    graph.disable(1)
    graph.enable(1)
    fresh = cp.zeros(8)
    graph.rebind((outs[0], fresh))
    assert copy.edges == graph.edges == edges
    graph.launch()
    assert values(fresh) == wanted(4)[0]
    launch_right(copy, outs)
    other, more, _x = chain(cp)
    assert graph.update(other).how == 'updated' and graph.edges == edges
    launch_right(graph, more)


def test_an_update_that_the_lanes_do_not_fit(cp: Any, fastest: Any) -> None:
    """The new data needs an order that the lanes turned round, or none of it: it comes first."""
    graph, _outs, _report = on_two_lanes(cp, fastest)
    x = cp.zeros(8)
    with ck.capture() as cap:
        for n in range(8):
            cp.add(x, n, out=x)
    graph.update(cap.graph, instantiate=True)
    graph.launch()
    assert values(x) == [28.0] * 8 and graph.edges == [(n, n + 1) for n in range(7)]


def test_everything_that_reads_a_graph_reads_such_edges(sim: Any, fastest: Any) -> None:
    graph, outs, _report = on_two_lanes(sim, fastest)
    graph.launch()
    assert not graph.races(observe=True)
    timeline = graph.measure(launches=2)
    assert timeline.span_us == pytest.approx(8.0, abs=0.01) and '2 at once' in str(graph.concurrency())
    graph.describe()
    recording = graph.recording
    for name in render.__all__:
        if name not in ('to_timeline_figure', 'show', 'save'):
            assert getattr(render, name)(recording), name
    assert graph.svg()
    launch_right(graph, outs)
    graph.close()


def test_the_picture_has_every_order(cp: Any, fastest: Any) -> None:
    _graph, _outs, report = on_two_lanes(cp, fastest)
    picture = report.svg()
    text = [one.text for one in ElementTree.fromstring(picture).iter('{http://www.w3.org/2000/svg}text')]
    assert text[0] == '8 nodes: 7 edges as recorded, 4 that the data needs'
    assert [one for one in text if one and 'at most at once' in one] == [
        'as recorded: 1 at most at once',
        'as the data needs it: 4 at most at once',
        'as chosen by times: 2 at most at once',
    ]
    assert picture.count('<g><title>') == 24
    assert 'one unit of time for each node' in chain(cp)[0].relane().svg()


def test_kernels_that_may_wait_for_each_other_get_no_lanes(sim: Any, fastest: Any) -> None:
    """Two kernels of lanes of their own, of which nothing is known but what is said, and others beside them."""
    from tests.graph.test_declared import kernels

    kernel, _half = kernels(sim)
    x, outs = sim.arange(8.0), [sim.zeros(8) for _ in range(6)]
    with ck.capture() as cap, cap.fork(2) as lanes:
        for lane, several in zip(lanes, (outs[:3], outs[3:])):
            with lane:
                for out in several:
                    with ck.reads(x), ck.writes(out):
                        kernel((1,), (8,), (out, x))
    fastest(2)
    report = cap.graph.relane(rounds=2)
    assert report.times is not None and not report.times.lanes
