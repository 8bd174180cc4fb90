"""What the host does at each launch of a graph of two devices: it does so on the device where it was recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard.libraries import on_device
from capturekit.guard.state import State
from tests.captured import simulated
from tests.guard.several_devices import arrays, count, of, side_of, value

N = 64


@pytest.fixture
def cp(several: Any) -> Any:
    return several


def seed_all(cp: Any, seed: int) -> None:
    for device in range(count(cp)):
        with cp.cuda.Device(device):
            cp.random.seed(seed + device)


def test_draws_over_there_go_on_as_eagerly(cp: Any) -> None:
    """Numbers that the user draws between the launches belong to the same sequence."""
    wanted, found = [], []
    seed_all(cp, 3)
    for _ in range(4):
        with cp.cuda.Device(1):
            wanted.append([value(cp, cp.random.random(N)), value(cp, cp.random.standard_normal(N))])
    with cp.cuda.Device(1):
        out, more = cp.zeros(N), cp.zeros(N)
    with ck.capture() as cap, cap.fork(devices=[1]) as (there,), there:
        out[...] = cp.random.random(N)
        more[...] = cp.random.standard_normal(N)
    seed_all(cp, 3)
    for n in range(4):
        if n == 2:
            with cp.cuda.Device(1):
                found.append([value(cp, cp.random.random(N)), value(cp, cp.random.standard_normal(N))])
            continue
        with cp.cuda.Stream(non_blocking=True):
            cap.graph.launch()
        found.append([value(cp, out), value(cp, more)])
    assert np.array_equal(wanted, found)


def test_a_failed_call_between_parts_changes_no_stream(cp: Any) -> None:
    xs = arrays(cp, N)
    with ck.capture(pieces=True, strict=False) as cap:
        y = xs[0] * 2
        with cp.cuda.Device(1):
            before = cp.cuda.get_current_stream().ptr
            with pytest.raises(np.linalg.LinAlgError):
                cp.linalg.eigh(cp.asarray(y))  # no matrix
            assert cp.cuda.runtime.getDevice() == 1 and cp.cuda.get_current_stream().ptr == before
            z = cp.asarray(xs[1]) + 1
    cap.graph.launch()
    assert np.array_equal(value(cp, z), of(cp, 1, N) + 1) and np.array_equal(value(cp, y), of(cp, 0, N) * 2)


@pytest.mark.parametrize('current', [0, 1])
@pytest.mark.parametrize('of_stream', [0, 1])
def test_a_launch_in_parts_on_any_stream(cp: Any, of_stream: int, current: int) -> None:
    """The host works on the device of the stream that it is given, whichever device is current."""
    xs = arrays(cp, N)
    with cp.cuda.Device(1):
        out = cp.zeros(N)
    side = side_of(cp, of_stream)

    def program() -> Any:
        values = cp.linalg.eigvalsh(cp.outer(xs[0], xs[0]))
        with cp.cuda.Device(1):
            out[...] = cp.linalg.eigvalsh(cp.outer(xs[1], xs[1])) + cp.random.random(N)
        return values * 2

    with ck.capture(pieces=True, strict=False) as cap:
        here = program()
    for n in range(3):
        for device in (0, 1):
            with cp.cuda.Device(device):
                xs[device][...] = cp.arange(float(N)) + n + device
        seed_all(cp, 4)
        value(cp, xs[0])
        with cp.cuda.Device(current):
            cap.graph.launch(side if n != 1 else None)
            assert cp.cuda.runtime.getDevice() == current and cp.cuda.get_current_stream() == cp.cuda.Stream.null
        found = value(cp, here), value(cp, out)
        x, y = np.arange(float(N)) + n, np.arange(float(N)) + n + 1
        seed_all(cp, 4)
        with cp.cuda.Device(1):
            drawn = value(cp, cp.random.random(N))
        assert np.isclose(found[0][-1], 2 * (x @ x)) and np.isclose(found[1][-1], y @ y + drawn[-1])
        assert np.allclose(found[1][:-1], drawn[:-1], atol=1e-6)


@pytest.mark.parametrize('raises', [False, True])
@pytest.mark.parametrize('seed', range(5))
def test_a_launch_goes_on_after_work_over_there(seed: int, raises: bool) -> None:
    """What the launching stream is given next sees all that was begun over there, also by a call that raised."""
    with simulated(seed, devices=2, late=True) as cp:
        with cp.cuda.Device(1):
            x = cp.zeros(N)
        value(cp, x)

        def go() -> None:
            for _ in range(20):
                x[...] = x + 1
            if raises:
                raise OSError('no more')

        with cp.cuda.Stream(non_blocking=True) as launching:
            if raises:
                with pytest.raises(OSError, match='no more'):
                    on_device(State(), 1, go)
            else:
                on_device(State(), 1, go)
            seen = cp.empty(N)
            seen[...] = cp.asarray(x)
            launching.synchronize()
            assert cp.cuda.Device().id == 0 and np.array_equal(seen.get(), np.full(N, 20.0))
