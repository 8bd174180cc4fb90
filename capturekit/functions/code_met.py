"""The code that ran, and from where it was called."""

from __future__ import annotations

from types import CodeType
from typing import Any

from capturekit.functions.return_paths import Caller, ReturnPaths


class CodeMet:
    """What is known of the code that ran; :class:`PythonCalls` adds to it."""

    def __init__(self) -> None:
        #: The code that ran, and whether it is a library's, by id.
        self.codes: dict[int, tuple[CodeType, bool]] = {}
        #: By the id of code that ran: from where it was called, and from where the calling code was called then.
        self.callers: dict[int, dict[Caller, set[Caller]]] = {}
        #: The calls in the user's code, by its id and the offset, that entered code of libraries.
        self.left_at: set[tuple[int, int]] = set()
        self.direct = ReturnPaths()
        #: The user's code, and the globals of its functions, by id.
        self.globals_of: dict[int, tuple[CodeType, int]] = {}
        #: Code of an ``__init__`` that was given an object which was there before.
        self.begun_again: set[int] = set()
        #: By dictionary of a module: the code that ran, the user's and libraries'.
        self.ran_in: dict[int, tuple[dict[str, Any], list[CodeType]]] = {}

    def own(self) -> list[CodeType]:
        """The user's code that ran."""
        return [code for code, foreign in self.codes.values() if not foreign]

    def named(self) -> list[tuple[dict[str, Any], frozenset[str]]]:
        """The globals of modules whose code of the user's ran, each with the names in all of that code."""
        own = {id(code) for code in self.own()}
        return [
            (names, frozenset(name for code in codes if id(code) in own for name in code.co_names))
            for names, codes in self.ran_in.values()
        ]
