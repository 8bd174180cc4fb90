"""The programs of one stream that are laid on lanes are right, way by way, and a wrong one is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.benchmarks import lanes
from tests.benchmarks.one_stream import Program, programs

pytestmark = pytest.mark.slow

NAMES = [
    'net', 'ensemble', 'attention', 'folds', 'solves', 'spectra', 'summaries', 'copies', 'filters', 'chains', 'plates',
    'large',
]  # fmt: skip


@pytest.mark.parametrize('name', NAMES)
def test_every_way_is_right(sim: Any, name: str) -> None:
    assert list(programs(sim, small=True)) == NAMES
    (line,) = lanes.parts(sim, True, False)[name]()
    assert (line.error, line.note) == ('', 'checked'), line


def test_a_wrong_result_is_an_error(sim: Any) -> None:
    count = []

    def run(parallel: Any) -> list[Any]:
        count.append(0)
        return [sim.zeros(3) + len(count)]

    (line,) = lanes.lines(sim, lambda: Program('a counter', 2, run), False)
    assert line.error.startswith('one lane: differs from the eager run by') and line.ratio is None


def test_ways_are_one_lane_some_by_hand_and_what_is_found() -> None:
    program = Program('eight', 8, lambda parallel: [])
    assert list(lanes.ways(program)) == ['one lane', '2', '4', '8', 'found']
    with pytest.raises(AssertionError, match='2 results, and 1 eagerly'):
        lanes.check(None, 'found', [1, 2], [np.zeros(3)])
