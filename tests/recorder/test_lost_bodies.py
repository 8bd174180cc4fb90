"""Captures that end badly while the body of a conditional node is recorded.

CUDA destroys a body whose capture is lost, or ends with open lanes. A process that destroys or instantiates the graph
around that body ends. The simulated device says so by an AssertionError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.model.errors import CudaCallError
from capturekit.recorder import capture as blocks
from tests.captured import capture, flag, graph_at, launched

#: Opens a body of each kind of decision.
DECISIONS: dict[str, Callable[[Any, Any], Any]] = {
    'if': lambda cap, cp: cap.if_(flag(cp)),
    'while': lambda cap, cp: cap.while_(kept(cp), limit=3),
    'a branch in a loop': lambda cap, cp: nested(cap, cp),
}


@pytest.fixture(autouse=True)
def nothing_stays_held() -> Iterator[None]:
    yield
    KEPT.clear()
    for lease in list(blocks.HELD):
        blocks.let_go(lease)


KEPT: list[Any] = []


def kept(cp: Any) -> Any:
    """A condition that somebody holds, so that a pass could change it."""
    KEPT.append(flag(cp))
    return KEPT[-1]


@contextlib.contextmanager
def nested(cap: Any, cp: Any) -> Iterator[None]:
    with cap.while_(kept(cp), limit=3), cap.if_(flag(cp)):
        yield


def lose(cap: Any) -> None:
    """What a C library might do: it waits for the captured stream, past every wrapper."""
    with pytest.raises(CudaCallError):
        current().device.stream_synchronize(cap.stream.ptr)


def left_open(cap: Any, side: Any) -> None:
    """Work on a lane that nobody joins."""
    side.wait_event(cap.stream.record())


def good(cp: Any) -> bool:
    """Whether the next capture makes a graph that works."""
    x, on = cp.zeros(2), flag(cp)
    with ck.capture() as cap, cap.if_(on):
        x += 1
    return launched(cap, x) == [[1.0] * 2]


@pytest.mark.parametrize('decision', DECISIONS)
@pytest.mark.parametrize('then', ['at the end', 'an exception'])
def test_a_body_that_is_lost(cp: Any, decision: str, then: str) -> None:
    x = cp.zeros(2)
    kind: tuple[type[BaseException], ...] = (KeyError,) if then == 'an exception' else (ck.CaptureError, CudaCallError)
    with pytest.raises(kind) as info, ck.capture() as cap, DECISIONS[decision](cap, cp):
        x += 1
        lose(cap)
        if then == 'an exception':
            raise KeyError
    assert not isinstance(info.value, AssertionError) and cap.recording.outcome == 'failed'
    assert not cap.stream.is_capturing() and good(cp)


@pytest.mark.parametrize('decision', DECISIONS)
@pytest.mark.parametrize('then', ['at the end', 'an exception'])
def test_a_lane_that_is_left_open_in_a_body(cp: Any, decision: str, then: str) -> None:
    x = cp.zeros(2)
    side = cp.cuda.Stream(non_blocking=True)
    kind: type[BaseException] = KeyError if then == 'an exception' else ck.UnjoinedError
    with pytest.raises(kind) as info, ck.capture() as cap, DECISIONS[decision](cap, cp):
        left_open(cap, side)
        with side:
            x += 1
        if then == 'an exception':
            raise KeyError
    assert getattr(info.value, '__notes__', []) == []
    assert not cap.stream.is_capturing() and not side.is_capturing() and good(cp)


@pytest.mark.parametrize('how', ['lost', 'lost and an exception', 'a lane left open'])
def test_behind_a_read_that_the_device_checks(cp: Any, how: str) -> None:
    """What follows such a read is recorded into the body of a node."""
    x = cp.ones(2)
    side = cp.cuda.Stream(non_blocking=True)

    def work() -> Any:
        return x * float(x[0])

    rehearsal = ck.rehearse(work)
    kind: type[BaseException] = ck.InvalidatedError if how == 'lost' else KeyError
    with pytest.raises(kind) as info, ck.capture(rehearsal=rehearsal) as cap:
        work()
        if how == 'a lane left open':
            left_open(cap, side)
            with side:
                x += 1
        else:
            lose(cap)
        if how != 'lost':
            raise KeyError
    assert not any('graphDestroy' in note for note in getattr(info.value, '__notes__', []))
    assert not cap.stream.is_capturing() and good(cp)


def test_going_on_behind_a_body_that_is_lost(cp: Any) -> None:
    """Code that swallows what the body raised records on, and a read that is checked cuts the graph once more."""
    x = cp.ones(2)
    rehearsal = ck.rehearse(lambda: float(x[0]))
    with pytest.raises(ck.CaptureError), ck.capture(rehearsal=rehearsal) as cap:
        with contextlib.suppress(ck.CaptureError, CudaCallError), cap.if_(flag(cp)):
            x += 1
            lose(cap)
        x += float(x[0])
    assert cap.recording.outcome == 'failed' and good(cp)


@pytest.mark.parametrize('lost', ['body', 'graph'])
def test_in_a_graph_of_the_users(cp: Any, lost: str) -> None:
    """The error says what has become of that graph."""
    x, on = cp.ones(2), flag(cp)
    device = current().device
    handle = device.graph_create()
    with (
        pytest.raises((ck.CaptureError, CudaCallError)) as info,
        capture(into=graph_at(handle)) as cap,
    ):
        with cap.if_(on):
            x += 1
            if lost == 'body':
                lose(cap)
        if lost == 'graph':
            lose(cap)
    said = getattr(info.value, '__notes__', [])
    if lost == 'body':
        assert [note for note in said if 'would end the process' in note] and device.graph_nodes(handle)
    else:
        assert [note for note in said if 'CUDA has destroyed the graph of into=' in note]
    assert good(cp)


def test_the_simulated_device_tells_what_a_gpu_does(sim: Any) -> None:
    """A body whose capture ends unjoined is gone, and with the graph around it so is the process."""
    device = sim.__capturekit_simulated__
    graph = device.graph_create()
    node, body = device.add_if(graph, (), device.condition_create(graph))
    s, side, e = device.stream_create(True), device.stream_create(True), device.event_create()
    device.begin_capture_to(s, body)
    device.event_record(e, s)
    device.stream_wait_event(side, e)
    device.launch_host_func(side, lambda: None)
    with pytest.raises(CudaCallError, match='Unjoined'):
        device.end_capture(s)
    with pytest.raises(CudaCallError):
        device.graph_nodes(body)
    for ends in (device.graph_destroy, device.graph_instantiate):
        with pytest.raises(AssertionError, match='process ends'):
            ends(graph)
    with pytest.raises(AssertionError, match='process ends'):
        device.node_destroy(node)
    assert len(device.deaths) == 3
    device.deaths.clear()
