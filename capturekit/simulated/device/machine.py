"""A CUDA device without a GPU: streams, events, captures and graphs, with CUDA's answers.

It keeps the state that the driver keeps: for each stream the nodes that its next node will depend on. What a call
answers comes from the table in :mod:`capturekit.model.rules`, which was measured; how captures, dead events and several
captures at once behave was fitted to, and is held against, recorded driver traces
(``tests/data/driver_traces.json.gz``).

Work is a Python callable. On a stream that is not captured it runs at once, in the caller's thread; of a ``late``
device it waits until the host has to know (:mod:`capturekit.simulated.device.stream_queues`). On a captured stream it
becomes a node, and a launch runs the nodes in a random order among those that the edges allow (from a seed), so that a
missing edge shows as a wrong number. Where a graph heeds priorities, kernels of a higher one mostly run before others.
An IF node runs its body, in such an order of its own, if its condition is not zero when its turn comes. Handles are
ints; 0 and 1 are the legacy default stream, 2 the per-thread one. Refused calls raise
:class:`~capturekit.model.errors.CudaCallError` with ``code``. Safe to call from several threads (one lock).
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from types import FunctionType
from typing import Any, NoReturn

import numpy as np

from capturekit.driver.event_timing import TIMED, Times
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_accesses import Touched
from capturekit.driver.node_reader import NodeInfo
from capturekit.driver.node_writer import Change
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import CaptureInfo, EventState, last_node, next_after
from capturekit.model.progress import progress
from capturekit.model.rules import NEWEST, CaptureStatus, Code, Mode, Operation, Target, row
from capturekit.model.skipped_exits import Lock
from capturekit.simulated.device import graph_nodes
from capturekit.simulated.device.address_space import AddressSpace
from capturekit.simulated.device.call_notices import NoticedCalls
from capturekit.simulated.device.graph_nodes import Aim, ExecutableGraph, Given, GraphDefinition, GraphNode, Refused
from capturekit.simulated.device.stream_queues import Line, Queue, Thing, any_order, nothing, with_all_before
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
#: Of so many nodes drawn from those that may run now, the one of the highest priority runs.
_DRAWS = 3
#: Handles and addresses are never given twice in a process, so that a late destructor can't hit something of a newer
#: device, and no array of an older one is taken for a newer one's. No host has memory at these addresses.
_next_handle = itertools.count(0x100)
_next_address = 0x300000000000
_ADDRESSES = Lock()


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
    streams: set[SimulatedStream] = field(default_factory=set)
    orphans: set[GraphNode] = field(default_factory=set)


@dataclass(eq=False)
class SimulatedStream(Line):
    priority: int = 0
    capture: SimulatedCapture | None = None
    after: frozenset[GraphNode] = frozenset()


@dataclass(eq=False)
class SimulatedEvent:
    device: int = 0
    recorded: bool = False
    capture: SimulatedCapture | None = None
    after: frozenset[GraphNode] = frozenset()
    seconds: float = 0.0
    #: Its last record, where streams are late.
    operation: Queued | None = None

    @property
    def dead(self) -> bool:
        """Whether it stands for nodes of a capture that is lost or has ended."""
        return self.capture is not None and self.capture.status is not CaptureStatus.ACTIVE


#: Verbs that run work, or ask for nothing that another thread changes: they hold the lock for a part, or not at all.
_UNLOCKED = frozenset(
    """
    add_callback be_late device_synchronize driver_version event_query event_synchronize finish get_device graph_launch
    graph_measure graph_time launch_host_func launch_in_order stream_query stream_synchronize submit wait_for
    """.split()
)


def _locked(machine: type[SimulatedDevice]) -> type[SimulatedDevice]:
    """Let each verb of a machine hold the machine's lock."""

    def locked(verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def call(self: SimulatedDevice, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return verb(self, *args, **kwargs)

        return call

    for name, verb in list(vars(machine).items()):
        if isinstance(verb, FunctionType) and not name.startswith('_') and name not in _UNLOCKED:
            setattr(machine, name, locked(verb))
    return machine


@_locked
class SimulatedDevice:
    """A machine of one or more devices; see the module's text. Each thread begins on device 0.

    A verb that ``CudaDevice`` has, too, does what that class says; what differs is said here.

    ``seed`` decides the order in which launches run unordered nodes; ``driver``: whose codes it answers with, as
    ``cudaDriverGetVersion`` says it; the newest measured; ``devices`` is how many there are, each with streams, events
    and memory of its own. ``late``: work waits until the host has to know, and then runs in an order that the seed
    draws; None: where the environment variable ``CAPTUREKIT_LATE`` is 1.
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
        self._lock = Lock()
        self._seed = seed
        #: What waits to be run; None where work runs at once.
        self.queue: Queue | None = None
        self.be_late(os.environ.get('CAPTUREKIT_LATE') == '1' if late is None else late)
        self.streams: dict[int, SimulatedStream] = {}
        #: Default streams, by thread, or 0 for the legacy one, and device.
        self._defaults: dict[tuple[int, int], SimulatedStream] = {}
        self.events: dict[int, SimulatedEvent] = {}
        self.graphs: dict[int, GraphDefinition] = {}
        self.executables: dict[int, ExecutableGraph] = {}
        self._running = threading.local()
        self.captures: list[SimulatedCapture] = []
        self._captures_opened = 0
        self._thread_modes: dict[int, Mode] = {}
        #: How many bytes, and which device's, by address.
        self._memory: dict[int, tuple[int, int]] = {}
        #: Bytes by device: a sum over blocks could meet one that the garbage collector frees meanwhile.
        self._used: dict[int, int] = {}
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
        self.queue = Queue(self._seed, self._lock, functools.partial(self._default, 0)) if late else None

    def finish(self) -> None:
        """Run all that waits. CUDA has no such call: it is for those who look into memory themselves."""
        if self.queue is not None:
            self.queue.finish()

    def driver_version(self) -> int:
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
        if s in LEGACY:
            return self._default(0, self.get_device())
        if s == PER_THREAD:
            return self._default(threading.get_ident(), self.get_device())
        return _found(self.streams, s, f'stream {s:#x}', Code.cudaErrorInvalidResourceHandle)

    def _default(self, thread: int, device: int) -> SimulatedStream:
        found = self._defaults.get((thread, device))
        return found or self._defaults.setdefault((thread, device), SimulatedStream(device, legacy=not thread))

    def _event(self, e: int) -> SimulatedEvent:
        return _found(self.events, e, f'event {e:#x}', Code.cudaErrorInvalidResourceHandle)

    def _graph(self, g: int) -> GraphDefinition:
        for capture in self.captures:
            if capture.graph.handle == g:
                return capture.graph
        return _found(self.graphs, g, 'graph')

    def _exec(self, x: int) -> ExecutableGraph:
        return _found(self.executables, x, 'executable graph')

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
        return [c for c in self.captures if any(s.blocking and s.device == here for s in c.streams)]

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
        """The stream's capture; refuses the call if it is lost, or uses the legacy stream beside one."""
        if stream.legacy:
            self._legacy(call)
        capture = stream.capture
        if capture is not None and capture.status is CaptureStatus.INVALIDATED:
            self._fail(Code.cudaErrorStreamCaptureInvalidated, call)
        return capture

    def _conflict(self, stream: SimulatedStream, operation: Operation) -> None:
        """Refuse a call that no captured stream can take."""
        if stream.capture is not None:
            answer = row(operation, Target.LANE)[0](stream.capture.mode, False)
            self._fail(answer.code, operation.value, [stream.capture])

    def _uncaptured(self, s: int, operation: Operation) -> None:
        """Refuse a call that no captured stream can take, nor the legacy stream beside a capture."""
        stream = self._stream(s)
        if stream.legacy:
            self._legacy(operation.value)
        self._conflict(stream, operation)

    def _enter(self, stream: SimulatedStream, capture: SimulatedCapture) -> None:
        stream.capture = capture
        capture.streams.add(stream)

    def _queue(self, s: int, work: Callable[[], None], after: Iterable[Queued | None] = ()) -> Queued | None:
        return None if self.queue is None else self.queue.put(self._stream(s), work, after)

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
        _refuse_if(not 0 <= number < self.device_count, f'device {number}', _INVALID)

    def can_access_peer(self, device: int, peer: int) -> bool:
        """``cudaDeviceCanAccessPeer``: any two may, no device is its own peer."""
        self._known(device)
        self._known(peer)
        return device != peer

    def enable_peer_access(self, peer: int) -> None:
        """``cudaDeviceEnablePeerAccess``, from this thread's device."""
        pair = self.get_device(), peer
        _refuse_if(not self.can_access_peer(*pair), f'device {peer}', _INVALID)
        _refuse_if(pair in self._peers, f'device {peer}', _ENABLED)
        self._peers.add(pair)

    @staticmethod
    def _same_device(one: int, other: int, call: str) -> None:
        _refuse_if(one != other, f'{call}: the devices are {one} and {other}', Code.cudaErrorInvalidResourceHandle)

    # -- memory: addresses are given, the bytes behind them lie elsewhere --------------------------------------

    def malloc(self, nbytes: int) -> int:
        """``cudaMalloc``: an address in a simulated space; the bytes are the caller's business."""
        self._unsafe('malloc')
        _refuse_if(self.mem_get_info()[0] < nbytes, 'malloc', Code.cudaErrorMemoryAllocation)
        address = _addresses(nbytes)
        here = self.get_device()
        self._memory[address] = nbytes, here
        self._used[here] = self._used.get(here, 0) + nbytes
        return address

    def free(self, ptr: int) -> None:
        """``cudaFree``."""
        self._unsafe('free')
        nbytes, device = _found(self._memory, ptr, 'free')
        del self._memory[ptr]
        self._used[device] -= nbytes

    def memory_device(self, address: int) -> int:
        """The device that the memory which begins at an address lies on; 0 where there is none."""
        return self._memory.get(address, (0, 0))[1]

    def mem_get_info(self) -> tuple[int, int]:
        return _TOTAL_MEMORY - self._used.get(self.get_device(), 0), _TOTAL_MEMORY

    # -- streams ----------------------------------------------------------------------------------------------

    def stream_create(self, non_blocking: bool = False, priority: int = 0) -> int:
        """``cudaStreamCreateWithPriority``: a priority is moved into the range 0 to -5."""
        s = self._handle()
        here, within = self.get_device(), min(max(priority, _FIRST), _LAST)
        self.streams[s] = SimulatedStream(here, not non_blocking, priority=within)
        return s

    def stream_device(self, s: int) -> int:
        stream = self._stream(s)
        self._conflict(stream, Operation.STREAM_GET_FLAGS)  # which answers alike
        return stream.device

    def stream_destroy(self, s: int) -> None:
        """``cudaStreamDestroy``: work of a captured stream that was not joined stays in the graph, unjoined."""
        stream = self._stream(s)
        if stream.capture is not None:
            stream.capture.streams.discard(stream)
            stream.capture.orphans |= stream.after
        self.streams.pop(s, None)

    def stream_synchronize(self, s: int) -> None:
        self._wait_or_ask(s, Operation.STREAM_SYNCHRONIZE)
        self.wait_for(s)

    def wait_for(self, s: int) -> None:
        """Run what a stream was given."""
        if self.queue is not None:
            self.queue.wait(self.queue.ends(self._stream(s)))

    def stream_query(self, s: int) -> bool:
        self._wait_or_ask(s, Operation.STREAM_QUERY)
        return self.queue is None or self.queue.ask(self.queue.ends(self._stream(s)))

    def _wait_or_ask(self, s: int, operation: Operation) -> None:
        with self._lock:
            self._uncaptured(s, operation)
            self._unsafe(operation.value)

    def stream_flags(self, s: int) -> int:
        self._uncaptured(s, Operation.STREAM_GET_FLAGS)
        return int(not self._stream(s).blocking)

    def stream_priority(self, s: int) -> int:
        stream = self._stream(s)
        self._live(stream, 'streamGetPriority')
        return stream.priority

    def stream_status(self, s: int) -> CaptureStatus:
        if s in LEGACY:
            if self._blocking():
                self._fail(Code.cudaErrorStreamCaptureImplicit, 'streamIsCapturing')
            return CaptureStatus.NONE
        capture = self._stream(s).capture
        return CaptureStatus.NONE if capture is None else capture.status

    def capture_info(self, s: int) -> CaptureInfo:
        status = self.stream_status(s)
        if status is not CaptureStatus.ACTIVE:
            return CaptureInfo(status)
        stream = self._stream(s)
        assert stream.capture is not None
        dependencies = tuple(sorted(n.handle for n in stream.after))
        return CaptureInfo(status, stream.capture.number, stream.capture.graph.handle, dependencies)

    def stream_wait_event(self, s: int, e: int, external: bool = False) -> None:
        """``cudaStreamWaitEvent``: orders, forks, joins, or is refused."""
        event, stream = self._event(e), self._stream(s)
        if external and not stream.legacy:
            self._external(stream, event, 'waitEvent(external)')
            return
        capture = self._live(stream, 'waitEvent')
        if event.dead:
            self._fail(Code.cudaErrorInvalidValue, 'waitEvent', [capture] if capture else [])
        if event.capture is None:
            if capture is not None and event.recorded:
                self._fail(Code.cudaErrorStreamCaptureIsolation, 'waitEvent', [capture])
            if capture is None:
                self._queue(s, nothing, [event.operation])
            return
        if stream.legacy:
            self._fail(Code.cudaErrorStreamCaptureImplicit, 'waitEvent', [event.capture])
        if capture is None:
            self._enter(stream, event.capture)
            stream.after = event.after
        elif capture is not event.capture:
            self._fail(Code.cudaErrorStreamCaptureMerge, 'waitEvent', [capture, event.capture])
        else:
            stream.after = stream.after | event.after

    def _external(self, stream: SimulatedStream, event: SimulatedEvent | None, call: str) -> None:
        """An external record or wait: a node in a capture, illegal outside of one. The event's own state stays."""
        capture = self._live(stream, call)
        if event is not None and event.dead:
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
        e = self._handle()
        self.events[e] = SimulatedEvent(self.get_device())
        return e

    def event_destroy(self, e: int) -> None:
        self._event(e)
        del self.events[e]

    def event_record(self, e: int, s: int, external: bool = False) -> None:
        """``cudaEventRecord``: in a capture no node, the event then stands for the stream's dependencies."""
        event, stream = self._event(e), self._stream(s)
        self._same_device(event.device, stream.device, 'eventRecord')
        if external and not stream.legacy:
            self._external(stream, None, 'eventRecord(external)')
            return
        event.capture = self._live(stream, 'eventRecord')
        event.after = stream.after
        event.recorded = True
        event.seconds = time.perf_counter()
        if event.capture is None:
            event.operation = self._queue(s, lambda: _stamp(event))

    def event_query(self, e: int) -> bool:
        self._event_call(e, Operation.EVENT_QUERY)
        return self.queue is None or self.queue.ask([self._event(e).operation])

    def event_synchronize(self, e: int) -> None:
        self._event_call(e, Operation.EVENT_SYNCHRONIZE)
        if self.queue is not None:
            self.queue.wait([self._event(e).operation])

    def _event_call(self, e: int, operation: Operation) -> None:
        with self._lock:
            event = self._event(e)
            if event.capture is not None:
                if event.dead:
                    self._fail(Code.cudaErrorInvalidValue, operation.value)
                answer = row(operation, Target.CAPTURED_EVENT)[0](event.capture.mode, False)
                self._fail(answer.code, operation.value, [event.capture])
            self._unsafe(operation.value)

    def event_elapsed_time(self, e1: int, e2: int) -> float:
        first, second = self._event(e1), self._event(e2)
        for event in (first, second):
            if not event.recorded:
                self._fail(Code.cudaErrorInvalidResourceHandle, 'eventElapsedTime')
            if event.capture is not None:
                self._fail(
                    Code.cudaErrorInvalidValue if event.dead else Code.cudaErrorCapturedEvent, 'eventElapsedTime'
                )
        if any(event.operation is not None and not event.operation.done for event in (first, second)):
            self._fail(Code.cudaErrorNotReady, 'eventElapsedTime')
        return (second.seconds - first.seconds) * 1e3

    def event_state(self, e: int) -> EventState:
        """What an event stands for (the device knows; CUDA has to be asked round a corner)."""
        event = self._event(e)
        if event.capture is not None:
            return EventState.DEAD if event.dead else EventState.CAPTURED
        return EventState.OUTSIDE if event.recorded else EventState.NEVER

    # -- work, and calls that touch the whole device ----------------------------------------------------------

    def submit(
        self, s: int, work: Callable[[], None], name: str, kind: str = 'kernel', given: Given | None = None
    ) -> bool:
        """Launch ``work`` on a stream. Return True if it was recorded as a node, False if it ran at once.

        ``given`` is what the work was made of, so that the node can be given something else.
        """
        with self._lock:
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
            tell(graph_nodes.given_to(kind, given))
        self._begin_work(None if queued is not None else work)
        return False

    def spoil(self, s: int, work: Callable[[], None]) -> None:
        """Let a stream do work that no call has asked for, if it is not captured and work waits at all."""
        if self._stream(s).capture is None:
            self._queue(s, work)

    def busy(self) -> bool:
        """Whether work waits."""
        return self.queue is not None and self.queue.busy()

    def meet(self, streams: Sequence[int]) -> None:
        """What the streams of a collective do next comes after what each was given: on a GPU its ranks wait as they
        run. Streams of several captures can't: their graphs are launched one after the other here."""
        captured = [stream for stream in map(self._stream, streams) if stream.capture is not None]
        if len({stream.capture for stream in captured}) > 1 or 0 < len(captured) < len(streams):
            raise NotImplementedError('the simulated device lets ranks meet in one capture, or outside of any')
        after = frozenset().union(*(stream.after for stream in captured))
        for stream in captured:
            stream.after = after
        if self.queue is not None and not captured:
            self.queue.join([self._stream(s) for s in streams])

    def launch_host_func(self, s: int, fn: Callable[[], None]) -> bool:
        """``cudaLaunchHostFunc``: a host node in a capture, otherwise run at once."""
        return self.submit(s, fn, 'launchHostFunc', 'host')

    def add_callback(self, s: int, fn: Callable[[], None]) -> None:
        """``cudaStreamAddCallback``: can not be captured."""
        with self._lock:
            self._uncaptured(s, Operation.STREAM_ADD_CALLBACK)
            queued = self._queue(s, fn)
        self._begin_work(None if queued is not None else fn)

    def legacy_call(self, name: str) -> None:
        """Judge a synchronous copy or memset, which uses the legacy stream."""
        self._legacy(name)

    def unsafe_call(self, name: str) -> None:
        """Judge a call that the mode of a capture may forbid."""
        self._unsafe(name)

    def device_synchronize(self) -> None:
        """``cudaDeviceSynchronize``: loses captures with a stream of the device, from any thread, in every mode."""
        with self._lock:
            here = self.get_device()
            there = [c for c in self.captures if any(s.device == here for s in c.streams)]
            if there:
                answer = row(Operation.DEVICE_SYNCHRONIZE, Target.NONE)[0](Mode.RELAXED, False)
                self._fail(answer.code, 'deviceSynchronize', there)
        if self.queue is not None:
            self.queue.wait(self.queue.pending(here))

    # -- captures ---------------------------------------------------------------------------------------------

    def exchange_thread_mode(self, mode: Mode) -> Mode:
        me = threading.get_ident()
        old = self._thread_modes.get(me, Mode.GLOBAL)
        self._thread_modes[me] = Mode(mode)
        return old

    def begin_capture(self, s: int, mode: Mode = Mode.RELAXED) -> None:
        self._begin(s, mode, None)

    def begin_capture_to(self, s: int, g: int, mode: Mode = Mode.RELAXED, after: Sequence[int] = ()) -> None:
        graph = self._graph(g)
        behind = _nodes_of(graph, after, 'beginCaptureToGraph')
        self._begin(s, mode, graph)
        self._stream(s).after = behind

    def can_continue(self) -> bool:
        return True

    def set_dependencies(self, s: int, after: Sequence[int]) -> None:
        stream = self._stream(s)
        capture = self._live(stream, 'streamUpdateCaptureDependencies')
        if capture is None:
            self._fail(Code.cudaErrorIllegalState, 'streamUpdateCaptureDependencies')
        stream.after = _nodes_of(capture.graph, after, 'streamUpdateCaptureDependencies')

    def _begin(self, s: int, mode: Mode, graph: GraphDefinition | None) -> None:
        stream = self._stream(s)
        if stream.legacy:
            self._legacy('beginCapture')
            self._fail(Code.cudaErrorStreamCaptureUnsupported, 'beginCapture')
        if stream.capture is not None:
            self._fail(Code.cudaErrorIllegalState, 'beginCapture')
        self._captures_opened += 1
        to = GraphDefinition(self._handle()) if graph is None else graph
        capture = SimulatedCapture(self._captures_opened, s, Mode(mode), threading.get_ident(), to)
        self.captures.append(capture)
        self._enter(stream, capture)
        stream.after = frozenset()

    def end_capture(self, s: int) -> int:
        """``cudaStreamEndCapture``: return the graph's handle, which :meth:`capture_info` has told before."""
        stream = self._stream(s)
        if stream.legacy:
            self._legacy('endCapture')
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
        left = capture.orphans.union(*(stream.after for stream in capture.streams))
        if not left <= with_all_before(origin.after).keys():
            return Code.cudaErrorStreamCaptureUnjoined
        if capture.mode is not Mode.RELAXED and capture.thread != threading.get_ident():
            return Code.cudaErrorStreamCaptureWrongThread
        return Code.cudaSuccess

    def _release(self, capture: SimulatedCapture) -> None:
        capture.status = CaptureStatus.NONE
        self.captures.remove(capture)
        for stream in capture.streams:
            stream.capture, stream.after = None, frozenset()

    # -- definitions ------------------------------------------------------------------------------------------

    def graph_nodes(self, g: int) -> list[int]:
        return [n.handle for n in self._graph(g).nodes]

    def graph_node_count(self, g: int) -> int:
        return len(self._graph(g).nodes)

    def last_nodes(self) -> Callable[[int], int]:
        return lambda s: last_node(self.capture_info(s))

    def next_after(self) -> Callable[[int], tuple[int, ...]]:
        return lambda s: next_after(self.capture_info(s))

    def node_destroy(self, node: int) -> None:
        """``cudaGraphDestroyNode``: take a node and its edges out of a graph. One that allocates keeps its nodes."""
        for graph in self.graphs.values():
            found = graph.node(node)
            if found is not None:
                _refuse_if(graph_nodes.allocates(graph.nodes), 'graphDestroyNode', Code.cudaErrorNotSupported)
                self._whole(GraphDefinition(0, [found]))
                graph.nodes.remove(found)
                graph.maimed |= bool(found.bodies)
                for n in filter(lambda one: found in one.after, graph.nodes):
                    n.after -= {found}
                for body in found.bodies:
                    self._forget(body)
                return
        raise CudaCallError(Code.cudaErrorInvalidValue, 'graphDestroyNode')

    def graph_edge_count(self, g: int) -> int:
        return sum(len(n.after) for n in self._graph(g).nodes)

    def graph_edges(self, g: int) -> list[tuple[int, int]]:
        nodes = self._graph(g).nodes
        return [(a.handle, n.handle) for n in nodes for a in sorted(n.after, key=lambda a: a.handle)]

    def node_kind(self, g: int, node: int) -> tuple[str, str]:
        found = self._node(g, node)
        return found.kind, found.name

    def node_infos(self, g: int) -> list[NodeInfo]:
        return [graph_nodes.info_of(node) for node in self._graph(g).nodes]

    def graph_create(self) -> int:
        g = self._handle()
        self.graphs[g] = GraphDefinition(g)
        return g

    def _new_node(
        self, g: int, after: Sequence[int], work: Callable[[], None], name: str, kind: str
    ) -> tuple[GraphDefinition, GraphNode]:
        graph = self._graph(g)
        _refuse_if(len(set(after)) != len(after), f'dependencies of a node of kind {kind!r}')
        behind = _nodes_of(graph, after, f'dependencies of a node of kind {kind!r}')
        return graph, GraphNode(work, name, kind, behind, self._handle())

    def condition_create(self, g: int, default: int = 0) -> int:
        graph = self._graph(g)
        condition = self._handle()
        graph.conditions[condition] = default
        return condition

    def can_decide(self, decides: str, count: int) -> bool:
        return True

    def add_conditional(
        self, g: int, after: Sequence[int], condition: int, decides: str, count: int
    ) -> tuple[int, list[int]]:
        _refuse_if(
            decides not in ('if', 'while', 'switch') or not 1 <= count <= {'if': 2, 'while': 1}.get(decides, count),
            'graphAddNode',
        )
        graph, node = self._new_node(g, after, lambda: None, decides, 'conditional')
        node.condition, node.decides = condition, decides
        node.bodies = tuple(GraphDefinition(self._handle(), is_body=True) for _ in range(count))
        self.graphs.update((body.handle, body) for body in node.bodies)
        graph.nodes.append(node)
        return node.handle, [body.handle for body in node.bodies]

    def add_child(self, g: int, after: Sequence[int], child: int) -> int:
        copy = ExecutableGraph.of(self._graph(child))
        _refuse_copies(copy.nodes, 'addChildGraphNode')
        graph, node = self._new_node(g, after, lambda: None, 'child', 'graph')
        node.child = copy
        node.inside = self._inside(copy.nodes)
        graph.nodes.append(node)
        return node.handle

    def _inside(self, nodes: Sequence[GraphNode]) -> GraphDefinition:
        """The graph in a child graph's node, which nobody else has: nor do others have the graphs in its nodes."""
        inside = GraphDefinition(self._handle(), self._copied(nodes), is_body=True)
        self.graphs[inside.handle] = inside
        return inside

    def _copied(self, nodes: Sequence[GraphNode], rename: bool = False) -> list[GraphNode]:
        """Copies of nodes, with graphs of their own in them; ``rename``: and with handles of their own."""

        def changes(node: GraphNode) -> dict[str, Any]:
            inside = node.inside and self._inside(node.inside.nodes)
            return {'inside': inside, 'handle': self._handle() if rename else node.handle}

        return list(graph_nodes.copies_of(nodes, changes).values())

    def graph_destroy(self, g: int) -> None:
        """``cudaGraphDestroy``: also of the bodies of its conditional nodes, which can't be destroyed alone."""
        graph = self._whole(self._graph(g))
        _refuse_if(graph.is_body, 'graphDestroy')
        if all(capture.graph is not graph for capture in self.captures):
            self._forget(graph)

    def _forget(self, graph: GraphDefinition) -> None:
        self.graphs.pop(graph.handle, None)
        for node in graph.nodes:
            for body in node.bodies if node.inside is None else (node.inside,):
                self._forget(body)

    def graph_dot(self, g: int, flags: int = 0) -> str:
        return 'digraph capturekit {\n' + '\n'.join(_dot(self._graph(g))) + '\n}\n'

    def graph_scalars(self, graphs: list[int]) -> list[tuple[str, int, str, Any]]:
        """The simulated device's nodes are Python functions: what they hold can't be read."""
        return []

    # -- executable graphs ------------------------------------------------------------------------------------

    def condition_set(self, condition: int, value: int) -> None:
        """``cudaGraphSetConditional``, which a kernel calls while it runs in a launch of the condition's graph.

        Raises InvalidValue anywhere else, where CUDA would do what it likes.
        """
        for values in reversed(self._launching()):
            if condition in values:
                values[condition] = value & 0xFFFFFFFF
                return
        raise CudaCallError(Code.cudaErrorInvalidValue, f'condition {condition:#x} belongs to no graph that runs here')

    def graph_instantiate(self, g: int, by_node_priority: bool = False) -> int:
        """``cudaGraphInstantiate``; a body alone is refused, and so are bodies that allocate memory.

        Of a graph with conditional nodes there is one executable graph at a time (measured: driver 580.159.04).
        """
        self._unsafe('graphInstantiate')
        graph = self._whole(self._graph(g))
        executable = ExecutableGraph.of(graph, by_node_priority)
        lost = not executable.conditions.keys() >= executable.used()
        _refuse_if(graph.is_body or graph.maimed or lost or executable.allocates_in_a_body(), 'graphInstantiate')
        _refuse_if(
            executable.bodies and any(one.source == g for one in self.executables.values()),
            'graphInstantiate',
            Code.cudaErrorNotSupported,
        )
        x = self._handle()
        executable.source = g
        self.executables[x] = executable
        return x

    def graph_launch(self, x: int, s: int) -> None:
        with self._lock:
            self._uncaptured(s, Operation.GRAPH_LAUNCH)
            executable = self._exec(x)
            self.launches += 1
            queue = self.queue
            if queue is not None:
                now = executable.as_now()
                queue.launched[x] = queue.put(self._stream(s), lambda: self._launch(now), [queue.launched.get(x)])
        self._begin_work(None if queue is not None else lambda: self._launch(executable))

    def _launch(self, executable: ExecutableGraph, order: list[GraphNode] | None = None) -> None:
        values = dict(executable.conditions)
        launching = self._launching()
        launching.append(values)
        try:
            self._run(executable, values, executable.by_priority, order)
        finally:
            launching.pop()

    def launch_in_order(self, x: int, order: Sequence[int]) -> None:
        """Run an executable graph in an order of its nodes, which the edges have to allow, at once. CUDA can not."""
        self.finish()
        with self._lock:
            executable = self._exec(x)
            nodes = [executable.anchors[handle] for handle in order]
        self._launch(executable, nodes)

    def _launching(self) -> list[dict[int, int]]:
        """The values of conditions in the launches that this thread is in."""
        found: list[dict[int, int]] = self._running.__dict__.setdefault('values', [])
        return found

    def _run(
        self,
        executable: ExecutableGraph,
        values: dict[int, int],
        by_priority: bool,
        order: list[GraphNode] | None = None,
    ) -> None:
        with self._lock:
            order = self._order(executable, by_priority) if order is None else order
        for node in order:
            if self.queue is not None:
                self.queue.between()
            bodies = executable.bodies.get(node)
            if node in executable.off:
                continue
            if node.child is not None:
                self._run(node.child, {}, by_priority)
            elif bodies is None:
                _do(node)
            elif node.decides == 'while':
                while values[node.condition]:
                    self._run(bodies[0], values, by_priority)
            else:
                chosen = values[node.condition] if node.decides == 'switch' else int(not values[node.condition])
                if chosen < len(bodies):
                    self._run(bodies[chosen], values, by_priority)

    def _order(self, graph: ExecutableGraph, by_priority: bool) -> list[GraphNode]:
        draws = _DRAWS if by_priority else 1

        def choose(ready: list[GraphNode]) -> int:
            drawn = (self.random.randrange(len(ready)) for _ in range(draws))
            return min(drawn, key=lambda at: ready[at].priority)

        return any_order({n: n.after for n in graph.nodes}, choose)

    def graph_upload(self, x: int, s: int) -> None:
        self._uncaptured(s, Operation.GRAPH_UPLOAD)
        self._exec(x)

    def graph_exec_destroy(self, x: int) -> None:
        """``cudaGraphExecDestroy``: unsafe, so kept away by modes that do."""
        self._unsafe('graphExecDestroy')
        self._exec(x)
        del self.executables[x]
        if self.queue is not None:
            self.queue.launched.pop(x, None)

    # -- times -------------------------------------------------------------------------------------------------------

    def graph_measure(
        self,
        g: int,
        x: int,
        s: int,
        launches: int,
        warmup: int,
        off: Sequence[int] = (),
        by: str | None = None,
        by_node_priority: bool = False,
        several: bool = False,
    ) -> Times:
        """Launch ``x`` as often as a device would launch it and the other graph; tell what the model says of ``g``."""
        with self._lock:
            graph = self._graph(g)
            _refuse_copies(graph.nodes, 'graphClone')
            spans = modelled(graph.nodes, off)
        with progress('measuring launches', 2 * (warmup + launches)) as step:
            for _ in range(2 * (warmup + launches)):
                self.graph_launch(x, s)
                step()
        end = [max((end for _start, end in spans.values()), default=0.0)] * launches
        told = {n.handle: [span] * launches for n, span in spans.items() if n.kind in TIMED and n.handle not in off}
        return Times('modelled', list(end), list(end), [0.0], told, by='model')

    def graph_time(self, x: int, s: int, in_a_row: int = 1) -> float:
        """Tell how long one launch of an executable graph takes by the model, in microseconds.

        Two launches stand for any number of them in a row, since the model gives the same time for each.
        """
        with self._lock:
            executable = self._exec(x)
            spans = modelled(executable.nodes, {node.handle for node in executable.off})
        for _ in range(min(in_a_row, 2)):
            self.graph_launch(x, s)
        return max((end for _start, end in spans.values()), default=0.0)

    def call_source(self) -> NoticedCalls:
        return NoticedCalls(self)

    # -- graphs that are changed: updated in place, wired otherwise, copied; nodes given something else --------------

    def graph_exec_update(self, x: int, g: int) -> tuple[str, int]:
        executable, graph = self._exec(x), self._graph(g)
        _refuse_if(graph.is_body, 'graphExecUpdate')
        new = ExecutableGraph.of(graph, executable.by_priority)
        try:
            pairs = graph_nodes.paired(executable, new, executable.by_priority)
        except Refused as refused:
            reason, node = refused.args
            return reason, 0 if node is None else node.handle
        new.off = {pairs[n] for n in executable.off}
        new.anchors = {handle: pairs[n] for handle, n in executable.anchors.items()}
        self.executables[x] = new
        return '', 0

    def graph_clone(self, g: int) -> int:
        nodes = self._graph(g).nodes
        _refuse_copies(nodes, 'graphClone')
        copies, handle = self._copied(nodes, rename=True), self._handle()
        self.graphs[handle] = GraphDefinition(handle, copies)
        return handle

    def graph_rewire(self, g: int, removed: Sequence[tuple[int, int]], added: Sequence[tuple[int, int]]) -> None:
        graph = self._graph(g)
        before = {n.handle: {a.handle for a in n.after} for n in graph.nodes}
        # CUDA's documentation of both calls says so
        _refuse_if(removed and graph_nodes.allocates(graph.nodes), 'graphRemoveDependencies')
        for a, b in removed:
            _refuse_if(a not in before.get(b, ()), 'graphRemoveDependencies')
            before[b].discard(a)
        for a, b in added:
            _refuse_if(a not in before or b not in before or a == b or a in before[b], 'graphAddDependencies')
            before[b].add(a)
        graph.nodes[:] = graph_nodes.wired(graph.nodes, before)

    def graph_accesses(self, g: int, only: Collection[int] | None = None) -> dict[int, Touched]:
        nodes = self._graph(g).nodes
        return {node.handle: graph_nodes.touched(node) for node in nodes if only is None or node.handle in only}

    # -- single nodes -------------------------------------------------------------------------------------------

    def _node(self, g: int, node: int, kind: str = '') -> GraphNode:
        found = self._graph(g).node(node)
        if found is None or (kind and found.kind != kind):
            raise CudaCallError(Code.cudaErrorInvalidValue, f'a node of kind {kind!r}')
        return found

    def _anchor(self, x: int, source: int) -> tuple[ExecutableGraph, GraphNode]:
        executable = self._exec(x)
        return executable, _found(executable.anchors, source, 'the node of an executable graph')

    def node_enable(self, x: int, node: int, on: bool) -> None:
        executable, found = self._switch(x, node)
        (executable.off.discard if on else executable.off.add)(found)

    def node_enabled(self, x: int, node: int) -> bool:
        executable, found = self._switch(x, node)
        return found not in executable.off

    def _switch(self, x: int, node: int) -> tuple[ExecutableGraph, GraphNode]:
        executable, found = self._anchor(x, node)
        _refuse_if(found.kind not in graph_nodes.SWITCHED, 'graphNodeSetEnabled')
        return executable, found

    def node_info(self, g: int, node: int) -> NodeInfo:
        return graph_nodes.info_of(self._node(g, node))

    def node_arguments(self, g: int, node: int) -> list[Argument]:
        given = _given(self._node(g, node, 'kernel'))
        args, typed = given.values['args'], given.values['block'] is None
        return [graph_nodes.argument_of(value, args, typed) for value in args]

    def node_priority(self, g: int, node: int) -> int:
        return self._node(g, node, 'kernel').priority

    def kernel_aim(self, g: int, node: int) -> Aim:
        return Aim(self, g, node, self.node_arguments(g, node))

    def _give(self, found: GraphNode, **values: Any) -> Change:
        old, work = _given(found), found.work
        new = replace(old, values={**old.values, **values})
        _refuse_if(not old.fits(old.values, new.values), f'{found.name}: another kind of memory than before')
        found.given, found.work = new, new.work()

        def undo() -> None:
            found.given, found.work = old, work

        return Change(undo)

    def set_kernel(
        self, g: int, node: int, grid: Sequence[int], block: Sequence[int], shared: int, args: Sequence[bytes]
    ) -> Change:
        found, arguments = self._node(g, node, 'kernel'), self.node_arguments(g, node)
        old = _given(found).values
        _refuse_if(
            len(args) != len(arguments) or any(len(a) != len(b.data) for a, b in zip(args, arguments)),
            'graphKernelNodeSetParams',
        )
        new = tuple(
            graph_nodes.decoded(value, argument, data) for value, argument, data in zip(old['args'], arguments, args)
        )
        if old['block'] is None:
            return self._give(found, args=new)
        return self._give(found, grid=tuple(grid), block=tuple(block), shared=shared, args=new)

    def set_memcpy(self, g: int, node: int, dst: int, src: int, nbytes: int) -> Change:
        return self._give(self._node(g, node, 'memcpy'), dst=dst, src=src, bytes=nbytes)

    def set_memset(self, g: int, node: int, dst: int, value: int, nbytes: int) -> Change:
        return self._give(self._node(g, node, 'memset'), dst=dst, value=value, bytes=nbytes)

    def set_host(self, g: int, node: int, call: Callable[[], None]) -> Change:
        found = self._node(g, node, 'host')
        old, found.work = found.work, call
        return Change(lambda: setattr(found, 'work', old))

    def set_event(self, g: int, node: int, event: int) -> Change:
        """Nothing is to be done: events of nodes order nothing here."""
        found = self._node(g, node)
        _refuse_if(found.kind not in ('event record', 'wait event'), 'graphEventNodeSetEvent')
        return Change(lambda: None)

    def set_child(self, g: int, node: int, child: int) -> None:
        found = self._node(g, node, 'graph')
        found.child = self._child(found.child, child)
        if found.inside is not None:
            found.inside.nodes = list(found.child.nodes)

    def _child(self, old: ExecutableGraph | None, child: int) -> ExecutableGraph:
        assert old is not None
        new = ExecutableGraph.of(self._graph(child))
        try:
            graph_nodes.paired(old, new)
        except Refused as refused:
            raise CudaCallError(Code.cudaErrorGraphExecUpdateFailure, refused.args[0]) from None
        return new

    def node_take(self, x: int, source: int, g: int, node: int) -> None:
        mine = self._anchor(x, source)[1]
        found = self._node(g, node)
        given = mine.given
        _refuse_if(found.kind != mine.kind or found.bodies, 'graphExecNodeSetParams')
        _refuse_if(
            given is not None and found.given is not None and not given.fits(given.values, found.given.values),
            'graphExecNodeSetParams',
        )
        mine.work, mine.given = found.work, found.given
        if found.child is not None:
            mine.child = found.child

    def child_take(self, x: int, source: int, child: int) -> None:
        mine = self._anchor(x, source)[1]
        if mine.child is None:
            raise CudaCallError(Code.cudaErrorInvalidValue, 'graphExecChildGraphNodeSetParams')
        mine.child = self._child(mine.child, child)


def _refuse_if(wrong: object, call: str, code: int = Code.cudaErrorInvalidValue) -> None:
    if wrong:
        raise CudaCallError(code, call)


def _found(held: Mapping[int, Thing], handle: int, call: str, code: Code = Code.cudaErrorInvalidValue) -> Thing:
    try:
        return held[handle]
    except KeyError:
        raise CudaCallError(code, call) from None


def _given(node: GraphNode) -> Given:
    if node.given is None:
        raise CudaCallError(Code.cudaErrorNotSupported, f'the arguments of {node.name} are not known here')
    return node.given


def _refuse_copies(nodes: Iterable[GraphNode], call: str) -> None:
    _refuse_if(any(n.kind in graph_nodes.NOT_COPIED for n in nodes), call, Code.cudaErrorNotSupported)


def _stamp(event: SimulatedEvent) -> None:
    event.seconds = time.perf_counter()


def reaches(devices: SimulatedDevice, device: int) -> bool:
    """Whether kernels of this thread's device reach the memory of a device: its own, or that of an enabled peer."""
    here = devices.get_device()
    return device == here or (here, device) in devices._peers


def _nodes_of(graph: GraphDefinition, handles: Sequence[int], call: str) -> frozenset[GraphNode]:
    """The nodes of these handles. A call with others is refused."""
    known = {n.handle: n for n in graph.nodes}
    _refuse_if(not known.keys() >= set(handles), call)
    return frozenset(known[handle] for handle in handles)


def _dot(graph: GraphDefinition, indent: str = '  ') -> list[str]:
    lines = [f'{indent}"{n.handle:#x}" [label="{n.kind}\\n{n.name}"];' for n in graph.nodes]
    lines += [f'{indent}"{a.handle:#x}" -> "{n.handle:#x}";' for n in graph.nodes for a in n.after]
    for n in graph.nodes:
        for body in n.bodies:
            lines.append(f'{indent}subgraph "cluster {body.handle:#x}" {{')
            lines.append(f'{indent}  label="body of {n.handle:#x}";')
            lines += _dot(body, indent + '  ')
            lines.append(f'{indent}}}')
    return lines


def _do(node: GraphNode) -> None:
    try:
        node.work()
    except (ValueError, ArithmeticError, LookupError) as error:  # what NumPy raises for values
        raise RuntimeError(
            f'The Python body of kernel {node.name!r} raised {type(error).__name__} in a launch ({error}). No kernel '
            'on a GPU raises: a body that was given by `capturekit.simulated.body` has to take any values; '
            'that any other body does not is a fault of the simulated device.'
        ) from error


# -- how long nodes take, by a model ---------------------------------------------------------------------------------
# A node takes NODE_US, and one microsecond more for each BYTES_PER_US bytes that it reads or writes: of a kernel those
# of the arrays among its arguments, of a copy both ends. A child graph takes as long as its nodes. A node
# starts as soon as all that it comes after have ended, however many run at once, so that priorities change nothing. A
# model shows which nodes may overlap, what waits for what, and the shape of the thing; it is no prediction of any
# device's times. It is the same at each call.

#: Microseconds that every node takes.
NODE_US = 2.0
#: Bytes that a node reads or writes in one microsecond: 1 TB/s.
BYTES_PER_US = 1_000_000


def modelled(nodes: Iterable[GraphNode], off: Collection[int] = ()) -> dict[GraphNode, tuple[float, float]]:
    """Start and end of each node, in microseconds from the beginning of a launch. ``off``: handles of disabled ones."""
    found: dict[GraphNode, tuple[float, float]] = {}
    nodes = list(nodes)
    for node in TopologicalSorter({node: node.after for node in nodes}).static_order():
        start = max((found[a][1] for a in node.after), default=0.0)
        found[node] = (start, start + (0.0 if node.handle in off else _took(node)))
    return found


def _took(node: GraphNode) -> float:
    if node.kind not in TIMED:
        return 0.0
    if node.inside is not None:
        return max((end for _start, end in modelled(node.inside.nodes).values()), default=0.0)
    return NODE_US + (0 if node.given is None else _bytes(node.given.values)) / BYTES_PER_US


def _bytes(values: Mapping[str, Any]) -> int:
    """Bytes that a node reads and writes."""
    return int(values.get('bytes', 0)) * (2 if 'src' in values else 1) + _of(values.get('args', ()))


def _of(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_of, value))
    return math.prod(value.shape) * int(value.dtype.itemsize) if hasattr(value, 'ptr') else 0


# -- two nodes that nothing orders, run one way round and the other --------------------------------------------------


def differing(
    device: Any, memory: AddressSpace, g: int, first: int, second: int
) -> tuple[list[int], list[tuple[int, int]]] | None:
    """Run a definition with the node ``first`` before ``second``, and the other way round, from the same memory.

    Returns the second order, as handles, and where it left other bytes: address of the first, and how many, for each
    memory block. None where both orders give the same, or the edges allow one of them only. Memory is as before.
    """
    handles = device.graph_nodes(g)
    number = {handle: n for n, handle in enumerate(handles)}
    edges = [(number[a], number[b]) for a, b in device.graph_edges(g)]
    if first not in number or second not in number:  # in a body, which runs or does not
        return None
    a, b = number[first], number[second]
    try:
        orders = [Order(len(handles), [*edges, extra]).sequence for extra in ((a, b), (b, a))]
    except ValueError:
        return None
    device.finish()
    before = memory.contents()
    x = device.graph_instantiate(g)
    try:
        results = []
        for order in orders:
            device.launch_in_order(x, [handles[n] for n in order])
            results.append(memory.contents())
            memory.restore(before)
    finally:
        memory.restore(before)
        device.graph_exec_destroy(x)
    found = []
    for address, one in results[0].items():
        apart = np.flatnonzero(one != results[1].get(address, one))
        if apart.size:
            found.append((address + int(apart[0]), int(apart.size)))
    return ([handles[n] for n in orders[1]], found) if found else None
