"""What a function writes to files while it is recorded: nobody sees it.

A recording meets values of an earlier call. If it can't be launched, the eager run that follows writes what belongs to
this call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capturekit.guard.state import State


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
