"""The current stream of another device: a graphed function finds it and leaves it as the eager call does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall

CALLS = 7


@pytest.fixture(params=range(4))
def cp(request: pytest.FixtureRequest) -> Iterator[Any]:
    """CuPy with two devices, whose streams do their work late and in any order that is allowed."""
    install(SimulatedDevice(request.param, devices=2), late=True)
    try:
        yield sys.modules['cupy']
    finally:
        uninstall()


def wait(cp: Any) -> None:
    for device in (0, 1):
        with cp.cuda.Device(device):
            cp.cuda.runtime.deviceSynchronize()


def streams_of(cp: Any, device: int) -> list[Any]:
    with cp.cuda.Device(device):
        return [cp.cuda.Stream.null, cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)]


def use(cp: Any, device: int, stream: Any) -> None:
    with cp.cuda.Device(device):
        stream.use()


class Over:
    """Device 1 for a while, in order with the work around it."""

    def __init__(self, cp: Any) -> None:
        self.cp = cp

    def __enter__(self) -> None:
        before = self.cp.cuda.get_current_stream().record()
        self.device = self.cp.cuda.Device(1)
        self.device.__enter__()
        self.cp.cuda.get_current_stream().wait_event(before)

    def __exit__(self, *exc: Any) -> None:
        after = self.cp.cuda.get_current_stream().record()
        self.device.__exit__(*exc)
        self.cp.cuda.get_current_stream().wait_event(after)


def told(cp: Any, fn: Callable[[Any], Any], streams: list[Any], order: list[int]) -> list[Any]:
    """What calls give, and which streams are current then, where these streams of device 1 are current before."""
    found = []
    for n, number in enumerate(order):
        use(cp, 1, streams[number])
        x = cp.arange(5.0) + n
        wait(cp)
        result = fn(x)
        found.append([[streams.index(cp.cuda.get_current_stream(1)), cp.cuda.get_current_stream().ptr]])
        with cp.cuda.Device(1):
            more = result * 2 if result.device.id == 1 else result  # on the stream that is current there
        wait(cp)
        use(cp, 1, streams[0])
        found[-1] += [result.device.id, result.get().tolist(), more.get().tolist()]
    return found


ORDERS = {
    'null': [0] * CALLS,
    'one': [1] * CALLS,
    'another at launches': [0, 0, 1, 0, 2, 1, 1],
    'null at launches': [1, 1, 0, 0, 1, 0, 2],
}


def works_there(cp: Any, _streams: list[Any]) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        with Over(cp):
            y = cp.asarray(x) * 2
        return cp.asarray(y) + x

    return fn


def gives_what_is_there(cp: Any, _streams: list[Any]) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        with Over(cp):
            y = cp.asarray(x) * 2
        return y

    return fn


def enters_a_stream(cp: Any, streams: list[Any]) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        with Over(cp):
            y = cp.asarray(x) * 2
            streams[1].wait_event(cp.cuda.get_current_stream().record())
            with streams[1]:
                z = y + 1
                done = streams[1].record()
            cp.cuda.get_current_stream().wait_event(done)
        return cp.asarray(z) + x

    return fn


def leaves_a_stream_current(cp: Any, streams: list[Any]) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        with Over(cp):
            y = cp.asarray(x) * 2
            cp.cuda.get_current_stream().synchronize()
            streams[2].use()
            z = y + 1
        return cp.asarray(z) + x

    return fn


def looks_at_the_stream(cp: Any, _streams: list[Any]) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        with Over(cp):
            stream = cp.cuda.get_current_stream()
            is_null, is_free = stream == cp.cuda.Stream.null, stream.is_non_blocking
            y = cp.asarray(x) * (2 if is_null else 3) + (5 if is_free else 7) + stream.device_id
        return cp.asarray(y)

    return fn


def asks_from_here(cp: Any, streams: list[Any]) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        return x * (1 + streams.index(cp.cuda.get_current_stream(device_id=1)))

    return fn


def names_the_null_stream(cp: Any, _streams: list[Any]) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        with Over(cp):
            y = cp.asarray(x) * 2
            cp.cuda.get_current_stream().synchronize()
            with cp.cuda.Stream.null:
                z = y + 1
                cp.cuda.Stream.null.synchronize()
            done = z * 2
        return cp.asarray(done)

    return fn


LOOKING = [looks_at_the_stream, asks_from_here, names_the_null_stream]


@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('program', LOOKING)
def test_what_is_asked_of_a_stream_there(cp: Any, program: Callable[[Any, list[Any]], Any], order: str) -> None:
    streams = streams_of(cp, 1)
    wanted = told(cp, program(cp, streams), streams, ORDERS[order])
    fn = ck.graphed(program(cp, streams))
    assert told(cp, fn, streams, ORDERS[order]) == wanted
    if order == 'null':
        assert [(one.state, one.launches) for one in fn.variants] == [('recorded', CALLS - 1)], fn.variants[0].reason


def test_the_null_stream_named_where_another_is_current(cp: Any) -> None:
    """An event of it stands for the null stream's work, not for that of the stream which is current."""
    streams = streams_of(cp, 1)

    def program(cp: Any) -> Callable[[Any], Any]:
        def fn(x: Any) -> Any:
            with Over(cp):
                y = cp.asarray(x) * 2
                streams[1].wait_event(cp.cuda.get_current_stream().record())
                with streams[1]:
                    cp.cuda.get_current_stream().wait_event(cp.cuda.Stream.null.record())
                    z = y + 1
                    done = streams[1].record()
                cp.cuda.get_current_stream().wait_event(done)
            return cp.asarray(z)

        return fn

    wanted = told(cp, program(cp), streams, ORDERS['null'])
    fn = ck.graphed(program(cp))
    assert told(cp, fn, streams, ORDERS['null']) == wanted
    assert 'The null stream is named where another stream is current' in fn.variants[0].reason


@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('program', [works_there, gives_what_is_there, enters_a_stream, leaves_a_stream_current])
def test_as_eagerly(cp: Any, program: Callable[[Any, list[Any]], Any], order: str) -> None:
    streams = streams_of(cp, 1)
    wanted = told(cp, program(cp, streams), streams, ORDERS[order])
    assert told(cp, ck.graphed(program(cp, streams)), streams, ORDERS[order]) == wanted


def test_each_current_stream_has_a_recording(cp: Any) -> None:
    streams = streams_of(cp, 1)
    fn = ck.graphed(works_there(cp, streams))
    told(cp, fn, streams, [0, 0, 0, 1, 1, 1, 0, 1])
    assert [(one.state, one.launches) for one in fn.variants] == [('recorded', 3), ('recorded', 3)]
    said = fn.variants[0].stream_order.words()
    assert 'fits one current stream of device 1 only' in said


def test_a_stream_that_is_left_current_keeps_it_eager(cp: Any) -> None:
    streams = streams_of(cp, 1)
    fn = ck.graphed(leaves_a_stream_current(cp, streams))
    told(cp, fn, streams, ORDERS['null'])
    assert [one.state for one in fn.variants] == ['eager']
    assert 'makes another stream or device current, and leaves it so' in fn.variants[0].reason
