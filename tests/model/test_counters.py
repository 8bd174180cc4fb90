"""``ck.statistics()`` counts what was done, and the logger ``capturekit`` tells it; launches cost nothing for it."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import capturekit as ck
from capturekit.model import counters


@pytest.fixture(autouse=True)
def from_nothing() -> Iterator[None]:
    """Each test counts from 0; what other tests left to the garbage is told before."""
    gc.collect()
    ck.statistics(reset=True)
    yield


def told(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [message for message in caplog.messages if message.startswith(start)]


def test_captures_nodes_launches_and_memory(sim: Any) -> None:
    x = sim.arange(64.0)
    before = ck.statistics()
    with ck.capture() as cap:
        y = x * 2
        z = y + 1
    with ThreadPoolExecutor(3) as pool:
        for launch in [pool.submit(cap.graph.launch) for _ in range(3)]:
            launch.result()
    cap.graph.launch(sim.cuda.Stream(non_blocking=True))
    found = ck.statistics()
    assert (found.captures, found.failed, found.nodes, found.launches) == (1, 0, 2, 4)
    assert cap.graph.launches == 4
    assert found.graphs == before.graphs + 1
    assert found.memory_bytes - before.memory_bytes == cap.graph.memory_bytes > 0
    assert 0 < found.seconds['captures'] < 60
    cap.graph.close()
    closed = ck.statistics()
    assert (closed.graphs, closed.memory_bytes) == (before.graphs, before.memory_bytes)
    assert closed.launches == 4 and z.shape == (64,)


def test_reset_begins_anew_and_keeps_what_is_open(sim: Any) -> None:
    x = sim.arange(4.0)
    with ck.capture() as cap:
        x + 1
    cap.graph.launch()
    with pytest.raises(TypeError, match='reset must be True or False, got 1'):
        ck.statistics(reset=1)  # type: ignore[arg-type]
    first = ck.statistics(reset=True)
    again = ck.statistics()
    assert (first.captures, first.nodes, first.launches) == (1, 1, 1)
    assert (again.captures, again.nodes, again.launches, again.seconds) == (0, 0, 0, {})
    assert (again.graphs, again.memory_bytes) == (first.graphs, first.memory_bytes)
    cap.graph.launch()
    assert (ck.statistics().launches, cap.graph.launches) == (1, 2)
    del cap
    gc.collect()
    assert ck.statistics().launches == 1


def test_refusals_are_counted_once_each(sim: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, 'capturekit')
    x = sim.arange(4.0)
    with ck.capture() as cap:
        with pytest.raises(ck.HostReadError):  # caught in the block
            float(x.sum())
        x + 1
    assert (ck.statistics().refusals, ck.statistics().failed) == (1, 0)
    with pytest.raises(ck.SynchronizationError) as info, ck.capture() as cap:
        cap.stream.synchronize()
    side = sim.cuda.Stream(non_blocking=True)
    with pytest.raises(ck.UnjoinedError), ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            x + 1
    found = ck.statistics()
    assert (found.captures, found.failed, found.refusals) == (1, 2, 3)
    lines = told(caplog, 'refused: ')
    assert [line.split()[1] for line in lines] == ['HostReadError:', 'SynchronizationError:', 'UnjoinedError:']
    assert all('test_counters.py:' in line and '\n' not in line for line in lines)
    assert len(told(caplog, 'capture failed at test_counters.py:')) == 2
    assert isinstance(pickle.loads(pickle.dumps(info.value)), ck.SynchronizationError)


def test_captures_and_adaptations_are_told(sim: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, 'capturekit')
    x = sim.arange(4.0)
    side = sim.cuda.Stream(non_blocking=True)
    with ck.capture(strict=False) as cap:
        with side:
            y = x + 1
        side.synchronize()
        y * 2
    assert ck.statistics().adaptations == len(cap.recording.adaptations) == 2
    (line,) = told(caplog, 'captured at test_counters.py:')
    assert ' ms: 2 nodes, 2 lanes, ' in line
    assert len(told(caplog, 'adapted: ')) == 2
    assert 'became a join, at test_counters.py:' in told(caplog, 'adapted: ')[1]


def test_nobody_who_listens_holds_the_guard_up(sim: Any) -> None:
    """A handler that waits for a thread which waits for the guard: an array is printed under a handler's lock, say."""
    from capturekit.guard import GUARD, watch

    free: list[bool] = []

    class Waiting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with ThreadPoolExecutor(1) as pool:
                free.append(pool.submit(lambda: GUARD.lock.acquire(timeout=10) and not GUARD.lock.release()).result())

    handler = Waiting()
    counters.LOG.addHandler(handler)
    before = counters.LOG.level
    counters.LOG.setLevel(logging.INFO)
    try:
        stream = sim.cuda.Stream(non_blocking=True)
        with watch():
            stream.begin_capture()
            stream.end_capture()
        with ck.capture():
            sim.arange(4.0)
        with pytest.raises(ck.SynchronizationError), ck.capture() as cap:
            cap.stream.synchronize()
    finally:
        counters.LOG.setLevel(before)
        counters.LOG.removeHandler(handler)
    assert free == [True] * 4


def test_fallbacks_and_rerecordings(sim: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, 'capturekit')

    @ck.graphed
    def halved(x: Any) -> Any:
        return x / 2 if bool(x.max() > 1) else x - 1

    for n in (4, 4, 4, 4, 8, 8, 8):  # one more of each: an address may have been another object's, and is asked again
        halved(sim.arange(float(n)))
    found = ck.statistics()
    assert (found.rerecordings, found.fallbacks, found.captures) == (1, 0, 2)
    assert found.launches == halved.variants[0].launches + halved.variants[1].launches in (3, 4, 5)
    (line,) = [message for message in caplog.messages if 'recorded anew (recording 2)' in message]
    assert 'halved' in line and found.seconds['rerecordings'] > 0
    halved(sim.arange(8.0) * 0.1)
    assert ck.statistics().fallbacks == 1
    assert any('this call runs eagerly' in message for message in caplog.messages)
    halved.clear()


def test_a_table_and_json() -> None:
    counters.count('updates', 0.25)
    counters.count('updates', 0.5)
    found = ck.statistics()
    lines = str(found).splitlines()
    (line,) = [line for line in lines if line.startswith('updates')]
    assert line.split() == ['updates', '2', '750.00', 'ms', '375.000', 'each']
    assert max(map(len, lines)) < 80 and len(lines) == len(counters.COUNTED) + 3
    assert lines == [line.rstrip() for line in lines]
    data = json.loads(json.dumps(found.to_json()))
    assert ck.Statistics(**data) == found
    assert set(counters.COUNTED) < set(data)


def test_quiet_until_somebody_asks() -> None:
    """Not a word on standard error, neither of a warning, in a program that has not set up logging."""
    program = """
import sys
import capturekit as ck
from capturekit.simulated import SimulatedDevice, install
install(SimulatedDevice(0))
import cupy as cp
box = []
@ck.graphed
def fn(x):
    box.insert(0, x)
    return x + 1
for _ in range(4):
    fn(cp.arange(4.0))
print([v.state for v in fn.variants])
"""
    ran = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, '')
    assert 'eager' in ran.stdout
