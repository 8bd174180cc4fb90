"""What a function read of objects, classes and modules, and what counts as written."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.functions.environments import Config, Filter, clean, watch

HERE = os.path.basename(__file__)
pytestmark = pytest.mark.usefixtures('no_collection')


value: Any = None


@pytest.fixture(autouse=True)
def globals_of_this_file() -> Iterator[None]:
    before = dict(globals())
    yield
    globals().clear()
    globals().update(before)


def test_readers_of_whole_objects() -> None:
    global value
    value = Config()
    found = clean(lambda: dataclasses.replace(value))
    value.unnamed = 2
    assert 'attribute unnamed' in str(found.changed())
    found = clean(lambda: copy.copy(value))
    value.unnamed = 3
    assert 'attribute unnamed' in str(found.changed())


def test_writing_attributes() -> None:
    assert watch(Filter().count).written() == 'the function rebinds attribute t of a Filter object'
    assert watch(Filter().cached).written() == 'the function creates attribute _cache of a Filter object'
    one = Filter()
    assert 'creates attribute lazy' in str(watch(lambda: one.lazy).written())

    def deletes() -> None:
        del one.n

    assert watch(deletes).written() == 'the function deletes attribute n of a Filter object'
    gain = Filter.gain
    assert watch(Filter().class_counts).written() == 'the function rebinds attribute gain of class Filter'
    Filter.gain = gain
    assert watch(Filter().class_creates).written() == 'the function creates attribute made of class Filter'
    del Filter.made  # type: ignore[attr-defined]


def test_writing_globals_and_variables() -> None:
    def rebinds() -> None:
        global value
        value = 7

    def creates() -> None:
        global brand_new
        brand_new = 7  # type: ignore[name-defined]

    count = 0

    def counts() -> None:
        nonlocal count
        count += 1

    assert watch(rebinds).written() == f'the function rebinds global value of {HERE}'
    assert watch(rebinds).written() is None
    assert watch(creates).written() == f'the function creates global brand_new of {HERE}'
    assert watch(counts).written() == 'the function rebinds variable count of the closure of counts'


def test_a_first_attribute_of_a_function_is_told() -> None:
    """Nearly all functions have no attributes: those that have none are compared together."""

    def plain() -> None: ...

    def marked() -> None: ...

    marked.kind = 'marked'  # type: ignore[attr-defined]
    found = clean(lambda: [*vars(plain), *vars(marked)])
    plain.kind = 'new'  # type: ignore[attr-defined]
    assert 'kind' in (found.changed() or '')
    del plain.kind  # type: ignore[attr-defined]
    assert found.changed() is None
    plain.__dict__ = {'kind': 'new'}
    assert 'kind' in (found.changed() or '')
    plain.__dict__ = {}
    assert found.changed() is None
    marked.level = 2  # type: ignore[attr-defined]
    assert 'level' in (found.changed() or '')
