"""``capturekit view``: a recording as text, DOT, SVG, a page or a trace, and its timeline as SVG."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capturekit.cli.terminal import pipe_closed, say
from capturekit.model.recording import WRITTEN_AS, Recording, read_recording
from capturekit.render import FORMATS, to_text

_DESCRIPTION = """\
Show a recording that `cap.recording.save('recording.json')` wrote: its lanes, nodes, forks and joins, and its
notes. This needs neither CuPy nor a GPU.
"""
_EPILOG = """\
formats: text; dot, for Graphviz; svg; html, one page with search and zoom; trace, for ui.perfetto.dev; timeline, an SVG
with an axis of time. Without --format the file's ending says which: .txt .dot .gv .svg .html .htm, and .json for a
trace. After `graph.measure()` text, page and trace have the times, too.

examples:
  python -m capturekit view recording.json
  python -m capturekit view recording.json -o lanes.html
  python -m capturekit view recording.json -o lanes.svg
  python -m capturekit view recording.json -o trace.json
  python -m capturekit view recording.json -o times.svg --format timeline
  python -m capturekit view recording.json --format dot
  python -m capturekit view recording.json --open
  ssh gpu cat recording.json | python -m capturekit view -
"""


def add(commands: Any) -> None:
    """Add the command's parser."""
    told = 'show a recording as text, a page, SVG, DOT or a trace'
    parser = commands.add_parser('view', help=told, description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument('recording', help='a recording, saved as JSON; - reads it from standard input')
    parser.add_argument('-o', '--output', metavar='FILE', help='the file to write; otherwise it is printed')
    made = "what to make (default: by the file's ending, or text)"
    parser.add_argument('--format', choices=list(FORMATS), help=made)
    parser.add_argument('--open', action='store_true', help='make a page, and open it in a browser')
    parser.set_defaults(go=_view)


def _view(given: argparse.Namespace) -> int:
    try:
        make = _maker(given)
        text = make(read(given.recording))
        if given.output is None and not given.open:
            print(text, end='', flush=True)
            return 0
        path = _written(given, text)
    except BrokenPipeError as error:  # the reader, `| head` say, has ended
        if not pipe_closed(error):
            raise
        return 0
    except (ValueError, OSError) as error:
        say(_why(error))
        return 2
    if given.open and not webbrowser.open(path.resolve().as_uri()):
        say('no browser was found')
    say(f'wrote {path}')
    return 0


def read(path: str) -> Recording:
    """Read a recording. Raises ValueError, with the file's name, if it is not one."""
    name = 'standard input' if path == '-' else path
    recording = read_recording(sys.stdin, name) if path == '-' else Recording.load(path)
    try:
        to_text(recording)  # a file may have the form of a recording, and nonsense in it
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f'{name}: this is not a capturekit recording: {error}') from None
    return recording


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f'{error.filename}: {error.strerror}'
    return str(error)


def _maker(given: argparse.Namespace) -> Callable[[Recording], str]:
    ending = '' if given.output is None else os.path.splitext(given.output)[1].lower()
    page = FORMATS['html']
    if given.open:
        if given.format not in (None, 'html') or WRITTEN_AS.get(ending, page) is not page:
            raise ValueError('--open opens a page: leave --format out, and give -o a name that ends in .html')
        return page
    if given.format is not None or given.output is None:
        return FORMATS[given.format or 'text']
    if ending not in WRITTEN_AS:
        raise ValueError(f'{given.output}: this ending names no format: use --format, or {" ".join(WRITTEN_AS)}')
    return WRITTEN_AS[ending]


def _written(given: argparse.Namespace, text: str) -> Path:
    if given.output is None:
        handle, name = tempfile.mkstemp(prefix='capturekit-', suffix='.html')
        os.close(handle)
    else:
        name = given.output
        if given.recording != '-' and os.path.exists(name) and os.path.samefile(name, given.recording):
            raise ValueError(f'{name} is the recording itself: give another name')
    path = Path(name)
    path.write_text(text, encoding='utf-8')
    return path
