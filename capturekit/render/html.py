"""A recording as one page that needs nothing else: lanes as rows, with zoom, pan, details and search.

The page draws on a canvas, and only what is in view, so that ten thousand nodes scroll as smoothly as ten. It can be
used with the keyboard, and screen readers read the selection aloud. If the recording has a timeline, a switch places
the boxes by their times instead of their order.
"""

from __future__ import annotations

import json
import linecache
from contextlib import suppress
from dataclasses import replace
from functools import cache
from html import escape

from capturekit.model.errors import CaptureError
from capturekit.model.recording import Recording, Step
from capturekit.model.source_line import Place
from capturekit.render.layout import Picture, clean, lay_out, place_of
from capturekit.render.svg import to_svg


@cache
def _part(name: str) -> str:
    """The text of a file in this folder: the page's template, its style or its script."""
    from importlib.resources import files  # which takes longer to import than all pictures together

    return files(__name__.rpartition('.')[0]).joinpath(name).read_text(encoding='utf-8')


def to_html(recording: Recording) -> str:
    """Make a page of a recording."""
    picture = lay_out(recording)
    # no character that could end the script element, or open another, is left in the data
    data = json.dumps(_data(picture), separators=(',', ':'), allow_nan=False)
    data = data.replace('&', '\\u0026').replace('<', '\\u003c').replace('>', '\\u003e')
    parts = {
        'fault': _fault(recording),
        'title': escape(f'capturekit: {picture.summary}'),
        'summary': escape(picture.summary),
        'made': escape(picture.made),
        'style': '\n' + _part('page.css'),
        'data': data,
        'script': '\n' + _part('page.js'),
    }
    head, *rest = _part('page.html').split('{{')
    return head + ''.join(parts[name] + after for name, _, after in (part.partition('}}') for part in rest))


def _fault(recording: Recording) -> str:
    """The error that ended a capture, at the top of the page, with its source line if that can be read."""
    finding = next((step for step in reversed(recording.steps) if step.kind == 'finding'), None)
    if finding is None:
        return ''
    at = place_of(finding.at)
    source = '' if at is None else _source(at)
    line = f'<code>{escape(clean(f"{at.short}: {source}"))}</code>' if at is not None and source else ''
    message = '\n'.join(clean(line) for line in str(finding.text).split('\n'))
    return f'<div class="fault" role="alert">{escape(message)}{line}</div>\n'


def _source(at: Place) -> str:
    """A line of Python's source. A recording may name any file: no other is read."""
    if not at.file.endswith('.py') and at.file not in linecache.cache:
        return ''
    with suppress(ValueError, TypeError, OverflowError):
        return linecache.getline(at.file, at.line).strip()
    return ''


def to_frame(recording: Recording, height: int = 420) -> str:
    """Make an HTML fragment that shows the page in an iframe, for a notebook; ``height`` is its height in pixels."""
    if isinstance(height, bool) or not isinstance(height, int):
        raise TypeError(f'height must be a whole number of pixels, got {height!r}')
    if height < 1:
        raise ValueError(f'height must be 1 or more, got {height}')
    page = escape(to_html(recording), quote=True)
    return (
        f'<iframe title="capturekit recording" sandbox="allow-scripts" srcdoc="{page}" '
        f'style="width:100%;height:{height}px;border:1px solid #8888;border-radius:6px"></iframe>'
    )


def _data(picture: Picture) -> dict[str, object]:
    numbers: dict[str, int] = {}

    def word(text: object) -> int:
        """The number of a string, each of which is stored once."""
        return numbers.setdefault(clean(text), len(numbers))

    boxes = [
        [
            *(box.row, box.column, box.color, word(box.short), word(box.name), word(box.kind), word(box.where)),
            '' if box.place is None else word(f'{box.place.file}, line {box.place.line}, in {box.place.function}'),
            [[word(key), word(value)] for key, value in box.detail],
            box.marks,
        ]
        for box in picture.boxes
    ]
    times = [[start, round(end - start, 3)] for start, end in (box.time for box in picture.boxes)]
    return {
        'of': picture.of,
        'rows': [[clean(row.title), clean(row.story)] for row in picture.rows],
        'boxes': boxes,
        'arrows': [[arrow.tail, arrow.head, arrow.way] for arrow in picture.arrows],
        'marks': [[mark.line, mark.box] for mark in picture.marks],
        'legend': [[clean(name), count] for name, count in picture.legend],
        'columns': picture.columns,
        'times': None if picture.timeline is None else times,
        'words': list(numbers),
    }


# -- the picture of an error: the recording so far, with the finding among its marks ----------------------------------


def marked(error: CaptureError) -> Recording:
    """The recording of an error, with the error as a finding at its line; the recording itself stays as it is."""
    recording: Recording = error.recording
    text = f'{type(error).__name__}: {error}'
    if any(step.kind == 'finding' and step.text == text for step in recording.steps):
        return recording
    at = None if error.location is None else error.location.to_json()
    return replace(recording, steps=[*recording.steps, Step('finding', error.lane, text, at)])


def error_to_html(error: CaptureError) -> str:
    """The message, and below it the page of its recording in a frame."""
    text = escape(f'{type(error).__name__}: {error}')
    return f'<pre style="white-space:pre-wrap">{text}</pre>{to_frame(marked(error))}'


def error_to_svg(error: CaptureError) -> str:
    """The recording of an error as SVG."""
    return to_svg(marked(error))
