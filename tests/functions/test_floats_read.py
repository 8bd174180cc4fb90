"""Launches reckon anew with what ``float(a)`` and functions of ``math`` read of arrays, as plain runs do."""

from __future__ import annotations

import functools
import math
import sys
import threading
import types
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions import call_turns, recorded_number
from tests.functions.test_number_functions import TEXTS, written
from tests.functions.test_reckoned_reads import ODD, alike, launches, ordinary, told

#: How the functions read, and what they make of the number.
READS: dict[str, tuple[str, str]] = {
    'a product': ('float(x.sum())', 'x * v, v * 2, v'),
    'a norm': ('float(cp.linalg.norm(x))', 'x / v'),
    'read within': ('1.0', 'x * (float(x.sum()) / 2 + v)'),
    'a root of an array': ('math.sqrt(cp.abs(x.sum()))', 'x / (v + 1), math.sqrt(x.max() + 1e3) * v'),
    'by a name of its own': ('root(cp.abs(x.sum()))', 'x / (v + 1) + root(v)'),
    'of a number that is read': ('float(x.sum().item())', 'x * float(v) + float(v * 2)'),
    'of a whole number': ('math.floor(x.sum())', 'x * float(v) + float(v) // 2, float(v)'),
    'single precision': ("float(x.sum().astype('f4'))", 'x * v, v'),
    'constants beside it': ('float(x.sum())', "x * v + float('2.5') + float(3) + root(4) + float()"),
    'two reads': ('float(x.sum())', 'x * v - float(x.max()) * v'),
}
#: The same, where a launch would see more than arithmetic shows, or where the module does.
SEEN: dict[str, tuple[str, str, str]] = {
    'whole numbers': ("float(x.sum().astype('i8'))", 'x * v', ''),
    'a truth value': ('float((x > 3).any())', 'x * v', ''),
    'a complex number': ('float((x * 1j).sum())', 'x * v', ''),
    'one element with an axis': ('float(x[:1])', 'x * v', ''),
    'a text': ('float(str(x.sum().item()))', 'x * v', ''),
    'given as a list': ('float(*[x.sum()])', 'x * v', ''),
    'asked by isinstance': ('float(x.sum())', 'x * (3 if isinstance(v, float) else 2)', ''),
    'asked by its type': ('float(x.sum())', 'x * (3 if type(v) is float else 2)', ''),
    'handed on': ('float(x.sum())', 'x * sum(map(float, [v]))', ''),
    'by another name': ('number(x.sum())', 'x * v', 'number = float'),
    'in a comprehension': ('x.sum()', 'x * [float(v) * n for n in (2, 3)][1]', ''),
    'in a generator': ('x.sum()', 'x * next(float(v) * n for n in (2, 3))', ''),
    'in a lambda': ('x.sum()', 'x * (lambda: float(v) + 1)()', ''),
    'a float of the user': ('float(x.sum())', 'x * v', 'def float(a): return a.item() // 1'),
    'another use in the module': ('float(x.sum())', 'x * v', 'def other(y): return isinstance(y, float)'),
    'another use in a class': ('float(x.sum())', 'x * v', 'class Other:\n    def f(self): self.kind = float'),
    'stored in the module': (
        'float(x.sum())', 'x * v', 'def other():\n    global float\n    float = abs',
    ),
    'as a default': ('float(x.sum())', 'x * v', 'def other(kind=float): return kind'),
    'with keywords': ('float(x.sum())', 'x * v', 'def other(): return float(**{})'),
    'the module as a dictionary': ('float(x.sum())', "x * v * len([n for n in globals() if n == 'float'] + [1])", ''),
    'found in the module': ('float(x.sum())', "x * (v if 'float' not in globals() else 2)", ''),
    'in a text': ('float(x.sum())', "x * v * float('nan' if math.isnan(v) else '2')", ''),
    'the root is seen': ('root(cp.abs(x.sum()))', 'x * (2 if root is ROOT else 3) + v', 'ROOT = root'),
    'the root in another function': ('root(cp.abs(x.sum()))', 'x + v', 'def other(): return [root]'),
    'found by an annotation': (
        'float(x.sum())', "x * v * (2 if typing.get_type_hints(other)['y'] is KIND else 3)",
        "import typing\nKIND = float\ndef other(y: 'float'): pass",
    ),
    'an array of the host': ('float(x.sum().get())', 'x * v', ''),
    'of the user': ('float(MINE)', 'x * v', 'class Mine:\n    def __float__(self): return 2.0\nMINE = Mine()'),
}  # fmt: skip


@pytest.mark.parametrize('how', READS)
def test_each_launch_reads_anew(sim: Any, how: str) -> None:
    read, text = READS[how]
    assert launches(alike(sim, written(text, read), ordinary(12))) >= 8


@pytest.mark.parametrize('how', TEXTS)
def test_functions_of_math_take_what_is_read(sim: Any, how: str) -> None:
    assert launches(alike(sim, written(TEXTS[how], 'float(x.sum())'), ordinary(12))) >= 8


@pytest.mark.parametrize('how', [*READS, *TEXTS])
def test_odd_numbers_come_out_alike(sim: Any, how: str) -> None:
    read, text = READS.get(how) or ('float(x.sum())', TEXTS[how])
    alike(sim, written(text, read), [*ordinary(5), *ODD, *ordinary(3), *reversed(ODD)])


@pytest.mark.parametrize('how', SEEN)
def test_what_sees_more_is_right(sim: Any, how: str) -> None:
    read, text, more = SEEN[how]
    fn = alike(sim, written(text, read, more), [*ordinary(6), *ODD])
    assert not any('eager run' in variant.reason for variant in fn.variants), 'it was launched, and was wrong'


MEANWHILE = """
def kinds(y):
    return isinstance(y, float), type(y) is float, float('2.5'), float(y)
"""


def test_other_threads_find_what_they_know(sim: Any) -> None:
    """Another thread asks for the type meanwhile: then nothing may stand in its place."""
    space: dict[str, Any] = {'math': math}
    exec(f'{MEANWHILE}\ndef work(x):\n    return x * float(x.sum())\n', space)
    wrong = found_meanwhile(sim, space, lambda: space['kinds'](1.5), (True, True, 2.5, 1.5))
    assert wrong == []


def test_other_threads_may_call_it_meanwhile(sim: Any) -> None:
    space: dict[str, Any] = {'math': math}
    exec('def others(y): return float(y), float("1e3")\n\ndef work(x):\n    return x * float(x.sum())\n', space)
    wrong = found_meanwhile(sim, space, lambda: space['others'](1.5), (1.5, 1e3))
    assert wrong == []


def found_meanwhile(sim: Any, space: dict[str, Any], ask: Any, wanted: Any) -> list[Any]:
    """What a thread finds in a module while functions of it are recorded, if that is not what is wanted."""
    wrong: list[Any] = []
    ends = threading.Event()

    def look() -> None:
        while not ends.is_set() and not wrong:
            try:
                found = ask()
            except Exception as error:
                found = repr(error)
            if found != wanted:
                wrong.append(found)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(6):
            fn = ck.graphed(types.FunctionType(space['work'].__code__, space))
            for number in range(6):
                x = sim.arange(3.0) + number
                assert fn(x).tolist() == (x * x.sum()).tolist()
    finally:
        ends.set()
        thread.join()
    assert 'float' not in space
    return wrong


def test_nothing_is_left_in_the_module(sim: Any) -> None:
    space: dict[str, Any] = {'math': math, 'root': math.sqrt}
    exec('def work(x):\n    return x * float(x.sum()) + root(x.max()) + (1 if space_has() else 2) * 0\n', space)
    held: list[bool] = []
    space['space_has'] = functools.partial(lambda: held.append('float' in space))
    before = dict(space)
    fn: Any = ck.graphed(space['work'])
    for number in range(10):
        x = sim.arange(3.0) + number
        assert told(fn(x)) == told(space['work'](x))
    assert {**space} == before


def test_a_frozen_module_may_have_functions_that_are_not_found(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, Any] = {}
    exec('def one(y): return float(y)\n\nclass Two:\n    def two(self, y): return float(y)\n', space)
    assert recorded_number.is_only_called(space, 'float')
    found = recorded_number.functions_of(space)
    for function in (space['one'], space['Two'].two):
        fewer = {key: [one for one in some if one is not function] for key, some in found.items()}
        monkeypatch.setattr(recorded_number, 'functions_of', lambda _module, fewer=fewer: fewer)
        assert not recorded_number.is_only_called(space, 'float')


def test_another_function_that_runs_may_not_see_it(sim: Any) -> None:
    space: dict[str, Any] = {}
    exec(BESIDE, space)
    fn: Any = ck.graphed(space['work'])
    for number in range(10):
        x = sim.arange(3.0) + number
        assert fn(x).tolist() == (x * x.sum() * 2).tolist()
    assert launches(fn) == 0
    assert not any('eager run' in variant.reason for variant in fn.variants), 'it was launched, and was wrong'


BESIDE = """
def is_number(y):
    try:
        return isinstance(y, float)
    except TypeError:
        return False

def work(x):
    v = float(x.sum())
    return x * v * (2 if is_number(1.5) else 3)
"""


def test_another_use_that_does_not_run_is_no_reason_alone(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no other thread runs, nobody can see what stands in the place of ``float`` meanwhile."""
    monkeypatch.setattr(sys, '_current_frames', lambda: {1: None})  # some runners of tests have a thread of their own
    found = alike(sim, written('x * v', 'float(x.sum())', 'def other(y): return isinstance(y, float)'), ordinary(12))
    assert call_turns.is_alone()
    assert launches(found) >= 8


def test_a_thread_that_comes_before_the_recording(sim: Any) -> None:
    space: dict[str, Any] = {'math': math}
    exec(f'{MEANWHILE}\ndef work(x):\n    return x * float(x.sum())\n', space)
    ends, fn = threading.Event(), ck.graphed(space['work'])
    threads: list[threading.Thread] = []
    for number in range(12):
        if number == 1:  # the first run was watched without it
            threads.append(threading.Thread(target=ends.wait))
            threads[0].start()
            assert not call_turns.is_alone()
        x = sim.arange(3.0) + number
        assert fn(x).tolist() == (x * x.sum()).tolist()
        assert space['kinds'](1.5) == (True, True, 2.5, 1.5)
    ends.set()
    threads[0].join()
    assert launches(fn) == 0


class Model:
    def __init__(self) -> None:
        self.costs: list[Any] = []
        self.rate = 1.0


def test_numbers_in_lists_and_attributes_are_read_anew(sim: Any) -> None:
    """A solver of pylops keeps its costs so, and goes on with the last one."""

    def solve(x: Any, one: Model) -> Any:
        one.costs = [float(sim.linalg.norm(x))]
        for number in range(2):
            x = x / (1 + one.costs[number] ** 2.0)
            one.costs.append(float(sim.linalg.norm(x)))
        one.rate = math.sqrt(one.costs[-1] ** 2 + one.rate)
        return x * one.rate, one.costs[0]

    mine, plain = Model(), Model()
    fn = ck.graphed(lambda x: solve(x, mine))
    for number in range(12):
        x = sim.arange(3.0) + number
        assert told(fn(x)) == told(solve(x, plain)), number
        assert told([mine.costs, mine.rate]) == told([plain.costs, plain.rate]), number
