"""CuPy's vendor libraries: where they may record, and what the kernels of cuBLAS, CUB and cuFFT touch.

Such a kernel's own arguments are a structure that only its library understands. So its nodes would keep their order
with all others when a graph gets the edges that its data needs (:mod:`capturekit.lanes.contest`), and races could only
be guessed. The arguments of the library's call show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from capturekit.driver.library_accesses import Rows, of_cub, of_cublas, rows_of
from capturekit.driver.node_accesses import Access
from capturekit.driver.vendor_libraries import Libraries
from capturekit.guard.entry_points import Entry
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.launch.declared import Called
from capturekit.model.errors import CudaCallError

#: Where a stream is in its capture: the graph, and the nodes that its next work comes after.
_Place = tuple[int, tuple[int, ...]]


class LibraryCalls:
    """Notes what the nodes of a library's call touch."""

    def __init__(self, state: State) -> None:
        self.state = state

    def known_cublas(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A function of cuBLAS. It works on the current stream."""
        live = self.state.recording()
        accesses = None if live is None or kwargs else of_cublas(entry.name, args)
        if live is None or accesses is None:
            return original(*args, **kwargs)
        before = self.place(live)
        answer = original(*args)
        self.note(live, entry.call, before, accesses)
        return answer

    def known_cub(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A reduction or a scan of CUB's, which CuPy makes the result for; None where CUB does not do it.

        An array that is given by name, as CuPy never does, is not looked for: nothing is known of that call.
        """
        live = self.state.recording()
        before = None if live is None else self.place(live)
        answer = original(*args, **kwargs)
        if live is not None and answer is not None and args:
            rows = rows_of(args[0], args[1], answer) if entry.name == 'cub_reduction' and len(args) > 1 else None
            self.note(live, entry.call, before, of_cub(entry.name, args[0], answer), rows)
        return answer

    def place(self, live: OpenCapture) -> _Place | None:
        """Where the current stream is in its capture; None if it is in none."""
        with self.state.inside, suppress(CudaCallError):  # a lost capture is reported at its end
            info = live.platform.device.capture_info(live.platform.cupy.cuda.get_current_stream().ptr)
            return (info.graph, info.dependencies) if info.graph else None
        return None

    def note(
        self,
        live: OpenCapture,
        call: str,
        before: _Place | None,
        accesses: Iterable[Access],
        rows: Rows | None = None,
    ) -> None:
        """Note that a call which began at ``before`` and has ended touches this, and memory of the graph's own."""
        after = self.place(live)
        if before is not None and after is not None and after[0] == before[0]:
            live.recorder.called.append(Called(before[0], call, before[1], after[1], tuple(accesses), rows))


class LibraryAccess(Libraries):
    """CuPy's vendor libraries, open while the wrappers are installed."""

    def __init__(self, state: State) -> None:
        super().__init__(self._records, self.workspace_on)
        self._state = state

    def _recording(self, stream: int) -> OpenCapture | None:
        """The capture of capturekit's own that a stream is in."""
        live = self._state.open_on(stream)
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
