"""Streams that are current in a capture but not part of it: they are held, and released.

The legacy stream can not be captured, and its work would run at once. A *placeholder*, a stream of the guard's own, is
current in its place. It is held, like streams from outside, so that work sent to it is found; with ``strict=False`` it
is a lane.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

from capturekit.guard.allocators import UNSEEN, Allocators, escape_rule
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.parts import Parts
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus, Mode, Rule
from capturekit.model.source_line import Place, here

#: If the legacy stream is current during a capture begun by hand, its work was meant for the capture.
NOT_CURRENT = replace(
    RULES['escaped-work'],
    says='`begin_capture()` does not make its stream current, so that CuPy still gives work to the legacy default '
    'stream: it would run at once and be missing from the graph',
    remedy='Make the captured stream current: `with stream:` around `begin_capture()`, the work and `end_capture()`.',
)
#: The same where the captured stream was current, and is not any more.
NOT_CURRENT_NOW = replace(
    NOT_CURRENT,
    says='The captured stream was current when its capture was begun, and is not any more though the capture is open, '
    'so that CuPy gives work to the legacy default stream: it would run at once and be missing from the graph',
    remedy='Call `end_capture()` before the block `with stream:` is left, also where an exception leaves it (`try`, '
    '`finally`).',
)


class OutsideStreams:
    """Holds and releases streams that are current in a capture but not part of it."""

    def __init__(self, state: State, verdicts: Verdicts, allocators: Allocators, lanes: Lanes) -> None:
        self.state = state
        self.verdicts = verdicts
        self.allocators = allocators
        self.lanes = lanes

    def hold(self, live: OpenCapture, stream: Any) -> None:
        """Hold a stream: capture it into a graph that is thrown away, so that its work does not run."""
        ptr = stream.ptr
        with self.state.inside:
            device = self.state.platform.device
            if device.stream_status(ptr) is CaptureStatus.NONE:
                live.outside.held[ptr] = (stream, here())  # first, so that an interrupt leaves nothing held unnoted
                try:
                    device.begin_capture(ptr, Mode.RELAXED)
                except CudaCallError:
                    del live.outside.held[ptr]
                    self._let_go(ptr)
                    raise
        live.poll()
        self.lanes.make_current(live, ptr)

    def release(self, ptr: int, silent: bool = False) -> CaptureError | None:
        """Release a held stream. If it got work, that work has escaped the capture."""
        for live in self.state.lives.values():
            if ptr in live.outside.held:
                _stream, at = live.outside.held[ptr]
                mine = live.thread == threading.get_ident()
                seen = live.trace.taken(ptr) if live.trace is not None and mine else None
                with self.state.inside:
                    count = self._nodes_at_end(ptr)
                    live.outside.held.pop(ptr, None)  # last, so that an interrupt leaves nothing held unnoted
                if count:
                    return self._raise_found(live, self.escaped(live, ptr, count, seen, at), silent)
        return None

    def _nodes_at_end(self, ptr: int) -> int:
        """End the capture that holds a stream, and return how many nodes it had."""
        device = self.state.platform.device
        if device.stream_status(ptr) is CaptureStatus.NONE:
            return 0  # an interrupt came between the note and the capture
        try:
            graph = device.end_capture(ptr)
        except CudaCallError:
            self._let_go(ptr)
            return 1  # a call on it lost the capture that held it: that is escaped work as well
        count: int = device.graph_node_count(graph)
        device.graph_destroy(graph)
        return count

    def _let_go(self, ptr: int) -> None:
        """End the capture that holds a stream, after holding or releasing it has failed."""
        device = self.state.platform.device
        with suppress(CudaCallError):  # the failure that led here is the one that is raised
            if device.stream_status(ptr) is not CaptureStatus.NONE:
                device.graph_destroy(device.end_capture(ptr))

    def _raise_found(self, live: OpenCapture, error: CaptureError, silent: bool) -> CaptureError | None:
        """Raise or return the error for work on a held stream. In another thread, keep it for the capture's end."""
        if live.thread != threading.get_ident():
            live.outside.escaped = error
            return None
        if silent:
            return error
        try:
            self.hold_again()
            raise error
        finally:
            del error  # its traceback holds this frame

    def escaped(self, live: OpenCapture, ptr: int, count: int, seen: Place | None, since: Place | None) -> CaptureError:
        rule, of = self.rule_for(live, ptr, since)
        device = self.state.placeholders.get(ptr) if rule is VARIANTS['work-on-another-device'] else None
        current = 'the stream' if rule is not VARIANTS['work-on-another-device'] else 'the device'
        held = '' if seen is not None else f', from the line where {current} became current on'
        return rule.error(
            counted(count, 'piece', ' of work') + ('' if device is None else f' on device {device}'),
            stream=ptr if of is None else of,
            subject=self.verdicts.subject(of),
            location=seen or since,
            rule=f'{rule.says}; it was held back{held}.',
            remedy=rule.remedy,
        )

    def not_seen(self, ptr: int) -> CaptureError:
        """The error for a stream that became current unseen while lines are not followed, so that it is held late."""
        rule = RULES['legacy-stream' if ptr in LEGACY_HANDLES else 'escaped-work']
        return rule.error(
            'Work that can not be seen',
            stream=ptr,
            subject=self.verdicts.subject(ptr),
            location=here(),
            rule=f'{rule.says}. The stream became current before this line, and with `lines=False` nobody knows when.',
            remedy=UNSEEN,
        )

    def rule_for(self, live: OpenCapture, ptr: int, since: Place | None = None) -> tuple[Rule, int | None]:
        """The rule for a stream that is kept out of a capture, and the stream that the message names.

        ``since``: the line at which it became current.
        """
        device = self.state.placeholders.get(ptr)
        if device not in (None, live.origin_device):
            return VARIANTS['work-on-another-device'], None
        if device is not None and live.memory is None:
            return NOT_CURRENT_NOW if live.begun_current else NOT_CURRENT, LEGACY_HANDLES[0]
        rule = escape_rule(live, since, ptr, device is not None)
        return rule, ptr if device is None else LEGACY_HANDLES[0]

    def hold_again(self) -> None:
        """Hold an outside stream again if it is still current after a call on it."""
        with self.state.lock:
            mine = self.state.mine()
            if mine is None or not mine.strict:
                return
            stream = self.state.platform.cupy.cuda.get_current_stream()
            if self.lanes.is_outside(stream.ptr) and stream.ptr not in mine.outside.held:
                self.hold(mine, stream)
                self.allocators.refresh()


#: The name under which spare streams are kept, with the device, for the next capture.
_STOCK = 'placeholder'


class Placeholders:
    """Streams of the guard's own in the place of the legacy stream."""

    def __init__(self, state: State, lanes: Lanes, parts: Parts, outside: OutsideStreams) -> None:
        self.state = state
        self.lanes = lanes
        self.parts = parts
        self.outside = outside

    def put(self, live: OpenCapture, parent: Lane) -> None:
        """Make a placeholder current in the place of the legacy stream, which has just become current.

        With ``strict=False`` the placeholder is a lane, forked from ``parent``; on the device of a ``ck.capture``,
        which has made its origin current there, ``parent`` itself takes the place.
        """
        device = self.state.current_device()
        if device == live.origin_device and live.memory is not None and not live.strict:
            self.state.own('cupy.cuda.stream._BaseStream.use', live.streams[parent.stream])
            live.note('adapted', parent, f'work on the legacy stream was moved to lane {parent.number}', here())
            return self.lanes.make_current(live, parent.stream)
        if not live.strict:
            self.parts.refuse_second_device(live)
        legacy = self.state.platform.cupy.cuda.get_current_stream()
        if live.caller is not None:
            live.caller.outside.setdefault((device, 0), legacy)
        known = live.devices.placeholders.get(device)
        stream = known[0] if known is not None else live.devices.forked.get(device) or self._spare(device)
        if live.strict:
            self.outside.hold(live, stream)
        else:
            live.devices.forked[device] = stream
            if self.lanes.is_outside(stream.ptr):
                self.lanes.adapt_fork(live, stream, here(), parent)
        self.state.own('cupy.cuda.stream._BaseStream.use', stream)
        self.state.placeholders[stream.ptr] = device
        live.devices.placeholders[device] = stream, legacy
        self.lanes.make_current(live, stream.ptr)

    def _spare(self, device: int) -> Any:
        """Return an unused stream of the current device."""
        stock: list[Any] = self.state.platform.device.spare_streams.setdefault((device, _STOCK), [])
        with self.state.inside:
            return stock.pop() if stock else self.state.platform.cupy.cuda.Stream(non_blocking=True)

    def give_back(self, device: int, stream: Any) -> None:
        """Give back a stream that was a placeholder on a device."""
        self.state.platform.device.spare_streams.setdefault((device, _STOCK), []).append(stream)

    def standing_for(self, ptr: int) -> int:
        """Return the placeholder that is current in the place of the legacy stream; any other stream itself."""
        mine = self.state.mine()
        if ptr in LEGACY_HANDLES and mine is not None:
            known = mine.devices.placeholders.get(self.state.current_device())
            return ptr if known is None else int(known[0].ptr)
        return ptr

    def meant(self, stream: Any) -> Any:
        """Return the stream that a call means: the legacy one, if the given stream is its placeholder."""
        device = self.state.placeholders.get(int(getattr(stream, 'ptr', stream)))
        for live in list(self.state.lives.values()) if device is not None else ():
            if live.memory is None and device in live.devices.placeholders:
                legacy = live.devices.placeholders[device][1]
                return legacy.ptr if isinstance(stream, int) else legacy
        return stream
