"""What graphs ask of the guard. It is handed in by whoever records a graph: neither of the two imports the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from capturekit.model.ledger import Ledger


@dataclass(frozen=True)
class Gate:
    """What graphs ask of the guard.

    Attributes:
        ledger: the open captures.
        launching: is told of a launch or an upload while captures are open: whether it is an upload, and the stream.
        inside: a block for capturekit's own calls.
        occupied: whether this thread has a capture or a rehearsal open.
        rehearsing: a block, given the platform and a rehearsal, in which host reads of this thread are remembered.
        waits: ``waits.unless_captured(device)`` waits for the current device, unless that would harm a capture.
    """

    ledger: Ledger
    launching: Callable[[bool, int], None]
    inside: Callable[[], AbstractContextManager[None]]
    occupied: Callable[[], bool]
    rehearsing: Callable[..., AbstractContextManager[None]]
    waits: Any
