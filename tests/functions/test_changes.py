"""What a function reads in ways that are easily forgotten, changed between calls: the next call sees it."""

from __future__ import annotations

import collections
import copy
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck

#: A function of an array, and what changes its answer.
Made = tuple[Callable[[Any], Any], Callable[[], object]]


def the_factory_of_a_copied_dict() -> Made:
    rates: Any = collections.defaultdict(lambda: 2.0)
    return lambda x: x * copy.copy(rates)['any'], lambda: setattr(rates, 'default_factory', lambda: 3.0)


def the_order_of_a_class_pattern() -> Made:
    class Pair:
        __match_args__: tuple[str, ...] = ('one', 'other')
        one, other = 2.0, 3.0

    pair = Pair()

    def fn(x: Any) -> Any:
        match pair:
            case Pair(rate):
                return x * rate

    return fn, lambda: setattr(Pair, '__match_args__', ('other', 'one'))


def what_a_module_answers() -> Made:
    module: Any = types.ModuleType('rates')
    module.__getattr__ = lambda name: 2.0
    return lambda x: x * module.rate, lambda: setattr(module, '__getattr__', lambda name: 3.0)


def what_a_module_answers_from_now_on() -> Made:
    module: Any = types.ModuleType('rates')
    return (
        lambda x: x * (module.rate if hasattr(module, 'rate') else 2.0),
        lambda: setattr(module, '__getattr__', lambda name: 3.0),
    )


def the_state_of_a_generator() -> Made:
    dice = random.Random(3)
    return lambda x: x * (dice.getstate()[1][0] % 97), dice.random


def a_copy_of_a_generator() -> Made:
    dice = random.Random(3)
    return lambda x: x * copy.deepcopy(dice).random(), dice.random


def the_state_of_numpys_generator() -> Made:
    dice = np.random.RandomState(3)
    return lambda x: x * (2.0 if dice.get_state()[2] > 623 else 3.0), dice.rand


def whether_a_numpy_array_may_be_written() -> Made:
    held = np.zeros(2)
    return lambda x: x * (2.0 if held.flags.writeable else 3.0), lambda: held.setflags(write=False)


@pytest.mark.parametrize(
    'make',
    [
        the_factory_of_a_copied_dict,
        the_order_of_a_class_pattern,
        what_a_module_answers,
        what_a_module_answers_from_now_on,
        the_state_of_a_generator,
        a_copy_of_a_generator,
        the_state_of_numpys_generator,
        whether_a_numpy_array_may_be_written,
    ],
)
def test_the_next_call_sees_it(sim: Any, make: Callable[[], Made]) -> None:
    plain, change = make()
    graphed = ck.graphed(plain)
    x = sim.ones(2)
    for _ in range(4):
        assert graphed(x).get().tolist() == plain(x).get().tolist()
    before = plain(x).get().tolist()
    change()
    assert plain(x).get().tolist() != before
    for _ in range(3):
        assert graphed(x).get().tolist() == plain(x).get().tolist()


def test_generators_that_a_generator_gives_are_new_ones(sim: Any) -> None:
    dice, twin = np.random.default_rng(3), np.random.default_rng(3)
    graphed = ck.graphed(lambda x: x * dice.spawn(1)[0].random())
    for _ in range(4):
        assert graphed(sim.ones(1)).get().tolist() == [twin.spawn(1)[0].random()]


def test_no_code_of_an_object_is_asked(sim: Any) -> None:
    rates = {'rate': 2.0}

    class Rates:
        def __getattribute__(self, name: str) -> float:
            return rates[name]  # a KeyError for every other name

    def make() -> Callable[[Any], Any]:
        held = Rates()
        return lambda x: x * held.rate

    graphed = ck.graphed(make())
    for _ in range(4):
        assert graphed(sim.ones(1)).get().tolist() == [2.0]
    rates['rate'] = 3.0
    assert graphed(sim.ones(1)).get().tolist() == [3.0]


def test_no_code_of_a_metaclass_is_asked(sim: Any) -> None:
    class Meta(type):
        def __getattr__(cls, name: str) -> float:
            return 2.0

    class Rates(metaclass=Meta):
        def __init__(self) -> None:
            self.own = 3.0

    rates = Rates()
    graphed = ck.graphed(lambda x: (x * rates.own * Rates.any, rates))
    for _ in range(4):
        found, given = graphed(sim.ones(1))
        assert found.get().tolist() == [6.0] and given is rates
