"""What belongs to the run that is watched, and what the watch leaves alone."""

from __future__ import annotations

import contextlib
import os
import sys
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
from tests.functions.environments import Config, Filter, clean, is_array, watch

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
