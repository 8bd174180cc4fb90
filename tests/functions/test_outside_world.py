"""What tells of the outside world is not kept in a recording: where it changes between calls, the call sees it."""

from __future__ import annotations

import collections
import datetime
import functools
import io
import itertools
import linecache
import logging
import operator
import os
import random
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.handed_on import _LOADS, _hands_on

#: A function of an array, and what changes the world for its n-th call.
World = tuple[Callable[[Any], Any], Callable[[int], Any]]


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    options = np.get_printoptions()
    level, zone = logging.getLogger('capturekit.tests.world').level, os.environ.get('TZ', '')
    monkeypatch.setattr(sys, 'stdin', sys.stdin)
    monkeypatch.setenv('CAPTUREKIT_TEST_WORLD', '1')
    yield
    np.set_printoptions(**options)  # type: ignore[arg-type]
    logging.getLogger('capturekit.tests.world').setLevel(level)
    logging.disable(logging.NOTSET)
    linecache.clearcache()
    os.environ['TZ'] = zone
    if not zone:
        del os.environ['TZ']
    time.tzset()


def of_a_file(read: Callable[[Path], Any]) -> Callable[[Path], World]:
    """A number that is read from a file, which is written anew for each call."""

    def make(folder: Path) -> World:
        path = folder / 'number'
        return lambda x: x * float(read(path)), lambda n: path.write_text(f'{n}')

    return make


def _linecache(path: Path) -> str:
    linecache.checkcache(str(path))
    return linecache.getline(str(path), 1)


def _os_read(path: Path) -> bytes:
    number = os.open(path, os.O_RDONLY)
    try:
        return os.read(number, 9)
    finally:
        os.close(number)


def _opened(path: Path) -> str:
    with open(path) as file:
        return file.read()


def _memory_map(path: Path) -> float:
    return float(np.memmap(path.with_suffix('.numbers'), 'f8', 'r')[0])


def _open_memmap(path: Path) -> float:
    return float(np.lib.format.open_memmap(path.with_suffix('.npy'), 'r')[0])


FILES: dict[str, Callable[[Path], Any]] = {
    'open': _opened,
    'read_text': lambda path: path.read_text(),
    'read_bytes': lambda path: path.read_bytes(),
    'os.read': _os_read,
    'linecache': _linecache,
    'loadtxt': np.loadtxt,
    'eval': lambda path: eval(path.read_text()),
    'subprocess': lambda path: subprocess.run(['cat', path], capture_output=True, check=True).stdout,
}


@pytest.mark.parametrize('how', FILES)
def test_numbers_in_files(cp: Any, how: str, tmp_path: Path) -> None:
    fn, change = of_a_file(FILES[how])(tmp_path)
    sees_each_change(cp, fn, change)


def test_mapped_files(cp: Any, tmp_path: Path) -> None:
    path = tmp_path / 'number'
    sees_each_change(
        cp, lambda x: x * _memory_map(path), lambda n: np.full(1, float(n)).tofile(path.with_suffix('.numbers'))
    )
    sees_each_change(
        cp, lambda x: x * _open_memmap(path), lambda n: np.save(path.with_suffix('.npy'), np.full(1, float(n)))
    )


def of_a_directory(folder: Path) -> World:
    return lambda x: x * len(os.listdir(folder)), lambda n: (folder / f'{n}').touch()


def of_an_existing_file(folder: Path) -> World:
    path = folder / 'flag'
    return lambda x: x * (path.exists() + 1), lambda n: path.touch() if n % 2 else path.unlink(missing_ok=True)


def of_a_size(folder: Path) -> World:
    path = folder / 'size'
    return lambda x: x * os.stat(path).st_size, lambda n: path.write_bytes(bytes(n))


def of_the_environment(folder: Path) -> World:
    name = 'CAPTUREKIT_TEST_WORLD'
    return lambda x: x * float(os.environ.get(name, '0')), lambda n: os.environ.__setitem__(name, str(n))


def of_standard_input(folder: Path) -> World:
    return lambda x: x * int(sys.stdin.readline()), lambda n: setattr(sys, 'stdin', io.StringIO(f'{n}\n{n}\n'))


def of_text_in_memory(folder: Path) -> World:
    held = io.StringIO('1')

    def read(x: Any) -> Any:
        held.seek(0)
        return x * int(held.read())

    def change(n: int) -> None:
        held.seek(0)
        held.write(f'{n}')

    return read, change


def of_bytes_in_memory(folder: Path) -> World:
    held = io.BytesIO()
    return lambda x: x * len(held.getvalue()), lambda n: held.write(b'1')


def of_a_loggers_level(folder: Path) -> World:
    change = lambda n: logging.getLogger('capturekit.tests.world').setLevel(n)  # noqa: E731
    return lambda x: x * logging.getLogger('capturekit.tests.world').getEffectiveLevel(), change


def of_a_logger_that_is_asked(folder: Path) -> World:
    log = logging.getLogger('capturekit.tests.world')
    return lambda x: x * (2 if log.isEnabledFor(10) else 3), lambda n: log.setLevel(5 if n % 2 else 30)


def of_logging_that_is_off(folder: Path) -> World:
    def read(x: Any) -> Any:
        return x * (2 if logging.getLogger('capturekit.tests.world').isEnabledFor(50) else 3)

    return read, lambda n: logging.disable(60 if n % 2 else 0)


def of_numpys_printing(folder: Path) -> World:
    third = np.array([1 / 3])
    return lambda x: x * len(f'{third}'), lambda n: np.set_printoptions(precision=n)


def _set_zone(n: int) -> None:
    os.environ['TZ'] = f'AAA{n}'
    time.tzset()


def of_the_time_zone(folder: Path) -> World:
    day, texts = datetime.datetime(2020, 1, 1), ['{:%s}'.format]
    return lambda x: x * int(next(map(texts[0], [day]))), _set_zone


def of_the_time_zone_of_a_day(folder: Path) -> World:
    day, text = datetime.date(2020, 1, 1), 'strftime'
    return lambda x: x * int(getattr(day, text)('%s')), lambda n: os.environ.__setitem__('TZ', f'AAA{n}')


def of_a_lock(folder: Path) -> World:
    lock = threading.Lock()

    def read(x: Any) -> Any:
        if lock.acquire(blocking=False):
            lock.release()
            return x * 2
        return x * 3

    return read, lambda n: lock.acquire() if n % 2 else lock.release()


WORLDS = [
    of_a_directory, of_an_existing_file, of_a_size, of_the_environment, of_text_in_memory,
    of_bytes_in_memory, of_a_loggers_level, of_a_logger_that_is_asked, of_logging_that_is_off, of_numpys_printing,
    of_a_lock, of_standard_input, of_the_time_zone, of_the_time_zone_of_a_day,
]  # fmt: skip


@pytest.mark.parametrize('make', WORLDS, ids=lambda make: make.__name__)
def test_a_change_of_the_world_is_seen(cp: Any, make: Callable[[Path], World], tmp_path: Path) -> None:
    sees_each_change(cp, *make(tmp_path))


def sees_each_change(cp: Any, fn: Callable[[Any], Any], change: Callable[[int], Any]) -> None:
    graphed, x = ck.graphed(fn), cp.arange(1.0, 4.0)
    for n in range(1, 8):
        change(n)
        wanted = fn(x).get().tolist()
        assert graphed(x).get().tolist() == wanted, n


# -- what is another value at each call ------------------------------------------------------------------------------


class Clock:
    now = time.perf_counter

    @property
    def time(self) -> float:
        return time.perf_counter()


def _methodcaller() -> Any:
    return operator.methodcaller('perf_counter')(time)


held_partial = functools.partial(time.perf_counter)
held_factory = collections.defaultdict(time.perf_counter)
held_functions = [time.perf_counter]

MOVING: dict[str, Callable[[], Any]] = {
    'perf_counter': time.perf_counter,
    'urandom': lambda: int.from_bytes(os.urandom(6), 'big'),
    'uuid': lambda: uuid.uuid4().int % 1000003,
    'SystemRandom': lambda: random.SystemRandom().random(),
    'a property': lambda: Clock().time,
    'a class attribute': lambda: Clock.now(),
    'a partial': lambda: functools.partial(time.perf_counter)(),
    'a partial of before': lambda: held_partial(),
    'a default': lambda: collections.defaultdict(time.perf_counter)['a'],
    'a default of before': lambda: (held_factory.clear(), held_factory['a'])[1],
    'a list': lambda: held_functions[0](),
    'methodcaller': _methodcaller,
    'iter until': lambda: next(iter(time.perf_counter, None)),
    'starmap': lambda: next(itertools.starmap(time.perf_counter, [()])),
    'accumulate': lambda: [*itertools.accumulate([1, 2], lambda a, b: time.perf_counter())][1],
    'getattr': lambda: getattr(time, 'perf_' + 'counter')(),
    'datetime': lambda: datetime.datetime.now().timestamp() % 1000,
    'generators': lambda: np.random.default_rng().random(),
}


@pytest.mark.parametrize('name', MOVING)
def test_what_moves_by_itself_is_not_kept(cp: Any, name: str) -> None:
    read = MOVING[name]
    graphed, x = ck.graphed(lambda x: x * float(read())), cp.ones(2)
    found = []
    for _ in range(5):
        found.append(graphed(x).get().tolist()[0])
        time.sleep(0.001)
    assert len(set(found)) == 5, [(variant.state, variant.reason) for variant in graphed.variants]


EAGER: dict[str, Callable[[Any], Any]] = {
    'a key': lambda x: x * sorted([[1], [2]], key=id)[0][0],
    'callers': lambda x: x * len(traceback.extract_stack()),
    'an address': lambda x: x * (np.zeros(3).ctypes.data % 7),
    'the time for NumPy': lambda x: x * float(np.datetime64('now').astype('i8') % 7),
    'the time in an array': lambda x: x * float(np.array('today', 'datetime64[D]').astype('i8') % 7),
    'a clock in a list': lambda x: x * len(held_functions),
    'a path that is tried': lambda x: x * len([*filter(os.path.exists, ['/', '/no such folder'])]),
}


@pytest.mark.parametrize('name', EAGER)
def test_what_is_not_known_makes_the_call_eager(cp: Any, name: str) -> None:
    graphed = ck.graphed(EAGER[name])
    for _ in range(4):
        graphed(cp.ones(2))
    (variant,) = graphed.variants
    reason = str(variant.reason)
    assert variant.state == 'eager' and ('not known' in reason or 'not understood' in reason), reason


def _spoken(x: Any) -> Any:
    log = logging.getLogger('capturekit.tests.world')
    log.debug('a message of %s', x.shape)
    return x * sorted([3, 2], key=abs)[0] * len(f'{np.float64(1.5)}')


_lock = threading.Lock()


def _locked(x: Any) -> Any:
    _lock.acquire()
    y = x * 2
    _lock.release()
    return y


RECORDED: dict[str, Callable[[Any], Any]] = {
    'a message': _spoken,
    'a key that is understood': lambda x: x * sorted(['b', 'a'], key=str.lower).index('a'),
    'a sum of attributes': lambda x: x * sum(map(operator.itemgetter(0), [(1,), (2,)])),
    'a function that is tested for': lambda x: x * (2 if hasattr(os, 'fork') else 3),
    'a lock that it waits for': _locked,
}


@pytest.mark.parametrize('name', RECORDED)
def test_what_is_understood_is_recorded(cp: Any, name: str) -> None:
    graphed, x = ck.graphed(RECORDED[name]), cp.arange(3.0)
    for _ in range(5):
        assert graphed(x).get().tolist() == RECORDED[name](x).get().tolist()
    assert sum(variant.launches for variant in graphed.variants) >= 3, graphed.variants[-1].reason


def test_whether_a_function_is_called_at_once() -> None:
    def calls(path: Any) -> Any:
        time.time()
        time.strftime('%H', time.gmtime(0))
        return [os.stat(path, follow_symlinks=True), id(path)]

    def hands_on(path: Any) -> Any:
        clock = time.time
        return clock, [os.stat], sorted(path, key=id)

    assert not any(_hands_on(calls.__code__, name, _LOADS) for name in ('time', 'strftime', 'gmtime', 'id'))
    assert all(_hands_on(hands_on.__code__, name, _LOADS) for name in ('stat', 'id'))
