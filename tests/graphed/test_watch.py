"""What a watch of one run notes, and what it leaves alone: profilers, objects, and Python's own state.

Programs whose reads and writes are seen are in ``tests/corpus``.
"""

from __future__ import annotations

import contextlib
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from capturekit.graphed.environment import Environment
from capturekit.graphed.watch import Watch
from tests.frozen import frozen

pytestmark = pytest.mark.usefixtures('no_collection')


def is_array(_value: object) -> bool:
    return False


def watched(fn: Callable[..., Any], *args: Any, **options: Any) -> Environment:
    watch = Watch(fn, is_array=is_array, **options)
    watch.run(args, {})
    return watch.environment


def clean(fn: Callable[..., Any], *args: Any) -> Environment:
    """The environment of a function that writes nothing, seen unchanged twice."""
    found = watched(fn, *args)
    assert found.run.written is found.changed() is found.changed() is None
    return found


class Filter:
    gain = 2.0

    def __init__(self) -> None:
        self.n, self.t = 3, 0

    def count(self) -> None:
        self.t += 1

    def cached(self) -> None:
        self._cache = 1

    def deletes(self) -> None:
        del self.n

    def class_counts(self) -> None:
        type(self).gain = 2.5

    def class_creates(self) -> None:
        type(self).made = 1  # type: ignore[attr-defined]


class Hostile:
    """Everything that could be asked of it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError('compared')

    def __hash__(self) -> int:
        raise AssertionError('hashed')

    def __repr__(self) -> str:
        raise AssertionError('shown')


class Meta(type):
    """A class whose classes are not to be asked."""

    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(name)

    def __eq__(cls, other: object) -> bool:
        raise AssertionError('compared')

    __hash__ = None  # type: ignore[assignment]


def test_hostile_objects_and_classes_are_compared_by_identity() -> None:
    held = [Hostile()]
    found = clean(lambda: held[0])
    held[0] = Hostile()
    assert 'is not the Hostile that it was' in str(found.changed())
    kind = Meta('Kind', (), {'rate': 1})
    one = object.__new__(kind)
    found = clean(lambda test: (kind.rate, one.rate) if test else (kind, one), False)  # type: ignore[attr-defined]
    type.__setattr__(kind, 'rate', 2)
    assert 'attribute rate' in str(found.changed())


@pytest.mark.parametrize(
    ('method', 'written'),
    [
        ('count', 'rebinds attribute t of a Filter object'),
        ('cached', 'creates attribute _cache of a Filter object'),
        ('deletes', 'deletes attribute n of a Filter object'),
        ('class_counts', 'rebinds attribute gain of class Filter'),
        ('class_creates', 'creates attribute made of class Filter'),
    ],
)
def test_what_is_written_has_a_name(method: str, written: str) -> None:
    assert watched(getattr(Filter(), method)).run.written == f'the function {written}'


def test_a_first_attribute_of_a_function_is_told() -> None:
    """Nearly all functions have no attributes: those that have none are compared together."""

    def plain() -> None: ...

    found = clean(lambda: getattr(plain, 'kind', None))
    plain.kind = 'new'  # type: ignore[attr-defined]
    assert 'kind' in (found.changed() or '')
    del plain.kind  # type: ignore[attr-defined]
    assert found.changed() is None
    plain.__dict__ = {'kind': 'new'}
    assert 'kind' in (found.changed() or '')


def test_nothing_is_held_once_the_run_has_ended() -> None:
    one = Filter()
    gone = weakref.ref(one)
    failed, other = Watch({}.__getitem__, is_array=is_array), Watch(id, is_array=is_array)
    with pytest.raises(KeyError):
        failed.run((3,), {})
    other.run((3,), {})
    del one
    assert gone() is None
    assert (failed, other) is not None


def test_what_the_run_made_is_told_from_what_has_died_meanwhile() -> None:
    """What is made gets the addresses of what died just before, and is the run's own all the same."""

    def counts(old: list[Filter]) -> None:
        old.clear()
        for one in [Filter() for _ in range(500)]:
            one.count()

    watch = Watch(counts, is_array=is_array)
    watch.run(([Filter() for _ in range(500)],), {})
    assert watch.environment.run.written is None


def test_frozen_garbage() -> None:
    one = Filter()
    with frozen():
        found = clean(lambda given: given.n, one)
    one.n = 9
    assert 'attribute n' in str(found.changed())


def test_the_profile_function_before_is_called_and_comes_back() -> None:
    seen: list[str] = []

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == 'call':
            seen.append(frame.f_code.co_name)

    def fails() -> None:
        raise KeyError('mine')

    sys.setprofile(profile)
    try:
        clean(lambda: Filter().n)
        assert sys.getprofile() is profile and '<lambda>' in seen
        watch = Watch(fails, is_array=is_array)
        with pytest.raises(KeyError, match='mine'):
            watch.run((), {})
        assert sys.getprofile() is profile
        with pytest.raises(RuntimeError, match='did not come to its end'):
            _ = watch.environment
    finally:
        sys.setprofile(None)
    with contextlib.suppress(KeyError):
        Watch(fails, is_array=is_array).run((), {})
    assert sys.getprofile() is None
    try:
        texts = watched(lambda: sys.setprofile(lambda *_: None)).run.unwatchable
    finally:
        sys.setprofile(None)
    assert any('set a profile function' in text for text in texts)


def test_inside_another_watch_and_cprofile() -> None:
    import cProfile

    held, profiler = [1], cProfile.Profile()
    found = watched(lambda: clean(lambda: held[0]))
    assert found.changed() is None
    held[0] = 2
    assert 'held' in str(found.changed())
    profiler.enable()
    try:
        clean(lambda: held[0])
    finally:
        profiler.disable()
    assert profiler.getstats()
