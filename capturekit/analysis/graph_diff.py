"""Why one graph can not take the place of another: the difference of the two, by node, line and name.

CUDA updates an executable graph where the new graph has as many nodes, of the same kinds, with the same edges, made in
the same order. For any other graph it reports one number, and sometimes a node. All functions here take plain data.
CUDA C++ Programming Guide, "Updating Instantiated Graphs".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capturekit.analysis.node_view import Look, Node
from capturekit.model.dag import Order

#: Longer stretches are not searched for added and missing nodes.
_LONGEST = 2000
#: The most differences in the text of an error.
_TOLD = 3
#: Kinds of differences that CUDA always refuses.
STRUCTURE = ('added', 'missing', 'kind', 'edges', 'order', 'priority')


@dataclass(frozen=True)
class GraphDifference:
    """One difference of two graphs.

    Attributes:
        kind: 'added', 'missing', 'kind' (of a node), 'edges' (to a node), 'order' (of the same nodes with the same
            edges) or 'priority', which CUDA refuses; 'function' or 'parameter', which it mostly takes.
        text: the difference in words, with the lines.
        number: the node of the new graph. was: the node of the old one. None where there is none.
    """

    kind: str
    text: str
    number: int | None = None
    was: int | None = None


@dataclass(frozen=True)
class Update:
    """What :meth:`Graph.update` did.

    Attributes:
        how: 'updated', in place, or 'instantiated' anew.
        why: why CUDA refused to update in place; '' where it did not.
        seconds: host time that it took.
        differences: what CUDA refused, as far as it is known; empty for graphs of more than 1,000 nodes.
    """

    how: str
    why: str
    seconds: float
    differences: tuple[GraphDifference, ...] = ()


def label(node: Node) -> str:
    """A node in words."""
    name = f' {node.name}' if node.name else ''
    lane = '' if node.lane is None else f' on lane {node.lane}'
    at = '' if node.at is None else f', at {node.at}'
    return f'node {node.number} ({node.kind}{name}{lane}{at})'


def differences(old: Look, new: Look) -> list[GraphDifference]:
    """All differences of two graphs. Empty where they have the same nodes, with the same parameters, and edges.

    Nodes are compared by number, the order of recording. The list begins with differences of nodes, then of edges; if
    there are none, it has different kernels and parameters.
    """
    alike = [a.kind == b.kind for a, b in zip(old.nodes, new.nodes)]
    if len(old.nodes) == len(new.nodes):
        orders, known = [Order(len(one.nodes), one.edges) for one in (old, new)], dict[Any, int]()
        before, after = ([set(one) for one in order.before_each] for order in orders)
        if all(alike) and before == after:
            return list(_parameters(old.nodes, new.nodes))
        if _coloured(old, orders[0], known) == _coloured(new, orders[1], known):
            return [_order(old, new, before, after)]
        if all(alike):
            return list(_edges(old, new, before, after))
    return list(_nodes(old.nodes, new.nodes))


def _coloured(seen: Look, order: Order, known: dict[Any, int]) -> Counter[int]:
    """A number for each node, by its content, all nodes before it and all nodes after it. Equal nodes have equal
    numbers in all graphs that share ``known``."""
    sides: list[list[int]] = []
    for sequence, near in ((order.sequence, order.before_each), (order.sequence[::-1], order.after_each)):
        colours = [-1] * len(seen.nodes)
        for number in sequence:
            node = seen.nodes[number]
            key = (len(sides), node.kind, node.name, tuple(sorted(colours[one] for one in near[number])))
            colours[number] = known.setdefault(key, len(known))
        sides.append(colours)
    return Counter(known.setdefault(('both', *pair), len(known)) for pair in zip(*sides))


def _order(old: Look, new: Look, before: list[set[int]], after: list[set[int]]) -> GraphDifference:
    first = next(
        number
        for number, (a, b) in enumerate(zip(old.nodes, new.nodes))
        if (a.kind, a.name, before[number]) != (b.kind, b.name, after[number])
    )
    text = (
        f'the nodes and edges are the same, recorded in another order, and CUDA pairs nodes by their order: '
        f'{label(new.nodes[first])} was {label(old.nodes[first])}'
    )
    return GraphDifference('order', text, first, first)


def _edges(old: Look, new: Look, before: list[set[int]], after: list[set[int]]) -> Iterator[GraphDifference]:
    for number, (a, b) in enumerate(zip(before, after)):
        if a != b:
            text = f'{label(new.nodes[number])} comes after {_numbers(sorted(b))}, and came after {_numbers(sorted(a))}'
            yield GraphDifference('edges', text, number, number)


def edge_order(old: Look, new: Look) -> list[GraphDifference]:
    """The first node whose edges are the same in another order, by which CUDA pairs nodes, too."""
    orders: list[dict[int, list[int]]] = [{}, {}]
    for seen, order in zip((old, new), orders):
        for a, b in seen.edges:
            order.setdefault(b, []).append(a)
    for number, after in sorted(orders[1].items()):
        before = orders[0].get(number, [])
        if after != before and set(after) == set(before):
            text = (
                f'{label(new.nodes[number])} comes after {_numbers(after)} in this order, and came after '
                f'{_numbers(before)}: CUDA pairs the nodes before it by that order'
            )
            return [GraphDifference('order', text, number, number)]
    return []


def heeding(new: bool) -> GraphDifference:
    """The difference if only one of two graphs uses the priorities of its lanes."""
    one, other = ('new', 'old') if new else ('old', 'new')
    text = (
        f'the {one} graph uses the priorities of its lanes, the {other} one the priority of the stream that launches it'
    )
    return GraphDifference('priority', text)


def priorities(
    old: Sequence[Node], new: Sequence[Node], before: Mapping[int, int], after: Mapping[int, int]
) -> list[GraphDifference]:
    """Kernels on lanes of another priority; ``before`` and ``after`` are the lanes' priorities by number."""
    found = []
    for a, b in zip(old, new):
        had, has = before.get(a.lane or 0, 0), after.get(b.lane or 0, 0)
        if b.kind == 'kernel' and had != has:
            text = f'{label(b)} has the priority {has}, and had {had}'
            found.append(GraphDifference('priority', text, b.number, a.number))
    return found


def _numbers(nodes: Iterable[int]) -> str:
    words = [str(node) for node in nodes]
    return f'node{"s" if len(words) > 1 else ""} {", ".join(words)}' if words else 'nothing'


def _nodes(old: Sequence[Node], new: Sequence[Node]) -> Iterator[GraphDifference]:
    """Nodes that were added, that are missing, and that have another kind now."""
    keys = [[(node.kind, node.name) for node in nodes] for nodes in (old, new)]
    start = _common(keys[0], keys[1])
    end = min(_common(keys[0][::-1], keys[1][::-1]), len(old) - start, len(new) - start)
    middle = [key[start : len(key) - end] for key in keys]
    if max(map(len, middle)) > _LONGEST:
        spans = [('replace', 0, len(middle[0]), 0, len(middle[1]))]
    else:
        from difflib import SequenceMatcher

        spans = list(SequenceMatcher(None, middle[0], middle[1], autojunk=False).get_opcodes())
    for what, a, b, c, d in spans:
        if what != 'equal':
            yield from _span(old[start + a : start + b], new[start + c : start + d])


def _common(one: list[Any], other: list[Any]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def _span(old: Sequence[Node], new: Sequence[Node]) -> Iterator[GraphDifference]:
    for a, b in zip(old, new):
        kind = 'kind' if a.kind != b.kind else 'function' if a.name != b.name else ''
        if kind:
            yield GraphDifference(kind, f'{label(b)} was {label(a)}', b.number, a.number)
    for a in old[len(new) :]:
        yield GraphDifference('missing', f'{label(a)} is missing', None, a.number)
    for b in new[len(old) :]:
        yield GraphDifference('added', f'{label(b)} is new', b.number)


def _parameters(old: Sequence[Node], new: Sequence[Node]) -> Iterator[GraphDifference]:
    for a, b in zip(old, new):
        if a.name != b.name:
            yield GraphDifference('function', f'{label(b)} was {label(a)}', b.number, a.number)
        changed = [name for name in {**a.detail, **b.detail} if a.detail.get(name) != b.detail.get(name)]
        if changed:
            words = (f'{name} {_value(name, a)} -> {_value(name, b)}' for name in changed)
            yield GraphDifference('parameter', f'{label(b)}: {", ".join(words)}', b.number, a.number)


def _value(name: str, node: Node) -> str:
    value = node.detail.get(name)
    return hex(value) if name in ('dst', 'src') and isinstance(value, int) else str(value)


def reasons(found: Sequence[GraphDifference], number: int | None) -> list[GraphDifference]:
    """Those differences that may be why CUDA refused: of structure if there are any, else those at the node that CUDA
    named, else all."""
    structure = [one for one in found if one.kind in STRUCTURE]
    named = [one for one in found if number is not None and one.number == number]
    return structure or named or list(found)


def in_words(found: Sequence[GraphDifference]) -> str:
    """Some differences as a sentence without its full stop."""
    more = len(found) - _TOLD
    return '; '.join(one.text for one in found[:_TOLD]) + (f'; and {more} more' if more > 0 else '')
