"""Ordinary Python in graphed functions: it is recorded, and a change between calls is seen."""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Iterator

import pytest

from capturekit.model.kept_values import contents_of


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = os.environ.get('CAPTUREKIT_TEST_RATE')
    yield
    if before is None:
        os.environ.pop('CAPTUREKIT_TEST_RATE', None)


@pytest.mark.parametrize('view', ['keys', 'values', 'items'])
def test_a_view_is_compared_by_what_it_shows(view: str) -> None:
    for mapping in ({1: 2.0}, collections.OrderedDict({1: 2.0})):
        shown = getattr(mapping, view)()
        found = contents_of(shown)
        assert found is not None and found[2] == [mapping]


@pytest.mark.parametrize('maxsize', [None, 3])
def test_the_contents_of_a_cache(maxsize: int | None) -> None:
    kept = functools.lru_cache(maxsize)(lambda n, **more: {'n': n})
    function = kept.__wrapped__
    assert contents_of(kept) == ('items', [], [function], None)
    answers = [kept(2), kept(1), kept(0, m=2)]
    found = contents_of(kept)
    assert found is not None and found[2][0] is function
    assert found[2][1:3] == [2, 1] and all(one is other for one, other in zip(found[2][4:], answers))
    kept(2)
    again = contents_of(kept)
    assert again is not None and (again[2] == found[2]) == (maxsize is None)  # the order in which they are dropped
