"""What ``inspect.signature`` says of a function: all that it reads of it counts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck


class Scales:
    def scaled(self, by: float = 2.0) -> None:
        return None


def make() -> dict[str, Any]:
    """Functions of their own for each test: a plain one, one that wraps it, and a method."""

    def plain(a: int, b: float = 2.0, *, equal_nan: bool = True) -> None:
        return None

    @functools.wraps(plain)
    def wrapped(*given: Any, **named: Any) -> None:
        return None

    return {'plain': plain, 'wrapped': wrapped, 'method': Scales().scaled}


def other(c: float = 7.0) -> None:
    return None


def code_of(x: Any, function: Any) -> Any:
    signature = inspect.signature(function)
    for number, parameter in enumerate(signature.parameters.values()):
        x = x * (number + 2 + len(parameter.name))
        if parameter.default is not inspect.Parameter.empty:
            x = x * (3 + float(parameter.default))
        if parameter.annotation == 'float' or parameter.annotation is float:
            x = x * 5
    return x


CHANGES: list[Callable[[dict[str, Any]], None]] = [
    lambda made: setattr(made['plain'], '__defaults__', (5.0,)),
    lambda made: setattr(made['plain'], '__kwdefaults__', {'equal_nan': False}),
    lambda made: made['plain'].__kwdefaults__.update(equal_nan=4),
    lambda made: made['plain'].__annotations__.update(a='float'),
    lambda made: setattr(made['plain'], '__code__', other.__code__),
    lambda made: setattr(made['plain'], '__signature__', inspect.signature(other)),
    lambda made: setattr(made['plain'], '__wrapped__', other),
    lambda made: setattr(made['wrapped'], '__wrapped__', other),
    lambda made: made['wrapped'].__dict__.pop('__wrapped__'),
    lambda made: made.update(plain=other, method=made['plain'], wrapped=other),
]


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


@pytest.mark.parametrize('kind', ['plain', 'wrapped', 'method'])
def test_what_a_signature_says_counts(cp: Any, kind: str) -> None:
    for number, change in enumerate(CHANGES):
        made = make()
        fn = ck.graphed(lambda x, made=made: code_of(x, made[kind]))
        for _ in range(4):
            assert fn(cp.ones(1)).get().tolist() == code_of(cp.ones(1), made[kind]).get().tolist()
        assert launches(fn) >= 2
        change(made)
        for _ in range(3):
            assert fn(cp.ones(1)).get().tolist() == code_of(cp.ones(1), made[kind]).get().tolist(), number


def test_signatures_of_several_functions(cp: Any) -> None:
    made = make()
    fn = ck.graphed(lambda x: code_of(code_of(x, other), made['plain']))
    for default in (2.0, 2.0, 2.0, 5.0, 5.0, 6.0):
        made['plain'].__defaults__ = (default,)
        expected = code_of(code_of(cp.ones(1), other), made['plain'])
        assert fn(cp.ones(1)).get().tolist() == expected.get().tolist()
    assert launches(fn) >= 2


class Called:
    def __call__(self, d: float = 3.0) -> None:
        return None


class Answers:
    """Says its signature anew each time."""

    count = 0

    @property
    def __signature__(self) -> inspect.Signature:
        Answers.count += 1
        names = [f'a{number}' for number in range(Answers.count)]
        return inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])

    def __call__(self) -> None:
        return None


@pytest.mark.parametrize('given', [Called(), Called, functools.partial(other, 2.0), len, Answers()], ids=type)
def test_signatures_of_other_things_are_eager(cp: Any, given: Any) -> None:
    made = make()
    for function in (given, made['wrapped']):
        made['wrapped'].__wrapped__ = given
        fn = ck.graphed(lambda x, function=function: code_of(x, function))
        for _ in range(3):
            Answers.count = 2
            found = fn(cp.ones(1)).get().tolist()
            Answers.count = 2
            assert found == code_of(cp.ones(1), function).get().tolist()
        assert launches(fn) == 0
