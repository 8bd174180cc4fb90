"""A lease is given back once, with all its parts."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from capturekit.model.cleanup import instances
from capturekit.model.lease import Lease


def test_parts_are_given_back_last_first() -> None:
    told: list[str] = []
    lease = Lease(lambda: told.append('first'), Lease(lambda: told.append('second')))
    lease.add(lambda: told.append('third'))
    lease.release()
    lease.release()
    assert told == ['third', 'second', 'first'], 'each is given back once'


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
    with pytest.raises(ZeroDivisionError), Lease(lambda: told.clear()):
        1 / 0  # noqa: B018
    assert told == []
    told.append('mine')
    with Lease(lambda: told.append('theirs')) as lease:
        other = lease.hand_over()
    assert told == ['mine']
    other.release()
    assert told == ['mine', 'theirs']


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


def test_objects_of_classes_are_found_once_and_not_held() -> None:
    made = [Kept(), Below(), Beside(), Strange(), Stranger()]
    pretending = Pretends()
    below, above = made[1:3], made[4:]
    for kinds, expected in (((Kept,), made), ((Below, Beside), below), ((Below, Stranger), below + above)):
        found = instances(*kinds)
        assert sorted(map(id, found)) == sorted(map(id, expected)) and id(pretending) not in map(id, found)
    holders = len(gc.get_referrers(made[2]))
    del found
    assert len(gc.get_referrers(made[2])) < holders
