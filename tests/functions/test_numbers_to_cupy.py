"""Launches reckon on where a number that was read goes to a function of CuPy, which makes an array of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from capturekit.functions.recorded_number import OF_CUPY
from tests.functions.test_number_functions import written
from tests.functions.test_reckoned_reads import ODD, alike, launches, ordinary

#: What a function makes of the number.
TEXTS: dict[str, str] = {
    'a root': 'cp.sqrt(v) * x, v * 2',
    'a root of what is computed': 'cp.sqrt(v * v + 1.0)',
    'of single precision': "x.astype('f4') / cp.sqrt(v)",
    'one of another': 'x * cp.exp(-cp.log(v + 1.0))',
    'by its name alone': 'x * sqrt(v)',
    'of a module that is a variable': 'x * (lambda xp: xp)(cp).sqrt(v) if cp is None else HOLDER.xp.sqrt(v)',
    'absolute': 'x * cp.abs(v - 40), cp.absolute(v)',
    'the larger': 'cp.maximum(x, v), cp.minimum(v, x - 1), cp.fmax(x, v)',
    'of another dtype': 'cp.maximum(x.astype("f4"), v), cp.minimum(x.astype("i4"), v), cp.hypot(x.astype("f4"), v)',
    'arithmetic by name': 'cp.add(x, v) - cp.multiply(v, x) * cp.divide(x, v), cp.power(x, v * 0.01), cp.mod(x, v + 1)',
    'compared by name': 'cp.less(x, v), cp.greater_equal(v, x)',
    'between two': 'cp.clip(x, v - 1, v + 2), cp.clip(x, v, None), cp.clip(x, None, v), cp.clip(x, 0.5, v)',
    'between two of another dtype': 'cp.clip(x.astype("f4"), 0, v), cp.clip(x.astype("i4"), 1, v)',
    'where it holds': 'cp.where(x > v, x, v), cp.where(x < 1, v, 0.0), cp.where(x > 2, v, v * 2), cp.where(x, v, x)',
    'where, of another dtype': 'cp.where(x > 1, x.astype("f4"), v), cp.where(x > 1, x.astype("i4"), v)',
    'angles': 'cp.arctan2(x, v) + cp.hypot(v, x)',
}
#: The same, where something else gets the number, or more is asked of it.
SEEN: dict[str, str] = {
    'NumPy gets it': 'x * np.sqrt(abs(v))',
    'NumPy gets it of a variable': 'x * cp.sqrt(x) * OF_NUMPY.xp.sqrt(abs(v))',
    'NumPy gets it, and the error is caught': 'x * cp.sqrt(x) * caught(OF_NUMPY, v)',
    'a function of the user': 'x * cp.sqrt(x) * MINE.sqrt(v)',
    'the user, and the error is caught': 'x * cp.sqrt(x) * caught(MINE, v)',
    'a function that the run puts there': 'x * cp.sqrt(x) * put(v)',
    'whole numbers': 'x * cp.sqrt(math.floor(abs(v)))',
    'the absolute of a whole number': 'cp.abs(math.floor(v) if abs(v) < 1e9 else 3)',
    'always whole': 'cp.abs(math.floor(v))',
    'a type that is asked for': 'cp.sqrt(v, dtype="f4")',
    'an array that is given': 'cp.sqrt(v, x[0])',
    'the larger of a list': 'cp.maximum([1.0, v, 2.0], x)',
    'into an array': 'cp.maximum(x, v, x)',
    'by its name': 'cp.maximum(x1=x, x2=v)',
    'clipped by name': 'cp.clip(x, a_min=v, a_max=v + 1)',
    'clipped by a method': 'x.clip(v, v + 1), x.clip(None, v)',
    'NumPy clips': 'np.clip(x, v, v + 1)',
    'NumPy looks where': 'OF_NUMPY.xp.where([True, False], v, 2.0).sum() * x',
    'NumPy takes the larger': 'np.maximum(x, v) + OF_NUMPY.xp.maximum(2.0, v)',
    'of numbers alone': 'cp.maximum(v, 2.0) * x',
    'where a number is the condition': 'cp.where(v, x, 1.0)',
    'the number is what is clipped': 'cp.clip(v, 1.0, x)',
    "of NumPy's number": 'cp.where(x > 1, np.float32(2), v), cp.clip(x, np.float64(0.1), v)',
    'of an array of NumPy': 'cp.maximum(np.ones(3), v)',
    'where with one branch': 'x * len(cp.where(x > v))',
    'more than one number': 'cp.hypot(v, 2.0) * x',
    'the type of what comes out': 'x * (2 if type(cp.sqrt(v)) is cp.ndarray else 3)',
    'a decision about what comes out': 'x * (2 if cp.sqrt(v) > 5 else 3)',
    'a read of what comes out': 'x * cp.sqrt(abs(v)).item()',
    'a text of what comes out': 'x * len(str(cp.sqrt(abs(v))))',
    'handed on': 'x * sum(map(cp.sqrt, [v]))',
    'by a computed name': "x * getattr(cp, 'sq' + 'rt')(v)",
}


class Holder:
    """What has a module as an attribute."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.sqrt = xp.sqrt


class Mine:
    """What has a name as a function of CuPy does."""

    def sqrt(self, value: float) -> float:
        return float(str(value)[:1].replace('-', '2').replace('n', '3').replace('i', '4'))


class Counting:
    """An object in C code's place: what it makes of a number is made without CuPy."""

    def __call__(self, value: float) -> float:
        return float(int(value == value and abs(value) < 1e3 and value) % 3)


MORE = """
def caught(of, v):
    try:
        return float(of.xp.sqrt(abs(v))) if hasattr(of, 'xp') else of.sqrt(v)
    except TypeError:
        return 5.0

def put(v):
    class Here:
        pass
    one = Here()
    setattr(one, 'sq' + 'rt', Counting())
    return one.sqrt(v)
"""


def made(text: str) -> Any:
    def maker(cp: Any) -> Any:
        names = {
            'np': np, 'sqrt': cp.sqrt, 'HOLDER': Holder(cp), 'OF_NUMPY': Holder(np), 'MINE': Mine(),
            'Counting': Counting,
        }  # fmt: skip
        return written(text, more=MORE, **names)(cp)

    return maker


@pytest.mark.parametrize('how', TEXTS)
def test_each_launch_gives_it_anew(sim: Any, how: str) -> None:
    assert launches(alike(sim, made(TEXTS[how]), ordinary(12))) >= 8


@pytest.mark.parametrize('how', TEXTS)
def test_odd_numbers_come_out_alike(sim: Any, how: str) -> None:
    alike(sim, made(TEXTS[how]), [*ordinary(5), *ODD, *ordinary(3), *reversed(ODD)])


@pytest.mark.parametrize('how', SEEN)
def test_what_sees_more_is_right(sim: Any, how: str) -> None:
    fn = alike(sim, made(SEEN[how]), [*ordinary(6), *ODD])
    assert not any('eager run' in variant.reason for variant in fn.variants), 'it was launched, and was wrong'


@pytest.mark.parametrize('name', sorted(OF_CUPY))
def test_all_of_them_give_what_plain_calls_give(sim: Any, name: str) -> None:
    before = {1: '', 2: 'x, ', 3: 'x > 3, x, ' if name == 'where' else 'x, v - 1, '}[OF_CUPY[name]]
    assert launches(alike(sim, made(f'cp.{name}({before}v), x + cp.{name}({before}v * 0.5)'), ordinary(9))) >= 5


@pytest.mark.parametrize('how', ['between two', 'where it holds', 'the larger', 'of another dtype', 'a root'])
def test_on_a_device(cp: Any, how: str) -> None:
    assert launches(alike(cp, made(TEXTS[how]), ordinary(12))) >= 8


#: A solver that has its module as an attribute, and keeps what it makes in lists, as pylops does.
SOLVER = """
class Solver:
    def __init__(self, y):
        self.xp = HOLDER.xp
        self.other = []
        self.cost = [float(self.xp.linalg.norm(y))]

    def step(self, y, number):
        self.cost.append(float(self.xp.linalg.norm(y)) + 1.0)
        self.other.append(self.xp.sqrt(float(self.cost[number] ** 2.0 + 0.5 * self.xp.abs(y @ y))))
        return y / self.other[-1]

def solved(x):
    solver = Solver(x + 1)
    y = x
    for number in range(3):
        y = solver.step(y, number)
    return y, solver.other, solver.cost
"""


def test_a_solver_that_keeps_its_costs_is_launched(sim: Any) -> None:
    maker = written('solved(x)', '1.0', SOLVER, HOLDER=Holder(sim))
    assert launches(alike(sim, maker, ordinary(12))) >= 8
