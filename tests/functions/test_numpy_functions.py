"""Launches reckon by functions of NumPy with numbers: ``x * np.exp(-rate * step)``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.recorded_number import OF_NUMPY
from tests.functions.test_reckoned_reads import launches, told

exp, C = np.exp, np.float64(0.75)
#: Programs: what is made of an array and of a model that counts its calls.
LAUNCHED = """
x * np.exp(-m.k * m.n)
x / np.sqrt(float((x * x).sum()))
x * exp(-float(x.max()))
(x * np.log(x.sum().item() + 9), np.log(x.sum().item() + 9))
np.maximum(x.sum().item(), 1e-3)
x * np.power(float(x.max()) + 9, 0.5) + np.hypot(float(x.max()), 2.0)
x * (C * float(x.max())) + (float(x.max()) - C)
x * abs(np.sin(float(x.max())))
x * max(np.cos(float(x.max())), 0.25)
cp.where(x > np.cos(float(x.max())), x, np.tanh(float(x.max())))
x * 2 if np.floor(float(x.max())) < 1e6 else x
(np.cos(float(x.max())) < 7, C < float(x.max()) + 9, np.isnan(np.sin(float(x.max()))))
np.float64.__mul__(C, 2.0) * x * np.sqrt(m.n)
x * m.decay(np.exp(-m.n / 3))
np.array([np.exp(-float(x.max())), 1.0])
x * (1 - np.power(0.9, m.n))
""".strip().splitlines()
EAGER = """
x * np.round(float(x.max()), 1)
x * np.exp([float(x.max()), 1.0])[0]
x * np.float32(float(x.max()))
x * np.exp(float(x.max()), dtype='f4')
x * np.add.reduce([float(x.max()), 1.0])
x * np.sign(int(x.max()))
x * float(str(np.exp(float(x.max()))))
""".strip().splitlines()


class Model:
    """Counts its calls."""

    def __init__(self) -> None:
        self.n, self.k = 0, 0.125

    def decay(self, by: float) -> float:
        return by / 2


def made(cp: Any, text: str) -> Callable[[Any], Any]:
    """A function of a module of its own."""
    names: dict[str, Any] = {'np': np, 'exp': exp, 'C': C, 'cp': cp, 'm': Model(), '__name__': 'numbers_there'}
    exec(f'def of(x):\n    m.n += 1\n    return {text}\n', names)
    return names['of']  # type: ignore[no-any-return]


def alike(cp: Any, text: str, given: list[Any]) -> Any:
    """Compare calls with plain ones; return the graphed function."""
    plain, fn = made(cp, text), ck.graphed(made(cp, text))
    for values in given:
        assert told(fn(cp.asarray(values))) == told(plain(cp.asarray(values))), (text, values)
    return fn


def arrays(dtype: str, count: int = 12) -> list[Any]:
    return [np.arange(1, 4).astype(dtype) * (1 + 3 * call % 7) for call in range(count)]


@pytest.mark.parametrize(
    ('text', 'dtype'),
    [*((text, 'f4') for text in LAUNCHED), *((text, kind) for text in LAUNCHED[:3] for kind in ('f8', 'i4'))],
)
def test_launches_compute_as_numpy_does(sim: Any, text: str, dtype: str) -> None:
    assert launches(alike(sim, text, arrays(dtype))) >= 6


@pytest.mark.parametrize('text', EAGER)
def test_other_uses_of_numpy_are_right(sim: Any, text: str) -> None:
    alike(sim, text, arrays('f8'))


@pytest.mark.parametrize('name', sorted(OF_NUMPY))
def test_each_function_is_launched(sim: Any, name: str) -> None:
    text = f'x * np.{name}({", ".join(["1 / float(x.max())"] * OF_NUMPY[name].nin)})'
    given = [np.array([1.0, 3 + call]) for call in range(8)]
    if name == 'arccosh':
        text, given = 'x * np.arccosh(float(x.max()))', given
    assert launches(alike(sim, text, given)) >= 4


@pytest.mark.parametrize(
    'text', ['x * np.exp(float(x.max()) * 300)', 'x * np.log(2 - float(x.max()))', 'x * (C / float(x[0]))']
)
def test_a_launch_that_would_warn_is_given_up(sim: Any, text: str) -> None:
    logs = []
    given = [np.array([float(call != 9), 1.0 + 2 * (call in (5, 8))]) for call in range(12)]
    for graphed in (False, True):
        fn: Any = ck.graphed(made(sim, text)) if graphed else made(sim, text)
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter('always')
            found = [told(fn(sim.asarray(values))) for values in given]
        logs.append((found, [(str(one.message), one.lineno) for one in log]))
    assert logs[0] == logs[1] and logs[0][1]
    assert launches(fn) >= 3


def test_settings_of_numpy_count(sim: Any) -> None:
    plain, fn = made(sim, 'x * np.exp(float(x.max()) * 300)'), ck.graphed(made(sim, 'x * np.exp(float(x.max()) * 300)'))
    for call in range(14):
        x = sim.asarray([1.0, 1.0 + 2 * (call in (6, 9))])
        with np.errstate(over='ignore' if call != 9 else 'raise'):
            found = []
            for one in (plain, fn):
                try:
                    found.append(told(one(x)))
                except FloatingPointError as error:
                    found.append(str(error))
            assert found[0] == found[1], call


def test_a_number_argument_goes_into_functions_of_numpy(sim: Any) -> None:
    def step(x: Any, t: float) -> Any:
        return x * np.exp(-t / 3) * np.cos(2 * np.pi * t) + t

    fn = ck.graphed(step)
    for call in range(14):
        x, t = sim.asarray([1.0, call]), 0.1 * call
        assert told(fn(x, t)) == told(step(x, t))
    assert launches(fn) >= 6


def test_another_function_in_the_module_is_seen(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fn = made(sim, 'x * np.cbrt(float(x.max()))'), ck.graphed(made(sim, 'x * np.cbrt(float(x.max()))'))
    for call, values in enumerate(arrays('f8')):
        if call == 7:
            monkeypatch.setattr(np, 'cbrt', lambda value: value / 2)
        assert told(fn(sim.asarray(values))) == told(plain(sim.asarray(values)))


FAILS_AGAIN = """
def h(a, b):
    return a if a > b else np.sqrt(abs(b))
def of(x, t):
    y, v = x * 2, m.k
    m.r = m.n
    w = h(np.power(-C, float(x[0])), 0.5)
    y = (((x.sum().item() - float(x.max())) + np.sin(m.r)) // (math.pow(m.r, float(x.max())) // v)) - y
    if x.sum().item() < (((float(x[0]) / w) * np.exp(-abs(float(x[0])) / 9)) + np.square(float(x.max()))):
        if np.sin(v) <= (np.exp(-abs((C // m.n)) / 9) / x.sum().item()):
            y = y / (np.fmod(((3.0 ** 0.5) / t), (np.exp(-abs(m.k) / 9) - 2)))
    return y
"""


def test_a_recording_that_fails_after_one_that_did_not(sim: Any) -> None:
    """The first recording was to be compared with an eager run; the one after it is refused."""
    functions = []
    for _ in range(2):
        names: dict[str, Any] = {'np': np, 'math': math, 'C': np.float64(1.25), 'm': Model(), '__name__': 'fails_again'}
        names['m'].r = 1.5
        exec(FAILS_AGAIN, names)
        functions.append(names['of'])
    plain, fn = functions[0], ck.graphed(functions[1])
    with warnings.catch_warnings(record=True):
        warnings.simplefilter('always')
        for call in range(14):
            x = sim.asarray(np.array([1.0, 2.0, 3.0]) * (1 + call % 5 * 0.5))
            assert told(fn(x, 0.5 + 0.1 * call)) == told(plain(x, 0.5 + 0.1 * call)), call
