"""Captures on the simulated device: begun, moved, ended."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus, Code, Mode
from capturekit.simulated.device.device_graphs import Graphs
from capturekit.simulated.device.device_state import (
    LEGACY,
    SimulatedCapture,
    SimulatedStream,
)
from capturekit.simulated.device.graph_nodes import GraphDefinition, GraphNode


class Captures(Graphs):
    """The calls about captures of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

    def exchange_thread_mode(self, mode: Mode) -> Mode:
        """``cudaThreadExchangeStreamCaptureMode``: set this thread's mode, return the old one."""
        with self._lock:
            me = threading.get_ident()
            old = self._thread_modes.get(me, Mode.GLOBAL)
            self._thread_modes[me] = Mode(mode)
            return old

    def begin_capture(self, s: int, mode: Mode = Mode.RELAXED) -> None:
        """``cudaStreamBeginCapture``."""
        with self._lock:
            self._begin(s, mode, None)

    def begin_capture_to(self, s: int, g: int, mode: Mode = Mode.RELAXED, after: Sequence[int] = ()) -> None:
        """``cudaStreamBeginCaptureToGraph``: add to a graph, behind the nodes ``after``; to a body, say."""
        with self._lock:
            graph = self._graph(g)
            known = {n.handle: n for n in graph.nodes}
            if not known.keys() >= set(after):
                raise CudaCallError(Code.cudaErrorInvalidValue, 'beginCaptureToGraph')
            self._begin(s, mode, graph)
            self._stream(s).after = frozenset(known[a] for a in after)

    def can_continue(self) -> bool:
        """Whether captures can add to a graph that has nodes."""
        return True

    def set_dependencies(self, s: int, after: Sequence[int]) -> None:
        """``cudaStreamUpdateCaptureDependencies``: what a captured stream's next node comes after."""
        with self._lock:
            stream = self._stream(s)
            capture = self._live(stream, 'streamUpdateCaptureDependencies')
            if capture is None:
                self._fail(Code.cudaErrorIllegalState, 'streamUpdateCaptureDependencies')
            known = {n.handle: n for n in capture.graph.nodes}
            if not known.keys() >= set(after):
                raise CudaCallError(Code.cudaErrorInvalidValue, 'streamUpdateCaptureDependencies')
            stream.after = frozenset(known[a] for a in after)

    def _begin(self, s: int, mode: Mode, graph: GraphDefinition | None) -> None:
        if s in LEGACY:
            self._legacy('beginCapture')
            self._fail(Code.cudaErrorStreamCaptureUnsupported, 'beginCapture')
        stream = self._stream(s)
        if stream.capture is not None:
            self._fail(Code.cudaErrorIllegalState, 'beginCapture')
        self._captures_opened += 1
        to = GraphDefinition(self._handle()) if graph is None else graph
        capture = SimulatedCapture(self._captures_opened, s, Mode(mode), threading.get_ident(), to)
        self.captures.append(capture)
        self._enter(stream, s, capture)
        stream.after = frozenset()

    def end_capture(self, s: int) -> int:
        """``cudaStreamEndCapture``: return the graph's handle, which :meth:`capture_info` has told before."""
        with self._lock:
            if s in LEGACY:
                self._legacy('endCapture')
                self._fail(Code.cudaErrorIllegalState, 'endCapture')
            stream = self._stream(s)
            capture = stream.capture
            if capture is None:
                self._fail(Code.cudaErrorIllegalState, 'endCapture')
            if capture.origin != s:
                self._fail(Code.cudaErrorStreamCaptureUnmatched, 'endCapture', [capture])
            code = self._ending(stream, capture)
            self._release(capture)
            if code is not Code.cudaSuccess:
                self._forget(capture.graph)  # one that was there before, and the body of a node, too
                capture.graph.destroyed = True
                self._fail(code, 'endCapture')
            self.graphs[capture.graph.handle] = capture.graph
            return capture.graph.handle

    def _ending(self, origin: SimulatedStream, capture: SimulatedCapture) -> Code:
        if capture.status is CaptureStatus.INVALIDATED:
            return Code.cudaErrorStreamCaptureInvalidated
        joined = _ancestors(origin.after)
        left = set(capture.orphans)
        for s in capture.streams:
            left |= self._stream(s).after
        if not left <= joined:
            return Code.cudaErrorStreamCaptureUnjoined
        if capture.mode is not Mode.RELAXED and capture.thread != threading.get_ident():
            return Code.cudaErrorStreamCaptureWrongThread
        return Code.cudaSuccess

    def _release(self, capture: SimulatedCapture) -> None:
        capture.status = CaptureStatus.NONE
        self.captures.remove(capture)
        for s in capture.streams:
            stream = self._stream(s)
            stream.capture, stream.after = None, frozenset()


def _ancestors(nodes: Iterable[GraphNode]) -> set[GraphNode]:
    seen: set[GraphNode] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.after)
    return seen
