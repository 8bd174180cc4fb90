"""CuPy's vendor libraries, which may record in captures of capturekit's own."""

from __future__ import annotations

from capturekit.driver.vendor_libraries import Libraries
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State


class LibraryAccess(Libraries):
    """CuPy's vendor libraries, open while the wrappers are installed."""

    def __init__(self, state: State) -> None:
        super().__init__(self._records, self.workspace_on)
        self._state = state

    def _recording(self, stream: int) -> OpenCapture | None:
        """The capture of capturekit's own that a stream is in."""
        lane = self._state.ledger.lane(stream)
        live = None if lane is None else self._state.lives.get(lane.capture)
        return None if live is None or live.memory is None else live

    def _records(self, stream: int) -> bool:
        """Whether libraries may record on a stream: in a capture of capturekit's own, or where it holds a stream.

        What a held stream gets is thrown away, and its release says at which line work has escaped.
        """
        lives = list(self._state.lives.values())  # other threads begin and end captures meanwhile
        return self._recording(stream) is not None or any(stream in live.outside.held for live in lives)

    def workspace_on(self, stream: int) -> tuple[int, int] | None:
        """The workspace that cuBLAS is to use on a stream: address and bytes, memory of the graph; else None."""
        live = self._recording(stream)
        if live is None:
            return None
        with self._state.inside():
            return live.graph_memory.workspace(stream)
