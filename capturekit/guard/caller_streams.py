"""The caller's streams in a graphed function's recording are ordered as CUDA orders them in an eager call.

CUDA orders the null stream with all blocking streams of its device, but not in a capture, so the edges are made here
whenever another stream gets work. The placeholder of another device's null stream is ordered with the null stream of
this device, too, as copies between the two devices are in eager code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.guard.verdicts import Verdicts
from capturekit.model import errors
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.source_line import here

_OF_THE_CALLER = 'A launch works on one stream, and orders those of its caller around all of its work'


class CallerStreams:
    """Keeps the caller's streams in a graphed function's recording in CUDA's order."""

    def __init__(self, state: State, verdicts: Verdicts, lanes: Lanes) -> None:
        self.state, self.verdicts, self.lanes = state, verdicts, lanes

    def stream_made(self, original: Callable[..., Any], stream: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(stream, *args, **kwargs)
        caller = self.state.caller()
        if caller is not None and stream.ptr > 2:
            caller.made_here(stream, caller.streams)
        return answer

    def current_stream(self, original: Callable[..., Any], device_id: int = -1) -> Any:
        """Return the caller's stream to a graphed function that asks for the current one, here or on another device."""
        found = original(device_id)
        mine = self.state.mine()
        if mine is None or mine.caller is None or _is_ours(_asking(3)):
            return found
        if found.ptr == mine.origin.ptr:
            mine.caller.named = True
            return mine.caller.stream
        device = self.state.current_device() if device_id == -1 else device_id
        self.works_on(mine, device)
        placeholder, legacy = mine.devices.placeholders.get(device, (None, None))
        return legacy if placeholder is not None and placeholder.ptr == found.ptr else found

    @staticmethod
    def works_on(live: OpenCapture, device: int) -> None:
        """Note that a graphed function comes to a device: its launches fit the stream that is current there."""
        if live.caller is not None and device != live.origin_device:
            live.caller.elsewhere[device] = live.devices.before[device]

    def stream_eq(self, original: Callable[..., Any], stream: Any, other: Any) -> Any:
        """Compare streams; the recording's own stream stands for the one that was current at the call."""
        mine = self.state.mine()
        if mine is None or mine.caller is None or not hasattr(other, 'ptr'):
            return original(stream, other)
        mine.caller.named = True
        one, two = (mine.caller.stream if s.ptr == mine.origin.ptr else s for s in (stream, other))
        with self.state.inside:
            return original(one, two)

    def is_callers(self, live: OpenCapture | None, ptr: int, call: str) -> bool:
        """Whether a handle is that of the stream that was current at the call, which the origin replaces. Raises
        UnsupportedCallError for the null stream if another stream was current, also on another device."""
        if live is None or live.caller is None:
            return False
        legacy = ptr in LEGACY_HANDLES
        if legacy and self.state.current_device() != live.origin_device:
            if self.null_there(live) is None:
                raise self.not_recorded(call, ptr, 'The null stream is named where another stream is current')
            return False
        if live.caller.is_current(ptr):
            live.caller.named = True
            return True
        if legacy:
            raise self.not_recorded(call, ptr, 'The null stream is named in a call on another stream')
        return False

    def null_there(self, live: OpenCapture) -> Lane | None:
        """The lane in the place of the null stream of the current device, where that is current on another device."""
        lane = self._null_lane(live, self.state.current_device())
        return lane if lane is not None and lane is self.lanes.current_lane(live) else None

    def not_recorded(self, call: str, ptr: int | None, rule: str, remedy: str = '') -> errors.CaptureError:
        """The error for a call whose effect a launch would not have."""
        remedy = remedy or 'Order work by `with stream:`, `stream.record()` and `stream.wait_event(event)` instead.'
        return self.verdicts.error(call, ptr, rule=f'{rule}. {_OF_THE_CALLER}.', remedy=remedy)

    def own_event(self, live: OpenCapture | None, call: str, event: int) -> None:
        """Raise unless the function itself has made this event."""
        if live is not None and live.caller is not None and event not in live.caller.events:
            raise self.not_recorded(
                call, None, 'The event was made outside of the function', 'Make the event in the function.'
            )

    def in_order(self, live: OpenCapture | None, lane: Lane | None = None) -> None:
        """Order a lane (by default the current one) after the lanes that its next work would wait for in eager code."""
        if live is None or live.caller is None:
            return
        lane = lane or self.lanes.current_lane(live)
        at = here()
        for other in self.implied(live, lane):
            self.lanes.wait_on(live, lane, self.lanes.record_on(live, other, at), at)

    def implied(self, live: OpenCapture, lane: Lane) -> list[Lane]:
        """The lanes whose work so far CUDA would order before the next work of a lane, without any event."""
        assert live.caller is not None
        null = self._null_lane(live, lane.device)
        lanes = live.capture.lanes
        if any(one.blocking for one in lanes[1:]):
            live.caller.implicit = True
        if lane is null:
            nulls = [self._null_lane(live, device) for device in {one.device for one in lanes}]
            meeting = [one for one in lanes if (one.blocking and one.device == lane.device) or one in nulls]
            return [one for one in meeting if one is not lane]
        return [null] if null is not None and lane.blocking else []

    def _null_lane(self, live: OpenCapture, device: int) -> Lane | None:
        """The lane that replaces the null stream of a device."""
        assert live.caller is not None
        if device == live.origin_device:
            return live.capture.origin if live.caller.legacy else None
        placeholder = live.devices.forked.get(device)
        return None if placeholder is None else live.lane_of(placeholder)


class UnseenHandle(int):
    """The handle of the recording's stream, in place of the one that was current at the call. It can be passed to the
    driver. Comparing or printing it is refused, because the eager run has another number."""

    def __eq__(self, other: object) -> bool:
        return bool(int(self) == other) if _is_ours(_asking()) else self._seen()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(int(self)) if _is_ours(_asking()) else int(self._seen())

    def __bool__(self) -> bool:
        return self._seen()

    def __repr__(self) -> str:
        return str(self._seen())

    __str__ = __format__ = __lt__ = __le__ = __gt__ = __ge__ = __repr__  # type: ignore[assignment]

    def _seen(self) -> bool:
        raise errors.UnsupportedCallError(
            'Looking at `Stream.ptr`',
            location=here(),
            rule='The stream that is current is another one while the function is recorded.',
            remedy='Compare streams, not their handles; or decide outside of the function.',
        )


def _asking(depth: int = 2) -> str:
    """The name of the module that makes the present call. A verb of the guard needs one more frame."""
    return str(sys._getframe(depth).f_globals.get('__name__', ''))


def _is_ours(module: str) -> bool:
    return module.startswith(('capturekit.', '_capturekit_simulated'))
