"""Several orders of the same nodes as a static SVG picture, one below the other on one axis of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capturekit.render.layout import COLORS, fit
from capturekit.render.svg import CHAR, RIGHT, document, heading, safe, text
from capturekit.render.timeline import step_of, tick_words

_WIDTH, _LEFT, _TOP = 1120, 16, 58
_ROW, _BAR, _GAP = 18, 14, 34
#: The narrowest bar that has its number in it, in pixels; the most rows of one order.
_NAMED, _MOST = 22, 40


@dataclass(frozen=True)
class Bar:
    """A node: its number, what it is, and when it runs."""

    number: int
    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Panel:
    """One order, by a name."""

    title: str
    bars: Sequence[Bar]


def in_rows(spans: Sequence[tuple[float, float]]) -> list[int]:
    """A row for each span, behind those that have ended before it."""
    ends: list[float] = []
    found = [0] * len(spans)
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        start, end = spans[number]
        row = next((row for row, until in enumerate(ends) if until <= start), len(ends))
        ends[row : row + 1] = [end]
        found[number] = row
    return found


def to_svg(title: str, below: str, panels: Sequence[Panel], unit: str = 'us') -> str:
    """Draw the orders as an SVG document; nodes of one name have one colour."""
    last = max((bar.end for panel in panels for bar in panel.bars), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - RIGHT) / last
    colors = _colors(bar.name for panel in panels for bar in panel.bars)
    out = heading(title, below, _WIDTH)
    y = float(_TOP)
    for panel in panels:
        y = _draw(out, panel, y, scale, colors) + _GAP - _ROW
    y = _axis(out, y, last, scale, unit)
    for name, color in list(colors.items())[:COLORS]:
        out.append(f'<rect class="ck-c{color}" x="{_LEFT}" y="{y - 9:g}" width="12" height="9"/>')
        out.append(text(_LEFT + 18, y, fit(name, 120), 'ck-dim'))
        y += 15
    return document(out, _WIDTH, y + 4, title)


def _colors(names: Iterable[str]) -> dict[str, int]:
    """The commonest names have colours of their own."""
    count = Counter(names)
    order = sorted(count, key=lambda name: (-count[name], name))
    return {name: min(place, COLORS) for place, name in enumerate(order)}


def _draw(out: list[str], panel: Panel, y: float, scale: float, colors: dict[str, int]) -> float:
    rows = in_rows([(bar.start, bar.end) for bar in panel.bars])
    many = max(rows, default=-1) + 1
    more = f', of which {_MOST} are drawn' if many > _MOST else ''
    out.append(text(_LEFT, y + 10, f'{panel.title}: {many} at most at once{more}'))
    y += 18
    for bar, row in zip(panel.bars, rows):
        if row >= _MOST:
            continue
        x, wide, top = _LEFT + bar.start * scale, max((bar.end - bar.start) * scale - 0.5, 0.5), y + row * _ROW
        told = safe(f'{bar.number}: {bar.name}, {bar.start:,.1f} to {bar.end:,.1f}')
        number = text(x + 3, top + 11, str(bar.number)) if wide >= _NAMED else ''
        shape = f'<rect class="ck-c{colors[bar.name]}" x="{x:.2f}" y="{top:g}" width="{wide:.2f}" height="{_BAR}"/>'
        out.append(f'<g><title>{told}</title>{shape}{number}</g>')
    return y + min(many, _MOST) * _ROW + _ROW


def _axis(out: list[str], y: float, last: float, scale: float, unit: str) -> float:
    step, at = step_of(last, 10), 0.0
    while at <= last * 1.0001:
        x = _LEFT + at * scale
        out.append(f'<path class="ck-rail" style="stroke-width:1" d="M{x:.2f} {y - 4:g}v6"/>')
        words = tick_words(at, step) if unit == 'us' else f'{at:g}'
        out.append(text(min(x, _WIDTH - RIGHT - len(words) * CHAR), y + 13, words, 'ck-dim'))
        at += step
    return y + 36
