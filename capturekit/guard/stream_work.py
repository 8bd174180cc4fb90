"""Work on a stream that the call names, or on the legacy one: copies, memsets, host functions, launches of graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from capturekit.guard.allocators import Allocators
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.graph_inputs import GraphInputs
from capturekit.guard.lanes import Lanes
from capturekit.guard.outside_streams import OutsideStreams, Placeholders
from capturekit.guard.parts import Parts
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.launch.host_function import HostFunction
from capturekit.model import errors
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import RULES, Operation
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


#: ``cudaMemcpyKind`` of copies between host and device: such a copy records the address of the host memory.
_WITH_THE_HOST = {
    1: 'what lies at its address of the host by then, which must stay as long as the graph',
    2: 'to its address of the host, which must stay as long as the graph; nothing is copied before the first launch',
}


class Copies:
    """Copies and memsets, on a stream that the call names or on the legacy one."""

    def __init__(self, state: State, verdicts: Verdicts, callers: CallerStreams, work: StreamWork) -> None:
        self.state = state
        self.verdicts = verdicts
        self.callers = callers
        self.work = work

    def runtime_work_last(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        """Copies and memsets of ``cupy.cuda.runtime``, whose last argument is the stream."""
        answer = self.work.on_stream(_O.WORK, f'cupy.cuda.{call}', args[-1], lambda: original(*args))
        lane = self.state.ledger.lane(args[-1])
        if lane is not None and lane.capture in self.state.lives and 'memcpy' in call and args[-2] in _WITH_THE_HOST:
            text = f'cupy.cuda.{call}: each launch copies {_WITH_THE_HOST[args[-2]]}'
            self.state.live_of(lane).note('note', lane, text, here())
        return answer

    def runtime_legacy(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        return self._legacy_work(f'cupy.cuda.{call}', lambda: original(*args))

    def _legacy_work(self, call: str, go: Callable[[], Any]) -> Any:
        with self.state.lock:
            self.verdicts.start()
            verdict = self.verdicts.judge(_O.LEGACY_WORK, stream=LEGACY_HANDLES[0])
            if verdict.rule is not None:
                verdict = replace(verdict, rule=replace(verdict.rule, remedy=_with_a_stream(call)))
        return self.verdicts.carry_out(verdict, call, LEGACY_HANDLES[0], go)

    def pointer_copy(self, call: str, original: Callable[..., Any], pointer: Any, *args: Any, **kwargs: Any) -> Any:
        """Asynchronous copies and memsets of a MemoryPointer, whose stream may be given."""
        self._read_elsewhere(call, pointer)
        stream = kwargs.get('stream', args[2] if len(args) > 2 else None)
        mine = self.state.mine()
        if mine is not None and stream is not None and self.callers.is_callers(mine, stream.ptr, call):
            args = tuple(mine.origin if one is stream else one for one in args)
            kwargs = {name: mine.origin if one is stream else one for name, one in kwargs.items()}
            stream = mine.origin
        if self.state.mine() is not None:
            where = stream if stream is not None else self.state.platform.cupy.cuda.get_current_stream()
            source = args[0] if args else kwargs.get('mem')
            if self.state.ledger.lane(where.ptr) is not None and not hasattr(source, 'device_id'):
                self._refuse_host_copy(call, where.ptr)
        if stream is None:
            return original(pointer, *args, **kwargs)
        return self.work.on_stream(_O.WORK, call, stream.ptr, lambda: original(pointer, *args, **kwargs))

    def texture_copy(self, call: str, original: Callable[..., Any], array: Any, other: Any, stream: Any = None) -> Any:
        """``CUDAarray.copy_from`` and ``copy_to``: copies on the current stream, or on the one that is given.

        CUDA crashes when it instantiates a graph that copies from or to a CUDA array which is gone: the graph keeps it.
        """
        mine = self.state.mine()
        if mine is not None:
            where = stream if stream is not None else self.state.platform.cupy.cuda.get_current_stream()
            if isinstance(other, np.ndarray) and self.state.ledger.lane(where.ptr) is not None:
                self._refuse_host_copy(call, where.ptr)
            if mine.memory is not None:
                mine.memory.keep((array, other))
        if stream is None:
            return original(array, other)
        return self.work.on_stream(_O.WORK, call, stream.ptr, lambda: original(array, other, stream))

    def _refuse_host_copy(self, call: str, ptr: int) -> None:
        """Refuse a copy between host and device, with the line and the reason, which CuPy's error lacks."""
        rules = {
            'copy_to_host_async': 'host-read',
            'copy_from_host_async': 'host-write',
            'copy_from_async': 'host-write',
            'CUDAarray.copy_to': 'host-read',
            'CUDAarray.copy_from': 'host-write',
        }
        rule = next((RULES[name] for part, name in rules.items() if part in call), None)
        if rule is not None:
            with self.state.lock:
                self.verdicts.start()
                self.verdicts.refuse(self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=ptr), call, ptr, rule)

    def pointer_sync(self, call: str, original: Callable[..., Any], pointer: Any, *args: Any, **kwargs: Any) -> Any:
        """Synchronous copies and memsets of a MemoryPointer: they use the legacy stream."""
        self._read_elsewhere(call, pointer)
        return self._legacy_work(call, lambda: original(pointer, *args, **kwargs))

    def _read_elsewhere(self, call: str, pointer: Any) -> None:
        if 'copy_to_host' in call:
            with self.state.lock:
                self.verdicts.refuse_read_elsewhere(call, pointer.mem)


def _with_a_stream(call: str) -> str:
    """What to write instead of a copy or memset that takes no stream."""
    name = call.rpartition('.')[2].rstrip('()')
    if name in ('copy_from_host', 'copy_to_host'):
        return RULES['host-write' if 'from' in name else 'host-read'].remedy
    if name == 'memcpyPeer':
        return RULES['peer-copy'].remedy
    if 'runtime.' in call:
        return f'Use `{name}Async`, whose last argument is a stream: `cap.stream.ptr`.'
    return f'Use `{name}_async`, which goes to the current stream, or to the one that it is given.'


class GraphLaunches:
    """Launches and uploads of graphs."""

    def __init__(self, state: State, work: StreamWork, inputs: GraphInputs) -> None:
        self.state = state
        self.work = work
        self.inputs = inputs

    def graph_launch(self, original: Callable[..., Any], graph: Any, stream: Any = None) -> Any:
        self.inputs.launched(graph)
        ptr = self.state.platform.cupy.cuda.get_current_stream().ptr if stream is None else stream.ptr
        return self.work.on_stream(_O.GRAPH_LAUNCH, 'Graph.launch()', ptr, lambda: original(graph, stream))

    def graph_upload(self, original: Callable[..., Any], graph: Any, stream: Any = None) -> Any:
        ptr = self.state.platform.cupy.cuda.get_current_stream().ptr if stream is None else stream.ptr
        return self.work.on_stream(_O.GRAPH_UPLOAD, 'Graph.upload()', ptr, lambda: original(graph, stream))

    def launching(self, upload: bool, ptr: int) -> None:
        """Judge the launch or upload of a capturekit graph on a stream, before it is made."""
        substitute = self.state.inside.substitute
        if substitute is not None and (self.state.mine() is None or not substitute.asks_calls_only):
            substitute.launching(upload, ptr)
            return
        operation, call = (_O.GRAPH_UPLOAD, 'Graph.upload()') if upload else (_O.GRAPH_LAUNCH, 'Graph.launch()')
        self.work.on_stream(operation, call, ptr, lambda: None)

    def plain_launch(self, graph: Any) -> Callable[[], None]:
        """CuPy's own launch of a graph, without the wrapper, as a bound method."""
        bound: Callable[[], None] = self.state.installation.originals['cupy.cuda.graph.Graph.launch'].__get__(graph)
        return bound

    def runtime_launch(self, original: Callable[..., Any], graph: int, stream: int) -> Any:
        self.inputs.ran(graph)
        go = lambda: original(graph, stream)  # noqa: E731
        return self.work.on_stream(_O.GRAPH_LAUNCH, 'cupy.cuda.runtime.graphLaunch()', stream, go)

    def runtime_upload(self, original: Callable[..., Any], graph: int, stream: int) -> Any:
        go = lambda: original(graph, stream)  # noqa: E731
        return self.work.on_stream(_O.GRAPH_UPLOAD, 'cupy.cuda.runtime.graphUpload()', stream, go)
