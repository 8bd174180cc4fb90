"""``@ck.graphed``: functions that read values on the host give the eager answer, whichever way they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck


def test_checks_later(sim: Any) -> None:
    w = sim.zeros(4)

    @ck.graphed(checks='later')
    def fn(x: Any) -> Any:
        w[...] = w + 1
        return x * 2 if float(x.sum()) > 10 else x + 1

    assert fn.last is None
    for _ in range(4):
        fn(sim.arange(4.0))
        if fn.last is not None:
            assert fn.last.holds()
    fn(sim.arange(4.0) + 5)
    bad = fn.last
    assert bad is not None and not bad.holds()
    with pytest.raises(ck.AssumptionError):
        bad.settle()
    assert w.get().tolist() == [4.0] * 4
    fn(sim.arange(4.0) + 5)  # and without asking
    for _ in range(3):
        fn(sim.arange(4.0))
    assert fn.last is not None and fn.last.holds()
    assert w.get().tolist() == [7.0] * 4


def test_checks_later_asked_too_late_are_taken_for_wrong(sim: Any) -> None:
    @ck.graphed(checks='later')
    def fn(x: Any) -> Any:
        return x * 2 if float(x.sum()) > 10 else x + 1

    for _ in range(3):
        fn(sim.arange(4.0))
    fn(sim.arange(4.0) + 5)
    bad = fn.last
    for i in range(150):
        fn(sim.arange(4.0) + (5 if i % 3 else 0))
    assert bad is not None and not bad.holds()


#: Functions that go another way for another input: ``w`` is an array of theirs that they change.
WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {}


def way(fn: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    WAYS[fn.__name__] = fn
    return fn
