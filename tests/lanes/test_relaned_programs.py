"""Random programs in the order that their data needs, and how a difference would be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from capturekit.lanes import new_order
from tests.agreement.trying import try_many
from tests.lanes import relaned_programs


def test_programs_give_equal_bits(cp: Any) -> None:
    found = [relaned_programs.tried(cp, seed) for seed in range(40)]
    assert [error for _word, error in found if error] == []
    assert [word for word, _error in found].count('with other edges') > 20


def test_an_order_that_is_lost_is_told(
    sim: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(_order: Any, _memory: Sequence[Any]) -> list[tuple[int, int]]:
        return []

    monkeypatch.setattr(new_order, 'needed_edges', none)
    monkeypatch.setattr(new_order, 'races_now', lambda _state, _sight: ())
    monkeypatch.setattr(new_order, 'trial_of', lambda *_given: None)
    tally = try_many(relaned_programs.kind(sim), 0, 30, 1)
    assert tally.found and 'with other edges' in str(tally) and 'seed ' in capsys.readouterr().out
