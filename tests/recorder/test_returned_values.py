"""``cap.cond`` and ``cap.loop``: decisions on the device that return values."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from tests.captured import flag, launched

Pair = namedtuple('Pair', 'x n')


@dataclasses.dataclass
class State:
    x: Any
    n: Any


def test_cond_returns_what_the_branch_returns(cp: Any) -> None:
    root, x = cp.full((), 2.0), cp.ones(3)
    with ck.capture() as cap:
        answer = cap.cond(root > 1, lambda: root * 10, lambda: -root)
        y, n = cap.cond(root > 1, lambda a, k: (a * k, 1), lambda a, k: (a - k, 2), x, 5)
        z = answer + y.sum() + n
    for value, want in ((2.0, 20 + 15 + 1), (-3.0, 3 - 12 + 2), (4.0, 40 + 15 + 1)):
        root.fill(value)
        assert launched(cap, z) == [[want]]


def test_loop_returns_the_last_state(cp: Any) -> None:
    x = cp.ones(())
    with ck.capture() as cap:
        y = cap.loop(lambda x: x < 1000, lambda x: x * 2, x, limit=100)
        few = cap.loop(lambda x: x < 1000, lambda x: x * 2, x, limit=3)
        none = cap.loop(lambda x: x > 1e6, lambda x: x * 2, x)
        z = y + 1
    assert launched(cap, z, few, none, x) == [[1025.0], [8.0], [1.0], [1.0]]
    x.fill(300)
    assert launched(cap, z, few, none, x) == [[1201.0], [1200.0], [300.0], [300.0]]


FORMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], tuple[Any, Any]]]] = {
    'tuple': (lambda x, n: (x, n), lambda s: s),
    'named tuple': (Pair, lambda s: (s.x, s.n)),
    'list in a dict': (lambda x, n: {'s': [x, n], 'none': None}, lambda s: tuple(s['s'])),
    'dict in another order': (lambda x, n: {'n': n, 'x': x}, lambda s: (s['x'], s['n'])),
    'dataclass': (State, lambda s: (s.x, s.n)),
}


@pytest.mark.parametrize('form', FORMS)
def test_state_in_any_form(cp: Any, form: str) -> None:
    made, parts = FORMS[form]
    x = cp.arange(3.0)

    def body(state: Any) -> Any:
        x, n = parts(state)
        return dict(reversed(made(x + n, n + 1).items())) if 'order' in form else made(x + n, n + 1)

    with ck.capture() as cap:
        last = cap.loop(lambda s: parts(s)[1] < 4, body, made(x, 1))
    assert type(last) is type(made(x, 1))
    assert launched(cap, *parts(last)) == [[6.0, 7.0, 8.0], [4]]


def test_values_that_change_places(cp: Any) -> None:
    """Each place is written after all have been read."""
    with ck.capture() as cap:
        a, b, n = cap.loop(
            lambda s: s[2] < 10, lambda s: (s[1], s[0] + s[1], s[2] + 1), (cp.zeros((), 'i8'), cp.ones((), 'i8'), 0)
        )
        c, d, _ = cap.loop(lambda s: s[2] < 3, lambda s: (s[1], s[0], s[2] + 1), (cp.arange(2), cp.arange(2) + 5, 0))
        e, _ = cap.loop(lambda s: s[1] < 1, lambda s: (s[0][::-1], s[1] + 1), (cp.arange(3), 0))
    assert launched(cap, a, b, n, c, d, e) == [[55], [89], [10], [5, 6], [0, 1], [2, 1, 0]]


def test_nested_and_on_lanes(cp: Any) -> None:
    x, y, going, n = cp.ones(2), cp.ones(2), flag(cp), cp.zeros((), 'i8')

    def body(v: Any) -> Any:
        with cap.fork(2) as (left, right):
            with left:
                a = v * 2
            with right:
                b = v + 1
        return cap.cond(v[0] > 3, lambda: a + b, lambda: cap.loop(lambda w: w[0] < 4, lambda w: w + 1, b))

    with ck.capture() as cap:
        n.fill(0)
        going.fill(True)
        with cap.while_(going):
            x[...] = cap.loop(lambda v: v[0] < 20, body, x)
            n += 1
            cp.less(n, 2, out=going)
        with cap.fork(1) as (lane,), lane:
            y[...] = cap.loop(lambda v: v[0] < 20, lambda v: v * 3, y)
    want = 1.0
    while want < 20:
        want = 3 * want + 1 if want > 3 else max(want + 1, 4.0)
    assert launched(cap, x, y) == [[want] * 2, [27.0] * 2]


def test_a_result_belongs_to_the_body_around_it(cp: Any) -> None:
    x, on = cp.ones(2), flag(cp)
    with ck.capture() as cap:
        with cap.if_(on):
            y = cap.cond(on, lambda: x * 2, lambda: x)
            z = cap.loop(lambda v: v[0] < 5, lambda v: v + 1, y)
            x += z
        for value in (y, z):
            with pytest.raises(ck.UnsupportedCallError, match='made in the body of a decision'):
                x += value
    assert launched(cap, x) == [[6.0, 6.0]]


def test_beside_a_rehearsal(cp: Any) -> None:
    x = cp.ones(2)

    def whole(cap: Any) -> Any:
        k = float(x.sum())
        return x * k if cap is None else cap.cond(x[0] > 0, lambda: x * k, lambda: x)

    rehearsal = ck.rehearse(whole, None)
    with ck.capture(strict=False, rehearsal=rehearsal) as cap:
        y = whole(cap)
    assert launched(cap, y) == [[2.0, 2.0]]


BAD: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    'shapes': (lambda cap, x, on: cap.cond(on, lambda: x, lambda: x.sum()), r'float64\[2\] and float64\[\]'),
    'dtypes': (
        lambda cap, x, on: cap.cond(on, lambda: (x, 1), lambda: (x, 1.0)),
        r'\[1\] is int64\[\] and float64\[\]',
    ),
    'forms': (lambda cap, x, on: cap.cond(on, lambda: (x, x), lambda: [x, x]), 'same form: tuple.* and list'),
    'keys': (lambda cap, x, on: cap.cond(on, lambda: {'a': x}, lambda: {'b': x}), 'same form'),
    'a text': (lambda cap, x, on: cap.cond(on, lambda: [x, 'x'], lambda: [x, 'x']), r'\[1\] is str'),
    'no function': (lambda cap, x, on: cap.cond(on, x, x), 'takes functions, not ndarray'),
    'a number decides': (lambda cap, x, on: cap.cond(1, lambda: x, lambda: x), 'condition must be a CuPy array'),
    'state': (lambda cap, x, on: cap.loop(lambda v: v[0] < 3, lambda v: v[0], x), r'float64\[2\] and float64\[\]'),
    'state of text': (lambda cap, x, on: cap.loop(lambda v: on, lambda v: v, 'x'), 'it is str'),
    'body of text': (lambda cap, x, on: cap.loop(lambda v: v[0] < 3, lambda v: 'x', x), 'it is str'),
    'asks for two': (lambda cap, x, on: cap.loop(lambda v: v < 3, lambda v: v + 1, x), r'one element.* not bool\[2\]'),
    'asks the host': (lambda cap, x, on: cap.loop(lambda v: True, lambda v: v + 1, x), 'not bool'),
    'condition': (lambda cap, x, on: cap.loop(1, lambda v: v, x), 'takes functions, not int'),
    'limit': (lambda cap, x, on: cap.loop(lambda v: v[0] < 3, lambda v: v, x, limit='3'), 'limit must be'),
}


@pytest.mark.parametrize('wrong', BAD)
def test_what_is_wrong_is_named(cp: Any, wrong: str) -> None:
    call, text = BAD[wrong]
    x, y, on = cp.ones(2), cp.ones(2), flag(cp)
    with ck.capture() as cap:
        with pytest.raises(TypeError, match=text):
            call(cap, x, on)
        y += x
    assert launched(cap, y, x) == [[2.0, 2.0], [1.0, 1.0]]


def test_outside_of_a_capture(cp: Any) -> None:
    x, on = cp.ones(2), flag(cp)
    with ck.capture() as cap:
        y = x + 1
    for call in (lambda: cap.cond(on, lambda: x, lambda: x), lambda: cap.loop(lambda v: v[0] < 1, lambda v: v, x)):
        with pytest.raises(ck.ClosedError):
            call()
    assert launched(cap, y) == [[2.0, 2.0]]
