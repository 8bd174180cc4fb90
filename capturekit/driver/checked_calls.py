"""Calls of the driver's library that raise where the driver answers with an error."""

from __future__ import annotations

from typing import Any

from capturekit.driver.node_reader import Reader
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code


class CheckedCalls:
    """What writers of nodes and of edges have in common: a reader, and its library."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._cuda = reader.library

    def _call(self, name: str, *args: Any) -> None:
        code = int(getattr(self._cuda, name)(*args))
        if code:
            raise CudaCallError(Code(code) if code in set(Code) else code, name)
