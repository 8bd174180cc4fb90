"""Following a run line by line: what a line reads that runs only later is seen, whatever statement leads to it."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from capturekit.functions.code_watch import LinesRun

told = pytest.mark.skipif(sys.version_info < (3, 12), reason='lines are told of from Python 3.12 on')


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
