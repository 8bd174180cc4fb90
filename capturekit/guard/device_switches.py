"""Devices becoming current: with each device comes the stream that is current there.

CuPy's current stream is another one on each device. ``with cp.cuda.Device(1):`` in a capture on device 0 leads, unless
a lane of device 1 is current there, to the legacy stream of device 1, whose work would run at once and be missing from
the graph. Nothing is wrong yet: the next line may enter a lane. So a stream of the guard's own stands in for the legacy
one: trapped, as streams from outside are; in adapting mode a lane, forked from what was current before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from capturekit.guard.open_capture import Live
from capturekit.guard.stream_switches import Switches
from capturekit.model.cleanup import Undo, add_note
from capturekit.model.errors import CaptureError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import VARIANTS, Operation
from capturekit.model.source_line import here

_STOCK = 'stands in'


class Visits(Switches):
    """Devices becoming current: with each device comes the stream that is current there."""

    def device_enter(self, original: Callable[..., Any], device: Any) -> Any:
        self._moved(lambda: original(device))
        return device

    def device_exit(self, original: Callable[..., Any], device: Any, *exc: Any) -> Any:
        return self._moved(lambda: original(device, *exc), exc)

    def device_use(self, original: Callable[..., Any], device: Any) -> Any:
        self._moved(lambda: original(device))
        return device

    def runtime_set_device(self, original: Callable[..., Any], device: int) -> Any:
        return self._moved(lambda: original(device))

    def _moved(self, go: Callable[[], Any], exc: tuple[Any, ...] = ()) -> Any:
        with self.lock:
            mine = self.mine()
            before = self.current_device()
            self.polled()
            answer = go()
            now = self.current_device()
            if now == before:
                return answer
            if mine is None:
                self.refresh()
                return answer
            left = self.platform.cupy.cuda.get_current_stream(before)
            escaped = self._depart(mine, before)
            try:
                self._land(mine, mine.lane_of(left) or mine.capture.origin)
                if escaped is not None:
                    self._found_there(mine, escaped, exc)
            finally:
                del escaped  # its traceback holds this frame
        return answer

    @staticmethod
    def _found_there(live: Live, escaped: CaptureError, exc: tuple[Any, ...]) -> None:
        """Raise it; but the block's own exception goes on, and if that is caught, the end of the capture will tell."""
        if not exc or exc[0] is None:
            try:
                raise escaped
            finally:
                del escaped
        if exc[1] is not None:
            add_note(exc[1], f'capturekit: {escaped}')
        live.escaped = escaped

    def _land(self, live: Live, parent: Lane) -> None:
        """Another device has become current in this thread."""
        stream = self.platform.cupy.cuda.get_current_stream()
        lane = self.topology.lane(stream.ptr)
        if stream.ptr in LEGACY_HANDLES:
            self.stand_in(live, parent)
        elif lane is None and live.strict:
            self._trap(live, stream)
        elif lane is None:
            self._adapt_fork(live, stream, here(), parent)
        stream = self.platform.cupy.cuda.get_current_stream()
        lane = self.topology.lane(stream.ptr)
        if lane is not None and lane.capture in self.lives:
            at = here()
            lane.last_use = at
            owner = self.live_of(lane)
            if owner.memory is not None:
                owner.memory.active(lane)
            owner.note('switch', lane, f'lane {lane.number} made current, with device {lane.device}', at)
        if live.trace is not None:
            live.trace.stream = stream.ptr
        self.in_order(live)
        self.refresh()

    def stand_in(self, live: Live, parent: Lane) -> None:
        """The legacy stream has become current: on another device than the capture's, and beside one begun by hand,
        something stands in for it.
        """
        device = self.current_device()
        if device == live.home and live.memory is not None:
            return  # the capture has made its own stream current there
        if not live.strict:
            self.one_device(live)
        legacy = self.platform.cupy.cuda.get_current_stream()
        if live.caller is not None:
            live.caller.outside.setdefault((device, 0), legacy)
        visit = live.visits.get(device)
        stream = visit[0] if visit is not None else live.visitors.get(device) or self._spare(device)
        if live.strict:
            self._trap(live, stream)
        else:
            live.visitors[device] = stream
            if self._outside(stream.ptr):
                self._adapt_fork(live, stream, here(), parent)
        self.own('cupy.cuda.stream._BaseStream.use', stream)
        self.standing_in[stream.ptr] = device
        live.visits[device] = stream, legacy
        lane = self.topology.lane(stream.ptr)
        if lane is not None:
            lane.current += 1
            if live.memory is not None:
                live.memory.active(lane)
            if live.trace is not None:
                live.trace.stream = stream.ptr

    def _spare(self, device: int) -> Any:
        """A stream of the current device that nobody uses."""
        stock: list[Any] = self.platform.device.spare_streams.setdefault((device, _STOCK), [])
        with self.inside():
            return stock.pop() if stock else self.platform.cupy.cuda.Stream(non_blocking=True)

    def _depart(self, live: Live, device: int) -> CaptureError | None:
        """A device is current no more: what stood in there goes, and work found in its trap is told."""
        stream = self.platform.cupy.cuda.get_current_stream(device)
        visit = live.visits.pop(device, None)
        if visit is None:
            return self.spring(stream.ptr, silent=True)
        try:
            escaped = self.spring(stream.ptr, silent=True)
            found = self.spring(visit[0].ptr, silent=True)
            if stream.ptr == visit[0].ptr:
                with self.on(device):
                    self.own('cupy.cuda.stream._BaseStream.use', visit[1])
        finally:
            self.standing_in.pop(visit[0].ptr, None)
        if live.strict:
            self.give_spare(device, visit[0])
        else:
            self.leave(visit[0])
        return found or escaped

    def give_spare(self, device: int, stream: Any) -> None:
        """A stream that stood in on a device is nobody's again."""
        self.platform.device.spare_streams.setdefault((device, _STOCK), []).append(stream)

    def go_home(self, live: Live) -> None:
        """The block is over: the origin's device is current, and on the others what was so when it was entered.

        Every step is tried. Where one fails, the next call tries them again; once all were done, it does nothing.
        """
        with self.lock:
            if not live.outer or live.at_home:
                return
            steps = Undo()
            for device, stream in enumerate(live.outer):
                if device != live.home:
                    steps.push(partial(self._as_before, device, stream))
            steps.push(partial(self._go_to, live.home))
            for device in list(live.visits):
                steps.push(partial(self._end_visit, live, device))
            steps.push(self.polled)
            steps.close()
            live.at_home = True

    def _end_visit(self, live: Live, device: int) -> None:
        escaped = self._depart(live, device)
        live.escaped = live.escaped if escaped is None else escaped

    def _go_to(self, device: int) -> None:
        with self.inside():
            self.platform.cupy.cuda.runtime.setDevice(device)

    def _as_before(self, device: int, stream: Any) -> None:
        now = self.platform.cupy.cuda.get_current_stream(device)
        if now.ptr != stream.ptr:
            self.leave(now)
            with self.on(device):
                self.own('cupy.cuda.stream._BaseStream.use', stream)

    def copied_to(self, original: Callable[..., Any], dst: Any, src: Any, *args: Any, **kwargs: Any) -> Any:
        """``copyto``: what can't be copied byte by byte to another device, CuPy does over there."""
        mine = self.mine()
        if mine is not None and mine.outer and not args and kwargs.get('where') is None and hasattr(src, 'data'):
            device = int(getattr(getattr(dst, 'data', None), 'device_id', -1))
            if device >= 0 and device != self.current_device() and dst.size and not _byte_by_byte(dst, src):
                self._beyond(device)
        return original(dst, src, *args, **kwargs)

    def _beyond(self, device: int) -> NoReturn:
        """CuPy is about to do work on another device than the current one, in no order with the current lane."""
        with self.lock:
            stream = self.platform.cupy.cuda.get_current_stream()
            verdict = self.judge(Operation.WORK, stream=stream.ptr)
            rule = VARIANTS['work-of-cupy-on-another-device']
            self.refuse(verdict, f'Work that CuPy does on device {device} by itself', None, rule)

    def elsewhere(self, live: Live, size: int) -> Any:
        """An allocation on another device than the current lane's: by CuPy itself, on the way to a copy."""
        self._beyond(self.current_device())


def _byte_by_byte(dst: Any, src: Any) -> bool:
    """Whether CuPy copies one array to the other by ``cudaMemcpy``."""
    flags = dst.flags, src.flags
    alike = all(f.c_contiguous for f in flags) or all(f.f_contiguous for f in flags)
    return bool(alike and dst.dtype == src.dtype and dst.size == src.size)
