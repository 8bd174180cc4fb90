"""Which stream is current: streams become current or are left, devices with them, and code reads a stream's properties.

Streams that are current in a capture but not part of it are *held*: they are captured into a graph that is thrown away,
so that work sent to them neither runs nor is missed. The legacy stream can not be captured. A *placeholder*, a stream
of the guard's own, is current in its place; it is held, or, with ``strict=False``, a lane. CuPy has a current stream
for each device, so ``with cp.cuda.Device(1):`` makes the legacy stream there current: a placeholder takes its place,
since the next line may enter a lane."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from capturekit.guard.allocators import UNSEEN, Allocators
from capturekit.guard.caller_streams import CallerStreams, UnseenHandle
from capturekit.guard.captures import Parts
from capturekit.guard.entry_points import Entry
from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State, handle
from capturekit.guard.verdicts import Verdicts
from capturekit.model.cleanup import Undo
from capturekit.model.counted import counted
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.ledger import LEGACY_HANDLES, Lane, named
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus, Code, Mode, Operation
from capturekit.model.source_line import Place, here

#: The name under which spare streams are kept, with the device, for the next capture.
_STOCK = 'placeholder'


@dataclass(eq=False)
class CurrentStreams:
    """Holds and releases streams that are current in a capture but not part of it, and has placeholders."""

    state: State
    verdicts: Verdicts
    allocators: Allocators
    lanes: Lanes
    callers: CallerStreams
    parts: Parts

    def hold(self, live: OpenCapture, stream: Any) -> None:
        """Hold a stream: capture it into a graph that is thrown away, so that its work does not run."""
        ptr = stream.ptr
        with self.state.inside:
            device = self.state.platform.device
            if self.state.policy.holds and device.stream_status(ptr) is CaptureStatus.NONE:
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
        live = next((one for one in self.state.lives.values() if ptr in one.outside.held), None)
        if live is None:
            return None
        _stream, at = live.outside.held[ptr]
        mine = live.thread == threading.get_ident()
        seen = live.trace.taken(ptr) if live.trace is not None and mine else None
        with self.state.inside:
            count = self._nodes_at_end(ptr)
            live.outside.held.pop(ptr, None)  # last, so that an interrupt leaves nothing held unnoted
        if not count:
            return None
        error = self.escaped(live, ptr, count, seen, at)
        if not mine:
            live.outside.escaped = error  # the capture's end raises it, in its own thread
            return None
        if silent:
            return error
        try:
            self.hold_again()
            raise error
        finally:
            del error  # its traceback holds this frame

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

    def escaped(self, live: OpenCapture, ptr: int, count: int, seen: Place | None, since: Place | None) -> CaptureError:
        rule, of = self.allocators.rule_for(live, ptr, since)
        where, current = '', 'stream'
        if rule is VARIANTS['work-on-another-device']:
            where, current = f' on device {self.state.placeholders[ptr]}', 'device'
        held = '' if seen is not None else f', from the line where the {current} became current on'
        return rule.error(
            f'{counted(count, "piece", " of work")}{where}',
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

    def hold_again(self) -> None:
        """Hold an outside stream again if it is still current after a call on it."""
        with self.state.lock:
            mine = self.state.mine()
            if mine is None or not mine.strict or not self.state.policy.holds:
                return
            stream = self.state.current_stream()
            if self.lanes.is_outside(stream.ptr) and stream.ptr not in mine.outside.held:
                self.hold(mine, stream)
                self.allocators.refresh()

    def put_placeholder(self, live: OpenCapture, parent: Lane) -> None:
        """Make a placeholder current in the place of the legacy stream, which has just become current.

        With ``strict=False`` it is a lane, forked from ``parent``; on the device of a ``ck.capture``, whose origin was
        current there, it is ``parent`` itself."""
        if not self.state.policy.records or (live.strict and not self.state.policy.holds):
            return  # the legacy stream stays
        device = self.state.current_device()
        if device == live.origin_device and live.memory is not None and not live.strict:
            self.state.use(live.streams[parent.stream])
            live.note('adapted', parent, f'work on the legacy stream was moved to lane {parent.number}', here())
            self.lanes.make_current(live, parent.stream)
            return
        if not live.strict:
            self.parts.refuse_second_device(live)
        legacy = self.state.current_stream()
        if live.caller is not None:
            live.caller.outside.setdefault((device, 0), legacy)
        known = live.devices.placeholders.get(device)
        stream = known[0] if known is not None else live.devices.forked.get(device)
        if stream is None:
            spare = self.spare(device)
            with self.state.inside:
                stream = spare.pop() if spare else self.state.platform.cupy.cuda.Stream(non_blocking=True)
        if live.strict:
            self.hold(live, stream)
        else:
            live.devices.forked[device] = stream
            if self.lanes.is_outside(stream.ptr):
                self.lanes.adapt_fork(live, stream, here(), parent)
        self.state.use(stream)
        self.state.placeholders[stream.ptr] = device
        live.devices.placeholders[device] = stream, legacy
        self.lanes.make_current(live, stream.ptr)

    def spare(self, device: int) -> list[Any]:
        """The streams of a device that are kept for placeholders."""
        stock: list[Any] = self.state.platform.device.spare_streams.setdefault((device, _STOCK), [])
        return stock

    def meant(self, stream: Any) -> Any:
        """Return the stream that a call means: the legacy one, if the given stream is its placeholder."""
        device = self.state.placeholders.get(int(getattr(stream, 'ptr', stream)))
        for live in list(self.state.lives.values()) if device is not None else ():
            if live.memory is None and device in live.devices.placeholders:
                legacy = live.devices.placeholders[device][1]
                return legacy.ptr if isinstance(stream, int) else legacy
        return stream

    def stream_use(self, entry: Entry, original: Callable[..., Any], stream: Any) -> Any:
        with self.state.lock:
            self.state.poll()
            chosen = self.choose(stream, entry.call)
            before = self.state.current_stream()
            if before.ptr != chosen.ptr:
                self.release(before.ptr)
            original(chosen)
            self.lanes.leave(before)
            self._arrive(chosen, before)
        return stream

    def stream_exit(self, original: Callable[..., Any], stream: Any, *exc: Any) -> Any:
        with self.state.lock:
            self.state.poll()
            before = self.state.current_stream()
            answer = original(stream, *exc)
            now = self.state.current_stream()
            escaped = self.release(before.ptr, silent=True) if before.ptr != now.ptr else None
            self.lanes.leave(before)
            self._arrive(now, before)
            self._found_in_block(escaped, exc)
        return answer

    # -- the lanes of a scope: capturekit makes these calls itself, so nothing is asked twice about them --------------

    def enter_lane(self, stream: Any, ptr: int, device: Any, frame: FrameType) -> bool:
        """Let a frame make a lane of a scope current; False, and nothing is done, where that may be special."""
        state, made = self.state, self.state.installation.originals
        with state.lock:
            at = here(frame)
            found = self._between_lanes(ptr, at)
            if found is None:
                return False
            live, before, lane, ends = found
            with state.inside:
                made[_DEVICE_ENTER](device)
                try:
                    made[_STREAM_ENTER](stream)
                except BaseException:
                    made[_DEVICE_EXIT](device, None, None, None)
                    raise
            self._moved(live, before, lane, ends, at)
        return True

    def leave_lane(self, stream: Any, ptr: int, device: Any, frame: FrameType, *exc: Any) -> bool:
        """Let a frame leave a lane of a scope and its device; False, and nothing is done, where that may be special."""
        state, made = self.state, self.state.installation.originals
        with state.lock:
            at = here(frame)
            found = self._between_lanes(ptr, at)
            if found is None:
                return False
            live, before, _lane, ends = found
            try:
                with state.inside:
                    made[_STREAM_EXIT](stream, *exc)
                    made[_DEVICE_EXIT](device, *exc)
            finally:
                now = made[_CURRENT]()
                lane = state.ledger.lanes.get(now.__dict__['ptr'])
                if lane is not None and lane.capture is live.capture:
                    self._moved(live, before, lane, ends, at)
                else:
                    self.lanes.leave(live.streams[before.stream])
                    self._arrive(now, live.streams[before.stream])
        return True

    def _between_lanes(self, ptr: int, at: Place | None) -> tuple[OpenCapture, Lane, Lane, tuple[int, ...]] | None:
        """This thread's capture, the current lane, the lane of a handle, and the nodes before the former's next work.

        New nodes go to the current line. None if a switch may be special.
        """
        state = self.state
        # the handle is read past the wrapper, which would let capturekit's own code have it as well
        now: int = state.installation.originals[_CURRENT]().__dict__['ptr']
        mine = state.on_lanes(now, ptr)
        if mine is None or mine.memory is None:
            return None
        ends = mine.memory.ends(now)
        if ends and ends[0] < 0:  # the capture is lost
            return None
        if mine.trace is None:
            mine.active_at = at or mine.active_at
        else:
            mine.trace.poll(ends, now)
        return mine, state.ledger.lanes[now], state.ledger.lanes[ptr], ends

    def _moved(self, live: OpenCapture, before: Lane, lane: Lane, ends: tuple[int, ...], at: Place | None) -> None:
        """Note that a lane of a capture is current instead of another one, whose next work comes after ``ends``."""
        assert live.memory is not None
        before.used = True
        if before.current:
            before.current -= 1
        live.memory.moved(before, ends, lane)
        lane.last_use = at
        lane.current += 1
        if live.trace is not None:
            live.trace.stream = lane.stream
        live.current = lane.stream
        live.note('switch', lane, f'lane {lane.number} made current', at)
        self.allocators.to_lane(live, lane)

    def stands_in(self, live: OpenCapture | None, ptr: int, call: str) -> Lane | None:
        """The lane that takes the place of a stream: the origin for the stream that a graphed function's caller has
        made current, and with ``strict=False`` the current lane for the legacy stream; else None."""
        if live is not None and self.callers.is_callers(live, ptr, call):
            return live.capture.origin
        return self.lanes.current_lane(live) if live is not None and not live.strict and ptr in LEGACY_HANDLES else None

    def choose(self, stream: Any, call: str) -> Any:
        """Return the stream to make current."""
        mine = self.verdicts.start()
        lane = self.stands_in(mine, stream.ptr, call)
        if mine is not None and lane is not None:
            if mine.caller is None or lane.number:
                mine.note('adapted', lane, f'{call} of the legacy stream was moved to lane {lane.number}', here())
            return mine.streams[lane.stream]
        if mine is not None and stream.ptr in LEGACY_HANDLES:
            verdict = self.verdicts.judge(_O.WORK, stream=stream.ptr)
            refusal = self.verdicts.refusal(verdict, call, stream.ptr, RULES['legacy-stream'])
            self.state.policy.met(refusal, lambda: self.choose(stream, call))
        return stream

    def settle(self) -> bool:
        """Follow a stream that became current unseen (by a ``with`` block or a bound method from before the capture).

        Return whether there is one."""
        mine, inside = self.state.mine(), self.state.inside
        if mine is None or mine.caller is not None or inside.active() or inside.policy is not None:
            return False
        with self.state.lock:
            mine.unsettled = False
            now = self.state.current_stream()
            if now.ptr == mine.current:
                return False
            self.state.poll()
            escaped = self.release(mine.current, silent=True)
            mine.outside.escaped = mine.outside.escaped or escaped  # the end raises it: lines end here, too
            before = self.lanes.wrapped(mine.current)
            self.lanes.leave(before)
            if mine.trace is None and self.lanes.met(now.ptr, now) is None:
                mine.outside.escaped = mine.outside.escaped or self.not_seen(now.ptr)
            self._arrive(now, before)
            mine.outside.unseen.add(mine.current)
        return True

    def _arrive(self, stream: Any, before: Any) -> None:
        """Note a stream that has become current in this thread."""
        lane, mine = self.lanes.met(stream.ptr, stream), self.state.mine()
        if lane is not None and lane.capture in self.state.lives:
            live = self.state.lives[lane.capture]
            lane.last_use = here()
            self.lanes.make_current(live, stream.ptr)
            live.note('switch', lane, f'lane {lane.number} made current', lane.last_use)
        elif mine is not None and not mine.strict and not _legacy(stream):
            self.lanes.adapt_fork(mine, stream, here(), mine.lane_of(before) or mine.capture.origin)
        elif mine is not None and not _legacy(stream):
            self.hold(mine, stream)
        elif mine is not None:
            self.put_placeholder(mine, mine.capture.origin)
        self.callers.in_order(mine)
        self.allocators.refresh()

    def handed_out(self, stream: Any, ptr: int) -> int | None:
        """Note that a stream's handle was read: work on it may follow. Return the handle to give out instead, or
        None."""
        mine = self.state.mine()
        if mine is None:
            return None
        mine.unsettled = True
        if mine.trace is not None:
            mine.trace.before_line = self.settle
        if reads_for_itself(sys._getframe(2).f_globals.get('__name__', '')):
            return None
        if mine.caller is not None and (ptr == mine.origin.ptr or self.callers.is_callers(mine, ptr, _READ)):
            if self.state.current_stream().ptr == mine.origin.ptr:
                return UnseenHandle(mine.origin.ptr)
            raise self.callers.not_recorded(_READ, ptr, _ANOTHER)
        there = self.callers.null_there(mine) if mine.caller is not None and ptr in LEGACY_HANDLES else None
        if there is not None:
            return UnseenHandle(there.stream)
        with self.state.lock:
            lane = self.state.ledger.lane(ptr)
            if mine.caller is not None and (lane is None or not lane.current):
                lane = self._handed_to(mine, stream, ptr)
            if lane is None and ptr not in mine.outside.held:
                legacy = ptr in LEGACY_HANDLES
                what = 'the legacy default stream' if legacy else f'{named(ptr)}, outside of the capture,'
                text = f'the handle of {what} was read: work given to it directly is not recorded'
                if not any(step.text == text for step in mine.recording.notes):
                    mine.note('note', None, text, here())
            elif lane is not None and not lane.current and lane.capture is mine.capture:
                if mine.trace is not None:
                    mine.trace.touch(ptr)
                if not lane.suspect:
                    lane.suspect = True
                    if mine.memory is not None:
                        mine.memory.active(lane)
                    self.allocators.refresh()
        return None

    def _handed_to(self, live: OpenCapture, stream: Any, ptr: int) -> Lane | None:
        """Let a graphed function have the handle of a stream that is not current: work given to it is recorded."""
        if ptr in LEGACY_HANDLES:
            raise self.callers.not_recorded(_READ, ptr, _ANOTHER)
        if self.state.ledger.lane(ptr) is None:
            self.lanes.adapt_fork(live, stream, here())
        lane = self.state.ledger.lane(ptr)
        if lane is not None and lane.capture is live.capture and self.callers.implied(live, lane):
            raise self.callers.not_recorded(_READ, ptr, 'CUDA orders this stream with the null stream')
        return lane

    def handle_read(self, original: Callable[..., Any], stream: Any, *args: Any) -> Any:
        """Let a destructor, or a hash, read the real handle, which does not lead to work."""
        with self.state.inside:
            return original(stream, *args)

    def is_capturing(self, original: Callable[..., Any], stream: Any) -> Any:
        if any(stream.ptr in live.outside.held for live in list(self.state.lives.values())):
            return False
        return original(stream)

    def flags(self, entry: Entry, original: Callable[[Any], Any], stream: Any) -> Any:
        """Return a stream's flags as they were when it entered the capture. Asking now would lose the capture, and
        asking the legacy stream every capture with a blocking stream."""
        if not self.state.policy.holds:
            return self._asked(entry, original, stream)
        ptr = handle(stream)
        live = self.state.open_on(ptr) if self.state.policy.records else None
        if live is None and ptr not in LEGACY_HANDLES:
            return original(stream)
        answer = live is not None and not self.state.ledger.lanes[ptr].blocking
        return int(answer) if stream is ptr else answer

    def priority(self, entry: Entry, original: Callable[[Any], Any], stream: Any) -> Any:
        """Return a stream's priority. The legacy stream is not asked: its priority is the default."""
        if not self.state.policy.holds:
            return self._asked(entry, original, stream)
        return 0 if handle(stream) in LEGACY_HANDLES else original(stream)

    def _asked(self, entry: Entry, original: Callable[[Any], Any], stream: Any) -> Any:
        """Ask CUDA as CuPy does, even where that loses the capture."""
        with self.state.lock:
            verdict = self.verdicts.judge(entry.operation, stream=handle(stream))
        return self.verdicts.carry_out(verdict, entry.call, handle(stream), lambda: original(stream))

    def destroyed(self, entry: Entry, original: Callable[..., Any], stream: int) -> Any:
        with self.state.lock:
            if self.state.ledger.lane(stream) is not None:
                raise self.verdicts.error(
                    entry.call,
                    stream,
                    rule='A stream destroyed in a capture leaves its work behind, unjoined '
                    f'({Code.cudaErrorStreamCaptureUnjoined.name} would follow at the end).',
                    remedy='Destroy it after the capture.',
                    code=Code.cudaErrorStreamCaptureUnjoined,
                )
        return original(stream)

    def moved(self, original: Callable[..., Any], *args: Any) -> Any:
        """A call that makes another device current. Where a block is left, what follows its device is the exception."""
        if not self.state.policy.records:
            return original(*args)  # an eager run's work on other devices goes where it always goes
        with self.state.lock:
            mine, before = self.state.mine(), self.state.current_device()
            self.state.poll()
            answer = original(*args)
            changed = self.state.current_device() != before
            if changed and mine is None:
                self.allocators.refresh()
            elif changed and mine is not None:
                left = self.state.current_stream(before)
                escaped = self._depart(mine, before)
                try:
                    self._land(mine, mine.lane_of(left) or mine.capture.origin)
                    self._found_in_block(escaped, args[1:])
                finally:
                    del escaped  # its traceback holds this frame
        return answer

    def _found_in_block(self, escaped: CaptureError | None, exc: tuple[Any, ...]) -> None:
        """Raise the error for escaped work, if there is one, at the end of a block.

        An exception of the block's own is not replaced: the end of the capture raises the error if that is caught."""
        mine = self.state.mine()
        try:
            if escaped is not None and (mine is None or not exc or exc[0] is None):
                raise escaped
            if escaped is not None and mine is not None:
                if exc[1] is not None:
                    exc[1].add_note(f'capturekit: {escaped}')
                mine.outside.escaped = escaped
        finally:
            del escaped  # its traceback holds this frame

    def _land(self, live: OpenCapture, parent: Lane) -> None:
        """Note the stream that is current on the device that has just become current."""
        stream = self.state.current_stream()
        lane = self.state.ledger.lane(stream.ptr)
        self.callers.works_on(live, self.state.current_device())
        if stream.ptr in LEGACY_HANDLES:
            self.put_placeholder(live, parent)
        elif lane is None and live.strict:
            self.hold(live, stream)
        elif lane is None:
            self.lanes.adapt_fork(live, stream, here(), parent)
        ptr = self.state.current_stream().ptr
        lane, owner = self.state.ledger.lane(ptr), self.state.open_on(ptr)
        if lane is not None and owner is not None:
            lane.last_use = here()
            text = f'lane {lane.number} made current, with device {lane.device}'
            owner.note('switch', lane, text, lane.last_use)
        self.lanes.make_current(live, ptr, anew=False)
        self.callers.in_order(live)
        self.allocators.refresh()

    def _depart(self, live: OpenCapture, device: int) -> CaptureError | None:
        """Remove the placeholder of a device that is no longer current; return the error for work that was found on
        it."""
        stream = self.state.current_stream(device)
        if device not in live.devices.placeholders:
            return self.release(stream.ptr, silent=True)
        placeholder, legacy = live.devices.placeholders.pop(device)
        try:
            escaped = self.release(stream.ptr, silent=True)
            found = self.release(placeholder.ptr, silent=True)
            if stream.ptr == placeholder.ptr:
                with self.state.on(device):
                    self.state.use(legacy)
        finally:
            self.state.placeholders.pop(placeholder.ptr, None)
        if live.strict:
            self.spare(device).append(placeholder)
        else:
            self.lanes.leave(placeholder)
        return found or escaped

    def restore(self, live: OpenCapture) -> None:
        """At the end of the block, make the origin's device current, and on the other devices their former streams.

        Every step is tried. If one fails, the next call tries all again; after all succeeded, it does nothing.
        """
        with self.state.lock:
            if live.devices.restored or not (live.devices.before or live.devices.placeholders):
                return
            steps = Undo()
            for device, stream in enumerate(live.devices.before):
                if device != live.origin_device:
                    steps.push(partial(self._as_before, device, stream))
            if live.devices.before:
                steps.push(partial(self.state.own, 'cupy.cuda.runtime.setDevice', live.origin_device))
            for device in list(live.devices.placeholders):
                steps.push(partial(self._leave_device, live, device))
            steps.push(self.state.poll)
            steps.close()
            live.devices.restored = True

    def _leave_device(self, live: OpenCapture, device: int) -> None:
        live.outside.escaped = self._depart(live, device) or live.outside.escaped

    def _as_before(self, device: int, stream: Any) -> None:
        now = self.state.current_stream(device)
        if now.ptr != stream.ptr:
            self.lanes.leave(now)
            with self.state.on(device):
                self.state.use(stream)

    def copied_to(self, original: Callable[..., Any], dst: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse a ``copyto`` to another device that is not a copy of bytes, because CuPy would run a kernel there."""
        mine = self.state.mine()
        plain = not args and kwargs.get('where') is None and hasattr(src, 'data')
        if mine is not None and mine.devices.before and plain:
            device = int(getattr(getattr(dst, 'data', None), 'device_id', -1))
            if device >= 0 and device != self.state.current_device() and dst.size and not _byte_by_byte(dst, src):
                raise self.allocators.other_device(device)
        return original(dst, src, *args, **kwargs)


_O = Operation
_READ, _ANOTHER = 'Reading `Stream.ptr`', 'The recording has another stream in its place'
_STREAM_ENTER, _STREAM_EXIT = (f'cupy.cuda.stream._BaseStream.{name}' for name in ('__enter__', '__exit__'))
_DEVICE_ENTER, _DEVICE_EXIT = (f'cupy.cuda.device.Device.{name}' for name in ('__enter__', '__exit__'))
_CURRENT = 'cupy.cuda.stream.get_current_stream'


def _legacy(stream: Any) -> bool:
    return int(stream.ptr) in LEGACY_HANDLES  # its handle has another name in a linted run


def reads_for_itself(module: str) -> bool:
    """True for modules that read handles without giving work: those of capturekit, and the simulated stream class."""
    if module.startswith('_capturekit_simulated'):
        return module.endswith('.streams')
    return module.startswith('capturekit.')


def _byte_by_byte(dst: Any, src: Any) -> bool:
    """Whether CuPy copies one array to the other by ``cudaMemcpy``."""
    flags = dst.flags, src.flags
    alike = all(f.c_contiguous for f in flags) or all(f.f_contiguous for f in flags)
    return bool(alike and dst.dtype == src.dtype and dst.size == src.size)
