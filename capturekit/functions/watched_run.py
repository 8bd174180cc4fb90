"""An eager run that was watched, as it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capturekit.functions.environment import Environment
from capturekit.model.host_reads import Rehearsal


@dataclass
class WatchedRun:
    """A watched eager run: what it read, why it can't be recorded ('' if it can), and its result."""

    environment: Environment | None
    rehearsal: Rehearsal
    reason: str
    result: Any

    @property
    def whole(self) -> Any:
        """The result, and the changes of Python state that launches repeat."""
        carried = None if self.environment is None else self.environment.carried
        return self.result if carried is None else (self.result, carried.after())
