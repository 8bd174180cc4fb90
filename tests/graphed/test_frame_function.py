"""The function whose call a frame is: the very one, where Python tells; and no other one where it does not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any

from capturekit.graphed.return_paths import function_of
from tests.frozen import frozen


def frame() -> FrameType:
    return sys._getframe(1)


def found_by(seen: list[Any]) -> None:
    seen.append(function_of(sys._getframe(1)))


def closures() -> list[Callable[[list[Any]], Any]]:
    def made(number: int) -> Callable[[list[Any]], Any]:
        return lambda seen: (number, found_by(seen))

    return [made(number) for number in range(3)]


def generator(seen: list[Any]) -> Iterator[int]:
    found_by(seen)
    yield 1
    found_by(seen)


def plain(seen: list[Any], also: Any = None, *more: Any, **named: Any) -> None:
    found_by(seen)


class Methods:
    def method(self, seen: list[Any]) -> None:
        found_by(seen)

    @property
    def value(self) -> Any:
        return function_of(sys._getframe())


def test_it_is_the_very_function() -> None:
    seen: list[Any] = []
    made = closures()
    for function in made:
        function(seen)
    plain(seen)
    again = FunctionType(plain.__code__, globals(), 'again', (5,))
    again(seen)
    Methods().method(seen)
    expected = [*made, plain, again, Methods.method]
    assert [one is other for one, other in zip(seen, expected)] == [True] * len(expected)
    assert Methods().value is vars(Methods)['value'].fget


def test_it_is_that_of_a_generator_at_each_step() -> None:
    seen: list[Any] = []
    assert [*generator(seen)] == [1]
    assert seen[0] is seen[1] is generator


def test_it_is_found_by_the_profiler_and_after_a_freeze() -> None:
    seen: list[Any] = []

    def profile(where: FrameType, event: str, _argument: Any) -> None:
        if event == 'call' and where.f_code is plain.__code__:
            seen.append(function_of(where))

    with frozen():
        sys.setprofile(profile)
        try:
            plain([])
        finally:
            sys.setprofile(None)
    assert seen == [plain]


def test_nothing_is_held_and_nothing_is_lost() -> None:
    def inner(seen: list[Any]) -> None:
        found_by(seen)

    def called_by(given: Callable[[list[Any]], Any]) -> None:
        given(seen)

    before, seen = sys.getrefcount(inner), []
    for _ in range(50):
        inner([])
        called_by(inner)  # Python 3.14 calls what a parameter has without a reference of its own
    assert seen == [inner] * 50
    seen.clear()
    assert sys.getrefcount(inner) == before


def test_none_once_its_code_was_replaced() -> None:
    def other() -> Any:
        return replaced, other

    def replaced() -> Any:
        replaced.__code__ = other.__code__
        return function_of(sys._getframe())

    assert other() == (replaced, other)
    assert replaced() is None


def test_no_other_one_for_a_frame_that_has_ended() -> None:
    def made() -> FrameType:
        return frame()

    assert function_of(made()) in (None, made)
