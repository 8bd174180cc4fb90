"""The order that data needs: against all pairs of nodes, looked at one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capturekit.analysis import node_memory
from capturekit.analysis.node_memory import Memory, TooManyError, needed_edges
from capturekit.driver.node_accesses import Access, overlap
from capturekit.model.dag import Order
from tests.examples import examples

Edges = set[tuple[int, int]]


def closure(count: int, edges: Edges) -> Edges:
    """All pairs of nodes with a path from the first to the second; edges go from lower numbers to higher ones."""
    before: list[set[int]] = [set() for _ in range(count)]
    for b in range(count):
        for a in range(b):
            if (a, b) in edges:
                before[b] |= {a} | before[a]
    return {(a, b) for b in range(count) for a in before[b]}


def conflict(one: Memory, other: Memory) -> bool:
    if one is None or other is None:
        return True
    return any(
        (a.writes is not False or b.writes is not False) and overlap(a, b) is not False for a in one for b in other
    )


def wanted(count: int, edges: Edges, touched: list[Memory]) -> Edges:
    """The fewest edges, by definition: of each pair whose order is needed, no other node lies between the two."""
    ordered = closure(count, edges)
    pairs = closure(count, {(a, b) for a, b in ordered if conflict(touched[a], touched[b])})
    return {(a, b) for a, b in pairs if not any((a, c) in pairs and (c, b) in pairs for c in range(count))}


def strided(start: int, count: int, step: int, writes: bool | None, exact: bool) -> Access:
    return Access(1 << 33 | start, (count,), (step,), 2, writes, exact)


accesses = st.builds(
    strided, st.integers(0, 24), st.integers(1, 6), st.sampled_from((2, 2, 4, 6, -2)),
    st.sampled_from((True, False, True, False, None)), st.sampled_from((True, True, True, False)),
)  # fmt: skip
memories = st.one_of(st.lists(accesses, max_size=3), st.lists(accesses, max_size=3), st.none())


@st.composite
def graphs(draw: st.DrawFn, lanes: int) -> tuple[int, Edges, list[Memory]]:
    """Nodes on lanes; each comes after the one before on its lane, and some wait for others."""
    touched = draw(st.lists(memories, min_size=1, max_size=12))
    last: dict[int, int] = {}
    edges: Edges = set()
    for node in range(len(touched)):
        lane = draw(st.integers(0, lanes - 1))
        if lane in last:
            edges.add((last[lane], node))
        edges |= {(a, node) for a in draw(st.lists(st.integers(0, node - 1), max_size=2))} if node else set()
        last[lane] = node
    return len(touched), edges, touched


@settings(max_examples=examples(600), deadline=None)
@given(st.one_of(graphs(1), graphs(3), graphs(8)))
def test_the_edges_are_those_of_the_definition(graph: tuple[int, Edges, list[Memory]]) -> None:
    count, edges, touched = graph
    assert set(needed_edges(Order(count, edges), touched)) == wanted(count, edges, touched)


def test_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_memory, 'MOST_NODES', 3)
    with pytest.raises(TooManyError, match='4 nodes, and 3 are the most'):
        needed_edges(Order(4, []), [[]] * 4)
    monkeypatch.setattr(node_memory, 'MOST_PAIRS', 1)
    with pytest.raises(TooManyError, match='more than 1 pair of nodes touch the same memory'):
        needed_edges(Order(3, [(0, 1), (1, 2)]), [None, None, None])
