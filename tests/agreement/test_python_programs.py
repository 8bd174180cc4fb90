"""Random Python programs give the same plainly and graphed; and they find each known cause of wrong answers again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.choices import Choices, replayed, seeded, shortest
from tests.agreement.lost_mends import LOST, LostMend
from tests.agreement.program_runner import Machine
from tests.agreement.python_programs import Program, program
from tests.examples import examples

#: Programs that speak of a cause's subject, up to which it has to be found.
WITHIN = 150


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs for Hypothesis to shrink."""
    return program(Choices(lambda end: draw(st.integers(0, end - 1))))


@pytest.fixture(scope='module')
def machine() -> Iterator[Machine]:
    with Machine() as one:
        yield one
