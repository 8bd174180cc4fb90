"""Pictures of recordings: text, DOT, SVG, a page and a trace. Each is made of plain data, and is a string.

For recordings with a timeline there are also a table and an SVG of the times, and a Matplotlib figure. Each picture is
in a module of its own, which is imported when the picture is first asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capturekit.model import errors
from capturekit.model.recording import SHOWN_AS, WRITTEN_AS

if TYPE_CHECKING:
    from capturekit.render.dot import to_dot
    from capturekit.render.figure import to_timeline_figure
    from capturekit.render.html import to_frame, to_html
    from capturekit.render.svg import to_svg
    from capturekit.render.text import to_text
    from capturekit.render.timeline import to_timeline_svg, to_timeline_text
    from capturekit.render.trace import to_trace

__all__ = [
    'to_dot',
    'to_frame',
    'to_html',
    'to_svg',
    'to_text',
    'to_timeline_figure',
    'to_timeline_svg',
    'to_timeline_text',
    'to_trace',
]

_FUNCTIONS = {
    'dot': 'to_dot',
    'figure': 'to_timeline_figure',
    'html': 'error_to_html error_to_svg to_frame to_html',
    'svg': 'to_svg',
    'text': 'to_text',
    'timeline': 'to_timeline_svg to_timeline_text',
    'trace': 'to_trace',
}
#: The module of each function.
_LATER = {name: module for module, names in _FUNCTIONS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = globals()[name] = getattr(importlib.import_module(f'capturekit.render.{_LATER[name]}'), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


def _drawn_by(name: str) -> Callable[[Any], str]:
    return lambda shown: str(__getattr__(name)(shown))


#: The pictures by the names that ``capturekit view`` has for them.
FORMATS = {name: _drawn_by(f'to_{name}') for name in ('text', 'dot', 'svg', 'html', 'trace')}
FORMATS['timeline'] = _drawn_by('to_timeline_svg')
_ENDINGS = {'html': '.html .htm', 'svg': '.svg', 'text': '.txt', 'dot': '.dot .gv', 'trace': '.json'}
WRITTEN_AS.update({ending: FORMATS[name] for name, endings in _ENDINGS.items() for ending in endings.split()})
SHOWN_AS.update({'text/html': _drawn_by('to_frame'), 'image/svg+xml': FORMATS['svg']})
errors.SHOWN_AS.update({'text/html': _drawn_by('error_to_html'), 'image/svg+xml': _drawn_by('error_to_svg')})
