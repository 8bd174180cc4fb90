"""``capturekit view``: a recording as text, DOT, SVG, a page or a trace, and its timeline as SVG."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

from capturekit.model.recording import Recording
from capturekit.render import to_dot, to_html, to_svg, to_text, to_timeline_svg, to_trace

_FORMATS = {
    'text': to_text, 'dot': to_dot, 'svg': to_svg, 'html': to_html, 'trace': to_trace, 'timeline': to_timeline_svg,
}  # fmt: skip
_ENDINGS = {
    '.txt': 'text', '.dot': 'dot', '.gv': 'dot', '.svg': 'svg', '.html': 'html', '.htm': 'html', '.json': 'trace',
}  # fmt: skip
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
    parser = commands.add_parser(
        'view',
        help='show a recording as text, a page, SVG, DOT or a trace',
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument('recording', help='a recording, saved as JSON; - reads it from standard input')
    parser.add_argument('-o', '--output', metavar='FILE', help='the file to write; otherwise it is printed')
    parser.add_argument(
        '--format', choices=list(_FORMATS), help="what to make (default: by the file's ending, or text)"
    )
    parser.add_argument('--open', action='store_true', help='make a page, and open it in a browser')
    parser.set_defaults(go=_view)


def _view(given: argparse.Namespace) -> int:
    try:
        name = _format(given)
        recording = read(given.recording)
        if given.output is None and not given.open:
            return _print(_FORMATS[name](recording))
        path = _written(given, _FORMATS[name](recording))
    except (ValueError, OSError) as error:
        print(f'capturekit: {_why(error)}', file=sys.stderr)
        return 2
    if given.open and not webbrowser.open(path.resolve().as_uri()):
        print('capturekit: no browser was found', file=sys.stderr)
    print(f'capturekit: wrote {path}', file=sys.stderr)
    return 0


def read(path: str) -> Recording:
    """Read a recording. Raises ValueError, with the file's name, if it is not one."""
    name = 'standard input' if path == '-' else path
    try:
        recording = Recording.from_json(json.load(sys.stdin)) if path == '-' else Recording.load(path)
        to_text(recording)  # a file may have the form of a recording, and nonsense in it
    except RecursionError:
        raise ValueError(f'{name}: this is not a capturekit recording: it is nested too deeply') from None
    except json.JSONDecodeError as error:
        raise ValueError(f'{name}: this is not a capturekit recording: it is not JSON ({error})') from None
    except UnicodeDecodeError:
        raise ValueError(f'{name}: this is not a capturekit recording: it is not text') from None
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
        text = str(error).removeprefix(f'{name}: ')
        unsaid = '' if text.startswith(('this is not', 'recording version')) else 'this is not a capturekit recording: '
        raise ValueError(f'{name}: {unsaid}{text}') from None
    return recording


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f'{error.filename}: {error.strerror}'
    return str(error)


def _format(given: argparse.Namespace) -> str:
    if given.open:
        if given.format not in (None, 'html') or _ENDINGS.get(_ending(given.output), 'html') != 'html':
            raise ValueError('--open opens a page: leave --format out, and give -o a name that ends in .html')
        return 'html'
    if given.format is not None:
        return str(given.format)
    if given.output is None:
        return 'text'
    if _ending(given.output) not in _ENDINGS:
        raise ValueError(f'{given.output}: this ending names no format: use --format, or {" ".join(_ENDINGS)}')
    return _ENDINGS[_ending(given.output)]


def _ending(path: str | None) -> str:
    return '' if path is None else os.path.splitext(path)[1].lower()


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


def _print(text: str) -> int:
    encoding = sys.stdout.encoding or 'utf-8'
    try:
        print(text.encode(encoding, 'replace').decode(encoding), end='', flush=True)
    except BrokenPipeError:  # the reader, `| head` say, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
