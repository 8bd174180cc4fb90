"""Of a number that launches reckon with, NumPy learns nothing but what comes of its operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from capturekit.graphed.recorded_number import OF_NUMPY, Number
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
