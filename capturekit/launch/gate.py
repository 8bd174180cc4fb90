"""What graphs ask of the guard. It is handed in by whoever records a graph: neither of the two imports the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from capturekit.model.ledger import Ledger


@dataclass(frozen=True)
class Gate:
    """What graphs ask of the guard."""

    #: The open captures.
    ledger: Ledger
    #: Is told of a launch or an upload while captures are open: whether it is an upload, and the stream.
    launching: Callable[[bool, int], None]
    #: A block for capturekit's own calls.
    inside: Callable[[], AbstractContextManager[None]]
    #: Whether this thread has a capture or a rehearsal open.
    occupied: Callable[[], bool]
    #: A block, given the platform and a rehearsal, in which host reads of this thread are remembered.
    rehearsing: Callable[..., AbstractContextManager[None]]
    #: ``waits.unless_captured(device)`` waits for the current device, unless that would harm a capture.
    waits: Any
