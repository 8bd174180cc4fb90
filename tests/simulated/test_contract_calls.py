"""One contract, two devices: a device tells of the calls that are made to it, and of those alone that are asked for."""

from __future__ import annotations

from capturekit.model.cuda_functions import ApiCall
from capturekit.model.followed_captures import Follower
from capturekit.model.rules import CaptureStatus, Code, Mode, Operation
from tests.model.followed_programs import Asks, Hears
from tests.simulated.bench import Bench, refused

_O = Operation


class Notes(Hears):
    """Hands the notices on, and keeps them."""

    def __init__(self, follower: Follower) -> None:
        super().__init__(follower)
        self.calls: list[tuple[Operation | None, int | None, int]] = []
        hear = self.after

        def after(call: ApiCall, code: int) -> None:
            hear(call, code)
            self.calls.append((call.operation, call.stream, code))

        self.after = after


def test_a_capture_is_told_from_its_begin_to_its_end(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    source = d.call_source()
    follower = Follower(Asks(source))
    notes = Notes(follower)
    source.open(notes)
    try:
        d.begin_capture(s, Mode.RELAXED)
        bench.work(s)
        assert source.status(s) is CaptureStatus.ACTIVE and not follower.idle
        refused(Code.cudaErrorStreamCaptureUnsupported, d.stream_synchronize, s)
        assert source.status(s) is CaptureStatus.INVALIDATED
        refused(Code.cudaErrorStreamCaptureInvalidated, d.end_capture, s)
        assert source.status(s) is CaptureStatus.NONE and follower.idle
    finally:
        source.close()
    assert notes.calls[0] == (_O.BEGIN_CAPTURE, s, 0)
    assert [call for call in notes.calls if call[2]] == [(_O.STREAM_SYNCHRONIZE, s, 900), (_O.END_CAPTURE, s, 901)]


def test_what_a_stream_is_can_be_asked(bench: Bench) -> None:
    source = bench.device.call_source()
    blocking, other = bench.stream(blocking=True), bench.stream()
    assert (source.blocking(blocking), source.blocking(other)) == (True, False)
    assert source.status(other) is CaptureStatus.NONE and source.device() == 0


def test_afterwards_nothing_is_told(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    source = d.call_source()
    notes = Notes(Follower(Asks(source)))
    source.open(notes)
    source.close()
    source.close()
    d.begin_capture(s, Mode.RELAXED)
    d.graph_destroy(d.end_capture(s))
    assert notes.calls == []
