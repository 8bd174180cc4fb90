"""Values read on the host that go into attributes which are seen in another way than by their names."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.late_reads import _far_from
from capturekit.functions.ownership import Ownership, shows_by_name


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


def as_an_item(x: Any) -> Any:
    found = AttrDict()
    found.loss = float(x.sum())
    return x * 10 if found['loss'] > 7.5 else x


def in_a_loop(x: Any) -> Any:
    state = AttrDict(turns=0)
    while True:
        x = x * 0.5
        state.error = float(x.sum())
        state.turns += 1
        if state['error'] < 1 or state['turns'] > 9:
            return x, dict(state)


STATS = AttrDict(loss=0.0)


def in_an_object_that_lives_on(x: Any) -> Any:
    STATS.loss = float(x.sum())
    return x * 2


BEFORE = types.SimpleNamespace(loss=9.0)


def compared_as_a_whole(x: Any) -> Any:
    now = types.SimpleNamespace()
    now.loss = float(x.sum())
    return x * 0 if now == BEFORE else x * 2


def in_a_record_of_numpy(x: Any) -> Any:
    found = np.recarray((1,), dtype=[('loss', 'f4')])
    found.loss = float(x.sum())
    return x * 2, float(found['loss'][0])


WANTED = {'name': 'loss'}


def by_a_computed_name(x: Any) -> Any:
    found: Any = Metrics()
    found.loss = float(x.sum())
    value = getattr(found, WANTED['name'])
    return x * 10 if value > 7.5 else x


def by_a_computed_name_of_a_slot(x: Any) -> Any:
    found = Slotted()
    found.loss = float(x.sum())
    return x * 10 if getattr(found, WANTED['name']) > 7.5 else x


def by_the_dictionary_taken_before(x: Any) -> Any:
    found: Any = Metrics()
    inside = found.__dict__
    found.loss = float(x.sum())
    return x * 10 if inside['loss'] > 7.5 else x


SEEN = [
    as_an_item, in_a_loop, in_an_object_that_lives_on, compared_as_a_whole, in_a_record_of_numpy,
    by_a_computed_name, by_a_computed_name_of_a_slot, by_the_dictionary_taken_before,
]  # fmt: skip


def told(value: Any, cp: Any) -> Any:
    if isinstance(value, cp.ndarray):
        return value.get().tolist()
    return [told(one, cp) for one in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize('function', SEEN, ids=lambda function: function.__name__)
def test_what_the_code_sees_is_what_was_read(cp: Any, function: Callable[[Any], Any]) -> None:
    fn = ck.graphed(function)
    for number in range(12):
        x = cp.arange(1.0, 4.0) + number // 2 * 0.25
        wanted = told(function(x.copy()), cp), dict(STATS)
        assert (told(fn(x), cp), dict(STATS)) == wanted


def test_a_time_in_an_item_is_seen(cp: Any) -> None:
    border = time.time() + 0.2

    @ck.graphed
    def step(x: Any) -> Any:
        found = AttrDict()
        found.begun = time.time()
        return x * 2, found['begun'] > border

    for _ in range(4):
        step(cp.ones(2))
    time.sleep(max(0.0, border - time.time()) + 0.01)
    assert step(cp.ones(2))[1]


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
