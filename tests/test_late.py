"""The mode of the tests in which everybody is late, tried on the simulated device: where spins are put, and undone."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck
from capturekit.guard.stream_calls import StreamWork
from capturekit.launch.plan import Plan
from tests.late import Late


@pytest.fixture
def spun(sim: Any) -> Any:
    """The streams that spun."""
    streams: list[int] = []
    mode = Late(streams.append)
    mode.install(sim)
    yield streams
    mode.uninstall()


def test_streams_that_are_entered_spin(sim: Any, spun: list[int]) -> None:
    stream = sim.cuda.Stream(non_blocking=True)
    with stream:
        stream.record()
    assert spun == [stream.ptr] * 2


def test_launches_of_graphed_functions_spin_before_and_behind(sim: Any, spun: list[int]) -> None:
    fn, x = ck.graphed(lambda x: x * 2 + 1), sim.ones(2)
    fn(x), fn(x)
    del spun[:]
    for _ in range(3):
        assert fn(x).get().tolist() == [3.0, 3.0]
    assert fn.variants[0].state == 'recorded'
    assert set(spun) == {0} and len(spun) >= 6


def test_every_place_is_taken_back(sim: Any) -> None:
    places = [(sim.cuda.stream._BaseStream, 'record'), (sim._core, 'array'), (sim.cuda.runtime, 'graphLaunch')]
    places += [(Plan, 'go'), (StreamWork, 'plain_launch')]
    before = [vars(owner)[name] for owner, name in places]
    mode = Late(lambda stream: None)
    mode.install(sim)
    assert all(vars(owner)[name] is not one for (owner, name), one in zip(places, before))
    mode.uninstall()
    assert [vars(owner)[name] for owner, name in places] == before
