"""Times over numbers of lanes as a static SVG picture: one line for each series, medians with their quartiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from capturekit.model.counted import counted
from capturekit.render.layout import COLORS, PALETTE, fit
from capturekit.render.svg import CHAR, RIGHT, document, heading, safe, text

_WIDTH, _HEIGHT, _LEFT, _TOP = 760, 300, 74, 56
_OTHER = 'other results than one lane'
#: If the largest time is more than this many times the smallest, the axis is logarithmic.
_SPREAD = 8.0
_OWN = """
.ck-line{fill:none;stroke-width:1.8}.ck-eager{stroke-dasharray:5 4}
.ck-wrong{fill:none;stroke:#c92a2a;stroke-width:2}
"""


@dataclass(frozen=True)
class Point:
    """A time: the median, and the quartiles around it. ``wrong``: the results were wrong."""

    lanes: int
    median: float
    low: float
    high: float
    wrong: bool = False


@dataclass(frozen=True)
class Series:
    """Times that belong together, by numbers of lanes; ``dashed`` is how the line is drawn."""

    name: str
    points: tuple[Point, ...]
    dashed: bool = False


@dataclass(frozen=True)
class _Axis:
    """The vertical axis: the position of a time, and the times that have ticks."""

    low: float
    high: float
    logarithmic: bool

    def at(self, value: float) -> float:
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(_TOP + _HEIGHT * (1 - share), 2)

    def ticks(self) -> list[float]:
        if not self.logarithmic:
            return [self.low + (self.high - self.low) * n / 5 for n in range(6)]
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [one * 10.0**exponent for exponent in exponents for one in (1, 2, 5)]
        return [tick for tick in found if self.low * 0.999 <= tick <= self.high * 1.001]


def to_svg(title: str, below: str, series: list[Series], unit: str = 'us') -> str:
    """Draw the series as an SVG document: ``title`` and ``below`` above them, the lanes on the level axis."""
    out = heading(title, below, _WIDTH)
    drawn = [one for one in series if one.points]
    if drawn:
        axis = _axis(drawn)
        columns = sorted({point.lanes for one in drawn for point in one.points})
        _grid(out, axis, columns, unit)
        for number, one in enumerate(drawn):
            _draw(out, axis, columns, one, number, len(drawn))
    else:
        out.append(text(_LEFT, _TOP + 40, 'no times', 'ck-dim'))
    return document(out, _WIDTH, _legend(out, drawn), title, _OWN)


def _axis(series: list[Series]) -> _Axis:
    points = [point for one in series for point in one.points]
    largest = max(point.high for point in points) or 1.0
    smallest = min(point.low for point in points)
    if smallest > 0 and largest / smallest > _SPREAD:
        return _Axis(_round(smallest, up=False), _round(largest, up=True), logarithmic=True)
    return _Axis(0.0, _round(largest, up=True, steps=(1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)), logarithmic=False)


def _round(value: float, up: bool, steps: Sequence[float] = (1, 2, 5, 10)) -> float:
    """The next of 1, 2, 5, 10 ... from here."""
    power = 10.0 ** math.floor(math.log10(value))
    found = [one * power for one in steps]
    return next(s for s in found if s >= value * 0.9999) if up else [s for s in found if s <= value * 1.0001][-1]


def _x(columns: list[int], lanes: int) -> float:
    pitch = (_WIDTH - _LEFT - RIGHT) / len(columns)
    return _LEFT + pitch * (columns.index(lanes) + 0.5)


def _grid(out: list[str], axis: _Axis, columns: list[int], unit: str) -> None:
    for tick in axis.ticks():
        y = axis.at(tick)
        out.append(f'<path class="ck-rail" style="stroke-width:1" d="M{_LEFT} {y:g}H{_WIDTH - RIGHT}"/>')
        out.append(text(RIGHT, y + 3.5, f'{tick:,.0f} {unit}' if tick >= 100 else f'{tick:.4g} {unit}', 'ck-dim'))
    for lanes in columns:
        label = counted(lanes, 'lane')
        out.append(text(_x(columns, lanes) - len(label) * CHAR / 2, _TOP + _HEIGHT + 18, label, 'ck-dim'))


def _line(number: int, dashed: bool, path: str) -> str:
    style = f'style="stroke:{PALETTE[min(number, COLORS)]}"'
    return f'<path class="ck-line{" ck-eager" if dashed else ""}" {style} d="{path}"/>'


def _draw(out: list[str], axis: _Axis, columns: list[int], series: Series, number: int, count: int) -> None:
    """Draw a line with a point and a whisker for each time; series are shifted, so that none hides another."""
    shift = (number - (count - 1) / 2) * min(9.0, 60.0 / count)
    spots = [(_x(columns, point.lanes) + shift, axis.at(point.median), point) for point in series.points]
    out.append(_line(number, series.dashed, 'M' + 'L'.join(f'{x:g} {y:g}' for x, y, _ in spots)))
    for x, y, point in spots:
        low, high = axis.at(point.low), axis.at(point.high)
        lanes = counted(point.lanes, 'lane')
        details = f'{series.name}, {lanes}: {point.median:,.4g} ({point.low:,.4g} to {point.high:,.4g})'
        details += f', {_OTHER}' if point.wrong else ''
        dot = f'<circle class="ck-c{min(number, COLORS)}" cx="{x:g}" cy="{y:g}" r="4"/>'
        dot += f'<circle class="ck-wrong" cx="{x:g}" cy="{y:g}" r="8"/>' if point.wrong else ''
        whisker = _line(number, False, f'M{x:g} {low:g}V{high:g}M{x - 3:g} {low:g}h6M{x - 3:g} {high:g}h6')
        out.append(f'<g><title>{safe(details)}</title>{whisker}{dot}</g>')


def _legend(out: list[str], series: list[Series]) -> float:
    y = _TOP + _HEIGHT + 40.0
    for number, one in enumerate(series):
        out.append(_line(number, one.dashed, f'M{_LEFT} {y - 3.5:g}h30'))
        out.append(text(_LEFT + 38, y, fit(one.name, 96)))
        y += 16
    if any(point.wrong for one in series for point in one.points):
        out.append(f'<circle class="ck-wrong" cx="{_LEFT + 15}" cy="{y - 3.5:g}" r="6"/>')
        out.append(text(_LEFT + 38, y, _OTHER))
        y += 16
    return y
