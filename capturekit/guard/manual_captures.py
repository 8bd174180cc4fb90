"""Captures begun and ended by hand: by the script's own ``begin_capture`` and ``end_capture``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from capturekit.guard.by_hand import ByHand
from capturekit.guard.captures import Captures, driver_mode
from capturekit.guard.graph_inputs import GraphInputs, TouchedMemory
from capturekit.guard.lanes import Lanes
from capturekit.guard.left_open import begun_in
from capturekit.guard.line_trace import TRACING, Trace
from capturekit.guard.manual_remedies import without_cap
from capturekit.guard.open_capture import OpenCapture, close_recording, new_recording, tell_listeners
from capturekit.guard.outside_streams import OutsideStreams
from capturekit.guard.state import State
from capturekit.guard.unjoined import Joins
from capturekit.guard.verdicts import Verdicts
from capturekit.model.cleanup import Uncollected
from capturekit.model.counters import LOG
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.ledger import Lane
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus, Code, Mode, Operation
from capturekit.model.source_line import Place, here, raised_at

_O = Operation
_WITHOUT_PRIORITIES = (
    'lanes have different priorities, and CuPy instantiates graphs without them: `with ck.capture()` uses them'
)


@dataclass(eq=False)
class ManualCaptures:
    """Follows captures that the script begins and ends by hand."""

    state: State
    verdicts: Verdicts
    captures: Captures
    lanes: Lanes
    joins: Joins
    outside: OutsideStreams
    by_hand: ByHand
    inputs: GraphInputs

    def stream_begin_capture(self, original: Callable[..., Any], stream: Any, mode: Any = None) -> Any:
        real = self._driver_mode(mode)
        return self._begin('Stream.begin_capture()', stream.ptr, mode, lambda: original(stream, real), stream)

    def runtime_begin_capture(self, original: Callable[..., Any], stream: int, mode: int = 2) -> Any:
        real = self._driver_mode(mode)
        return self._begin('cupy.cuda.runtime.streamBeginCapture()', stream, mode, lambda: original(stream, real))

    def _driver_mode(self, mode: Any) -> Any:
        """The mode in which the driver captures; the script's own where it is only observed or linted."""
        if mode is None or self.state.inside.substitute is not None:
            return mode
        return int(driver_mode(Mode(int(mode))))

    def _begin(self, call: str, ptr: int, mode: Any, go: Callable[[], Any], stream: Any = None) -> Any:
        with ExitStack() as undo, self.state.lock:
            self.verdicts.give_way()
            self.verdicts.start()
            self.outside.release(ptr)
            verdict = self.verdicts.judge(_O.BEGIN_CAPTURE, stream=ptr)
            if verdict.answer.refused:
                legacy = verdict.rule is RULES['legacy-stream']
                self.verdicts.refuse(verdict, call, ptr, VARIANTS['begin-on-legacy-stream'] if legacy else None)
            with self.state.inside:
                blocking = not self.state.platform.device.stream_flags(ptr) & 1
                priority = self.state.platform.device.stream_priority(ptr)
            device = self.lanes.device_of(stream or self.lanes.wrapped(ptr))
            uncollected = Uncollected()  # the destructor of a garbage object may make a call that loses the capture
            uncollected.__enter__()
            undo.callback(uncollected.let_go)
            answer = go()
            at = here()
            real = Mode.RELAXED if mode is None else Mode(int(mode))
            me = threading.get_ident()
            capture = self.state.ledger.begin(ptr, real, me, blocking=blocking, at=at, device=device)
            capture.origin.priority = priority
            recording = new_recording(self.state.platform, real, strict=True)
            if stream is None:
                stream = self.lanes.wrapped(ptr)
            live = OpenCapture(self.state.platform, capture, True, stream, None, recording, threading.get_ident(), at)
            live.active_at, live.uncollected, live.begun_in = at, uncollected, begun_in()
            live.trace = Trace(self.state.platform.device.last_nodes(), ptr, self.lanes.lane_number, at)
            if getattr(stream, '_graph_host_funcargs', None) is None:
                stream._graph_host_funcargs = []
            self.captures.opened(live)
            live.begun_current = self.lanes.is_current(capture.origin)
            if live.begun_current:
                self.lanes.make_current(live, ptr)
            self.by_hand.keep_out(live)
            TRACING.open(live.trace, sys._getframe(1))
            undo.pop_all()
        return answer

    def stream_end_capture(self, original: Callable[..., Any], stream: Any) -> Any:
        return self._end('Stream.end_capture()', stream.ptr, lambda: original(stream))

    def runtime_end_capture(self, original: Callable[..., Any], stream: int) -> Any:
        return self._end('cupy.cuda.runtime.streamEndCapture()', stream, lambda: original(stream))

    def _end(self, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with ExitStack() as afterwards, self.state.lock:
            self.verdicts.start(check=False)
            self.outside.release(ptr)
            lane = self.state.ledger.lane(ptr)
            live = None if lane is None else self.state.lives.get(lane.capture)
            self._may_end(call, ptr, lane, live)
            if live is None:
                return go()
            outcome, handled = 'failed', sys.exception()
            try:
                used = TouchedMemory()
                with suppress(CudaCallError):  # what can't be read stays unknown: the capture must still be ended
                    self._count(live)
                    used = self.inputs.found(live)
                self.joins.idle(live)
                answer = self._ended(live, go)
                self.inputs.made(answer, used, live.at)
                outcome = 'good'
                return answer
            finally:
                self.captures.gone(live)
                live.ends_in_cleanup(handled)
                if live.by_priority:
                    live.note('note', None, _WITHOUT_PRIORITIES, live.at)
                if outcome == 'good':
                    _say_notes(live)
                close_recording(live, outcome)
                afterwards.callback(
                    tell_listeners, live, None
                )  # after the lock: listeners may wait for threads that wait for it

    def never_ended(self, live: OpenCapture, error: BaseException | None) -> None:
        """Forget a capture that the program has left open, and tell the listeners of it as of one that failed.

        ``error``: what ended the program, or None.
        """
        with self.state.lock:
            if live.memory is None:
                with suppress(CudaCallError):
                    self._count(live)
            self.captures.gone(live)
        if live.memory is not None:
            return  # a block's own end tells of it
        if isinstance(error, CaptureError):
            live.note('finding', None, f'{type(error).__name__}: {error}', error.location)
        elif error is not None:
            live.note('finding', None, f'{type(error).__name__}: {error}', raised_at(error) or live.active_at)
        else:
            live.note('finding', None, 'the program ended before end_capture was called', live.at)
        close_recording(live, 'failed')
        tell_listeners(live, None)

    def _may_end(self, call: str, ptr: int, lane: Lane | None, live: OpenCapture | None) -> None:
        """Raise an error if this call can not end the capture."""
        if live is not None and lane is not None and lane.number == 0:
            if live.memory is not None:
                self.verdicts.refuse(
                    self.verdicts.judge(_O.END_CAPTURE, stream=ptr), call, ptr, VARIANTS['end-by-block']
                )
            if self._was_lost(live):
                return  # what was kept out was lost with it, and the end says where
            self.joins.find_work(live)
            escaped = self.by_hand.kept_out(live) if threading.get_ident() == live.thread else None
            if escaped is not None:
                raise escaped
        verdict = self.verdicts.judge(_O.END_CAPTURE, stream=ptr)
        if verdict.answer.code is Code.cudaErrorStreamCaptureUnjoined and live is not None:
            raise self.joins.unjoined(live, call)
        if verdict.answer.refused and verdict.answer.code is not Code.cudaErrorStreamCaptureInvalidated:
            self.verdicts.refuse(verdict, call, ptr)

    def _was_lost(self, live: OpenCapture) -> bool:
        """Whether a capture was lost, as far as the ledger or the driver know."""
        if live.lost:
            return True
        with self.state.inside:
            return self.state.platform.device.stream_status(live.origin.ptr) is CaptureStatus.INVALIDATED

    def _ended(self, live: OpenCapture, go: Callable[[], Any]) -> Any:
        """End the capture; if the driver reports that it was lost, raise an error that says where."""
        try:
            return go()
        except RuntimeError as error:
            if _code(error) == Code.cudaErrorStreamCaptureInvalidated:
                lost = self.verdicts.invalidated(live)
                lost.remedy = without_cap(lost.remedy)  # when the wrapper hears of it, the capture is forgotten
                raise lost from error
            raise

    def _count(self, live: OpenCapture) -> None:
        """Count the nodes and edges of a capture before it ends."""
        self.captures.settle(live)
        device = self.state.platform.device
        with self.state.inside:
            info = device.capture_info(live.origin.ptr)
            if info.status is CaptureStatus.ACTIVE:
                live.recording.node_count = device.graph_node_count(info.graph)
                live.recording.edge_count = device.graph_edge_count(info.graph)


def _say_notes(live: OpenCapture) -> None:
    """Log what was noted in a capture that was begun by hand: its script has no recording to read it in."""
    for step in live.recording.steps:
        if step.kind == 'note':
            LOG.warning('%s: %s', Place.from_json(step.at) or live.at, step.text)


def _code(error: RuntimeError) -> int:
    """CUDA's code in an error of capturekit or CuPy; -1 for other errors."""
    return int(getattr(error, 'code', getattr(error, 'status', -1)))
