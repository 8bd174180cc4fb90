"""What code does besides work on the GPU: threads that it starts, host memory, settings, warnings, what it prints.

A launch repeats none of it. If a graphed function does it in the eager run, it is noted, and the function stays eager;
if it first happens while recording, it is refused. Warnings are gathered while a function is recorded, since each
launch shows them. What a recording writes to files is withheld: it meets values of an earlier call, and if it can't be
launched, the eager run that follows writes what belongs to this call.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy

from capturekit.guard.arrays import Arrays
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.state import State
from capturekit.model.source_line import here, is_ours


class Effects:
    """Notes or refuses what a graphed function does besides work on the GPU."""

    def __init__(self, state: State, callers: CallerStreams, arrays: Arrays) -> None:
        self.state = state
        self.callers = callers
        self.arrays = arrays

    def thread_fed(self, call: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Note, or refuse, that a graphed function starts a thread or gives one something to do."""
        mine = self.state.mine()
        rehearsal = self.state.rehearsals.get(threading.get_ident())
        if mine is not None and mine.caller is not None:
            raise self.callers.not_recorded(
                call, None, 'The function starts or feeds a thread', 'Let the caller do that.'
            )
        if mine is None and rehearsal is not None:
            rehearsal.effects.append(f'the function starts or feeds a thread ({call}, at {here()})')
        return original(*args, **kwargs)

    def linalg_config(self, original: Callable[..., Any], *args: Any) -> Any:
        """Remember ``cupyx.errstate(linalg=...)``, which decides whether CuPy reads an error's number on the host."""
        now = original(*args)
        mine = self.state.mine()
        if mine is not None and mine.caller is not None:
            mine.caller.conditions.append(lambda: bool(original(*args) == now))
        return now

    def array_get(
        self, original: Callable[..., Any], array: Any, stream: Any = None, order: str = 'C', out: Any = None,
        blocking: bool = True,
    ) -> Any:  # fmt: skip
        if out is not None:
            self._fills(out)
        return self.arrays.array_get(original, array, stream, order, out, blocking)

    def _fills(self, out: Any) -> None:
        """Refuse to fill a NumPy array of the caller, because a launch would not fill it again."""
        mine, rehearsal = self.state.mine(), self.state.rehearsals.get(threading.get_ident())
        if mine is not None and mine.caller is not None:
            if any(root_of(out) is one for one in mine.caller.filled):
                raise self.callers.not_recorded(
                    'ndarray.get(out=...)', None, "It fills an array of the caller's", 'Return `x.get()` instead.'
                )
        elif rehearsal is not None:
            rehearsal.filled.append(root_of(out))


def root_of(array: Any) -> Any:
    """The array whose memory this one is a view of."""
    while isinstance(getattr(array, 'base', None), numpy.ndarray):
        array = array.base
    return array


_REGISTRY = '__warningregistry__'


class Warned:
    """Shows warnings, or gathers them for the recording of a thread."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: By thread: the lists in which its warnings are gathered, the innermost last.
        self._gathering: dict[int, list[list[Any]]] = {}

    def gather(self) -> list[Any]:
        """Gather the warnings of this thread from now on, in the list that is returned, and show none of them."""
        gathered: list[Any] = []
        self._gathering.setdefault(threading.get_ident(), []).append(gathered)
        return gathered

    def gather_no_more(self) -> None:
        """Gather in the list before again; if there is none, the warnings of this thread are shown again."""
        lists = self._gathering[threading.get_ident()]
        lists.pop()
        if not lists:
            del self._gathering[threading.get_ident()]

    def shown(self, original: Callable[..., Any], shown: Any) -> Any:
        """Python shows a warning. ``shown``: a ``WarningMessage``."""
        caller = self._caller() if is_ours(shown.filename) else None
        if caller is not None:
            return _warn_there(caller, shown)
        lists = self._gathering.get(threading.get_ident())
        if lists is not None:
            return lists[-1].append(shown)
        return original(shown)

    @staticmethod
    def _caller() -> FrameType | None:
        """The frame that called the guard. What lines of the guard have shown is forgotten."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and is_ours(frame.f_code.co_filename):
            frame.f_globals.pop(_REGISTRY, None)
            frame = frame.f_back
        return frame


def _warn_there(frame: FrameType, shown: Any) -> None:
    """Warn once more, at the line of a frame."""
    values = frame.f_globals
    once: Any = warnings.onceregistry  # type: ignore[attr-defined]
    once.pop((str(shown.message), shown.category), None)  # it would count as shown
    warnings.warn_explicit(
        shown.message, shown.category, frame.f_code.co_filename, frame.f_lineno, values.get('__name__') or '<string>',
        values.setdefault(_REGISTRY, {}), source=shown.source,
    )  # fmt: skip


class WithheldOutput:
    """Withholds what threads write to files of Python's, by ``print``, by ``write`` or through a handler of logging."""

    def __init__(self, state: State) -> None:
        self.state = state
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
