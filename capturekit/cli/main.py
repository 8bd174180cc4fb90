"""The commands that ``python -m capturekit --help`` names, each in a module of its name."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from capturekit._version import __version__
from capturekit.cli.terminal import any_terminal, closed_streams_take_nothing, pipe_closed

#: Modules beside this one, in the order in which --help names them: each has ``add(commands)``.
COMMANDS: tuple[str, ...] = ('run', 'lint', 'explain', 'rules', 'doctor', 'view')

_DESCRIPTION = 'Record CuPy work into CUDA graphs, across streams, and refuse what would break the capture.'
EPILOG = """\
examples:
  python -m capturekit run train.py --epochs 3     an unchanged script, on the GPU if there is one
  python -m capturekit run --simulate train.py     the same without a GPU
  python -m capturekit run --help                  what `run` does, and its options
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (``sys.argv[1:]`` if None) and return the exit status."""
    closed_streams_take_nothing()
    parser = command_parser()
    if '_ARGCOMPLETE' in os.environ:  # a shell asks what may come next: argcomplete answers, where it is installed
        with suppress(ImportError):
            importlib.import_module('argcomplete').autocomplete(parser)
    with any_terminal():
        try:
            given = parser.parse_args(argv)
            status: int = given.go(given)
        except BrokenPipeError as error:
            if not pipe_closed(error):
                raise
            return 1
        except SystemExit:
            pipe_closed()
            raise
        pipe_closed()  # all is done, and the status stands: the reader had seen enough
        return status


class _Parser(argparse.ArgumentParser):
    """The parser of the program, and of each command: its texts stay as they are, and options are spelled out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)


def command_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog='python -m capturekit', description=_DESCRIPTION, epilog=EPILOG)
    parser.add_argument('--version', action='version', version=f'capturekit {__version__}')
    commands = parser.add_subparsers(title='commands', dest='command', required=True)
    for name in COMMANDS:
        importlib.import_module(f'capturekit.cli.{name}').add(commands)
    return parser
