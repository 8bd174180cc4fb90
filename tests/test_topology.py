"""The ledger in its own little language: forks, joins, re-recorded events, orders."""

from __future__ import annotations

import pytest

from capturekit.rules import CaptureStatus, Code, Mode, Operation
from capturekit.topology import EventState, Topology, covers

ORIGIN, A, B, C = 100, 101, 102, 103
E1, E2, E3 = 1, 2, 3


@pytest.fixture
def ledger() -> Topology:
    topology = Topology()
    topology.begin(ORIGIN, Mode.RELAXED, thread=0, at='begin')
    return topology


def fork(t: Topology, event: int, source: int, *streams: int) -> None:
    t.record(event, source, at=f'record {event}')
    for stream in streams:
        t.wait(stream, event, at=f'fork {stream}')


def join(t: Topology, event: int, stream: int, into: int) -> None:
    t.record(event, stream)
    t.wait(into, event, at=f'join {stream}')


def unjoined(t: Topology) -> list[int]:
    return [lane.stream for lane in t.captures[0].unjoined()]


def test_a_lane_without_work_needs_no_join(ledger: Topology) -> None:
    fork(ledger, E1, ORIGIN, A)
    assert unjoined(ledger) == []
    ledger.work(A)
    assert unjoined(ledger) == [A]


def test_joined_and_worked_on_again(ledger: Topology) -> None:
    fork(ledger, E1, ORIGIN, A)
    ledger.work(A)
    join(ledger, E2, A, ORIGIN)
    assert unjoined(ledger) == []
    ledger.work(A, at='again')
    assert unjoined(ledger) == [A]
    assert ledger.captures[0].lanes[1].last_use == 'again'
    assert ledger.captures[0].lanes[1].joined_at == f'join {A}'
    join(ledger, E2, A, ORIGIN)
    assert unjoined(ledger) == []


def test_an_event_stands_for_where_it_was_last_recorded(ledger: Topology) -> None:
    fork(ledger, E1, ORIGIN, A)
    ledger.record(E2, A)
    ledger.work(A)
    ledger.wait(ORIGIN, E2)
    assert unjoined(ledger) == [A], 'the event was recorded before the work'
    ledger.record(E2, A)
    ledger.wait(ORIGIN, E2)
    assert unjoined(ledger) == []


def test_joins_through_a_third_lane(ledger: Topology) -> None:
    fork(ledger, E1, ORIGIN, A, B)
    ledger.work(A)
    ledger.work(B)
    join(ledger, E2, A, B)
    assert unjoined(ledger) == [A, B]
    join(ledger, E3, B, ORIGIN)
    assert unjoined(ledger) == []


def test_lanes_remember_who_forked_them(ledger: Topology) -> None:
    fork(ledger, E1, ORIGIN, A)
    fork(ledger, E2, A, B)
    capture = ledger.captures[0]
    assert [(lane.number, lane.parent, lane.forked_at) for lane in capture.lanes] == [
        (0, None, 'begin'),
        (1, 0, f'fork {A}'),
        (2, 1, f'fork {B}'),
    ]


def test_order(ledger: Topology) -> None:
    fork(ledger, E1, ORIGIN, A, B)
    a, b = ledger.lane(A), ledger.lane(B)
    assert a is not None and b is not None
    touched = {a.number: a.segment}
    assert covers(a, touched) and not covers(b, touched)
    ledger.record(E2, A)
    ledger.wait(B, E2)
    assert covers(b, touched)
    assert not covers(b, {a.number: a.segment})


def test_judging_changes_nothing(ledger: Topology) -> None:
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


def test_events_die_with_their_capture(ledger: Topology) -> None:
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


def test_dozens_of_lanes(ledger: Topology) -> None:
    streams = range(1000, 1064)
    fork(ledger, E1, ORIGIN, *streams)
    for s in streams:
        ledger.work(s)
    assert unjoined(ledger) == list(streams)
    for s in streams:
        if s % 2:
            join(ledger, E2, s, ORIGIN)
    assert unjoined(ledger) == [s for s in streams if not s % 2]
