"""Of a number that launches reckon with, NumPy learns nothing but what comes of its operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from capturekit.functions.recorded_number import OF_NUMPY, Number
from capturekit.model.errors import UnsupportedCallError

ASKING = (np.isnan, np.isinf, np.isfinite)
#: NumPy's functions of numbers, each once.
UFUNCS = {one.__name__: one for one in vars(np).values() if type(one) is np.ufunc}


class Numbers:
    """The numbers of a recording, whose code asks only where it may."""

    cupy = None

    def __init__(self, now: float) -> None:
        self.asked: list[Any] = []
        self.now = now

    def standing(self) -> None:
        """Take any place for one where the number may be used."""

    def compared(self, plain: Callable[[float], bool], operands: tuple[Number, ...]) -> bool:
        self.asked.append(plain)
        assert len(operands) == 1
        return plain(self.now)

    def computed(self, plain: Callable[..., Any], operands: tuple[Number, ...]) -> Any:
        self.asked.append(plain)
        with np.errstate(invalid='ignore'):
            return plain(*[self.now] * len(operands))

    def constant(self, value: Any) -> Number:
        return Number(self, 1, value)


@pytest.fixture
def number() -> Number:
    return Number(Numbers(2.5), 0, 2.5)


@pytest.mark.parametrize('name', sorted(UFUNCS))
def test_no_other_function_gets_it(number: Number, name: str) -> None:
    ufunc = UFUNCS[name]
    for position in range(ufunc.nin):
        given: list[Any] = [np.ones((1, 1))] * ufunc.nin
        given[position] = number
        if ufunc in ASKING:
            assert type(ufunc(*given)) is np.bool_
            continue
        if ufunc in OF_NUMPY.values() and ufunc.nin == 1:
            assert type(ufunc(*given)) is np.float64
            continue
        with pytest.raises(UnsupportedCallError, match=f'it is given to {name} of NumPy'):
            ufunc(*given)


@pytest.mark.parametrize('now', [2.5, -0.0, math.nan, math.inf, -math.inf])
def test_what_it_is_asked_is_checked_at_each_launch(now: float) -> None:
    numbers = Numbers(now)
    number: Any = Number(numbers, 0, now)
    assert [ask(number) for ask in ASKING] == [ask(now) for ask in ASKING]
    assert numbers.asked == [math.isnan, math.isinf, math.isfinite]


HOW: dict[str, Callable[[Any], Any]] = {
    'an array that is given': lambda v: np.isnan(v, out=np.zeros((), bool)),
    'an array as the second': lambda v: np.isnan(v, np.zeros((), bool)),
    'where': lambda v: np.isfinite(v, where=True),
    'where it is': lambda v: np.isfinite(np.ones(3), where=v),
    'a type': lambda v: np.isinf(v, dtype=bool),
    'as what is given': lambda v: np.add(1.0, 2.0, out=v),
    'reduced': lambda v: np.add.reduce(v),
    'all sums': lambda v: np.add.accumulate(v),
    'with each': lambda v: np.multiply.outer(v, np.ones(3)),
    'at an index': lambda v: np.add.at(np.ones(3), 1, v),
    'in a list': lambda v: np.sqrt([v, 1.0]),
    'asked in a list': lambda v: np.isnan([v]),
    'a sum': lambda v: np.sum([v, v]),
    'a mean': lambda v: np.mean([v, 1.0]),
    'rounded': lambda v: np.round(v, 2),
    'clipped': lambda v: np.clip(v, 0, 1),
    'one of two': lambda v: np.where(True, v, 1.0),
    'as a number of NumPy': np.float64,
    'as a shorter one': np.float32,
    'a type of an array': lambda v: np.array([v], float),
    'an array': lambda v: np.array(v),
    'filled with it': lambda v: np.full(3, v),
    'steps of it': lambda v: np.linspace(0, v, 3),
    'put into an array': lambda v: np.ones(3).__setitem__(0, v),
    'near': lambda v: np.isclose(v, 2.5),
    'what it is': np.isreal,
    'times an array': lambda v: np.ones(3) * v,
    'beside a short number of NumPy': lambda v: np.float32(2) + v,
    'compared with one': lambda v: np.float32(2) < v,
    'an index': lambda v: np.ones(3)[v],
    'a shape': np.zeros,
    'the type of what it makes': lambda v: np.result_type(v, 1.0),
    'the smallest type': np.min_scalar_type,
    'a text': lambda v: np.array2string(np.array([v])),
}  # fmt: skip


@pytest.mark.parametrize('how', HOW)
def test_nothing_more_comes_of_it(number: Number, how: str) -> None:
    asks_first = how == 'the type of what it makes'  # older NumPys ask for no attribute, and raise
    with pytest.raises((UnsupportedCallError, TypeError) if asks_first else UnsupportedCallError):
        HOW[how](number)
