"""A recording's timeline as a Matplotlib figure. Only this module needs Matplotlib."""

from __future__ import annotations

import importlib
from typing import Any

from capturekit.model.counted import counted
from capturekit.model.recording import Recording
from capturekit.render.layout import COLORS, PALETTE, clean
from capturekit.render.timeline import timed


def to_timeline_figure(recording: Recording) -> Any:
    """Draw a recording's timeline as a ``matplotlib.figure.Figure``: a row for each lane, a colour for each name.

    It opens no window; ``figure.savefig('times.pdf')`` writes it.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: the recording has no timeline.
    """
    picture, timeline = timed(recording)
    try:
        figures = importlib.import_module('matplotlib.figure')
    except ImportError as error:
        raise ImportError(
            'to_timeline_figure() draws with Matplotlib, which is not installed here: pip install matplotlib. '
            'to_timeline_svg() needs nothing.'
        ) from error
    rows = len(picture.rows)
    figure = figures.Figure(figsize=(11, 1.6 + 0.45 * max(rows, 1)), layout='constrained')
    axes = figure.subplots()
    bars: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for box in picture.boxes:
        start, end = box.time
        bars.setdefault((box.color, box.row), []).append((start, end - start))
    named: set[int] = set()
    for (color, row), spans in sorted(bars.items()):
        name = '_' if color in named else _literal(picture.legend[min(color, len(picture.legend) - 1)][0])
        named.add(color)
        axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=PALETTE[min(color, COLORS)], label=name)
    axes.set_yticks(range(rows), [_literal(row.title) for row in picture.rows])
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xlabel(f'microseconds, {_literal(timeline.source)} over {counted(timeline.launches, "launch")}')
    axes.grid(axis='x', alpha=0.3)
    axes.set_axisbelow(True)
    if named:
        axes.legend(fontsize='small', ncols=min(len(named), 5), loc='lower center', bbox_to_anchor=(0.5, 1))
    return figure


def _literal(text: str) -> str:
    """Escape text, because Matplotlib reads what is between dollars as a formula."""
    return clean(text).replace('$', r'\$')
