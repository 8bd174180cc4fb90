"""The report of ``graph.relane()``: the order as it was recorded beside the one that the data needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from capturekit.analysis.concurrency import most_at_once, spans_of
from capturekit.analysis.node_view import Node
from capturekit.driver.node_reader import shortened
from capturekit.model.counted import counted
from capturekit.model.dag import Order
from capturekit.model.shown import Shown

if TYPE_CHECKING:
    from capturekit.render.orders import Panel

#: The most findings of one kind, and the most rows of a picture, that are printed.
_SHOWN = 8
#: How a picture is read.
_LEGEND = '  [ begins a node, with its number where there is room; time goes to the right, rows run at the same time'
#: The columns of a picture.
_WIDE = 72

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Wiring:
    """The edges of one graph, or of the body of a conditional node: as recorded, and as the data needs them.

    Attributes:
        nodes: its nodes, in the order of recording.
        took: the time of each in microseconds, if the graph was measured; else 1 for each.
        recorded, needed: the edges, as pairs of places in ``nodes``.
        laid: those that the graph has, where times have chosen others than those of the data alone; else ().
    """

    nodes: tuple[Node, ...]
    took: tuple[float, ...]
    recorded: tuple[tuple[int, int], ...]
    needed: tuple[tuple[int, int], ...]
    laid: tuple[tuple[int, int], ...] = ()

    @cached_property
    def before(self) -> Order:
        """The order as it was recorded."""
        return Order(len(self.nodes), self.recorded)

    @cached_property
    def after(self) -> Order:
        """The order that the data needs."""
        return Order(len(self.nodes), self.needed)

    @cached_property
    def on_lanes(self) -> Order:
        """The order that the graph has: that of its lanes, or that which the data needs."""
        return Order(len(self.nodes), self.laid) if self.laid else self.after

    @cached_property
    def loosened(self) -> list[tuple[Node, Node]]:
        """Pairs of nodes that an edge of the recording had put in an order which nothing needs."""
        ordered = self.after.before
        return [(self.nodes[a], self.nodes[b]) for a, b in self.recorded if not ordered(a, b)]

    @cached_property
    def longest(self) -> tuple[float, float]:
        """The longest path, by ``took``, of the two orders."""
        first, second = (max(order.longest(self.took)[0], default=0.0) for order in (self.before, self.after))
        return first, second

    @cached_property
    def at_once(self) -> tuple[int, int]:
        """The most nodes that run at once in the two orders, if each starts as soon as its edges allow."""
        first, second = (
            most_at_once(spans_of(order, order.longest(self.took)[0])) for order in (self.before, self.after)
        )
        return first, second

    @property
    def orders(self) -> list[tuple[str, Order]]:
        """The orders that are drawn, by name."""
        laid = [('as chosen by times', self.on_lanes)] if self.laid else []
        return [('as recorded', self.before), ('as the data needs it', self.after), *laid]

    def panels(self) -> Iterator[Panel]:
        """The same orders, to be drawn."""
        from capturekit.render.orders import Bar, Panel

        for name, order in self.orders:
            spans = zip(self.nodes, spans_of(order, order.longest(self.took)[0]))
            bars = [Bar(node.number, shortened(node.name) or node.kind, *span) for node, span in spans]
            yield Panel(name, bars)

    def picture(self) -> Iterator[str]:
        """Both orders on one axis of time, each node where it runs if it starts as soon as its edges allow."""
        scale = _WIDE / max(self.longest[0], self.longest[1], 1e-9)
        for name, order in self.orders:
            yield name
            rows = _rows(list(spans_of(order, order.longest(self.took)[0])), scale)
            yield from (f'  {row}' for row in rows[:_SHOWN])
            if len(rows) > _SHOWN:
                yield f'  and {counted(len(rows) - _SHOWN, "more row")}'


def _rows(spans: Sequence[tuple[float, float]], scale: float) -> list[str]:
    """Rows of text in which each span stands, by its number if it has room, behind those that have ended before."""
    from capturekit.render.orders import in_rows

    places = in_rows(spans)
    rows: list[list[str]] = [[' '] * (_WIDE + 1) for _ in range(max(places, default=-1) + 1)]
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        start, end = spans[number]
        first, last = int(start * scale), int(end * scale)
        wide = max(last - first, 1)
        text = (f'[{number}' if len(str(number)) < wide else '[').ljust(wide, '-')
        rows[places[number]][first : first + len(text)] = text
    return [''.join(row).rstrip() for row in rows]


@dataclass(frozen=True)
class OrderTimes:
    """What launches took with the order as recorded, and with the one that the data needs, in microseconds each.

    ``modelled``: whether the times are the simulated device's. ``lanes``: the same with the nodes laid on lanes, by the
    number of these. ``behind_one``: with the order that the data needs, but all beginnings behind one of them; () where
    there is only one.
    """

    recorded: tuple[float, ...]
    needed: tuple[float, ...]
    modelled: bool = False
    lanes: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    behind_one: tuple[float, ...] = ()

    @property
    def medians(self) -> tuple[float, float]:
        """The median of each."""
        return float(np.median(self.recorded)), float(np.median(self.needed))

    @property
    def best(self) -> int:
        """The fastest order of those that are faster than the recorded one beyond doubt: three quarters of its launches
        took less time than three quarters of the other's.

        A number of lanes; 0 for the recorded one, -1 for the one that the data needs, -2 for this behind one node.
        """
        every = {-1: self.needed, **({-2: self.behind_one} if self.behind_one else {}), **self.lanes}
        faster = [name for name, times in every.items() if beats(times, self.recorded)]
        return min(faster, key=lambda name: float(np.median(every[name])), default=0)

    def __str__(self) -> str:
        was, now = self.medians
        by = ', by the model of the simulated device' if self.modelled else ''
        more = f', {np.median(self.behind_one):,.1f} us so behind one node' if self.behind_one else ''
        more += ''.join(f', {np.median(times):,.1f} us on {lanes} lanes' for lanes, times in sorted(self.lanes.items()))
        return f'{was:,.1f} us as recorded, {now:,.1f} us as the data needs it{more}{by}'


def beats(times: Sequence[float], others: Sequence[float]) -> bool:
    """Whether three quarters of some times are shorter than three quarters of others."""
    return bool(np.percentile(times, 75) < np.percentile(others, 25))


def in_words(order: int) -> str:
    """The words for an order, by its number in :attr:`OrderTimes.best`."""
    words = {0: 'as recorded', -1: 'as the data needs it', -2: 'as the data needs it, behind one node'}
    return words.get(order, f'on {counted(order, "lane")}')


@dataclass
class PackedBytes:
    """Bytes of a graph's temporaries as recorded, each in memory of its own, and packed by who may run beside whom.

    ``settled``: whether a launch of both has given the same, so that the graph has the packed memory alone.
    """

    before: int
    now: int
    settled: bool = False

    def __str__(self) -> str:
        return f'temporaries: {counted(self.before, "byte")} as recorded, {self.now:,} packed'


@dataclass(repr=False)
class Relaned(Shown):
    """What :meth:`Graph.relane` did, or would do. True if the graph has other edges than it was recorded with.

    Attributes:
        graphs: the order of the graph's nodes, then that of each body of a conditional node.
        fixed: nodes that kept their order with all others, because it is not known what they touch.
        declared: nodes that are taken to touch what ``ck.reads`` and ``ck.writes`` say.
        called: nodes of libraries that are taken to touch what the arguments of their call show.
        half_declared: those of ``fixed`` of which only one of these two was said.
        kept: the reason for which the graph has the edges that it was recorded with; '' where it has others.
        compared: what the first launch has shown, or why it shows nothing.
        times: what launches of each order took, where ``rounds=`` was given; None where nothing was timed.
        untimed: why nothing was timed although it was asked for; or ''.
        packed: how many bytes the temporaries take that ``lanes='auto'`` gave memory of their own; None where they
            have it still.
        unpacked: why they have it again, although they were packed; or ''.
        unit: of ``took`` and of the longest paths: 'us' where the graph was measured before, else 'nodes'.
    """

    graphs: list[Wiring] = field(default_factory=list)
    fixed: list[Node] = field(default_factory=list)
    declared: list[Node] = field(default_factory=list)
    called: list[Node] = field(default_factory=list)
    half_declared: list[Node] = field(default_factory=list)
    kept: str = ''
    compared: str = ''
    times: OrderTimes | None = None
    untimed: str = ''
    packed: PackedBytes | None = None
    unpacked: str = ''
    unit: str = 'nodes'

    def __bool__(self) -> bool:
        return not self.kept

    @property
    def edges(self) -> tuple[int, int]:
        """How many edges there were, and how many the data needs."""
        return sum(len(one.recorded) for one in self.graphs), sum(len(one.needed) for one in self.graphs)

    @property
    def loosened(self) -> list[tuple[Node, Node]]:
        """Pairs of nodes that were ordered by an edge which nothing needs."""
        return [pair for one in self.graphs for pair in one.loosened]

    @property
    def python(self) -> str:
        """Python that would record the graph's order by hand, with ``...`` in the place of each node's own line.

        Bodies of conditional nodes are left out.
        """
        return '' if not self.graphs or not self.graphs[0].nodes else '\n'.join(_by_hand(self.graphs[0]))

    def svg(self) -> str:
        """The order as recorded, that which the data needs, and that which times chose, as an SVG document: one below
        the other on one axis of time, where each node runs if it starts as soon as its edges allow.

        Bodies of conditional nodes are left out.
        """
        from capturekit.render.orders import to_svg

        panels = list(self.graphs[0].panels()) if self.graphs else []
        drawn = 'the times of the nodes' if self.unit == 'us' else 'one unit of time for each node'
        return to_svg(self._head(), f'drawn from the edges and {drawn}', panels, self.unit)

    def _head(self) -> str:
        before, after = self.edges
        nodes = counted(sum(len(one.nodes) for one in self.graphs), 'node')
        return f'{nodes}: {counted(before, "edge")} as recorded, {after:,} that the data needs'

    @property
    def in_short(self) -> str:
        """What was done, in one line."""
        if self.kept:
            return f'as recorded: {self.kept}'
        before, how = self.edges[0], 'as the data needs it'
        if self.times is not None and self.times.best:
            how = in_words(self.times.best)
            how += ', packed' if self.packed is not None else ''
        now = sum(len(one.laid or one.needed) for one in self.graphs)
        return f'{how}, {counted(before, "edge")} before and {now:,} now; first launch: {self.compared}'

    def _brief(self) -> str:
        before, after = self.edges
        return f'{counted(sum(len(one.nodes) for one in self.graphs), "node")}, {counted(before, "edge")}, ' + (
            f'{after:,} needed' + (f'; as recorded: {self.kept}' if self.kept else '')
        )

    def __str__(self) -> str:
        lines = [self._head()]
        for number, one in enumerate(self.graphs):
            lines += self._about(one, 'the graph' if not number else f'body {number}')
        lines += self._chance()
        lines += _listed('kept in order, as it is not known what they touch', self.fixed)
        lines += _listed('of which only one half is said: write ck.reads and ck.writes', self.half_declared)
        lines += _listed('taken to touch what ck.reads and ck.writes say', self.declared)
        lines += _listed("taken to touch what their library's call shows", self.called)
        laid = [one.laid for one in self.graphs if one.laid]
        now = f'{counted(sum(map(len, laid)), "edge")} now, chosen by times' if laid else 'these edges now'
        lines.append(f'the graph is as it was recorded: {self.kept}' if self.kept else f'the graph has {now}')
        if self.times is not None and not self.kept:
            lines.append(f'one launch, medians of {counted(len(self.times.needed), "round")}: {self.times}')
        if self.packed is not None:
            lines.append(str(self.packed))
        if self.unpacked:
            lines.append(f'temporaries are not packed: {self.unpacked}')
        if self.untimed:
            lines.append(f'not timed: {self.untimed}')
        if self.compared:
            lines.append(f'first launch: {self.compared}')
        return '\n'.join(lines)

    def _about(self, one: Wiring, name: str) -> Iterator[str]:
        if not one.loosened:
            return
        (was, now), (few, many) = one.longest, one.at_once
        path = f'{was:,.1f} us, {now:,.1f} us' if self.unit == 'us' else f'{counted(int(was), "node")}, {int(now):,}'
        yield f'{name}: longest path {path}; at most {few} and {many} at once'
        yield _LEGEND
        yield from (f'  {line}' for line in one.picture())

    def _chance(self) -> Iterator[str]:
        """The edges that nothing needs, those of the same two lines together."""
        groups: dict[tuple[str, str], list[tuple[Node, Node]]] = {}
        for first, second in self.loosened:
            groups.setdefault((_line(first), _line(second)), []).append((first, second))
        if groups:
            yield 'ordered only by chance'
        for pairs in list(groups.values())[:_SHOWN]:
            (first, second), more = pairs[0], len(pairs) - 1
            yield f'  {second.words} after {first.words}' + (f', and {counted(more, "pair")} like it' if more else '')
        if len(groups) > _SHOWN:
            yield f'  and {counted(len(groups) - _SHOWN, "more pair")} of lines'


def _listed(words: str, nodes: Sequence[Node]) -> Iterator[str]:
    if nodes:
        some = ', '.join(str(node) for node in nodes[:3]) + (', ...' if nodes[3:] else '')
        yield f'{words}, {counted(len(nodes), "node")}: {some}'


def _line(node: Node) -> str:
    return f'{node.lane} {node.at}' if node.at is not None else f'{node.lane} {node.name}'


# -- the same by hand -------------------------------------------------------------------------------------------


def _lanes(order: Order) -> list[int]:
    """A lane for each node: that of a node right before it, else one that has ended before it, else a new one."""
    last: list[int] = []
    found = [0] * len(order.before_each)
    for node in order.sequence:
        before = order.before_each[node]
        lane = next((found[a] for a in before if last[found[a]] == a), -1)
        if lane < 0:
            lane = next((n for n, end in enumerate(last) if order.before(end, node)), len(last))
        last[lane : lane + 1] = [node]
        found[node] = lane
    return found


def _by_hand(one: Wiring) -> Iterator[str]:
    order = one.on_lanes
    lanes, now = _lanes(order), -1
    names = [f'lane{lane + 1}' for lane in range(max(lanes, default=-1) + 1)]
    yield f'with cap.fork({len(names)}) as ({", ".join(names)}{"," if len(names) == 1 else ""}):'
    for node in order.sequence:
        lane = names[lanes[node]]
        waits = [a for a in order.before_each[node] if lanes[a] != lanes[node]]
        yield from (f'    {lane}.stream.wait_event(done{a})' for a in waits)
        if now != lanes[node] or waits:
            yield f'    with {lane}:'
        now = lanes[node]
        yield f'        ...  # {one.nodes[node].words}'
        if any(lanes[b] != lanes[node] for b in order.after_each[node]):
            yield f'    done{node} = {lane}.stream.record()'
            now = -1
