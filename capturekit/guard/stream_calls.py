"""Calls on streams and events that they name, or on the legacy stream.

Copies, launches of graphs and callbacks; waits of the host for streams, events and devices; and collectives of NCCL
(``cupy.cuda.nccl``). NCCL records a collective on a captured stream as a kernel, between two nodes that keep the
collectives of one communicator in order. From then on the graph uses the communicators: CUDA and NCCL hold them as long
as an executable graph lives, and ``ncclCommDestroy`` waits forever for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from capturekit.driver.cuda import Platform
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
from capturekit.model import errors
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import LEGACY_HANDLES, Lane, Verdict
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus, Operation
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

    def on_stream(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        """Judge and make work on a stream."""
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
                lane.last_use = here()
                self._used(live, lane)
                self.allocators.refresh()
        answer = self.make(verdict, call, ptr, go)
        self.callers.in_order(mine)
        return answer

    @staticmethod
    def _used(live: OpenCapture, lane: Lane) -> None:
        """Note that a lane got work."""
        lane.used = True
        if live.memory is not None:
            live.memory.active(lane)

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
        if policy is not None and (self.state.mine() is None or not policy.holds):
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


_OWN = 'A wait of capturekit for the device'
_LEGACY = {
    _O.STREAM_SYNCHRONIZE: VARIANTS['wait-for-legacy-stream'],
    _O.STREAM_QUERY: VARIANTS['query-legacy-stream'],
}


class HostWaits(CallsOnStreams):
    """The host waiting for, or asking about, streams, events and the device."""

    def stream_wait(self, entry: Entry, original: Callable[[Any], Any], stream: Any) -> Any:
        """The host waits for a stream, or asks whether its work is done."""
        operation, call = entry.operation, entry.call
        with self.state.lock:
            ptr = self.streams.meant(handle(stream))
            mine = self.start(ptr)
            if mine is not None and mine.caller is not None:
                return self._caller_waits(mine, operation, call, ptr)
            verdict = self.verdicts.judge(operation, stream=ptr)
            if mine is not None and ptr in LEGACY_HANDLES:
                verdict = replace(verdict, rule=_LEGACY[operation])
                if not verdict.lost and (mine.strict or operation is not _O.STREAM_SYNCHRONIZE):
                    raise self.verdicts.refusal(verdict, call, ptr)
            if operation is _O.STREAM_SYNCHRONIZE and mine is not None and not mine.strict:
                lane = self.state.ledger.lane(ptr)
                if lane is not None and lane.capture is mine.capture:
                    return self._adapt_wait(mine, [lane], f'{call} of lane {lane.number} became a join')
                if ptr in LEGACY_HANDLES:
                    return self._adapt_wait(mine, mine.capture.lanes, f'{call} became a join of all lanes')
        return self.make(verdict, call, ptr, lambda: original(stream))

    def _caller_waits(self, live: OpenCapture, operation: Operation, call: str, ptr: int) -> None:
        """Record that a graphed function waits for a stream. The host will wait so around each launch."""
        if operation is not _O.STREAM_SYNCHRONIZE:
            raise self.callers.not_recorded(
                call, ptr, 'Whether work is done differs from call to call', 'Wait for it instead.'
            )
        callers = self.callers.is_callers(live, ptr, call)
        if not callers and self.lanes.is_outside(ptr):
            self.lanes.adapt_fork(live, self.lanes.wrapped(ptr), here())
        null = self.callers.null_there(live) if ptr in LEGACY_HANDLES else None
        lane = live.capture.origin if callers else null or self.state.ledger.lane(ptr)
        assert lane is not None
        self._adapt_wait(live, [lane, *self.callers.implied(live, lane)], f'{call} of lane {lane.number} became a join')

    def _adapt_wait(self, live: OpenCapture, lanes: list[Lane], text: str, *waited: Any) -> None:
        """Turn the host's wait for lanes, or for events, into a join: what any lane records next comes after them."""
        if live.caller is not None:
            live.caller.waits = True
        at = here()
        events = [*waited, *[self.lanes.record_on(live, lane, at) for lane in list(lanes)]]
        for lane in list(live.capture.lanes):
            for event in events:
                self.lanes.wait_on(live, lane, event, at)
        live.awaited_event = self.lanes.record_on(live, live.capture.origin, at)
        live.note('adapted', None, text, at)
        self.allocators.refresh()

    def device_wait(self, entry: Entry, original: Callable[..., Any], *args: Any) -> Any:
        """The host waits for a device: the one that is given, or the current one."""
        call, device = entry.call, int(args[0]) if args else self.state.current_device()

        def go() -> Any:
            with self.state.inside:
                return original(*args)

        with self.state.lock:
            mine = self.verdicts.start()
            if mine is not None and device in mine.devices.placeholders:
                # the placeholder there is not a lane, so it must not count as one
                self.streams.release(mine.devices.placeholders[device][0].ptr)
            verdict = self._judged_wait(device)
            if mine is not None and (mine.caller is not None or verdict.lost):
                if mine.caller is not None:
                    mine.caller.everywhere = True
                elif mine.strict:
                    raise self.verdicts.refusal(verdict, call)
                return self._adapt_wait(mine, mine.capture.lanes, f'{call} became a join of all lanes')
        return self.made_when_free(call, go, device) if mine is None else self.make(verdict, call, None, go)

    def made_when_free(self, call: str, make: Callable[[], Any], device: int | None = None) -> Any:
        """Make a call that waits for a device, by default the current one, once no thread has a capture open there."""
        there = self.state.current_device() if device is None else device
        with self.verdicts.turn(call, lambda: self._judged_wait(there), there):
            return make()

    def for_devices(self, platform: Platform, devices: Iterable[int]) -> None:
        """Wait for devices on capturekit's own behalf, once no capture of another thread is open there.

        Every such wait goes through here, or through :meth:`unless_captured`."""
        for device in devices:
            with self.state.on(device, platform):
                self.made_when_free(_OWN, platform.device.device_synchronize, device)

    def unless_captured(self, driver: Any) -> bool:
        """The same for the current device, where nobody may be waited for, as in a destructor: False if a capture is
        open."""
        with self.state.inside, ExitStack() as turn:
            with self.state.closed:
                if self.state.ledger.captures:
                    return False
                here = self.state.current_device()
                turn.enter_context(self.verdicts.turn(_OWN, lambda: self._judged_wait(here), here))
            driver.device_synchronize()
        return True

    def _judged_wait(self, device: int) -> Verdict:
        """The verdict on a wait for a device. A capture with a placeholder there counts as if it had a lane there."""
        others = (live for live in self.state.lives.values() if live.thread != threading.get_ident())
        placed = any(device in one.devices.placeholders and device not in one.capture.devices for one in others)
        return self.verdicts.judge(_O.DEVICE_SYNCHRONIZE, device=None if placed else device)

    def event_wait(self, entry: Entry, original: Callable[[Any], Any], event: Any) -> Any:
        """The host waits for an event, or asks whether it has happened."""
        operation, call, ptr = entry.operation, entry.call, handle(event)
        if operation is _O.EVENT_QUERY and self.uploads.has_happened(event):
            return True
        with self.state.lock:
            mine = self.verdicts.start()
            mark = self.state.ledger.marks.get(ptr)
            self.callers.own_event(mine, call, ptr)
            if mine is not None and mine.caller is not None and operation is _O.EVENT_SYNCHRONIZE:
                mine.caller.waits = True
            adapts = mine is not None and not mine.strict and operation is _O.EVENT_SYNCHRONIZE
            if adapts and self.parts.is_past(mine, mark):
                return None  # the event's work is in an earlier part, so it comes before all that is recorded now
            if mark is None and mine is None:
                verdict = self.state.ledger.judge(operation, thread=threading.get_ident(), event=ptr)
            else:
                verdict = self.verdicts.judge(operation, event=ptr)
            captured = mine is not None and mark is not None and mark.capture is mine.capture
            # an event that is known by its handle alone can't be waited for
            if mine is not None and adapts and captured and event is not ptr and verdict.answer.loses:
                return self._adapt_wait(mine, [], f'{call} became a join: every lane waits for it', event)
        made = partial(self.verdicts.carry_out, verdict, call, None, partial(original, event))
        return self.verdicts.about_event(operation, call, ptr, made) if mine is None else made()

    def elapsed_time(self, entry: Entry, original: Callable[[Any, Any], Any], start: Any, end: Any) -> Any:
        call, events = entry.call, (handle(start), handle(end))
        with self.state.lock:
            self.verdicts.start()
            for event in events:
                self.callers.own_event(self.state.mine(), call, event)
            for event in events:
                mark = self.state.ledger.marks.get(event)
                if mark is not None and mark.capture.status is CaptureStatus.ACTIVE:
                    raise self.verdicts.refusal(self.verdicts.judge(_O.EVENT_ELAPSED_TIME, event=event), call)
        return self.verdicts.about_event(_O.EVENT_ELAPSED_TIME, call, events[0], partial(original, start, end))


#: How many addresses each collective takes: its arguments before the first count.
_ADDRESSES = {'bcast': 1, 'send': 1, 'recv': 1}


class Collectives(CallsOnStreams):
    """NCCL's collectives."""

    def collective(self, entry: Entry, original: Callable[..., Any], comm: Any, *args: Any) -> Any:
        """A collective, or a send or receive, whose last argument is the stream."""
        ptr, call = int(args[-1]), entry.call
        if self.state.mine() is None and self.state.ledger.lane(ptr) is None:
            return original(comm, *args)
        self._one_device(call, comm, ptr)
        live = self.state.open_on(ptr)
        if live is not None and live.trace is not None and not live.collectives.grouped:
            device = self.state.platform.device
            with self.state.lock, self.state.inside, suppress(CudaCallError):  # a lost capture is reported later
                graph = device.capture_info(live.origin.ptr).graph
                live.collectives.nodes_before = device.graph_node_count(graph)
        answer = self.on_stream(_O.WORK, call, ptr, lambda: original(comm, *args))
        live = self.state.open_on(ptr)
        if live is not None:
            with self.state.lock:
                self._noted(live, self.state.ledger.lanes[ptr], call, comm, args)
        return answer

    def _noted(self, live: OpenCapture, lane: Lane, call: str, comm: Any, args: tuple[Any, ...]) -> None:
        name = call.rpartition('.')[2].rstrip('()')
        live.collectives.addresses.update((int(address), call) for address in args[: _ADDRESSES.get(name, 2)])
        if live.memory is not None and comm not in live.collectives.communicators:
            live.collectives.communicators.append(comm)
            live.memory.keep(comm)
            live.memory.to_close = True
        if live.trace is not None:
            live.trace.touch(lane.stream)
        if live.collectives.depth:
            live.collectives.grouped.append(lane.stream)
        else:
            self._attributed(live, [lane.stream])

    def _attributed(self, live: OpenCapture, streams: list[int]) -> None:
        """Find out which lane made which of the new nodes: NCCL makes those of all ranks together, some on other
        streams."""
        if live.trace is None:
            return
        device = self.state.platform.device
        with self.state.inside, suppress(CudaCallError):
            graph = device.capture_info(live.origin.ptr).graph
            new = device.graph_nodes(graph)[live.collectives.nodes_before :]
            owner = {node: ptr for ptr in streams for node in device.capture_info(ptr).dependencies}
            edges = [(a, b) for a, b in device.graph_edges(graph) if a in owner or b in owner]
            for a, b in edges:
                owner.setdefault(a, owner.get(b, streams[0]))
                owner.setdefault(b, owner[a])
            live.trace.belong((node, owner.get(node, streams[0])) for node in new)

    def _one_device(self, call: str, comm: Any, ptr: int) -> None:
        """Refuse a stream that is not on the communicator's device: NCCL would fail with half of the work captured."""
        lane = self.state.ledger.lane(ptr)
        if lane is None:
            return
        device = int(comm.device_id())
        if device != lane.device:
            raise self.verdicts.error(
                call,
                ptr,
                rule=f'The communicator is of device {device} and the stream of device {lane.device}.',
                remedy='Give each communicator the lane of its own device: `lanes[comm.device_id()].ptr`.',
            )

    def group_started(self, original: Callable[..., Any]) -> Any:
        answer = original()
        for live in self.state.threads.get(threading.get_ident(), ()):
            live.collectives.depth += 1
        return answer

    def group_ended(self, original: Callable[..., Any]) -> Any:
        """End a group, which records its collectives."""
        try:
            return original()
        finally:
            for live in list(self.state.threads.get(threading.get_ident(), ())):
                live.collectives.depth = max(live.collectives.depth - 1, 0)
                if not live.collectives.depth:
                    self._group_is_over(live)

    def _group_is_over(self, live: OpenCapture) -> None:
        """Note that a group has given work to its lanes."""
        with self.state.lock:
            streams, live.collectives.grouped = list(dict.fromkeys(live.collectives.grouped)), []
            if not streams:
                return
            self._attributed(live, streams)
            for lane in filter(None, map(self.state.ledger.lane, streams)):
                self._used(live, lane)
                if live.trace is not None:
                    live.trace.touch(lane.stream)
            self.allocators.refresh()

    def communicator(self, entry: Entry, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Refuse to make or to end a communicator in a block."""
        if self.state.mine() is None:
            return original(*args, **kwargs)
        raise self.verdicts.error(
            entry.call,
            rule='Making or ending a communicator waits for the devices, and a graph can not hold it.',
            remedy='Make communicators before the block. End them after `cap.graph.close()`: NCCL waits for graphs '
            'that hold them.',
        )

    def open_group(self, live: OpenCapture) -> errors.CaptureError | None:
        """The error for a group that is open at the end of a capture, or None."""
        if not live.collectives.grouped:
            return None
        live.collectives.grouped.clear()
        return self.verdicts.error(
            'A group of NCCL was left open',
            rule='NCCL starts the collectives of a group when the group ends, and the block has ended before that: the '
            'collectives would run at once, and be missing from the graph.',
            remedy='Call `nccl.groupEnd()` in the block.',
        )
