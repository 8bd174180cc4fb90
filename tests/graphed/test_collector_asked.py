"""The collector is off while a run is followed; code that asks whether it is, or turns it on, does not notice that."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck


@pytest.fixture
def cp(sim: Any) -> Iterator[Any]:
    yield sim
    gc.enable()


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
