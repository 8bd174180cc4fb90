"""Colour on terminals, text that every terminal can show, and pipes that close early."""

from __future__ import annotations

import faulthandler
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

_CODES = {'error': '1;31', 'warning': '33', 'place': '1', 'quiet': '2', 'good': '32'}


def coloured(stream: TextIO) -> bool:
    """Whether a stream takes colours: ``NO_COLOR`` and ``FORCE_COLOR`` say so, else whether it is a terminal."""
    if os.environ.get('NO_COLOR'):
        return False
    if os.environ.get('FORCE_COLOR'):
        return True
    return stream.isatty() and os.environ.get('TERM') != 'dumb'


def paint(text: str, what: str, stream: TextIO) -> str:
    """The text in the colour of an 'error', 'warning' or 'place', or of a text that is 'quiet' or 'good'."""
    return f'\033[{_CODES[what]}m{text}\033[0m' if text and coloured(stream) else text


@contextmanager
def any_terminal() -> Iterator[None]:
    """In the block, characters that standard output can't show become question marks instead of an exception."""
    stream: Any = sys.stdout
    encoding = str(getattr(stream, 'encoding', None) or 'utf-8').lower().replace('_', '-')
    if encoding in ('utf-8', 'utf8') or stream.errors != 'strict' or not hasattr(stream, 'reconfigure'):
        yield
        return
    stream.reconfigure(errors='replace')
    try:
        yield
    finally:
        stream.reconfigure(errors='strict')


def closed_streams_take_nothing() -> None:
    """Give a process that was started without standard output or error a place for what it says.

    Python has None for a stream whose descriptor is closed (``>&-``, some services): there is nobody to read it.
    """
    for name in ('stdout', 'stderr'):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, 'w'))  # noqa: SIM115 (it stays until the process ends)


def tell_of_crashes() -> None:
    """Make a crash in compiled code show the Python lines that led to it, as ``python -X faulthandler`` does."""
    if not faulthandler.is_enabled():
        with suppress(ValueError, OSError):  # standard error is no file: a notebook's, say
            faulthandler.enable()


def pipe_closed(error: BaseException | None = None) -> bool:
    """Whether the reader of standard output has ended (``| head``). If so, nothing more is written to it.

    Without an ``error`` this is found by writing what has not been written yet.
    """
    try:
        sys.stdout.flush()
        if not isinstance(error, BrokenPipeError):
            return False
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _file, event in poll.poll(0)):  # the pipe has a reader still
            return False
    except BrokenPipeError:
        pass
    except ValueError:  # it is closed, or no file
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def say(text: str) -> None:
    """Print a line of capturekit's own on standard error."""
    print(f'{paint("capturekit:", "quiet", sys.stderr)} {text}', file=sys.stderr, flush=True)


def unwritable(path: str) -> str:
    """Why a file can't be written, in the system's words; '' if it can. A new one is not left behind."""
    there = os.path.lexists(path)
    try:
        with open(path, 'ab'):
            pass
    except OSError as error:
        return error.strerror or str(error)
    if not there:
        os.unlink(path)
    return ''
