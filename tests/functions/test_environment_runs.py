"""What belongs to the run that is watched, and what the watch leaves alone."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from capturekit.functions import environment
from capturekit.functions.ownership import default_skip
from capturekit.functions.watch import Watch
from tests.frozen import frozen
from tests.functions.environments import Config, Filter, Hostile, clean, is_array, watch

HERE = os.path.basename(__file__)
pytestmark = pytest.mark.usefixtures('no_collection')


value: Any = None
other: Any = None


@pytest.fixture(autouse=True)
def globals_of_this_file() -> Iterator[None]:
    before = dict(globals())
    yield
    globals().clear()
    globals().update(before)


def reads() -> Any:
    return value


def inner_helper() -> Any:
    return other


def test_objects_that_the_run_made_are_its_own() -> None:
    def makes() -> Any:
        one = Filter()
        one.count()
        box = types.SimpleNamespace(x=1)
        fills(box)
        fills(box)
        return one

    def fills(box: Any) -> None:
        box.x += 1
        box.y = 2

    assert [watch(makes).written() for _ in range(3)] == [None] * 3


def test_what_the_run_made_is_told_from_what_has_died_meanwhile() -> None:
    """What is made gets the addresses of what died just before, and is the run's own all the same."""

    def counts() -> None:
        for one in [Filter() for _ in range(500)]:
            one.count()

    old = [Filter() for _ in range(500)]
    with Watch(counts, is_array=is_array) as watching:
        old.clear()
        counts()
    assert watching.environment.written() is None, watching.environment.written()


def test_nothing_is_held_once_the_run_has_ended() -> None:
    one = Filter()
    gone = weakref.ref(one)
    with pytest.raises(KeyError), Watch(reads, is_array=is_array) as failed:
        raise KeyError
    with Watch(reads, is_array=is_array) as watching:
        reads()
    del one
    assert gone() is None
    assert (failed, watching) is not None


def test_iterators_that_the_run_makes() -> None:
    """Comprehensions hand them to a function of their own before Python 3.12, generator expressions always."""
    numbers = [1.0, 2.0]

    def made() -> Any:
        return [n * m for n, m in zip(numbers, numbers)], sum(n for n in map(float, iter(numbers))), helper(iter([1]))

    def helper(these: Iterator[int]) -> list[int]:
        return [each + 1 for each in these]

    for _ in range(5):
        clean(made)
    old = iter([1, 2, 3])
    assert "what is left in it can't be compared" in str(watch(lambda: sum(each for each in old)).written())


def test_arguments_that_the_caller_compares() -> None:
    config = Config()

    def reader(given: Config) -> float:
        return given.lr

    found = clean(reader, config)
    config.lr = 0.5
    assert found.changed() is not None
    found = watch(reader, config, ignore=lambda found: type(found) is Config)
    config.lr = 0.6
    assert found.changed() is None


def test_helpers_see_values_from_before_the_run() -> None:
    """What is changed before the code that reads it is met, too, was changed by the run."""
    one = Filter()

    def early() -> None:
        one.__dict__['n'] = 77
        late()

    def late() -> Any:
        return one.n

    assert 'attribute n' in str(watch(early).written())


def test_host_randomness() -> None:
    generator = np.random.default_rng(0)
    old = np.random.RandomState(0)
    own = random.Random(0)
    assert watch(lambda: np.random.rand()).written() == 'the function draws from numpy.random on the host'
    assert watch(lambda: random.random()).written() == 'the function draws from random on the host'
    assert 'draws from a Generator object' in str(watch(lambda: generator.normal()).written())
    assert 'draws from a RandomState object' in str(watch(lambda: old.rand()).written())
    assert 'draws from a Random object' in str(watch(lambda: own.random()).written())
    assert 'draws from a Random object' in str(watch(lambda given: given.random(), own).written())
    found = clean(lambda: (generator, old, own, np.random, random))
    np.random.rand()
    own.random()
    assert found.changed() is None
    secret = random.SystemRandom()
    assert 'leave no trace' in str(watch(lambda: secret.random()).written())


def test_generators_iterators_and_files() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield 2

    stream = numbers()
    assert 'advances a generator' in str(watch(lambda: next(stream)).written())
    idle = numbers()
    clean(lambda: idle)
    clean(lambda: list(numbers()))
    counter = itertools.count()
    assert "is or holds a count object: what is left in it can't be compared" in str(watch(lambda: counter).written())
    clean(lambda: list(iter([1, 2])))
    log = io.StringIO()
    assert 'reads or writes a file' in str(watch(lambda: log.write('x')).written())
    clean(lambda: log)


def test_nothing_of_the_objects_is_called() -> None:
    class Raising:
        def __get__(self, instance: object, owner: object) -> Any:
            raise AssertionError('asked')

    class Holder:
        trap = Raising()
        __slots__ = ('__dict__', 'x')

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    holder, hostile = Holder(), [Hostile()]

    def reader(test: bool) -> Any:
        return (holder.trap, holder.x, hostile[0].x) if test else (holder, hostile)  # type: ignore[attr-defined]

    found = clean(reader, False)
    hostile[0] = Hostile()
    assert 'Hostile' in str(found.changed())


def test_metaclasses_are_not_asked() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(cls, other: object) -> bool:
            raise AssertionError('compared')

        __hash__ = None  # type: ignore[assignment]

    kind = Meta('Kind', (), {'rate': 1})
    one = object.__new__(kind)
    found = clean(lambda test: (kind.rate, one.rate) if test else (kind, one), False)  # type: ignore[attr-defined]
    type.__setattr__(kind, 'rate', 2)
    assert 'attribute rate' in str(found.changed())


def test_a_thread_that_is_started_is_not_followed() -> None:
    def elsewhere() -> Any:
        return other

    def starts(thread: threading.Thread) -> None:
        thread.start()
        thread.join()

    said = watch(starts, threading.Thread(target=elsewhere)).unwatchable
    assert any(f'the function calls threading.start at {HERE}' in text for text in said)


def test_the_profile_function_before_is_called_and_comes_back() -> None:
    seen: list[str] = []

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == 'call':
            seen.append(frame.f_code.co_name)

    def fails() -> None:
        raise KeyError('mine')

    sys.setprofile(profile)
    try:
        clean(reads)
        assert sys.getprofile() is profile
        assert 'reads' in seen
        watching = Watch(fails, is_array=is_array)
        with pytest.raises(KeyError, match='mine'), watching:
            fails()
        assert sys.getprofile() is profile
        with pytest.raises(RuntimeError, match='did not come to its end'):
            _ = watching.environment
    finally:
        sys.setprofile(None)
    with contextlib.suppress(KeyError), Watch(fails, is_array=is_array):
        fails()
    assert sys.getprofile() is None


def test_inside_another_watch_and_cprofile() -> None:
    global other
    other = 1

    def outer() -> None:
        clean(inner_helper)

    with Watch(outer, is_array=is_array) as watching:
        outer()
    found = watching.environment
    assert found.changed() is None
    other = 2
    assert 'global other' in str(found.changed())

    import cProfile

    profiler = cProfile.Profile()
    profiler.enable()
    try:
        clean(reads)
        reads()
    finally:
        profiler.disable()
    assert any('reads' in str(entry.code) for entry in profiler.getstats())


def test_a_function_that_sets_a_profile_function() -> None:
    def sets() -> None:
        sys.setprofile(lambda *_: None)

    try:
        assert any('set a profile function' in text for text in watch(sets).unwatchable)
    finally:
        sys.setprofile(None)


def test_a_failure_of_the_watch_is_told_and_goes_no_further(faults: list[str]) -> None:
    def broken(found: object) -> bool:
        raise ZeroDivisionError

    assert 'could not be followed' in str(watch(lambda x: x, 1, ignore=broken).written())
    assert [one.endswith('ZeroDivisionError()') for one in faults] == [True]
    faults.clear()


def test_frozen_garbage() -> None:
    one = Filter()
    with frozen():
        found = clean(lambda given: given.n, one)

        def makes() -> None:
            Filter().count()

        clean(makes)
    one.n = 9
    assert 'attribute n' in str(found.changed())


def test_what_is_skipped() -> None:
    assert default_skip(os.__file__) and default_skip(np.__file__) and default_skip(environment.__file__)
    assert default_skip('<frozen importlib._bootstrap>')
    assert not default_skip(__file__) and not default_skip('<stdin>') and not default_skip(pytest.__file__)
    assert not clean(reads).arrays()
    found = watch(reads, skip=lambda filename: True)
    assert [entry.kind for entry in found.entries if entry.kind != 'argument'] == ['function'] * 3


def test_entries_tell_holder_key_and_value() -> None:
    global value
    value = 3
    (entry,) = [entry for entry in clean(reads).entries if entry.kind == 'global']
    assert (entry.holder is globals(), entry.key, entry.value) == (True, 'value', 3)
    assert repr(entry) == f'<global value of {HERE}>'
