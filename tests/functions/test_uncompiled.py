"""Functions that Numba compiles when they are called: those that nobody has called yet keep no call eager."""

from __future__ import annotations

import ctypes
import os
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck

LIBRARY = ctypes.CDLL(None)


class CPUDispatcher(ctypes._CFuncPtr):  # type: ignore[misc]
    """Stands for Numba's class: it is called in C, which tells nobody of the call."""

    _flags_, _restype_ = 1, ctypes.c_int


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Makes a function that has no compiled version: one of C's library of this name."""
    names = ('numba', 'numba.core', 'numba.core.registry')
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[names[-1]].CPUDispatcher = CPUDispatcher  # type: ignore[attr-defined]
    monkeypatch.setattr(CPUDispatcher, '__module__', names[-1])

    def make(name: str) -> Any:
        made = CPUDispatcher((name, LIBRARY))
        made.overloads = OrderedDict()
        return made

    yield make


def numbers() -> list[float]:
    """The numbers that C's library draws first."""
    library = ctypes.CDLL(None)
    library.srand(5)
    found = [float(library.rand() % 1000) for _ in range(8)]
    library.srand(5)
    return found


def results(cp: Any, fn: Any, change: Callable[[], Any]) -> list[float]:
    found = []
    for number in range(8):
        if number == 4:
            change()
        found.append(float(fn(cp.ones(2))[0]))
    return found


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


def test_one_that_nobody_calls_is_only_held(sim: Any, compiled: Callable[[str], Any]) -> None:
    table = {'half': compiled('abs'), 'twice': lambda x: x * 2}
    graphed = ck.graphed(lambda x: table['twice'](x))
    assert results(sim, graphed, lambda: None) == [2.0] * 8
    assert launches(graphed) == 7


def test_one_that_is_called_from_then_on(sim: Any, compiled: Callable[[str], Any]) -> None:
    table = {'draw': compiled('rand'), 'used': False}

    def step(x: Any) -> Any:
        return x * (table['draw']() % 1000) if table['used'] else x

    def change() -> None:
        table['draw'].overloads['int64()'] = object()
        table['used'] = True

    drawn = numbers()
    graphed = ck.graphed(step)
    assert results(sim, graphed, change) == [1.0] * 4 + drawn[:4]
    assert launches(graphed) == 3


def test_one_that_is_compiled_is_not_understood(sim: Any, compiled: Callable[[str], Any]) -> None:
    table = {'draw': compiled('rand'), 'twice': lambda x: x * 2}
    table['draw'].overloads['int64()'] = object()
    graphed = ck.graphed(lambda x: table['twice'](x))
    assert results(sim, graphed, lambda: None) == [2.0] * 8
    assert launches(graphed) == 0


def test_one_that_the_run_compiles(sim: Any, compiled: Callable[[str], Any]) -> None:
    """Here, code that is not followed compiles it, and makes it forget that after the call."""
    draw = compiled('rand')
    source = 'def compiles(function):\n    versions["int64()"] = 1\n    return function()\n'
    values: dict[str, Any] = {'__name__': 'numpy.made', 'versions': draw.overloads}
    exec(compile(source, os.path.join(os.path.dirname(np.__file__), 'made.py'), 'exec'), values)
    compiles = values['compiles']
    drawn = numbers()
    graphed = ck.graphed(lambda x: x * (compiles(draw) % 1000))
    found = []
    for _ in range(8):
        draw.overloads.clear()
        found.append(float(graphed(sim.ones(2))[0]))
    assert found == drawn
    assert launches(graphed) == 0


def test_a_class_of_that_name_is_not_trusted(sim: Any, compiled: Callable[[str], Any]) -> None:
    class Dispatcher(CPUDispatcher):
        """It says that it is Numba's."""

        _flags_ = 1

    Dispatcher.__module__, Dispatcher.__name__ = 'numba.core.registry', 'CPUDispatcher'
    Dispatcher.__qualname__ = 'CPUDispatcher'
    draw = Dispatcher(('rand', LIBRARY))
    draw.overloads = OrderedDict()
    drawn = numbers()
    graphed = ck.graphed(lambda x: x * (draw() % 1000))
    assert results(sim, graphed, lambda: None) == drawn
    assert launches(graphed) == 0
