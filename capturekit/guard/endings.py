"""Captures begun and ended by hand; and at every end, who was not joined."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from capturekit import errors
from capturekit.errors import CudaCallError
from capturekit.guard.arrays import Arrays
from capturekit.guard.live import Live, new_recording
from capturekit.places import Place, here
from capturekit.rules import RULES, CaptureStatus, Code, Mode, Operation, Rule
from capturekit.topology import Lane

_O = Operation


class Endings(Arrays):
    """Captures begun and ended by hand; and at every end, who was not joined."""

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
            answer = go()
            at = here()
            real = Mode.RELAXED if mode is None else Mode(int(mode))
            capture = self.topology.begin(ptr, real, threading.get_ident(), blocking=blocking, at=at)
            recording = new_recording(self.platform, real, strict=True)
            if stream is None:
                stream = self._wrapped(ptr)
            live = Live(self.platform, capture, True, stream, None, recording, threading.get_ident(), at)
            live.active_at = at
            if getattr(stream, '_graph_host_funcargs', None) is None:
                stream._graph_host_funcargs = []
            self.opened(live)
            if self.platform.cupy.cuda.get_current_stream().ptr == ptr:
                capture.origin.current += 1
        return answer

    def stream_end_capture(self, original: Callable[..., Any], stream: Any) -> Any:
        return self._end('Stream.end_capture()', stream.ptr, lambda: original(stream))

    def runtime_end_capture(self, original: Callable[..., Any], stream: int) -> Any:
        return self._end('cupy.cuda.runtime.streamEndCapture()', stream, lambda: original(stream))

    def _end(self, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with self.lock:
            self._start(check=False)
            self.spring(ptr)
            lane = self.topology.lane(ptr)
            live = None if lane is None else self.lives.get(lane.capture)
            if live is not None and live.memory is not None and lane is not None and lane.number == 0:
                verdict = self.judge(_O.END_CAPTURE, stream=ptr)
                rule = Rule(
                    'end-by-block', errors.UnmatchedError, 'This capture belongs to a `with ck.capture()` block',
                    'Leave the block instead: its end is the end of the capture.',
                )  # fmt: skip
                self.refuse(verdict, call, ptr, rule)
            if (
                live is not None
                and live.capture.status is CaptureStatus.ACTIVE
                and lane is not None
                and not lane.number
            ):
                self.find_work(live)
            verdict = self.judge(_O.END_CAPTURE, stream=ptr)
            if verdict.answer.code is Code.cudaErrorStreamCaptureUnjoined and live is not None:
                raise self.unjoined(live, call)
            if verdict.answer.refused and verdict.answer.code is not Code.cudaErrorStreamCaptureInvalidated:
                self.refuse(verdict, call, ptr)
            try:
                return go()
            except (CudaCallError, RuntimeError) as error:
                if live is not None and 'Invalidated' in str(error):
                    raise self.invalidated(live) from error
                raise
            finally:
                if live is not None:
                    self.gone(live)

    def find_work(self, live: Live) -> None:
        """Ask the driver which lanes hold work that the origin does not come after, and tell the topology."""
        capture = live.capture
        if len(capture.lanes) == 1:
            return
        device = self.platform.device
        with self.inside():
            info = device.capture_info(capture.origin.stream)
            loose: list[tuple[Lane, set[int]]] = []
            for lane in capture.lanes[1:]:
                left = set(device.capture_info(lane.stream).dependencies) - set(info.dependencies)
                joined = capture.origin.clock.get(lane.number, 0) == lane.segment - 1
                if left and not (joined and left <= set(lane.nodes)):
                    loose.append((lane, left))
            if not loose:
                return
            before = _ancestors(info.dependencies, device.graph_edges(info.graph))
        for lane, left in loose:
            if not left <= before:
                lane.worked = lane.segment
                lane.used = True

    def unjoined(self, live: Live, call: str = 'The end of the capture') -> errors.UnjoinedError:
        """The error that names every lane left unjoined."""
        lanes = live.capture.unjoined()
        stories = []
        for lane in lanes:
            parent = live.capture.lanes[lane.parent or 0]
            last = f', last used at {lane.last_use}' if lane.last_use and len(lanes) > 1 else ''
            again = f'; it was joined at {lane.joined_at} and then worked on again' if lane.joined_at else ''
            stories.append(
                {
                    'lane': lane.number,
                    'stream': lane.stream,
                    'forked_at': lane.forked_at,
                    'last_use': lane.last_use,
                    'joined_at': lane.joined_at,
                    'text': f'lane {lane.number} (stream {lane.stream:#x}) forked from lane {parent.number} '
                    f'at {lane.forked_at}{last}{again}',
                }
            )
        names = '; '.join(str(s['text']) for s in stories)
        many = 's' if len(lanes) != 1 else ''
        error = errors.UnjoinedError(
            f'{len(lanes)} lane{many} left unjoined: {names}',
            stream=lanes[0].stream if lanes else None,
            lane=lanes[0].number if lanes else None,
            location=here() if len(lanes) != 1 else _place(lanes[0].last_use),
            rule=f'{RULES["unjoined"].says} ({Code.cudaErrorStreamCaptureUnjoined.name} would follow, '
            'and the graph would be lost).',
            remedy='Join each after its last work: `cap.join(stream)`, or `origin.wait_event(stream.record())`.',
            cuda_error=Code.cudaErrorStreamCaptureUnjoined.name,
        )
        error.lanes = stories
        return error

    def join_all(self, live: Live) -> None:
        """Adapting mode: join what is left to the origin."""
        at = here()
        for lane in live.capture.unjoined():
            event = self._record_on(live, lane, at)
            self._wait_on(live, live.capture.origin, event, at)
            lane.joined_at = at
            live.note('adapted', lane, f'lane {lane.number}, left unjoined, was joined to the origin', at)


def _ancestors(nodes: tuple[int, ...], edges: list[tuple[int, int]]) -> set[int]:
    parents: dict[int, list[int]] = {}
    for a, b in edges:
        parents.setdefault(b, []).append(a)
    seen: set[int] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(parents.get(node, ()))
    return seen


def _place(at: object) -> Place | None:
    return at if isinstance(at, Place) else here()
