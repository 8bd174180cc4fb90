"""``capturekit explain``: a code, a rule or an exception in words, with a wrong and a right example."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from capturekit.cli.explain import explain, listing

_DESCRIPTION = """\
Explain one of CUDA's codes, a rule of capturekit, a kind of step in its recordings or one of its exceptions: what
triggers it, what CUDA answers in which modes, what becomes of the capture, a wrong and a right example. Without a word,
it lists all the words.
"""
_EPILOG = """\
examples:
  python -m capturekit explain 905
  python -m capturekit explain cudaErrorStreamCaptureIsolation
  python -m capturekit explain host-read
  python -m capturekit explain HostReadError
"""


def add(commands: Any) -> None:
    """Add ``explain`` to the commands."""
    parser = commands.add_parser(
        'explain',
        help='explain a CUDA code, a rule or an exception, with examples',
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    words = 'a code (905), its name, a rule (host-read), a kind of step (seam), an exception'
    parser.add_argument('word', nargs='?', help=words)
    parser.set_defaults(go=_go)


def _go(given: argparse.Namespace) -> int:
    try:
        print(listing() if given.word is None else explain(given.word), end='')
    except LookupError as error:
        print(f'capturekit: {error.args[0]}', file=sys.stderr)
        return 2
    return 0
