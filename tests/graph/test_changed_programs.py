"""Random programs whose graph is changed again and again, and how a difference would be told."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck
from tests.agreement.trying import try_many
from tests.examples import examples
from tests.graph import changed_programs


def test_changed_graphs_give_equal_bits(cp: Any) -> None:
    found = [changed_programs.tried(cp, seed) for seed in range(examples(40))]
    assert [error for _words, error in found if error] == []
    made = {word.partition(' refused')[0] for words, _error in found for word in words}
    assert made >= {'relane', 'relane timed', 'fuse', 'rebind', 'update', 'clone', 'crowd'}


def test_a_change_that_spoils_is_told(
    sim: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report that changes an edge: the first node of a graph no longer runs."""
    original = ck.Graph.races

    def spoils(graph: Any, **options: Any) -> Any:
        graph.disable(0)
        return original(graph, **options)

    monkeypatch.setattr(ck.Graph, 'races', spoils)
    assert try_many(changed_programs.kind(sim), 0, 12, 1).found
    assert 'differs' in capsys.readouterr().out
