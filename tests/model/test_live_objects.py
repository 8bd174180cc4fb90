"""Objects of some classes are found among all."""

from __future__ import annotations

import gc
from typing import Any

from capturekit.model.live_objects import instances


class Kept:
    def __init__(self) -> None:
        self.other: Any = None


class Below(Kept):
    pass


class Beside(Below):
    pass


class Pretends:
    """Says that it is of another class."""

    __class__ = Kept  # type: ignore[assignment]


class Odd(type):
    """Classes that can not be compared, have no hash and name no class below."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        raise AssertionError

    def __subclasses__(cls) -> list[type]:
        raise AssertionError


class Strange(Kept, metaclass=Odd):
    pass


class Stranger(Strange):
    pass


def ids(*kinds: type) -> set[int]:
    return {id(one) for one in instances(*kinds)}


def test_those_of_classes_below_are_found() -> None:
    made = [Kept(), Below(), Beside(), Strange(), Stranger()]
    assert ids(Kept) == set(map(id, made))
    assert ids(Below) == set(map(id, made[1:3]))
    assert ids(Below, Stranger) == {*map(id, made[1:3]), id(made[4])}


def test_what_pretends_to_be_one_is_not_found() -> None:
    made = [Pretends(), Kept()]
    assert ids(Kept) == {id(made[1])}


def test_none_is_held_afterwards() -> None:
    one = Kept()
    found = instances(Kept)
    assert found == [one]
    holders = len(gc.get_referrers(one))
    del found
    assert len(gc.get_referrers(one)) == holders - 1


def test_each_stands_there_once() -> None:
    made = [Beside()]
    assert instances(Beside, Below, Kept) == made
