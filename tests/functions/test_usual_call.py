"""The quick look at a call's arguments: it takes no call for one of the last kind that is of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.functions.usual_call import usual_call
from capturekit.functions.variant import opaque
from capturekit.model.pytree import take_apart
from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.captured import values
from tests.examples import examples

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
    told(cp.full(4, 1.0), one)  # the first multiplication of a process fills a cache of CuPy's
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


def fits(cp: Any, made: tuple[Any, ...], given: tuple[Any, ...], names: tuple[str, ...] = ('k',)) -> list[Any] | None:
    """The arrays of a call that was looked at quickly, the last argument by name; None if it needs a closer look."""

    def split(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args[:-1], dict(zip(names, args[-1:]))

    usual = usual_call(cp, *split(made), take_apart(split(made), lambda one: isinstance(one, cp.ndarray), opaque)[1], 0)
    return None if usual is None else usual.leaves(*split(given))


@pytest.mark.parametrize('one', [True, 3, 'text', b'x', None, 2.5, Box(1.0), Box, len])
def test_calls_with_the_same_arguments_fit(cp: Any, one: Any) -> None:
    a, b, c = cp.ones(3), cp.zeros(3), cp.ones((2, 2), 'f4')
    assert fits(cp, (a, one, c, b), (b, one, c, a)) == [b, c, a]
    assert fits(cp, (one, one), (one, one)) == []
    for other in (Box(1.0), a, 4, 'other', 1.5, b'other', 3.0, 1):
        assert fits(cp, (a, one), (b, other)) is None
        assert fits(cp, (one, a), (other, b)) is None


def test_equal_texts_and_numbers_fit_and_zeros_only_by_identity(cp: Any) -> None:
    text = ''.join(['a', 'b'])
    assert fits(cp, ('ab', 10**9), (text, int('1' + '0' * 9))) == []
    assert fits(cp, (b'ab', 2.5), (bytes([97, 98]), float('2.5'))) == []
    zero = 0.0
    assert fits(cp, (zero, 1), (zero, 1)) == [] and fits(cp, (zero, 1), (-0.0, 1)) is None
    assert fits(cp, (zero, 1), (float('0'), 1)) is None


def test_what_never_fits_or_has_no_quick_look(cp: Any) -> None:
    a, b = cp.ones(3), cp.zeros(3)
    assert fits(cp, (a, b), (a, a)) is None and fits(cp, (a, b, a[:1]), (a, b, b)) is None
    assert fits(cp, (a, a), (a, b)) is None
    assert fits(cp, (a, [b, 1]), (a, [b, 1])) is None and fits(cp, (a, (1, 2)), (a, (1, 2))) is None
    assert fits(cp, (a, b), (a,)) is None and fits(cp, (a, b), (a, b, b)) is None
    for other in (cp.ones(4), cp.ones(3, 'f4'), cp.ones(6)[::2], np.ones(3)):
        assert fits(cp, (a, 1), (other, 1)) is None
    three = a, b, cp.ones(3)
    assert fits(cp, three, (a, b, a)) is None and fits(cp, three, (b, a, three[2])) == [b, a, three[2]]


@pytest.mark.parametrize(
    'made',
    [
        lambda cp: cp.ones(()),
        lambda cp: cp.ones(6),
        lambda cp: cp.ones(1),
        lambda cp: cp.ones(12)[::2],
        lambda cp: cp.ones((2, 3)),
        lambda cp: cp.ones((3, 2)),
        lambda cp: cp.ones((2, 3), order='F'),
        lambda cp: cp.ones((6, 1)),
        lambda cp: cp.ones((6, 4))[:, :1],
        lambda cp: cp.ones((1, 6)),
        lambda cp: cp.ones((0, 3)),
        lambda cp: cp.ones((0,)),
        lambda cp: cp.ones(6, 'f4'),
        lambda cp: cp.ones((1, 2, 3)),
    ],
)
def test_arrays_of_another_layout_do_not_fit(cp: Any, made: Callable[[Any], Any]) -> None:
    """Of two arrays the quick look says what their shapes, strides and dtypes say."""
    whole = cp.ones((7, 6))
    others = [
        cp.ones(()), cp.ones(6), cp.ones(1), cp.ones(12)[::2], cp.ones((2, 3)), cp.ones((3, 2)), cp.ones((3, 2)).T,
        cp.ones((2, 3), order='F'), cp.ones((6, 1)), cp.ones((6, 4))[:, :1], whole[:1], whole[:6, :1], whole[:6, 0],
        cp.ones((1, 6)), cp.ones((0, 3)), cp.ones((0,)), cp.ones(6, 'f4'), cp.ones(6, 'i8'), cp.ones((1, 2, 3)),
    ]  # fmt: skip
    array = made(cp)
    usual = usual_call(cp, (array,), {}, 1, 0)
    assert usual is not None
    for other in (*others, made(cp)):
        alike = (other.shape, other.strides, other.dtype) == (array.shape, array.strides, array.dtype)
        for found in (usual.leaves((other,), {}), fits(cp, (array,), (other,)), fits(cp, (1, [array]), (1, [other]))):
            assert (found is not None and found[0] is other) if alike else found is None


def test_lists_and_tuples_of_arrays_have_a_quick_look(cp: Any) -> None:
    a, b, c = cp.ones(3), cp.zeros(3), cp.ones(4)
    assert fits(cp, (a, [b]), (a, [b])) == [a, b] and fits(cp, ((a, b), 2), ((b, a), 2)) == [b, a]
    for other in ([c], [a], [], [b, b], [b, c], (b,), b, [1], [np.zeros(3)]):
        assert fits(cp, (a, [b]), (a, other)) is None
    assert fits(cp, (a, []), (a, [])) is None and fits(cp, ([a], [a]), ([a], [b])) is None
    twice = [a]
    assert fits(cp, ([a], [b]), (twice, twice)) is None


def test_a_list_reached_in_another_way_takes_a_closer_look(cp: Any) -> None:
    x, y = cp.ones(3), cp.zeros(3)
    form = take_apart((([x, y],), {}), lambda one: type(one) is cp.ndarray, opaque)[1]
    given, seen = [x, y], set[int]()
    usual = usual_call(cp, ([x, y],), {}, form, 0, lambda met: not met.isdisjoint(seen))
    assert usual is not None and usual.leaves((given,), {}) == given
    seen.add(id(given))
    assert usual.leaves((given,), {}) is None


def test_lists_of_arrays_are_told_apart_at_each_call(cp: Any) -> None:
    fn = ck.graphed(lambda arrays: [one * 2 for one in arrays])
    for n in range(8):
        arrays = [cp.full(3 + n % 2, float(n + k)) for k in range(2 + n // 4)]
        assert [values(one) for one in fn(arrays)] == [[2.0 * (n + k)] * (3 + n % 2) for k in range(len(arrays))]
    assert launches(fn)


class Text(str):
    """A text that is equal to another one and of another class."""


def test_dicts_of_arrays_have_a_quick_look(cp: Any) -> None:
    a, b, c = cp.ones(3), cp.zeros(3), cp.ones((2, 2), 'f4')
    assert fits(cp, ({'a': a, 'b': b}, c), ({'a': b, 'b': a}, c)) == [b, a, c]
    others = [{'b': b, 'a': a}, {'a': a}, {'a': a, 'c': b}, {'a': a, 'b': b, 'c': c}, {'a': a, 'b': a},
              {'a': a, 'b': 1}, {Text('a'): a, 'b': b}, [a, b], {'a': a, 'b': cp.ones(4)}]  # fmt: skip
    for other in others:
        assert fits(cp, ({'a': a, 'b': b}, c), (other, c)) is None
    assert fits(cp, ({1: a}, c), ({1: a}, c)) is None and fits(cp, ({Text('a'): a}, c), ({Text('a'): a}, c)) is None


def test_dicts_of_arrays_are_told_apart_at_each_call(cp: Any) -> None:
    def fn(given: dict[str, Any]) -> Any:
        total = sum(value * 10.0**number for number, value in enumerate(given.values()))
        given['last'] = total
        return total, list(given)

    a, b = cp.ones(3), cp.zeros(3)
    graphed = ck.graphed(fn)
    for one in [{'a': a, 'b': b}] * 4 + [{'b': b, 'a': a}, {'a': b, 'b': a}, {'a': a}, {'a': a, 'b': a}] * 3:
        wanted, found = dict(one), dict(one)
        total, names = fn(wanted)
        result, listed = graphed(found)
        assert values(result) == values(total) and listed == names
        assert list(found) == list(wanted) and values(found['last']) == values(wanted['last'])


def test_draws_from_the_global_state_are_answered_at_once(cp: Any) -> None:
    def noisy(given: dict[str, Any]) -> Any:
        return given['x'] + cp.random.random(3)

    fn, given = ck.graphed(noisy), {'x': cp.zeros(3)}
    found = {tuple(values(fn(given))) for _ in range(6)}
    assert len(found) == 6 and launches(fn) >= 4
    cp.random.seed(4)
    first = values(fn(given))
    cp.random.set_random_state(cp.random.RandomState(4))
    assert values(fn(given)) == first


def test_a_call_on_another_device_does_not_fit(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = [0]
    monkeypatch.setattr(sim.cuda.runtime, 'getDeviceCount', lambda: 2)
    monkeypatch.setattr(sim.cuda, 'get_device_id', lambda: device[0])
    usual = usual_call(sim, (1,), {}, take_apart(((1,), {}), lambda one: False, opaque)[1], 0)
    assert usual is not None and usual.leaves((1,), {}) == []
    device[0] = 1
    assert usual.leaves((1,), {}) is None
