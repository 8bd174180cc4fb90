"""How NumPy treats errors counts wherever code may compute with NumPy's numbers, whoever made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck

ZEROS = np.zeros(2)
IN_A_LIST = [np.zeros(2)]


def of_a_global(x: Any, zeros: Any, y: Any) -> Any:
    return 1 / ZEROS


def in_a_list(x: Any, zeros: Any, y: Any) -> Any:
    return 1 / IN_A_LIST[0]


def of_an_argument(x: Any, zeros: Any, y: Any) -> Any:
    return 1 / zeros


def of_a_copy(x: Any, zeros: Any, y: Any) -> Any:
    return 1 / y.get()


def of_a_type(x: Any, zeros: Any, y: Any) -> Any:
    number = y.dtype.type
    return number(1) / number(0)


@pytest.mark.parametrize('divides', [of_a_global, in_a_list, of_an_argument, of_a_copy, of_a_type])
def test_a_division_by_zero_counts(cp: Any, divides: Callable[..., Any]) -> None:
    def step(x: Any, zeros: Any, y: Any) -> Any:
        try:
            divides(x, zeros, y)
        except FloatingPointError:
            return x * 5.0
        return x * 2.0

    fn = ck.graphed(step)
    given = cp.ones(2), np.zeros(2), cp.zeros(2)
    with np.errstate(all='ignore'):
        assert [fn(*given).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
    with np.errstate(all='raise'):
        assert [fn(*given).tolist() for _ in range(3)] == [[5.0, 5.0]] * 3
