"""What a function sets to what it is anyway: if somebody changes it between the calls, the next call sets it again."""

from __future__ import annotations

import functools
import logging
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import capturekit as ck

#: What a function sets, what somebody changes before the sixth call, and what tells the caller of it after each call.
Made = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


@pytest.fixture(autouse=True)
def as_it_was(sim: Any) -> Iterator[None]:
    state, numpys = random.getstate(), np.random.get_state()
    yield
    random.setstate(state)
    np.random.set_state(numpys)
    logging.disable(logging.NOTSET)
    logging.addLevelName(33, 'Level 33')
    logging.captureWarnings(False)
    sim.get_default_memory_pool().set_limit(size=0)
    sim._core.set_compute_type(np.dtype('f4'), 0)
    np.polynomial.set_default_printstyle('unicode')
    np.ma.masked_print_option.set_display('--')
    np.ma.masked_print_option.enable()


def outcome(cp: Any, made: Made, over: Callable[[Any], Any]) -> tuple[list[Any], int]:
    """What the caller finds after each of ten calls, and how many of these were launched."""
    sets, changes, tells = made

    def function(x: Any) -> Any:
        sets()
        return x * 2

    fn, found = over(function), []
    for number in range(10):
        if number == 5:
            changes()
        found.append((fn(cp.ones(3)).get().tolist(), tells()))
    return found, sum(variant.launches for variant in getattr(fn, 'variants', ()))


def pythons_own(_cp: Any) -> Made:
    return lambda: random.seed(0), random.random, random.getstate


def numpys_own(_cp: Any) -> Made:
    return lambda: np.random.seed(0), np.random.rand, lambda: np.random.get_state()[1:3]


def under_another_name(_cp: Any) -> Made:
    again = np.random.seed
    return lambda: again(0), np.random.rand, lambda: np.random.get_state()[1:3]


def of_an_object(_cp: Any) -> Made:
    drawn = random.Random(0)
    return lambda: drawn.seed(0), drawn.random, drawn.getstate


def begun_again(_cp: Any) -> Made:
    drawn = random.Random(0)
    again = random.Random.__init__
    return lambda: again(drawn, 0), drawn.random, drawn.getstate


def in_a_partial(_cp: Any) -> Made:
    drawn = np.random.RandomState(0)
    again = functools.partial(drawn.seed, 0)
    return lambda: again(), drawn.rand, lambda: drawn.get_state()[1:3]


def a_kept_state(_cp: Any) -> Made:
    drawn = random.Random(0)
    kept = drawn.getstate()
    return lambda: drawn.setstate(kept), drawn.random, drawn.getstate


def a_kept_state_of_numpys(_cp: Any) -> Made:
    drawn = np.random.RandomState(0)
    kept = drawn.get_state()
    return lambda: drawn.set_state(kept), drawn.rand, lambda: drawn.get_state()[1:3]


GENERATORS = [
    pythons_own, numpys_own, under_another_name, of_an_object, begun_again, in_a_partial, a_kept_state,
    a_kept_state_of_numpys,
]  # fmt: skip


def plainly(found: Any) -> Any:
    """The same with lists in the place of arrays, so that it can be compared."""
    return [(values, repr(told)) for values, told in found]


@pytest.mark.parametrize('make', GENERATORS)
def test_a_generator_is_seeded_after_others_drew(cp: Any, make: Callable[[Any], Made]) -> None:
    made = make(cp)
    made[0]()
    wanted, _ = outcome(cp, made, lambda fn: fn)
    found, launches = outcome(cp, made, ck.graphed)
    assert plainly(found) == plainly(wanted)
    assert launches == 8  # the first and the sixth call are eager


def seed_everything(cp: Any, seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    cp.random.seed(seed)


def test_a_function_that_seeds_everything(cp: Any) -> None:
    def function(x: Any) -> Any:
        seed_everything(cp, 7)
        return x + cp.random.random_sample(3)

    found = []
    overs: list[Callable[[Any], Any]] = [lambda fn: fn, ck.graphed]
    for over in overs:
        fn, told = over(function), []
        seed_everything(cp, 7)
        for number in range(9):
            told.append(fn(cp.zeros(3)).get().tolist())
            if number > 4:
                told.append([random.random(), float(np.random.rand()), *cp.random.random_sample(1).get().tolist()])
        found.append(told)
    assert found[0] == found[1]
    assert sum(variant.launches for variant in fn.variants) == 5  # until somebody draws


def all_messages(_cp: Any) -> Made:
    return lambda: logging.disable(0), lambda: logging.disable(20), lambda: logging.root.manager.disable


def a_level(_cp: Any) -> Made:
    logging.addLevelName(33, 'LOUD')
    named = lambda name: lambda: logging.addLevelName(33, name)  # noqa: E731
    return named('LOUD'), named('MILD'), lambda: logging.getLevelName(33)


def warnings_as_messages(_cp: Any) -> Made:
    shown = warnings.showwarning
    off, on = lambda: logging.captureWarnings(False), lambda: logging.captureWarnings(True)
    return off, on, lambda: warnings.showwarning is shown


def cupys_generator(cp: Any) -> Made:
    mine, other = cp.random.RandomState(1), cp.random.RandomState(2)
    cp.random.set_random_state(mine)
    current = lambda: cp.random.get_random_state() is mine  # noqa: E731
    return lambda: cp.random.set_random_state(mine), lambda: cp.random.set_random_state(other), current


def a_pool(cp: Any) -> Made:
    pool = cp.get_default_memory_pool()
    pool.set_limit(size=1 << 30)
    return lambda: pool.set_limit(size=1 << 30), lambda: pool.set_limit(size=1 << 29), pool.get_limit


def types_of_products(cp: Any) -> Made:
    core, kind = cp._core, np.dtype('f4')
    return (
        lambda: core.set_compute_type(kind, 0), lambda: core.set_compute_type(kind, 1),
        lambda: core.get_compute_type(kind),
    )  # fmt: skip


def texts_of_polynomials(_cp: Any) -> Made:
    style = np.polynomial.set_default_printstyle
    return lambda: style('unicode'), lambda: style('ascii'), lambda: str(np.polynomial.Polynomial([1, 2]))


SETTINGS = [
    types_of_products, texts_of_polynomials, all_messages, a_level, warnings_as_messages, cupys_generator, a_pool,
]  # fmt: skip


@pytest.mark.parametrize('make', SETTINGS)
def test_a_setting_is_made_at_each_call(cp: Any, make: Callable[[Any], Made]) -> None:
    made = make(cp)
    wanted, _ = outcome(cp, made, lambda fn: fn)
    found, launches = outcome(cp, made, ck.graphed)
    assert found == wanted
    assert launches == 0


def print_polynomials() -> tuple[Callable[[], str], list[Callable[[], None]]]:
    style, line = np.polynomial.set_default_printstyle, np.polynomial.Polynomial([1, 2])
    return lambda: f'{line}', [lambda: style('ascii'), lambda: style('unicode')]


def print_masked() -> tuple[Callable[[], str], list[Callable[[], None]]]:
    option, values = np.ma.masked_print_option, np.ma.array([1.0, 2.0], mask=[0, 1])
    return lambda: str(values), [lambda: option.set_display('?'), lambda: option.enable(0)]


@pytest.mark.parametrize('make', [print_polynomials, print_masked])
def test_options_of_texts_are_compared(cp: Any, make: Callable[[], Any]) -> None:
    text, changes = make()
    fn = ck.graphed(lambda x: (x * 2, text()))
    for change in (lambda: None, *changes):
        change()
        for _ in range(3):
            assert fn(cp.ones(3))[1] == text()
    assert sum(variant.launches for variant in fn.variants) > 3
