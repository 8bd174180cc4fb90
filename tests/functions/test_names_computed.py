"""Computed names of attributes: all attributes of the object that is asked count, and of no other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import capturekit as ck

told = pytest.mark.skipif(sys.version_info < (3, 12), reason='calls are told of from Python 3.12 on')


class Base:
    in_base = 1.0

    def of_base(self) -> float:
        return 2.0


class Callback(Base):
    in_class = 3.0

    def __init__(self) -> None:
        self.scale = 2.0
        self.count = 0
        self.unread: Any = None

    def on_begin(self, x: Any) -> Any:
        return x * self.scale

    def on_end(self, x: Any) -> Any:
        return x + 1


class Slotted:
    __slots__ = ('scale',)

    def __init__(self) -> None:
        self.scale = 2.0


class Silent:
    """Held by the functions below, and not asked for a computed name: its iterator can't be compared."""

    def __init__(self) -> None:
        self.unread = iter([1, 2])


KIND = ['begin']
CALLBACK, SLOTTED, SILENT = Callback(), Slotted(), Silent()


def joined(*parts: str) -> str:
    return ''.join(parts)


def with_silent(x: Any) -> Any:
    return getattr(CALLBACK, f'on_{KIND[0]}')(x) if SILENT is not None else x


def a_method(x: Any) -> Any:
    return getattr(CALLBACK, f'on_{KIND[0]}')(x)


def of_one_that_is_made(x: Any) -> Any:
    return getattr(Callback(), f'on_{KIND[0]}')(x)


def a_value(x: Any) -> Any:
    return x * getattr(CALLBACK, joined('sc', 'ale'))


def a_default(x: Any) -> Any:
    return x * getattr(CALLBACK, joined('sc', 'aling'), 5.0)


def is_there(x: Any) -> Any:
    return x * 2 if hasattr(CALLBACK, joined('sc', 'aling')) else x


def a_slot(x: Any) -> Any:
    return x * getattr(SLOTTED, joined('sc', 'ale'))


def of_the_class(x: Any) -> Any:
    return x * getattr(CALLBACK, joined('in_', 'class')) * getattr(CALLBACK, joined('in_', 'base'))


def of_the_base(x: Any) -> Any:
    return x * getattr(CALLBACK, joined('of_b', 'ase'))()


def through_its_dictionary(x: Any) -> Any:
    return x * getattr(CALLBACK, joined('__di', 'ct__'))['scale']


def through_its_class(x: Any) -> Any:
    return x * getattr(getattr(CALLBACK, joined('__cl', 'ass__')), joined('in_', 'class'))


def counts(x: Any) -> Any:
    CALLBACK.count += 1
    return x * (getattr(CALLBACK, joined('cou', 'nt')) % 3)


def sets(x: Any) -> Any:
    setattr(CALLBACK, joined('sc', 'ale'), CALLBACK.scale + 1)
    return x * CALLBACK.scale


def two(x: Any) -> Any:
    for one in (SLOTTED, CALLBACK):
        x = x * getattr(one, joined('sc', 'ale'))
    return x


def scaled(self: Any, x: Any) -> Any:
    return x * 7


CHANGES: dict[str, Callable[[], None]] = {
    'an attribute': lambda: setattr(CALLBACK, 'scale', CALLBACK.scale + 1),
    'a slot': lambda: setattr(SLOTTED, 'scale', SLOTTED.scale + 1),
    'a new attribute': lambda: setattr(CALLBACK, 'scaling', 4.0),
    'an attribute of the class': lambda: setattr(Callback, 'in_class', Callback.in_class + 1),
    'an attribute of the base': lambda: setattr(Base, 'in_base', Base.in_base + 1),
    'a new name of the class': lambda: setattr(Callback, 'scaling', 6.0),
    'a new name of the base': lambda: setattr(Base, 'scaling', 8.0),
    'a method': lambda: setattr(Callback, 'on_begin', scaled),
    'a method of the object': lambda: setattr(CALLBACK, 'on_begin', lambda x: x * 9),
    'a method of the base': lambda: setattr(Base, 'of_base', lambda self: 11.0),
    'the name': lambda: KIND.__setitem__(0, 'end'),
    'the class of the object': lambda: setattr(CALLBACK, '__class__', Other),
}


class Other(Callback):
    in_class = 13.0

    def on_begin(self, x: Any) -> Any:
        return x * 12


FUNCTIONS = (
    a_method, of_one_that_is_made, a_value, a_default, is_there, a_slot, of_the_class, of_the_base,
    through_its_dictionary, through_its_class, counts, sets, two,
)  # fmt: skip


ORIGINAL = {
    cls: {key: value for key, value in vars(cls).items() if not key.startswith('__')} for cls in (Base, Callback)
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Each function begins with the same objects, and what is done to classes is undone."""
    begin()
    yield
    begin()


def begin() -> None:
    for cls, members in ORIGINAL.items():
        for name, value in members.items():
            setattr(cls, name, value)
        if 'scaling' in vars(cls):
            delattr(cls, 'scaling')
    CALLBACK.__class__ = Callback
    vars(CALLBACK).clear()
    Callback.__init__(CALLBACK)
    SLOTTED.scale = 2.0
    KIND[0] = 'begin'


def story(cp: Any, fn: Callable[[Any], Any], change: Callable[[], None]) -> list[Any]:
    """What calls give before, between and after two changes."""
    found = []
    for number in range(9):
        if number in (4, 7):
            change()
        found.append((fn(cp.ones(2)).get().tolist(), CALLBACK.count, CALLBACK.scale))
    return found


@pytest.mark.parametrize('change', CHANGES)
@pytest.mark.parametrize('fn', FUNCTIONS)
def test_changes_between_calls_are_seen(cp: Any, fn: Callable[[Any], Any], change: str) -> None:
    eager = story(cp, fn, CHANGES[change])
    begin()
    assert story(cp, ck.graphed(fn), CHANGES[change]) == eager


@told
@pytest.mark.parametrize('fn', [a_method, of_one_that_is_made, a_value, a_slot, of_the_base, with_silent])
def test_no_other_object_counts(cp: Any, fn: Callable[[Any], Any]) -> None:
    graphed = ck.graphed(fn)
    for _ in range(5):
        assert graphed(cp.ones(2)).get().tolist() == fn(cp.ones(2)).get().tolist()
    assert sum(variant.launches for variant in graphed.variants) >= 3  # on a GPU the first call may fill CuPy's caches


def test_what_the_object_holds_counts(cp: Any) -> None:
    CALLBACK.unread = iter([1, 2])
    graphed = ck.graphed(a_value)
    for _ in range(4):
        assert graphed(cp.ones(2)).get().tolist() == [2.0, 2.0]
    assert "what is left in it can't be compared" in graphed.variants[0].reason


def test_a_counter_that_is_asked_for_counts(cp: Any) -> None:
    graphed = ck.graphed(counts)
    for _ in range(8):
        assert graphed(cp.ones(2)).get().tolist() == [CALLBACK.count % 3] * 2
    assert CALLBACK.count == 8
