"""One contract, two devices: what both refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capturekit.model.rules import CaptureStatus, Code, Mode
from tests.simulated.bench import ACTIVE, LOST, NONE, Bench, end_somehow, forked, refused

#: name -> (code, call on (device, origin, lane, forking event), what becomes of the capture)
REFUSALS: dict[str, tuple[Code, Callable[..., Any], CaptureStatus]] = {
    'synchronize origin': (Code.cudaErrorStreamCaptureUnsupported, lambda d, o, s, e: d.stream_synchronize(o), LOST),
    'synchronize lane': (Code.cudaErrorStreamCaptureUnsupported, lambda d, o, s, e: d.stream_synchronize(s), LOST),
    'query origin': (Code.cudaErrorStreamCaptureUnsupported, lambda d, o, s, e: d.stream_query(o), LOST),
    'query lane': (Code.cudaErrorStreamCaptureUnsupported, lambda d, o, s, e: d.stream_query(s), LOST),
    'flags of origin': (Code.cudaErrorStreamCaptureUnsupported, lambda d, o, s, e: d.stream_flags(o), LOST),
    'device synchronize': (Code.cudaErrorStreamCaptureUnsupported, lambda d, o, s, e: d.device_synchronize(), LOST),
    'synchronize captured event': (Code.cudaErrorCapturedEvent, lambda d, o, s, e: d.event_synchronize(e), LOST),
    'query captured event': (Code.cudaErrorCapturedEvent, lambda d, o, s, e: d.event_query(e), LOST),
    'end on a lane': (Code.cudaErrorStreamCaptureUnmatched, lambda d, o, s, e: d.end_capture(s), LOST),
    'begin again': (Code.cudaErrorIllegalState, lambda d, o, s, e: d.begin_capture(o), ACTIVE),
    'begin on a lane': (Code.cudaErrorIllegalState, lambda d, o, s, e: d.begin_capture(s), ACTIVE),
    'fork of the legacy stream': (
        Code.cudaErrorStreamCaptureImplicit, lambda d, o, s, e: d.stream_wait_event(0, e), LOST,
    ),
    'begin on the legacy stream': (
        Code.cudaErrorStreamCaptureUnsupported, lambda d, o, s, e: d.begin_capture(0), ACTIVE,
    ),
    'end on the legacy stream': (Code.cudaErrorIllegalState, lambda d, o, s, e: d.end_capture(0), ACTIVE),
}  # fmt: skip


@pytest.mark.parametrize('name', REFUSALS)
def test_refusals(bench: Bench, name: str) -> None:
    code, call, after = REFUSALS[name]
    d = bench.device
    origin, lane, e = forked(bench)
    refused(code, call, d, origin, lane, e)
    assert d.stream_status(origin) is d.stream_status(lane) is after
    assert d.capture_info(origin).status is after
    if after is LOST:
        refused(Code.cudaErrorStreamCaptureInvalidated, bench.work, origin)
        refused(Code.cudaErrorStreamCaptureInvalidated, d.event_record, e, lane)
        refused(Code.cudaErrorStreamCaptureInvalidated, d.stream_priority, lane)
        refused(Code.cudaErrorStreamCaptureInvalidated, d.end_capture, origin)
    else:
        d.graph_destroy(d.end_capture(origin))
    assert d.stream_status(origin) is d.stream_status(lane) is NONE


def test_an_event_of_outside_is_isolated(bench: Bench) -> None:
    d = bench.device
    for e in bench.events():
        d.event_record(e, bench.stream())
        origin, lane, _ = forked(bench)
        refused(Code.cudaErrorStreamCaptureIsolation, d.stream_wait_event, lane, e)
        assert d.stream_status(origin) is LOST
        end_somehow(bench, origin)


def test_a_never_recorded_event_orders_nothing(bench: Bench) -> None:
    d = bench.device
    origin, _lane, _ = forked(bench)
    before = d.capture_info(origin).dependencies
    for e in bench.events():
        d.stream_wait_event(origin, e)
    assert d.capture_info(origin).dependencies == before
    d.graph_destroy(d.end_capture(origin))


def test_two_captures_do_not_merge(bench: Bench) -> None:
    d = bench.device
    one, _, _ = forked(bench)
    two, _, e = forked(bench)
    refused(Code.cudaErrorStreamCaptureMerge, d.stream_wait_event, one, e)
    assert d.stream_status(one) is d.stream_status(two) is LOST
    for s in (one, two):
        refused(Code.cudaErrorStreamCaptureInvalidated, d.end_capture, s)


def test_captured_events_have_no_time_and_asking_is_harmless(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    e, outside = bench.timing_event(), bench.timing_event()
    d.event_record(outside, s)
    d.stream_synchronize(s)
    d.begin_capture(s)
    d.event_record(e, s)
    for pair in ((e, e), (outside, e)):
        refused(Code.cudaErrorCapturedEvent, d.event_elapsed_time, *pair)
    assert d.stream_status(s) is ACTIVE
    d.graph_destroy(d.end_capture(s))
    refused(Code.cudaErrorInvalidValue, d.event_elapsed_time, e, e)
    refused(Code.cudaErrorInvalidValue, d.event_synchronize, e)
    refused(Code.cudaErrorInvalidValue, d.stream_wait_event, s, e)


def test_ends_that_are_refused(bench: Bench) -> None:
    d = bench.device
    refused(Code.cudaErrorIllegalState, d.end_capture, bench.stream())
    origin, lane, _ = forked(bench)
    bench.work(lane)
    refused(Code.cudaErrorStreamCaptureUnjoined, d.end_capture, origin)
    assert d.stream_status(origin) is d.stream_status(lane) is NONE
    for mode in (Mode.GLOBAL, Mode.THREAD_LOCAL):
        s = bench.stream()
        d.begin_capture(s, mode)
        refused(Code.cudaErrorStreamCaptureWrongThread, bench.elsewhere, lambda s=s: d.end_capture(s))
        assert d.stream_status(s) is NONE
    s = bench.stream()
    d.begin_capture(s, Mode.RELAXED)
    d.graph_destroy(bench.elsewhere(lambda: d.end_capture(s)))


def test_graphs_do_not_go_into_captures(bench: Bench) -> None:
    d = bench.device
    g = bench.graph()
    x = d.graph_instantiate(g)
    for call in (d.graph_launch, d.graph_upload):
        for on_the_lane in (False, True):
            origin, lane, _ = forked(bench)
            with pytest.raises(RuntimeError, match='cudaErrorStreamCaptureUnsupported'):
                call(x, lane if on_the_lane else origin)
            assert d.stream_status(origin) is LOST
            end_somehow(bench, origin)
    d.graph_exec_destroy(x)
    d.graph_destroy(g)


def test_the_legacy_stream_beside_a_blocking_one(bench: Bench) -> None:
    d = bench.device
    for call in (
        lambda: bench.work(0),
        lambda: d.stream_synchronize(0),
        lambda: d.event_record(bench.timing_event(), 0),
        lambda: d.stream_flags(0),
    ):
        s = bench.stream(blocking=True)
        d.begin_capture(s)
        refused(Code.cudaErrorStreamCaptureImplicit, call)
        assert d.stream_status(s) is LOST
        end_somehow(bench, s)
    s = bench.stream(blocking=True)
    d.begin_capture(s)
    refused(Code.cudaErrorStreamCaptureImplicit, d.stream_status, 0)  # asking is refused, too, but costs nothing
    assert d.stream_status(s) is ACTIVE
    end_somehow(bench, s)


def test_the_legacy_stream_runs_beside_a_non_blocking_one(bench: Bench) -> None:
    d, s = bench.device, bench.stream()
    d.begin_capture(s)
    bench.work(0)
    assert d.graph_nodes(d.capture_info(s).graph) == []
    assert d.stream_status(s) is ACTIVE
    d.graph_destroy(d.end_capture(s))


def test_a_blocking_lane_counts_as_a_blocking_stream(bench: Bench) -> None:
    d = bench.device
    origin, _lane, e = forked(bench)
    d.stream_wait_event(bench.stream(blocking=True), e)
    refused(Code.cudaErrorStreamCaptureImplicit, bench.work, 0)
    assert d.stream_status(origin) is LOST


def test_a_destroyed_lane_leaves_its_work_unjoined(bench: Bench) -> None:
    d = bench.device
    origin, _, e = forked(bench)
    lane = d.stream_create(True)
    d.stream_wait_event(lane, e)
    bench.work(lane)
    d.stream_destroy(lane)
    assert d.stream_status(origin) is ACTIVE
    refused(Code.cudaErrorStreamCaptureUnjoined, d.end_capture, origin)
