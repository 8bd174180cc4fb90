"""A lease is given back once, with all its parts."""

from __future__ import annotations

from typing import Any

import pytest

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
