"""The layout of a picture of a recording: rows, columns, arrows, marks. All renderers draw from this.

A row is a lane, the origin first. A box is a node; where the recording holds no nodes, a span of nodes made by one
line; where it holds no spans either, a step. A box's column is one more than that of the boxes before it, so that
boxes in one column may run together. Where the recording has a timeline, boxes have times as well.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from capturekit.model.counted import counted
from capturekit.model.recording import LaneRecord, Recording, Step, Timeline, sizes
from capturekit.model.source_line import Place

#: Kinds of steps that shape the lanes; all others are marks.
_STRUCTURE = ('begin', 'fork', 'join', 'wait', 'record', 'switch', 'host')
#: Colours that kinds of boxes have for themselves; the rest share the last one.
PALETTE = ('#4477aa', '#ee6677', '#228833', '#ccbb44', '#66ccee', '#aa3377', '#ee8866', '#44bb99', '#9aa3ad')
COLORS = len(PALETTE) - 1
_WAITS = re.compile(r'waits for lane (\d+)')
#: Messages have several lines; a mark has one.
_LINES = re.compile(r'\s*\n\s+')
#: Characters that are removed from all output: control characters, lone surrogates, changes of text direction.
_UNFIT = re.compile('[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]')


@dataclass
class LaneRow:
    """A lane's row; ``lane`` is None for boxes on no known lane."""

    lane: int | None
    title: str
    story: str


@dataclass
class Box:
    """A node, span or step. ``name`` is the full name, ``short`` fits a label; ``after``: the boxes before it.

    ``time`` is start and end in microseconds, where the picture has a timeline.
    """

    number: int
    lane: int | None
    kind: str
    name: str
    short: str
    place: Place | None
    detail: list[tuple[str, str]] = field(default_factory=list)
    row: int = 0
    column: int = 0
    color: int = COLORS
    marks: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    time: tuple[float, float] = (0.0, 0.0)

    @property
    def where(self) -> str:
        """``train.py:38``, or '' where no line is known."""
        return '' if self.place is None else clean(self.place.short)

    @property
    def below(self) -> list[str]:
        """The text below the name: kind and line, where the name does not have them already."""
        return [word for word in (self.kind, self.where) if word and word != self.short]

    @property
    def details(self) -> str:
        """All that is known, in lines."""
        lines = [f'#{self.number} {self.name}', self.kind if self.place is None else f'{self.kind} at {self.place}']
        return '\n'.join(map(clean, lines + [f'{key}: {value}' for key, value in self.detail]))


@dataclass
class Arrow:
    """From box ``tail`` to box ``head``.

    ``way`` is the way to draw it: ``along`` the row, down at the tail (``fork``) or at the head (``join``) with
    nothing in between, and otherwise ``between`` the rows; ``back`` runs against the order.
    """

    tail: int
    head: int
    way: str


@dataclass
class DrawnMark:
    """A remark; ``box`` is the first box of its line, ``count`` how often it occurred."""

    kind: str
    text: str
    place: Place | None
    box: int | None = None
    count: int = 1

    @property
    def line(self) -> str:
        """The mark in one line."""
        times = f' (x {self.count})' if self.count > 1 else ''
        where = f'  ({self.place})' if self.place else ''
        return clean(f'{self.kind}: {self.text}{times}{where}')


@dataclass
class Picture:
    """A recording, laid out. ``of`` says what the boxes are; ``legend`` holds names and counts by colour.

    ``timeline`` is the recording's, if it is one of these boxes.
    """

    of: str
    summary: str
    made: str
    rows: list[LaneRow]
    boxes: list[Box]
    arrows: list[Arrow]
    marks: list[DrawnMark]
    legend: list[tuple[str, int]]
    columns: int
    timeline: Timeline | None = None


def lay_out(recording: Recording) -> Picture:
    """Lay a recording out."""
    if not isinstance(recording, Recording):
        given = type(recording).__name__
        raise TypeError(f'a picture is made of a capturekit.Recording (of a graph: graph.describe()), got {given}')
    of, boxes, pairs, in_order = 'nodes', *_nodes(recording)
    if not boxes:
        of, boxes, pairs, in_order = 'spans', *_spans(recording)
    if not boxes:
        of, boxes, pairs, in_order = 'steps', *_steps(recording)
    rows = _rows(recording, {box.lane for box in boxes})
    index = {row.lane: number for number, row in enumerate(rows)}
    for box in boxes:
        box.row = index[box.lane]
    pairs = [(a, b) for a, b in dict.fromkeys(pairs) if 0 <= a < len(boxes) and 0 <= b < len(boxes) and a != b]
    for tail, head in pairs:
        boxes[head].after.append(tail)
    _set_columns(boxes, len(rows), in_order)
    timeline = recording.timeline
    if timeline is not None and (of != 'nodes' or len(timeline.nodes) != len(boxes)):
        timeline = None
    if timeline is not None:
        _set_times(boxes, timeline)
    summary, made = _summary(recording), _made(recording, timeline)
    arrows, marks, legend = _arrows(boxes, pairs, len(rows)), _marks(recording, boxes), _color(boxes)
    columns = max((box.column for box in boxes), default=-1) + 1
    return Picture(of, summary, made, rows, boxes, arrows, marks, legend, columns, timeline)


# -- words ----------------------------------------------------------------------------------------------------


def clean(text: object) -> str:
    """Text without characters that terminals, XML or pages can't show."""
    return _UNFIT.sub('\ufffd', str(text))


def fit(text: str, width: int) -> str:
    """Shorten text in the middle so that it takes at most ``width`` columns of a fixed-width font."""
    if width_of(text) <= width:
        return text
    head, tail = text[: max(1, width * 2 // 3)], text[-(width // 4) :] if width >= 8 else ''
    while head and width_of(head) + width_of(tail) > width - 1:
        head, tail = (head[:-1], tail) if len(head) > len(tail) else (head, tail[1:])
    return f'{head}…{tail}'


def width_of(text: str) -> int:
    """How many columns of a terminal text takes."""
    return len(text) if text.isascii() else sum(2 if unicodedata.east_asian_width(c) in 'WF' else 1 for c in text)


def short_name(name: str) -> str:
    """A kernel's name without types, template arguments and CuPy's prefix."""
    text = re.split(r'[<(]', name, maxsplit=1)[0].strip().rpartition(' ')[2] or name
    text = '::'.join(text.split('::')[-2:])
    if text.startswith('cupy_'):
        text = text[5:].partition('__')[0] or text
    return clean(text)


def place_of(at: list[Any] | None) -> Place | None:
    """A place of a recording; None if the data is not a place."""
    try:
        return Place.from_json(at)
    except (ValueError, IndexError, TypeError, KeyError):
        return None


def _summary(recording: Recording) -> str:
    return clean(f'{recording.outcome} recording on {recording.device or "an unknown device"}: {sizes(recording)}')


def in_us(microseconds: float) -> str:
    """A time in words."""
    return f'{microseconds:,.2f} us'


def _made(recording: Recording, timeline: Timeline | None) -> str:
    parts = [f'{recording.mode} mode' if recording.mode else '', f'strict={recording.strict}']
    parts += [f'{name} {v}' for name, v in (('capturekit', recording.capturekit), ('CuPy', recording.cupy)) if v]
    if timeline is not None:
        parts.append(f'{in_us(timeline.span_us)} {timeline.source} over {counted(timeline.launches, "launch")}')
    return clean(', '.join(part for part in parts if part))


def _story(lane: LaneRecord) -> str:
    story = f'stream {lane.stream:#x}, ' + (f'priority {lane.priority}, ' if lane.priority else '')
    if lane.parent is None:
        story += 'origin' if lane.number == 0 else 'never forked'
    else:
        story += f'forked from lane {lane.parent}' + _at(lane.forked_at)
        story += ', not joined' if lane.joined_at is None else ', joined' + _at(lane.joined_at)
    return clean(story)


def _at(at: list[Any] | None) -> str:
    place = place_of(at)
    return '' if place is None else f' at {place}'


def _value_text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        text = ', '.join(map(_value_text, value[:64]))
    elif isinstance(value, dict):
        text = ', '.join(f'{key} {_value_text(item)}' for key, item in list(value.items())[:64])
    else:
        text = f'{value:,}' if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return clean(text) if len(text) <= 400 else clean(text[:399]) + '…'


# -- boxes: of nodes, spans or steps, pairs that arrows join, and whether each has a column of its own --------


Boxes = tuple[list[Box], list[tuple[int, int]], bool]


def _nodes(recording: Recording) -> Boxes:
    boxes = []
    for number, node in enumerate(recording.graph):
        kind, name = clean(node.kind), clean(node.name or node.kind)
        short = short_name(node.name) if node.name else kind
        detail = [(clean(key), _value_text(value)) for key, value in node.detail.items()]
        boxes.append(Box(number, node.lane, kind, name, short, place_of(node.at), detail))
    if recording.arrows:
        return boxes, list(recording.arrows), False
    return boxes, *_guessed(recording, boxes)


def _spans(recording: Recording) -> Boxes:
    boxes = []
    for number, span in enumerate(sorted(recording.spans, key=lambda span: span.first)):
        place = place_of(span.at)
        name = 'an unknown line' if place is None else clean(place)
        last = span.first + max(span.count, 1) - 1
        numbers = f'{span.first}' if last == span.first else f'{span.first} to {last}'
        short = '?' if place is None else clean(place.short)
        boxes.append(Box(number, span.lane, counted(span.count, 'node'), name, short, place, [('numbers', numbers)]))
    return boxes, *_guessed(recording, boxes)


def _steps(recording: Recording) -> Boxes:
    boxes: list[Box] = []
    pairs: list[tuple[int, int]] = []
    last: dict[int | None, int] = {}
    parents = {lane.number: lane.parent for lane in recording.lanes}
    for step in recording.steps:
        if step.kind not in _STRUCTURE or step.kind == 'switch':
            continue
        number = len(boxes)
        boxes.append(Box(number, step.lane, clean(step.kind), clean(step.text), clean(step.kind), place_of(step.at)))
        sources = [last.get(step.lane)]
        if step.kind == 'fork' and step.lane is not None:
            sources.append(last.get(parents.get(step.lane)))
        elif step.kind in ('join', 'wait'):
            sources.append(last.get(_waited_for(step)))
        pairs += [(source, number) for source in sources if source is not None]
        last[step.lane] = number
    return boxes, pairs, False


def _waited_for(step: Step) -> int | None:
    found = _WAITS.search(step.text)
    return int(found[1][:9]) if found else None


def _guessed(recording: Recording, boxes: list[Box]) -> tuple[list[tuple[int, int]], bool]:
    """Arrows where the recording holds none: each lane in order, from its fork and to its join.

    A lane that was forked several times is drawn with its first fork and its last join; what lies in between is in the
    order of recording, a column each.
    """
    by_lane: dict[int | None, list[int]] = {}
    for box in boxes:
        by_lane.setdefault(box.lane, []).append(box.number)
    pairs = [pair for numbers in by_lane.values() for pair in pairwise(numbers)]
    heads = {_waited_for(step): step.lane for step in recording.steps if step.kind == 'join'}
    for lane in recording.lanes:
        mine = by_lane.get(lane.number)
        if not mine or lane.parent is None:
            continue
        before = by_lane.get(lane.parent, [])
        at = bisect_left(before, mine[0])
        pairs += [(before[at - 1], mine[0])] if at else []
        if lane.joined_at is not None:
            behind = by_lane.get(heads.get(lane.number, lane.parent), [])
            at = bisect_right(behind, mine[-1])
            pairs += [(mine[-1], behind[at])] if at < len(behind) else []
    forks = Counter(step.lane for step in recording.steps if step.kind == 'fork')
    return pairs, max(forks.values(), default=0) > 1


# -- positions ------------------------------------------------------------------------------------------------


def _rows(recording: Recording, used: set[int | None]) -> list[LaneRow]:
    known = {lane.number: lane for lane in recording.lanes}
    rows: list[LaneRow] = []
    several = len(recording.devices) > 1
    for number in sorted({*known, *(number for number in used if number is not None)}):
        story = _story(known[number]) if number in known else 'the recording says nothing about it'
        place = f', device {known[number].device}' if several and number in known else ''
        rows.append(LaneRow(number, f'lane {number}{place}', story))
    if None in used:
        rows.append(LaneRow(None, 'no lane', 'its lane is not known'))
    return rows


def _set_columns(boxes: list[Box], rows: int, in_order: bool) -> None:
    ends = [-1] * rows
    for box in boxes:
        earlier = [boxes[tail].column for tail in box.after if tail < box.number]
        box.column = box.number if in_order else max([ends[box.row], *earlier]) + 1
        ends[box.row] = box.column


def _set_times(boxes: list[Box], timeline: Timeline) -> None:
    for box, node, spread in zip(boxes, timeline.nodes, timeline.spread_us):
        if node is None:
            last = max((boxes[tail].time[1] for tail in box.after if tail < box.number), default=0.0)
            box.time = (last, last)
            continue
        box.time = node
        took = f'{in_us(node[1] - node[0])} (spread {in_us(spread)})'
        box.detail = [('start', in_us(node[0])), ('took', took), *box.detail]


def _arrows(boxes: list[Box], pairs: list[tuple[int, int]], rows: int) -> list[Arrow]:
    columns: list[list[int]] = [[] for _ in range(rows)]
    for box in boxes:
        columns[box.row].append(box.column)

    def free(row: int, start: int, end: int) -> bool:
        return bisect_right(columns[row], start) == bisect_left(columns[row], end)

    arrows = []
    for tail, head in pairs:
        a, b = boxes[tail], boxes[head]
        if a.column >= b.column:
            way = 'back'
        elif a.row == b.row:
            way = 'along' if free(a.row, a.column, b.column) else 'between'
        else:
            ways = [way for way, row in (('fork', b.row), ('join', a.row)) if free(row, a.column, b.column)]
            # most joins go up the rows to the parent's row, and meet at the head
            way = 'between' if not ways else ways[0] if a.row < b.row else ways[-1]
        arrows.append(Arrow(tail, head, way))
    return arrows


def _marks(recording: Recording, boxes: list[Box]) -> list[DrawnMark]:
    first: dict[Any, int] = {}
    for box in boxes:
        if box.place is not None:
            line = (box.place.file, box.place.line)
            first.setdefault((*line, box.lane), box.number)
            first.setdefault(line, box.number)
    found: dict[Any, DrawnMark] = {}
    for step in recording.steps:
        if step.kind in _STRUCTURE:
            continue
        place = place_of(step.at)
        mark = found.get((step.kind, step.text, place))
        if mark is not None:
            mark.count += 1
            continue
        mark = DrawnMark(clean(step.kind), clean(_LINES.sub(' ', step.text)), place)
        found[step.kind, step.text, place] = mark
        if place is not None:
            line = (place.file, place.line)
            mark.box = first.get((*line, step.lane), first.get(line))
        if mark.box is not None:
            boxes[mark.box].marks.append(len(found) - 1)
    return list(found.values())


def _color(boxes: list[Box]) -> list[tuple[str, int]]:
    counts = Counter(box.short for box in boxes)
    common = [name for name, _ in counts.most_common(COLORS)]
    legend = [(name, counts[name]) for name in common]
    for box in boxes:
        box.color = common.index(box.short) if box.short in common else COLORS
    rest = len(boxes) - sum(count for _, count in legend)
    return [*legend, ('others', rest)] if rest else legend
