"""Random programs in the order that their data needs."""

from __future__ import annotations

from typing import Any

from tests.lanes import relaned_programs


def test_programs_give_equal_bits(cp: Any) -> None:
    found = [relaned_programs.tried(cp, seed) for seed in range(40)]
    assert [error for _word, error in found if error] == []
    assert [word for word, _error in found].count('with other edges') > 20
