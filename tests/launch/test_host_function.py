"""A host function that calls CuPy is told so: by name, with its line, the rule and what to write instead."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import watch
from capturekit.model.causes import PROGRAM


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """What is raised where nobody can catch it."""
    PROGRAM.clear()
    found: list[BaseException] = []
    monkeypatch.setattr(sys, 'unraisablehook', lambda told: found.append(told.exc_value))
    yield found
    found.clear()
    PROGRAM.clear()
    gc.collect()


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    'read': lambda cp, y: float(y[0]),
    'work': lambda cp, y: y + 1,
    'get': lambda cp, y: y.get(),
    'synchronize': lambda cp, y: cp.cuda.Device().synchronize(),
    'event': lambda cp, y: cp.cuda.Stream.null.record(),
}


@pytest.mark.parametrize('call', CALLS)
def test_a_host_function_that_calls_cupy_is_told_so(cp: Any, unraisable: list[BaseException], call: str) -> None:
    called = CALLS[call]

    def report(y: Any) -> None:
        called(cp, y)

    x = cp.arange(4.0)
    with ck.capture() as cap:
        y = x * 2
        cap.stream.launch_host_func(report, y)
        z = y + 1
    cap.graph.launch()
    assert np.array_equal(z.get(), np.arange(4.0) * 2 + 1)
    (told,) = unraisable
    assert isinstance(told, ck.UnsupportedCallError)
    assert told.operation.startswith('A call of CuPy in the host function report() (recorded at test_host_function.py')
    assert told.location is not None and told.location.line in (_line(called), _line(report) + 1)
    assert 'Call CuPy after `cap.graph.launch()`' in told.remedy
    assert [cause.name for cause in PROGRAM.found] == ['UnsupportedCallError']


def _line(fn: Any) -> int:
    line: int = fn.__code__.co_firstlineno
    return line


def test_by_hand_the_remedy_is_the_scripts(cp: Any, unraisable: list[BaseException], no_garbage: None) -> None:
    x, stream = cp.arange(4.0), cp.cuda.Stream(non_blocking=True)
    with watch(), stream:
        stream.begin_capture()
        y = x * 2
        stream.launch_host_func(lambda y: y.sum(), y)
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    (told,) = unraisable
    assert isinstance(told, ck.UnsupportedCallError)
    assert '`graph.launch()`' in told.remedy and 'cap.' not in str(told)


def test_other_exceptions_of_a_host_function_are_its_own(cp: Any, unraisable: list[BaseException]) -> None:
    def divide(zero: int) -> None:
        1 / zero

    seen: list[int] = []
    with ck.capture() as cap:
        cap.stream.launch_host_func(divide, 0)
        cap.stream.launch_host_func(seen.append, 1)
    cap.graph.launch()
    cp.cuda.get_current_stream().synchronize()
    assert [type(error) for error in unraisable] == [ZeroDivisionError]
    assert seen == [1]
