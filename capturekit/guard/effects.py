"""What a graphed function does besides work on the GPU: it starts threads, writes host memory, changes settings.

A launch repeats none of it. If it happens in the eager run, it is noted, and the function stays eager; if it first
happens while recording, it is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy

from capturekit.guard.arrays import Arrays
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.state import State
from capturekit.model.source_line import here


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
