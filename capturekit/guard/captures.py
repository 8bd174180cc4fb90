"""Captures begin and end: what is told of it, and what CUDA destroys when ending the driver's capture fails.

If a capture is lost, or has lanes that are not joined, ``cudaStreamEndCapture`` destroys the graph that was captured
into, also one that was there before, and also the body of a conditional node. The graph around such a node then ends
the process when it is destroyed or instantiated, and so does destroying the node (measured on driver 580.159.04). So
the recorded work is joined before a capture is thrown away, and a graph that has lost a body is never destroyed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from capturekit.guard.line_trace import TRACING
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus, Mode


def driver_mode(mode: Mode) -> Mode:
    """The mode in which the driver captures for a capture of this mode.

    In CUDA's global mode, a call of another thread that the guard does not see loses the capture: a memory pool that
    grows is enough. Thread-local mode forbids the capturing thread the same calls, and other threads none.
    """
    return Mode.THREAD_LOCAL if mode is Mode.GLOBAL else mode


class Captures:
    """Notes that captures begin and end, and notifies other components.

    ``before_end`` and ``after_end`` are filled where the components are assembled. When a capture has ended, functions
    in the first list are called while the guard still knows it, those in the second after the guard has forgotten it.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.before_end: list[Callable[[OpenCapture], None]] = []
        self.after_end: list[Callable[[OpenCapture], None]] = []

    def opened(self, live: OpenCapture) -> None:
        """Note a capture that has begun."""
        with self.state.lock:
            self.state.lives[live.capture] = live
            self.state.threads.setdefault(live.thread, []).append(live)
            live.streams[live.origin.ptr] = live.origin
            live.current = self.state.current_stream().ptr
            live.note('begin', live.capture.origin, f'capture begun in {live.recording.mode} mode', live.at)

    def settle(self, live: OpenCapture) -> None:
        """Find out which line made which nodes, before a capture ends and its nodes can't be read any more."""
        if live.trace is None:
            return
        live.trace.poll()
        order = None
        device = self.state.platform.device
        with (
            self.state.inside,
            suppress(CudaCallError),
        ):  # the nodes of a lost capture can't be read
            info = device.capture_info(live.origin.ptr)
            if info.status is CaptureStatus.ACTIVE:
                order = device.graph_nodes(info.graph)[live.parts.numbered.get(info.graph, 0) :]
                live.parts.edges = device.graph_edge_count(info.graph)
        live.trace.finish(order)

    def gone(self, live: OpenCapture) -> None:
        """Forget a capture that has ended. Threads that wait for its end continue."""
        with self.state.lock:
            try:
                for tell in self.before_end:
                    tell(live)
            finally:
                self._forget(live)
            for tell in self.after_end:
                tell(live)

    def _forget(self, live: OpenCapture) -> None:
        """Take the capture out of the ledger, the trace of lines, and its thread's list.

        Garbage is let go last: what destructors do while the capture counts as open would be taken for the capture's.
        """
        state = self.state
        try:
            state.ledger.end(live.capture)
            live.allocators.clear()
            if live.trace is not None:
                TRACING.close(live.trace)
            state.lives.pop(live.capture, None)
            left = [one for one in state.threads.pop(live.thread, ()) if one is not live]
            if left:
                state.threads[live.thread] = left
            state.closed.notify_all()
        finally:
            if live.uncollected is not None:
                live.uncollected.let_go()


def join_for_good(device: Any, origin: int, graph: int, count: int = 0) -> None:
    """Order the origin after all nodes but the first ``count``, before a failing capture into ``graph`` ends."""
    if device.stream_status(origin) is CaptureStatus.ACTIVE:
        device.set_dependencies(origin, device.graph_nodes(graph)[count:])


def end_driver_capture(live: OpenCapture) -> int:
    """End the driver's capture on the origin and return its graph; note what CUDA destroys if that fails."""
    try:
        return int(live.platform.device.end_capture(live.origin.ptr))
    except CudaCallError:
        _note_destroyed(live)
        raise


def emptied(device: Any, bodies: Iterable[int], decided: dict[int, list[int]]) -> None:
    """Destroy the nodes in bodies of conditional nodes.

    A conditional node has to stay, since a graph whose condition has lost its node can't be instantiated any more. It
    stays with empty bodies.
    """
    for body in bodies:
        for node in reversed(device.graph_nodes(body)):
            if node in decided:
                emptied(device, decided[node], decided)
            else:
                device.node_destroy(node)


def in_body(live: OpenCapture) -> bool:
    """Whether the driver captures into the body of a conditional node, which belongs to the graph around it."""
    return bool(live.parts.check_node or live.decisions.open)


def _note_destroyed(live: OpenCapture) -> None:
    if in_body(live):
        live.parts.spoilt = True
    elif live.parts.current is not None:
        live.parts.current.graph = 0
