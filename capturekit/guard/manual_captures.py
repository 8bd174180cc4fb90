"""Captures begun and ended by hand."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from capturekit.guard.effects import Effects
from capturekit.guard.line_trace import TRACING, Trace
from capturekit.guard.open_capture import Live, close_recording, new_recording, tell
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import Lane
from capturekit.model.rules import VARIANTS, CaptureStatus, Code, Mode, Operation
from capturekit.model.source_line import here

_O = Operation
_UNHEEDED = 'lanes have different priorities, and CuPy instantiates graphs without them: `with ck.capture()` heeds them'


class Endings(Effects):
    """Captures begun and ended by hand."""

    def stream_begin_capture(self, original: Callable[..., Any], stream: Any, mode: Any = None) -> Any:
        return self._begin('Stream.begin_capture()', stream.ptr, mode, lambda: original(stream, mode), stream)

    def runtime_begin_capture(self, original: Callable[..., Any], stream: int, mode: int = 2) -> Any:
        return self._begin('cupy.cuda.runtime.streamBeginCapture()', stream, mode, lambda: original(stream, mode))

    def _begin(self, call: str, ptr: int, mode: Any, go: Callable[[], Any], stream: Any = None) -> Any:
        with self.lock:
            self._start()
            self.spring(ptr)
            verdict = self.judge(_O.BEGIN_CAPTURE, stream=ptr)
            if verdict.answer.refused:
                self.refuse(verdict, call, ptr)
            with self.inside():
                blocking = not self.platform.device.stream_flags(ptr) & 1
                priority = self.platform.device.stream_priority(ptr)
            device = self.device_of(stream or self._wrapped(ptr))
            answer = go()
            at = here()
            real = Mode.RELAXED if mode is None else Mode(int(mode))
            me = threading.get_ident()
            capture = self.topology.begin(ptr, real, me, blocking=blocking, at=at, device=device)
            capture.origin.priority = priority
            recording = new_recording(self.platform, real, strict=True)
            if stream is None:
                stream = self._wrapped(ptr)
            live = Live(self.platform, capture, True, stream, None, recording, threading.get_ident(), at)
            live.active_at = at
            live.trace = Trace(self.platform.device.last_nodes(), ptr, self.lane_number, at)
            if getattr(stream, '_graph_host_funcargs', None) is None:
                stream._graph_host_funcargs = []
            self.opened(live)
            if self.current_there(capture.origin):
                capture.origin.current += 1
            self.keep_out(live)
            TRACING.open(live.trace, sys._getframe(1))
        return answer

    def stream_end_capture(self, original: Callable[..., Any], stream: Any) -> Any:
        return self._end('Stream.end_capture()', stream.ptr, lambda: original(stream))

    def runtime_end_capture(self, original: Callable[..., Any], stream: int) -> Any:
        return self._end('cupy.cuda.runtime.streamEndCapture()', stream, lambda: original(stream))

    def _end(self, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with ExitStack() as afterwards, self.lock:
            self._start(check=False)
            self.spring(ptr)
            lane = self.topology.lane(ptr)
            live = None if lane is None else self.lives.get(lane.capture)
            self._may_end(call, ptr, lane, live)
            if live is None:
                return go()
            outcome = 'failed'
            try:
                with suppress(CudaCallError):  # what can't be asked stays unknown: the end itself must be reached
                    self._count(live)
                answer = self._ended(live, go)
                outcome = 'good'
                return answer
            finally:
                self.gone(live)
                if live.by_priority:
                    live.note('note', None, _UNHEEDED, live.at)
                close_recording(live, outcome)
                afterwards.callback(tell, live, None)  # those who listen may wait for threads that wait for us

    def _may_end(self, call: str, ptr: int, lane: Lane | None, live: Live | None) -> None:
        """Raise what stands against the end of the capture of a stream."""
        if live is not None and lane is not None and lane.number == 0:
            if live.memory is not None:
                self.refuse(self.judge(_O.END_CAPTURE, stream=ptr), call, ptr, VARIANTS['end-by-block'])
            if live.capture.status is CaptureStatus.ACTIVE:
                self.find_work(live)
            escaped = self.kept_out(live) if threading.get_ident() == live.thread else None
            if escaped is not None:
                raise escaped
        verdict = self.judge(_O.END_CAPTURE, stream=ptr)
        if verdict.answer.code is Code.cudaErrorStreamCaptureUnjoined and live is not None:
            raise self.unjoined(live, call)
        if verdict.answer.refused and verdict.answer.code is not Code.cudaErrorStreamCaptureInvalidated:
            self.refuse(verdict, call, ptr)

    def _ended(self, live: Live, go: Callable[[], Any]) -> Any:
        """End the capture; if the driver says that it was lost, the error says where."""
        try:
            return go()
        except RuntimeError as error:
            if _code(error) == Code.cudaErrorStreamCaptureInvalidated:
                raise self.invalidated(live) from error
            raise

    def _count(self, live: Live) -> None:
        """Before a capture ends: what it holds by then."""
        self.settle(live)
        device = self.platform.device
        with self.inside():
            info = device.capture_info(live.origin.ptr)
            if info.status is CaptureStatus.ACTIVE:
                live.recording.node_count = device.graph_node_count(info.graph)
                live.recording.edge_count = device.graph_edge_count(info.graph)


def _code(error: RuntimeError) -> int:
    """CUDA's code behind an error of ours or of CuPy's; -1 for any other."""
    return int(getattr(error, 'code', getattr(error, 'status', -1)))
