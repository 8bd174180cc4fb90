"""torch's generators of random numbers: only functions written in C read their state, and none of these is understood.

Packages that work with several libraries hold one, whatever library is in use. A class written in C that nobody knows
stands for theirs here, under its name.
"""

from __future__ import annotations

import functools
import mmap
import operator
from typing import Any

import pytest

import capturekit as ck

NAMED: Any = type('Generator', (mmap.mmap,), {'__module__': 'torch._C'})
OTHER: Any = type('Generator', (mmap.mmap,), {'__module__': 'elsewhere'})


class Backend:
    def __init__(self, kind: Any) -> None:
        self.rng, self.scale = kind(-1, 64), 2.0


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


def scaled(backend: Backend) -> Any:
    return lambda x: x * backend.scale if backend.rng is not None else x


def test_a_backend_with_a_generator_is_recorded(sim: Any) -> None:
    backend = Backend(NAMED)
    fn = ck.graphed(scaled(backend))
    for number in range(6):
        assert fn(sim.ones(2) + number).tolist() == [2.0 + 2 * number] * 2
    assert launches(fn) >= 4
    backend.rng = None
    assert fn(sim.ones(2)).tolist() == [1.0] * 2


def test_an_unknown_object_in_its_place_is_not(sim: Any) -> None:
    fn = ck.graphed(scaled(Backend(OTHER)))
    for number in range(6):
        assert fn(sim.ones(2) + number).tolist() == [2.0 + 2 * number] * 2
    assert launches(fn) == 0


def test_a_generator_of_a_class_of_its_own_is_not(sim: Any) -> None:
    """Its class may have what reads the state, such as an operator."""
    fn = ck.graphed(scaled(Backend(type('Mine', (NAMED,), {}))))
    for number in range(6):
        assert fn(sim.ones(2) + number).tolist() == [2.0 + 2 * number] * 2
    assert launches(fn) == 0


READS: dict[str, Any] = {
    'called': lambda x, rng: x * rng.read(1)[0],
    'handed on': lambda x, rng: x * b''.join(map(rng.read, [1, 1]))[1],
    'by a text': lambda x, rng: x * operator.methodcaller('read', 1)(rng)[0],
    'by its name': lambda x, rng: x * getattr(rng, 'read')(1)[0],  # noqa: B009
}


@pytest.mark.parametrize('how', READS)
def test_what_reads_its_state_is_called_each_time(sim: Any, how: str) -> None:
    found = []
    for wrap in (lambda fn: fn, ck.graphed):
        rng = NAMED(-1, 64)
        rng[:] = bytes(range(64))
        fn = wrap(functools.partial(lambda x, rng: READS[how](x, rng), rng=rng))
        found.append([fn(sim.ones(2)).tolist() for _ in range(6)])
    assert found[0] == found[1]
    assert len(set(map(tuple, found[0]))) == 6
