"""Following a run line by line: what a line reads that runs only later is seen, whatever statement leads to it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions.lines_run import LinesRun

told = pytest.mark.skipif(sys.version_info < (3, 12), reason='lines are told of from Python 3.12 on')

#: Statements of a function of ``x``, in which ``rate`` and ``box.rate`` are read behind something else.
BODIES = {
    'a branch': """
if switch:
    return x * rate
return x * box.rate
""",
    'one line': 'return x * (rate if switch else box.rate)\n',
    'several lines of one expression': """
return x * (rate
            if switch
            else box.rate)
""",
    'and, or': """
return x * ((switch and
             rate) or
            box.rate)
""",
    'an exception': """
try:
    1 / (not switch)
except ZeroDivisionError:
    return x * rate
return x * box.rate
""",
    'a final block': """
try:
    y = x * box.rate
    if switch:
        raise KeyError
except KeyError:
    pass
else:
    return y
finally:
    y = y * rate
return y * 2
""",
    'a loop whose last round differs': """
for number in range(3):
    if number < 2:
        continue
    elif switch:
        x = x * rate
    else:
        x = x * box.rate
return x
""",
    'a loop that is left': """
while True:
    x = x * box.rate
    if switch:
        break
    return x
else:
    x = x * 100
return x * rate
""",
    'a list': 'return x * sum([rate\n    if switch else\n    box.rate\n    for _ in range(2)])\n',
    'a generator': 'return x * sum(rate\n    if switch else\n    box.rate\n    for _ in range(2))\n',
    'a function inside': """
def inner():
    if switch:
        return rate
    return box.rate
return x * inner()
""",
    'a lambda': 'inner = lambda: (rate\n    if switch else\n    box.rate)\nreturn x * inner()\n',
    'a class inside': """
class Inner:
    if switch:
        value = rate
    else:
        value = box.rate
return x * Inner.value
""",
    'a match': """
match [switch]:
    case [True]:
        return x * rate
    case _:
        return x * box.rate
""",
    'a walrus': 'if (found := rate if switch else\n        box.rate) > 1:\n    return x * found\nreturn x + found\n',
    'a with': """
with guard(switch):
    return x * box.rate
return x * rate
""",
    'a default of a function inside': """
def inner(value=rate if switch else
          box.rate):
    return value
return x * inner()
""",
    'a comparison in a chain': """
if (0 < box.rate
        < rate):
    return x * 3
return x * 4 if switch else x
""",
    'an assertion': """
try:
    assert not switch, (
        rate)
except AssertionError as error:
    return x * error.args[0]
return x * box.rate
""",
    'an unpacked argument': 'return x * sum([*[\n    rate if switch else 1.0],\n    box.rate])\n',
}


class Guard:
    """A context that swallows the exception which it makes if it is on."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __enter__(self) -> None:
        if self.on:
            self.raised = True

    def __exit__(self, *_: object) -> bool:
        return self.on


class Box:
    rate = 3.0


def made(body: str) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """A function with this body, and the globals that it reads."""
    values: dict[str, Any] = {'rate': 2.0, 'box': Box(), 'switch': False, 'guard': Guard}
    lines = ''.join(f'    {line}\n' for line in body.strip('\n').split('\n'))
    exec(compile(f'def step(x):\n{lines}', f'<{len(body)}>', 'exec'), values)
    return values['step'], values


@pytest.mark.parametrize('name', BODIES)
def test_what_a_later_line_reads_is_compared(cp: Any, name: str) -> None:
    fn, values = made(BODIES[name])
    graphed = ck.graphed(fn)
    changes: list[tuple[str, Any]] = [
        ('switch', False), ('switch', False), ('rate', 5.0), ('box.rate', 7.0), ('switch', True), ('switch', True),
        ('rate', 11.0), ('box.rate', 13.0), ('switch', False), ('rate', 17.0), ('box.rate', 19.0), ('switch', True),
    ]  # fmt: skip
    for place, value in changes:
        if place == 'box.rate':
            values['box'].rate = value
        else:
            values[place] = value
        for _ in range(3):
            assert graphed(cp.arange(3.0)).get().tolist() == fn(cp.arange(3.0)).get().tolist()
    assert sum(variant.launches for variant in graphed.variants) > 4


@told
def test_what_no_line_came_to_is_not_compared(cp: Any) -> None:
    fn, values = made(BODIES['a branch'])
    graphed = ck.graphed(fn)
    for number in range(6):
        values['rate'] = float(number)
        assert graphed(cp.ones(2)).get().tolist() == [3.0] * 2
    assert [variant.launches for variant in graphed.variants] == [5]


def other(x: int) -> int:
    if x:
        return x
    return -x


def followed(lines: LinesRun, came_to: list[int]) -> list[int]:
    """The lines of ``other(1)`` that were told, counted from its first."""
    lines.follow(other.__code__, False, False)
    other(1)
    other(1)
    first = other.__code__.co_firstlineno
    return [line - first for line in came_to]


def not_called(*_given: Any) -> None:
    raise AssertionError('calls are not told of')


@told
def test_each_line_is_told_once_and_nothing_is_left() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    for _ in range(2):  # a second run is told of the same lines again
        seen: list[int] = []
        lines = LinesRun(lambda frame, _first, seen=seen: seen.append(frame.f_lineno), not_called)  # type: ignore[misc]
        lines.begin()
        try:
            assert followed(lines, seen) == [1, 2]
        finally:
            lines.end()
        other(0)
        assert lines.of(other.__code__) == {0, *seen} and len(seen) == 2
        assert [monitoring.get_tool(number) for number in (5, 4, 3)] == [None] * 3


@told
def test_one_run_at_a_time_is_told() -> None:
    def nothing(_frame: FrameType, _first: bool) -> None:
        raise AssertionError('another thread ran it')

    first, second = LinesRun(nothing, not_called), LinesRun(nothing, not_called)
    first.begin()
    second.begin()
    try:
        assert (first.told, second.told) == (True, False)
        first.follow(other.__code__, False, True)
        thread = threading.Thread(target=other, args=(1,))
        thread.start()
        thread.join()
        assert first.of(other.__code__) == {0}  # the lines of another thread are still to be told
        assert second.of(other.__code__) is None
    finally:
        second.end()
        first.end()
    third = LinesRun(nothing, not_called)
    third.begin()
    assert third.told
    third.end()


@told
def test_lines_calls_and_values_are_told_each_time() -> None:
    seen: list[int] = []
    calls: list[Any] = []
    values: list[Any] = []

    def squares(count: int) -> set[int]:
        found = set()
        for number in range(count):
            found |= frozenset(one * one for one in (number,))
        return found

    def called(_code: Any, _offset: int, function: Any, argument: Any) -> None:
        calls.append(function)
        if function is frozenset:
            lines.tell_values(argument.gi_code, lambda _code, value: values.append(value))

    lines = LinesRun(lambda frame, first: seen.append(frame.f_lineno), called)
    lines.begin()
    try:
        lines.follow(squares.__code__, True, True)
        assert squares(3) == {0, 1, 4}
    finally:
        lines.end()
    assert squares(2) == {0, 1}
    assert len(seen) > 6
    assert [one for one in calls if type(one) is type] == [set, range, frozenset, frozenset, frozenset]
    assert values == [0, 1, 4]
