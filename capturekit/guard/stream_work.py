"""Work on a stream that the call names; calls that the mode of a capture keeps away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capturekit.guard.allocators import Allocators
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.lanes import Lanes
from capturekit.guard.outside_streams import OutsideStreams
from capturekit.guard.parts import Parts
from capturekit.guard.placeholders import Placeholders
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.launch.host_function import HostFunction
from capturekit.model import errors
from capturekit.model.rules import Operation
from capturekit.model.source_line import here

_O = Operation


@dataclass(eq=False)
class StreamWork:
    """Work on a stream that the call names; calls that the mode of a capture keeps away."""

    state: State
    verdicts: Verdicts
    allocators: Allocators
    lanes: Lanes
    callers: CallerStreams
    parts: Parts
    bodies: Bodies
    outside: OutsideStreams
    placeholders: Placeholders

    def on_stream(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with self.state.lock:
            ptr = self.placeholders.meant(ptr)
            mine = self.verdicts.start()
            self.outside.release(ptr)
            if self.callers.is_callers(mine, ptr, call):
                raise self.callers.not_recorded(call, ptr, 'The recording has another stream in its place')
            if mine is not None and not mine.strict and self.lanes.is_outside(ptr):
                self.lanes.adapt_fork(mine, self.lanes.wrapped(ptr), here())
            verdict = self.verdicts.judge(operation, stream=ptr)
            lane = self.state.ledger.lane(ptr)
            if lane is not None and lane.capture in self.state.lives and verdict.allowed:
                live = self.state.live_of(lane)
                self.callers.in_order(live, lane)
                lane.used = True
                lane.last_use = here()
                if live.memory is not None:
                    live.memory.active(lane)
                self.allocators.refresh()
        try:
            answer = self.verdicts.carry_out(verdict, call, ptr, go)
        finally:
            self.outside.hold_again()
        if mine is not None:
            self.callers.in_order(mine)
        return answer

    def work_on(self, ptr: int, call: str, go: Callable[[], Any]) -> Any:
        """Judge and make a call with which capturekit puts work on a stream for the user."""
        return self.on_stream(_O.WORK, call, ptr, go)

    def stream_add_callback(self, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        go = lambda: original(stream, callback, arg)  # noqa: E731
        return self.on_stream(_O.STREAM_ADD_CALLBACK, 'Stream.add_callback()', stream.ptr, go)

    def runtime_add_callback(self, original: Callable[..., Any], stream: int, *args: Any) -> Any:
        go = lambda: original(stream, *args)  # noqa: E731
        return self.on_stream(_O.STREAM_ADD_CALLBACK, 'cupy.cuda.runtime.streamAddCallback()', stream, go)

    def stream_launch_host_func(self, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        mine = self.state.mine()
        if mine is not None and self.callers.is_callers(mine, stream.ptr, 'Stream.launch_host_func()'):
            stream = mine.origin

        def go() -> Any:
            lane = self.state.ledger.lane(stream.ptr)
            if lane is None or lane.capture not in self.state.lives:
                return original(stream, callback, arg)
            if stream._graph_host_funcargs is None:
                stream._graph_host_funcargs = []  # this is another object for the lane's stream, and CuPy needs a list
            launch = 'graph.launch()' if self.state.live_of(lane).memory is None else 'cap.graph.launch()'
            return original(stream, HostFunction(callback, here(), launch), arg)

        self._out_of_body(stream.ptr, 'A host function')
        answer = self.on_stream(_O.LAUNCH_HOST_FUNC, 'Stream.launch_host_func()', stream.ptr, go)
        lane = self.state.ledger.lane(stream.ptr)
        if lane is not None and lane.capture in self.state.lives:
            live = self.state.live_of(lane)
            if stream is not live.origin:  # CuPy's graph itself keeps what is in the origin's list
                live.origin._graph_host_funcargs.extend(stream._graph_host_funcargs)
                stream._graph_host_funcargs.clear()
            live.note('host', lane, f'host function {getattr(callback, "__name__", callback)!s}', here())
        return answer

    def _out_of_body(self, ptr: int, what: str) -> None:
        """Begin a new part before work that the body of a conditional node can't hold."""
        mine = self.state.mine()
        self.bodies.not_in_body(mine, what, 'Call it before the decision, or after it.')
        if mine is not None and mine.parts.check_node and (not mine.strict or self.state.ledger.lane(ptr) is not None):
            with self.state.lock:
                self.parts.cut_on_host(mine, here())

    def runtime_host_func(self, original: Callable[..., Any], stream: int, *args: Any) -> Any:
        call = 'cupy.cuda.runtime.launchHostFunc()'
        lane = self.state.ledger.lane(stream)
        if lane is not None and lane.capture in self.state.lives:
            raise errors.UnsupportedCallError(
                call,
                stream=stream,
                lane=lane.number,
                subject=self.verdicts.subject(stream),
                location=here(),
                rule='CuPy frees what this call is given after it ran once: a second launch would use freed memory.',
                remedy='Use `stream.launch_host_func(fn, arg)`, which keeps both as long as the graph.',
            )
        return self.on_stream(_O.LAUNCH_HOST_FUNC, call, stream, lambda: original(stream, *args))

    def runtime_peer_copy(self, original: Callable[..., Any], *args: Any) -> Any:
        call = 'cupy.cuda.runtime.memcpyPeerAsync()'
        return self._captured_only(_O.PEER_COPY, call, args[-1], lambda: original(*args))

    def runtime_prefetch(self, original: Callable[..., Any], *args: Any) -> Any:
        call = 'cupy.cuda.runtime.memPrefetchAsync()'
        return self._captured_only(_O.PREFETCH, call, args[-1], lambda: original(*args))

    def _captured_only(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        inside = self.state.ledger.lane(ptr) is not None
        return self.on_stream(operation if inside else _O.WORK, call, ptr, go)

    def runtime_malloc_async(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        """``mallocAsync`` and ``mallocFromPoolAsync``, whose last argument is the stream."""
        if self.state.ledger.lane(args[-1]) is None:
            return self.verdicts.unsafe(call, original, *args)
        self._out_of_body(args[-1], f'cupy.cuda.{call}')
        return self.on_stream(_O.MALLOC_ASYNC, f'cupy.cuda.{call}', args[-1], lambda: original(*args))

    def runtime_free_async(self, original: Callable[..., Any], ptr: int, stream: int) -> Any:
        if self.state.ledger.lane(stream) is None:
            return self.verdicts.unsafe('runtime.freeAsync()', original, ptr, stream)
        return original(ptr, stream)  # memory of the graph is freed by a node; CUDA refuses the rest without harm
