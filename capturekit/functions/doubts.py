"""What can't be watched of a run, in sentences, each with the user's line where one is known."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FrameType

from capturekit.functions.libraries import is_library_frame


class Doubts:
    """The sentences that say why a run's recording may not stand for later calls."""

    def __init__(self, skip: Callable[[str], bool]) -> None:
        self.unwatchable: list[str] = []
        self._skip = skip

    def add(self, frame: FrameType | None, action: str) -> None:
        """Note that something is not understood: what it is, and the user's line."""
        self.unwatchable.append(self.sentence(frame, action))

    def sentence(self, frame: FrameType | None, action: str) -> str:
        """Say that something is not understood."""
        return f'the function {action}{self.line(frame)}: what that reads is not known'

    def line(self, frame: FrameType | None) -> str:
        """The user's line at which a frame was entered."""
        while frame is not None and is_library_frame(frame, self._skip):
            frame = frame.f_back
        return '' if frame is None else f' at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}'
