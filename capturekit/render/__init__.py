"""Pictures of recordings: text, DOT, SVG, a page and a trace. Each is made of plain data, and is a string."""

from capturekit import errors
from capturekit.recording import SHOWN_AS
from capturekit.render.dot import to_dot
from capturekit.render.failed import error_to_html, error_to_svg
from capturekit.render.html import to_frame, to_html
from capturekit.render.svg import to_svg
from capturekit.render.text import to_text
from capturekit.render.trace import to_trace

__all__ = ['to_dot', 'to_frame', 'to_html', 'to_svg', 'to_text', 'to_trace']

SHOWN_AS.update({'text/html': to_frame, 'image/svg+xml': to_svg})
errors.SHOWN_AS.update({'text/html': error_to_html, 'image/svg+xml': error_to_svg})
