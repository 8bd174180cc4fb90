"""The collector is off while a run is followed; code that asks whether it is, or turns it on, does not notice that."""

from __future__ import annotations

import functools
import gc
import sys
import timeit
from collections.abc import Callable, Iterator
from gc import isenabled
from typing import Any

import pytest

import capturekit as ck


@pytest.fixture
def cp(sim: Any) -> Iterator[Any]:
    yield sim
    gc.enable()


HANDED_ON = functools.partial(gc.isenabled)
HELD = [gc.isenabled]


def in_a_helper() -> bool:
    return gc.isenabled()


def called(ask: Callable[[], bool]) -> bool:
    return ask()


def by_its_text() -> Any:
    return getattr(gc, 'is' + 'enabled')()


ASKING: list[Callable[[], Any]] = [
    lambda: gc.isenabled(), lambda: isenabled(), in_a_helper, by_its_text, HANDED_ON, lambda: HANDED_ON(),
    lambda: HELD[0](), lambda: max(HELD, key=called)(), lambda: functools.partial(gc.isenabled)(),
    lambda: sum(map(bool, [ask() for ask in HELD])), lambda: gc.get_threshold()[0] > 0,
]  # fmt: skip


@pytest.mark.parametrize('ask', ASKING)
def test_code_that_asks_gets_the_answer_of_an_eager_run(cp: Any, ask: Callable[[], Any]) -> None:
    fn = ck.graphed(lambda x: x * (2.0 if ask() else 3.0))
    for on in (True, True, False, True):
        (gc.enable if on else gc.disable)()
        for _ in range(3):
            wanted = 2.0 if ask() else 3.0
            assert fn(cp.ones(2)).get().tolist() == [wanted] * 2
            assert gc.isenabled() is on


@pytest.mark.parametrize('on', [True, False])
def test_what_code_sets_stays_set(cp: Any, on: bool) -> None:
    def sets(x: Any) -> Any:
        (gc.enable if on else gc.disable)()
        return x * (2.0 if gc.isenabled() else 3.0)

    fn = ck.graphed(sets)
    for _ in range(4):
        (gc.disable if on else gc.enable)()
        assert fn(cp.ones(2)).get().tolist() == [2.0 if on else 3.0] * 2
        assert gc.isenabled() is on


def test_a_library_that_turns_it_off_and_on_again(cp: Any) -> None:
    """``timeit`` does so: it asks first."""
    seen: list[bool] = []

    def timed(x: Any) -> Any:
        timeit.timeit(lambda: seen.append(gc.isenabled()), number=1)
        return x * (2.0 if gc.isenabled() else 3.0)

    fn = ck.graphed(timed)
    for _ in range(3):
        assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]
        assert gc.isenabled()
    assert seen == [False] * 3


class Thing:
    """One that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


def makes_garbage(x: Any) -> Any:
    for _ in range(50_000):
        Thing()
    return x + 1


def collections_during(run: Callable[[], Any]) -> int:
    """How often the collector begins while ``makes_garbage`` runs."""
    found: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        frame = sys._getframe()
        while frame is not None and phase == 'start':
            found.extend(['begun'] * (frame.f_code is makes_garbage.__code__))
            frame = frame.f_back  # type: ignore[assignment]

    gc.callbacks.append(note)
    try:
        run()
    finally:
        gc.callbacks.remove(note)
    return len(found)


def test_it_is_held_off_where_nobody_asks(cp: Any) -> None:
    assert collections_during(lambda: makes_garbage(cp.ones(2))) > 0
    fn = ck.graphed(makes_garbage)
    assert collections_during(lambda: fn(cp.ones(2))) == 0
    assert gc.isenabled()
