"""A graph that ``relane`` has given priorities hands them to the graph by which it is updated."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.lanes import contest
from tests.captured import values
from tests.lanes.test_relane import chain, wanted


@pytest.fixture
def ranked(cp: Any, monkeypatch: pytest.MonkeyPatch) -> ck.Graph:
    """A graph on two lanes, by priority, because launches took less time so."""

    def timed(_device: Any, start: Any, executables: Any, rounds: int, _stream: int) -> Any:
        start.put_back()
        return {one: (5.0 if one in (2, True) else 10.0,) * rounds for one in executables}

    monkeypatch.setattr(contest, 'timed', timed)
    graph, _outs, _x = chain(cp)
    report = graph.relane(rounds=3)
    assert report.times.chosen[2] and graph.recording.by_priority and len(set(priorities(graph))) > 1
    graph.launch()
    return graph


def priorities(graph: ck.Graph) -> list[int]:
    device = current().device
    return [device.node_priority(graph.graph, node) for node in device.graph_nodes(graph.graph)]


def test_an_update_keeps_them(cp: Any, ranked: ck.Graph) -> None:
    before, edges, executable = priorities(ranked), ranked.edges, ranked.graphExec
    other, outs, _x = chain(cp)
    assert ranked.update(other).how == 'updated'
    assert (priorities(ranked), ranked.edges, ranked.graphExec) == (before, edges, executable)
    assert ranked.recording.by_priority
    for _ in range(2):
        ranked.launch()
    assert [values(out) for out in outs] == wanted(4)
    again, outs, _x = chain(cp)
    assert ranked.update(again).how == 'updated' and priorities(ranked) == before
    ranked.launch()
    assert [values(out) for out in outs] == wanted(4)


def test_a_copy_hands_them_over_as_well(cp: Any, ranked: ck.Graph) -> None:
    copy, before = ranked.clone(), priorities(ranked)
    other, outs, _x = chain(cp)
    assert copy.update(other).how == 'updated' and priorities(copy) == before
    copy.launch()
    assert [values(out) for out in outs] == wanted(4)


def test_a_graph_that_does_not_fit_gets_its_own_back(cp: Any, ranked: ck.Graph) -> None:
    other, outs, _x = chain(cp, 3)
    before, edges, mine = priorities(other), other.edges, priorities(ranked)
    with pytest.raises(ck.UpdateError):
        ranked.update(other)
    assert (priorities(other), other.edges, other.recording.by_priority) == (before, edges, False)
    assert priorities(ranked) == mine and ranked.recording.by_priority
    other.launch()
    assert [values(out) for out in outs] == wanted(3)
    assert ranked.update(other, instantiate=True).how == 'instantiated'
    assert not ranked.recording.by_priority
    ranked.launch()
    assert [values(out) for out in outs] == wanted(3)
