"""``pure=True``, by which the caller promises that nothing but the arguments counts, and ``check=``, which tries it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


class Setting:
    """A number that a function may read."""

    rate = 2.0


class Touchy:
    """An object that says how often it was read, and that no watch can see into."""

    def __init__(self) -> None:
        self.asked = 0

    def __getattr__(self, name: str) -> float:
        self.__dict__['asked'] += 1
        return 2.0


def scaled(setting: Any) -> Callable[[Any], Any]:
    return lambda x: x * setting.rate


def numbers(*values: Any) -> list[Any]:
    return [value.get().tolist() for value in values]


# -- pure=True ----------------------------------------------------------------------------------------------------


def test_only_the_arguments_of_a_pure_function_are_compared(cp: Any) -> None:
    setting = Setting()
    fn = ck.graphed(scaled(setting), pure=True)
    for _ in range(3):
        assert numbers(fn(cp.ones(2))) == [[2.0, 2.0]]
    setting.rate = 5.0
    assert numbers(fn(cp.ones(2))) == [[2.0, 2.0]]  # as promised
    assert [variant.environment for variant in fn.variants] == [None]
    assert fn.variants[0].launches == 3


def test_a_pure_function_may_do_what_is_not_understood(cp: Any) -> None:
    unseen, seen = Touchy(), list[int]()

    def fn(x: Any) -> Any:
        seen.append(1)
        return x * unseen.rate

    pure, plain = ck.graphed(fn, pure=True), ck.graphed(fn)
    for _ in range(4):
        assert numbers(pure(cp.ones(2)), plain(cp.ones(2))) == [[2.0, 2.0], [2.0, 2.0]]
    assert pure.variants[0].state == 'recorded' and plain.variants[0].state == 'eager'


def test_other_arrays_of_a_pure_function_are_used_where_they_lay(cp: Any) -> None:
    weights = cp.ones(2)
    fn = ck.graphed(lambda x: x * weights, pure=True)
    for _ in range(3):
        fn(cp.ones(2))
    weights *= 3
    assert numbers(fn(cp.ones(2))) == [[3.0, 3.0]]
    assert numbers(ck.graphed(lambda x: weights, pure=True)(cp.ones(2))) == [[3.0, 3.0]]


# -- check= -------------------------------------------------------------------------------------------------------


def test_a_promise_that_is_broken_is_told(cp: Any) -> None:
    setting = Setting()
    fn = ck.graphed(scaled(setting), pure=True, check=True)
    for _ in range(3):
        fn(cp.ones(2))
    setting.rate = 5.0
    x = cp.ones(2)
    with pytest.raises(ck.CheckError) as told:
        fn(x)
    text = str(told.value)
    assert 'the result differs in 2 elements of 2, by up to 3; at [0] it is 2.0 and in the eager run 5.0' in text
    assert 'test_promises.py' in text and 'pure=True' in text
    assert numbers(x) == [[1.0, 1.0]]
    assert numbers(fn(x)) == [[5.0, 5.0]]
    assert fn.variants[0].state == 'eager' and 'its check failed' in fn.variants[0].reason
    assert str(pickle.loads(pickle.dumps(told.value))) == text


def test_a_call_that_fails_its_check_has_changed_nothing(cp: Any) -> None:
    steps, total = [0.0], cp.zeros(2)

    @ck.graphed(pure=True, check=True)
    def fn(x: Any) -> Any:
        steps[0] += 1
        x += steps[0]
        total[...] += x
        return x * 1

    x = cp.zeros(2)
    for _ in range(2):
        fn(x)
    before = numbers(x, total)
    with pytest.raises(ck.CheckError, match='result differs in 2 elements'):
        fn(x)
    assert numbers(x, total) == before


def test_every_nth_launch_is_checked(cp: Any) -> None:
    setting, seen = Setting(), []

    @ck.graphed(pure=True, check=3)
    def fn(x: Any) -> Any:
        seen.append(1)
        return x * setting.rate

    ran = []
    for _ in range(9):
        fn(cp.ones(2))
        ran.append(len(seen))
    assert ran == [1, 2, 2, 3, 3, 3, 4, 4, 4]  # rehearsed, recorded; launches 3 and 6


def test_an_eager_run_that_raises_is_told(cp: Any) -> None:
    setting = Setting()

    def fn(x: Any) -> Any:
        if setting.rate > 4:
            raise KeyError('rate')
        return x * 2

    graphed = ck.graphed(fn, pure=True, check=True)
    for _ in range(3):
        graphed(cp.ones(2))
    setting.rate = 5.0
    with pytest.raises(ck.CheckError, match='The eager run that it was compared with raised KeyError') as told:
        graphed(cp.ones(2))
    assert isinstance(told.value.__cause__, KeyError)


def test_numbers_may_differ_by_rounding_and_no_more() -> None:
    from capturekit.graphed.checks import difference_between

    def said(mine: Any, theirs: Any) -> str:
        return difference_between(([('the result', np.array(mine))], None), ([('', np.array(theirs))], None))

    assert said([1.0, 1e-12], [1.0, 0.0]) == '' and said([np.nan, np.inf], [np.nan, np.inf]) == ''
    assert said([1.0, 2.0], [1.0, 2.1]).startswith('the result differs in 1 element of 2, by up to 0.1')
    assert said([1, 2], [1, 3]).startswith('the result differs in 1 element of 2, by up to 1;')
    assert 'nan' in said([np.nan], [1.0]) and said([True], [False]).startswith('the result differs in 1 element')
    assert said([[1.0]], [1.0]).startswith('the result is of shape (1, 1)')


def test_the_environment_asks_for_checks(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting()
    monkeypatch.setenv('CAPTUREKIT_CHECK', '1')
    fn = ck.graphed(scaled(setting), pure=True)
    monkeypatch.setenv('CAPTUREKIT_CHECK', 'often')
    with pytest.raises(ValueError, match='CAPTUREKIT_CHECK'):
        ck.graphed(scaled(setting))
    monkeypatch.delenv('CAPTUREKIT_CHECK')
    for _ in range(3):
        fn(cp.ones(2))
    setting.rate = 5.0
    with pytest.raises(ck.CheckError):
        fn(cp.ones(2))


@pytest.mark.parametrize(
    ('option', 'error'),
    [({'pure': 1}, TypeError), ({'check': 'yes'}, TypeError), ({'check': -1}, ValueError), ({'check': 1.5}, TypeError)],
)
def test_what_is_no_option_is_refused(option: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(option))):
        ck.graphed(abs, **option)
