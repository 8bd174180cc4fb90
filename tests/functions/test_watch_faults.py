"""A fault of capturekit's own costs a launch, and neither the user's call nor its result."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck
from capturekit.functions import watch as watching


@pytest.mark.parametrize('step', ['finish', 'shown_before'])
def test_a_fault_at_the_end_of_a_run_leaves_it_eager(
    sim: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, faults: list[str], step: str
) -> None:
    def broken(*_args: Any) -> None:
        raise ZeroDivisionError('at the end')

    monkeypatch.setattr(watching, step, broken)
    ran: list[int] = []

    def work(x: Any) -> Any:
        ran.append(1)
        return x * 2

    fn = ck.graphed(work)
    assert [fn(sim.ones(2)).get().tolist() for _ in range(6)] == [[2.0, 2.0]] * 6
    assert len(ran) == 6 and {variant.state for variant in fn.variants} == {'eager'}
    assert "could not be followed: ZeroDivisionError('at the end')" in fn.variants[0].reason
    assert watching.FAULT in caplog.text and faults != []
    faults.clear()
