"""What a function read besides its arguments: values, containers, functions and closures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.functions.environments import Hostile, clean

HERE = os.path.basename(__file__)
pytestmark = pytest.mark.usefixtures('no_collection')


value: Any = None


@pytest.fixture(autouse=True)
def globals_of_this_file() -> Iterator[None]:
    before = dict(globals())
    yield
    globals().clear()
    globals().update(before)


def reads() -> Any:
    return value


def test_hostile_objects_are_compared_by_identity() -> None:
    global value
    value = Hostile()
    found = clean(reads)
    value = Hostile()
    assert 'is not the Hostile that it was' in str(found.changed())


def test_the_sentence() -> None:
    global value
    value = 0.1
    found = clean(reads)
    value = 0.05
    assert found.changed() == f'global value of {HERE} is 0.05 and was 0.1 when recorded'
    del globals()['value']
    assert found.changed() == f'global value of {HERE} is gone and was 0.1 when recorded'


def test_containers_that_hold_themselves() -> None:
    global value
    value = [1]
    value.append(value)
    found = clean(reads)
    value.append(2)
    assert 'has 3 items and had 2' in str(found.changed())
