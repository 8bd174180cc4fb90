"""The clocks that a run has read, and where the times went: :mod:`capturekit.functions.kept_reads` follows them."""

from __future__ import annotations

import time
from types import FrameType
from typing import Any

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
