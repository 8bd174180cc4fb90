"""A recording that fails leaves Python state as it was, also what the function changes and puts back in one call."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions import state_before
from capturekit.functions.environment import Environment
from capturekit.functions.watch import Watch
from capturekit.model.class_layout import MISSING
from tests.functions.test_reckoned_reads import told


class Slotted:
    __slots__ = ('there',)


class State:
    def __init__(self) -> None:
        self.number, self.text, self.items = 1.5, 'a', [1, 2, 3]
        self.table, self.more = {'k': 0.5, 'n': 0}, OrderedDict(a=1, b=2)
        self.chosen, self.last = {1, 2}, deque([1, 2], 3)
        self.numbers, self.bytes = np.ones(2), bytearray(2)
        self.slotted = Slotted()
        self.slotted.there = 4


#: What a function does first, with ``s``; afterwards it puts back what was there.
CHANGES = {
    'a number': 's.number = 7.0; then = s.number; s.number = 1.5',
    'an array': 's.number = x; then = s.number.sum(); s.number = 1.5',
    'an item': "s.table['k'] = 0.25; then = s.table['k']; s.table['k'] = 0.5",
    'another item': "s.table['z'] = 0.25; then = s.table['z']; del s.table['z']",
    'an item that goes': "s.more.popitem(); then = len(s.more); s.more['b'] = 2",
    'a list': 's.items.append(9); then = sum(s.items); s.items.pop()',
    'a list in another order': 's.items.reverse(); then = s.items[0]; s.items.reverse()',
    'a set': 's.chosen.add(9); then = len(s.chosen); s.chosen.discard(9)',
    'a deque': 's.last.append(9); then = s.last[-1]; s.last.pop()',
    'a slot': 's.slotted.there = 5; then = s.slotted.there; s.slotted.there = 4',
    'another attribute': 's.tmp = 5; then = s.tmp; del s.tmp',
    'a global': 'global g; g = 5; then = g; g = 2',
    'an attribute of a class': 'then = Flags.on; Flags.on = 5; Flags.on = 2',
    'a list of a class': 'Flags.seen.append(9); then = len(Flags.seen); Flags.seen.pop()',
    'a class': 'then = s.mode.level(); s.mode.__class__ = Other; s.mode.__class__ = Flags',
    'numbers': 's.numbers[0] += 1; then = float(s.numbers[0]); s.numbers[0] -= 1',
    'bytes': 's.bytes[0] += 1; then = s.bytes[0]; s.bytes[0] -= 1',
    'a context variable': 'context = level.set(level.get() + 1); then = level.get(); level.reset(context)',
    'a default': 'scaled.__defaults__[0].append(1); then = scaled(2); scaled.__defaults__[0].pop()',
    'items in another order': "s.more.move_to_end([*s.more][0]); then = [*s.more].index('a'); s.more.move_to_end('b')",
    'an attribute of a function': "then = hasattr(scaled, 'tmp') + 2; scaled.tmp = x; del scaled.tmp",
}
#: What these functions find besides.
AROUND = """
import contextvars
level = contextvars.ContextVar('level', default=1)
class Other:
    def level(self): return 7
class Flags:
    on, seen = 2, [1]
    def level(self): return 3
s.mode = Flags()
def scaled(v, by=[2]): return v * sum(by)
"""


def shown(state: State) -> Any:
    """All that the state holds, in order."""
    found = {
        name: told(value) if name in ('number', 'items', 'table') else repr(value)
        for name, value in vars(state).items()
    }
    found['mode'] = type(state.__dict__.get('mode')).__name__
    return {**found, 'slotted': state.slotted.there}


def made(text: str) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """A function that changes state and puts it back; a recording of it is refused in between."""
    before, _, after = text.rpartition('; ')
    names: dict[str, Any] = {'s': State(), 'host': np.ones(2), 'g': 2, '__name__': 'state_there'}
    exec(AROUND, names)
    source = (
        f'def of(x):\n    {before}\n    x.set(host)\n    y = x * then\n    {after}\n'
        '    return y * s.number + len(s.items) + g\n'
    )
    exec(source, names)
    return names['of'], names


@pytest.mark.parametrize('text', CHANGES)
def test_state_is_as_after_eager_calls(sim: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_before, 'is_alone', lambda: True)  # tests in several processes run beside a thread
    (plain, here), (other, there) = made(CHANGES[text]), made(CHANGES[text])
    fn = ck.graphed(other)
    for call in range(5):
        x, same = (sim.asarray([1.0, 2 + call % 4]) for _ in range(2))
        assert told(fn(x)) == told(plain(same)), call
        assert shown(there['s']) == shown(here['s']) and there['g'] == here['g']
        assert [*map(around, (there, here))] == [around(here)] * 2


def around(names: dict[str, Any]) -> Any:
    flags, scaled = names['Flags'], names['scaled']
    return flags.on, flags.seen, scaled.__defaults__, vars(scaled), names['level'].get()


class Kept:
    def __init__(self) -> None:
        self.r = 1.5


def test_a_recording_that_ends_in_the_middle(sim: Any) -> None:
    """The second attempt to record begins from what was there before the first one."""

    def function(x: Any, t: float, d: dict[str, Any], s: Kept) -> Any:
        y = x * d['k']
        if np.fmod(np.log(abs(np.abs(d['n'])) + 1), np.maximum(np.maximum(float(x[0]), d['k']), -s.r)) <= 1.0:
            d['n'] += 1
        d['k'] = t
        d['k'] = np.fmod(s.r, float(x.max()))
        return y

    def start() -> tuple[dict[str, Any], Any]:
        d, s = {'k': 0.5, 'n': 0}, Kept()
        names = {'d': d, 's': s, 'np': np, '__name__': 'in_the_middle'}
        lines = inspect.getsource(function).replace(', d: dict[str, Any], s: Kept', '')
        exec('from typing import Any\n' + textwrap.dedent(lines), names)
        return d, names['function']

    (mine, plain), (others, graphed) = start(), start()
    fn = ck.graphed(graphed)
    for call in range(14):
        x = sim.asarray(np.array([1, 2, 3], 'i4') * (1 + call % 5 * 0.5))
        assert told(fn(x, 0.5)) == told(plain(x, 0.5)), call
        assert told(others) == told(mine)


def watched(sim: Any, function: Callable[[], Any]) -> Environment:
    watch = Watch(function, is_array=lambda value: isinstance(value, sim.ndarray))
    watch.run((), {})
    return watch.environment


@pytest.mark.parametrize(
    'change',
    [
        lambda s: s.items.append(3),
        lambda s: s.items.clear(),
        lambda s: setattr(s, 'items', [1, 2, 3]),
        lambda s: s.table.update(z=1),
        lambda s: s.table.pop('k'),
        lambda s: s.more.pop('a'),
        lambda s: s.chosen.add(5),
        lambda s: s.last.append(5),
        lambda s: setattr(s.slotted, 'there', 5),
        lambda s: setattr(s, 'tmp', 5),
        lambda s: delattr(s, 'number'),
        lambda s: vars(s).clear(),
    ],
)
def test_everything_is_put_back(sim: Any, change: Callable[[State], Any]) -> None:
    state = State()

    def function() -> Any:
        return [
            state.number,
            state.text,
            state.items,
            state.table,
            state.more,
            state.chosen,
            state.last,
            state.slotted.there,
        ]

    environment = watched(sim, function)
    kept, held = environment.state_before(), list(vars(state).values())
    was, before = shown(state), list(vars(state))
    change(state)
    kept.put_back()
    assert (shown(state), list(vars(state))) == (was, before)
    assert all(one is other for one, other in zip(vars(state).values(), held))
    kept.put_back()
    assert shown(state) == was


def test_variables_and_globals_are_put_back(sim: Any) -> None:
    names: dict[str, Any] = {'there': 3, '__name__': 'state_there'}
    exec('def outer(value):\n    def inner():\n        return value, there\n    return inner', names)
    inner = names['outer'](5)
    kept = watched(sim, inner).state_before()
    del inner.__closure__[0].cell_contents, names['there']
    kept.put_back()
    assert inner() == (5, 3)


#: Functions of an object whose ``__dict__`` code has as a dict, too.
BY_TWO_NAMES = {
    'the same counter': "opt['n'] += 1\n    return x * args.n",
    'a counter': "opt['n'] += 1; return x * 2 if args.n > 7 else x * args.n",
    'a counter by its attribute': 'args.n += 1; return x * sum(v < 9 for v in opt.values() if isinstance(v, int))',
    'a number': "opt['lr'] *= 0.9; return x * args.lr",
    'a number by its attribute': "args.lr *= 0.9; return x * opt['lr']",
    'an array': "opt['w'] = opt['w'] + x; return args.w * 2",
    'both': "args.n += 1; opt['n'] += 1; return x * args.n",
    'a list that grows': "args.seen.append(1); return x * len(opt['seen'])",
}


@pytest.mark.parametrize('held', ['global', 'argument'])
@pytest.mark.parametrize('text', BY_TWO_NAMES)
def test_attributes_that_are_items_of_a_dict(sim: Any, text: str, held: str) -> None:
    def start() -> tuple[Any, Any, Callable[[Any], Any]]:
        args = argparse.Namespace(n=0, lr=0.5, w=sim.ones(2), seen=[])
        names: dict[str, Any] = {'args': args, 'opt': vars(args), '__name__': 'there'}
        parameters = 'x' if held == 'global' else 'x, opt'
        exec(f'def of({parameters}):\n    {BY_TWO_NAMES[text]}\n', names)
        return args, names['opt'], names['of']

    (mine, opt, plain), (other, theirs, function) = start(), start()
    fn = ck.graphed(function)
    for call in range(12):
        x = sim.asarray([1.0, call])
        given = ((x,), (x,)) if held == 'global' else ((x, opt), (x, theirs))
        assert told(fn(*given[1])) == told(plain(*given[0])), call
        assert told({**vars(other)}) == told({**vars(mine)})


class Late:
    """A class and, below, a function that get an attribute in the middle of a recording that fails."""


def late() -> None: ...


@pytest.mark.parametrize(('kind', 'holder'), [('class attribute', Late), ('function', late)])
def test_what_was_not_there_is_taken_away(kind: str, holder: Any) -> None:
    setattr(holder, 'seen', 3)  # noqa: B010
    entry: Any = SimpleNamespace(kind=kind, holder=holder, key='seen', mapping=vars(holder))
    state_before.put_there(entry, MISSING)
    assert 'seen' not in vars(holder)
