"""A recording's timeline: as a table, and as an SVG picture in which a lane is a row and time runs to the right.

Long timelines go on in bands one below the other, so that most nodes are wide enough to be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from capturekit.model.counted import counted
from capturekit.model.recording import Recording, Timeline
from capturekit.render.layout import Box, LaneRow, Picture, clean, fit, in_us, lay_out
from capturekit.render.svg import (
    CHAR,
    DENSE,
    LEFT,
    RIGHT,
    box_title,
    document,
    heading,
    legend,
    listed,
    marks_of,
    row_title,
    text,
)

_WIDTH = 1120
_ROOM = _WIDTH - LEFT - RIGHT
#: The most bands, and the least number of boxes in a band on average.
_BANDS, _IN_A_BAND = 60, 40
#: The median width of nodes, in pixels.
_WIDE = 4
#: The number of longest nodes that are listed.
_LONGEST = 10
_UNITS = ((1e6, 's'), (1e3, 'ms'), (1.0, 'us'))


def timed(recording: Recording) -> tuple[Picture, Timeline]:
    """A recording laid out, and its timeline. Raises ValueError if it has none."""
    picture = lay_out(recording)
    if picture.timeline is None:
        raise ValueError('this recording has no timeline: graph.measure() makes one')
    return picture, picture.timeline


# -- numbers --------------------------------------------------------------------------------------------------


def busy(boxes: Iterable[Box]) -> float:
    """The time in which at least one of the boxes ran."""
    total = last = 0.0
    for start, end in sorted(box.time for box in boxes):
        total += max(end - max(start, last), 0.0)
        last = max(last, end)
    return total


def step_of(span: float, count: float) -> float:
    """The distance between ticks of which at most ``count`` fit on an axis: 1, 2 or 5 with zeros."""
    least = span / max(count, 1)
    power = 1e-3
    while power < least / 10:
        power *= 10
    return next((power * n for n in (1, 2, 5, 10) if power * n >= least), power * 10)


def tick_words(at: float, step: float) -> str:
    """A place on the axis, in the unit that fits the distance between ticks."""
    size, unit = next(((size, unit) for size, unit in _UNITS if step >= size), _UNITS[-1])
    return f'{at / size:.6g} {unit}'


# -- a table --------------------------------------------------------------------------------------------------


def to_timeline_text(recording: Recording) -> str:
    """Times of a recording in tables: all of it, by lane, the longest nodes. Raises ValueError if it has none."""
    return '\n'.join(table(*timed(recording))) + '\n'


def by_row(picture: Picture) -> Iterator[tuple[LaneRow, list[Box]]]:
    """The rows, each with its boxes."""
    for number, row in enumerate(picture.rows):
        yield row, [box for box in picture.boxes if box.row == number]


def table(picture: Picture, timeline: Timeline) -> Iterator[str]:
    """The lines of the tables."""
    yield from map(clean, str(timeline).split('\n'))
    yield ''
    yield f'{"lane":<20}{"nodes":>8}{"busy":>14}{"of the span":>14}'
    for row, boxes in by_row(picture):
        time = busy(boxes)
        part = f'{time / timeline.span_us:.0%}' if timeline.span_us else ''
        yield f'{row.title:<20}{len(boxes):>8,}{time:>14,.2f}{part:>14}'.rstrip()
    longest = sorted(picture.boxes, key=lambda box: box.time[0] - box.time[1])[:_LONGEST]
    if longest:
        yield ''
        yield f'{"longest":<44}{"took":>12}{"start":>12}{"spread":>10}  line'
    for box in longest:
        start, end = box.time
        name = fit(f'#{box.number} {box.short}' + ('' if box.kind == box.short else f' {box.kind}'), 43)
        spread = timeline.spread_us[box.number]
        yield f'{name:<44}{end - start:>12,.2f}{start:>12,.2f}{spread:>10,.2f}  {fit(box.where, 40)}'.rstrip()


# -- a picture ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scale:
    """``across`` microseconds to a band; heights of a row and of a box."""

    across: float
    bands: int
    row: int
    height: int

    def x(self, at: float) -> float:
        """The horizontal place of a time in a band, ``at`` from its beginning."""
        return round(LEFT + at / self.across * _ROOM, 2)

    def bands_of(self, box: Box) -> range:
        """The bands that a box lies in."""
        start, end = box.time
        first = min(int(start / self.across), self.bands - 1)
        # a box that ends where a band begins is not in it
        return range(first, max(first, min(int(end / self.across - 1e-9), self.bands - 1)) + 1)


def to_timeline_svg(recording: Recording) -> str:
    """Draw a recording's timeline as an SVG document. Raises ValueError if it has none."""
    picture, timeline = timed(recording)
    scale = _scale(picture)
    out = heading(picture.summary, picture.made, _WIDTH)
    y = legend(out, picture, _WIDTH)
    bands: list[list[Box]] = [[] for _ in range(scale.bands)]
    for box in picture.boxes:
        for band in scale.bands_of(box):
            bands[band].append(box)
    for number, boxes in enumerate(bands):
        y = _draw_band(out, picture, scale, number, boxes, y)
    lanes = []
    for row, of_row in by_row(picture):
        lanes.append(f'{row.title}: busy {in_us(busy(of_row))}, {counted(len(of_row), "node")}, {row.story}')
    lines = [' '.join(clean(line).split()) for line in str(timeline).split('\n')]
    y = listed(out, [(lines, 'ck-text'), (lanes, 'ck-dim'), (marks_of(picture), 'ck-text')], _WIDTH, y)
    return document(out, _WIDTH, y, picture.summary)


def _scale(picture: Picture) -> _Scale:
    took = [box.time[1] - box.time[0] for box in picture.boxes if box.time[1] > box.time[0]]
    span = max((box.time[1] for box in picture.boxes), default=0.0) or 1.0
    wanted = span / float(np.median(took)) * _WIDE / _ROOM if took else 1
    bands = max(1, min(int(wanted) + 1, len(picture.boxes) // _IN_A_BAND, _BANDS))
    small = len(picture.boxes) > DENSE
    return _Scale(span / bands, bands, 16 if small else 30, 11 if small else 22)


def _draw_band(out: list[str], picture: Picture, scale: _Scale, number: int, boxes: list[Box], y: float) -> float:
    left = number * scale.across
    rows = sorted({box.row for box in boxes}) or list(range(min(len(picture.rows), 1)))
    tops = {row: y + 16 + index * scale.row for index, row in enumerate(rows)}
    bottom = y + 16 + len(rows) * scale.row
    _draw_axis(out, scale, left, y, bottom)
    for row, top in tops.items():
        middle = top + scale.row / 2
        out.append(row_title(picture.rows[row], middle))
        out.append(f'<path class="ck-rail" d="M{LEFT} {middle:g}H{LEFT + _ROOM}"/>')
    for box in boxes:
        _draw_box(out, picture, scale, box, left, tops[box.row])
    if len(picture.boxes) <= DENSE:
        _draw_arrows(out, picture, scale, {box.number for box in boxes}, left, tops)
    return bottom + 12


def _draw_axis(out: list[str], scale: _Scale, left: float, top: float, bottom: float) -> None:
    step = step_of(scale.across, _ROOM / 90)
    first = -int(-left / step // 1)
    for number in range(first, first + 200):
        at = number * step - left
        if at > scale.across:
            break
        x = scale.x(at)
        out.append(f'<path class="ck-rail" style="stroke-width:1" d="M{x:g} {top + 12:g}V{bottom:g}"/>')
        label = tick_words(number * step, step)
        out.append(text(min(x, _WIDTH - RIGHT - len(label) * CHAR), top + 9, label, 'ck-dim ck-small'))


def _draw_box(out: list[str], picture: Picture, scale: _Scale, box: Box, left: float, top: float) -> None:
    start, end = (scale.x(min(max(at - left, 0.0), scale.across)) for at in box.time)
    width = max(end - start, 0.5)
    y = top + (scale.row - scale.height) / 2
    title = box_title(picture, box)
    size = f'x="{start:g}" y="{y:g}" width="{width:g}" height="{scale.height}"'
    if scale.height < 20:
        out.append(f'<g>{title}<rect class="ck-c{box.color}" {size}/></g>')
        return
    stripe = f'x="{start:g}" y="{y:g}" width="{min(width, 3):g}" height="{scale.height}"'
    room = int((width - 8) / CHAR)
    name = text(start + 6, y + scale.height / 2 + 3.5, fit(box.short, room), 'ck-text') if room >= 3 else ''
    out.append(f'<g>{title}<rect class="ck-c{box.color}" style="fill-opacity:.45" {size}/>')
    out.append(f'<rect class="ck-c{box.color}" {stripe}/>{name}</g>')


def _draw_arrows(
    out: list[str], picture: Picture, scale: _Scale, shown: set[int], left: float, tops: dict[int, float]
) -> None:
    """Arrows between lanes whose ends both lie in the band."""
    paths = []
    for arrow in picture.arrows:
        tail, head = picture.boxes[arrow.tail], picture.boxes[arrow.head]
        if tail.row == head.row or not {tail.number, head.number} <= shown:
            continue
        ends = tail.time[1] - left, head.time[0] - left
        if all(0 <= at <= scale.across for at in ends):
            (x1, x2), (y1, y2) = map(scale.x, ends), (tops[box.row] + scale.row / 2 for box in (tail, head))
            paths.append(f'M{x1:g} {y1:g}L{x2:g} {y2:g}')
    if paths:
        out.append(f'<path class="ck-arrow" style="stroke-width:1" d="{"".join(paths)}"/>')
