"""The quick look at a call's arguments: it takes no call for one of the last kind that is of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.examples import examples
from tests.recorder.test_conditional import values

NUMBERS = [0.0, -0.0, float('nan'), 1.0, 1, True, 0, False, 2.5, '1', 'a', b'a', None, 1j, (1, 2), (1, 2.0)]


class Box:
    """Compared by identity; its attribute is watched."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def told(x: Any, one: Any, *, two: Any = None) -> Any:
    """A function whose result shows all of its arguments."""
    return x * 2.0, repr(one), repr(two)


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


@pytest.mark.parametrize('one', [2.5, 7, 'text', b'x', None, True])
def test_a_plain_argument_is_recognised(cp: Any, one: Any) -> None:
    fn = ck.graphed(told)
    for n in range(6):
        result, first, second = fn(cp.full(4, float(n)), one, two=one)
        assert values(result) == [2.0 * n] * 4 and first == second == repr(one)
    assert launches(fn) == 5


@given(st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.booleans()), min_size=4, max_size=12))
@settings(max_examples=examples(60), deadline=None)
def test_calls_in_any_order_answer_as_without_recording(calls: list[tuple[Any, Any, bool]]) -> None:
    install(SimulatedDevice())
    try:
        import cupy

        fn, x = ck.graphed(told, limit=4), cupy.ones(3)
        for one, two, again in calls:
            for _ in range(3 if again else 1):
                found = fn(x, one) if two is None else fn(x, one, two=two)
                assert found[1:] == (repr(one), repr(two))
    finally:
        uninstall()


def test_objects_are_told_apart_by_identity(cp: Any) -> None:
    fn = ck.graphed(lambda x, box: x * box.value)
    first, second, x = Box(2.0), Box(3.0), cp.ones(4)
    for box in (first, first, first, second, second, second, first, second):
        assert values(fn(x, box)) == [box.value] * 4
    first.value = 5.0
    assert values(fn(x, first)) == [5.0] * 4


def test_an_object_of_another_class_since(cp: Any) -> None:
    class Other(Box):
        value = property(lambda self: 9.0, lambda self, value: None)  # type: ignore[assignment]

    fn = ck.graphed(lambda x, box: x * box.value)
    box, x = Box(2.0), cp.ones(4)
    for _ in range(4):
        assert values(fn(x, box)) == [2.0] * 4
    box.__class__ = Other
    assert values(fn(x, box)) == [9.0] * 4


def test_names_in_another_order_and_other_names(cp: Any) -> None:
    def fn(x: Any, **given: float) -> Any:
        return x * 2.0, list(given.items())

    graphed, x = ck.graphed(fn), cp.ones(4)
    for _ in range(3):
        assert graphed(x, a=1.0, b=2.0)[1] == [('a', 1.0), ('b', 2.0)]
        assert graphed(x, b=2.0, a=1.0)[1] == [('b', 2.0), ('a', 1.0)]
        assert graphed(x, a=1.0, c=2.0)[1] == [('a', 1.0), ('c', 2.0)]
        assert graphed(x, a=1.0)[1] == [('a', 1.0)]
        assert graphed(x)[1] == []


def test_other_arrays(cp: Any) -> None:
    fn = ck.graphed(lambda x, y: (x + y, x is y))
    a, b = cp.arange(6.0), cp.ones(6)
    others = [(a, b), (a, a), (b, a), (a[::-1], b), (a.astype('f4'), b), (a.reshape(2, 3), b.reshape(2, 3)),
              (a, cp.array(1.0)), (a, b.astype('i8')), (a[:3], a[3:]), (a[:4], a[2:])]  # fmt: skip
    for pair in (others[0], others[0], others[0], *others, *reversed(others), *others):
        found, same = fn(*pair)
        wanted = pair[0] + pair[1]
        assert (values(found), found.dtype, found.shape) == (values(wanted), wanted.dtype, wanted.shape)
        assert same == (pair[0] is pair[1])


def test_one_array_twice_and_then_two(cp: Any) -> None:
    fn, named = ck.graphed(lambda x, y: x * 10.0 + y), ck.graphed(lambda x, *, y: x * 10.0 + y)
    a, b = cp.arange(6.0), cp.ones(6)
    for first, second in [(a, a)] * 4 + [(a, b)] * 4 + [(b, b), (b, a)]:
        wanted = values(first * 10.0 + second)
        assert values(fn(first, second)) == wanted and values(named(first, y=second)) == wanted


def test_a_kind_that_made_room_for_another_is_not_used_again(cp: Any) -> None:
    fn = ck.graphed(lambda x, y: x + y, limit=1)
    a, b = cp.arange(6.0), cp.ones(6)
    for pair in ((a, b), (a, b), (a, b), (a, a), (a, b), (a, a), (a, a), (a, a), (a, b), (a, b), (a, b)):
        assert values(fn(*pair)) == values(pair[0] + pair[1])


def test_arguments_that_are_not_looked_at_quickly(cp: Any) -> None:
    fn = ck.graphed(lambda x, more: x * more[0] + np.float32(more[1]))
    x, more = cp.ones(4), [2.0, 1.0]
    for _ in range(4):
        assert values(fn(x, more)) == [3.0] * 4
    more[0] = 4.0
    assert values(fn(x, more)) == [5.0] * 4
