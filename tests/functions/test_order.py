"""Streams and events around graphed functions: work is ordered as around the eager call, while everybody is late."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.late import Late, Spins

#: A program: of CuPy and of what is put over its function, it gives what it computed.
Program = Callable[[Any, Callable[..., Any]], list[Any]]
CALLS = 6


@pytest.fixture(params=[*range(6), *(pytest.param(f'gpu-{seed}', marks=pytest.mark.gpu) for seed in range(3))])
def late(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The simulated CuPy on two devices whose work waits; and the real one, where kernels that spin stand before it."""
    if not isinstance(request.param, int):
        pytest.importorskip('cuda.bindings')
        cupy = pytest.importorskip('cupy')
        if request.getfixturevalue('late_gpu') is not None:  # all tests are late
            yield cupy
            return
        lateness = Late(Spins(cupy, int(request.param[-1])))
        lateness.install(cupy)
        try:
            yield cupy
        finally:
            lateness.uninstall()
        return
    install(SimulatedDevice(request.param, devices=2), late=True)
    try:
        yield sys.modules['cupy']
    finally:
        uninstall()


@pytest.fixture
def late_pair(late: Any) -> Any:
    """The same, where there are two devices."""
    if late.cuda.runtime.getDeviceCount() < 2:
        pytest.skip('needs two GPUs')
    return late


def outcome(cp: Any, program: Program, over: Callable[..., Any]) -> list[Any]:
    found = program(cp, over)
    for device in range(cp.cuda.runtime.getDeviceCount()):
        with cp.cuda.Device(device):
            cp.cuda.runtime.deviceSynchronize()
    return [value.get().tolist() if isinstance(value, cp.ndarray) else value for value in found]


def same(cp: Any, program: Program, **options: Any) -> ck.Graphed:
    """Run a program eagerly and graphed; what it computes is the same. Returns the graphed function."""
    made: list[ck.Graphed] = []

    def over(fn: Any) -> Any:
        made.append(ck.graphed(fn, **options))
        return made[-1]

    wanted = outcome(cp, program, lambda fn: fn)
    assert outcome(cp, program, over) == wanted
    return made[0]


def states(fn: ck.Graphed) -> set[str]:
    return {variant.state for variant in fn.variants}


def test_a_mask_that_is_counted_makes_the_next_call_wait(late_pair: Any) -> None:
    """CuPy counts a mask on the host: the copy from the other device, of the call before, has been made by then."""

    def program(cp: Any, over: Callable[..., Any]) -> list[Any]:
        with cp.cuda.Device(1):
            there = cp.ones(3)
            cp.cuda.Device(1).synchronize()

        def fn(x: Any) -> Any:
            x[x > 2] = 1.5
            with cp.cuda.Device(1):
                there[...] *= 2
                cp.cuda.Device(1).synchronize()
            return x + cp.asarray(there)

        graphed = over(fn)
        return [graphed(cp.ones((n, 3)) * n) for n in range(1, CALLS)]  # each is another kind of call

    same(late_pair, program)


# -- the null stream and blocking streams -----------------------------------------------------------------------------


def one_after_the_other(s: Any) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        with s:
            a = x * 2
        return a + 1

    return fn


def to_and_fro(s: Any) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        total = x
        for n in range(3):
            with s:
                part = total * 2 + n
            total = part + x
            with s:
                total += 1
            total *= 3
        return total

    return fn


def in_place(s: Any) -> Callable[[Any], Any]:
    def fn(x: Any) -> Any:
        with s:
            x += 1
        x *= 2
        with s:
            x -= 3
        return x * 1

    return fn


@pytest.mark.parametrize('make', [one_after_the_other, to_and_fro, in_place])
@pytest.mark.parametrize('kind', ['blocking', 'per thread', 'made inside'])
def test_blocking_streams_and_the_null_stream(late: Any, make: Any, kind: str) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        if kind == 'made inside':
            fn = over(lambda x: make(cp.cuda.Stream())(x))
        else:
            fn = over(make(cp.cuda.Stream() if kind == 'blocking' else cp.cuda.Stream.ptds))
        return [fn(cp.arange(4.0) + v) for v in range(CALLS)]

    assert 'recorded' in states(same(late, program))


def test_two_blocking_streams(late: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        s, t = cp.cuda.Stream(), cp.cuda.Stream()

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            with s:
                a = x * 2
            with t:
                b = x * 3
            c = a + b
            with t:
                d = c * 2
            with s:
                e = c * 3
            return d - e

        return [fn(cp.arange(4.0) + v) for v in range(CALLS)]

    assert 'recorded' in states(same(late, program))


def test_events_of_the_null_stream_come_after_blocking_streams(late: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        s, t = cp.cuda.Stream(), cp.cuda.Stream(non_blocking=True)

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            with s:
                a = x * 2
            t.wait_event(cp.cuda.get_current_stream().record())
            with t:
                b = a + 1
            cp.cuda.get_current_stream().wait_event(t.record())
            with s:
                c = b * 2
            e = s.record()
            t.wait_event(e)
            with t:
                d = c + 1
            s.wait_event(t.record())
            return d * 5

        return [fn(cp.arange(4.0) + v) for v in range(CALLS)]

    assert 'recorded' in states(same(late, program))


def test_the_current_stream_by_name(late: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        s = cp.cuda.Stream(non_blocking=True)

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            with s:
                a = x * 2
                e = s.record()
            cp.cuda.get_current_stream().wait_event(e)
            return a + 1

        found = []
        for v in range(2 * CALLS):
            with s if v % 3 else cp.cuda.Stream.null:
                x = cp.arange(4.0) + v
                s.wait_event(cp.cuda.get_current_stream().record())
                found.append(fn(x))
                cp.cuda.get_current_stream().synchronize()
        return found

    same(late, program)


def test_the_null_stream_by_name(late: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            s = cp.cuda.Stream()
            with s:
                a = x * 2
            with cp.cuda.Stream.null:
                b = a + 1
                with s:
                    c = b * 3
                e = cp.cuda.Stream.null.record()
            cp.cuda.get_current_stream().wait_event(e)
            return c + b

        return [fn(cp.arange(4.0) + v) for v in range(CALLS)]

    assert 'recorded' in states(same(late, program))


def test_recorded_on_one_stream_and_called_on_the_null_stream(late: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        s, t = cp.cuda.Stream(), cp.cuda.Stream(non_blocking=True)

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any, ordered: bool) -> Any:
            if cp.cuda.get_current_stream() == cp.cuda.Stream.null:
                with s:
                    a = x * 2
                return a + 1
            return x * 2 + 1

        found = []
        for v in range(3 * CALLS):
            with t if v % 4 < 2 else cp.cuda.Stream.null:
                found.append(fn(cp.arange(4.0) + v, True))
                cp.cuda.get_current_stream().synchronize()
        return found

    same(late, program)


# -- streams of the caller's ------------------------------------------------------------------------------------------


@pytest.mark.parametrize('non_blocking', [True, False])
@pytest.mark.parametrize('current', ['null', 'other'])
def test_a_stream_among_the_arguments(late: Any, non_blocking: bool, current: str) -> None:
    """Work before and after the call, on the stream that the function works on, and no event anywhere."""

    def program(cp: Any, over: Any) -> list[Any]:
        s = cp.cuda.Stream(non_blocking=non_blocking)
        t = cp.cuda.Stream.null if current == 'null' else cp.cuda.Stream(non_blocking=True)

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any, stream: Any) -> Any:
            with stream:
                return x * 2

        found = []
        for v in range(CALLS):
            with s:
                x = cp.arange(4.0) + v
                for _ in range(3):
                    x = x + 1
            with t:
                y = fn(x, s)
            with s:
                found.append(y * 3)
            del y  # its memory is the stream's, and not to be had by others before that has read it
            with t:
                cp.full(4, -1.0)
        return found

    assert 'recorded' in states(same(late, program))


def test_a_stream_that_is_waited_for(late: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        s = cp.cuda.Stream(non_blocking=True)
        total = cp.zeros(4)
        cp.cuda.runtime.deviceSynchronize()

        @over  # type: ignore[untyped-decorator]
        def by_event(x: Any) -> Any:
            cp.cuda.get_current_stream().wait_event(s.record())
            return total + x

        found = []
        for v in range(CALLS):
            with s:
                for _ in range(3):
                    total += v
            found.append(by_event(cp.arange(4.0)))
            s.wait_event(cp.cuda.get_current_stream().record())
        return found

    assert 'recorded' in states(same(late, program))


@pytest.mark.parametrize('how', ['stream', 'event', 'device', 'current'])
def test_the_host_waits(late: Any, how: str) -> None:
    """After the call another stream reads what the function wrote, with no other order than the host's wait."""

    def program(cp: Any, over: Any) -> list[Any]:
        s, t = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
        total = cp.zeros(4)
        cp.cuda.runtime.deviceSynchronize()

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            here = cp.cuda.get_current_stream()
            if how == 'stream':
                here.synchronize()
                with s:
                    total[...] = total + x
                s.synchronize()
                return total * 2
            total[...] = total + x
            y = total * 2
            if how == 'event':
                here.record().synchronize()
            elif how == 'device':
                cp.cuda.Device().synchronize()
            else:
                here.synchronize()
            return y

        found = []
        for v in range(CALLS):
            fn(cp.arange(4.0) + v)
            with t:
                found.append(total * 1)
            t.synchronize()
        return found

    assert 'recorded' in states(same(late, program))


def test_the_host_waits_for_what_others_do(late: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        s = cp.cuda.Stream(non_blocking=True)
        total = cp.zeros(4)
        cp.cuda.runtime.deviceSynchronize()

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            cp.cuda.Device().synchronize()
            return total + x

        found = []
        for v in range(CALLS):
            with s:
                total += v
            found.append(fn(cp.arange(4.0)))
            cp.cuda.get_current_stream().synchronize()
        return found

    assert 'recorded' in states(same(late, program))


def test_a_check_that_fails_beside_a_stream(late: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        s = cp.cuda.Stream(non_blocking=True)
        total = cp.zeros(4)
        cp.cuda.runtime.deviceSynchronize()

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            here = cp.cuda.get_current_stream()
            s.wait_event(here.record())
            with s:
                total[...] = total + x
            here.wait_event(s.record())
            if float(x[0]) > 2:
                with s:
                    total[...] = total * 2
            return x + 1

        found = []
        for v in (0, 0, 0, 4, 0, 4, 4, 0, 5, 1):
            found.append(fn(cp.full(4, float(v))))
            with s:
                found.append(total * 1)
            cp.cuda.get_current_stream().wait_event(s.record())
        return found

    same(late, program)


def test_a_decomposition_beside_a_stream(late: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        s = cp.cuda.Stream(non_blocking=True)

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            with s:
                a = x + cp.eye(2)
            s.synchronize()
            w = cp.linalg.svd(a)[1]
            s.wait_event(cp.cuda.get_current_stream().record())
            with s:
                b = w * 2
            return b

        found = []
        for v in range(CALLS):
            with s:
                x = cp.full((2, 2), float(v))
            y = fn(x)
            with s:
                found.append((y * 1000).astype('i4'))
            s.synchronize()
        return found

    same(late, program)


# -- what stays eager -------------------------------------------------------------------------------------------------


def an_event_of_the_callers(cp: Any, x: Any, event: Any, _s: Any) -> Any:
    cp.cuda.get_current_stream().wait_event(event)
    return x * 2


def recording_an_event_of_the_callers(_cp: Any, x: Any, event: Any, _s: Any) -> Any:
    y = x * 2
    event.record()
    return y


def a_returned_event(cp: Any, x: Any, _event: Any, _s: Any) -> Any:
    y = x * 2
    return y, cp.cuda.get_current_stream().record()


def a_returned_stream(cp: Any, x: Any, _event: Any, _s: Any) -> Any:
    s = cp.cuda.Stream(non_blocking=True)
    return x * 2, s


def an_event_in_a_returned_object(cp: Any, x: Any, _event: Any, _s: Any) -> Any:
    y = x * 2
    return y, Kept(cp.cuda.get_current_stream().record())


def another_current_stream(cp: Any, x: Any, _event: Any, s: Any) -> Any:
    y = x * 2
    s.wait_event(cp.cuda.get_current_stream().record())
    s.use()
    return y


def asking_whether_it_is_done(_cp: Any, x: Any, _event: Any, s: Any) -> Any:
    return x * (2 if s.done in (True, False) else 3)


def asking_an_event(_cp: Any, x: Any, event: Any, _s: Any) -> Any:
    return x * (2 if event.done in (True, False) else 3)


class Kept:
    def __init__(self, event: Any) -> None:
        self.event = event


@pytest.mark.parametrize(
    'body',
    [
        an_event_of_the_callers, recording_an_event_of_the_callers, a_returned_event, a_returned_stream,
        an_event_in_a_returned_object, another_current_stream, asking_whether_it_is_done, asking_an_event,
    ],
)  # fmt: skip
def test_streams_and_events_that_no_launch_can_make(late: Any, body: Any, caplog: pytest.LogCaptureFixture) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        s, t = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
        event = cp.cuda.Event(disable_timing=True)
        fn = over(lambda x: body(cp, x, event, s))
        found = []
        for v in range(CALLS):
            with s:
                x = cp.arange(4.0) + v
                event.record(s)
            cp.cuda.get_current_stream().wait_event(event)
            y = fn(x)
            made = y[1] if isinstance(y, tuple) else None
            y = y[0] if isinstance(y, tuple) else y
            if made is not None:
                made = made.event if isinstance(made, Kept) else made
                made = made.record() if hasattr(made, 'priority') else made
                t.wait_event(made)
                made.synchronize()
            cp.cuda.get_current_stream().synchronize()
            cp.cuda.Stream.null.use()
            if body is recording_an_event_of_the_callers:
                t.wait_event(event)
            t.wait_event(cp.cuda.get_current_stream().record())
            with t:
                found.append(y + 1)
            t.synchronize()
        return found

    fn = same(late, program)
    assert states(fn) == {'eager'}
    assert [one.message for one in caplog.records if 'runs eagerly' in one.message]


# -- several devices --------------------------------------------------------------------------------------------------


def test_another_devices_null_stream(late_pair: Any) -> None:
    def program(cp: Any, over: Any) -> list[Any]:
        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            y = x * 2
            with cp.cuda.Device(1):
                z = cp.asarray(y) * 3
            back = cp.asarray(z) + 1
            with cp.cuda.Device(1):
                w = cp.asarray(back) - 1
            return cp.asarray(w)

        found = []
        for v in range(CALLS):
            found.append(fn(cp.arange(4.0) + v).get().tolist())
            with cp.cuda.Device(1):
                cp.cuda.runtime.deviceSynchronize()
        return found

    wanted = [((np.arange(4.0) + v) * 6).tolist() for v in range(CALLS)]
    eager = program(late_pair, lambda fn: fn)
    if eager == wanted:  # CUDA orders such copies with the null streams of both devices
        assert program(late_pair, ck.graphed) == wanted


def test_a_result_of_another_device_is_read_at_once(late_pair: Any) -> None:
    """CuPy reads it on the null stream of its device, on which the function made it: a launch comes before, too."""

    def program(cp: Any, over: Any) -> list[Any]:
        with cp.cuda.Device(1):
            kept = cp.arange(4.0)
            cp.cuda.runtime.deviceSynchronize()

        @over  # type: ignore[untyped-decorator]
        def fn(x: Any) -> Any:
            with cp.cuda.Device(1):
                y = kept * 2
                kept[...] += 1
            return x + 1, y

        found = []
        for v in range(CALLS):
            x, y = fn(cp.arange(4.0) + v)
            with cp.cuda.Device(1):
                found += [y.get().tolist(), (y + 1).get().tolist()]
            found += [x.get().tolist(), y.device.id]
        return found

    fn = same(late_pair, program)
    assert states(fn) == {'recorded'}


# -- recorded numbers of the driver's ---------------------------------------------------------------------------------


def test_an_address_in_the_result(sim: Any) -> None:
    fn = ck.graphed(lambda x: (x * 2, x.data.ptr))
    for _ in range(4):
        x = sim.arange(4.0)
        assert fn(x)[1] == x.data.ptr
    assert states(fn) == {'eager'}
