"""What makes no event: functions written in C that C calls for the code, and calls of classes written in C."""

from __future__ import annotations

import collections
import datetime
import decimal
import functools
import io
import itertools
import operator
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.understood import makes_unknown

DAY = datetime.datetime(2020, 1, 1)
#: Seconds from 1970 to that day, in Greenwich.
THERE = 1577836800
STAMPED = functools.partial(datetime.datetime.timestamp, DAY)
STAMPS = [datetime.datetime.timestamp]
CALLS: dict[str, Callable[[], float]] = {
    'a method of a class': lambda: next(map(datetime.datetime.timestamp, [DAY])),
    'a method of an object': lambda: next(iter(DAY.timestamp, None)),
    'a method by its name': lambda: operator.methodcaller('timestamp')(DAY),
    'a method by a name that is put together': lambda: next(map(getattr(datetime.datetime, 'time' + 'stamp'), [DAY])),
    'a method out of a dictionary': lambda: next(map(vars(datetime.datetime)['timestamp'], [DAY])),
    'a method in a partial': lambda: STAMPED(),
    'a method in a list': lambda: next(map(STAMPS[0], [DAY])),
    'the class of an object': lambda: next(map(DAY.__class__.timestamp, [DAY])),
}


@pytest.fixture
def zones() -> Iterator[Callable[[str], None]]:
    """Sets the time zone."""
    before = os.environ.get('TZ')

    def put(zone: str | None) -> None:
        os.environ.pop('TZ', None)
        if zone is not None:
            os.environ['TZ'] = zone
        time.tzset()

    put('UTC')
    yield put
    put(before)


@pytest.mark.parametrize('name', CALLS)
def test_what_a_method_reads_is_not_taken_for_constant(cp: Any, zones: Any, name: str) -> None:
    fn = ck.graphed(lambda x: x * (CALLS[name]() - THERE + 1))
    for number in range(8):
        if number == 4:
            zones('EST5')
        assert fn(cp.ones(2)).get().tolist() == [CALLS[name]() - THERE + 1] * 2
    assert CALLS[name]() - THERE == 5 * 3600


class Base:
    """Has a subclass."""


class First(Base):
    """A subclass."""


def in_a_branch(x: Any) -> Any:
    return x * len(Base.__subclasses__()) if x.shape[0] > 100 else x + 1


def test_code_that_does_not_run_does_not_count(cp: Any) -> None:
    fn = ck.graphed(in_a_branch)
    for _ in range(4):
        assert fn(cp.ones(2)).get().tolist() == [2, 2]
    assert [variant.launches for variant in fn.variants] == [3]


@pytest.mark.parametrize('hands_on', [False, True])
def test_a_subclass_that_comes_later_is_seen(cp: Any, hands_on: bool) -> None:
    classes = [type('Top', (), {})]
    top = classes[0]
    classes.append(type('Second', (top,), {}))

    def fn(x: Any) -> Any:
        found = next(map(type.__subclasses__, [top])) if hands_on else top.__subclasses__()
        return x * len(found)

    graphed = ck.graphed(fn)
    for _ in range(3):
        assert graphed(cp.ones(1)).get() == 1
    classes.append(type('Third', (top,), {}))
    assert graphed(cp.ones(1)).get() == 2


MAIN = get_ident()
THREADS: dict[str, Callable[[], bool]] = {
    'by its name': lambda: get_ident() == MAIN,
    'in a module': lambda: threading.get_ident() == MAIN,
    'handed on': lambda: next(iter(get_ident, None)) == MAIN,
    'as a key': lambda: {MAIN: True}.get(get_ident(), False),
}


@pytest.mark.parametrize('name', THREADS)
def test_which_thread_calls_is_compared(cp: Any, name: str) -> None:
    fn = ck.graphed(lambda x: x * (2 if THREADS[name]() else 5))
    found: list[float] = []

    def call() -> None:
        found.append(float(fn(cp.ones(1))[0]))

    for number in range(10):
        if number % 2:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
        else:
            call()
    assert found == [2.0, 5.0] * 5
    assert sum(variant.launches for variant in fn.variants) >= 3, fn.variants[-1].reason


def test_chains_of_what_is_compared_are_understood(cp: Any) -> None:
    parts = [[1.0, 2.0], [3.0]]
    fn = ck.graphed(lambda x: x * sum(itertools.chain.from_iterable(parts)))
    for number in range(8):
        if number == 4:
            parts[1][0] = 4.0
        assert np.array_equal(fn(cp.ones(2)).get(), [sum(map(sum, parts))] * 2)
    assert sum(variant.launches for variant in fn.variants) >= 4, fn.variants[-1].reason


MADE: dict[str, Callable[[str], Any]] = {
    'by its name': lambda path: next(io.FileIO(path)),
    'by another name': lambda path: next(OPENED[0](path)),
    'by a derived class': lambda path: next(Derived(path)),
    'handed on': lambda path: next(next(map(io.FileIO, [path]))),
    'by a partial': lambda path: next(functools.partial(io.FileIO, path)()),
    'around another': lambda path: next(io.TextIOWrapper(io.BufferedReader(io.FileIO(path)))),
    'imported at the call': lambda path: imported(path),
    'by a name that is put together': lambda path: next(getattr(io, 'File' + 'IO')(path)),
}


class Derived(io.FileIO):
    """A class of Python's that is derived from one that is written in C."""


def imported(path: str) -> Any:
    from io import FileIO as Opened

    return next(Opened(path))


OPENED = [io.FileIO]


@pytest.mark.filterwarnings('ignore:unclosed file:ResourceWarning')
@pytest.mark.parametrize('name', MADE)
def test_what_objects_of_classes_in_c_read_is_not_known(cp: Any, tmp_path: Path, name: str) -> None:
    """Python tells nobody that such a class is called, nor that its object is iterated over."""
    path = tmp_path / 'factor'
    fn = ck.graphed(lambda x: x * int(MADE[name](str(path))))
    for number in (2, 2, 2, 2, 3, 3):
        path.write_text(str(number))
        assert fn(cp.ones(1)).get() == number
    before = ('what its objects read is not known', 'calls io.__getattr__')  # Python 3.11 asks that for an import
    assert any(words in fn.variants[-1].reason for words in before)


def test_a_class_that_types_are_compared_with_is_not_called(cp: Any) -> None:
    def fn(x: Any) -> Any:
        return x * (2 if isinstance(x, io.FileIO) or issubclass(type(x), io.FileIO) else 3)

    fn(cp.ones(1))  # the first run in a process may fill caches, and is then followed once more
    graphed = ck.graphed(fn)
    for _ in range(4):
        assert graphed(cp.ones(1)).get() == 3
    assert [variant.launches for variant in graphed.variants] == [3]


@pytest.mark.parametrize('cls', [datetime.datetime, collections.OrderedDict, decimal.Decimal, np.ndarray, io.BytesIO])
def test_classes_in_c_that_read_only_what_they_are_given(cls: type) -> None:
    assert makes_unknown(cls) == '' == makes_unknown(type('Derived', (cls,), {}))


def test_random_numbers_have_a_seed_of_their_own() -> None:
    assert makes_unknown(random.Random) == ''
    assert makes_unknown(random.Random.__base__) == '_random.Random'
