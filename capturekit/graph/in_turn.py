"""Launches of a graph that shares memory with others: they take turns with the launches of those."""

from __future__ import annotations

from collections.abc import Callable

from capturekit.graph.closed import closed
from capturekit.graph.fuse import Fusable


class InTurn(Fusable):
    """The launches of :class:`capturekit.Graph` that hold its lock."""

    __slots__ = ()

    _by_name: int

    def _start(self, stream: int) -> None:
        """Launch on a stream, by its handle, after other graphs that use the same memory."""
        if not self._memory.turns:
            super()._start(stream)
            return
        with self._memory.turn(stream):
            super()._start(stream)

    def _launch_then(self, following: Callable[[], None]) -> None:
        """Launch on CuPy's current stream, and then do something with the graph's memory on that stream."""
        ptr = self._current().ptr
        if self._topology.captures:
            self._before(False, ptr)
        with self._lock:
            if self._made is None:
                raise closed('Graph.launch()')
            with self._memory.turn(ptr):
                self._start(ptr)
                self._by_name += 1
                following()
