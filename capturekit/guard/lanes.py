"""Streams become lanes; which lanes are not joined at the end; joins and forks that ``strict=False`` adds.

CUDA adds what a stream waits for to what its next node comes after, and takes nothing away: in a loop of forks and
joins each lane would come after the nodes of all forks before it. So a lane that waits for others, which come after all
that it has done, comes after these alone: :func:`passed_by`, :func:`only_after`. (200 scopes of two lanes with one
operation each had 79,600 edges, and a launch took 1,084 us on an H100; with the 796 that are needed it took 264.)
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from capturekit.driver.cuda import StreamHandle
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model import errors
from capturekit.model.counted import counted
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import (
    LEGACY_HANDLES,
    PER_THREAD_HANDLE,
    Clock,
    Lane,
    LedgerCapture,
    is_before,
    merge,
    named,
)
from capturekit.model.rules import RULES, CaptureStatus, Code
from capturekit.model.source_line import Place, here

#: The nodes that come right before a lane's next work.
Nodes = tuple[int, ...]


class Lanes:
    """Makes streams lanes, and makes the joins and forks that ``strict=False`` adds."""

    def __init__(self, state: State) -> None:
        self.state = state

    def is_outside(self, ptr: int) -> bool:
        return ptr not in LEGACY_HANDLES and self.met(ptr) is None

    def met(self, ptr: int, stream: Any = None) -> Lane | None:
        """The lane that a stream is, or None.

        The driver is asked about a stream that the ledger does not know: a method of CuPy's that was bound before the
        capture, and that no wrapper sees, may have forked it. What it comes after is not known then."""
        lane, mine = self.state.ledger.lane(ptr), self.state.mine()
        if lane is not None or mine is None or ptr in LEGACY_HANDLES or ptr in mine.outside.held:
            return lane
        if not self.state.policy.records:
            return None
        with self.state.inside, suppress(CudaCallError):  # the capture is lost, and that will be reported
            device = self.state.platform.device
            found = device.capture_info(ptr)
            if found.status is CaptureStatus.ACTIVE and found.number == device.capture_info(mine.origin.ptr).number:
                known = int(getattr(stream, 'device_id', -1))
                number = known if known >= 0 else self.state.current_device()
                # whether it is a blocking stream can't be asked without losing the capture
                lane = self.state.ledger.enter(ptr, mine.capture.origin, False, here(), number)
                self.entered(mine, lane, stream, here())
        return lane

    def current_lane(self, live: OpenCapture) -> Lane:
        """The lane that is current in this thread, or the origin."""
        stream = self.state.current_stream()
        return live.lane_of(stream) or live.capture.origin

    def lane_number(self, stream: int) -> int | None:
        """The number of the lane that a stream is, or None if it is not a lane."""
        lane = self.state.ledger.lane(stream)
        return None if lane is None else lane.number

    def was_used(self, lane: Lane, ends: tuple[int, ...] | None = None) -> None:
        """Find work that a lane got through its handle, before an event ends its segment. ``ends``: where it is, if
        known."""
        live = self.state.lives.get(lane.capture)
        if live is None or live.memory is None or lane.current:
            return
        live.memory.worked(lane, ends)
        if live.memory.unforeseen(lane):
            text = f'lane {lane.number} got work by its handle after it was joined, and no call of CuPy made it wait: '
            text += 'memory dropped in between may have been handed out again. Fork it by Stream.wait_event()'
            live.note('note', lane, text, here())

    def rests(self, lane: Lane, ends: tuple[int, ...] | None = None) -> None:
        live = self.state.lives.get(lane.capture)
        if live is not None and live.memory is not None and not lane.current:
            live.memory.rests(lane, ends)

    def device_of(self, stream: Any) -> int:
        """The number of a stream's device. Asking CUDA about a captured stream would lose the capture."""
        lane = self.state.ledger.lane(stream.ptr)
        if lane is not None:
            return lane.device
        known = int(getattr(stream, 'device_id', -1))
        if known >= 0:
            return known
        if self.state.platform.cupy.cuda.runtime.getDeviceCount() > 1 and stream.ptr > PER_THREAD_HANDLE:
            with self.state.inside, suppress(CudaCallError):  # this driver is too old to ask
                return int(self.state.platform.device.stream_device(stream.ptr))
        return self.state.current_device()

    def record_on(self, live: OpenCapture, lane: Lane, at: Place | None) -> Any:
        """Record a new event on a lane, for the guard's own joins. The event belongs to the device of the lane."""
        with self.state.on(lane.device):
            event = self.state.platform.cupy.cuda.Event(disable_timing=True)
            live.streams[lane.stream].record(event)
            lane.nodes = self.state.platform.device.capture_info(lane.stream).dependencies
        live.events.append(event)
        self.was_used(lane)
        self.state.ledger.record(event.ptr, lane.stream, at)
        return event

    def wait_on(self, live: OpenCapture, lane: Lane, event: Any, at: Place | None) -> None:
        with self.state.inside:
            live.streams[lane.stream].wait_event(event)
        self.state.ledger.wait(lane.stream, event.ptr, at=at)
        self.rests(lane)

    def wrapped(self, ptr: int) -> Any:
        """Return a CuPy stream for a bare handle."""
        return self.state.platform.cupy.cuda.Stream.from_external(StreamHandle(ptr))

    def entered(self, live: OpenCapture, lane: Lane, stream: Any, at: Place | None, *, polled: bool = False) -> None:
        """Keep a stream that has become a lane, and give it what lanes need."""
        ptr = lane.stream
        live.streams[ptr] = stream = self.wrapped(ptr) if stream is None else stream
        own = (*live.recorder.lane_streams, *live.devices.forked.values())
        if live.caller is not None and ptr not in live.caller.streams and all(one.ptr != ptr for one in own):
            live.caller.outside[lane.device, ptr] = stream  # it is the caller's: launches are ordered with it
        with self.state.inside:
            lane.nodes = self.state.platform.device.capture_info(ptr).dependencies
            with suppress(CudaCallError):  # the capture is lost, and that will be reported
                lane.priority = self.state.platform.device.stream_priority(ptr)
        if getattr(stream, '_graph_host_funcargs', None) is None:
            stream._graph_host_funcargs = []  # CuPy sets it on origins alone, and launch_host_func needs it
        self.has_entered(live, lane, at, polled)

    def has_entered(self, live: OpenCapture, lane: Lane, at: Place | None, polled: bool = False) -> None:
        """Note a stream that has become a lane, and follow it where it is the current one."""
        live.note('fork', lane, f'lane {lane.number} forked from lane {lane.parent}', at, polled, other=lane.parent)
        if self.state.current_stream(lane.device).__dict__['ptr'] == lane.stream:
            self.make_current(live, lane.stream, here=lane.device == self.state.current_device())
        elif live.memory is not None and not lane.current:
            live.memory.rests(lane)
        if live.awaited_event is not None:
            self.wait_on(live, lane, live.awaited_event, at)

    def adapt_fork(self, live: OpenCapture, stream: Any, at: Place | None, parent: Lane | None = None) -> None:
        """With ``strict=False``: fork a stream that never entered the capture from the current lane."""
        parent = parent or self.current_lane(live)
        device = self.device_of(stream)
        with self.state.inside:
            blocking = not self.state.platform.device.stream_flags(stream.ptr) & 1
        event = self.record_on(live, parent, at)
        self.let_wait(live, stream, event)
        lane = self.state.ledger.wait(stream.ptr, event.ptr, blocking=blocking, at=at, device=device)
        if lane is not None:
            self.entered(live, lane, stream, at)
            live.note('adapted', lane, f'{named(stream.ptr)} was forked from lane {parent.number}', at)

    def let_wait(self, live: OpenCapture, stream: Any, event: Any) -> None:
        """Let a stream that is not yet a lane wait for an event of the guard's own."""
        with self.state.inside:
            stream.wait_event(event)

    def carry_over(self, live: OpenCapture, old: LedgerCapture, at: Place | None) -> None:
        """Fork all lanes of a part that has ended into the next one, which has begun. They keep their numbers."""
        if len(old.lanes) == 1:
            return
        event = self.record_on(live, live.capture.origin, at)
        for before in old.lanes[1:]:
            stream = live.streams[before.stream]
            with self.state.inside:
                stream.wait_event(event)
            lane = self.state.ledger.wait(
                before.stream, event.ptr, blocking=before.blocking, at=before.forked_at, device=before.device
            )
            assert lane is not None
            self.entered(live, lane, stream, at)
            if old.origin.clock.get(before.number):  # it was joined, so that it is not one which adds nothing
                merge(live.capture.origin.clock, self.state.ledger.passed(lane))

    def make_current(self, live: OpenCapture, ptr: int, *, anew: bool = True, here: bool = True) -> None:
        """Note that a stream is current: in the ledger, the memory of the graph, and the lines of ``live``.

        ``anew``: it was not current before, so that it is counted. ``here``: its device is current, so that lines
        follow it. Call :meth:`State.poll` before, so that earlier nodes go to the previous stream."""
        lane = self.state.ledger.lanes.get(ptr)
        owner = None if lane is None else self.state.lives.get(lane.capture)
        if lane is not None and owner is not None:
            lane.current += anew
            if owner.memory is not None:
                owner.memory.active(lane)
        if here and live.thread == threading.get_ident():
            live.current = ptr
            if live.trace is not None:
                live.trace.stream = ptr

    def leave(self, stream: Any) -> None:
        """Note that a stream is no longer this thread's current one."""
        lane = self.state.ledger.lanes.get(stream.ptr)
        if lane is not None and lane.capture in self.state.lives:
            lane.used = True
            lane.current = max(lane.current - 1, 0)  # it may have become current before it was a lane
            self.rests(lane)

    def find_work(self, live: OpenCapture) -> None:
        """Ask the driver which lanes have work that the origin does not come after, and note it in the ledger."""
        capture = live.capture
        if len(capture.lanes) == 1:
            return
        device = self.state.platform.device
        with self.state.inside:
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
                idle = lane.segment > 1 and left <= set(lane.nodes)  # no work since its last event
                lane.worked = lane.segment - idle
                lane.used = True

    def idle(self, live: OpenCapture) -> None:
        """Note the lanes that were forked, given no work and never joined: CUDA ends such a capture without a word."""
        capture = live.capture
        for lane in capture.lanes[1:]:
            if lane.joined_at is None and not lane.worked and not capture.origin.clock.get(lane.number, 0):
                text = f'lane {lane.number} was forked and given no work, and it was never joined: it adds nothing'
                live.note('note', lane, text, _place(lane.forked_at))

    def unjoined(
        self, live: OpenCapture, call: str = 'The end of the capture', lanes: list[Lane] | None = None
    ) -> errors.UnjoinedError:
        """The error that names the given lanes, or all lanes that are not joined."""
        lanes = live.capture.unjoined() if lanes is None else lanes
        stories, last_ones = [], []
        for lane in lanes:
            parent = live.capture.lanes[lane.parent or 0]
            worked = None if live.trace is None else live.trace.last_work(lane.stream, lane.number)
            lane.last_use = worked or lane.last_use  # else the line that made it current
            last = f', last used at {lane.last_use}' if lane.last_use else ''
            again, waiting = lane.why_unjoined, _waiting(live.capture, lane)
            if waiting is None:
                last_ones.append(lane)
            else:
                again = f'; lane {waiting.number} waits for all of its work'
            facts = {name: getattr(lane, name) for name in ('stream', 'forked_at', 'last_use', 'joined_at')}
            text = f'lane {lane.number} ({named(lane.stream)}) forked from lane {parent.number} at {lane.forked_at}'
            stories.append({'lane': lane.number, **facts, 'text': f'{text}{last}{again}'})
        names = '; '.join(str(s['text']) for s in stories)
        error = errors.UnjoinedError(
            f'{counted(len(lanes), "lane")} left unjoined: {names}',
            stream=lanes[0].stream if lanes else None,
            lane=lanes[0].number if lanes else None,
            location=here() if len(last_ones) != 1 else _place(last_ones[0].last_use),
            rule=f'{RULES["unjoined"].says} ({Code.cudaErrorStreamCaptureUnjoined.name} would follow, '
            'and the graph would be lost).',
            remedy=RULES['unjoined'].remedy,
            cuda_error=Code.cudaErrorStreamCaptureUnjoined.name,
        )
        error.lanes = stories
        return error

    def join(self, live: OpenCapture, lane: Lane, at: Place | None) -> None:
        """Let the origin wait for a lane."""
        self.wait_on(live, live.capture.origin, self.record_on(live, lane, at), at)
        lane.joined_at = at

    def join_all(self, live: OpenCapture) -> None:
        """With ``strict=False``: join all open lanes to the origin."""
        at = here()
        for lane in live.capture.unjoined():
            self.join(live, lane, at)
            live.note('adapted', lane, f'lane {lane.number}, left unjoined, was joined to the origin', at)


def passed_by(live: OpenCapture, lane: Lane, clock: Clock) -> set[int]:
    """The nodes that a lane's next work comes after, if they all lie before what a clock stands for; else none.

    The lane has got no node since an event was recorded on it then, and the clock has that event."""
    memory = live.memory
    if memory is None or not lane.nodes or clock.get(lane.number, 0) < lane.segment - 1:
        return set()
    if not is_before(lane.clock, clock):
        return set()
    before = set(memory.ends(lane.stream))
    return before if before == set(lane.nodes) else set()


def only_after(device: Any, lane: Lane, before: set[int], ends: Nodes) -> Nodes | None:
    """After a wait for the nodes ``ends``, which come after all of ``before``, let a lane's next work come after these
    alone. Return them if that was needed, else None."""
    if not ends or before <= set(ends):
        return None
    device.set_dependencies(lane.stream, ends)
    lane.nodes = ends
    return ends


def _ancestors(nodes: tuple[int, ...], edges: list[tuple[int, int]]) -> set[int]:
    parents: dict[int, list[int]] = {}
    for a, b in edges:
        parents.setdefault(b, []).append(a)
    seen, new = set[int](), set(nodes)
    while new:
        seen |= new
        new = {parent for node in new for parent in parents.get(node, ())} - seen
    return seen


def _waiting(capture: LedgerCapture, lane: Lane) -> Lane | None:
    """A lane other than the origin that comes after all work of a lane."""
    others = [other for other in capture.lanes[1:] if other is not lane]
    return next((other for other in others if other.clock.get(lane.number, 0) >= lane.worked), None)


def _place(at: object) -> Place | None:
    return at if isinstance(at, Place) else here()
