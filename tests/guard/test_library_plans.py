"""Plans of cuFFT that are first made in a block: some wait for the device, which no capture holds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.fft_plans import waits_for_the_device
from tests.guard.manual import by_hand

#: Transforms of one axis and of several, to and from real numbers. 131 is the first prime for which cuFFT computes
#: tables on the device.
KINDS: list[tuple[str, tuple[int, ...], str]] = [
    ('fft(x)', (128,), 'c16'), ('fft(x)', (127,), 'c16'), ('fft(x)', (131,), 'c16'), ('fft(x)', (262,), 'c16'),
    ('fft(x)', (10007,), 'c16'), ('ifft(x)', (131,), 'c8'), ('fft(x)', (3, 137), 'c16'),
    ('fft(x, axis=0)', (139, 4), 'c16'), ('rfft(x)', (263,), 'f8'), ('irfft(x, n=263)', (132,), 'c16'),
    ('fft2(x)', (131, 64), 'c16'), ('fftn(x)', (4, 131, 6), 'c16'), ('rfft2(x)', (8, 131), 'f8'),
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_plans(cp: Any) -> Iterator[None]:
    """No plan is kept when a test begins."""
    cp.fft.config.get_plan_cache().clear()
    yield
    cp.fft.config.get_plan_cache().clear()


def numbers(cp: Any, shape: tuple[int, ...], dtype: str, seed: int = 1) -> Any:
    return cp.asarray(np.random.default_rng(seed).random(shape)).astype(dtype)


def same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a.get(), b.get()))


@pytest.mark.parametrize(('call', 'shape', 'dtype'), KINDS)
def test_a_plan_is_made_in_the_block(cp: Any, call: str, shape: tuple[int, ...], dtype: str) -> None:
    transform = eval(compile(f'lambda x: fft.{call}', __file__, 'eval'), {'fft': cp.fft})
    x = numbers(cp, shape, dtype)
    with ck.capture() as cap:
        y = transform(x * 2)
        z = y + 1
    for seed in range(3):
        x[...] = numbers(cp, shape, dtype, seed)
        cap.graph.launch()
        assert same(z, transform(x * 2) + 1)
    suspended = [step for step in cap.recording.steps if 'suspended' in step.text]
    assert len(suspended) == (shape not in [(128,), (127,)])
    assert all('test_library_plans.py' in step.at[0] for step in suspended if step.at)


def test_a_graphed_function_whose_plans_are_dropped(cp: Any) -> None:
    @ck.graphed
    def step(x: Any) -> Any:
        cp.fft.config.get_plan_cache().clear()
        return cp.fft.fft(x) * 2

    for seed in range(4):
        x = numbers(cp, (131,), 'c16', seed)
        assert same(step(x), cp.fft.fft(x) * 2)


@pytest.mark.parametrize('strict', [True, False])
def test_on_an_open_lane(cp: Any, strict: bool) -> None:
    x = numbers(cp, (131,), 'c16')
    refused: Any = pytest.raises(ck.UnsupportedCallError, match=r'(?s)length 131.* before the capture')
    with ck.capture(strict=strict) as cap:
        with cap.fork(2) as (left, right):
            with left:
                a = x * 2
                with refused if strict else contextlib.nullcontext():
                    a = cp.fft.fft(a)
            with right:
                b = x + 1
        y = a + b
    cap.graph.launch()
    assert same(y, (x * 2 if strict else cp.fft.fft(x * 2)) + (x + 1))


def test_in_the_body_of_a_decision(cp: Any) -> None:
    x = numbers(cp, (131,), 'c16')
    with ck.capture() as cap:
        y = x * 2
        with cap.if_(abs(y[0]) < 100):
            y += 1
            with pytest.raises(ck.UnsupportedCallError, match='Make the plan before the capture'):
                cp.fft.fft(y)
    cap.graph.launch()
    assert same(y, x * 2 + 1)


def test_in_a_capture_begun_by_hand(cp: Any) -> None:
    x = numbers(cp, (131,), 'c16')
    y = cp.empty_like(x)
    with by_hand(cp) as made:
        cp.multiply(x, 2, out=y)
        with pytest.raises(ck.UnsupportedCallError, match='length 131'):
            cp.fft.fft(y)
    made.launch()
    assert same(y, x * 2)


def test_another_threads_plan_waits_for_the_capture(cp: Any) -> None:
    x = numbers(cp, (131,), 'c16')
    w = numbers(cp, (139,), 'c16')
    cp.cuda.Device().synchronize()
    found: list[Any] = []

    def run() -> None:
        x + 1  # cuFFT itself gives a new thread no context: its kernels fail there without this, in bare CuPy, too
        found.append(cp.fft.fft(w).get())

    thread = threading.Thread(target=run)
    with ck.capture() as cap:
        y = x * 2
        thread.start()
        thread.join(0.3)
        assert not found
        y = cp.fft.fft(y)  # while this plan is made, the other thread's is made as well, or after the block
    thread.join(30)
    cap.graph.launch()
    assert same(y, cp.fft.fft(x * 2))
    assert np.array_equal(found[0], cp.fft.fft(w).get())


def real(cp: Any) -> Any:
    if hasattr(cp, '__capturekit_simulated__'):
        pytest.skip('plans of the simulated device work in no memory')
    return cp


@pytest.mark.parametrize('shape', [(64, 10007), (8, 131, 64)])
def test_memory_of_a_dropped_plan_is_not_written(cp: Any, shape: tuple[int, ...]) -> None:
    """The graph works in its own memory: what the plan had may belong to another array by then."""
    x = numbers(real(cp), shape, 'c16')
    axes = tuple(range(1, x.ndim))
    plan = pytest.importorskip('cupyx.scipy.fft').get_fft_plan(x, axes=axes)
    size, address = int(plan.work_area.mem.size), int(plan.work_area.ptr)
    with plan:
        wanted = cp.fft.fftn(x, axes=axes).get()
        with ck.capture() as cap:
            y = cp.fft.fftn(x, axes=axes)
    del plan
    cp.fft.config.get_plan_cache().clear()
    others = [cp.zeros(size, 'u1') for _ in range(3)]
    if not any(int(other.data.ptr) <= address < int(other.data.ptr) + size for other in others):
        pytest.skip('the memory of the plan was not handed out again')
    cap.graph.launch()
    assert np.array_equal(y.get(), wanted)
    assert not any(bool(other.any()) for other in others)


def test_one_plan_on_two_lanes(cp: Any) -> None:
    """Both lanes use the plan at the same time, each in memory of its own."""
    a, b = (numbers(real(cp), (256, 10007), 'c16', seed) for seed in (1, 2))
    wanted = [cp.fft.fft(one).get() for one in (a, b)]
    with ck.capture() as cap:
        with cap.fork(2) as (left, right):
            with left:
                y = cp.fft.fft(a)
            with right:
                z = cp.fft.fft(b)
    for _ in range(20):
        cap.graph.launch()
        assert np.array_equal(y.get(), wanted[0]) and np.array_equal(z.get(), wanted[1])


def test_lint_refuses_what_a_capture_refuses(sim: Any) -> None:
    def beside_a_lane(x: Any) -> Any:
        with ck.fork(2) as (left, _right), left:
            return sim.fft.fft(x)

    x = sim.ones(131, 'c16')
    assert not ck.lint(sim.fft.fft, x).findings
    sim.fft.config.get_plan_cache().clear()
    (found,) = ck.lint(beside_a_lane, x).findings
    assert 'cufft.Plan1d()' in str(found)


def test_which_lengths_wait() -> None:
    assert not any(waits_for_the_device([n]) for n in (0, 1, 2, 121, 127, 127 * 127, 2**20, 3 * 5 * 7 * 11 * 13 * 17))
    assert all(waits_for_the_device([8, n]) for n in (131, 262, 131 * 127, 10007, 65537))


@pytest.mark.parametrize('join', [True, False])
def test_a_blocking_stream_in_the_capture(cp: Any, join: bool) -> None:
    """cuFFT uses the legacy stream for any plan: where a blocking lane is open, the plan is refused."""
    x, side = numbers(cp, (8,), 'c16'), cp.cuda.Stream()
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x * 2
        if join:
            cap.join(side)
            y = cp.fft.fft(y)
        else:
            with pytest.raises(ck.UnsupportedCallError, match='a blocking stream is in the capture'):
                cp.fft.fft(x)
            cap.join(side)
    cap.graph.launch()
    assert same(y, cp.fft.fft(x * 2) if join else x * 2)
