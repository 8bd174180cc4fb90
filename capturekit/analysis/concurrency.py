"""``graph.concurrency()``: whether the lanes overlap, how much they could, and what hinders them.

The report is made from the times of the nodes (:mod:`capturekit.graph.measure`), the edges, and what the nodes touch.
An edge is needed if nodes that touch the same memory, one of them writing, would be unordered without it; one on the
longest path that is not needed keeps nodes apart that could run side by side. CUDA C++ Programming Guide, "Graph
Structure".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from math import prod
from typing import Any

from capturekit.analysis.node_memory import Definitions, joined
from capturekit.analysis.node_view import Look, Node
from capturekit.analysis.races import MemoryBlocks, Open, Search
from capturekit.driver.cuda import current
from capturekit.driver.node_accesses import Access, Touched, covers, linear, overlap
from capturekit.model.counted import counted
from capturekit.model.dag import Order
from capturekit.model.recording import Step, Timeline
from capturekit.model.shown import Shown
from capturekit.model.source_line import Place

# -- intervals of time: joined, and how much of them lies at the same moments -----------------------------------------


Interval = tuple[float, float]


def shared(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """How long both of two lists of merged intervals go on at once."""
    total, a, b = 0.0, 0, 0
    while a < len(one) and b < len(other):
        total += max(0.0, min(one[a][1], other[b][1]) - max(one[a][0], other[b][0]))
        if one[a][1] < other[b][1]:
            a += 1
        else:
            b += 1
    return total


def most_at_once(intervals: Iterable[Interval]) -> int:
    """The largest number of intervals that share a moment. An interval does not share its end with one that begins."""
    moments = sorted(moment for start, end in intervals for moment in ((start, 1), (end, -1)) if end > start)
    most = now = 0
    for _at, change in moments:
        now += change
        most = max(most, now)
    return most


#: The most edges on the longest path that are examined, those between long nodes first.
_MOST = 24
#: The most kernels that are examined for filling the device, the longest ones first.
_LONGEST = 64
#: Microseconds that forking a lane and joining it again cost on the device, about: two dependencies between queues.
FORK_US = 3.0
#: A smaller gain, as a share of the longest path, is not reported.
_SHARE = 0.02
#: Two lanes overlap if they run together for this share of the shorter lane's work.
_SOME = 0.05
#: The most obstacles of one kind that are printed.
_SHOWN = 8
#: The access of a node whose accesses are not known.
_EVERYTHING = linear(0, 1 << 62, True)


@dataclass(frozen=True)
class Obstacle:
    """Something that keeps nodes from running side by side.

    Attributes:
        kind: 'needless edge', 'waits', 'mixed lanes', 'fills the GPU', 'short lane', 'one after the other' or
            'redundant edge'.
        text: a description, with the nodes.
        at: the line that made it; None where that is not known.
        gain_us: how much shorter the longest path would be, or the time that a lane is idle; 0 where no time
            is lost. The gains of two edges do not add up.
        nodes: the nodes' numbers.
    """

    kind: str
    text: str
    at: Place | None
    gain_us: float
    nodes: tuple[int, ...]

    def __str__(self) -> str:
        at = '' if self.at is None else f' ({self.at})'
        gain = f', {self.gain_us:.1f} us' if self.gain_us else ''
        return f'{self.kind}{gain}: {self.text}{at}'


@dataclass(repr=False)
class Concurrency(Shown):
    """What :meth:`Graph.concurrency` found; times in microseconds.

    Attributes:
        source: 'measured', or 'modelled' on the simulated device.
        nodes, edges: how many. width: how many nodes run at once at most, if each starts as soon as its edges allow.
        lanes: by number, the time that nodes of the lane run. devices: by lane, the device that it is on.
        alone_us: the time that all nodes take one after the other, as on a single lane.
        ideal_us: the longest path: no device can be faster with these edges.
        data_us: the longest path if only nodes that share memory were ordered, as they were recorded: with the right
            lanes and waits no device could be faster. data_width: how many nodes would run at once at most.
        measured_us: from the first start to the last end.
        critical: the nodes of the longest path.
        overlap_us: for each pair of lanes that have nodes, the time that both run.
        obstacles: what keeps nodes apart, the largest gain first.
    """

    source: str
    nodes: int
    edges: int
    width: int
    alone_us: float
    ideal_us: float
    data_us: float
    data_width: int
    measured_us: float
    lanes: dict[int, float] = field(default_factory=dict)
    critical: list[Node] = field(default_factory=list)
    overlap_us: dict[tuple[int, int], float] = field(default_factory=dict)
    obstacles: list[Obstacle] = field(default_factory=list)
    devices: dict[int, int] = field(default_factory=dict)

    @property
    def speedup(self) -> float:
        """How many times faster than all nodes one after the other."""
        return self.alone_us / self.measured_us if self.measured_us else 1.0

    def to_json(self) -> dict[str, Any]:
        """The report as dictionaries and lists."""
        data = asdict(self)
        data['critical'] = [node.number for node in self.critical]
        data['overlap_us'] = [[a, b, us] for (a, b), us in self.overlap_us.items()]
        data['obstacles'] = [
            {**asdict(one), 'at': None if one.at is None else one.at.to_json()} for one in self.obstacles
        ]
        return data

    def _brief(self) -> str:
        lanes = counted(len(self.lanes), 'lane')
        return f'{self.measured_us:.1f} us {self.source} on {lanes}, {self.speedup:.2f} times as fast as in a row'

    def _bars(self) -> Iterator[tuple[str, float, str]]:
        for name, us in (
            ('one after the other', self.alone_us), (self.source, self.measured_us), ('longest path', self.ideal_us),
            ('by its data alone', self.data_us),
        ):  # fmt: skip
            yield name, us, f'{us:,.1f} us'

    def __str__(self) -> str:
        lanes = counted(len(self.lanes), 'lane')
        lines = [
            f'{self.source}: {counted(self.nodes, "node")}, {counted(self.edges, "edge")}, {lanes}, '
            f'at most {self.width} at once',
            f'  one after the other {self.alone_us:10.1f} us',
            f'  measured            {self.measured_us:10.1f} us   {self.speedup:.2f} times as fast as that',
            f'  longest path        {self.ideal_us:10.1f} us   {counted(len(self.critical), "node")}',
            *(f'    {line}' for line in _grouped(self.critical)),
            f'  by its data alone   {self.data_us:10.1f} us   at most {self.data_width} at once',
        ]
        if self.overlap_us:
            lines.append('  time that both run, and its share of the shorter lane')
        for (a, b), us in sorted(self.overlap_us.items(), key=lambda one: -one[1])[:_SHOWN]:
            shorter = min(self.lanes[a], self.lanes[b])
            share = 100 * us / shorter if shorter else 0
            lines.append(f'    lanes {a} and {b}{self._on(a, b)}: {us:.1f} us, {share:.0f} %')
        if len(self.overlap_us) > _SHOWN:
            lines.append(f'    and {counted(len(self.overlap_us) - _SHOWN, "more pair")}')
        lines += [f'  {line}' for line in self._obstacles()]
        return '\n'.join(lines)

    def _on(self, a: int, b: int) -> str:
        """The devices of two lanes, if they differ."""
        there = [self.devices.get(lane, 0) for lane in (a, b)]
        return f' (devices {there[0]} and {there[1]})' if there[0] != there[1] else ''

    def _obstacles(self) -> Iterator[str]:
        shown = Counter[str]()
        for one in self.obstacles:
            shown[one.kind] += 1
            if shown[one.kind] <= _SHOWN:
                yield str(one)
        yield from (f'{kind}: {count - _SHOWN} more' for kind, count in shown.items() if count > _SHOWN)
        if not shown:
            yield 'no obstacle was found'


def _grouped(nodes: Sequence[Node]) -> Iterator[str]:
    """One text for all nodes that one line made in a row."""
    groups = [list(group) for _line, group in groupby(nodes, key=lambda node: (node.at, node.lane))]
    for group in groups[: 2 * _SHOWN]:
        times = f' ({counted(len(group), "node")})' if len(group) > 1 else ''
        yield f'{group[0]}{times}'
    if len(groups) > 2 * _SHOWN:
        yield f'and {counted(len(groups) - 2 * _SHOWN, "more line")}'


def spans_of(order: Order, ends: Sequence[float]) -> Iterator[Interval]:
    """When each node runs if it starts as soon as all nodes before it have ended.

    The start is not computed as end minus duration: rounded, it may lie before the end that was waited for.
    """
    for end, before in zip(ends, order.before_each):
        yield max((ends[a] for a in before), default=0.0), end


# -- the report -------------------------------------------------------------------------------------------------


@dataclass
class Study:
    """One report on one graph.

    ``touched`` has what each node touches, by its number. ``steps`` are the recording's, for the lines of waits.
    ``capacity``: how many threads the device holds at once; 0 if that is not known.
    """

    nodes: Sequence[Node]
    edges: Sequence[tuple[int, int]]
    timeline: Timeline
    touched: Mapping[int, Touched]
    steps: Sequence[Step]
    capacity: int
    devices: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._edges = list(dict.fromkeys(self.edges))
        self._order = Order(len(self.nodes), self._edges)
        self._spans = self.timeline.nodes
        self._took = [0.0 if span is None else span[1] - span[0] for span in self._spans]
        self._waits = [step for step in self.steps if step.other is not None and step.nodes is not None]
        lanes = sorted({node.lane for node in self.nodes if node.lane is not None})
        self._busy = {
            lane: joined(
                (span for node, span in zip(self.nodes, self._spans) if node.lane == lane and span is not None), True
            )
            for lane in lanes
        }
        ends, self._path = self._order.longest(self._took)
        self.report = self._summed(self.timeline, ends)
        self.report.devices = {lane: self.devices.get(lane, 0) for lane in lanes}
        pairs = [(a, b) for a in self.report.lanes for b in self.report.lanes if a < b]
        self.report.overlap_us = {(a, b): shared(self._busy[a], self._busy[b]) for a, b in pairs}
        self._found = [*self._needless(), *self._standing()]
        self._found += [*self._crowded(), *self._full(), *self._short(), *self._apart(), *self._redundant()]
        self.report.obstacles = sorted(self._found, key=lambda one: -one.gain_us)

    def _summed(self, timeline: Timeline, ends: Sequence[float]) -> Concurrency:
        """The report's numbers. ``ends``: when each node ends that starts as soon as its edges allow."""
        by_data = Order(len(self.nodes), self._data())
        free, _path = by_data.longest(self._took)
        return Concurrency(
            timeline.source,
            len(self.nodes),
            len(self._edges),
            most_at_once(spans_of(self._order, ends)),
            sum(self._took),
            max(ends, default=0.0),
            max(free, default=0.0),
            most_at_once(spans_of(by_data, free)),
            timeline.span_us,
            {lane: sum(end - start for start, end in busy) for lane, busy in self._busy.items() if busy},
            [self.nodes[n] for n in self._path],
        )

    def _line(self, a: int, b: int) -> Place | None:
        """The line that made an edge: the wait between two lanes, or the later node's own."""
        here, there = self.nodes[b].lane, self.nodes[a].lane
        if here != there:
            for step in reversed(self._waits):
                if step.lane == here and step.other == there and a < (step.nodes or 0) <= b:
                    return Place.from_json(step.at)
        return self.nodes[b].at

    def _data(self) -> Iterator[tuple[int, int]]:
        """Pairs of nodes that share memory, one of them writing, or that may: in the order in which the edges run."""
        seen = Open()
        for number in self._order.sequence:
            touched = self.touched[number]
            mine = list(touched.accesses) if touched.complete else [_EVERYTHING]
            for access in mine:
                yield from ((other, number) for other in self._met(seen, number, access))
            for access in mine:
                seen.add(number, access)

    @staticmethod
    def _met(seen: Open, number: int, access: Access) -> Iterator[int]:
        """The earlier nodes that an access has to come after. Accesses that it overwrites whole are dropped."""
        for key, other, earlier in seen.touching(access):
            if other == number or (access.writes is False and earlier.writes is False):
                continue
            if overlap(earlier, access) is not False:
                yield other
                if access.writes and covers(access, earlier):
                    seen.drop(key)

    # -- edges --------------------------------------------------------------------------------------------------

    def _needless(self) -> Iterator[Obstacle]:
        """Edges of the longest path that no data needs."""
        redundant = set(self._order.redundant())
        asked = [edge for edge in pairwise(self._path) if edge not in redundant]
        asked.sort(key=lambda edge: -min(self._took[edge[0]], self._took[edge[1]]))
        least = _SHARE * self.report.ideal_us
        for edge in asked[:_MOST]:
            gain = self.report.ideal_us - max(self._order.longest(self._took, edge)[0])
            if gain <= least:
                continue
            if self._needed(edge, Order(len(self.nodes), [one for one in self._edges if one != edge])):
                continue
            a, b = edge
            same = self.nodes[a].lane == self.nodes[b].lane
            what = 'comes after, on the same lane,' if same else 'waits for'
            text = f'{self.nodes[b].words} {what} {self.nodes[a].words}, although nothing that it or later nodes '
            text += 'touch needs this'
            yield Obstacle('needless edge', text, self._line(a, b), gain, edge)

    def _needed(self, edge: tuple[int, int], without: Order) -> bool:
        """Whether nodes that share memory would be unordered without an edge, as far as anyone knows."""
        a, b = edge
        before = [n for n in range(len(self.nodes)) if n == a or self._order.before(n, a)]
        behind = [n for n in range(len(self.nodes)) if n == b or self._order.before(b, n)]
        loose = [n for n in before if not without.before(n, b)]
        held = [n for n in behind if not without.before(a, n)]
        if not all(self.touched[n].complete for n in (*loose, *held)):
            return True
        earlier = Open()
        for n in loose:
            for access in self.touched[n].accesses:
                earlier.add(n, access)
        for n in held:
            for access in self.touched[n].accesses:
                for _key, other, mine in earlier.touching(access):
                    writes = access.writes is not False or mine.writes is not False
                    if writes and not without.before(other, n) and overlap(mine, access) is not False:
                        return True
        return False

    def _redundant(self) -> Iterator[Obstacle]:
        for a, b in self._order.redundant():
            text = f'{self.nodes[b].words} already comes after {self.nodes[a].words} by another path'
            yield Obstacle('redundant edge', text, self._line(a, b), 0.0, (a, b))

    # -- lanes --------------------------------------------------------------------------------------------------

    def _standing(self) -> Iterator[Obstacle]:
        """Lanes that are idle because the next node waits for another lane."""
        ended: dict[int, float] = {}
        for number in sorted(range(len(self.nodes)), key=lambda n: (self._spans[n] or (0.0, 0.0))[0]):
            node, span = self.nodes[number], self._spans[number]
            if span is None or node.lane is None:
                continue
            others = [a for a in self._order.before_each[number] if self.nodes[a].lane != node.lane]
            ends = [(end[1], a) for a in others if (end := self._spans[a]) is not None]
            idle = span[0] - ended.get(node.lane, span[0])
            ended[node.lane] = span[1]
            if not ends:
                continue
            last, a = max(ends)
            idle = min(idle, last - (span[0] - idle))
            if idle > max(_SHARE * self.report.measured_us, FORK_US):
                text = f'lane {node.lane} is idle before {self.nodes[number].words}: it waits for {self.nodes[a].words}'
                yield Obstacle('waits', text, self._line(a, number), idle, (a, number))

    def _short(self) -> Iterator[Obstacle]:
        """Lanes with less work than forking and joining them costs."""
        for lane, busy in self.report.lanes.items():
            if lane and 0 < busy < FORK_US and len(self.report.lanes) > 1:
                forked = next((step for step in self._waits if step.kind == 'fork' and step.lane == lane), None)
                at = None if forked is None else Place.from_json(forked.at)
                mine = tuple(n for n, node in enumerate(self.nodes) if node.lane == lane)
                text = f'lane {lane} has {busy:.1f} us of work, and a fork and a join cost about {FORK_US:.0f}'
                yield Obstacle('short lane', text, at, 0.0, mine)

    def _full(self) -> Iterator[Obstacle]:
        """Kernels with more threads than the device holds: nothing else runs until their last threads do."""
        if not self.capacity or len(self.report.lanes) < 2:
            return
        least = max(_SHARE * self.report.measured_us, FORK_US)
        long = [n for n, took in enumerate(self._took) if took > least]
        for number in sorted(sorted(long, key=lambda n: -self._took[n])[:_LONGEST]):
            node = self.nodes[number]
            grid, block = node.detail.get('grid'), node.detail.get('block')
            threads = prod(map(int, (*grid, *block))) if grid and block else 0
            if node.kind == 'kernel' and threads >= self.capacity and self._beside(number):
                text = f'{node.words} has {threads:,} threads, and the device holds {self.capacity:,} at once'
                yield Obstacle('fills the GPU', text, node.at, 0.0, (number,))

    def _beside(self, number: int) -> bool:
        """Whether a node of the same device takes time and is unordered with this one."""
        before, there = self._order.before, self._device(number)
        return any(
            took > 0 and n != number and self._device(n) == there and not before(n, number) and not before(number, n)
            for n, took in enumerate(self._took)
        )

    def _device(self, number: int) -> int:
        return self.report.devices.get(self.nodes[number].lane or 0, 0)

    def _crowded(self) -> Iterator[Obstacle]:
        """Lanes with independent work in turns, which could run side by side."""
        report = self.report
        gain = report.ideal_us - report.data_us
        if gain > max(_SHARE * report.ideal_us, FORK_US) and not any(one.gain_us >= gain / 2 for one in self._found):
            text = f'ordered by its data alone the work could end {gain:.1f} us earlier, with up to '
            text += f'{counted(report.data_width, "node")} at once: lanes hold independent nodes in turns'
            yield Obstacle('mixed lanes', text, None, gain, tuple(self._path))

    def _apart(self) -> Iterator[Obstacle]:
        """Lanes that could run at once, and do not."""
        for (a, b), us in self.report.overlap_us.items():
            shorter = min(self.report.lanes[a], self.report.lanes[b])
            if shorter < FORK_US or us > _SOME * shorter:
                continue
            pair = self._free_pair(a, b)
            if pair is not None:
                why = 'one fills the device, or is over before the other begins'
                if self._device(pair[0]) != self._device(pair[1]):
                    why = 'one is over before the other begins'
                text = f'lanes {a} and {b}{self.report._on(a, b)} never run at once, although '
                text += f'{self.nodes[pair[0]].words} and {self.nodes[pair[1]].words} are unordered: {why}'
                yield Obstacle('one after the other', text, self.nodes[pair[1]].at, 0.0, pair)

    def _free_pair(self, a: int, b: int) -> tuple[int, int] | None:
        """The longest nodes of two lanes that are in no order."""
        mine, theirs = (
            sorted((n for n, node in enumerate(self.nodes) if node.lane == lane), key=lambda n: -self._took[n])[:_SHOWN]
            for lane in (a, b)
        )
        before = self._order.before
        pairs = ((min(one, other), max(one, other)) for one in mine for other in theirs)
        return next(((a, b) for a, b in pairs if not before(a, b) and not before(b, a)), None)


def study(state: Any, look: Look, timeline: Timeline) -> Concurrency:
    """Make the report for :meth:`Graph.concurrency`, which holds the lock of the graph's state."""
    platform, part = current(), state.parts()[0]
    blocks = MemoryBlocks(state.memory, platform.cupy.ndarray, {})
    told = Definitions(platform.device, state.declared).told(blocks)
    touched = Search(platform.device, [part], look, blocks, off=state.names.off, compare=False, accesses=told).touched
    devices = {lane.number: lane.device for lane in state.recording.lanes}
    told_of = {} if platform.simulated else platform.cupy.cuda.Device().attributes
    capacity = told_of.get('MultiProcessorCount', 0) * told_of.get('MaxThreadsPerMultiProcessor', 0)
    return Study(look.nodes, look.edges, timeline, touched, state.recording.steps, capacity, devices).report
