"""What seldom changes in place, and names that a library does not have until the user gives them to it."""

from __future__ import annotations

import collections.abc
import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import logging
import math
import pathlib
import statistics
import struct
import textwrap
import time
import types
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from tests.functions.test_library_state import put

MATH: Any = math
JSON: Any = json
DEDENT: Any = textwrap.dedent
FIELDS: Any = np.dtype([('a', 'f8'), ('b', 'f8')])
KEYED: Any = {np.dtype([('a', 'f8')]): 1}
KEY: Any = next(iter(KEYED))
ID: Any = uuid.UUID(int=5)
LAYOUT: Any = struct.Struct('d')
LOG: Any = logging.getLogger('tests of what changes in place')
TABLE = {'rate': 2.0}
RATES: Any = defaultdict(functools.partial(TABLE.get, 'rate'))
NAME = 'zz_' + 'rate'


class Rated:
    __rate__ = 2.0

    @property
    def rate(self) -> float:
        return 2.0

    @staticmethod
    def fixed() -> float:
        return 2.0


class Made:
    rate = 2.0


OBJECTS: Any = defaultdict(Made)


@dataclasses.dataclass
class Pair:
    a: float = 2.0
    b: float = 3.0


class Sized:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> float:
        return [2.0][number]


OWN: Any = types.ModuleType('of_the_user')
OWN.__dict__['rate'] = 2.0


class Other(types.ModuleType):
    @property
    def rate(self) -> float:
        return 3.0


@contextlib.contextmanager
def begun_again(thing: Any, before: tuple[Any, ...], *now: Any) -> Any:
    thing.__init__(*now)
    try:
        yield
    finally:
        thing.__init__(*before)


@contextlib.contextmanager
def set_to(thing: Any, name: str, value: Any, change: Callable[..., None] = setattr) -> Any:
    before = getattr(thing, name)
    change(thing, name, value)
    try:
        yield
    finally:
        change(thing, name, before)


def taken(table: Any) -> float:
    value = table['new']
    del table['new']
    return float(getattr(value, 'rate', value))


def caught() -> float:
    try:
        return float(MATH.zz_rate)
    except AttributeError:
        return 2.0


def suppressed() -> float:
    with contextlib.suppress(AttributeError):
        return float(MATH.zz_rate)
    return 2.0


def imported() -> float:
    try:
        from math import zz_rate  # type: ignore[attr-defined]
    except ImportError:
        return 2.0
    return float(zz_rate)


def of_fields() -> float:
    return float(sum(getattr(Pair, field.name) for field in dataclasses.fields(Pair)))


def copied() -> float:
    return float(copy.deepcopy(Made()).rate)


def another_object() -> types.SimpleNamespace:
    return types.SimpleNamespace(rate=3.0)


Case = tuple[Callable[[], float], Callable[[], Any]]
CASES: dict[str, Case] = {
    'names of fields': (lambda: len(FIELDS.names[0]), lambda: set_to(FIELDS, 'names', ('abc', 'b'))),
    'names of fields of a key': (lambda: len(next(iter(KEYED)).names[0]), lambda: set_to(KEY, 'names', ('abc',))),
    'a number of an identifier': (lambda: ID.int, lambda: set_to(ID, 'int', 7, object.__setattr__)),
    'a static method': (lambda: Rated.fixed(), lambda: begun_again(
        vars(Rated)['fixed'], (vars(Rated)['fixed'].__func__,), lambda: 3.0)),
    'a property': (lambda: getattr(Rated(), 'rate'), lambda: begun_again(  # noqa: B009
        vars(Rated)['rate'], (vars(Rated)['rate'].fget,), lambda self: 3.0)),
    'a factory that is bound': (lambda: taken(RATES), lambda: put(TABLE, 'rate', 3.0)),
    'a class as a factory': (lambda: taken(OBJECTS), lambda: put(Made, 'rate', 3.0)),
    'a name that is asked for': (lambda: getattr(MATH, 'zz_rate', 2.0), lambda: put(MATH, 'zz_rate', 3.0)),
    'a name that is caught': (caught, lambda: put(MATH, 'zz_rate', 3.0)),
    'a name that is suppressed': (suppressed, lambda: put(MATH, 'zz_rate', 3.0)),
    'a name that is imported': (imported, lambda: put(MATH, 'zz_rate', 3.0)),
    'a name in a dictionary': (lambda: vars(MATH).get('zz_rate', 2.0), lambda: put(MATH, 'zz_rate', 3.0)),
    'a computed name': (lambda: getattr(MATH, NAME, 2.0), lambda: put(MATH, NAME, 3.0)),
    'a name of a function': (lambda: getattr(DEDENT, 'zz_rate', 2.0), lambda: put(DEDENT, 'zz_rate', 3.0)),
    'a computed name of a class': (
        lambda: getattr(JSON.JSONEncoder, NAME, 2.0), lambda: put(JSON.JSONEncoder, NAME, 3.0)),
    'a list of a class': (lambda: len(JSON.JSONEncoder.zz_list), lambda: put(JSON.JSONEncoder.zz_list, 0, [])),
    'a name with underscores': (lambda: getattr(Rated, '__' + 'rate__'), lambda: put(Rated, '__rate__', 3.0)),
    'fields of a dataclass': (of_fields, lambda: put(Pair.__dataclass_fields__, 'b', Pair.__dataclass_fields__['a'])),
    'handlers of a logger': (lambda: len(LOG.handlers), lambda: put(LOG, 'handlers', [logging.NullHandler()])),
    'defaults of a function of Python': (
        lambda: statistics.fmean([1.0, 3.0]), lambda: set_to(statistics.fmean, '__defaults__', ([0.0, 1.0],))),
    'how an object is copied': (
        copied, lambda: put(copy._deepcopy_dispatch, Made, lambda one, memo: another_object())),
    'the class of a module': (lambda: OWN.rate, lambda: set_to(OWN, '__class__', Other)),
}  # fmt: skip
JSON.JSONEncoder.zz_list = {1: []}


@pytest.mark.parametrize('name', CASES)
def test_what_changes_in_place_is_seen(cp: Any, name: str) -> None:
    rate, changed = CASES[name]

    def fn(x: Any) -> Any:
        return x * rate()

    graphed = ck.graphed(fn)
    plain = fn(cp.ones(2)).get().tolist()
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == plain
    assert sum(variant.launches for variant in graphed.variants) > 0
    with changed():
        other = fn(cp.ones(2)).get().tolist()
        for _ in range(3):
            assert graphed(cp.ones(2)).get().tolist() == other != plain
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == plain


def test_the_size_of_a_layout_is_seen(cp: Any) -> None:
    graphed = ck.graphed(lambda x: x * LAYOUT.size)
    for _ in range(3):
        assert graphed(cp.ones(1)).get().tolist() == [8.0]
    with begun_again(LAYOUT, ('d',), 'i'):
        assert graphed(cp.ones(1)).get().tolist() == [LAYOUT.size]


def test_an_argument_whose_fields_get_other_names(cp: Any) -> None:
    graphed = ck.graphed(lambda x, kind: x * len(kind.names[0]))
    for _ in range(3):
        assert graphed(cp.ones(1), FIELDS).get().tolist() == [1.0]
    with set_to(FIELDS, 'names', ('abc', 'b')):
        assert graphed(cp.ones(1), FIELDS).get().tolist() == [3.0]
    assert len(graphed.variants) == 2


def test_the_function_of_a_vectorised_function_is_seen(cp: Any) -> None:
    vector = cp.vectorize(lambda a: a * 2.0)
    graphed = ck.graphed(lambda x: vector(x))
    for _ in range(3):
        assert graphed(cp.ones(2)).get().tolist() == [2.0] * 2
    vector.pyfunc = lambda a: a * 3.0
    assert graphed(cp.ones(2)).get().tolist() == vector(cp.ones(2)).get().tolist()


def test_a_class_that_is_registered_as_a_sequence(cp: Any) -> None:
    class One(Sized):
        pass

    def fn(x: Any, one: Any) -> Any:
        match one:
            case [rate]:
                return x * rate
            case _:
                return x

    graphed, one = ck.graphed(fn), One()
    for _ in range(3):
        assert graphed(cp.ones(2), one).get().tolist() == [1.0] * 2
    collections.abc.Sequence.register(One)
    assert graphed(cp.ones(2), one).get().tolist() == fn(cp.ones(2), one).get().tolist() == [2.0] * 2


def test_answers_that_cupy_remembers_are_seen(sim: Any) -> None:
    @sim.memoize()
    def rate() -> float:
        return TABLE['rate']

    graphed = ck.graphed(lambda x: x * rate())
    for _ in range(4):
        assert graphed(sim.ones(2)).get().tolist() == [2.0] * 2
    with put(TABLE, 'rate', 3.0):
        assert graphed(sim.ones(2)).get().tolist() == [2.0] * 2
        sim.clear_memo()
        assert graphed(sim.ones(2)).get().tolist() == [3.0] * 2
    sim.clear_memo()


@pytest.mark.filterwarnings('ignore:cupyx.allow_synchronize')
def test_a_read_where_cupy_may_not_wait(sim: Any) -> None:
    import cupyx

    graphed = ck.graphed(lambda x: x * float(x[0]))
    for _ in range(3):
        graphed(sim.ones(2))
    with cupyx.allow_synchronize(False), pytest.raises(RuntimeError, match='synchronization'):
        graphed(sim.ones(2))
    assert graphed(sim.ones(2)).get().tolist() == [1.0] * 2


class Shown:
    """Shows NumPy memory that may change."""

    def __init__(self, array: Any) -> None:
        self.__array_interface__ = array.__array_interface__


class ShownByItsClass:
    pass


NUMBERS = np.array([2.0])
ShownByItsClass.__array_interface__ = NUMBERS.__array_interface__  # type: ignore[attr-defined]


@pytest.mark.parametrize('shown', [Shown(NUMBERS), ShownByItsClass()])
def test_memory_that_numpy_finds_by_its_address_is_eager(cp: Any, shown: Any) -> None:
    graphed = ck.graphed(lambda x: x * float(np.asarray(shown)[0]))
    for number in (2.0, 2.0, 2.0, 3.0):
        NUMBERS[0] = number
        assert graphed(cp.ones(1)).get().tolist() == [number]
    assert 'what NumPy reads there is not known' in graphed.variants[0].reason


@pytest.mark.parametrize(
    'clock',
    [
        lambda: defaultdict(time.perf_counter)['now'],
        lambda: sum(itertools.starmap(getattr(time, 'perf_' + 'counter'), [()])),
        lambda: sum(itertools.starmap(vars(time)['perf_' + 'counter'], [()])),
    ],
)
def test_a_clock_out_of_sight_is_eager(cp: Any, clock: Callable[[], float]) -> None:
    graphed = ck.graphed(lambda x: x * clock())
    for _ in range(3):
        graphed(cp.ones(1))
    assert {variant.state for variant in graphed.variants} == {'eager'}


def test_files_that_scipy_reads_are_eager(cp: Any, tmp_path: pathlib.Path) -> None:
    io = pytest.importorskip('scipy.io')
    file = str(tmp_path / 'a.mat')
    graphed = ck.graphed(lambda x: x * float(io.loadmat(file)['a'].sum()))
    for number in (2.0, 2.0, 2.0, 3.0):
        io.savemat(file, {'a': np.full((1, 1), number)})
        assert graphed(cp.ones(1)).get().tolist() == [number]


def test_scipys_handling_of_errors_is_compared(cp: Any) -> None:
    special = pytest.importorskip('scipy.special')
    graphed = ck.graphed(lambda x: x * float(special.loggamma(3.0)))
    for _ in range(3):
        graphed(cp.ones(1))
    assert sum(variant.launches for variant in graphed.variants) > 0
    with special.errstate(all='raise'):
        graphed(cp.ones(1))
    assert len(graphed.variants) == 2
