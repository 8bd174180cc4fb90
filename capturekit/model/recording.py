"""The recording of a capture: plain data, for explaining, drawing and measuring.

A :class:`Recording` says which lane forked where and joined where, the order of all steps, uploaded constants,
adapted calls, and notes. It saves to JSON and loads again; ``version`` is the version of that format.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TextIO

from capturekit.model.counted import counted
from capturekit.model.shown import Shown, in_notebook
from capturekit.model.source_line import Place

VERSION = 1


@dataclass
class LaneRecord:
    """A lane: ``number`` 0 is the origin; ``priority`` and ``device`` are those of its stream.

    Places are ``[file, line, function]`` or None.
    """

    number: int
    stream: int
    parent: int | None = None
    forked_at: list[Any] | None = None
    joined_at: list[Any] | None = None
    last_use: list[Any] | None = None
    priority: int = 0
    device: int = 0


@dataclass(slots=True)
class Step:
    """One step of a capture.

    ``kind`` is begin, fork, join, wait, record, switch, host, constant, adapted, assumed, drawn, seam, cut, finding or
    note. For forks, joins and waits, ``other`` is the lane that is waited for, ``nodes`` the number of nodes before.
    """

    kind: str
    lane: int | None
    text: str
    at: list[Any] | None = None
    event: int | None = None
    nbytes: int | None = None
    other: int | None = None
    nodes: int | None = None


@dataclass
class Span:
    """Consecutive nodes that one line made on one lane: ``first`` is the number of the first, counted from 0."""

    first: int
    count: int
    lane: int | None
    at: list[Any] | None = None


@dataclass
class NodeRecord:
    """A node: ``kind`` is kernel, memcpy, memset, host, graph, empty, event record, event wait, conditional ...

    ``name`` is a kernel's or function's; ``detail`` holds further facts by name: grid, block, bytes, arguments.
    """

    kind: str
    name: str = ''
    lane: int | None = None
    at: list[Any] | None = None
    detail: dict[str, Any] = field(default_factory=dict)


#: How times were measured, in words.
_BY = {'profiler': 'a profiler', 'events': 'events around the nodes'}


@dataclass(repr=False)
class Timeline(Shown):
    """When each node of a graph ran, as :meth:`capturekit.Graph.measure` found it. All times in microseconds.

    Attributes:
        source: 'measured' on a device, or 'modelled' by the simulated one.
        launches: how many launches the medians are of.
        plain_us: the time of one launch without timing nodes, in a row of launches.
        span_us: from the first start to the last end, with the cost of measuring subtracted.
        marked_us: one launch while nodes were timed, with nothing subtracted: by the profiler, from the first start to
            the last end; by events, a launch of the copy that has an event before and after each node.
        mark_us: what was subtracted: by the profiler, the average for a node; by events, the cost of one event, which
            is subtracted twice for each node, from its duration and from the gap before it.
        nodes: (start, end) of each node, by its number, counted from the first start; None for nodes that take no time
            themselves (events, empty nodes) and for disabled ones.
        spread_us: by node, the interquartile range of how long it took; 0 where there is no time.
        by: how they were measured: 'profiler', 'events' or 'model'; '' where that is not known.
        note: a remark on these times, in one sentence; or ''.
    """

    source: str = 'measured'
    launches: int = 0
    plain_us: float = 0.0
    span_us: float = 0.0
    marked_us: float = 0.0
    mark_us: float = 0.0
    nodes: list[tuple[float, float] | None] = field(default_factory=list)
    spread_us: list[float] = field(default_factory=list)
    by: str = ''
    note: str = ''

    @property
    def durations_us(self) -> list[float]:
        """How long each node took, by its number; 0 where there is no time."""
        return [0.0 if node is None else node[1] - node[0] for node in self.nodes]

    @property
    def sum_us(self) -> float:
        """The sum of all durations: more than the span where nodes ran at once."""
        return math.fsum(self.durations_us)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Timeline:
        """Make a timeline of what :meth:`Recording.to_json` made of one. Raises ValueError if it is not one."""
        if not isinstance(data, dict):
            raise ValueError('a timeline is a dictionary')
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        if known.get('source', 'measured') not in ('measured', 'modelled'):
            raise ValueError(f'a timeline is measured or modelled, and this one is {known["source"]!r}')
        if not all(isinstance(known.get(name, ''), str) for name in ('by', 'note')):
            raise ValueError('a timeline says in words how it was measured')
        for name in ('launches', 'plain_us', 'span_us', 'marked_us', 'mark_us'):
            known[name] = _time(known.get(name, 0))
        known['nodes'] = [None if node is None else _ends(node) for node in data.get('nodes', [])]
        known['spread_us'] = [_time(one) for one in data.get('spread_us', [])]
        if len(known['spread_us']) != len(known['nodes']):
            raise ValueError('a timeline has a spread for each of its nodes')
        return cls(**known)

    def _bars(self) -> Iterator[tuple[str, float, str]]:
        rows = ('sum of the nodes', self.sum_us), ('a launch', self.plain_us), ('first start to last end', self.span_us)
        yield from ((name, us, f'{us:,.2f} us') for name, us in rows)

    def __str__(self) -> str:
        """Times in a table; :func:`capturekit.render.to_timeline_text` has lanes and the names of nodes, too."""
        timed = sum(node is not None for node in self.nodes)
        by = f' by {_BY[self.by]}' if self.by in _BY else ''
        lines = [
            f'{self.source}{by}, medians of {counted(self.launches, "launch")}, '
            f'{counted(timed, "node")} with times, in microseconds'
        ]
        more = f'{self.sum_us / self.span_us:.2f} at once on the average' if self.span_us else ''
        rows = [
            ('first start to last end', self.span_us, ''),
            ('a launch of the graph', self.plain_us, ''),
            ('sum of the nodes', self.sum_us, more),
        ]
        if self.by == 'profiler':
            remark = f'first start to last end; {self.mark_us:.2f} a node on the average, taken off'
            rows.append(('a launch while watched', self.marked_us, remark))
        elif self.by != 'model':
            remark = f'{self.marked_us - self.plain_us:+,.2f} to the graph, {self.mark_us:.2f} a mark, taken off'
            rows.append(('a launch with marks', self.marked_us, remark))
        lines += [f'  {words:<24}{value:>14,.2f}  {remark}'.rstrip() for words, value, remark in rows]
        return '\n'.join([*lines, f'  {self.note}'] if self.note else lines)


def _time(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f'{value!r} is not a time')
    return value


def _ends(value: Any) -> tuple[float, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not 0 <= _time(value[0]) <= _time(value[1]):
        raise ValueError(f'{value!r} is not a pair of start and end')
    return value[0], value[1]


#: How notebooks show a recording, by MIME type: filled by capturekit.render, a higher package.
SHOWN_AS: dict[str, Callable[[Recording], str]] = {}
#: The formats that a recording is written in, by a file's ending; filled as well.
WRITTEN_AS: dict[str, Callable[[Recording], str]] = {}


@dataclass(repr=False)
class Recording(Shown):
    """What happened in one capture: lanes, steps, and which line made which nodes.

    ``node_count`` and ``edge_count`` say how large the graph is, ``spans`` which line made which nodes, by their
    numbers in the order in which they were made. ``graph`` has the nodes and ``arrows`` the edges, as pairs (from, to)
    of node numbers, once :meth:`capturekit.Graph.describe` has written them; before, both are empty.
    ``timeline`` is None until :meth:`capturekit.Graph.measure`, and describes the graph as it was then.
    ``by_priority``: True if the graph's kernels have the priorities of their lanes; False if they have the priority of
    the stream that launches the graph.
    """

    version: int = VERSION
    capturekit: str = ''
    cupy: str = ''
    device: str = ''
    mode: str = ''
    strict: bool = True
    lanes: list[LaneRecord] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    node_count: int = 0
    edge_count: int = 0
    memory_bytes: int = 0
    outcome: str = 'open'
    spans: list[Span] = field(default_factory=list)
    graph: list[NodeRecord] = field(default_factory=list)
    arrows: list[tuple[int, int]] = field(default_factory=list)
    timeline: Timeline | None = None
    by_priority: bool = False

    @property
    def devices(self) -> list[int]:
        """The numbers of the devices that its lanes are on, in order."""
        return sorted({lane.device for lane in self.lanes})

    @property
    def adaptations(self) -> list[Step]:
        """Calls that were replaced by their equivalent in a graph (``strict=False``)."""
        return [step for step in self.steps if step.kind == 'adapted']

    @property
    def constants(self) -> list[Step]:
        """Host values that were uploaded once, while recording."""
        return [step for step in self.steps if step.kind == 'constant']

    @property
    def notes(self) -> list[Step]:
        """Remarks on this graph."""
        return [step for step in self.steps if step.kind == 'note']

    def to_json(self) -> dict[str, Any]:
        """The recording as dictionaries and lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recording:
        """Make a recording from :meth:`to_json`'s answer.

        Raises:
            ValueError: the data is not a recording, or its version is unknown to this capturekit.
        """
        if not isinstance(data, dict) or 'version' not in data:
            raise ValueError('this is not a capturekit recording: it has no version')
        if data['version'] != VERSION:
            raise ValueError(f'recording version {data["version"]!r}; this capturekit reads version {VERSION}')
        try:
            return cls._of(data)
        except (TypeError, KeyError, AttributeError, IndexError, ValueError) as error:
            what = f'{type(error).__name__}: {error}'
            raise ValueError(f'this is not a whole capturekit recording, or it was changed ({what})') from None

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Recording:
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        known['lanes'] = [LaneRecord(**lane) for lane in data.get('lanes', [])]
        known['steps'] = [Step(**step) for step in data.get('steps', [])]
        known['spans'] = [Span(**span) for span in data.get('spans', [])]
        known['graph'] = [NodeRecord(**node) for node in data.get('graph', [])]
        known['arrows'] = [(a, b) for a, b in data.get('arrows', [])]
        known['timeline'] = None if data.get('timeline') is None else Timeline.from_json(data['timeline'])
        return cls(**known)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a JSON file."""
        import json  # few programs write or read a recording

        with open(os.fspath(path), 'w', encoding='utf-8') as f:  # a number would be an open file's
            json.dump(self.to_json(), f, indent=1)
            f.write('\n')

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording from a JSON file.

        Raises:
            ValueError: the file is not a recording, or its version is unknown to this capturekit; the message names it.
            OSError: the file can't be read.
        """
        with open(os.fspath(path), encoding='utf-8') as f:
            return read_recording(f, str(os.fspath(path)))

    def svg(self) -> str:
        """The recording as an SVG document; :mod:`capturekit.render` has more pictures."""
        return SHOWN_AS['image/svg+xml'](self)

    def show(self, path: str | os.PathLike[str] | None = None) -> None:
        """Show the recording: in a notebook as a page, on a terminal as text; or write it to a file.

        ``path``: its ending says what is written: a page (.html), a picture (.svg), text (.txt), DOT (.dot, .gv) or a
        trace for ui.perfetto.dev (.json). Raises ValueError at another ending.
        """
        if path is not None:
            ending = os.path.splitext(os.fspath(path))[1].lower()
            if ending not in WRITTEN_AS:
                raise ValueError(f'{os.fspath(path)}: the ending must be one of {" ".join(WRITTEN_AS)}')
            with open(path, 'w', encoding='utf-8') as f:
                f.write(WRITTEN_AS[ending](self))
        elif in_notebook():
            importlib.import_module('IPython.display').display(self)
        else:
            encoding = getattr(sys.stdout, 'encoding', None) or 'utf-8'
            print(WRITTEN_AS['.txt'](self).encode(encoding, 'replace').decode(encoding), end='')

    def _repr_html_(self) -> str:
        return SHOWN_AS['text/html'](self)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {'text/plain': str(self), **{mime: make(self) for mime, make in SHOWN_AS.items()}}

    def __str__(self) -> str:
        """A table of lanes and the order of forks and joins, for the terminal."""
        lines = [f'{self.outcome} recording on {self.device}: {sizes(self)}']
        for lane in self.lanes:
            story = 'origin' if lane.number == 0 else f'forked from lane {lane.parent} at {place(lane.forked_at)}'
            if lane.joined_at is not None:
                story += f', joined at {place(lane.joined_at)}'
            priority = f'priority {lane.priority}, ' if lane.priority else ''
            device = f'device {lane.device}  ' if len(self.devices) > 1 else ''
            lines.append(f'  lane {lane.number}  stream {lane.stream:#x}  {device}{priority}{story}')
        for step in self.steps:
            if step.kind in ('fork', 'join', 'constant', 'adapted', 'note'):
                lines.append(f'  {step.kind:9} {step.text}' + (f'  ({place(step.at)})' if step.at else ''))
        return '\n'.join(lines)


def read_recording(file: TextIO, name: str) -> Recording:
    """Read a recording from an open file, as :meth:`Recording.load` does; ``name`` is the file's in messages."""
    import json

    try:
        data = json.load(file)
    except (ValueError, RecursionError) as error:  # no JSON, or no text
        why = 'it is nested too deeply' if isinstance(error, RecursionError) else f'it is not JSON ({error})'
        raise ValueError(f'{name}: this is not a capturekit recording: {why}') from None
    try:
        return Recording.from_json(data)
    except ValueError as error:
        raise ValueError(f'{name}: {error}') from None


def sizes(recording: Recording) -> str:
    """The size of a recording, in words. The edges of a lost capture are unknown, so they are left out."""
    nodes = max(recording.node_count, len(recording.graph))
    edges = max(recording.edge_count, len(recording.arrows))
    figures = [counted(nodes, 'node')]
    figures += [] if not edges and nodes > 1 and recording.outcome != 'good' else [counted(edges, 'edge')]
    figures += [counted(len(recording.lanes), 'lane'), counted(recording.memory_bytes, 'byte', ' of its own memory')]
    return ', '.join(figures + (['priorities used'] if recording.by_priority else []))


def place(data: list[Any] | None) -> str:
    """A place of a recording in words."""
    at = Place.from_json(data)
    return 'an unknown line' if at is None else str(at)
