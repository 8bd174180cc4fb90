"""Graphed functions on two devices do what the eager calls do: values, the results' devices, the current device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall

CALLS = 7


@pytest.fixture(params=['simulated', pytest.param('gpu', marks=pytest.mark.gpu)])
def cp(request: pytest.FixtureRequest) -> Iterator[Any]:
    """CuPy with at least two devices."""
    if request.param == 'gpu':
        cupy = pytest.importorskip('cupy')
        if (count := cupy.cuda.runtime.getDeviceCount()) < 2:
            pytest.skip(f'this needs two devices, and there are {count}')
        try:
            yield cupy
        finally:
            cupy.cuda.Device(0).use()
        return
    install(SimulatedDevice(11, devices=2))
    try:
        yield sys.modules['cupy']
    finally:
        uninstall()


def wait(cp: Any) -> None:
    for device in range(cp.cuda.runtime.getDeviceCount()):
        with cp.cuda.Device(device):
            cp.cuda.runtime.deviceSynchronize()


def seen(cp: Any, value: Any) -> Any:
    """What a caller sees of a value: of an array also its device, and of an exception its type."""
    if isinstance(value, (tuple, list)):
        return [seen(cp, one) for one in value]
    if isinstance(value, cp.ndarray):
        return value.device.id, value.get().tolist()
    return value


def there(cp: Any, n: int = 5) -> Any:
    with cp.cuda.Device(1):
        made = cp.arange(float(n)) + 100
        cp.cuda.Device(1).synchronize()
    return made


# -- programs: of CuPy they make a function, and the arguments of a call ----------------------------------------------


def a_branch_over_there(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            y = cp.asarray(x) * 2
        return y

    return fn, lambda n: (cp.arange(5.0) + n,)


def there_and_back(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            y = cp.asarray(x) * 2
        return cp.asarray(y) + x

    return fn, lambda n: (cp.arange(5.0) + n,)


def results_on_both(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            y = cp.asarray(x) * 2
            z = y.sum()
        return x + 1, y, z

    return fn, lambda n: (cp.arange(5.0) + n,)


def the_device_is_left_changed(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        y = x * 2
        cp.cuda.Device(1).use()
        return y

    return fn, lambda n: (cp.arange(5.0) + n,)


def work_after_a_change_of_device(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        y = x * 2
        cp.cuda.Device(1).use()
        z = cp.asarray(y) + 1
        cp.cuda.Device(0).use()
        return z

    return fn, lambda n: (cp.arange(5.0) + n,)


def an_argument_of_the_other_device(cp: Any) -> Any:
    return (lambda x: cp.asarray(x) * 3), lambda n: (there(cp) + 0 if n < 0 else _over_there(cp, n),)


def _over_there(cp: Any, n: int) -> Any:
    with cp.cuda.Device(1):
        made = cp.arange(5.0) * n
        cp.cuda.Device(1).synchronize()
    return made


def an_argument_is_written_over_there(cp: Any) -> Any:
    kept = there(cp)

    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            kept[...] += 1
            return kept * 2

    return fn, lambda n: (cp.arange(5.0) + n,)


def arguments_of_both_devices(cp: Any) -> Any:
    def fn(x: Any, y: Any) -> Any:
        z = cp.asarray(y) + x
        with cp.cuda.Device(1):
            y *= 2
        return z

    return fn, lambda n: (cp.arange(5.0) + n, _over_there(cp, n))


def the_argument_itself_is_the_result(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            x += 1
        return x

    return fn, lambda n: (_over_there(cp, n),)


def the_current_device_is_asked_for(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        return x * (1 + cp.cuda.Device().id), cp.cuda.runtime.getDevice(), x.device.id

    return fn, lambda n: (cp.arange(5.0) + n,)


def a_stream_of_the_other_device(cp: Any) -> Any:
    with cp.cuda.Device(1):
        side = cp.cuda.Stream(non_blocking=True)

    def fn(x: Any) -> Any:
        with cp.cuda.Device(1), side:
            y = cp.asarray(x) * 2
        side.synchronize()
        return cp.asarray(y) - 1

    return fn, lambda n: (cp.arange(5.0) + n,)


def events_across(cp: Any) -> Any:
    with cp.cuda.Device(1):
        side = cp.cuda.Stream(non_blocking=True)

    def fn(x: Any) -> Any:
        y = x * 2
        side.wait_event(cp.cuda.get_current_stream().record())
        with cp.cuda.Device(1), side:
            z = cp.asarray(y) + 1
            done = side.record()
        cp.cuda.get_current_stream().wait_event(done)
        return cp.asarray(z) - 3

    return fn, lambda n: (cp.arange(5.0) + n,)


def a_host_read_over_there(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            y = cp.asarray(x) * 2
            large = float(y[0]) > 6
        return x + 1 if large else x - 1

    return fn, lambda n: (cp.arange(5.0) + n,)


def a_capture_with_lanes_of_both(cp: Any) -> Any:
    kept = there(cp)

    def fn(x: Any) -> Any:
        with ck.fork(devices=[0, 1]) as (here, over):
            with here:
                y = x * 2
            with over:
                z = kept * 2
        return y, z, cp.asarray(z)[:5] + y

    return fn, lambda n: (cp.arange(5.0) + n,)


def a_temporary_of_each_device(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        total = x * 0
        for number in range(3):
            with cp.cuda.Device(number % 2):
                part = cp.asarray(x) * number
                part = cp.tanh(part * 0) + part
            total = total + cp.asarray(part)
        return total

    return fn, lambda n: (cp.arange(5.0) + n,)


def a_sum_by_matrix_product(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            y = cp.asarray(x).reshape(2, 2)
            z = y @ y
        return cp.asarray(z) + 1

    return fn, lambda n: (cp.arange(4.0) + n,)


def random_numbers_over_there(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            cp.random.seed(3)
            y = cp.random.random(5)
        return cp.asarray(y) + x

    return fn, lambda n: (cp.arange(5.0) + n,)


def a_decomposition_over_there(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            y = cp.asarray(x) * 2
            values, _ = cp.linalg.eigh(cp.outer(y, y) + cp.eye(5))
            most = values.max() * 3  # recorded behind the call that the host makes between two graphs
        return cp.asarray(most) + x

    return fn, lambda n: (cp.arange(5.0) + n,)


def a_transform_of_a_prime_length_over_there(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            y = abs(cp.fft.fft(cp.asarray(x), n=139))[:5]
            z = y * 3
        return cp.asarray(z) + x

    return fn, lambda n: (cp.arange(5.0) + n,)


def random_numbers_of_both(cp: Any) -> Any:
    def fn(x: Any) -> Any:
        here = cp.random.random(5)
        with cp.cuda.Device(1):
            there = cp.random.normal(0, 1, 5) + cp.random.choice(50, 5, replace=False)
        return cp.asarray(there) + here + x

    def arguments(n: int) -> tuple[Any]:
        for device in (0, 1):
            with cp.cuda.Device(device):
                if n in (0, 4):
                    cp.random.seed(n)
                else:
                    cp.random.random(3)  # goes on from where the function's own draws ended
        return (cp.arange(5.0) + n,)

    return fn, arguments


PROGRAMS = [
    a_branch_over_there,
    there_and_back,
    results_on_both,
    the_device_is_left_changed,
    work_after_a_change_of_device,
    an_argument_of_the_other_device,
    an_argument_is_written_over_there,
    arguments_of_both_devices,
    the_argument_itself_is_the_result,
    the_current_device_is_asked_for,
    a_stream_of_the_other_device,
    events_across,
    a_host_read_over_there,
    a_capture_with_lanes_of_both,
    a_temporary_of_each_device,
    a_sum_by_matrix_product,
    random_numbers_over_there,
    random_numbers_of_both,
    a_decomposition_over_there,
    a_transform_of_a_prime_length_over_there,
]


def told(cp: Any, program: Callable[[Any], Any], over: Callable[[Any], Any], on: Callable[[int], int]) -> list[Any]:
    """What the calls of a program show, each made while a device is current that ``on`` names."""
    cp.cuda.Device(0).use()
    fn, arguments = program(cp)
    fn, found = over(fn), []
    for n in range(CALLS):
        cp.cuda.Device(0).use()
        given = arguments(n)
        wait(cp)
        cp.cuda.Device(on(n)).use()
        try:
            result = fn(*given)
        except (ValueError, RuntimeError) as error:
            result = type(error).__name__
        device = cp.cuda.runtime.getDevice()
        wait(cp)
        found.append([device, seen(cp, result), seen(cp, given)])
    cp.cuda.Device(0).use()
    return found


@pytest.mark.filterwarnings('ignore:The device where the array')
@pytest.mark.parametrize('on', [lambda n: 0, lambda n: 1, lambda n: int(n in (2, 4, 5))], ids=['0', '1', 'changing'])
@pytest.mark.parametrize('program', PROGRAMS, ids=lambda program: program.__name__)
def test_as_eagerly(cp: Any, program: Callable[[Any], Any], on: Callable[[int], int]) -> None:
    made: list[ck.Graphed] = []

    def over(fn: Any) -> Any:
        made.append(ck.graphed(fn))
        return made[-1]

    wanted = told(cp, program, lambda fn: fn, on)
    assert told(cp, program, over, on) == wanted


def test_a_result_of_another_device_is_launched(cp: Any) -> None:
    for program in (a_branch_over_there, results_on_both, an_argument_is_written_over_there):
        fn, arguments = program(cp)
        graphed = ck.graphed(fn)
        for n in range(CALLS):
            graphed(*arguments(n))
            wait(cp)
        assert {one.state for one in graphed.variants} == {'recorded'}, graphed.variants[0].reason
        assert sum(one.launches for one in graphed.variants) >= CALLS - 3


def test_host_work_over_there_is_launched(cp: Any) -> None:
    for program in (random_numbers_of_both, a_decomposition_over_there, a_transform_of_a_prime_length_over_there):
        fn, arguments = program(cp)
        graphed = ck.graphed(fn)
        for n in range(CALLS):
            graphed(*arguments(n))
            wait(cp)
        assert len(graphed.variants) == 1
        assert graphed.variants[0].launches >= CALLS - 2, graphed.variants[0].reason


def test_a_large_result_of_another_device(cp: Any) -> None:
    """Large results are not copied elsewhere: here the launch can't write where the caller's array is."""

    @ck.graphed
    def fn(x: Any) -> Any:
        with cp.cuda.Device(1):
            y = cp.asarray(x) * 2
            views = y[::2], y.T
        return x + 1, y, views

    for n in range(CALLS):
        x = cp.arange(1 << 19, dtype='f8').reshape(2, -1) + n
        wait(cp)
        here, there, (half, turned) = fn(x)
        wait(cp)
        assert (here.device.id, there.device.id, half.device.id) == (0, 1, 1)
        assert (here.get() == x.get() + 1).all() and (there.get() == x.get() * 2).all()
        with cp.cuda.Device(1):
            assert (half.get() == there.get()[::2]).all() and (turned.get() == there.get().T).all()
        assert half.data.ptr == turned.data.ptr == there.data.ptr
    assert fn.variants[0].state == 'recorded', fn.variants[0].reason


def test_why_an_argument_of_another_device_stays_eager(cp: Any) -> None:
    fn = ck.graphed(lambda x: x.device.id)
    for n in range(CALLS):
        assert fn(_over_there(cp, n)) == 1
        assert fn(cp.arange(5.0)) == 0
    eager, recorded = (next(one for one in fn.variants if one.state == state) for state in ('eager', 'recorded'))
    assert 'An array of device 1 in a call on device 0' in eager.reason and recorded.launches


@pytest.mark.parametrize('checked', [False, True])
def test_a_result_there_of_a_call_in_parts_stays_eager(cp: Any, checked: bool) -> None:
    def fn(x: Any, out: Any) -> Any:
        scale = (2 if float(x[0]) > -1 else 3) if checked else 2
        out[...] = cp.random.random(5)
        with cp.cuda.Device(1):
            return cp.asarray(x) * scale

    drawn: list[list[Any]] = []
    for over in (lambda fn: fn, ck.graphed):
        graphed, out = over(fn), cp.zeros(5)
        drawn.append([])
        cp.random.seed(5)
        for n in range(CALLS):
            y = graphed(cp.arange(5.0) + n, out)
            wait(cp)
            assert y.device.id == 1 and (y.get() == (cp.arange(5.0) + n).get() * 2).all()
            drawn[-1].append(out.get().tolist())
    assert drawn[0] == drawn[1]
    assert {one.state for one in graphed.variants} == {'eager'}
    assert checked or 'A result on device 1' in graphed.variants[0].reason
