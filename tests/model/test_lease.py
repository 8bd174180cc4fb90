"""A lease is given back once, with all its parts."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from capturekit.model.cleanup import instances
from capturekit.model.lease import Lease


def test_it_is_given_back_once() -> None:
    told: list[str] = []
    lease = Lease(lambda: told.append('back'))
    lease.release()
    lease.release()
    assert told == ['back']


def test_parts_are_given_back_last_first() -> None:
    told: list[str] = []
    lease = Lease(lambda: told.append('first'), Lease(lambda: told.append('second')))
    lease.add(lambda: told.append('third'))
    lease.release()
    assert told == ['third', 'second', 'first']


def test_what_a_part_gave_back_alone_is_not_given_back_again() -> None:
    told: list[str] = []
    part = Lease(lambda: told.append('part'))
    whole = Lease(part, lambda: told.append('other'))
    part.release()
    whole.release()
    assert told == ['part', 'other']


@pytest.mark.parametrize('kind', [RuntimeError, KeyboardInterrupt])
def test_a_part_that_fails_does_not_keep_the_others(kind: type[BaseException]) -> None:
    told: list[str] = []

    def fails(text: str) -> Any:
        raise kind(text)

    lease = Lease(lambda: told.append('first'), lambda: fails('second'), lambda: fails('third'))
    with pytest.raises(kind, match='third'):
        lease.release()
    assert told == ['first']
    lease.release()


def test_a_block_gives_back_what_was_not_handed_over() -> None:
    told: list[str] = []
    with Lease(lambda: told.append('mine')) as lease:
        pass
    assert told == ['mine']
    with Lease(lambda: told.append('theirs')) as lease:
        other = lease.hand_over()
    assert told == ['mine']
    other.release()
    assert told == ['mine', 'theirs']


def test_a_block_that_fails_gives_back() -> None:
    told: list[str] = []
    with pytest.raises(ZeroDivisionError), Lease(lambda: told.append('back')):
        1 / 0  # noqa: B018
    assert told == ['back']


# -- objects of some classes are found among all ----------------------------------------------------------------------


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
