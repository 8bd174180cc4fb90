"""Arrays made in the body of a decision: no work recorded elsewhere may use them, and no place come to mean them."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import linecache
from collections import deque, namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import capturekit as ck
from tests.captured import flag, launched, values

MADE = 'made in the body of a decision'
MOVED = 'is another array at the end of the body'


def line_of(info: Any) -> str:
    return linecache.getline(info.value.location.file, info.value.location.line).strip()


USES = {
    'add': lambda cp, x, t: x + t,
    'in place': lambda cp, x, t: x.__iadd__(t),
    'into it': lambda cp, x, t: t.__iadd__(x),
    'item': lambda cp, x, t: x.__setitem__(slice(None), t),
    'its item': lambda cp, x, t: t.__setitem__(0, 1.0),
    'a view': lambda cp, x, t: x + t[:],
    'reversed': lambda cp, x, t: t[::-1] * 2,
    'sum': lambda cp, x, t: t.sum(),
    'function': lambda cp, x, t: cp.maximum(x, t),
    'matmul': lambda cp, x, t: x @ t,
    'dot': lambda cp, x, t: cp.dot(x, t),
    'concatenate': lambda cp, x, t: cp.concatenate([x, t]),
    'where': lambda cp, x, t: cp.where(x > 0, x, t),
    'copy': lambda cp, x, t: t.copy(),
    'fill': lambda cp, x, t: t.fill(3),
    'index': lambda cp, x, t: x[t.astype('i8')],
    'kernel': lambda cp, x, t: cp.exp(t),
    'reshape': lambda cp, x, t: t.reshape(-1)[:1] > 0,
}


@pytest.mark.parametrize('how', USES)
@pytest.mark.parametrize('strict', [True, False])
def test_use_outside_is_refused_at_its_line(cp: Any, how: str, strict: bool) -> None:
    x, y, on = cp.ones(2), cp.ones(2), flag(cp)
    with ck.capture(strict=strict) as cap:
        with cap.if_(on):
            t = x * 2
            y += t
        with pytest.raises(ck.UnsupportedCallError, match=MADE) as info:
            USES[how](cp, x, t)
        y *= 10
    made = info.value.rule.partition('made at ')[2].partition(' in ')[0].rpartition(':')[2]
    assert linecache.getline(__file__, int(made)).strip() == 't = x * 2' and 'cap.cond(' in info.value.remedy
    assert info.value.location is not None and info.value.location.file == __file__
    assert launched(cap, x, y) == [[1.0, 1.0], [30.0, 30.0]]
    assert type(t) is cp.ndarray and values(t) == [2.0, 2.0]


@pytest.mark.parametrize('use', ['cp.add(x, 1, out=t)', 'x.data.copy_from_device_async(address, t.nbytes)'])
def test_work_that_cupy_does_not_ask_about(cp: Any, use: str) -> None:
    """CuPy's compiled code takes an output as it is, a copy takes an address: the capture's end looks at the nodes."""
    x, y, on = cp.ones(2), cp.ones(2), flag(cp)
    with pytest.raises(ck.UnsupportedCallError, match=MADE) as info, ck.capture() as cap:
        with cap.if_(on):
            t = x * 2
            y += t
            address = t.data
        if 'out=t' in use:
            cp.add(x, 1, out=t)
        else:
            x.data.copy_from_device_async(address, t.nbytes)
    assert line_of(info) == use and type(t) is cp.ndarray


@pytest.mark.parametrize('where', ['a sibling', 'another body', 'a body around it', 'a nested body'])
def test_use_in_other_bodies(cp: Any, where: str) -> None:
    x, on = cp.ones(2), flag(cp)
    with ck.capture() as cap, cap.if_else(on) as (then, otherwise):
        with then:
            t = x * 2
            if where == 'a nested body':
                with cap.if_(on):
                    x += t  # the body that made it is open
            if where == 'a body around it':
                with cap.if_(on):
                    u = x * 2
                with pytest.raises(ck.UnsupportedCallError, match=MADE):
                    x += u
        with otherwise:
            if where == 'a sibling':
                with pytest.raises(ck.UnsupportedCallError, match=MADE):
                    x += t
            elif where == 'another body':
                with cap.while_(on, limit=2), pytest.raises(ck.UnsupportedCallError, match=MADE):
                    x += t
    assert launched(cap, x) == [[3.0, 3.0] if where == 'a nested body' else [1.0, 1.0]]


def test_what_may_be_asked_of_them(cp: Any) -> None:
    x, on = cp.ones((2, 3)), flag(cp)
    with ck.capture() as cap:
        with cap.if_(on):
            t = x * 2
            x += t
        assert t.shape == (2, 3) and t.dtype == 'f8' and t.nbytes == 48 and isinstance(t, cp.ndarray)
        del t
        with pytest.raises(ck.HostReadError):
            float(x.sum())
    assert launched(cap, x) == [[3.0] * 6]


@pytest.mark.parametrize('how', ['good', 'KeyError'])
def test_afterwards_they_are_ordinary_arrays(cp: Any, how: str) -> None:
    x, on, kept = cp.ones(2), flag(cp), {}
    with contextlib.suppress(KeyError), ck.capture() as cap:
        with cap.if_(on):
            kept[0] = (x * 2)[:1]
        if how != 'good':
            raise KeyError
    assert type(kept[0]) is cp.ndarray and values(kept[0] * 0 + 1)
    gc.collect()
    with ck.capture() as cap:
        y = x + kept[0] * 0
    assert len(launched(cap, y)[0]) == 2


class Model:
    shared: Any = None

    def __init__(self, w: Any) -> None:
        self.w = w
        self.state = {'m': [w]}

    def step(self) -> None:
        self.w = self.w * 2


class Slotted:
    __slots__ = ('w',)


#: How a place comes to mean another array; None for names of the function.
PLACES: dict[str, Callable[..., Any] | None] = {
    **dict.fromkeys(('name', 'number', 'list', 'dict', 'object')),
    'attribute': lambda x, model, *_: setattr(model, 'w', model.w * 2),
    'method': lambda x, model, *_: model.step(),
    'deep': lambda x, model, *_: model.state['m'].__setitem__(0, x * 2),
    'class': lambda x, *_: setattr(Model, 'shared', x * 2),
    'slot': lambda x, model, slotted, *_: setattr(slotted, 'w', x * 2),
    'item': lambda x, model, slotted, items, *_: items.__setitem__(0, x * 2),
    'grown': lambda x, model, slotted, items, *_: items.append(x * 2),
    'key': lambda x, model, slotted, items, keys, last: keys.__setitem__('k', x * 2),
    'deque': lambda x, model, slotted, items, keys, last: last.append(x * 2),
}


@pytest.mark.parametrize('decision', ['if', 'else', 'while'])
@pytest.mark.parametrize('place', PLACES)
def test_places_that_mean_another_array(cp: Any, place: str, decision: str) -> None:
    x, y, on, total, put = cp.ones(2), cp.ones(2), flag(cp), 0.0, PLACES[place]
    model, slotted, items, keys, last = Model(cp.ones(2)), Slotted(), [x], {'k': x}, deque([x], maxlen=1)
    slotted.w = Model.shared = x

    def change() -> None:
        nonlocal x, total, y, items, model
        y *= 3
        if place == 'name':
            x = x * 2
        elif place == 'list':
            items = [one * 2 for one in items]
        elif place == 'dict':
            model.state = {'m': [x * 2]}
        elif place == 'object':
            model = Model(x * 2)
        elif put is not None:
            put(x, model, slotted, items, keys, last)
        else:
            total = total + x.sum()

    with ck.capture() as cap:
        y += 1
        with pytest.raises(ck.UnsupportedCallError, match=MOVED) as info:
            if decision == 'else':
                with cap.if_else(on) as (then, _otherwise), then:
                    change()
            else:
                with cap.while_(on, limit=2) if decision == 'while' else cap.if_(on):
                    change()
        y *= 5
    Model.shared = None
    assert 'cap.loop' in info.value.remedy and info.value.location is not None
    assert launched(cap, y) == [[10.0, 10.0]]  # the body has been taken out
    lines = [linecache.getline(__file__, node.at.line).strip() for node in cap.graph.nodes if node.at is not None]
    assert 'y += 1' in lines and 'y *= 5' in lines and 'y *= 3' not in lines


@pytest.mark.parametrize('line', ['x = x * 2', 'change()'])
def test_names_of_a_script(cp: Any, line: str) -> None:
    """Of code that stands in no function, and such that a function of it sets."""
    change = 'def change():\n    global x\n    x = x * 2\n'
    code = compile(f'{change}with ck.capture() as cap, cap.if_(on):\n    {line}\n', 'script.py', 'exec')
    with pytest.raises(ck.UnsupportedCallError, match='`x` is another array') as info:
        exec(code, {'ck': ck, 'x': cp.ones(2), 'on': flag(cp)})
    assert info.value.location is not None and info.value.location.file == 'script.py'


def test_an_array_chosen_by_a_name(cp: Any) -> None:
    """Neither array was made in the body, and the name would mean the second one at every launch."""
    x, y, z, on = cp.ones(2), cp.zeros(2), cp.zeros(2), flag(cp, False)
    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match='`x` is another array'), cap.if_(on):
            x = y
        z += 1
    assert x is y and launched(cap, z) == [[1.0, 1.0]]


def test_adapting_captures_warn(cp: Any) -> None:
    x, on = cp.ones(2), flag(cp)
    with ck.capture(strict=False) as cap:
        with pytest.warns(RuntimeWarning, match='`x` is another array') as told, cap.if_(on):
            x = x * 2
        with pytest.raises(ck.UnsupportedCallError, match=MADE):
            x += 1
    assert told[0].filename == __file__ and [step for step in cap.recording.notes if '`x` is another' in step.text]


def test_names_of_their_own_are_sound(cp: Any) -> None:
    """A name that is set in a body and read nowhere else; the next body may set it anew."""
    x, model, on = cp.ones(2), SimpleNamespace(), flag(cp)
    with ck.capture() as cap:
        for _ in range(2):
            with cap.if_(on):
                t = x * 2
                x += t
        with cap.if_(on):
            model.buffer = x * 0
            x += model.buffer
        with cap.while_(on, limit=1):
            for n in range(2):
                x += n
            x = x.__iadd__(1)
            x = x[:]
        for _ in range(2):
            with cap.if_(on):
                pair, made = [x * 0, x], Model(x * 0)
                x += pair[0] + made.w
    assert launched(cap, x) == [[11.0, 11.0]]


@contextlib.contextmanager
def when(cap: Any, on: Any) -> Any:
    with cap.if_(on):
        yield


def test_a_name_of_the_function_that_calls_another_one(cp: Any) -> None:
    x, y, on = cp.ones(2), cp.ones(2), flag(cp)
    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match='`x` is another array'), when(cap, on):
            x = x * 2
        y += 1
    assert launched(cap, y) == [[2.0, 2.0]]


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


def test_what_a_branch_writes_into_an_operand_is_written_there(cp: Any) -> None:
    def doubled(a: Any) -> Any:
        a *= 2
        return a

    x = cp.ones(3)
    with ck.capture() as cap:
        y = cap.cond(x.sum() > 0, doubled, lambda a: a, x)
    assert launched(cap, x, y) == [[2.0] * 3, [2.0] * 3]


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
