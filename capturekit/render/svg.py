"""A recording as a static SVG picture: lanes are rows, in bands one below the other, like lines of music.

Up to ``DENSE`` boxes have labels; more are small cells, coloured by name. It follows the viewer's light or dark theme.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from capturekit.model.recording import Recording
from capturekit.render.layout import COLORS, PALETTE, Arrow, Box, LaneRow, Picture, clean, fit, lay_out

#: With more boxes than this a picture has cells without labels.
DENSE = 400
#: The most marks and lanes that are listed below the picture.
_TOLD = 40
LEFT, RIGHT, _MIN_WIDTH = 84, 16, 760
CHAR = 6.05  # width of a character of 10 px

_STYLE = """
.ck-ground{fill:#fff}.ck-text{fill:#1d2530}.ck-dim{fill:#566272}.ck-rail{stroke:#d5dbe3;stroke-width:2;fill:none}
.ck-box{fill:#f6f8fa;stroke:#8b98a8}.ck-arrow{stroke:#1f6fc4;fill:none;stroke-width:1.5}.ck-head{fill:#1f6fc4}
.ck-step{stroke:#66727f;fill:none;stroke-width:1.3}.ck-stephead{fill:#66727f}.ck-back{stroke-dasharray:4 3}
COLORS
.ck-mark{fill:#9a4a00}.ck-marktext{fill:#fff}
.ck-picture text{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:10px}
.ck-picture .ck-title{font-size:12px;font-weight:bold}.ck-picture .ck-name{font-weight:bold}
.ck-picture .ck-small{font-size:8px}
@media (prefers-color-scheme:dark){.ck-ground{fill:#12161c}.ck-text{fill:#e4e9ef}.ck-dim{fill:#a0acb9}
.ck-rail{stroke:#333d49}.ck-box{fill:#1d242d;stroke:#66747f}.ck-arrow{stroke:#62aef7}.ck-head{fill:#62aef7}
.ck-step{stroke:#98a4b1}.ck-stephead{fill:#98a4b1}.ck-mark{fill:#ffb866}.ck-marktext{fill:#231300}}
""".replace('COLORS', ''.join(f'.ck-c{number}{{fill:{color}}}' for number, color in enumerate(PALETTE)))


@dataclass(frozen=True)
class _Form:
    """Sizes: a column's pitch, a box's width and height, a row's pitch, columns in a band."""

    pitch: int
    width: int
    height: int
    row: int
    columns: int

    @property
    def band(self) -> int:
        return self.pitch * self.columns

    @property
    def lead(self) -> float:
        """The margin of a band left of its first column, in which arrows turn."""
        return (self.pitch - self.width) * 0.65


_LABELLED = _Form(128, 102, 34, 50, 8)
_CELLS = _Form(9, 6, 10, 15, 112)


@dataclass
class _Band:
    """One line of the picture: what is drawn in it, and where its rows lie."""

    boxes: list[Box] = field(default_factory=list)
    #: pieces of arrows: (way, whether the piece ends in a head, points (x, row, shift))
    pieces: list[tuple[str, bool, list[tuple[float, int, float]]]] = field(default_factory=list)
    tops: dict[int, float] = field(default_factory=dict)


def to_svg(recording: Recording) -> str:
    """Draw a recording as an SVG document."""
    picture = lay_out(recording)
    form = _CELLS if len(picture.boxes) > DENSE else _LABELLED
    bands = _bands(picture, form)
    width = max(_MIN_WIDTH, LEFT + RIGHT + form.pitch * min(form.columns, picture.columns))
    out = heading(picture.summary, picture.made, width)
    y = 56 if form is _LABELLED else legend(out, picture, width)
    spans = _spans(picture, form)
    for number, band in enumerate(bands):
        y = _draw_band(out, picture, form, band, number, spans, y)
    lanes = [f'{row.title}: {row.story}' for row in picture.rows]
    y = listed(out, [(lanes, 'ck-dim'), (marks_of(picture), 'ck-text')], width, y)
    return document(out, width, y, picture.summary)


def document(parts: list[str], width: float, height: float, title: str, style: str = '') -> str:
    """An SVG document of the drawn elements; ``style`` is added to that of all pictures."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ck-picture" viewBox="0 0 {width} {height:g}" width="{width}" '
        f'height="{height:g}" style="max-width:100%;height:auto" role="img" aria-label="{safe(title)}">'
    )
    ground = f'<rect class="ck-ground" width="{width}" height="{height:g}"/>'
    top = [head, f'<title>{safe(title)}</title>', f'<style>{_STYLE}{style}</style>', ground]
    return '\n'.join([*top, *parts, '</svg>', ''])


def safe(text: str) -> str:
    return escape(clean(text), quote=True)


def text(x: float, y: float, words: str, style: str = 'ck-text') -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}">{safe(words)}</text>'


def heading(title: str, below: str, width: float) -> list[str]:
    """The two lines above a picture."""
    room = int((width - 2 * RIGHT) / CHAR)
    return [
        text(RIGHT, 24, fit(title, int(room * 10 / 12)), 'ck-text ck-title'),
        text(RIGHT, 40, fit(below, room), 'ck-dim'),
    ]


def legend(out: list[str], picture: Picture, width: int) -> float:
    """Names by their colours, below the heading; returns where the picture goes on."""
    x, y = float(RIGHT), 60.0
    for number, (name, count) in enumerate(picture.legend):
        label = f'{fit(name, 24)} x {count:,}'
        if x + 20 + len(label) * CHAR > width - RIGHT:
            x, y = RIGHT, y + 16
        out.append(f'<rect class="ck-c{min(number, COLORS)}" x="{x:g}" y="{y - 9:g}" width="10" height="10" rx="2"/>')
        out.append(text(x + 15, y, label))
        x += 34 + len(label) * CHAR
    return y + 14


def listed(out: list[str], groups: Iterable[tuple[list[str], str]], width: int, y: float) -> float:
    """Lines below a picture, in groups with their styles; returns where they end."""
    room = int((width - 2 * RIGHT) / CHAR)
    for lines, style in groups:
        more = [f'and {len(lines) - _TOLD:,} more'] if len(lines) > _TOLD else []
        for line in lines[:_TOLD] + more:
            y += 15
            out.append(f'<g><title>{safe(line)}</title>{text(RIGHT, y, fit(clean(line), room), style)}</g>')
        y += 8 if lines else 0
    return y + 8


def marks_of(picture: Picture) -> list[str]:
    return [f'[{number}] {mark.line}' for number, mark in enumerate(picture.marks, 1)]


def row_title(row: LaneRow, middle: float) -> str:
    return f'<g><title>{safe(row.story)}</title>{text(RIGHT, middle + 3.5, fit(row.title, 8), "ck-dim")}</g>'


def box_title(picture: Picture, box: Box) -> str:
    """What is shown where the pointer is on a box."""
    lines = [*box.details.splitlines(), *(picture.marks[number].line for number in box.marks)]
    told = '\n'.join(map(safe, lines))
    return f'<title>{told}</title>'


# -- bands ----------------------------------------------------------------------------------------------------


def _bands(picture: Picture, form: _Form) -> list[_Band]:
    bands = [_Band() for _ in range(-(-picture.columns // form.columns))]
    for box in picture.boxes:
        bands[box.column // form.columns].boxes.append(box)
    for arrow in picture.arrows:
        if form is _LABELLED or arrow.way != 'along':
            points = _route(arrow, picture.boxes[arrow.tail], picture.boxes[arrow.head], form)
            _cut(bands, arrow.way, points, form)
    return bands


def _route(arrow: Arrow, tail: Box, head: Box, form: _Form) -> list[tuple[float, int, float]]:
    """The corners of an arrow's path: x in one endless band, row, and the distance from the middle of the row."""
    gap = form.pitch - form.width
    start, end = tail.column * form.pitch + form.width, head.column * form.pitch
    down = start + gap * (0.12 + 0.06 * (tail.row % 4))
    up = end - gap * (0.36 + 0.08 * (head.row % 4))
    first, last = (start, tail.row, 0.0), (end, head.row, 0.0)
    if arrow.way == 'along':
        return [first, last]
    if arrow.way in ('fork', 'join'):
        x = down if arrow.way == 'fork' else up
        return [first, (x, tail.row, 0.0), (x, head.row, 0.0), last]
    beside = -(form.height / 2 + 0.16 * (form.row - form.height) * (1 + tail.row % 3))
    turns = [(down, tail.row, 0.0), (down, head.row, beside), (up, head.row, beside), (up, head.row, 0.0)]
    return [first, *turns, last]


def _cut(bands: list[_Band], way: str, points: list[tuple[float, int, float]], form: _Form) -> None:
    """Give each band its piece of an arrow."""
    piece = [points[0]]
    for (x, row, shift), point in pairwise(points):
        step = 1 if point[0] >= x else -1
        here, there = _band_of(x, step, form, len(bands)), _band_of(point[0], -step, form, len(bands))
        if row == point[1] and shift == point[2] and here != there:
            # a level piece that goes on in another band: bands between are passed without a line
            edge = (here + (step > 0)) * form.band - form.lead
            bands[here].pieces.append((way, False, [*piece, (edge, row, shift)]))
            piece = [((there + (step < 0)) * form.band - form.lead, row, shift)]
        piece.append(point)
    bands[_band_of(points[-1][0], 1, form, len(bands))].pieces.append((way, True, piece))


def _band_of(x: float, step: int, form: _Form, bands: int) -> int:
    """The band in which a line that goes on to the right (step 1) or left of ``x`` lies."""
    return min(max(int((x + form.lead + 0.001 * step) // form.band), 0), bands - 1)


def _spans(picture: Picture, form: _Form) -> list[tuple[float, float]]:
    """The start and end of each row's rail, in one endless band."""
    columns: list[list[int]] = [[] for _ in picture.rows]
    for box in picture.boxes:
        columns[box.row].append(box.column)
    return [(min(c) * form.pitch, max(c) * form.pitch + form.width) if c else (0, -1) for c in columns]


def _draw_band(
    out: list[str], picture: Picture, form: _Form, band: _Band, number: int, spans: list[tuple[float, float]], y: float
) -> float:
    left = number * form.band
    rows = {box.row for box in band.boxes} | {row for _, _, points in band.pieces for _, row, _ in points}
    for row in sorted(rows):
        band.tops[row] = y + form.row / 2
        y += form.row
    for row, middle in band.tops.items():
        start, end = max(spans[row][0], left - form.lead), min(spans[row][1], left + form.band - form.lead)
        out.append(row_title(picture.rows[row], middle))
        if end > start:
            line = f'M{LEFT + start - left:g} {middle:g}H{LEFT + end - left:g}'
            out.append(f'<path class="ck-rail" d="{line}"/>')
    _draw_arrows(out, form, band, left)
    for box in band.boxes:
        _draw_box(out, picture, form, box, LEFT + box.column * form.pitch - left, band.tops[box.row])
    return y + (10 if form is _CELLS else 14)


def _draw_arrows(out: list[str], form: _Form, band: _Band, left: float) -> None:
    lines: dict[str, list[str]] = {}
    heads: dict[str, list[str]] = {}
    for way, ends, points in band.pieces:
        style = {'along': 'ck-step', 'back': 'ck-arrow ck-back'}.get(way, 'ck-arrow')
        spots = [(LEFT + x - left, band.tops[row] + shift) for x, row, shift in points]
        lines.setdefault(style, []).append(_path(spots, 1.5 if form is _CELLS else 6))
        if ends and form is _LABELLED:
            x, y = spots[-1]
            head = 'ck-stephead' if way == 'along' else 'ck-head'
            heads.setdefault(head, []).append(f'M{x:g} {y:g}l-7 -3.5v7z')
    thin = ' stroke-width="0.8" style="stroke-width:.8"' if form is _CELLS else ''
    out += [f'<path class="{style}"{thin} d="{"".join(paths)}"/>' for style, paths in lines.items()]
    out += [f'<path class="{style}" d="{"".join(paths)}"/>' for style, paths in heads.items()]


def _path(spots: list[tuple[float, float]], radius: float) -> str:
    """A path through level and upright lines, its corners rounded."""
    path = f'M{spots[0][0]:g} {spots[0][1]:g}'
    for before, corner, after in zip(spots, spots[1:], spots[2:]):
        near = _towards(corner, before, radius)
        far = _towards(corner, after, radius)
        path += f'L{near[0]:g} {near[1]:g}Q{corner[0]:g} {corner[1]:g} {far[0]:g} {far[1]:g}'
    return path + f'L{spots[-1][0]:g} {spots[-1][1]:g}'


def _towards(start: tuple[float, float], end: tuple[float, float], radius: float) -> tuple[float, float]:
    length = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    part = min(radius, length / 2) / length if length else 0
    return round(start[0] + (end[0] - start[0]) * part, 2), round(start[1] + (end[1] - start[1]) * part, 2)


def _draw_box(out: list[str], picture: Picture, form: _Form, box: Box, x: float, middle: float) -> None:
    top = middle - form.height / 2
    size = f'x="{x:g}" y="{top:g}" width="{form.width}" height="{form.height}"'
    title = box_title(picture, box)
    if form is _CELLS:
        dot = f'<circle class="ck-mark" cx="{x + form.width:g}" cy="{top:g}" r="2.5"/>' if box.marks else ''
        out.append(f'<g>{title}<rect class="ck-c{box.color}" {size} rx="1.5"/>{dot}</g>')
        return
    room = int((form.width - 16) / CHAR)
    name, below = fit(box.short, room), ' '.join(box.below)
    room = int((form.width - 14) / CHAR * 1.25)
    below = below if len(below) <= room else fit(box.below[-1], room)
    out.append(f'<g>{title}<rect class="ck-box" {size} rx="5"/>')
    out.append(f'<rect class="ck-c{box.color}" x="{x + 3:g}" y="{top + 5:g}" width="3" height="{form.height - 10}"/>')
    out.append(text(x + 11, middle - 3, name, 'ck-text ck-name'))
    out.append(text(x + 11, middle + 10, below, 'ck-dim ck-small'))
    badge = x + form.width - 4
    for number in reversed(box.marks[:3]):
        label = str(number + 1)
        width = 8 + 5 * len(label)
        size = f'x="{badge - width:g}" y="{top - 7:g}" width="{width}" height="13" rx="6.5"'
        out.append(f'<rect class="ck-mark" {size}/>')
        out.append(text(badge - width + 4, top + 2.5, label, 'ck-marktext ck-small'))
        badge -= width + 2
    out.append('</g>')
