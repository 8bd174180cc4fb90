"""What stands in a place while wrappers are installed: for a function, a class, a switch and a module's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from capturekit.guard import patching
from capturekit.guard.entry_points import Entry
from capturekit.guard.patching import Installation

HERE = __name__


def function(first: int, second: int = 2) -> tuple[int, int]:
    return first, second


class Shelf:
    class Made:
        """Text of the class."""

        def __init__(self, value: int = 0) -> None:
            self.value = value


class Special(Shelf.Made):
    pass


SWITCH = True
ORIGINAL, CLASS = function, Shelf.Made


class Guarding:
    """A guard that takes arguments by names of its own, says what it was asked, and can be told to answer no."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer = False

    def function(self, original: Any, one: int, other: int = 2) -> Any:
        self.asked.append((one, other))
        return original(one, other)

    def made(self, original: Any, *args: Any) -> Any:
        self.asked.append(args)
        return original(*args)

    def switch(self, original: bool) -> Any:
        self.asked.append(original)
        return self.answer


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    table = [
        Entry(HERE, 'function', 'function'),
        Entry(f'{HERE}.Shelf', 'Made', 'made'),
        Entry(HERE, 'SWITCH', 'switch'),
    ]
    monkeypatch.setattr(patching, 'ENTRIES', table)
    return table


@pytest.fixture
def guard() -> Guarding:
    return Guarding()


@pytest.fixture
def installation(entries: list[Entry], guard: Guarding) -> Iterator[Installation]:
    """All of the entries are in place."""
    made = Installation()
    made.install(guard)
    yield made
    if made.installed:
        made.uninstall()


def test_names_in_a_call_are_put_in_their_places(installation: Installation, guard: Guarding) -> None:
    assert function(second=5, first=4) == (4, 5)
    assert function(3) == (3, 2)
    assert guard.asked == [(4, 5), (3, 2)]


def test_a_class_is_made_by_the_guard(installation: Installation, guard: Guarding) -> None:
    assert Shelf.Made(3).value == 3
    assert guard.asked == [(3,)]


def test_instances_of_a_class_are_still_its_own(installation: Installation) -> None:
    assert Shelf.Made is not CLASS
    assert isinstance(CLASS(), Shelf.Made) and isinstance(Special(), Shelf.Made) and not isinstance(3, Shelf.Made)
    assert issubclass(Special, Shelf.Made) and issubclass(CLASS, Shelf.Made) and not issubclass(int, Shelf.Made)


def test_a_switch_is_asked_whenever_it_is_looked_at(installation: Installation, guard: Guarding) -> None:
    assert not SWITCH
    guard.answer = True
    assert SWITCH
    assert guard.asked == [True, True]


def test_behind_a_wrapper_is_what_was_there(installation: Installation) -> None:
    assert installation.original_of(function) is ORIGINAL
    assert installation.original_of(Shelf.Made) is CLASS
    assert installation.original_of(self_made := object()) is self_made
