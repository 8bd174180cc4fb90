"""The difference of two graphs, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capturekit.analysis.graph_diff import STRUCTURE, GraphDifference, differences, edge_order, in_words, reasons
from capturekit.analysis.node_view import Node
from capturekit.model.source_line import Place


@dataclass
class Seen:
    nodes: list[Node]
    edges: list[tuple[int, int]]


KINDS = ('kernel', 'memset', 'memcpy', 'host')


@st.composite
def graphs(draw: st.DrawFn, least: int = 0) -> Seen:
    """Any graph whose edges lead to later nodes."""
    count = draw(st.integers(least, 8))
    nodes = []
    for number in range(count):
        kind = draw(st.sampled_from(KINDS))
        name = draw(st.sampled_from(('sin', 'cos'))) if kind == 'kernel' else ''
        detail = {'bytes': draw(st.sampled_from((64, 128)))} if kind.startswith('mem') else {}
        nodes.append(Node(number, kind, name, 0, Place('f.py', number + 1, 'f'), detail))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Seen(nodes, sorted(edges))


def plain(seen: Seen) -> Any:
    return [(n.kind, n.name, n.detail) for n in seen.nodes], set(seen.edges)


@given(graphs(), graphs())
def test_only_equal_graphs_have_no_difference(one: Seen, other: Seen) -> None:
    found = differences(one, other)
    assert (found == []) == (plain(one) == plain(other))
    assert in_words(found) or not found
    structure = [d for d in found if d.kind in STRUCTURE]
    same = [n.kind for n in one.nodes] == [n.kind for n in other.nodes] and set(one.edges) == set(other.edges)
    assert bool(structure) == (not same)
    for d in found:
        assert d.number is None or (other.nodes[d.number] and f'node {d.number} (' in d.text)
        assert d.was is None or one.nodes[d.was]


@given(graphs(least=1), st.data())
def test_a_node_left_out_or_put_in_is_found(seen: Seen, data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(seen.nodes) - 1))
    renumbered = {n.number: n.number - (n.number > gone) for n in seen.nodes if n.number != gone}
    nodes = [replace(n, number=renumbered[n.number]) for n in seen.nodes if n.number != gone]
    fewer = Seen(nodes, [(renumbered[a], renumbered[b]) for a, b in seen.edges if gone not in (a, b)])
    (missing,) = differences(seen, fewer)
    (added,) = differences(fewer, seen)
    key = (seen.nodes[gone].kind, seen.nodes[gone].name)
    assert missing.kind == 'missing' and missing.was is not None and missing.number is None
    assert added.kind == 'added' and added.number is not None and added.was is None
    for number in (missing.was, added.number):
        assert (seen.nodes[number].kind, seen.nodes[number].name) == key


@given(graphs(least=1), st.data())
def test_an_edge_that_is_gone_is_found(seen: Seen, data: st.DataObject) -> None:
    if not seen.edges:
        return
    gone = data.draw(st.sampled_from(seen.edges))
    (found,) = differences(seen, Seen(seen.nodes, [edge for edge in seen.edges if edge != gone]))
    assert (found.kind, found.number) == ('edges', gone[1])


@given(graphs(least=1), st.data())
def test_a_parameter_is_found_at_its_node(seen: Seen, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(seen.nodes) - 1))
    nodes = list(seen.nodes)
    nodes[number] = replace(nodes[number], detail={'dst': 16})
    found = differences(seen, Seen(nodes, seen.edges))
    assert [(d.kind, d.number) for d in found] == [('parameter', number)]
    assert 'dst None -> 0x10' in found[0].text


@given(graphs(), st.randoms())
def test_another_order_of_the_same_is_found(seen: Seen, random: Any) -> None:
    """The nodes in any other order that their edges allow."""
    left, order = set(range(len(seen.nodes))), []
    while left:
        ready = [n for n in sorted(left) if not any(a in left for a, b in seen.edges if b == n)]
        order.append(random.choice(ready))
        left.discard(order[-1])
    at = {old: new for new, old in enumerate(order)}
    moved = Seen([replace(seen.nodes[n], number=at[n]) for n in order], [(at[a], at[b]) for a, b in seen.edges])
    found = differences(seen, moved)
    kinds = [[n.kind for n in one.nodes] for one in (seen, moved)]
    if kinds[0] == kinds[1] and set(seen.edges) == set(moved.edges):
        assert not [d for d in found if d.kind in STRUCTURE]
    else:
        (one,) = found
        assert one.kind == 'order' and one.number is not None
        assert all(seen.nodes[n].kind == moved.nodes[n].kind for n in range(one.number))


def test_what_may_be_behind_a_refusal_comes_first() -> None:
    kind, function, parameter = (GraphDifference(k, k, n) for n, k in enumerate(('kind', 'function', 'parameter')))
    assert reasons([function, kind, parameter], 2) == [kind]
    assert reasons([function, parameter], 2) == [parameter]
    assert reasons([function, parameter], None) == reasons([function, parameter], 7) == [function, parameter]
    assert in_words([kind] * 5) == 'kind; kind; kind; and 2 more'


def test_a_changed_order_of_edges_is_reported() -> None:
    nodes = [Node(n, kind, '') for n, kind in enumerate(('memset', 'memcpy', 'host', 'host'))]
    old, new = Seen(nodes, [(0, 2), (1, 2), (2, 3)]), Seen(nodes, [(2, 3), (1, 2), (0, 2)])
    assert differences(old, new) == [] == edge_order(old, old)
    (found,) = edge_order(old, new)
    assert (found.kind, found.number) == ('order', 2)
    assert 'node 2 (host) comes after nodes 1, 0 in this order, and came after nodes 0, 1' in found.text
