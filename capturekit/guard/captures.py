"""Captures begin, are cut in two, and end.

If a capture is lost, or has lanes that are not joined, ``cudaStreamEndCapture`` destroys the graph that was captured
into, also one that was there before, and also the body of a conditional node. The graph around such a node then ends
the process when it is destroyed or instantiated, and so does destroying the node (measured on driver 580.159.04). So
the recorded work is joined before a capture is thrown away, and a graph that has lost a body is never destroyed.

A capture is cut where something has to happen at every launch between two parts. All lanes are joined there. The
driver's capture ends, and a new one begins on the origin: into the body of a conditional node, if the device decides
whether the rest runs, or into another graph, if the host does. All other lanes are forked again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from capturekit.guard.allocators import Allocators, Uploads
from capturekit.guard.lanes import Lanes
from capturekit.guard.line_trace import TRACING
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.own_kernels import Checks
from capturekit.launch.plan import Part, Plan
from capturekit.model import errors
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import EventMark
from capturekit.model.rules import CaptureStatus, Code, Mode
from capturekit.model.source_line import Place, here


def driver_mode(mode: Mode) -> Mode:
    """The mode in which the driver captures for a capture of this mode.

    In CUDA's global mode a call of another thread that the guard does not see loses the capture. Thread-local mode
    forbids the capturing thread the same calls, and other threads none."""
    return Mode.THREAD_LOCAL if mode is Mode.GLOBAL else mode


class Captures:
    """Notes that captures begin and end. Functions in ``before_end`` are called while the guard still knows the
    capture, those in ``after_end`` when it has forgotten it; other components fill both."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.before_end: list[Callable[[OpenCapture], None]] = []
        self.after_end: list[Callable[[OpenCapture], None]] = []

    def opened(self, live: OpenCapture) -> None:
        """Note a capture that has begun."""
        with self.state.lock:
            self.state.lives[live.capture] = live
            self.state.threads.setdefault(live.thread, []).append(live)
            live.streams[live.origin.ptr] = live.origin
            live.current = self.state.current_stream().ptr
            live.note('begin', live.capture.origin, f'capture begun in {live.recording.mode} mode', live.at)

    def settle(self, live: OpenCapture) -> None:
        """Find out which line made which nodes, before a capture ends and its nodes can't be read any more."""
        if live.trace is None:
            return
        live.trace.poll()
        order, device = None, live.platform.device
        with self.state.inside, suppress(CudaCallError):  # the nodes of a lost capture can't be read
            info = device.capture_info(live.origin.ptr)
            if info.status is CaptureStatus.ACTIVE:
                order, live.parts.edges = live.order_of(info.graph), device.graph_edge_count(info.graph)
        live.trace.finish(order)

    def gone(self, live: OpenCapture) -> None:
        """Forget a capture that has ended. Threads that wait for its end continue."""
        with self.state.lock:
            try:
                for tell in self.before_end:
                    tell(live)
            finally:
                self._forget(live)
            for tell in self.after_end:
                tell(live)

    def _forget(self, live: OpenCapture) -> None:
        """Take the capture out of the ledger, the trace of lines, and its thread's list.

        Garbage is let go last: what destructors do while the capture counts as open would be taken for the capture's.
        """
        state = self.state
        try:
            state.ledger.end(live.capture)
            live.allocators.clear()
            if live.trace is not None:
                TRACING.close(live.trace)
            state.lives.pop(live.capture, None)
            left = [one for one in state.threads.pop(live.thread, ()) if one is not live]
            if left:
                state.threads[live.thread] = left
            state.closed.notify_all()
        finally:
            if live.uncollected is not None:
                live.uncollected.let_go()


def join_for_good(device: Any, origin: int, graph: int, count: int = 0) -> None:
    """Order the origin after all nodes but the first ``count``, before a failing capture into ``graph`` ends."""
    if device.stream_status(origin) is CaptureStatus.ACTIVE:
        device.set_dependencies(origin, device.graph_nodes(graph)[count:])


def end_driver_capture(live: OpenCapture) -> int:
    """End the driver's capture on the origin and return its graph; note what CUDA destroys if that fails."""
    try:
        return int(live.platform.device.end_capture(live.origin.ptr))
    except CudaCallError:
        if in_body(live):
            live.parts.spoilt = True
        elif live.parts.current is not None:
            live.parts.current.graph = 0
        raise


def emptied(device: Any, graph: int, decided: dict[int, list[int]], first: int = 0) -> None:
    """Destroy the nodes of a graph, from number ``first`` on. A conditional node stays, with empty bodies and without
    edges: a graph whose condition has lost its node can't be instantiated any more."""
    for node in reversed(device.graph_nodes(graph)[first:]):
        if node not in decided:
            device.node_destroy(node)
        for body in decided.get(node, ()):
            emptied(device, body, decided)


def in_body(live: OpenCapture) -> bool:
    """Whether the driver captures into the body of a conditional node, which belongs to the graph around it."""
    return bool(live.parts.check_node or live.decisions.open)


#: ``cudaMemoryTypeDevice``, ``cudaMemoryTypeManaged``.
_OF_DEVICES = (2, 3)
_CHECKED = 'The value that was read is checked before anything else runs, so that all lanes have to be joined.'
#: The kinds of nodes that the body of a conditional node can hold.
INSIDE = frozenset({'kernel', 'memcpy', 'memset', 'empty', 'graph', 'conditional'})


@dataclass(eq=False)
class Parts:
    """Cuts an open capture in two, if something has to happen between the parts at every launch."""

    state: State
    verdicts: Verdicts
    allocators: Allocators
    lanes: Lanes
    uploads: Uploads

    def plan_of(self, live: OpenCapture) -> Plan:
        """The plan that the capture's graph will follow; made when it is first needed."""
        if live.recorder.into:
            raise self.verdicts.error(
                'A launch of more than one graph',
                rule='The graph that this block records into is not launched by capturekit.',
                remedy='Record this in another capture, without into=: checked host reads, random numbers of the host, '
                'and calls between two graphs need a launch of capturekit.',
            )
        if live.parts.plan is None:
            live.parts.plan = Plan(live.platform)
            live.parts.plan.state = live.parts.state
            live.parts.current = live.parts.plan.first = Part()
        return live.parts.plan

    def part_of(self, live: OpenCapture) -> Part:
        """Return the part that is being recorded."""
        self.plan_of(live)
        assert live.parts.current is not None
        return live.parts.current

    def checks_of(self, live: OpenCapture) -> Checks:
        """The checks of the capture's graph."""
        plan = self.plan_of(live)
        if plan.checks is None:
            upload = partial(self.uploads.upload, live)
            with self.state.on(live.origin_device):
                plan.checks = Checks(live.platform, live.graph_memory, upload, live.parts.state)
            plan.state = plan.checks.state
        return plan.checks

    def check(self, live: OpenCapture, array: Any, value: np.ndarray[Any, Any], at: Place | None) -> None:
        """Record a check of ``array``, and continue where only launches come that it holds for: in the body of a node,
        or, in graphs of several devices and where that was asked for, in a part that the host launches after it."""
        device, on_host = live.platform.device, self.device_count(live) > 1 or live.parts.checked_by == 'host'
        if not array.flags.c_contiguous:
            array = self.state.platform.cupy.ascontiguousarray(array)
        part, checks = self.part_of(live), self.checks_of(live)
        before = self.leave_lanes(live, at)
        with self.state.on(live.origin_device):
            if on_host:
                self._record_check(live, array, value, at, 0)
            else:
                part.graph = part.graph or device.capture_info(live.origin.ptr).graph
                condition = device.condition_create(part.graph)
                self._record_check(live, array, value, at, condition)
                part.checks = len(checks.made)
                node = live.parts.check_node
                after = (node,) if node else device.capture_info(live.origin.ptr).dependencies
                self._end_segment(live)
                live.parts.check_node, (body,) = device.add_conditional(part.graph, after, condition, 'if', 1)
                part.bodies.append(body)
                self.go_on(live, before, at, body)
        if on_host:
            self.end_part(live)
            self.go_on(live, before, at)

    def cut_on_host(self, live: OpenCapture, at: Place | None, *why: str) -> None:
        """End this part, and continue in another graph. ``why``: as in :meth:`leave_lanes`."""
        before = self.leave_lanes(live, at, *why)
        self.end_part(live)
        self.go_on(live, before, at)

    def _record_check(self, live: OpenCapture, array: Any, value: Any, at: Place | None, condition: int) -> None:
        """Record a check on the origin, whose device is current, after all work so far.

        An array of another device is copied to this one: no kernel here can be sure to reach it over there."""
        cupy = live.platform.cupy
        with current_for_now(cupy.cuda, live.origin):
            if int(array.data.device_id) != live.origin_device:
                copied = cupy.ndarray(array.shape, array.dtype, live.graph_memory.grow(array.nbytes))
                copied.data.copy_from_device_async(array.data, array.nbytes)
                array = copied
            self.checks_of(live).record(array, value, at, condition)

    def end_part(self, live: OpenCapture) -> None:
        """End this part and the driver's capture of it; the next part is not begun yet."""
        plan, part = self.plan_of(live), self.part_of(live)
        with self.state.inside:
            graph = self._end_segment(live)
        part.graph, live.parts.spoilt = 0 if live.parts.spoilt else part.graph or graph, False
        part.checks = len(plan.checks.made) if plan.checks is not None else 0
        plan.steps.append(part)
        live.parts.current, live.parts.check_node = Part(), 0

    def leave_lanes(
        self, live: OpenCapture, at: Place | None, what: str = 'A host read while lanes are open', rule: str = _CHECKED
    ) -> Any:
        """Join the current lane, and with ``strict=False`` all others, too; return the stream that is current."""
        self.verdicts.check(live)
        self.lanes.find_work(live)
        current = self.state.current_stream()
        mine = live.lane_of(current)
        if mine in live.capture.unjoined():
            self.lanes.join(live, mine, at)
        if live.capture.unjoined():
            if live.strict:
                raise (errors.HostReadError if rule is _CHECKED else errors.UnjoinedError)(
                    what,
                    location=at,
                    rule=rule,
                    remedy='Join them first: `cap.join(stream)`; or open the capture with strict=False.',
                )
            self.lanes.join_all(live)
        return current

    @staticmethod
    def device_count(live: OpenCapture) -> int:
        """How many devices lanes have been on so far."""
        return len({lane.device for capture in (*live.parts.past, live.capture) for lane in capture.lanes})

    def refuse_second_device(self, live: OpenCapture) -> None:
        """Refuse a lane on another device in a graph that decides on the device."""
        if live.decisions.bodies or live.parts.check_node:
            raise decided_here('A lane of another device')

    def unfit_copies(self, live: OpenCapture, body: int) -> errors.CaptureError | None:
        """The error for a body that copies between devices: launching it would fail and end the CUDA context."""
        if not live.devices.before:
            return None
        infos = live.platform.device.node_infos(body)
        ends = [(i.detail.get('src'), i.detail.get('dst')) for i in infos if i.kind == 'memcpy']
        if any(len({place for place in map(self._lies_on, pair) if place is not None}) > 1 for pair in ends):
            return decided_here('A copy between two devices')
        return None

    def _lies_on(self, address: Any) -> int | None:
        """The device whose memory is at an address."""
        if not isinstance(address, int):
            return None
        found = self.state.platform.cupy.cuda.runtime.pointerGetAttributes(address)
        return int(found.device) if found.type in _OF_DEVICES else None

    def _end_segment(self, live: OpenCapture) -> int:
        device = live.platform.device
        if live.parts.check_node and live.parts.current is not None:
            self._refuse_unfit(live, live.parts.current.bodies[-1])
        live.poll()
        info = device.capture_info(live.origin.ptr)
        live.recording.node_count += device.graph_node_count(info.graph)
        live.recording.edge_count += device.graph_edge_count(info.graph)
        if live.trace is not None:
            live.trace.next_part(live.order_of(info.graph))
        graph = end_driver_capture(live)
        self.has_ended(live)
        return graph

    def has_ended(self, live: OpenCapture) -> None:
        """Note that the driver's capture has ended; the next one will go on."""
        with self.state.lock:
            live.parts.past.append(live.capture)
            self.state.ledger.end(live.capture)

    def _refuse_unfit(self, live: OpenCapture, body: int) -> None:
        """Raise for a node that can't stand behind a check of the device: instantiating could end the process."""
        fault = self.unfit_copies(live, body) or self.unfit_node(
            live,
            body,
            here(),
            'behind a host read that the device checks',
            'What follows such a check is the body of a conditional node, which holds',
            'Make that call before the host read, or in another graph.',
            Code.cudaErrorInvalidValue,
        )
        if fault is not None:
            raise fault

    @staticmethod
    def unfit_node(
        live: OpenCapture, body: int, at: Place | None, where: str, rule: str, remedy: str, code: Code
    ) -> errors.CaptureError | None:
        """The error for the first node in a graph that the body of a conditional node can't hold."""
        kinds = (live.platform.device.node_kind(body, node)[0] for node in live.platform.device.graph_nodes(body))
        for kind in kinds:
            if kind not in INSIDE:
                what, rule = f'A {kind} node {where}', f'{rule} {", ".join(sorted(INSIDE))} nodes.'
                return errors.UnsupportedCallError(what, location=at, rule=rule, remedy=remedy, cuda_error=code.name)
        return None

    def go_on(
        self, live: OpenCapture, before: Any, at: Place | None, graph: int = 0, after: Sequence[int] = ()
    ) -> None:
        """Continue in a new capture of the driver: into a graph, after some of its nodes, or into one of its own."""
        with self.state.lock:  # from here on nobody else may begin to wait for the device
            self.begin(live, graph, after)
            self._begin_segment(live, before, at)

    def begin(self, live: OpenCapture, graph: int = 0, after: Sequence[int] = ()) -> None:
        """Begin the driver's next capture on the origin, when nobody waits for the device. The caller has the lock."""
        device, ptr, mode = live.platform.device, live.origin.ptr, live.capture.mode
        with self.state.on(live.origin_device):
            self.verdicts.give_way()
            device.begin_capture_to(ptr, graph, mode, after) if graph else device.begin_capture(ptr, mode)

    def _begin_segment(self, live: OpenCapture, before: Any, at: Place | None) -> None:
        """Begin the ledger's next capture, after the driver's next one has begun on the origin."""
        old = live.capture
        with self.state.lock:
            origin, me = old.origin, threading.get_ident()
            capture = self.state.ledger.begin(
                live.origin.ptr, old.mode, me, blocking=origin.blocking, at=at, device=origin.device
            )
            self.state.lives.pop(old, None)
            self.state.lives[capture] = live
            live.capture, live.awaited_event = capture, None
            capture.origin.priority = origin.priority
            live.graph_memory.opened(capture)
            live.note('cut', capture.origin, f'part {len(live.parts.past) + 1} begins', at)
            if before.ptr == live.origin.ptr:
                self.lanes.make_current(live, before.ptr)
            self.lanes.carry_over(live, old, at)
            self.allocators.refresh()

    def is_past(self, live: OpenCapture | None, mark: EventMark | None) -> bool:
        """Whether an event belongs to an earlier part of this capture, so that all its work comes before this part."""
        return live is not None and mark is not None and mark.capture in live.parts.past


def decided_here(what: str) -> errors.CaptureError:
    """The error for work of several devices in a graph that decides on the device."""
    return errors.UnsupportedCallError(
        what,
        location=here(),
        rule='A graph that decides on the device (a loop, a branch, a host read that is checked there) is of one '
        'device: CUDA instantiates no decision with work for another, and one that copies from there fails as it runs.',
        remedy="Record the other device's work in another graph, or make lanes on all devices before the first host "
        'read.',
    )
