"""What code does besides work on the GPU: threads that it starts, settings, warnings, what it prints.

A launch repeats none of it. If a graphed function does it in the eager run, it is noted, and the function stays eager;
if it first happens while recording, it is refused. What a recording writes to files is withheld: it meets values of an
earlier call, and if it can't be launched, the eager run that follows writes what belongs to this call.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, cast

from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.entry_points import Entry
from capturekit.guard.state import State
from capturekit.model.causes import shown_with
from capturekit.model.errors import CaptureError
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import here, is_ours

_REGISTRY = '__warningregistry__'


class Effects:
    """Notes or refuses what a graphed function does besides work on the GPU; shows warnings at the user's line."""

    def __init__(self, state: State, callers: CallerStreams) -> None:
        self.state, self.callers = state, callers

    def thread_fed(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Note, or refuse, that a graphed function starts a thread or gives one something to do."""
        rehearsal = self.state.rehearsals.get(threading.get_ident())
        what = 'function starts or feeds a thread'
        if self.state.caller() is not None:
            raise self.callers.not_recorded(entry.call, None, f'The {what}', 'Let the caller do that.')
        if rehearsal is not None and self.state.mine() is None:
            rehearsal.effects.append(('thread', f'the {what} ({entry.call}, at {here()})'))
        return original(*args, **kwargs)

    def linalg_config(self, original: Callable[..., Any], *args: Any) -> Any:
        """Remember ``cupyx.errstate(linalg=...)``, which decides whether CuPy reads an error's number on the host."""
        now = original(*args)
        caller = self.state.caller()
        if caller is not None:
            caller.conditions.append(lambda: bool(original(*args) == now))
        return now

    @staticmethod
    def warning_shown(original: Callable[..., Any], shown: Any) -> Any:
        """Show a ``WarningMessage`` of the guard's own lines at the line that called the guard."""
        frame: FrameType | None = sys._getframe(1) if is_ours(shown.filename) else None
        while frame is not None and is_ours(frame.f_code.co_filename):
            frame.f_globals.pop(_REGISTRY, None)  # what lines of the guard have shown is forgotten
            frame = frame.f_back
        if frame is None:
            return original(shown)
        values, once = frame.f_globals, cast(Any, warnings).onceregistry
        once.pop((str(shown.message), shown.category), None)  # it would count as shown
        warnings.warn_explicit(
            shown.message, shown.category, frame.f_code.co_filename, frame.f_lineno,
            values.get('__name__') or '<string>', values.setdefault(_REGISTRY, {}), source=shown.source,
        )  # fmt: skip


class WithheldOutput:
    """Withholds what threads write to files of Python's, by ``print``, by ``write`` or through a handler of logging."""

    def __init__(self) -> None:
        self._threads: set[int] = set()

    @contextmanager
    def withheld(self) -> Iterator[None]:
        """A block in which nothing that this thread writes arrives."""
        me = threading.get_ident()
        self._threads.add(me)
        try:
            yield
        finally:
            self._threads.discard(me)

    def written(self, original: Callable[..., Any], file: Any, text: Any) -> Any:
        if threading.get_ident() not in self._threads or not isinstance(text, str):
            return original(file, text)
        original(file, '')  # raises where the file is closed
        text.encode(file.encoding, file.errors)  # raises where the file could not take the text
        return len(text)


SWALLOWED = 'capturekit: a handler of `logging` has printed this exception and gone on, so it comes again here.'


class SwallowedRefusals:
    """Keeps the first refusal that a handler of :mod:`logging` swallows in a capture, for the capture's end."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: Functions that are called with such a refusal in a thread without a capture.
        self.elsewhere: list[Callable[[CaptureError], None]] = []

    def handler_failed(self, original: Callable[..., Any], handler: Any, record: Any) -> Any:
        error = sys.exception()
        try:
            return original(handler, record)
        finally:
            live = self.state.mine()
            found = next((one for one in shown_with(error) if isinstance(one, CaptureError)), None)
            if live is None and found is not None:
                for tell in self.elsewhere:
                    tell(found)
            elif live is not None and found is not None and live.swallowed is None:
                found.add_note(SWALLOWED)
                live.swallowed = found.with_traceback(None)  # which would hold the frames of the block
            del error, found
