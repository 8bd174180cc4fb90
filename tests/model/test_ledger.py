"""The ledger in its own little language: forks, joins, re-recorded events, orders."""

from __future__ import annotations

import pytest

from capturekit.model.ledger import PER_THREAD_HANDLE, CaptureInfo, EventState, Ledger, Verdict, covers, last_node
from capturekit.model.rules import ROWS, CaptureStatus, Code, Effect, Mode, Operation, Target

ORIGIN, A, B, C, OTHER = 100, 101, 102, 103, 104
E1, E2, E3 = 1, 2, 3


@pytest.fixture
def ledger() -> Ledger:
    topology = Ledger()
    topology.begin(ORIGIN, Mode.RELAXED, thread=0, at='begin')
    return topology


def fork(t: Ledger, event: int, source: int, *streams: int) -> None:
    t.record(event, source, at=f'record {event}')
    for stream in streams:
        t.wait(stream, event, at=f'fork {stream}')


def test_order(ledger: Ledger) -> None:
    fork(ledger, E1, ORIGIN, A, B)
    a, b = ledger.lane(A), ledger.lane(B)
    assert a is not None and b is not None
    touched = {a.number: a.segment}
    assert covers(a, touched.items()) and not covers(b, touched.items())
    ledger.record(E2, A)
    ledger.wait(B, E2)
    assert covers(b, touched.items())
    assert not covers(b, [(a.number, a.segment)])


def test_judging_changes_nothing(ledger: Ledger) -> None:
    fork(ledger, E1, ORIGIN, A)
    for operation in Operation:
        for ids in ({'stream': A}, {'stream': B}, {'stream': 0}, {'event': E1}, {'stream': ORIGIN, 'event': E1}):
            try:
                ledger.judge(operation, thread=0, **ids)
            except KeyError:
                continue  # a combination that no call makes
    assert [c.status for c in ledger.captures] == [CaptureStatus.ACTIVE]
    assert set(ledger.lanes) == {ORIGIN, A}
    assert ledger.event_state(E1) is EventState.CAPTURED


def test_events_die_with_their_capture(ledger: Ledger) -> None:
    ledger.record(E1, ORIGIN)
    capture = ledger.captures[0]
    ledger.end(capture)
    assert ledger.event_state(E1) is EventState.DEAD
    assert ledger.lanes == {} and ledger.captures == []
    ledger.begin(A, Mode.RELAXED, thread=0)
    verdict = ledger.judge(Operation.WAIT_EVENT, thread=0, stream=A, event=E1)
    assert verdict.answer.code is Code.cudaErrorInvalidValue and verdict.lost
    ledger.forget_event(E1)
    assert ledger.event_state(E1) is EventState.NEVER
    ledger.record(E1, C)
    assert ledger.event_state(E1) is EventState.OUTSIDE


def told(verdict: Verdict) -> str:
    """The rule that a person is told, or '' where all is well."""
    assert verdict.allowed or verdict.rule is not None
    return '' if verdict.allowed or verdict.rule is None else verdict.rule.name


@pytest.mark.parametrize('handle', [0, 1])
def test_the_legacy_stream_goes_by_two_handles(handle: int) -> None:
    topology = Ledger()
    assert topology.judge(Operation.WORK, thread=0, stream=handle).allowed
    capture = topology.begin(ORIGIN, Mode.RELAXED, thread=0)
    verdict = topology.judge(Operation.WORK, thread=0, stream=handle)
    assert (told(verdict), verdict.target, verdict.lost) == ('legacy-stream', Target.LEGACY, ())
    topology.record(E1, ORIGIN)
    topology.wait(A, E1, blocking=True)
    verdict = topology.judge(Operation.WORK, thread=0, stream=handle)
    assert (told(verdict), verdict.target, verdict.lost) == ('legacy-stream', Target.LEGACY, (capture,))


def test_the_per_thread_stream_is_a_stream_like_others(ledger: Ledger) -> None:
    assert told(ledger.judge(Operation.WORK, thread=0, stream=PER_THREAD_HANDLE)) == 'escaped-work'
    fork(ledger, E1, ORIGIN, PER_THREAD_HANDLE)
    assert ledger.judge(Operation.WORK, thread=0, stream=PER_THREAD_HANDLE).allowed


def test_no_node_a_lost_capture_and_no_capture_differ() -> None:
    assert last_node(CaptureInfo(CaptureStatus.ACTIVE, 1, 1, (7,))) == 7
    assert last_node(CaptureInfo(CaptureStatus.ACTIVE, 1, 1, (7, 9))) in (7, 9)
    assert last_node(CaptureInfo(CaptureStatus.ACTIVE, 1, 1)) == 0
    assert last_node(CaptureInfo(CaptureStatus.INVALIDATED)) == -1
    assert last_node(CaptureInfo(CaptureStatus.NONE)) == -2


def test_what_is_told_of_events_afterwards(ledger: Ledger) -> None:
    ledger.outside_event(E1)
    assert told(ledger.judge(Operation.WAIT_EVENT, thread=0, stream=ORIGIN, event=E1)) == 'isolation'
    ledger.forget_event(E1)
    assert ledger.event_state(E1) is EventState.NEVER
    ledger.dead_event(E1)
    assert ledger.event_state(E1) is EventState.DEAD
    assert told(ledger.judge(Operation.WAIT_EVENT, thread=0, stream=C, event=E1)) == 'dead-event'


def test_ending_a_capture_twice_leaves_the_next_one(ledger: Ledger) -> None:
    first = ledger.captures[0]
    ledger.end(first)
    second = ledger.begin(ORIGIN, Mode.RELAXED, thread=0)
    ledger.end(first)
    assert ledger.captures == [second] and ledger.lane(ORIGIN) is second.origin
    assert first.number != second.number


def test_only_the_captures_of_a_verdict_are_lost(ledger: Ledger) -> None:
    other = ledger.begin(OTHER, Mode.GLOBAL, thread=1)
    lost = ledger.judge(Operation.STREAM_SYNCHRONIZE, thread=0, stream=ORIGIN).lost
    assert lost == (ledger.captures[0],) and other not in lost


G, L, R = Mode.GLOBAL, Mode.THREAD_LOCAL, Mode.RELAXED


@pytest.mark.parametrize(
    ('mode', 'thread', 'thread_mode', 'kept_away'),
    [
        (G, 0, G, True), (G, 0, L, True), (G, 0, R, False), (G, 1, G, True), (G, 1, L, False), (G, 1, R, False),
        (L, 0, G, True), (L, 0, L, True), (L, 0, R, False), (L, 1, G, False), (L, 1, L, False), (L, 1, R, False),
        (R, 0, G, False), (R, 0, L, False), (R, 0, R, False), (R, 1, G, False), (R, 1, L, False), (R, 1, R, False),
    ],
)  # fmt: skip
def test_unsafe_calls_are_kept_away_as_cudas_manual_says(
    mode: Mode, thread: int, thread_mode: Mode, kept_away: bool
) -> None:
    """``cudaThreadExchangeStreamCaptureMode``: local captures that are not relaxed, and others' global ones."""
    topology = Ledger()
    capture = topology.begin(ORIGIN, mode, thread=0)
    expected = (capture,) if kept_away else ()
    for operation, rule in ((Operation.UNSAFE, 'unsafe-in-mode'), (Operation.STREAM_QUERY, 'unsafe-sync-in-mode')):
        stream = None if operation is Operation.UNSAFE else C
        verdict = topology.judge(operation, thread=thread, stream=stream, thread_mode=thread_mode)
        assert (verdict.lost, told(verdict)) == (expected, rule if kept_away else '')


@pytest.mark.parametrize(
    ('operation', 'ids', 'rule', 'target'),
    [
        (Operation.DEVICE_SYNCHRONIZE, {}, 'device-sync', Target.NONE),
        (Operation.LEGACY_WORK, {}, 'legacy-stream', Target.LEGACY),
        (Operation.WAIT_EVENT, {'stream': 0, 'event': E1}, 'legacy-stream', Target.LEGACY_FORK),
        (Operation.WAIT_EVENT, {'stream': 0, 'event': E3}, 'dead-event', Target.DEAD_FORK),
        (Operation.WAIT_EVENT, {'stream': B, 'event': E1}, '', Target.FORK),
        (Operation.WAIT_EVENT, {'stream': B, 'event': E2}, '', Target.OUTSIDE_PAIR),
        (Operation.WAIT_EVENT, {'stream': B, 'event': E3}, 'dead-event', Target.DEAD_FORK),
        (Operation.WAIT_EVENT, {'stream': B, 'event': 99}, '', Target.OUTSIDE_PAIR),
        (Operation.WAIT_EVENT, {'stream': A, 'event': E1}, '', Target.CAPTURED_EVENT),
        (Operation.WAIT_EVENT, {'stream': A, 'event': E2}, 'isolation', Target.OUTSIDE_EVENT),
        (Operation.WAIT_EVENT, {'stream': A, 'event': E3}, 'dead-event', Target.DEAD_EVENT),
        (Operation.WAIT_EVENT, {'stream': A, 'event': 99}, '', Target.NEVER_RECORDED),
        (Operation.WAIT_EVENT, {'stream': OTHER, 'event': E1}, 'merge', Target.FOREIGN_EVENT),
        (Operation.WAIT_EVENT_EXTERNAL, {'stream': A, 'event': E2}, '', Target.ORIGIN),
        (Operation.WAIT_EVENT_EXTERNAL, {'stream': A, 'event': E3}, 'dead-event', Target.DEAD_EVENT),
        (Operation.WAIT_EVENT_EXTERNAL, {'stream': B, 'event': E2}, 'not-capturing', Target.OUTSIDE),
        (Operation.WAIT_EVENT_EXTERNAL, {'stream': B, 'event': E3}, 'dead-event', Target.NONE),
        (Operation.EVENT_RECORD_EXTERNAL, {'stream': B, 'event': E3}, 'not-capturing', Target.OUTSIDE),
        (Operation.STREAM_SYNCHRONIZE, {'stream': ORIGIN}, 'sync-captured', Target.ORIGIN),
        (Operation.STREAM_SYNCHRONIZE, {'stream': A}, 'sync-captured', Target.LANE),
        (Operation.END_CAPTURE, {'stream': A}, 'end-elsewhere', Target.LANE),
        (Operation.END_CAPTURE, {'stream': B}, 'not-capturing', Target.OUTSIDE),
        (Operation.END_CAPTURE, {'stream': ORIGIN}, '', Target.ORIGIN),
        (Operation.BEGIN_CAPTURE, {'stream': ORIGIN}, 'already-capturing', Target.ORIGIN),
        (Operation.EVENT_QUERY, {'event': E1}, 'query-captured-event', Target.CAPTURED_EVENT),
        (Operation.EVENT_QUERY, {'event': E3}, 'dead-event', Target.DEAD_EVENT),
        (Operation.EVENT_QUERY, {'event': E2}, '', Target.NONE),
        (Operation.EVENT_SYNCHRONIZE, {'event': E1}, 'sync-captured-event', Target.CAPTURED_EVENT),
        (Operation.EVENT_SYNCHRONIZE, {'event': E3}, 'dead-event', Target.DEAD_EVENT),
        (Operation.EVENT_ELAPSED_TIME, {'event': E2, 'event2': E1}, 'time-captured-event', Target.CAPTURED_EVENT),
        (Operation.EVENT_ELAPSED_TIME, {'event': E1, 'event2': E2}, 'time-captured-event', Target.CAPTURED_EVENT),
        (Operation.EVENT_ELAPSED_TIME, {'event': E2, 'event2': E3}, 'dead-event', Target.DEAD_EVENT),
        (Operation.EVENT_ELAPSED_TIME, {'event': E2, 'event2': E2}, '', Target.NONE),
        (Operation.EVENT_DESTROY, {'event': E1}, '', Target.NONE),
        (Operation.EVENT_DESTROY, {'event': E3}, '', Target.NONE),
    ],
)
def test_what_a_person_is_told(
    ledger: Ledger, operation: Operation, ids: dict[str, int], rule: str, target: Target
) -> None:
    """Two captures; E1 was recorded in the first, E2 outside, E3 in one that has ended, 99 never."""
    ended = ledger.begin(C, Mode.RELAXED, thread=0)
    ledger.record(E3, C)
    ledger.end(ended)
    fork(ledger, E1, ORIGIN, A)
    ledger.begin(OTHER, Mode.RELAXED, thread=0)
    ledger.record(E2, B)
    verdict = ledger.judge(operation, thread=0, **ids)
    assert (told(verdict), verdict.target) == (rule, target)


def test_what_a_person_is_told_at_the_end(ledger: Ledger) -> None:
    fork(ledger, E1, ORIGIN, A)
    ledger.work(A)
    verdict = ledger.judge(Operation.END_CAPTURE, thread=0, stream=ORIGIN)
    assert (told(verdict), verdict.answer.effect, verdict.lost) == ('unjoined', Effect.ENDS, ())
    strict = ledger.begin(OTHER, Mode.GLOBAL, thread=0)
    verdict = ledger.judge(Operation.END_CAPTURE, thread=1, stream=OTHER)
    assert (told(verdict), verdict.answer.code.name) == ('end-wrong-thread', 'cudaErrorStreamCaptureWrongThread')
    assert ledger.judge(Operation.END_CAPTURE, thread=0, stream=OTHER).allowed
    strict.status = CaptureStatus.INVALIDATED
    for operation in (Operation.END_CAPTURE, Operation.WORK):
        verdict = ledger.judge(operation, thread=0, stream=OTHER)
        assert (told(verdict), verdict.answer.code) == ('invalidated', Code.cudaErrorStreamCaptureInvalidated)
    assert told(ledger.judge(Operation.STREAM_QUERY, thread=0, stream=OTHER)) == 'query-captured'


def test_an_event_that_was_never_recorded_has_no_time(ledger: Ledger) -> None:
    verdict = ledger.judge(Operation.EVENT_ELAPSED_TIME, thread=0, event=99, event2=E1)
    assert verdict.answer.code is Code.cudaErrorInvalidResourceHandle and verdict.rule is None


def test_without_a_capture_all_is_well_but_ending_one() -> None:
    topology = Ledger()
    for operation, ids in (
        (Operation.DEVICE_SYNCHRONIZE, {}),
        (Operation.LEGACY_WORK, {}),
        (Operation.WORK, {'stream': A}),
        (Operation.UNSAFE, {}),
    ):
        verdict = topology.judge(operation, thread=0, **ids)
        assert verdict.allowed and verdict.rule is None and verdict.answer.effect is Effect.NOTHING, operation
    assert told(topology.judge(Operation.END_CAPTURE, thread=0, stream=A)) == 'not-capturing'
    for operation in (Operation.BEGIN_CAPTURE, Operation.END_CAPTURE):
        assert told(topology.judge(operation, thread=0, stream=0)) == 'legacy-stream', 'it can not be captured at all'


def test_only_the_legacy_stream_depends_on_the_origins_flags() -> None:
    """So the ledger need not say it for any other row; nor in which mode, where several captures are at stake."""
    for label, operation, target, pattern, _rule in ROWS:
        if 'legacy' not in target.value and operation is not Operation.LEGACY_WORK:
            assert all(pattern(mode, False) == pattern(mode, True) for mode in Mode), label
        if operation is Operation.DEVICE_SYNCHRONIZE or target is Target.FOREIGN_EVENT:
            assert len(set(pattern.answers)) == 1, label


def test_a_lane_comes_after_another_without_an_event_of_others() -> None:
    """:meth:`Ledger.come_after` leaves what an event would leave that is recorded and waited for, but no mark."""
    told = []
    for by_event in (True, False):
        ledger = Ledger()
        origin = ledger.begin(ORIGIN, Mode.RELAXED, thread=0, at='begin').origin
        for stream, of in ((A, origin), (B, origin), (ORIGIN, None), (A, origin)):
            lane = of or ledger.lanes[A]
            if by_event:
                ledger.record(E1, lane.stream)
                forked = ledger.wait(stream, E1, at=f'of {stream}', device=1)
            else:
                forked = ledger.come_after(stream, lane, ledger.passed(lane), False, f'of {stream}', 1)
            told.append((forked is not None, None if forked is None else forked.device))
        told += [(lane.clock, lane.segment, lane.waited, lane.joined_at, lane.parent) for lane in origin.capture.lanes]
        assert [*ledger.marks] == [E1] * by_event
    assert told[: len(told) // 2] == told[len(told) // 2 :]
