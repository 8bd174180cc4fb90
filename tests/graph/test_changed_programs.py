"""Random programs whose graph is changed again and again."""

from __future__ import annotations

from typing import Any

from tests.examples import examples
from tests.graph import changed_programs


def test_changed_graphs_give_equal_bits(cp: Any) -> None:
    found = [changed_programs.tried(cp, seed) for seed in range(examples(40))]
    assert [error for _words, error in found if error] == []
    made = {word.partition(' refused')[0] for words, _error in found for word in words}
    assert made >= {'relane', 'relane timed', 'fuse', 'rebind', 'update', 'clone', 'crowd'}
