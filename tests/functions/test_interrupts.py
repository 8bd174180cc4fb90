"""Ctrl-C at the places of a graphed call where Python calls a handler: nothing stays begun, no other thread waits for
ever, and later calls are right."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions.call_turns import BUSY, TURNS
from capturekit.guard import GUARD
from tests.recorder.test_interrupts import Points, chosen


class Model:
    """State that each call changes, a number that is read on the host, and one that is computed with."""

    def __init__(self, cp: Any) -> None:
        self.n, self.v = 0, cp.zeros(4)

    def step(self, x: Any) -> Any:
        self.n += 1
        self.v = self.v * 0.5 + x
        return self.v + self.n if float(x.max()) > 2 else self.v - self.n


def begun() -> list[Any]:
    """What a call that has ended leaves as it was."""
    return [
        GUARD.installation.installed, GUARD.occupied(), BUSY.depth, TURNS.mark() is None, sys.getprofile(),
        gc.isenabled(), len(gc.callbacks), [sys.monitoring.get_tool(n) for n in (3, 4, 5)]
        if sys.version_info >= (3, 12) else [],
    ]  # fmt: skip


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')  # signals in destructors
@pytest.mark.parametrize('earlier', [0, 1, 4], ids=['watched', 'recorded', 'launched'])
def test_interrupted_at_any_place_of_a_call(sim: Any, earlier: int) -> None:
    def made() -> tuple[Model, Any]:
        model = Model(sim)
        step = ck.graphed(model.step)
        for number in range(earlier):
            step(sim.arange(4.0) + number)
        return model, step

    for _ in range(2):  # the first time there is more to do
        _, counted = made()
    with Points(signal.SIGINT) as points:
        counted(sim.arange(4.0))
    places, before = chosen(points.seen), begun()
    for at in places[:: max(len(places) // 40, 1)]:
        model, step = made()
        with suppress(KeyboardInterrupt), Points(signal.SIGINT, at) as raised:
            step(sim.arange(4.0))
        where = raised.seen[-1]
        assert begun() == before, where
        x, found = sim.arange(4.0) + 9, list[Any]()
        wanted = (model.v * 0.5 + x + model.n + 1).get().tolist()
        other = threading.Thread(target=lambda: found.append(step(x).get().tolist()), daemon=True)  # noqa: B023
        other.start()
        other.join(30)
        assert found == [wanted], where
