"""The long runs, kept short: they find nothing here, and what they are made to find they find."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from capturekit.guard import GUARD
from tests.captured import simulated
from tests.soak import captures, exits

pytestmark = pytest.mark.slow


def quiet(_text: str) -> None:
    """Say nothing."""


def test_captures_leave_nothing_behind(sim: Any) -> None:
    found = captures.run(sim, 80, quiet)
    assert sum(found['captures'].values()) == 80 and found['captures']['good'] == 40
    assert found['growth']['streams'] <= 2 and found['growth']['events'] <= 2 and found['growth']['file handles'] == 0


@contextmanager
def no_exception_in_a_cycle() -> Iterator[None]:
    """An exception that waits for the collector keeps the frames of its block, and so the graph, its arrays, all."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1 << 30)
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [repr(one) for one in gc.garbage if isinstance(one, BaseException)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.set_threshold(*threshold)


def test_each_call_of_the_device_may_fail(sim: Any) -> None:
    with no_exception_in_a_cycle():
        found = exits.run(sim, quiet)
    assert {'begin_capture', 'end_capture', 'graph_instantiate', 'begin_capture_to'} <= found['calls'].keys()
    assert sum(found['calls'].values()) == sum(found['outcomes'].values()) > 100


def test_each_call_of_a_capture_on_two_devices_may_fail() -> None:
    with simulated(3, devices=2) as cp:
        with no_exception_in_a_cycle():
            found = exits.run(cp, quiet, exits.program_of_devices(cp))
    assert {'begin_capture', 'end_capture', 'graph_instantiate', 'set_device'} <= found['calls'].keys()
    assert sum(found['calls'].values()) == sum(found['outcomes'].values()) > 100


def test_what_is_left_behind_is_found(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GUARD.captures, 'gone', lambda live: None)
    with pytest.raises(AssertionError, match='captures'):
        exits.run(sim, quiet)
    monkeypatch.undo()
    for live in list(GUARD.lives.values()):
        GUARD.captures.gone(live)
