"""The caller of a function that is being recorded: its streams, and what the function does with them.

A launch works on one stream. If the function used other streams of its caller, or waited for them, this orders the
caller's work before and after the call, and a launch has to make the same order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capturekit.model.ledger import LEGACY_HANDLES


@dataclass(eq=False)
class Caller:
    """Facts about the caller's streams that a recording collects. ``stream`` was current at the call."""

    stream: Any
    #: The streams and events that the function made, and their handles.
    made: list[weakref.ref[Any]] = field(default_factory=list)
    streams: set[int] = field(default_factory=set)
    events: set[int] = field(default_factory=set)
    #: The caller's streams that the function uses, by device and handle. (Handle 0 is a device's null stream.)
    outside: dict[tuple[int, int], Any] = field(default_factory=dict)
    #: The stream that was current on each other device where the function works, by device: on another one the eager
    #: call would work, and leave it current.
    elsewhere: dict[int, Any] = field(default_factory=dict)
    #: Whether the function waits on the host; and whether it waits for the whole device.
    waits: bool = False
    everywhere: bool = False
    #: Whether the function names the stream that was current at the call, so that the recording fits only that stream.
    named: bool = False
    #: Whether CUDA orders some of the streams with the null stream, so that it matters if that was current.
    implicit: bool = False
    #: Conditions that a call must meet for the recording to fit it.
    conditions: list[Callable[[], bool]] = field(default_factory=list)
    #: Arrays in host memory that belong to the caller.
    filled: list[Any] = field(default_factory=list)
    #: The stream on which each block of memory was allocated last, by address.
    homes: dict[int, int] = field(default_factory=dict)

    @property
    def legacy(self) -> bool:
        """Whether the call is made on the null stream."""
        return self.stream.ptr in LEGACY_HANDLES

    def is_current(self, ptr: int) -> bool:
        """Whether a handle is that of the stream which was current at the call."""
        return bool(self.legacy if ptr in LEGACY_HANDLES else ptr == self.stream.ptr)

    def made_here(self, thing: Any, handles: set[int]) -> None:
        """Note that the function has made a stream or an event."""
        handles.add(int(thing.ptr))
        self.made.append(weakref.ref(thing))
