"""Random programs whose values leave decisions: what Python gives, a launch gives, or the program is refused."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capturekit as ck
from tests.captured import simulated, values
from tests.examples import examples

_PLACES = ('a', 'b', 'o.v', 'box[0]', 'held["k"]')
_place, _k = st.sampled_from(_PLACES), st.integers(1, 3)
#: Work that no decision can make wrong.
_sound = st.one_of(
    st.tuples(st.just('in place'), _place, _place, _k),
    st.tuples(st.just('temporary'), _place, _place, _k),
    st.tuples(st.sampled_from(('cond', 'loop')), _place, _place, _k),
)
_any = st.one_of(
    _sound,
    st.tuples(
        st.sampled_from(('bind', 'one name', 'bind cond', 'bind loop', 'append', 'number', 'helper')),
        _place,
        _place,
        _k,
    ),
    st.tuples(st.sampled_from(('read name', 'read list', 'read view', 'read product')), _place, _place, _k),
)


def programs(leaf: Any) -> Any:
    return st.recursive(
        st.lists(leaf, min_size=1, max_size=3),
        lambda inner: st.lists(
            st.one_of(
                leaf,
                st.tuples(st.just('while'), st.integers(0, 3), inner),
                st.tuples(st.just('if'), st.integers(0, 1), inner),
                st.tuples(st.just('else'), st.integers(0, 1), inner, inner),
            ),
            min_size=1,
            max_size=3,
        ),
        max_leaves=6,
    )


_LINES = {
    'in place': '{x} += {y} * {k}',
    'temporary': 't{n} = {y} * {k}; {x} += t{n}',
    'bind': '{x} = {y} * {k}',
    'one name': 't = {y} * {k}; {x} += t',
    'append': 'out.append({y} * {k})',
    'number': 'total = total + {y}[0] * {k}',
    'helper': 'rebinds({k})',
    'read name': '{x} += t',
    'read list': '{x} += out[-1]',
    'read view': '{x}[...] = t[::-1]',
    'read product': '{x} += t @ t',
}


class Written:
    """The source of a program: with decisions of a capture, or with those of Python."""

    def __init__(self, recorded: bool) -> None:
        self.recorded = recorded
        self.lines: list[str] = []
        self.count = 0

    def block(self, program: Any, depth: int = 0) -> None:
        for step in program:
            self.count += 1
            kind, n = step[0], self.count
            if kind in ('while', 'if', 'else'):
                self.decision(kind, step, depth, n)
            elif kind.endswith(('cond', 'loop')):
                _kind, x, y, k = step
                place = x if kind.startswith('bind') else f'{x}[...]'
                self.add(depth, f'{place} = {self.returned(kind[-4:], x, y, k)}')
            else:
                _kind, x, y, k = step
                self.add(depth, _LINES[kind].format(x=x, y=y, k=k, n=n))

    def returned(self, kind: str, x: str, y: str, k: int) -> str:
        if kind == 'cond':
            test, then, otherwise = f'{y}[0] > {k * 3}', f'{x} * 2', f'{y} + 1'
            if not self.recorded:
                return f'({then}) if {test} else ({otherwise})'
            return f'cap.cond({test}, lambda: {then}, lambda: {otherwise})'
        functions = f'lambda v: v[0] < {k * 10}, lambda v: v * 2 + 1, {y}'
        return f'cap.loop({functions}, limit=4)' if self.recorded else f'loop({functions})'

    def decision(self, kind: str, step: Any, depth: int, n: int) -> None:
        self.add(depth, f'n{n} = cp.full((), {step[1]}, "i4")')
        if kind == 'while':
            self.add(depth, f'with cap.while_(n{n}):' if self.recorded else f'while n{n}:')
            self.block(step[2], depth + 1)
            self.add(depth + 1, f'n{n} -= 1')
        elif kind == 'if':
            self.add(depth, f'with cap.if_(n{n}):' if self.recorded else f'if n{n}:')
            self.block(step[2], depth + 1)
        elif self.recorded:
            self.add(depth, f'with cap.if_else(n{n}) as (then{n}, else{n}):')
            for name, body in ((f'then{n}', step[2]), (f'else{n}', step[3])):
                self.add(depth + 1, f'with {name}:')
                self.block(body, depth + 2)
        else:
            self.add(depth, f'if n{n}:')
            self.block(step[2], depth + 1)
            self.add(depth, 'else:')
            self.block(step[3], depth + 1)

    def add(self, depth: int, line: str) -> None:
        self.lines.append('    ' * depth + line)


_BEFORE = """
a, b, total = cp.arange(2.0), cp.ones(2), 0.0
o, box, held, out = SimpleNamespace(v=cp.full(2, 2.0)), [cp.full(2, 3.0)], {'k': cp.full(2, 4.0)}, [cp.full(2, 5.0)]
def rebinds(k):
    global a
    a = a * k
def loop(test, body, v):
    for _ in range(4):
        if not test(v):
            break
        v = body(v)
    return v
"""


def ran(cp: Any, program: Any, recorded: bool, **options: Any) -> list[Any] | None:
    """What the places hold after a run; None if it was refused, or if Python knows no such program."""
    names: dict[str, Any] = {'cp': cp, 'SimpleNamespace': SimpleNamespace}
    exec(compile(_BEFORE, 'before.py', 'exec'), names)
    written = Written(recorded)
    written.block(program)
    code = compile('\n'.join(written.lines), 'program.py', 'exec')
    try:
        if recorded:
            with ck.capture(**options) as names['cap']:
                exec(code, names)
            names['cap'].graph.launch()
        else:
            exec(code, names)
    except (NameError, ck.CaptureError):
        return None
    o, box, held, out = (names[name] for name in ('o', 'box', 'held', 'out'))
    total = names['total']
    found = [names['a'], names['b'], o.v, box[0], held['k'], *out]
    return [*map(values, found), total if isinstance(total, float) else float(total)]


@settings(max_examples=examples(60), deadline=None)
@given(program=programs(_any), seed=st.integers(0, 3))
def test_values_that_leave_decisions(program: Any, seed: int) -> None:
    with simulated(seed) as cp:
        check(cp, program)


@settings(max_examples=examples(30), deadline=None)
@given(program=programs(_sound), seed=st.integers(0, 3))
def test_sound_programs_are_not_refused(program: Any, seed: int) -> None:
    with simulated(seed) as cp, warnings.catch_warnings():
        warnings.simplefilter('error')
        for strict in (True, False):
            want = ran(cp, program, False)
            assert want is not None and ran(cp, program, True, strict=strict) == want


@pytest.mark.gpu
@settings(max_examples=examples(60), deadline=None)
@given(program=programs(_any))
def test_values_that_leave_decisions_on_a_gpu(program: Any) -> None:
    check(pytest.importorskip('cupy'), program)


def check(cp: Any, program: Any) -> None:
    want, found = ran(cp, program, False), ran(cp, program, True)
    assert want is None or found is None or found == want
