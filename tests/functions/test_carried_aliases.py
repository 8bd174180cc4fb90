"""Other ways to what launches change: other names, other threads, code written in C. Calls go as eager ones."""

from __future__ import annotations

import operator
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from tests.functions.test_carried_state import launches, shown

#: Programs: what they begin with, the function, and what is done before calls, by the number of the call.
PROGRAMS: dict[str, tuple[str, str, dict[int, str]]] = {
    'a dict becomes a global': (
        "one.d = {'k': 3}; G = {'k': 3}",
        "one.d['k'] = 5\n    return x * G['k']",
        {**dict.fromkeys(range(1, 12), "one.d['k'] = 3"), 7: "one.d['k'] = 3; G = one.d"},
    ),
    'a dict is a global no more': (
        "one.d = {'k': cp.ones(3)}; G = one.d",
        "one.d['k'] = one.d['k'] + x\n    return x * G['k']",
        {7: 'one.d = dict(one.d)'},
    ),
    'a list in two items of a dict': (
        "L = [cp.ones(3)]; one.d = {'a': L, 'b': L}",
        "one.d['a'][0] = x\n    return x * one.d['b'][0]",
        {7: "one.d['b'] = list(one.d['b'])"},
    ),
    'two objects get one dict': (
        'one.k = two.k = 3',
        'one.k = 5\n    return x * two.k',
        {**dict.fromkeys(range(1, 12), 'one.k = 3'), 7: 'one.k = 3; two.__dict__ = one.__dict__'},
    ),
    'a list that grows becomes a global': (
        'one.log = []; G = []',
        'one.log.append(1.0)\n    return x * len(G)',
        {**dict.fromkeys(range(1, 12), 'del one.log[:]'), 7: 'G = one.log'},
    ),
    'two lists that grow become one': (
        'one.log = []; two.log = []',
        'one.log.append(1)\n    two.log.append(2)\n    one.log.append(3)\n    return x * 2',
        {7: 'two.log = one.log'},
    ),
    'the list is replaced': ('one.log = []', 'one.log.append(x * 2)\n    return x', {5: 'one.log = []'}),
    'two arrays without elements': (
        'one.prev = cp.zeros(0); one.now = cp.zeros(0)',
        'same = one.prev is one.now\n    one.prev = cp.zeros(0)\n    return x + (2 if same else 3)',
        {7: 'one.prev = one.now'},
    ),
    'a tuple that was there before': (
        'T = (1, 2.0); one.pair = (1, 2.0); n = 0',
        'one.pair = T\n    one.last = x\n    return x',
        {7: 'one.pair = (1, 2.0)'},
    ),
    'a failed read leads to places that share memory': (
        'Z = cp.full(3, 5.0); one.b = one.c = Z; one.extra = 1',
        'if x.sum() > 20:\n        one.b += x\n        one.c += 10\n'
        '        one.b, one.c = one.c * one.extra, one.b * 1\n        return x * 3\n    return x * 2 + one.b[0]',
        {3: 'one.b, one.c = cp.zeros(3), cp.ones(3)', 6: 'one.b = one.c = Z; one.extra = 2', 7: 'one.extra = 1'},
    ),
    'one dict behind two objects': (
        'one.n = 0; two.__dict__ = one.__dict__; one.k = 3',
        'one.n += 1\n    return x * two.k',
        {},
    ),
    'a global by two names': (
        'me = sys.modules[__name__]; n = 0',
        'global n\n    n += 1\n    me.n += 1\n    return x * 2',
        {},
    ),
}  # fmt: skip


class World:
    """A module of its own with two objects, and a function over them."""

    def __init__(self, cp: Any, name: str, begin: str, body: str) -> None:
        module = types.ModuleType(f'world_of_{name}')
        sys.modules[module.__name__] = module
        self.space = vars(module)
        self.space.update(cp=cp, sys=sys, threading=threading, operator=operator, types=types)
        exec('class H: pass\none, two = H(), H()', self.space)
        exec(begin, self.space)
        exec(f'def work(x):\n    {body}', self.space)

    def state(self) -> Any:
        mine = {name: value for name, value in self.space.items() if name in ('G', 'L', 'n', 'last')}
        return shown([mine, vars(self.space['one']), vars(self.space['two'])])


def agree(cp: Any, begin: str, body: str, before: dict[int, str], calls: int = 12) -> Any:
    plain, graphed = World(cp, 'plain', begin, body), World(cp, 'graphed', begin, body)
    fn = ck.graphed(graphed.space['work'])
    for number in range(calls):
        big = number in (3, 4, 5, 7, 9)
        results = []
        for world, call in ((plain, plain.space['work']), (graphed, fn)):
            exec(before.get(number, ''), world.space)
            results.append(shown(call(cp.arange(3.0) + (9 if big else 1))))
        assert results[0] == results[1], number
        assert plain.state() == graphed.state(), number
    return fn


@pytest.mark.parametrize('name', PROGRAMS)
def test_other_ways_to_a_place(sim: Any, name: str) -> None:
    agree(sim, *PROGRAMS[name])


#: Ways to read a counter ``one.n`` that do not name it where they read it.
READS = {
    'attrgetter': ("READ = operator.attrgetter('n')", 'READ(one)'),
    'attrgetter by a computed name': ("NAME = 'n'", 'operator.attrgetter(NAME)(one)'),
    'a property of it': ("H.total = property(operator.attrgetter('n'))", 'one.total'),
    'a key of max': ("READ = operator.attrgetter('n'); two.n = 0", 'READ(max([one, two], key=READ))'),
    'a namespace that is compared': (
        'one = types.SimpleNamespace(n=0); other = types.SimpleNamespace(n=4)',
        '(one == other)',
    ),
    'a namespace that is shown': ('one = types.SimpleNamespace(n=0)', 'len(repr(one)) + int(repr(one)[-2])'),
    'the attribute of any name': ("NAME = 'n'", 'object.__getattribute__(one, NAME)'),
    'a hook': (
        "H.__getattr__ = lambda self, name: object.__getattribute__(self, name[1:])",
        'one._n',
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', READS)
def test_a_counter_that_is_read_without_its_name(sim: Any, name: str) -> None:
    begin, read = READS[name]
    agree(sim, f'one.n = 0; {begin}', f'one.n += 1\n    return x * {read}', {})


def test_locals_that_are_counted(sim: Any) -> None:
    def made() -> Callable[[Any], Any]:
        n = 0

        def work(x: Any) -> Any:
            nonlocal n
            n += 1
            return x * sum(v for v in list(locals().values()) if type(v) is int)

        return work

    plain, graphed = made(), ck.graphed(made())
    for _ in range(8):
        assert graphed(sim.ones(2)).get().tolist() == plain(sim.ones(2)).get().tolist()


def test_a_slot_by_its_descriptor(sim: Any) -> None:
    class Slotted:
        __slots__ = ('n',)

    one, read = Slotted(), Slotted.__dict__['n'].__get__
    one.n = 0

    def work(x: Any) -> Any:
        one.n += 1
        return x * read(one)

    fn = ck.graphed(work)
    assert [fn(sim.ones(1)).get().tolist() for _ in range(8)] == [[n + 1.0] for n in range(8)]


def test_an_attribute_that_is_set_by_a_computed_name(sim: Any) -> None:
    class Prefixed:
        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, '_' + name, value)

    one: Any = Prefixed()

    def work(x: Any) -> Any:
        one.last = x * 2
        return x + 1

    fn = ck.graphed(work)
    olds = []
    for number in range(8):
        fn(sim.full(2, float(number)))
        olds.append(one._last)
    assert [old.get().tolist() for old in olds] == [[2.0 * n] * 2 for n in range(8)]


def test_an_argument_that_is_the_list_that_grows(sim: Any) -> None:
    log: list[float] = []

    def work(rows: list[float], x: Any) -> Any:
        log.append(1.0)
        return x * len(rows)

    fn = ck.graphed(work)
    for number in range(12):
        rows = log if number > 6 else []
        del log[:]
        assert fn(rows, sim.ones(2)).get().tolist() == [float(rows is log)] * 2


def test_a_function_with_a_lock_stays_eager(sim: Any) -> None:
    lock, one = threading.Lock(), types.SimpleNamespace(n=0, last=None)

    def work(x: Any) -> Any:
        with lock:
            one.last = x * 2
        return x

    fn = ck.graphed(work)
    for _ in range(6):
        fn(sim.ones(2))
    assert launches(fn) == 0


def test_threads_count_every_call(sim: Any) -> None:
    class Counter:
        n = 0

    one = Counter()

    def work(x: Any) -> Any:
        one.n += 1
        return x * 2

    fn, before = ck.graphed(work), sys.getswitchinterval()

    def calls(size: int) -> None:
        for _ in range(40):
            fn(sim.ones(size))

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=calls, args=(size,)) for size in (2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert one.n == 120


def test_ways_that_take_turns_are_both_recorded(sim: Any) -> None:
    class Holder:
        total = sim.zeros(3)

    one = Holder()
    one.total = sim.zeros(3)

    def work(x: Any) -> Any:
        one.total = one.total + x
        return x * 3 if x.sum() > 20 else x * one.total

    fn, wanted = ck.graphed(work), [0.0] * 3
    for number in range(20):
        x = [1.0, 2.0, 30.0 * (number % 2)]
        wanted = [a + b for a, b in zip(wanted, x)]
        found = fn(sim.array(x)).get().tolist()
        assert found == [a * 3 if number % 2 else a * b for a, b in zip(x, wanted)]
    assert [variant.state for variant in fn.variants] == ['recorded', 'recorded']
