"""Values read on the host that go into attributes which are seen in another way than by their names."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.ownership import Ownership, shows_by_name
from capturekit.functions.read_numbers import _far_from


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


class AttrDict(dict[str, Any]):
    __setattr__ = dict.__setitem__
    __getattr__ = dict.__getitem__


class Metrics:
    pass


class Slotted:
    __slots__ = ('loss',)


def test_an_attribute_of_a_plain_object_is_still_only_kept(cp: Any) -> None:
    def step(x: Any) -> Any:
        found: Any = Metrics()
        found.loss = float(x.sum())
        return x * 2, found.loss

    fn = ck.graphed(step)
    for number in range(5):
        assert fn(cp.ones(2) * number)[1] == 2.0 * number
    assert fn.variants[0].launches == 4


class Listener:
    def on_begin(self) -> float:
        return 2.0


@pytest.mark.skipif(sys.version_info < (3, 12), reason='which object is asked is known from Python 3.12 on')
def test_another_object_may_be_asked_for_computed_names(cp: Any) -> None:
    def step(x: Any) -> Any:
        listener, found = Listener(), Metrics()
        y = x * getattr(listener, f'on_{EVENT[0]}')()
        found.loss = float(y.sum())  # type: ignore[attr-defined]
        return y, found.loss  # type: ignore[attr-defined]

    fn = ck.graphed(step)
    for number in range(5):
        assert fn(cp.ones(2) * number)[1] == 4.0 * number
    assert fn.variants[0].launches == 4


EVENT = ['begin']


@pytest.mark.parametrize(
    'cls, shown',
    [
        (Metrics, True), (Slotted, True), (AttrDict, False), (types.SimpleNamespace, False),
        (np.recarray, False), (np.record, False), (list, True), (ValueError, True), (types.ModuleType, True),
        (type('Timed', (), {'loss': property(len, lambda one, loss: None)}), True),
        (type('Passed', (), {'loss': property(len, dict.__setitem__)}), False),
        (type('Named', (Metrics,), {'loss': 1}), True),
    ],
    ids=lambda one: getattr(one, '__name__', None),
)  # fmt: skip
def test_classes_that_show_attributes_by_name(cls: type, shown: bool) -> None:
    assert shows_by_name(cls, 'loss', Ownership(lambda file: 'site-packages' in file)) is shown


def test_markers_are_far_away() -> None:
    values = np.array([0.0, 2.0, np.inf, np.nan, -3e38], np.float32)
    found = _far_from(values)
    assert found.dtype == np.float32
    assert found[:2].tolist() == [-1000.25, -1003.0]
    assert np.isposinf(found[2]) and np.isnan(found[3]) and np.isfinite(found[4])
    assert _far_from(np.array([1])).tolist() == [1]
