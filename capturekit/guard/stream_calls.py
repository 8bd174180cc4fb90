"""Calls on a stream that they name, or on the legacy one: copies, launches of graphs, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from capturekit.guard.allocators import Allocators, Uploads
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.captures import Parts
from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.current_streams import CurrentStreams
from capturekit.guard.entry_points import Entry
from capturekit.guard.lanes import Lanes
from capturekit.guard.manual_captures import GraphInputs
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State, handle
from capturekit.guard.verdicts import Verdicts
from capturekit.launch.host_function import HostFunction
from capturekit.model.ledger import LEGACY_HANDLES, Verdict
from capturekit.model.rules import RULES, Operation
from capturekit.model.source_line import here

_O = Operation
#: ``cudaMemcpyKind`` of copies between host and device: such a copy records the address of the host memory.
_WITH_THE_HOST = {
    1: 'what lies at its address of the host by then, which must stay as long as the graph',
    2: 'to its address of the host, which must stay as long as the graph; nothing is copied before the first launch',
}
#: By the end of a call: the rule for a copy between host and device, with the reason, which CuPy's error lacks.
_HOST_COPIES = {
    'copy_to_host_async()': 'host-read',
    'copy_from_host_async()': 'host-write',
    'copy_from_async()': 'host-write',
    'CUDAarray.copy_to()': 'host-read',
    'CUDAarray.copy_from()': 'host-write',
}


@dataclass(eq=False)
class CallsOnStreams:
    """What judges a call and makes it. The components for the kinds of calls add the steps that are theirs."""

    state: State
    verdicts: Verdicts
    allocators: Allocators
    lanes: Lanes
    callers: CallerStreams
    uploads: Uploads
    parts: Parts
    bodies: Bodies
    streams: CurrentStreams
    inputs: GraphInputs

    def start(self, ptr: int) -> OpenCapture | None:
        """Begin with a call on a stream: return this thread's good capture, and let go of the stream if it is held."""
        mine = self.verdicts.start()
        self.streams.release(ptr)
        return mine

    def make(self, verdict: Verdict, call: str, ptr: int | None, go: Callable[[], Any]) -> Any:
        """Make a call that was judged, or refuse it; then hold the current stream again, if it is one from outside."""
        try:
            return self.verdicts.carry_out(verdict, call, ptr, go)
        finally:
            self.streams.hold_again()

    def out_of_body(self, ptr: int, what: str, *why: Any, cut: tuple[str, ...] = ()) -> None:
        """Begin a new part before work that the body of a conditional node can't hold.

        ``why``: as in :meth:`Bodies.not_in_body`; ``cut``: as in :meth:`Parts.cut_on_host`.
        """
        mine = self.state.mine()
        self.bodies.not_in_body(mine, what, 'Call it before the decision, or after it.', *why)
        if mine is not None and mine.parts.check_node and (not mine.strict or self.state.ledger.lane(ptr) is not None):
            with self.state.lock:
                self.parts.cut_on_host(mine, here(), *cut)


class StreamWork(CallsOnStreams):
    """Work on a stream that the call names, or on the legacy one; launches of graphs."""

    def on_stream(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with self.state.lock:
            ptr = self.streams.meant(ptr)
            mine = self.start(ptr)
            if self.callers.is_callers(mine, ptr, call):
                raise self.callers.not_recorded(call, ptr, 'The recording has another stream in its place')
            if mine is not None and not mine.strict and self.lanes.is_outside(ptr):
                self.lanes.adapt_fork(mine, self.lanes.wrapped(ptr), here())
            verdict = self.verdicts.judge(operation, stream=ptr)
            live = self.state.open_on(ptr)
            if live is not None and verdict.allowed:
                lane = self.state.ledger.lanes[ptr]
                self.callers.in_order(live, lane)
                lane.used = True
                lane.last_use = here()
                if live.memory is not None:
                    live.memory.active(lane)
                self.allocators.refresh()
        answer = self.make(verdict, call, ptr, go)
        self.callers.in_order(mine)
        return answer

    def stream_call(self, entry: Entry, original: Callable[..., Any], *args: Any) -> Any:
        """A call on a stream that is among its arguments."""
        return self.on_stream(entry.operation, entry.call, handle(args[entry.at]), partial(original, *args))

    def captured_call(self, entry: Entry, original: Callable[..., Any], *args: Any) -> Any:
        """A call on a stream, which is work like any other where the stream is not in a capture."""
        operation = _O.WORK if self.state.ledger.lane(args[entry.at]) is None else entry.operation
        return self.on_stream(operation, entry.call, args[entry.at], partial(original, *args))

    def launch_host_func(self, entry: Entry, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        if not self.state.policy.records:  # there is no graph that keeps it
            return self.stream_call(entry, original, stream, callback, arg)
        mine = self.state.mine()
        if mine is not None and self.callers.is_callers(mine, stream.ptr, entry.call):
            stream = mine.origin

        def go() -> Any:
            live = self.state.open_on(stream.ptr)
            if live is None:
                return original(stream, callback, arg)
            if stream._graph_host_funcargs is None:
                stream._graph_host_funcargs = []  # this is another object for the lane's stream, and CuPy needs a list
            launch = 'graph.launch()' if live.memory is None else 'cap.graph.launch()'
            return original(stream, HostFunction(callback, here(), launch), arg)

        self.out_of_body(stream.ptr, 'A host function')
        answer = self.on_stream(entry.operation, entry.call, stream.ptr, go)
        live = self.state.open_on(stream.ptr)
        if live is not None:
            if stream is not live.origin:  # CuPy's graph itself keeps what is in the origin's list
                live.origin._graph_host_funcargs.extend(stream._graph_host_funcargs)
                stream._graph_host_funcargs.clear()
            lane = self.state.ledger.lane(stream.ptr)
            live.note('host', lane, f'host function {getattr(callback, "__name__", callback)!s}', here())
        return answer

    def host_func(self, entry: Entry, original: Callable[..., Any], stream: int, *args: Any) -> Any:
        if self.state.open_on(stream) is not None:
            raise self.verdicts.error(
                entry.call,
                stream,
                rule='CuPy frees what this call is given after it ran once: a second launch would use freed memory.',
                remedy='Use `stream.launch_host_func(fn, arg)`, which keeps both as long as the graph.',
            )
        return self.on_stream(entry.operation, entry.call, stream, lambda: original(stream, *args))

    def malloc_async(self, entry: Entry, original: Callable[..., Any], *args: Any) -> Any:
        if self.state.ledger.lane(args[-1]) is None:
            return self.verdicts.unsafe(entry, original, *args)
        self.out_of_body(args[-1], entry.call)
        return self.stream_call(entry, original, *args)

    def free_async(self, entry: Entry, original: Callable[..., Any], ptr: int, stream: int) -> Any:
        if self.state.ledger.lane(stream) is None:
            return self.verdicts.unsafe(entry, original, ptr, stream)
        return original(ptr, stream)  # memory of the graph is freed by a node; CUDA refuses the rest without harm

    def copy(self, entry: Entry, original: Callable[..., Any], *args: Any) -> Any:
        """Copies and memsets of ``cupy.cuda.runtime``, whose last argument is the stream."""
        answer = self.stream_call(entry, original, *args)
        live = self.state.open_on(args[-1])
        if live is not None and 'memcpy' in entry.name and args[-2] in _WITH_THE_HOST:
            text = f'{entry.call}: each launch copies {_WITH_THE_HOST[args[-2]]}'
            live.note('note', self.state.ledger.lane(args[-1]), text, here())
        return answer

    def legacy_work(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Copies and memsets that take no stream: they use the legacy one."""
        self._read_elsewhere(entry, *args)
        with self.state.lock:
            self.verdicts.start()
            verdict = self.verdicts.judge(_O.LEGACY_WORK, stream=LEGACY_HANDLES[0])
            if verdict.rule is not None:
                verdict = replace(verdict, rule=replace(verdict.rule, remedy=_with_a_stream(entry)))
        return self.verdicts.carry_out(verdict, entry.call, LEGACY_HANDLES[0], lambda: original(*args, **kwargs))

    def pointer_copy(self, entry: Entry, original: Callable[..., Any], pointer: Any, *args: Any, **kwargs: Any) -> Any:
        """Asynchronous copies and memsets of a MemoryPointer, whose stream may be given."""
        self._read_elsewhere(entry, pointer)
        stream = kwargs.get('stream', args[2] if len(args) > 2 else None)
        mine = self.state.mine()
        if mine is not None and stream is not None and self.callers.is_callers(mine, stream.ptr, entry.call):
            args = tuple(mine.origin if one is stream else one for one in args)
            kwargs = {name: mine.origin if one is stream else one for name, one in kwargs.items()}
            stream = mine.origin
        if mine is not None and not hasattr(args[0] if args else kwargs.get('mem'), 'device_id'):
            self._refuse_host_copy(entry.call, stream)
        if stream is None:
            return original(pointer, *args, **kwargs)
        return self.on_stream(_O.WORK, entry.call, stream.ptr, lambda: original(pointer, *args, **kwargs))

    def texture_copy(
        self, entry: Entry, original: Callable[..., Any], array: Any, other: Any, stream: Any = None
    ) -> Any:
        """``CUDAarray.copy_from`` and ``copy_to``: copies on the current stream, or on the one that is given.

        CUDA crashes when it instantiates a graph that copies from or to a CUDA array which is gone: the graph keeps it.
        """
        mine = self.state.mine()
        if mine is not None and isinstance(other, np.ndarray):
            self._refuse_host_copy(entry.call, stream)
        if mine is not None and mine.memory is not None:
            mine.memory.keep((array, other))
        if stream is None:
            return original(array, other)
        return self.on_stream(_O.WORK, entry.call, stream.ptr, lambda: original(array, other, stream))

    def _refuse_host_copy(self, call: str, stream: Any) -> None:
        """Refuse a copy between host and device on a lane."""
        where = stream if stream is not None else self.state.current_stream()
        rule = next((RULES[name] for end, name in _HOST_COPIES.items() if call.endswith(end)), None)
        if rule is not None and self.state.ledger.lane(where.ptr) is not None:
            with self.state.lock:
                self.verdicts.start()
                verdict = self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=where.ptr)
                raise self.verdicts.refusal(verdict, call, where.ptr, rule)

    def _read_elsewhere(self, entry: Entry, pointer: Any = None, *_rest: Any) -> None:
        if 'copy_to_host' in entry.name:
            with self.state.lock:
                self.verdicts.refuse_read_elsewhere(entry.call, pointer.mem)

    def graph_call(self, entry: Entry, original: Callable[..., Any], graph: Any, stream: Any = None) -> Any:
        """Launch or upload a graph, on the current stream or on the one that is given."""
        if entry.operation is _O.GRAPH_LAUNCH:
            self.inputs.launched(graph)
        ptr = handle(self.state.current_stream() if stream is None else stream)
        return self.on_stream(entry.operation, entry.call, ptr, lambda: original(graph, stream))

    def launching(self, upload: bool, ptr: int) -> None:
        """Judge the launch or upload of a capturekit graph on a stream, before it is made."""
        policy = self.state.inside.policy
        if policy is not None and (self.state.mine() is None or not policy.calls_only):
            policy.launching(upload, ptr)
            return
        operation, call = (_O.GRAPH_UPLOAD, 'Graph.upload()') if upload else (_O.GRAPH_LAUNCH, 'Graph.launch()')
        self.on_stream(operation, call, ptr, lambda: None)

    def plain_launch(self, graph: Any) -> Callable[[], None]:
        """CuPy's own launch of a graph, without the wrapper, as a bound method."""
        bound: Callable[[], None] = self.state.installation.originals['cupy.cuda.graph.Graph.launch'].__get__(graph)
        return bound


def _with_a_stream(entry: Entry) -> str:
    """What to write instead of a copy or memset that takes no stream."""
    if entry.name in ('copy_from_host', 'copy_to_host'):
        return RULES['host-write' if 'from' in entry.name else 'host-read'].remedy
    if entry.name == 'memcpyPeer':
        return RULES['peer-copy'].remedy
    if 'runtime.' in entry.call:
        return f'Use `{entry.name}Async`, whose last argument is a stream: `cap.stream.ptr`.'
    return f'Use `{entry.name}_async`, which goes to the current stream, or to the one that it is given.'
