"""What a run read, as the tests of environments ask for it, and objects that must not be asked for anything."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any

from capturekit.functions.environment import Environment
from capturekit.functions.watch import Watch


class Array:
    """Stands for an array on the device: nothing but an identity, and comparing it is an error."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError('an array was compared')

    __hash__ = None  # type: ignore[assignment]


def is_array(value: object) -> bool:
    return type(value) is Array


def watch(fn: Callable[..., Any], *args: Any, **options: Any) -> Environment:
    with Watch(fn, is_array=is_array, **options) as watching:
        fn(*args)
    return watching.environment


def clean(fn: Callable[..., Any], *args: Any) -> Environment:
    """The environment of a function that writes nothing, seen unchanged twice."""
    found = watch(fn, *args)
    assert found.written() is found.changed() is found.changed() is None
    return found


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


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


value: Any = None
other: Any = None


class Part:
    rate, unread = 0.1, 2


class Filter:
    gain = 2.0
    names: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.W = Array()
        self.n = 3
        self.unread = 1
        self.t = 0
        self.sub = Part()
        vars(self.sub).update(rate=0.1, unread=2)

    def step(self) -> Any:
        return self.W, self.n, self.gain, self.sub.rate

    def count(self) -> None:
        self.t += 1

    def cached(self) -> Any:
        if not hasattr(self, '_cache'):
            self._cache = Array()
        return self._cache

    def peeks(self) -> Any:
        return getattr(self, 'maybe', None)

    @property
    def half(self) -> float:
        return self.n / 2

    @functools.cached_property
    def lazy(self) -> int:
        return 5

    @classmethod
    def of_class(cls) -> Any:
        return cls.gain

    def class_counts(self) -> None:
        type(self).gain += 1

    def class_creates(self) -> None:
        type(self).made = 1  # type: ignore[attr-defined]


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    unnamed: int = 1
