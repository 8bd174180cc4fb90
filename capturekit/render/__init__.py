"""Pictures of recordings: text, DOT, SVG, a page and a trace. Each is made of plain data, and is a string.

For recordings with a timeline there are also a table and an SVG of the times, and a Matplotlib figure.
"""

from capturekit.model import errors
from capturekit.model.recording import SHOWN_AS, WRITTEN_AS
from capturekit.render.dot import to_dot
from capturekit.render.failed import error_to_html, error_to_svg
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

SHOWN_AS.update({'text/html': to_frame, 'image/svg+xml': to_svg})
WRITTEN_AS.update(
    {
        '.html': to_html,
        '.htm': to_html,
        '.svg': to_svg,
        '.txt': to_text,
        '.dot': to_dot,
        '.gv': to_dot,
        '.json': to_trace,
    }
)
errors.SHOWN_AS.update({'text/html': error_to_html, 'image/svg+xml': error_to_svg})
