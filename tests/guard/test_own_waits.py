"""capturekit's own waits for the device go through one door, by which they cost other threads' captures nothing."""

from __future__ import annotations

import ast
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from tests.guard.test_threads import in_thread
from tests.guard.test_turns import Recorder, hasty, until

__all__ = ['hasty']

PACKAGE = Path(ck.__file__).parent
#: What waits for a device, and begins a capture: in CuPy, in cuda-bindings, and in both devices of capturekit.
WAITS = frozenset({'deviceSynchronize', 'device_synchronize', 'cudaDeviceSynchronize', 'cuCtxSynchronize'})
BEGINS = frozenset({'begin_capture', 'begin_capture_to'})
#: Who may name them: the doors, both devices, and tables of names.
DOOR, TABLES = 'guard/host_waits.py', ('guard/entry_points.py', 'simulated/', 'driver/cuda.py', 'model/')
BEGINNERS = ('recorder/setup.py', 'guard/parts.py', 'guard/outside_streams.py', *TABLES)


def named(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What code names: attributes, names, and the device that is waited for by ``Device(...).synchronize()``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            made = node.value.func if isinstance(node.value, ast.Call) else node.value
            of_device = str(getattr(made, 'attr', getattr(made, 'id', ''))).lower() == 'device'
            yield 'device_synchronize' if node.attr == 'synchronize' and of_device else node.attr, node.lineno
        elif isinstance(node, ast.Name):
            yield node.id, node.lineno


def users(names: frozenset[str], text: str) -> list[int]:
    return [line for name, line in named(ast.parse(text)) if name in names]


def passers(names: frozenset[str], doors: tuple[str, ...]) -> list[str]:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob('*.py'))}
    others = {name: path for name, path in files.items() if not name.startswith(doors)}
    return [f'{name}:{line}' for name, path in others.items() for line in users(names, path.read_text('utf-8'))]


def test_nobody_waits_for_a_device_but_by_the_door() -> None:
    assert passers(WAITS, (DOOR, *TABLES)) == []
    assert passers(BEGINS, BEGINNERS) == []


@pytest.mark.parametrize('text', [
    'platform.device.device_synchronize()', 'cupy.cuda.runtime.deviceSynchronize()', 'wait = runtime.deviceSynchronize',
    'cupy.cuda.Device(0).synchronize()', 'device.synchronize()', 'with a: b(device.synchronize)',
])  # fmt: skip
def test_who_passes_the_door_is_found(text: str) -> None:
    assert users(WAITS, text) == [1]
    assert users(WAITS, 'stream.synchronize()') == []


@pytest.mark.parametrize('inside', [False, True])
def test_such_a_wait_comes_after_the_captures_of_others(sim: Any, inside: bool) -> None:
    x, platform = sim.arange(8.0), current()
    recorder = Recorder(sim, x, 2)

    def wait() -> bool:
        with GUARD.inside if inside else contextlib.nullcontext():
            GUARD.waits.for_devices(platform, [0])
        return recorder.may_end.is_set()

    recorder.begin()
    waiting, waited = in_thread(wait)
    until(lambda: GUARD.state.waiting == 1)
    assert not waited
    recorder.end()
    waiting.join(20)
    assert waited == [True]
    cap, z = recorder.found[0]
    cap.graph.launch()
    assert np.array_equal(z.get(), np.arange(8) * 2 + 1)


def test_where_nobody_may_be_waited_for_nothing_is_done(sim: Any) -> None:
    device = current().device
    assert GUARD.waits.unless_captured(device)
    with ck.capture() as cap:
        y = sim.ones(2) * 3
        assert not GUARD.waits.unless_captured(device)
    cap.graph.launch()
    assert y.tolist() == [3.0, 3.0]
    assert (GUARD.state.waiting, GUARD.state.under_way) == (0, [])


def reads(sim: Any, x: Any) -> Any:
    return x * float(x.sum())


def calls_between(sim: Any, x: Any) -> Any:
    return sim.linalg.svd(sim.outer(x, x) + 1)[1] + x


def reckons(sim: Any, x: Any) -> Any:
    return x * (float(x[0]) * 2 + 1)


def decides(sim: Any, x: Any) -> Any:
    with ck.capture() as cap:
        y = x * 1
        with cap.while_(y.sum() < 100, limit=20):
            y *= 2
    cap.graph.launch()
    return y


def makes_a_plan(sim: Any, x: Any) -> Any:
    with ck.capture() as cap:
        y = sim.fft.fft(sim.ones(131) * x[0])
    cap.graph.launch()
    return y.real


@pytest.mark.parametrize('fn', [reads, calls_between, reckons, decides, makes_a_plan])
def test_no_part_begins_beside_a_wait(sim: Any, monkeypatch: pytest.MonkeyPatch, fn: Any) -> None:
    """The driver's capture begins, and goes on in each further part, while nobody can begin to wait."""
    device, begun = current().device, []

    def held(begin: Any) -> Any:
        def begins(*args: Any, **kwargs: Any) -> Any:
            begun.append(GUARD.lock._is_owned())  # type: ignore[attr-defined]
            return begin(*args, **kwargs)

        return begins

    for name in BEGINS:
        monkeypatch.setattr(device, name, held(getattr(device, name)))
    step = fn if fn in (decides, makes_a_plan) else ck.graphed(fn)
    for number in range(1, 6):
        x = sim.arange(3.0) + number % 3
        step(sim, x)
    assert len(begun) > 1
    assert all(begun)


@pytest.mark.parametrize('check', [True, False])
def test_functions_that_are_compared_lose_no_recording_of_others(sim: Any, hasty: None, check: bool) -> None:
    scaled = ck.graphed(check=check)(lambda x, k: x * k + k)
    tripled = ck.graphed(lambda x: x * 3)
    ready = threading.Barrier(3)

    def compare(j: int) -> bool:
        ready.wait(20)
        return all(float(scaled(sim.ones(2 + j), float(i))[0]) == 2.0 * i for i in range(12))

    def record() -> bool:
        ready.wait(20)
        return all(float(tripled(sim.ones(2 + i % 14))[0]) == 3.0 for i in range(42))

    running = [in_thread(lambda: compare(0)), in_thread(lambda: compare(1)), in_thread(record)]
    for thread, _found in running:
        thread.join(100)
    assert [found for _thread, found in running] == [[True]] * 3
    assert [one.reason for one in tripled.variants if one.reason] == []
