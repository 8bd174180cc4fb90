"""Who comes before whom: against a plain search along the edges, for graphs of every form."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturekit.model.dag import Order


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(0, 12))
    names = draw(st.permutations(range(count)))
    pairs = [(names[a], names[b]) for a, b in itertools.combinations(range(count), 2)]
    return count, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


def reached(count: int, edges: list[tuple[int, int]]) -> list[set[int]]:
    """For each node all that come after it."""
    after = [{b for a, b in edges if a == n} for n in range(count)]
    for _ in range(count):
        after = [near.union(*(after[m] for m in near)) for near in after]
    return after


@given(graphs())
def test_before_is_a_path_and_redundant_edges_add_none(graph):
    count, edges = graph
    order, after = Order(count, edges), reached(count, edges)
    for a, b in itertools.product(range(count), repeat=2):
        assert order.before(a, b) == (b in after[a])
    assert set(order.unordered()) == {n for n in range(count) if len(after[n]) + sum(n in s for s in after) + 1 < count}
    assert sorted(order.sequence) == list(range(count))
    place = {node: n for n, node in enumerate(order.sequence)}
    assert all(place[a] < place[b] for a, b in edges)
    redundant = set(order.redundant())
    assert reached(count, [e for e in edges if e not in redundant]) == after
    for edge in set(edges) - redundant:
        assert reached(count, [e for e in edges if e != edge]) != after


@given(graphs(), st.data())
def test_the_longest_path_is_one_and_none_is_longer(graph, data):
    count, edges = graph
    weights = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    ends, path = Order(count, edges).longest(weights)
    assert all(pair in edges for pair in itertools.pairwise(path))
    assert sum(weights[n] for n in path) == max(ends, default=0)
    for a, b in edges:
        assert ends[b] >= ends[a] + weights[b]


def test_lanes_that_were_joined_are_gone_on_with_by_later_ones():
    """A program of many forks has as many chains as it has lanes at once, and needs no bit for each pair of nodes."""
    edges, root, count = [], 0, 1
    for _ in range(200):
        lanes = [range(count + 3 * n, count + 3 * n + 3) for n in range(4)]
        edges += [(root, lane[0]) for lane in lanes] + [pair for lane in lanes for pair in itertools.pairwise(lane)]
        count, root = count + 13, count + 12
        edges += [(lane[-1], root) for lane in lanes]
    order = Order(count, edges)
    assert order.progress is not None and order.progress.shape[1] <= 8
    assert order.before(0, count - 1) and not order.before(1, 4) and not order.before(4, 1)


@pytest.mark.parametrize(
    ('edges', 'said'), [([(0, 0)], 'circle'), ([(0, 1), (1, 2), (2, 0)], 'circle'), ([(0, 3)], '3 nodes')]
)
def test_what_is_no_order_is_refused(edges, said):
    with pytest.raises(ValueError, match=said):
        Order(3, edges)


@pytest.mark.parametrize('lanes', [1, 32, 5000])
def test_both_ways_of_keeping_it_answer_for_large_graphs(lanes):
    count = 10_000
    order = Order(count, [(n, n + lanes) for n in range(count - lanes)])
    assert order.before(0, lanes) and order.before(0, (count - 1) // lanes * lanes)
    assert order.before(0, 1) == (lanes == 1) and not order.before(lanes, 0)
