"""A run that puts a container in the place of an equal one: others may hold the one that was there."""

from __future__ import annotations

import collections
import contextvars
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck

#: A function of an array, and what a caller does around one call of it.
Made = tuple[Callable[..., Any], Callable[[Callable[..., Any], Any], Any]]


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


def a_global_that_is_switched() -> Made:
    train: list[int] = []
    test: list[int] = []
    here = types.SimpleNamespace(log=train, turn=0)

    def function(x: Any) -> Any:
        here.log = train if here.turn else test
        return x * 2

    def use(fn: Callable[..., Any], x: Any) -> Any:
        here.turn = 1 - here.turn
        fn(x)
        here.log.append(1)
        found = len(train), len(test)
        here.log.clear()
        return found

    return function, use


def a_snapshot_of_options() -> Made:
    here = types.SimpleNamespace(options={'rate': 0.5})

    def function(x: Any) -> Any:
        here.options = {**here.options}
        return x * here.options['rate']

    def use(fn: Callable[..., Any], x: Any) -> Any:
        kept = here.options
        fn(x)
        here.options['rate'] = 2.0
        found = kept['rate']
        here.options['rate'] = 0.5
        return found

    return function, use


def a_list_in_an_argument() -> Made:
    given: dict[str, Any] = {'names': ['a']}

    def function(x: Any, options: dict[str, Any]) -> Any:
        options['names'] = list(options['names'])
        return x * 2

    def use(fn: Callable[..., Any], x: Any) -> Any:
        kept = given['names']
        fn(x, given)
        kept.append('b')
        found = list(given['names'])
        given['names'] = ['a']
        return found

    return function, use


def items_that_are_rotated() -> Made:
    here = types.SimpleNamespace(buffers=collections.deque([[], []]))

    def function(x: Any) -> Any:
        here.buffers.rotate()
        return x + 1

    def use(fn: Callable[..., Any], x: Any) -> Any:
        first = here.buffers[0]
        fn(x)
        first.append(1)
        found = [len(one) for one in here.buffers]
        first.clear()
        return found

    return function, use


def arrays_that_are_swapped() -> Made:
    here = types.SimpleNamespace(a=np.ones(2), b=np.ones(2))

    def function(x: Any) -> Any:
        here.a, here.b = here.b, here.a
        return x + 1

    def use(fn: Callable[..., Any], x: Any) -> Any:
        first = here.a
        fn(x)
        first[0] = 5.0
        found = here.a.tolist(), here.b.tolist()
        first[0] = 1.0
        return found

    return function, use


def a_context_variable() -> Made:
    variable: contextvars.ContextVar[list[int]] = contextvars.ContextVar('variable')
    variable.set([])

    def function(x: Any) -> Any:
        variable.set([])
        return x * 2

    def use(fn: Callable[..., Any], x: Any) -> Any:
        before = variable.get()
        fn(x)
        return variable.get() is before

    return function, use


def a_tuple_in_two_lists() -> Made:
    here = types.SimpleNamespace(jobs=[], done=[])

    def function(x: Any) -> Any:
        job = (x * 2, 'job')
        here.jobs.append(job)
        here.done.append(job)
        return x

    def use(fn: Callable[..., Any], x: Any) -> Any:
        fn(x)
        last = here.done.pop()
        return sum(one is last for one in here.jobs)

    return function, use


def parts_of_one_array() -> Made:
    def function(x: Any) -> Any:
        edges = np.linspace(0.0, 1.0, 5)
        return x * 2, edges[:-1], edges[1:]

    def use(fn: Callable[..., Any], x: Any) -> Any:
        _, low, high = fn(x)
        low += 10
        return high.tolist()

    return function, use


def a_part_of_an_argument() -> Made:
    given = np.arange(4.0)

    def function(x: Any, batch: Any) -> Any:
        return x * 2, {'head': batch[:2]}

    def use(fn: Callable[..., Any], x: Any) -> Any:
        _, found = fn(x, given)
        found['head'][:] = 9.0
        seen = given.tolist()
        given[:] = np.arange(4.0)
        return seen

    return function, use


def a_part_of_an_attribute() -> Made:
    here = types.SimpleNamespace(table=np.arange(4.0))

    def function(x: Any) -> Any:
        return x * 2, here.table[1:]

    def use(fn: Callable[..., Any], x: Any) -> Any:
        _, found = fn(x)
        found[:] = 9.0
        seen = here.table.tolist()
        here.table[:] = np.arange(4.0)
        return seen

    return function, use


def a_view_of_bytes() -> Made:
    here = types.SimpleNamespace(data=bytearray(b'abcd'))

    def function(x: Any) -> Any:
        return x * 2, np.frombuffer(here.data, np.uint8)

    def use(fn: Callable[..., Any], x: Any) -> Any:
        _, found = fn(x)
        found[0] = 90
        seen = bytes(here.data)
        here.data[0] = 97
        return seen

    return function, use


def every_second_item() -> Made:
    def function(x: Any) -> Any:
        return x * 2, np.arange(6.0)[::2]

    return function, lambda fn, x: fn(x)[1].strides


def one_item_seen_often() -> Made:
    def function(x: Any) -> Any:
        return x * 2, np.broadcast_to(np.ones(1), (3,))

    return function, lambda fn, x: fn(x)[1].strides


class Tag(str):
    pass


def a_text_that_takes_attributes() -> Made:
    def use(fn: Callable[..., Any], x: Any) -> Any:
        tag = fn(x)[0]
        seen = hasattr(tag, 'note')
        tag.note = 1
        return seen

    return lambda x: (Tag('a'), x * 2), use


def a_text_of_outside() -> Made:
    tag = Tag('a')
    return lambda x: (tag, x * 2), lambda fn, x: fn(x)[0] is tag


def a_number_in_two_places() -> Made:
    def function(x: Any) -> Any:
        total = float(x.sum())
        return total, [total]

    def use(fn: Callable[..., Any], x: Any) -> Any:
        one, others = fn(x * float('nan'))
        return one in others

    return function, use


def no_number() -> Made:
    def function(x: Any) -> Any:
        return {'y': x * 2, 'mean': np.nan}

    return function, lambda fn, x: fn(x)['mean'] is np.nan


EAGER = [
    a_global_that_is_switched, a_snapshot_of_options, a_list_in_an_argument, items_that_are_rotated,
    arrays_that_are_swapped, a_context_variable, a_tuple_in_two_lists, parts_of_one_array,
    a_part_of_an_argument, a_part_of_an_attribute, a_view_of_bytes, every_second_item, one_item_seen_often,
    a_text_that_takes_attributes,
]  # fmt: skip
RECORDED = [a_text_of_outside, a_number_in_two_places, no_number]


def compared(make: Callable[[], Made], cp: Any) -> Any:
    """Compare six plain and graphed calls, each with a world of its own; return the graphed function."""
    x = cp.ones(2)
    function, use = make()
    plainly = [use(function, x) for _ in range(6)]
    function, use = make()
    fn = ck.graphed(function)
    assert [use(fn, x) for _ in range(6)] == plainly
    return fn


@pytest.mark.parametrize('make', EAGER, ids=lambda make: make.__name__)
def test_what_a_launch_would_not_repeat_is_eager(cp: Any, make: Callable[[], Made]) -> None:
    fn = compared(make, cp)
    assert {variant.state for variant in fn.variants} <= {'eager', 'rehearsed'}


@pytest.mark.parametrize('make', RECORDED, ids=lambda make: make.__name__)
def test_what_a_launch_repeats_is_recorded(cp: Any, make: Callable[[], Made]) -> None:
    assert compared(make, cp).variants[0].launches > 3


def test_arrays_of_their_own_are_recorded(cp: Any) -> None:
    fn = ck.graphed(lambda x: (x * 2, np.arange(6.0)[1:], np.split(np.arange(4.0), 2), np.arange(6.0).reshape(2, 3).T))
    for _ in range(4):
        _, tail, (one, other), turned = fn(cp.ones(2))
        assert (tail.tolist(), one.tolist(), other.tolist()) == ([1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.0], [2.0, 3.0])
        assert turned.strides == (8, 24)
        one[:] = tail[:] = 7.0
    assert fn.variants[0].launches == 3


def test_the_reason_names_the_place(cp: Any) -> None:
    here = types.SimpleNamespace(names=['a'])

    def function(x: Any) -> Any:
        here.names = list(here.names)
        return x * 2

    fn = ck.graphed(function)
    for _ in range(2):  # a first run may fill a cache, which is no reason yet
        fn(cp.ones(2))
    assert fn.variants[0].reason == (
        'the function puts a list object in the place of an equal one: attribute names of a SimpleNamespace object'
    )
