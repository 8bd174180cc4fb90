"""Random programs of begins, ends, work, events and waits: the account of a follower agrees with a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from capturekit.model.followed_captures import FollowedCapture, Follower
from capturekit.model.rules import CaptureStatus, Code, Mode
from capturekit.model.source_line import Place

STREAMS, EVENTS = 4, 4
Step = tuple[str, int, int, Mode]
VERBS = ('begin', 'end', 'work', 'record', 'wait', 'sync', 'query', 'event sync', 'unsafe', 'device')
STEPS = st.lists(
    st.tuples(
        st.sampled_from(VERBS), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1), st.sampled_from(list(Mode))
    ),
    max_size=40,
)
KINDS = st.lists(st.booleans(), min_size=STREAMS, max_size=STREAMS)


class Asks:
    """What the follower asks; the source answers for the device."""

    def __init__(self, source: Any) -> None:
        self.status, self.blocking, self.device = source.status, source.blocking, source.device

    def place(self, thread: int) -> Place | None:
        return None

    def libraries(self) -> tuple[str, ...]:
        return ()

    def maker(self) -> str:
        return ''

    def own(self) -> bool:
        return False


class Hears:
    """Hands the notices to a follower."""

    def __init__(self, follower: Follower) -> None:
        self.before, self.after, self.worked = follower.before, follower.after, follower.worked
        self._follower = follower

    @property
    def idle(self) -> bool:
        return self._follower.idle

    def failed(self, failure: BaseException) -> None:
        self.failure = failure


def agree(
    device: Any, work: Callable[[int], Any], unsafe: Callable[[], Any], steps: list[Step], kinds: list[bool]
) -> None:
    """Run a program on a device, and compare what it says with the account of a follower after each step."""
    streams = [device.stream_create(kind) for kind in kinds]
    events = [device.event_create() for _ in range(EVENTS)]
    source = device.call_source()
    ended: list[FollowedCapture] = []
    follower = Follower(Asks(source), ended=ended.append)
    source.open(Hears(follower))
    verbs: dict[str, Callable[[int, int, Mode], Any]] = {
        'begin': lambda s, _e, mode: device.begin_capture(s, mode),
        'end': lambda s, _e, _m: device.graph_destroy(device.end_capture(s)),
        'work': lambda s, _e, _m: work(s),
        'record': lambda s, e, _m: device.event_record(e, s),
        'wait': lambda s, e, _m: device.stream_wait_event(s, e),
        'sync': lambda s, _e, _m: device.stream_synchronize(s),
        'query': lambda s, _e, _m: device.stream_query(s),
        'event sync': lambda _s, e, _m: device.event_synchronize(e),
        'unsafe': lambda _s, _e, _m: unsafe(),
        'device': lambda _s, _e, _m: device.device_synchronize(),
    }
    try:
        for verb, s, e, mode in steps:
            before, good = len(ended), {id(one) for one in follower.captures.values() if one.loss is None}
            code = _made(lambda verb=verb, s=s, e=e, mode=mode: verbs[verb](streams[s], events[e], mode))  # type: ignore
            _compare(device, follower, streams, good, code)
            for one in ended[before:]:
                if id(one) in good:
                    _compare_end(one, code)
    finally:
        source.close()
        for one in list(follower.captures.values()):
            _made(lambda one=one: device.graph_destroy(device.end_capture(one.capture.origin.stream)))  # type: ignore
        for stream in streams:
            device.stream_destroy(stream)
        for event in events:
            device.event_destroy(event)


def _made(call: Callable[[], Any]) -> int:
    """Make a call; return CUDA's answer."""
    try:
        call()
    except RuntimeError as error:
        return int(getattr(error, 'code', getattr(error, 'status', -1)))
    return 0


def _compare(device: Any, follower: Follower, streams: list[int], good: set[int], code: int) -> None:
    for one in follower.captures.values():
        origin = one.capture.origin.stream
        assert (device.stream_status(origin) is CaptureStatus.ACTIVE) is (one.loss is None)
        if id(one) in good and one.loss is not None:
            assert one.loss.code == code
    for stream in streams:
        captured = device.stream_status(stream) is not CaptureStatus.NONE
        assert captured is (follower.ledger.lane(stream) is not None)


def _compare_end(one: FollowedCapture, code: int) -> None:
    """A capture that was good before its end: it is so now if there was no error, and open lanes are named."""
    assert (one.loss is None) is (code == 0)
    unjoined = one.loss is not None and one.loss.kind == 'unjoined'
    assert unjoined is (code == Code.cudaErrorStreamCaptureUnjoined)
    assert not unjoined or (one.loss is not None and one.loss.lanes)
