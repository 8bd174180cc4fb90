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
from tests.examples import examples

NUMBERS = [0.0, -0.0, float('nan'), 1.0, 1, True, 0, False, 2.5, '1', 'a', b'a', None, 1j, (1, 2), (1, 2.0)]


def told(x: Any, one: Any, *, two: Any = None) -> Any:
    """A function whose result shows all of its arguments."""
    return x * 2.0, repr(one), repr(two)


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


def fits(cp: Any, made: tuple[Any, ...], given: tuple[Any, ...], names: tuple[str, ...] = ('k',)) -> list[Any] | None:
    """The arrays of a call that was looked at quickly, the last argument by name; None if it needs a closer look."""

    def split(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args[:-1], dict(zip(names, args[-1:]))

    usual = usual_call(cp, *split(made), take_apart(split(made), lambda one: isinstance(one, cp.ndarray), opaque)[1], 0)
    return None if usual is None else usual.leaves(*split(given))


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
    usual = usual_call(cp, (array,), {}, (tuple, (tuple, 0), (dict, ())), 0)
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
