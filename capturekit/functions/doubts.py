"""What a run has shown so far: what can not be watched, in sentences, what is not settled yet, and names in code."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FrameType
from typing import Any

from capturekit.functions.ownership import is_library_frame


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


class Unsettled:
    """What was met since the attributes of objects were watched last; :class:`Holders` takes it from here."""

    def __init__(self) -> None:
        #: The objects that were met.
        self.pending: list[Any] = []
        #: What values are bound to, and where these are: it is watched with its contents.
        self.also: list[tuple[Any, str]] = []
        #: The names that objects such as an ``attrgetter`` ask others for.
        self.asked_names: set[str] = set()
        #: Whether something was met that asks others for any attribute.
        self.asks_all = False


class NamesUsed:
    """The names in code, and the names that code has as texts; :class:`Holders` adds to them."""

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self.strings: set[str] = set()
        #: Whether code may ask any object for any attribute.
        self.everything = False
        #: The objects and classes of the user all of whose attributes count, by id.
        self.full: dict[int, Any] = {}
        #: What may be asked of arrays, and can't be compared.
        self.of_cupy: set[str] = set()
        #: Whether the ``__getattr__`` of a module reads attributes of an object by names.
        self.finds = False
        #: Whether code may do anything with ``sys.modules``, and not only ask for modules by constant names.
        self.opens_modules = False
        #: The attributes that objects, and their classes, had when code asked them for computed names, and whether code
        #: took the ``__dict__`` of an object that the run has made.
        self.asked_for: set[str] = set()
        self.takes_new = False

    def of_arrays(self) -> str | None:
        """What the code may have asked an array for that gives its address or says who owns its memory; or None."""
        return min(self.of_cupy, default=None)
