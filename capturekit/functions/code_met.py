"""The code that ran, from where it was called, and where it read a clock."""

from __future__ import annotations

import time
from types import CodeType, FrameType
from typing import Any

from capturekit.functions.return_paths import Caller, ReturnPaths
from capturekit.model.host_reads import Site

#: The functions that read a clock and do nothing else.
CLOCKS = (
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns,
    time.process_time, time.process_time_ns, time.thread_time, time.thread_time_ns,
)  # fmt: skip


def is_clock(function: Any) -> bool:
    """Whether a function reads a clock and does nothing else."""
    return any(function is clock for clock in CLOCKS)


class ClockReadings:
    """The clocks that a run has read.

    Attributes:
        readings: where the user's code reads a clock, with the sentence for the case that the time counts.
        followed: the attributes that times were followed to.
    """

    def __init__(self) -> None:
        self.readings: dict[Site, str] = {}
        self.followed: set[str] = set()

    def note(self, frame: FrameType, sentence: str) -> None:
        """Note a call of a clock in a frame."""
        self.readings.setdefault(Site(frame.f_code, frame.f_lasti), sentence)

    def keeps(self, name: str) -> bool:
        """Whether attributes of this name keep times."""
        return name in self.followed


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
