"""Temporaries in one piece of memory: two that may be alive at once share no byte, in any order that edges allow."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturekit.lanes.packing import UNIT, PackedLayout, TemporarySpan, packed
from capturekit.model.dag import Order

NODES = 7


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Order], list[TemporarySpan]]:
    """A recorded order, perhaps another one, and temporaries that nodes use."""
    count = draw(st.integers(1, NODES))
    pairs = list(itertools.combinations(range(count), 2))
    chain = st.just([(n, n + 1) for n in range(count - 1)])
    some = st.lists(st.sampled_from(pairs), unique=True) if pairs else st.just([])
    recorded, other = draw(st.one_of(chain, some)), draw(st.one_of(some, st.none()))
    nodes = st.lists(st.integers(0, count - 1), max_size=3, unique=True)
    sizes = st.sampled_from([1, UNIT, UNIT + 1, 4 * UNIT, 9 * UNIT])
    spans = draw(st.lists(st.builds(TemporarySpan, sizes, nodes.map(tuple)), max_size=8))
    return [Order(count, edges) for edges in (recorded, other) if edges is not None], spans


def sequences(order: Order) -> list[tuple[int, ...]]:
    """All sequences in which a device may run the nodes."""
    every = itertools.permutations(range(len(order.before_each)))
    return [one for one in every if all(one.index(a) < one.index(b) for b in one for a in order.before_each[b])]


def share(layout: PackedLayout, spans: list[TemporarySpan], one: int, other: int) -> bool:
    (a, b), (c, d) = ((layout.offsets[n], layout.offsets[n] + spans[n].size) for n in (one, other))
    return a < d and c < b


def alive(sequence: tuple[int, ...], span: TemporarySpan) -> tuple[int, int]:
    places = [sequence.index(node) for node in span.uses]
    return min(places), max(places)


@given(given_=graphs())
def test_no_two_that_may_be_alive_at_once_share_a_byte(given_: tuple[list[Order], list[TemporarySpan]]) -> None:
    orders, spans = given_
    layout = packed(orders, spans)
    used = [n for n, span in enumerate(spans) if span.uses]
    meet = [pair for pair in itertools.combinations(used, 2) if share(layout, spans, *pair)]
    for order in orders:
        for sequence in sequences(order) if meet else ():
            for one, other in meet:
                (a, b), (c, d) = alive(sequence, spans[one]), alive(sequence, spans[other])
                assert b < c or d < a, (sequence, one, other)
    # and in all orders it is the same one that comes first
    for one, other in meet:
        first = {orders[n].before(spans[one].uses[0], spans[other].uses[0]) for n in range(len(orders))}
        assert len(first) == 1


@given(given_=graphs())
def test_all_lies_within_what_is_taken(given_: tuple[list[Order], list[TemporarySpan]]) -> None:
    orders, spans = given_
    layout = packed(orders, spans)
    ends = [offset + span.size for offset, span in zip(layout.offsets, spans) if span.uses]
    assert all(offset % UNIT == 0 for offset in layout.offsets) and layout.size % UNIT == 0
    assert max(ends, default=0) <= layout.size <= sum(-(-span.size // UNIT) * UNIT for span in spans if span.uses)


def row(count: int) -> Order:
    return Order(count, [(n, n + 1) for n in range(count - 1)])


def test_a_chain_takes_what_two_neighbours_take() -> None:
    spans = [TemporarySpan(1000, (n, n + 1)) for n in range(9)]
    assert packed([row(10)], spans).size == 2 * 1024


def test_branches_share_nothing_and_their_own_steps_do() -> None:
    edges = [(n, n + 1) for n in range(9) if n != 4]
    spans = [TemporarySpan(512, (n, n + 1)) for n in range(9) if n != 4]
    assert packed([row(10)], spans).size == 2 * 512
    layout = packed([row(10), Order(10, edges)], spans)
    assert layout.size == 4 * 512
    left, right = set(layout.offsets[:4]), set(layout.offsets[4:])
    assert len(left) == len(right) == 2 and not left & right


def test_a_large_one_takes_neighbours_and_a_small_one_a_part() -> None:
    sizes = (512, 0), (512, 0), (1024, 1), (512, 2), (512, 2), (1536, 3)
    layout = packed([row(4)], [TemporarySpan(size, (node,)) for size, node in sizes])
    assert layout.offsets == (0, 512, 0, 0, 512, 0) and layout.size == 1536


def test_what_no_node_uses_takes_nothing() -> None:
    assert packed([row(2)], [TemporarySpan(4096, ()), TemporarySpan(512, (1,))]) == PackedLayout((0, 0), 512)


@pytest.mark.parametrize('width', [1, 4, 100])
def test_thousands_of_them(width: int) -> None:
    count = 4_000
    edges = [(n, n + 1) for n in range(count - 1) if (n + 1) % (count // width)]
    spans = [TemporarySpan(4096, (a, b)) for a, b in edges]
    assert packed([row(count), Order(count, edges)], spans).size == width * 2 * 4096
