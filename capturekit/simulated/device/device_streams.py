"""What the simulated machine keeps: devices, memory, streams, events; the work that streams are given; refusals."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from capturekit.driver.node_accesses import Touched
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import CaptureInfo, EventState
from capturekit.model.rules import NEWEST, CaptureStatus, Code, Mode, Operation, Target, row
from capturekit.simulated.device.graph_nodes import ExecutableGraph, Given, GraphDefinition, GraphNode
from capturekit.simulated.device.node_changes import given_to
from capturekit.simulated.device.stream_queues import Line, Queue, nothing
from capturekit.simulated.device.stream_queues import QueuedOperation as Queued

#: The device's range: lower numbers come first.
_FIRST, _LAST = -5, 0


class Handles(tuple[int, ...]):
    """Handles. One is a number, whatever class of Python's it has: so C code reads it."""

    def __contains__(self, handle: object) -> bool:
        return isinstance(handle, int) and super().__contains__(int(handle))


LEGACY = Handles((0, 1))
PER_THREAD = 2
#: ``cudaErrorInvalidDevice`` and ``cudaErrorPeerAccessAlreadyEnabled``.
_INVALID, _ENABLED = 101, 704
_TOTAL_MEMORY = 1 << 34
#: Handles and addresses are never given twice in a process, so that a late destructor can't hit something of a newer
#: device, and no array of an older one is taken for a newer one's. No host has memory at these addresses.
_next_handle = itertools.count(0x100)
_next_address = 0x300000000000
_ADDRESSES = threading.Lock()


def _addresses(nbytes: int) -> int:
    """Return the first address of new memory."""
    global _next_address
    with _ADDRESSES:
        address, _next_address = _next_address, _next_address + (max(nbytes, 1) + 511) // 512 * 512
    return address


@dataclass(eq=False)
class SimulatedCapture:
    number: int
    origin: int
    mode: Mode
    thread: int
    graph: GraphDefinition
    status: CaptureStatus = CaptureStatus.ACTIVE
    streams: set[int] = field(default_factory=set)
    orphans: set[GraphNode] = field(default_factory=set)


@dataclass(eq=False)
class SimulatedStream:
    non_blocking: bool
    priority: int = 0
    capture: SimulatedCapture | None = None
    after: frozenset[GraphNode] = frozenset()
    device: int = 0

    def __post_init__(self) -> None:
        self.line = Line(self.device, not self.non_blocking)


@dataclass(eq=False)
class SimulatedEvent:
    device: int = 0
    recorded: bool = False
    capture: SimulatedCapture | None = None
    after: frozenset[GraphNode] = frozenset()
    seconds: float = 0.0
    #: Its last record, where streams are late.
    operation: Queued | None = None


class Streams:
    """What a simulated machine keeps, and its calls about devices, memory, streams, events and work.

    Each thread begins on device 0.
    """

    def __init__(self, seed: int = 0, driver: int | None = None, devices: int = 1, late: bool | None = None) -> None:
        if isinstance(devices, bool) or not isinstance(devices, int):
            raise TypeError(f'devices must be a whole number, got {devices!r}')
        if devices < 1:
            raise ValueError(f'devices must be at least 1, got {devices}')
        self.device_count = devices
        self._current = threading.local()
        self._peers: set[tuple[int, int]] = set()
        self.random = random.Random(seed)
        self._driver = driver
        self._lock = threading.RLock()
        self._seed = seed
        #: What waits to be run; None where work runs at once.
        self.queue: Queue | None = None
        self.be_late(os.environ.get('CAPTUREKIT_LATE') == '1' if late is None else late)
        self.streams: dict[int, SimulatedStream] = {}
        self._per_thread: dict[tuple[int, int], SimulatedStream] = {}
        self.events: dict[int, SimulatedEvent] = {}
        self.graphs: dict[int, GraphDefinition] = {}
        self.executables: dict[int, ExecutableGraph] = {}
        self._running = threading.local()
        self.captures: list[SimulatedCapture] = []
        self._captures_opened = 0
        self._thread_modes: dict[int, Mode] = {}
        self._memory: dict[int, int] = {}
        #: Bytes by device: a sum over blocks could meet one that the garbage collector frees meanwhile.
        self._used: dict[int, int] = {}
        self._lies_on: dict[int, int] = {}
        self.launches = 0
        #: How many pieces of work each stream was given, those that were recorded not counted.
        self.submitted: dict[int, int] = {}
        #: Functions that are called with what each of these pieces touches, by the thread that gives it.
        self.told_of_work: list[Callable[[Touched], None]] = []
        self.spare_streams: dict[Any, list[Any]] = {}
        #: Where a GPU's process would have ended.
        self.deaths: list[str] = []
        #: Kernels of capturekit's own, compiled once.
        self.kernels: dict[str, Any] = {}
        #: Where the bytes behind addresses are found: each stand-in for CuPy on this device adds its own.
        self.address_spaces: list[Any] = []

    def be_late(self, late: bool = True) -> None:
        """Let work wait from now on, or run at once."""
        if self.queue is not None:
            self.queue.finish()
        self.queue = Queue(self._seed, self._lock) if late else None

    def finish(self) -> None:
        """Run all that waits. CUDA has no such call: it is for those who look into memory themselves."""
        if self.queue is not None:
            self.queue.finish()

    def driver_version(self) -> int:
        """``cudaDriverGetVersion``: 13000 for CUDA 13.0."""
        return self._driver or NEWEST.cuda

    def _handle(self) -> int:
        return 16 * next(_next_handle)

    def _whole(self, graph: GraphDefinition) -> GraphDefinition:
        """The graph; where a GPU's process would end, an AssertionError."""
        if graph.has_lost_a_body():
            self.deaths.append('the process ends here: CUDA has destroyed a body of this graph before')
            raise AssertionError(self.deaths[-1])
        return graph

    def _stream(self, s: int) -> SimulatedStream:
        if s == PER_THREAD:
            key = threading.get_ident(), self.get_device()
            return self._per_thread.setdefault(key, SimulatedStream(non_blocking=False, device=self.get_device()))
        try:
            return self.streams[s]
        except KeyError:
            raise CudaCallError(Code.cudaErrorInvalidResourceHandle, f'stream {s:#x}') from None

    def _line(self, s: int) -> Line:
        if self.queue is not None and s in LEGACY:
            return self.queue.legacy(self.get_device())
        return self._stream(s).line

    def _event(self, e: int) -> SimulatedEvent:
        try:
            return self.events[e]
        except KeyError:
            raise CudaCallError(Code.cudaErrorInvalidResourceHandle, f'event {e:#x}') from None

    def _graph(self, g: int) -> GraphDefinition:
        if g in self.graphs:
            return self.graphs[g]
        for capture in self.captures:
            if capture.graph.handle == g:
                return capture.graph
        raise CudaCallError(Code.cudaErrorInvalidValue, 'graph')

    def _exec(self, x: int) -> ExecutableGraph:
        try:
            return self.executables[x]
        except KeyError:
            raise CudaCallError(Code.cudaErrorInvalidValue, 'executable graph') from None

    def _invalidate(self, captures: Iterable[SimulatedCapture]) -> None:
        for capture in captures:
            capture.status = CaptureStatus.INVALIDATED

    def _fail(self, code: Code, call: str, lost: Iterable[SimulatedCapture] = ()) -> NoReturn:
        self._invalidate(lost)
        raise CudaCallError(code, call)

    def _blocking(self) -> list[SimulatedCapture]:
        """Captures that hold a blocking stream of the device: its legacy stream must not be touched beside them."""
        if not self.captures:
            return []
        here = self.get_device()
        members = [(c, [self._member(s) for s in c.streams]) for c in self.captures]
        return [c for c, streams in members if any(not s.non_blocking and s.device == here for s in streams)]

    def _member(self, s: int) -> SimulatedStream:
        return self.streams.get(s) or SimulatedStream(non_blocking=False)

    def _guarding(self) -> list[SimulatedCapture]:
        """Captures whose mode keeps unsafe calls away from this thread."""
        me = threading.get_ident()
        mode = self._thread_modes.get(me, Mode.GLOBAL)
        if mode is Mode.RELAXED:
            return []
        return [
            c
            for c in self.captures
            if (c.thread == me and c.mode is not Mode.RELAXED) or (c.mode is Mode.GLOBAL and mode is Mode.GLOBAL)
        ]

    def _unsafe(self, call: str) -> None:
        guarding = self._guarding()
        if guarding:
            self._fail(row(Operation.UNSAFE, Target.NONE)[0](Mode.GLOBAL, False).code, call, guarding)

    def _legacy(self, call: str) -> None:
        blocking = self._blocking()
        if blocking:
            self._fail(row(Operation.WORK, Target.LEGACY)[0](Mode.RELAXED, True).code, call, blocking)

    def _live(self, stream: SimulatedStream, call: str) -> SimulatedCapture | None:
        """The stream's capture; refuses the call if it is lost."""
        capture = stream.capture
        if capture is not None and capture.status is CaptureStatus.INVALIDATED:
            self._fail(Code.cudaErrorStreamCaptureInvalidated, call)
        return capture

    def _conflict(self, stream: SimulatedStream, operation: Operation) -> None:
        """Refuse a call that no captured stream can take."""
        if stream.capture is not None:
            answer = row(operation, Target.LANE)[0](stream.capture.mode, False)
            self._fail(answer.code, operation.value, [stream.capture])

    def _enter(self, stream: SimulatedStream, s: int, capture: SimulatedCapture) -> None:
        stream.capture = capture
        capture.streams.add(s)

    def _queue(self, s: int, work: Callable[[], None], after: Iterable[Queued | None] = ()) -> Queued | None:
        return None if self.queue is None else self.queue.put(self._line(s), work, after)

    def _begin_work(self, work: Callable[[], None] | None) -> None:
        """Run what is not to wait; else see to it that not too much waits."""
        if work is not None:
            work()
        elif self.queue is not None:
            self.queue.relieve()

    # -- devices ----------------------------------------------------------------------------------------------

    def get_device(self) -> int:
        """``cudaGetDevice``: the number of this thread's device."""
        return getattr(self._current, 'number', 0)

    def set_device(self, number: int) -> None:
        """``cudaSetDevice``."""
        self._known(number)
        self._current.number = number

    def _known(self, number: int) -> None:
        if not 0 <= number < self.device_count:
            raise CudaCallError(_INVALID, f'device {number}')

    def can_access_peer(self, device: int, peer: int) -> bool:
        """``cudaDeviceCanAccessPeer``: any two may, no device is its own peer."""
        self._known(device)
        self._known(peer)
        return device != peer

    def enable_peer_access(self, peer: int) -> None:
        """``cudaDeviceEnablePeerAccess``, from this thread's device."""
        pair = self.get_device(), peer
        if not self.can_access_peer(*pair):
            raise CudaCallError(_INVALID, f'device {peer}')
        if pair in self._peers:
            raise CudaCallError(_ENABLED, f'device {peer}')
        self._peers.add(pair)

    @staticmethod
    def _same_device(one: int, other: int, call: str) -> None:
        if one != other:
            raise CudaCallError(Code.cudaErrorInvalidResourceHandle, f'{call}: the devices are {one} and {other}')

    # -- memory: addresses are given, the bytes behind them lie elsewhere --------------------------------------

    def malloc(self, nbytes: int) -> int:
        """``cudaMalloc``: an address in a simulated space; the bytes are the caller's business."""
        with self._lock:
            self._unsafe('malloc')
            if self.mem_get_info()[0] < nbytes:
                raise CudaCallError(Code.cudaErrorMemoryAllocation, 'malloc')
            address = _addresses(nbytes)
            here = self.get_device()
            self._memory[address], self._lies_on[address] = nbytes, here
            self._used[here] = self._used.get(here, 0) + nbytes
            return address

    def free(self, ptr: int) -> None:
        """``cudaFree``."""
        with self._lock:
            self._unsafe('free')
            nbytes = self._memory.pop(ptr, None)
            if nbytes is None:
                raise CudaCallError(Code.cudaErrorInvalidValue, 'free')
            self._used[self._lies_on.pop(ptr)] -= nbytes

    def memory_device(self, address: int) -> int:
        """The device that the memory which begins at an address lies on; 0 where there is none."""
        return self._lies_on.get(address, 0)

    def mem_get_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        return _TOTAL_MEMORY - self._used.get(self.get_device(), 0), _TOTAL_MEMORY

    def host_alloc(self, nbytes: int) -> int:
        """``cudaHostAlloc``: pinned memory, addressed like :meth:`malloc`."""
        return self.malloc(nbytes)

    def host_free(self, ptr: int) -> None:
        """``cudaFreeHost``."""
        self.free(ptr)

    # -- streams ----------------------------------------------------------------------------------------------

    def stream_create(self, non_blocking: bool = False, priority: int = 0) -> int:
        """``cudaStreamCreateWithPriority``: a priority is moved into the range 0 to -5."""
        with self._lock:
            s = self._handle()
            self.streams[s] = SimulatedStream(non_blocking, min(max(priority, _FIRST), _LAST), device=self.get_device())
            return s

    def stream_device(self, s: int) -> int:
        """``cudaStreamGetDevice``: the device that a stream belongs to."""
        with self._lock:
            if s in LEGACY:
                return self.get_device()
            stream = self._stream(s)
            self._conflict(stream, Operation.STREAM_GET_FLAGS)  # which answers alike
            return stream.device

    def stream_destroy(self, s: int) -> None:
        """``cudaStreamDestroy``: work of a captured stream that was not joined stays in the graph, unjoined."""
        with self._lock:
            stream = self._stream(s)
            if stream.capture is not None:
                stream.capture.streams.discard(s)
                stream.capture.orphans |= stream.after
            self.streams.pop(s, None)

    def stream_synchronize(self, s: int) -> None:
        """``cudaStreamSynchronize``."""
        self._wait_or_ask(s, Operation.STREAM_SYNCHRONIZE)
        self.wait_for(s)

    def wait_for(self, s: int) -> None:
        """Run what a stream was given."""
        if self.queue is not None:
            self.queue.wait(self.queue.ends(self._line(s)))

    def stream_query(self, s: int) -> bool:
        """``cudaStreamQuery``; True where work runs at once."""
        self._wait_or_ask(s, Operation.STREAM_QUERY)
        return self.queue is None or self.queue.ask(self.queue.ends(self._line(s)))

    def _wait_or_ask(self, s: int, operation: Operation) -> None:
        with self._lock:
            if s in LEGACY:
                self._legacy(operation.value)
            else:
                self._conflict(self._stream(s), operation)
            self._unsafe(operation.value)

    def stream_flags(self, s: int) -> int:
        """``cudaStreamGetFlags``: 1 for a non-blocking stream."""
        with self._lock:
            if s in LEGACY:
                self._legacy('streamGetFlags')
                return 0
            stream = self._stream(s)
            self._conflict(stream, Operation.STREAM_GET_FLAGS)
            return int(stream.non_blocking)

    def stream_priority(self, s: int) -> int:
        """``cudaStreamGetPriority``."""
        with self._lock:
            if s in LEGACY:
                self._legacy('streamGetPriority')
                return 0
            stream = self._stream(s)
            self._live(stream, 'streamGetPriority')
            return stream.priority

    def stream_status(self, s: int) -> CaptureStatus:
        """``cudaStreamIsCapturing``."""
        with self._lock:
            if s in LEGACY:
                if self._blocking():
                    self._fail(Code.cudaErrorStreamCaptureImplicit, 'streamIsCapturing')
                return CaptureStatus.NONE
            capture = self._stream(s).capture
            return CaptureStatus.NONE if capture is None else capture.status

    def capture_info(self, s: int) -> CaptureInfo:
        """``cudaStreamGetCaptureInfo``."""
        with self._lock:
            status = self.stream_status(s)
            if status is not CaptureStatus.ACTIVE:
                return CaptureInfo(status)
            stream = self._stream(s)
            assert stream.capture is not None
            dependencies = tuple(sorted(n.handle for n in stream.after))
            return CaptureInfo(status, stream.capture.number, stream.capture.graph.handle, dependencies)

    def stream_wait_event(self, s: int, e: int, external: bool = False) -> None:
        """``cudaStreamWaitEvent``: orders, forks, joins, or is refused."""
        with self._lock:
            event = self._event(e)
            if s in LEGACY:
                self._legacy_wait(event)
                return
            stream = self._stream(s)
            if external:
                self._external(stream, event, 'waitEvent(external)')
                return
            capture = self._live(stream, 'waitEvent')
            if event.capture is not None and event.capture.status is not CaptureStatus.ACTIVE:
                self._fail(Code.cudaErrorInvalidValue, 'waitEvent', [capture] if capture else [])
            if event.capture is None:
                if capture is not None and event.recorded:
                    self._fail(Code.cudaErrorStreamCaptureIsolation, 'waitEvent', [capture])
                if capture is None:
                    self._queue(s, nothing, [event.operation])
                return
            if capture is None:
                self._enter(stream, s, event.capture)
                stream.after = event.after
            elif capture is not event.capture:
                self._fail(Code.cudaErrorStreamCaptureMerge, 'waitEvent', [capture, event.capture])
            else:
                stream.after = stream.after | event.after

    def _legacy_wait(self, event: SimulatedEvent) -> None:
        self._legacy('waitEvent')
        if event.capture is None:
            self._queue(0, nothing, [event.operation])
            return
        if event.capture.status is not CaptureStatus.ACTIVE:
            self._fail(Code.cudaErrorInvalidValue, 'waitEvent')
        self._fail(Code.cudaErrorStreamCaptureImplicit, 'waitEvent', [event.capture])

    def _external(self, stream: SimulatedStream, event: SimulatedEvent | None, call: str) -> None:
        """An external record or wait: a node in a capture, illegal outside of one. The event's own state stays."""
        capture = self._live(stream, call)
        if event is not None and event.capture is not None and event.capture.status is not CaptureStatus.ACTIVE:
            self._fail(Code.cudaErrorInvalidValue, call, [capture] if capture else [])
        if capture is None:
            self._fail(Code.cudaErrorIllegalState, call)
        self._add(stream, capture, lambda: None, call, 'wait event' if event is not None else 'event record')

    def _add(
        self,
        stream: SimulatedStream,
        capture: SimulatedCapture,
        work: Callable[[], None],
        name: str,
        kind: str,
        given: Given | None = None,
    ) -> None:
        priority = stream.priority if kind == 'kernel' else 0
        node = GraphNode(work, name, kind, stream.after, self._handle(), priority=priority, given=given)
        capture.graph.nodes.append(node)
        stream.after = frozenset((node,))

    # -- events -----------------------------------------------------------------------------------------------

    def event_create(self) -> int:
        """``cudaEventCreate``."""
        with self._lock:
            e = self._handle()
            self.events[e] = SimulatedEvent(self.get_device())
            return e

    def event_destroy(self, e: int) -> None:
        """``cudaEventDestroy``."""
        with self._lock:
            self._event(e)
            del self.events[e]

    def event_record(self, e: int, s: int, external: bool = False) -> None:
        """``cudaEventRecord``: in a capture no node, the event then stands for the stream's dependencies."""
        with self._lock:
            event = self._event(e)
            if s in LEGACY:
                self._legacy('eventRecord')
                self._same_device(event.device, self.get_device(), 'eventRecord')
                event.capture, event.recorded, event.seconds = None, True, time.perf_counter()
                event.operation = self._queue(s, lambda: _stamp(event))
                return
            stream = self._stream(s)
            self._same_device(event.device, stream.device, 'eventRecord')
            if external:
                self._external(stream, None, 'eventRecord(external)')
                return
            event.capture = self._live(stream, 'eventRecord')
            event.after = stream.after
            event.recorded = True
            event.seconds = time.perf_counter()
            if event.capture is None:
                event.operation = self._queue(s, lambda: _stamp(event))

    def event_query(self, e: int) -> bool:
        """``cudaEventQuery``; True where work runs at once."""
        self._event_call(e, Operation.EVENT_QUERY)
        return self.queue is None or self.queue.ask([self._event(e).operation])

    def event_synchronize(self, e: int) -> None:
        """``cudaEventSynchronize``."""
        self._event_call(e, Operation.EVENT_SYNCHRONIZE)
        if self.queue is not None:
            self.queue.wait([self._event(e).operation])

    def _event_call(self, e: int, operation: Operation) -> None:
        with self._lock:
            event = self._event(e)
            if event.capture is not None:
                if event.capture.status is not CaptureStatus.ACTIVE:
                    self._fail(Code.cudaErrorInvalidValue, operation.value)
                answer = row(operation, Target.CAPTURED_EVENT)[0](event.capture.mode, False)
                self._fail(answer.code, operation.value, [event.capture])
            self._unsafe(operation.value)

    def event_elapsed_time(self, e1: int, e2: int) -> float:
        """``cudaEventElapsedTime`` in milliseconds."""
        with self._lock:
            first, second = self._event(e1), self._event(e2)
            for event in (first, second):
                if not event.recorded:
                    self._fail(Code.cudaErrorInvalidResourceHandle, 'eventElapsedTime')
                if event.capture is not None:
                    dead = event.capture.status is not CaptureStatus.ACTIVE
                    self._fail(Code.cudaErrorInvalidValue if dead else Code.cudaErrorCapturedEvent, 'eventElapsedTime')
            if any(event.operation is not None and not event.operation.done for event in (first, second)):
                self._fail(Code.cudaErrorNotReady, 'eventElapsedTime')
            return (second.seconds - first.seconds) * 1e3

    def event_state(self, e: int) -> EventState:
        """What an event stands for (the device knows; CUDA has to be asked round a corner)."""
        with self._lock:
            event = self._event(e)
            if event.capture is not None:
                alive = event.capture.status is CaptureStatus.ACTIVE
                return EventState.CAPTURED if alive else EventState.DEAD
            return EventState.OUTSIDE if event.recorded else EventState.NEVER

    # -- work, and calls that touch the whole device ----------------------------------------------------------

    def submit(
        self, s: int, work: Callable[[], None], name: str, kind: str = 'kernel', given: Given | None = None
    ) -> bool:
        """Launch ``work`` on a stream. Return True if it was recorded as a node, False if it ran at once.

        ``given`` is what the work was made of, so that the node can be given something else.
        """
        with self._lock:
            if s in LEGACY:
                self._legacy(name)
            else:
                stream = self._stream(s)
                if kind == 'kernel':
                    self._same_device(self.get_device(), stream.device, name)
                capture = self._live(stream, name)
                if capture is not None:
                    self._add(stream, capture, work, name, kind, given)
                    return True
            self.submitted[int(s)] = self.submitted.get(int(s), 0) + 1
            queued = self._queue(s, work)
        for tell in self.told_of_work:
            tell(given_to(kind, given))
        self._begin_work(None if queued is not None else work)
        return False

    def spoil(self, s: int, work: Callable[[], None]) -> None:
        """Let a stream do work that no call has asked for, if it is not captured and work waits at all."""
        with self._lock:
            if s in LEGACY or self._stream(s).capture is None:
                self._queue(s, work)

    def busy(self) -> bool:
        """Whether work waits."""
        return self.queue is not None and self.queue.busy()

    def meet(self, streams: Sequence[int]) -> None:
        """What the streams of a collective do next comes after what each was given: on a GPU its ranks wait as they
        run. Streams of several captures can't: their graphs are launched one after the other here."""
        with self._lock:
            found = [None if s in LEGACY else self._stream(s) for s in streams]
            captured = [stream for stream in found if stream is not None and stream.capture is not None]
            if len({stream.capture for stream in captured}) > 1 or 0 < len(captured) < len(found):
                raise NotImplementedError('the simulated device lets ranks meet in one capture, or outside of any')
            after = frozenset().union(*(stream.after for stream in captured))
            for stream in captured:
                stream.after = after
            if self.queue is not None and not captured:
                self.queue.join([self._line(s) for s in streams])

    def launch_host_func(self, s: int, fn: Callable[[], None]) -> bool:
        """``cudaLaunchHostFunc``: a host node in a capture, otherwise run at once."""
        return self.submit(s, fn, 'launchHostFunc', 'host')

    def add_callback(self, s: int, fn: Callable[[], None]) -> None:
        """``cudaStreamAddCallback``: can not be captured."""
        with self._lock:
            if s in LEGACY:
                self._legacy('streamAddCallback')
            else:
                self._conflict(self._stream(s), Operation.STREAM_ADD_CALLBACK)
            queued = self._queue(s, fn)
        self._begin_work(None if queued is not None else fn)

    def legacy_call(self, name: str) -> None:
        """Judge a synchronous copy or memset, which uses the legacy stream."""
        with self._lock:
            self._legacy(name)

    def unsafe_call(self, name: str) -> None:
        """Judge a call that the mode of a capture may forbid."""
        with self._lock:
            self._unsafe(name)

    def device_synchronize(self) -> None:
        """``cudaDeviceSynchronize``: loses captures with a stream of the device, from any thread, in every mode."""
        with self._lock:
            here = self.get_device()
            there = [c for c in self.captures if any(self._member(s).device == here for s in c.streams)]
            if there:
                answer = row(Operation.DEVICE_SYNCHRONIZE, Target.NONE)[0](Mode.RELAXED, False)
                self._fail(answer.code, 'deviceSynchronize', there)
        if self.queue is not None:
            self.queue.wait(self.queue.pending(here))


def _stamp(event: SimulatedEvent) -> None:
    event.seconds = time.perf_counter()


def reaches(devices: Streams, device: int) -> bool:
    """Whether kernels of this thread's device reach the memory of a device: its own, or that of an enabled peer."""
    here = devices.get_device()
    return device == here or (here, device) in devices._peers
