"""What a run has read may be gone: then it counts as changed, and no call fails because of it."""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck


class First:
    rate = 2.0


class Second:
    rate = 3.0


class Inner:
    __slots__ = ('rate',)
    rate: float


class Outer(Inner):
    __slots__ = ('rate',)


def test_an_object_whose_class_the_function_changes(cp: Any) -> None:
    one: Any = First()

    def swaps(x: Any) -> Any:
        y = x * one.rate
        one.__class__ = Second if type(one) is First else First
        return y

    step = ck.graphed(swaps)
    assert [step(cp.ones(1)).tolist() for _ in range(4)] == [[2.0], [3.0], [2.0], [3.0]]


def test_a_view_of_memory_that_is_released(cp: Any) -> None:
    view = memoryview(bytearray(6))

    def reads(x: Any) -> Any:
        return x * float(view.itemsize)

    step = ck.graphed(reads)
    assert [step(cp.ones(1)).tolist() for _ in range(3)] == [[1.0]] * 3
    view.release()
    with pytest.raises(ValueError, match='released'):
        step(cp.ones(1))


def test_a_slot_behind_another_of_the_same_name(cp: Any) -> None:
    one: Any = Outer()
    inner: Any = vars(Inner)['rate']
    one.rate = 2.0
    inner.__set__(one, 5.0)

    def reads(x: Any) -> Any:
        return x * one.rate * inner.__get__(one)

    step = ck.graphed(reads)
    assert [step(cp.ones(1)).tolist() for _ in range(3)] == [[10.0]] * 3
    inner.__set__(one, 4.0)
    assert step(cp.ones(1)).tolist() == [8.0]
