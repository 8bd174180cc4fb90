"""Placeholders: streams of the guard's own that are current where the legacy stream would be.

The legacy stream can not be captured, and its work would run at once. A placeholder is held, like streams from
outside, so that work sent to it is found; with ``strict=False`` it is a lane.
"""

from __future__ import annotations

from typing import Any

from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.outside_streams import OutsideStreams
from capturekit.guard.parts import Parts
from capturekit.guard.state import State
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.source_line import here

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
