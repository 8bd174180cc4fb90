"""Warnings of CuPy's compiled code, which Python takes for warnings of the line that called it: a line of the guard.

They are shown, remembered and filtered as warnings of the caller's line, as without a guard. While a function is
recorded, those of its thread are gathered instead: each launch shows them.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from capturekit.guard.state import State
from capturekit.model.source_line import is_ours

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
