"""Launches reckon anew with numbers that the function reads on the host, and are what plain runs are, to the bit."""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.functions.reckoning import NATURAL, OTHERS, SEEN, Maker, seen, written

#: The numbers that the function reads: sums of the arguments, NaN and infinity among them.
ODD = [1.0, 2.5, 3.0, -0.0, 4.5, float('nan'), 9.0, float('inf'), -3.0, 1e-310, 1e308, 3.0, -1e5, 0.0, 5.0, 6.0, 7.25]


def told(value: Any) -> Any:
    """All that can be told of a value; numbers by their bits."""
    if hasattr(value, 'get') and hasattr(value, 'dtype'):
        value = value.get()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: told(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [told(part) for part in value]
    return (type(value), struct.pack('d', value)) if isinstance(value, float) else (type(value), value)


def outcome(function: Any, x: Any) -> Any:
    """What a call gives, or what it raises."""
    try:
        return told(function(x))
    except Exception as error:
        return type(error), str(error)


def alike(cp: Any, maker: Maker, sums: list[float]) -> Any:
    """Call it plainly and graphed, each with a state of its own, on arguments with these sums."""
    (plain, state), (other, graphed_state) = maker(cp), maker(cp)
    fn = ck.graphed(other)
    cp.random.seed(3)
    wanted = []
    for number, total in enumerate(sums):
        x = given(cp, number, total)
        wanted.append((outcome(plain, x), told(x), told(state())))
    cp.random.seed(3)
    for number, total in enumerate(sums):
        x = given(cp, number, total)
        assert (outcome(fn, x), told(x), told(graphed_state())) == wanted[number], (number, total)
    return fn


def given(cp: Any, number: int, total: float) -> Any:
    return cp.asarray([total, 0.0, 0.0]) if number % 2 else cp.asarray([0.0, total, -0.0])


def ordinary(count: int) -> list[float]:
    return [float(one) for one in np.random.default_rng(5).uniform(0.5, 90.0, count)]


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


@pytest.mark.parametrize('maker', NATURAL, ids=lambda one: one.__name__)
def test_each_launch_reckons_anew(sim: Any, maker: Maker) -> None:
    assert launches(alike(sim, sized(maker), ordinary(12))) >= 8


def sized(maker: Maker) -> Maker:
    """The same for arguments of the length that the function wants."""

    def other(cp: Any) -> Any:
        work, state = maker(cp)
        if maker.__name__ != 'conjugate_gradients':
            return work, state
        return lambda x: work(cp.concatenate([x, x[:1] + 1])), state

    return other


@pytest.mark.parametrize('maker', [*NATURAL, *OTHERS], ids=lambda one: one.__name__)
def test_odd_numbers_are_right(sim: Any, maker: Maker) -> None:
    alike(sim, sized(maker), [*ordinary(5), *ODD, *ordinary(3), *reversed(ODD)])


@pytest.mark.parametrize(
    'how', [pytest.param(how, marks=pytest.mark.slow) if n % 2 else how for n, how in enumerate(SEEN)]
)
def test_what_sees_the_number_is_right(sim: Any, how: str) -> None:
    alike(sim, seen(how), [*ordinary(5), *ODD])


@pytest.mark.slow
@pytest.mark.parametrize('how', SEEN)
def test_what_sees_it_there_is_right(sim: Any, how: str) -> None:
    alike(sim, written(how), [*ordinary(5), *ODD])


OPTIONS: list[dict[str, Any]] = [
    {'check': True}, {'checks': 'later'}, {'strict': True}, {'pure': True}, {'pieces': False}, {'fuse': True},
    {'lanes': 'auto'}, {'limit': 1},
]  # fmt: skip


@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_with_every_option_it_is_right(sim: Any, options: dict[str, Any]) -> None:
    def work(x: Any) -> Any:
        size = sim.linalg.norm(x).item()
        return x / size, size * 2

    fn = ck.graphed(work, **options)
    for number, total in enumerate([*ordinary(10), *ODD]):
        x = given(sim, number, total)
        found = fn(x)
        if fn.last is None or fn.last.holds():
            assert told(found) == told(work(x)), number


def test_on_other_streams_and_after_other_arguments(sim: Any) -> None:
    def work(x: Any) -> Any:
        size = sim.linalg.norm(x).item()
        return x / size, size * 2

    fn = ck.graphed(work)
    streams = [sim.cuda.Stream(non_blocking=True) for _ in range(2)]
    for number, total in enumerate(ordinary(16)):
        x = sim.arange(3.0 + number % 2) + total
        sim.cuda.runtime.deviceSynchronize()
        with streams[number % 3 % 2]:
            found = fn(x)
        sim.cuda.runtime.deviceSynchronize()
        assert told(found) == told(work(x)), number
    assert launches(fn) >= 8


def test_results_are_the_callers(sim: Any) -> None:
    """A number that was returned stays what it was, whatever later calls read."""
    fn = ck.graphed(lambda x: (x * x.max().item(), x.max().item()))
    found = [fn(sim.ones(3) * total) for total in range(1, 9)]
    assert [number for _, number in found] == [float(total) for total in range(1, 9)]
    assert [array.get().tolist() for array, _ in found] == [[float(total) ** 2] * 3 for total in range(1, 9)]


def test_an_error_comes_with_the_state_that_eager_calls_leave(sim: Any) -> None:
    total = sim.zeros(2)

    def work(x: Any) -> Any:
        nonlocal total
        total += x
        size = x.max().item()
        total *= 2
        return x * (1.0 / size)

    fn = ck.graphed(work)
    for number in range(1, 7):
        fn(sim.ones(2) * number)
    before = total.get()
    with pytest.raises(ZeroDivisionError):
        fn(sim.zeros(2))
    assert total.get().tolist() == (before * 2).tolist()
    assert fn(sim.ones(2) * 4).get().tolist() == [1.0] * 2
    assert total.get().tolist() == ((before * 2 + 4) * 2).tolist()
    assert launches(fn) >= 4


def test_explain_tells_of_the_read(sim: Any, capsys: Any) -> None:
    fn = ck.graphed(lambda x: x * x.max().item())
    for number in range(5):
        fn(sim.ones(3) * number)
    fn.explain()
    assert (
        'called by the host at each launch: a number that is read at test_reckoned_reads.py' in capsys.readouterr().out
    )


def test_a_profiler_that_is_on_is_left_alone(sim: Any) -> None:
    seen = []
    fn = ck.graphed(lambda x: x * x.max().item())
    sys.setprofile(lambda *event: seen.append(event[1]))
    try:
        for number in range(6):
            assert fn(sim.ones(2) * number).get().tolist() == [number**2] * 2
        assert seen and sys.getprofile() is not None
    finally:
        sys.setprofile(None)
