"""The long runs, kept short: they find nothing here, and what they are made to find they find."""

from __future__ import annotations

from typing import Any

import pytest

from capturekit.guard import GUARD
from tests.soak import captures, exits, threads


def quiet(_text: str) -> None:
    """Say nothing."""


def test_captures_leave_nothing_behind(sim: Any) -> None:
    found = captures.run(sim, 80, quiet)
    assert sum(found['captures'].values()) == 80 and found['captures']['good'] == 40
    assert found['growth']['streams'] <= 2 and found['growth']['events'] <= 2 and found['growth']['file handles'] == 0


def test_each_call_of_the_device_may_fail(sim: Any) -> None:
    found = exits.run(sim, quiet)
    assert {'begin_capture', 'end_capture', 'graph_instantiate', 'begin_capture_to'} <= found['calls'].keys()
    assert sum(found['calls'].values()) == sum(found['outcomes'].values()) > 100


def test_what_is_left_behind_is_found(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GUARD, 'gone', lambda live: None)
    with pytest.raises(AssertionError, match='captures'):
        exits.run(sim, quiet)
    monkeypatch.undo()
    for live in list(GUARD.lives.values()):
        GUARD.gone(live)


def test_threads_capture_at_once(sim: Any) -> None:
    assert threads.run(sim, 1.0, 4, quiet)['captures'] > 4


def test_a_thread_that_computes_something_else_ends_all(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.np, 'array_equal', lambda one, other: False)
    with pytest.raises(AssertionError, match='thread 0'):
        threads.run(sim, 5.0, 1, quiet)
