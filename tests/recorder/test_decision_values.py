"""Random programs whose values leave decisions: what Python gives, a launch gives, or the program is refused."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from tests.captured import capture, simulated, values
from tests.examples import examples

_PLACES = ('a', 'b', 'o.v', 'box[0]', 'held["k"]')
_COND = 'cap.cond({y}[0] > {k} * 3, lambda: {x} * 2, lambda: {y} + 1)'
_LOOP = 'cap.loop(lambda v: v[0] < {k} * 10, lambda v: v * 2 + 1, {y}, limit=4)'
#: Work that no decision can make wrong.
_SOUND = {
    'in place': '{x} += {y} * {k}', 'temporary': 't{n} = {y} * {k}; {x} += t{n}', 'cond': '{x}[...] = ' + _COND,
    'loop': '{x}[...] = ' + _LOOP,
}  # fmt: skip
_LINES = {
    **_SOUND, 'bind': '{x} = {y} * {k}', 'one name': 't = {y} * {k}; {x} += t', 'bind cond': '{x} = ' + _COND,
    'bind loop': '{x} = ' + _LOOP, 'append': 'out.append({y} * {k})', 'number': 'total = total + {y}[0] * {k}',
    'helper': 'rebinds({k})', 'read name': '{x} += t', 'read list': '{x} += out[-1]', 'read view': '{x}[...] = t[::-1]',
    'read product': '{x} += t @ t',
}  # fmt: skip


def programs(kinds: Any) -> Any:
    place = st.sampled_from(_PLACES)
    leaf = st.tuples(st.sampled_from(tuple(kinds)), place, place, st.integers(1, 3))

    def decided(inner: Any) -> Any:
        some = (
            st.tuples(st.just('while'), st.integers(0, 3), inner),
            st.tuples(st.just('if'), st.integers(0, 1), inner),
            st.tuples(st.just('else'), st.integers(0, 1), inner, inner),
        )
        return st.lists(st.one_of(leaf, *some), min_size=1, max_size=3)

    return st.recursive(st.lists(leaf, min_size=1, max_size=3), decided, max_leaves=6)


def written(program: Any, recorded: bool, count: Iterator[int], indent: str = '') -> Iterator[str]:
    """The lines of a program: with decisions of a capture, or with those of Python."""
    for kind, *args in program:
        n = next(count)
        if kind in _LINES:
            x, y, k = args
            yield indent + _LINES[kind].format(x=x, y=y, k=k, n=n)
            continue
        yield f'{indent}n{n} = cp.full((), {args[0]}, "i4")'
        heads = [f'{"if" if kind == "else" else kind} n{n}:', 'else:'] if not recorded else [f'with cap.{kind}_(n{n}):']
        inner = indent
        if recorded and kind == 'else':
            yield f'{indent}with cap.if_else(n{n}) as (then{n}, else{n}):'
            heads, inner = [f'with then{n}:', f'with else{n}:'], indent + '    '
        for head, body in zip(heads, args[1:]):
            yield inner + head
            yield from written(body, recorded, count, inner + '    ')
        if kind == 'while':
            yield f'{inner}    n{n} -= 1'


_BEFORE = """
a, b, total = cp.arange(2.0), cp.ones(2), 0.0
o, box, held, out = SimpleNamespace(v=cp.full(2, 2.0)), [cp.full(2, 3.0)], {'k': cp.full(2, 4.0)}, [cp.full(2, 5.0)]
def rebinds(k):
    global a
    a = a * k
"""


def loop(test: Any, body: Any, v: Any, limit: int) -> Any:
    for _ in range(limit):
        v = body(v) if test(v) else v
    return v


def ran(cp: Any, program: Any, recorded: bool, **options: Any) -> list[Any] | None:
    """What the places hold after a run; None if it was refused, or if Python knows no such program."""
    names: dict[str, Any] = {'cp': cp, 'SimpleNamespace': SimpleNamespace}
    exec(compile(_BEFORE, 'before.py', 'exec'), names)
    code = compile('\n'.join(written(program, recorded, itertools.count())), 'program.py', 'exec')
    try:
        if recorded:
            with capture(**options) as names['cap']:
                exec(code, names)
            names['cap'].graph.launch()
        else:
            names['cap'] = SimpleNamespace(cond=lambda test, one, other: one() if test else other(), loop=loop)
            exec(code, names)
    except (NameError, ck.CaptureError):
        return None
    found = [names['a'], names['b'], names['o'].v, names['box'][0], names['held']['k'], *names['out']]
    return [*map(values, found), float(names['total'])]


@settings(max_examples=examples(60), deadline=None)
@given(program=programs(_LINES), seed=st.integers(0, 3))
def test_values_that_leave_decisions(program: Any, seed: int) -> None:
    with simulated(seed) as cp:
        check(cp, program)


@settings(max_examples=examples(30), deadline=None)
@given(program=programs(_SOUND), seed=st.integers(0, 3))
def test_sound_programs_are_not_refused(program: Any, seed: int) -> None:
    with simulated(seed) as cp, warnings.catch_warnings():
        warnings.simplefilter('error')
        for strict in (True, False):
            want = ran(cp, program, False)
            assert want is not None and ran(cp, program, True, strict=strict) == want


@pytest.mark.gpu
@settings(max_examples=examples(60), deadline=None)
@given(program=programs(_LINES))
def test_values_that_leave_decisions_on_a_gpu(program: Any) -> None:
    check(pytest.importorskip('cupy'), program)


def check(cp: Any, program: Any) -> None:
    want, found = ran(cp, program, False), ran(cp, program, True)
    assert want is None or found is None or found == want
