"""What a graphed function may read, one way after the other: what changes is seen, or the call is eager."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import dataclasses
import functools
import inspect
import itertools
import math
import operator
import os
import random
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import capturekit as ck
from capturekit.functions.variant import opaque


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


class Thing:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slots:
    __slots__ = ('rate',)


class Table(dict):  # type: ignore[type-arg]
    pass


class Row(list):  # type: ignore[type-arg]
    pass


class Pair(NamedTuple):
    inside: Any
    other: int = 1


@dataclasses.dataclass
class Settings:
    inside: Any


RATE = 1.0
Change = Callable[[float], None]
#: Each makes a function of an array, what it is called with besides, and what changes the number that it reads.
Case = tuple[Callable[..., Any], tuple[Any, ...], Change]


def _object_in(wrap: Callable[[Any], Any], find: Callable[[Any], Any]) -> Callable[[], Case]:
    def make() -> Case:
        thing = Thing(rate=1.0)
        return (lambda x, holder: x * find(holder).rate), (wrap(thing),), functools.partial(setattr, thing, 'rate')

    return make


def _item_of(made: Any, key: Any = 0, read: Callable[[Any], float] | None = None) -> Callable[[], Case]:
    def make() -> Case:
        holder = made()
        return (
            (lambda x, found: x * (found[key] if read is None else read(found))), (holder,),
            lambda value: operator.setitem(holder, key, value),
        )  # fmt: skip

    return make


def by_names_in_a_tuple() -> Case:
    thing = Thing(low=1.0, high=1.0)

    def reads_all(x: Any) -> Any:
        for name in ('low', 'high'):
            x = x * getattr(thing, name)
        return x

    return reads_all, (), functools.partial(setattr, thing, 'high')


def by_a_name_that_is_made() -> Case:
    thing = Thing(w0=1.0)
    return (lambda x: x * getattr(thing, f'w{0}')), (), functools.partial(setattr, thing, 'w0')


def by_vars() -> Case:
    thing = Thing()

    def reads_all(x: Any) -> Any:
        for value in vars(thing).values():
            x = x * value
        return x

    return reads_all, (), functools.partial(setattr, thing, 'late')


def _sum_of_all(holder: Any) -> Callable[[Any], Any]:
    def reads_all(x: Any) -> Any:
        for value in vars(holder).values():
            x = x * value if type(value) is float else x
        return x

    return reads_all


def by_vars_of_a_module() -> Case:
    module = types.ModuleType('settings_of_a_test')
    return _sum_of_all(module), (), functools.partial(setattr, module, 'late')


def by_vars_of_a_class() -> Case:
    kind = types.new_class('Kind')
    return _sum_of_all(kind), (), functools.partial(setattr, kind, 'late')


def by_vars_of_a_function() -> Case:
    def holder() -> None: ...

    return _sum_of_all(holder), (), functools.partial(setattr, holder, 'late')


def by_dir() -> Case:
    kind = types.new_class('Kind')
    thing = kind()
    return (lambda x: x * (1.0 + ('late' in dir(thing)))), (), functools.partial(setattr, kind, 'late')


def by_a_text() -> Case:
    thing = Thing(rate=1.0)
    return (lambda x: x * float(f'{thing.rate}')), (), functools.partial(setattr, thing, 'rate')


def by_an_attrgetter() -> Case:
    thing, get = Thing(rate=1.0), operator.attrgetter('rate')
    return (lambda x: x * get(thing)), (), functools.partial(setattr, thing, 'rate')


def by_a_partial() -> Case:
    thing = Thing(rate=1.0)
    get = functools.partial(getattr, thing, 'rate')
    return (lambda x: x * get()), (), functools.partial(setattr, thing, 'rate')


def by_globals() -> Case:
    return (lambda x: x * globals()['RA' + 'TE']), (), functools.partial(operator.setitem, globals(), 'RATE')


def in_a_slot() -> Case:
    thing = Slots()
    thing.rate = 1.0
    return (lambda x, found: x * found[0].rate), ([thing],), functools.partial(setattr, thing, 'rate')


def in_a_user_dict() -> Case:
    holder = collections.UserDict(rate=1.0)
    return (lambda x: x * holder['rate']), (), functools.partial(operator.setitem, holder, 'rate')


def in_a_chain() -> Case:
    last = {'rate': 1.0}
    holder = collections.ChainMap({}, last)
    return (lambda x: x * holder['rate']), (), functools.partial(operator.setitem, last, 'rate')


def in_a_bound_method() -> Case:
    holder = {'rate': 1.0}
    return (lambda x, get: x * get('rate')), (holder.get,), functools.partial(operator.setitem, holder, 'rate')


def in_a_class_of_a_tuple() -> Case:
    kind = types.new_class('Kind', (Pair,))
    kind.rate = 1.0  # type: ignore[attr-defined]
    return (lambda x, one: x * one.rate), (kind(1),), functools.partial(setattr, kind, 'rate')


def in_a_metaclass() -> Case:
    meta = type('Meta', (type,), {'rate': 1.0})
    kind = meta('Kind', (), {})
    return (lambda x: x * kind.rate), (), functools.partial(setattr, meta, 'rate')


def in_front_of_the_class() -> Case:
    thing = types.new_class('Kind')()
    type(thing).rate = 1.0
    return (lambda x: x * thing.rate), (), functools.partial(setattr, thing, 'rate')


def in_front_of_a_hook() -> Case:
    kind = type('Kind', (), {'__getattr__': lambda self, name: 1.0})
    thing = kind()
    return (lambda x: x * thing.rate), (), functools.partial(setattr, thing, 'rate')


def in_front_of_an_exception() -> Case:
    thing = Thing()

    def tries(x: Any) -> Any:
        try:
            return x * thing.rate
        except AttributeError:
            return x

    return tries, (), functools.partial(setattr, thing, 'rate')


def in_other_bases() -> Case:
    first, second = type('First', (), {'rate': 1.0}), type('Second', (), {'rate': 2.0})
    kind = type('Kind', (first,), {})
    thing = kind()

    def change(value: float) -> None:
        second.rate = value  # type: ignore[attr-defined]
        kind.__bases__ = (second,)

    return (lambda x: x * thing.rate), (), change


def in_a_special_method() -> Case:
    kind = type('Kind', (), {'__len__': lambda self: 1})
    thing = kind()
    return (lambda x: x * len(thing)), (), lambda value: setattr(kind, '__len__', lambda self: int(value))


def in_a_module_of_pythons() -> Case:
    def change(value: float) -> None:
        math.tau = value  # type: ignore[misc]

    return (lambda x: x * math.tau), (), change


def in_a_weak_reference() -> Case:
    thing = Thing(rate=1.0)
    weak = weakref.ref(thing)
    return (lambda x: x * weak().rate), (), functools.partial(setattr, thing, 'rate')  # type: ignore[union-attr]


def in_a_context() -> Case:
    variable = contextvars.ContextVar('variable', default=1.0)
    return (lambda x: x * variable.get()), (), lambda value: [variable.set(value), None][1]


def in_a_thread_local() -> Case:
    local = threading.local()
    local.rate = 1.0
    return (lambda x: x * local.rate), (), functools.partial(setattr, local, 'rate')


def in_a_number_of_c() -> Case:
    number = ctypes.c_double(1.0)
    return (lambda x: x * number.value), (), functools.partial(setattr, number, 'value')


def in_a_cache() -> Case:
    cell = [1.0]
    cached = functools.lru_cache(lambda: cell[0])

    def change(value: float) -> None:
        cell[0] = value
        cached.cache_clear()

    return (lambda x: x * cached()), (), change


def in_a_view_of_bytes() -> Case:
    raw = bytearray([1])
    view = memoryview(raw)
    return (lambda x: x * view[0]), (), lambda value: operator.setitem(raw, 0, int(value))


def in_a_proxy() -> Case:
    inner = {'rate': 1.0}
    proxy = types.MappingProxyType(inner)
    return (lambda x, found: x * found['rate']), (proxy,), functools.partial(operator.setitem, inner, 'rate')


def in_a_record() -> Case:
    table = np.zeros(1, [('rate', 'f8')])
    table['rate'] = 1
    record = table[0]
    return (lambda x: x * record['rate']), (), lambda value: operator.setitem(table['rate'], 0, value)


def in_the_surroundings() -> Case:
    os.environ['CAPTUREKIT_TEST_RATE'] = '1.0'
    change = functools.partial(operator.setitem, os.environ, 'CAPTUREKIT_TEST_RATE')
    return (lambda x: x * float(os.environ['CAPTUREKIT_TEST_RATE'])), (), lambda value: change(str(value))


def in_an_abstract_class() -> Case:
    base = abc_class()
    thing = Thing()
    return (lambda x: x * (5.0 if isinstance(thing, base) else 1.0)), (), lambda value: [base.register(Thing), None][1]


def abc_class() -> Any:
    import abc

    return abc.ABCMeta('Base', (), {})


CASES = {
    'tuple': _object_in(lambda one: (one, 1), lambda found: found[0]),
    'list of lists': _object_in(lambda one: [[one]], lambda found: found[0][0]),
    'dict of dicts': _object_in(lambda one: {'a': {'b': one}}, lambda found: found['a']['b']),
    'deque': _object_in(lambda one: collections.deque([one]), lambda found: found[0]),
    'named tuple': _object_in(Pair, lambda found: found.inside),
    'dataclass': _object_in(Settings, lambda found: found.inside),
    'array of objects': _object_in(lambda one: np.array([one, None]), lambda found: found[0]),
    'derived dict': _item_of(lambda: Table(rate=1.0), 'rate'),
    'derived list': _item_of(lambda: Row([1.0])),
    'array of numbers': _item_of(lambda: array.array('d', [1.0])),
    'user list': _item_of(lambda: collections.UserList([1.0])),
    'matrix': _item_of(lambda: np.ones((1, 1)).view(np.matrix), (0, 0)),
    'masked': _item_of(lambda: np.ma.masked_array([1.0, 2.0], [False, True]), 0, lambda found: float(found.sum())),
    **{
        make.__name__: make
        for make in (
            by_names_in_a_tuple, by_a_name_that_is_made, by_vars, by_vars_of_a_module,
            by_vars_of_a_class, by_vars_of_a_function, by_dir, by_a_text, by_an_attrgetter, by_a_partial, by_globals,
            in_a_slot, in_a_user_dict, in_a_chain, in_a_bound_method, in_a_class_of_a_tuple, in_a_metaclass,
            in_front_of_the_class, in_front_of_a_hook, in_front_of_an_exception, in_other_bases, in_a_special_method,
            in_a_module_of_pythons, in_a_weak_reference, in_a_context, in_a_thread_local, in_a_number_of_c, in_a_cache,
            in_a_view_of_bytes, in_a_proxy, in_a_record, in_the_surroundings, in_an_abstract_class,
        )
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before, tau = dict(globals()), math.tau
    yield
    globals().clear()
    globals().update(before)
    math.tau = tau  # type: ignore[misc]
    os.environ.pop('CAPTUREKIT_TEST_RATE', None)


@pytest.mark.parametrize('name', CASES)
def test_a_number_that_changes_is_seen(cp: Any, name: str) -> None:
    fn, arguments, change = CASES[name]()
    graphed = ck.graphed(fn)
    x = cp.ones(2)
    for value in (None, None, None, 5.0, None, None):
        if value is not None:
            change(value)
        assert graphed(x, *arguments).get().tolist() == fn(x, *arguments).get().tolist()
    assert graphed(x, *arguments).get().tolist() != [1.0, 1.0]


@pytest.mark.parametrize(
    'asks',
    [
        uuid.uuid4, os.getpid, lambda: os.urandom(1), lambda: random.Random().random(),
        lambda: np.random.default_rng().random(), lambda: open(os.devnull).close(), lambda: eval('1'), lambda: id([]),
        threading.active_count, threading.get_native_id, lambda: inspect.currentframe(), lambda: os.listdir(os.curdir),
        lambda: weakref.ref(Thing()), lambda: list(Thing.__subclasses__()), lambda: np.geterr(),
    ],
)  # fmt: skip
def test_what_is_on_no_list_makes_a_call_eager(cp: Any, asks: Callable[[], Any]) -> None:
    @ck.graphed
    def fn(x: Any) -> Any:
        asks()
        return x + 1

    for _ in range(3):
        assert fn(cp.ones(2)).get().tolist() == [2.0, 2.0]
    if asks.__name__ != '<lambda>' or 'weakref' not in asks.__code__.co_names:  # made and gone within the call
        assert {variant.state for variant in fn.variants} == {'eager'}
        assert all(variant.reason for variant in fn.variants)


@pytest.mark.parametrize(
    'does',
    [
        lambda x: sum([x * i for i in range(3)]), lambda x: sum(x * i for i in (1, 2)),
        lambda x: x * max(1, 2) + len([1]) + math.sqrt(4.0), lambda x: x * next(iter([2])),
        lambda x: x + functools.reduce(operator.add, [1, 2]), lambda x: x * random.Random(3).random(),
        lambda x: x * float('{}'.format(2)), lambda x: x * getattr(np, 'pi'),  # noqa: B009, UP032
        lambda x: [x * a for a, _ in zip((1, 2), itertools.count())][1], lambda x: x * Settings(2).inside,
        lambda x: x * collections.Counter('aab')['a'], lambda x: x * np.arange(3).sum(),
    ],
)  # fmt: skip
def test_what_is_understood_is_recorded(cp: Any, does: Callable[[Any], Any]) -> None:
    fn = ck.graphed(does)
    for i in range(4):
        assert fn(cp.full(2, float(i))).get().tolist() == does(cp.full(2, float(i))).get().tolist()
    assert {variant.state for variant in fn.variants} == {'recorded'}


def test_a_name_in_front_of_a_builtin(cp: Any) -> None:
    fn = ck.graphed(lambda x: x * abs(-2))
    for _ in range(3):
        assert fn(cp.ones(1)).get().tolist() == [2]
    globals()['abs'] = lambda value: 7
    for _ in range(3):
        assert fn(cp.ones(1)).get().tolist() == [7]


SHARED: list[Any] = [1.0]


def test_identity_and_aliasing(cp: Any) -> None:
    same = ck.graphed(lambda x, given: x * (2 if given is SHARED else 3))

    @ck.graphed
    def twice(x: Any, one: list[Any], other: list[Any]) -> Any:
        one.append(1)
        found = x * len(other)
        one.pop()
        return found

    for _ in range(3):
        assert same(cp.ones(1), [1.0]).get().tolist() == [3]
        assert same(cp.ones(1), SHARED).get().tolist() == [2]
        assert twice(cp.ones(1), SHARED, [1.0]).get().tolist() == [1]
        assert twice(cp.ones(1), SHARED, SHARED).get().tolist() == [2]


@pytest.mark.parametrize(
    ('holder', 'put'),
    [
        ([SHARED], lambda holder, one: operator.setitem(holder, 0, one)),
        (Thing(one=SHARED), lambda holder, one: setattr(holder, 'one', one)),
        ({'a': ([SHARED],)}, lambda holder, one: operator.setitem(holder['a'][0], 0, one)),
    ],
)
def test_an_equal_object_is_another_one(cp: Any, holder: Any, put: Callable[[Any, Any], None]) -> None:
    def found() -> Any:
        return holder.one if isinstance(holder, Thing) else holder[0] if isinstance(holder, list) else holder['a'][0][0]

    fn = ck.graphed(lambda x: x * (2 if found() is SHARED else 3))
    for one, want in ((SHARED, 2), ([1.0], 3), (SHARED, 2), ([1.0], 3)):
        put(holder, one)
        for _ in range(3):
            assert fn(cp.ones(1)).get().tolist() == [want]
    assert {variant.state for variant in fn.variants} == {'recorded'}


def test_an_array_of_the_host_in_another_order_is_another_one(cp: Any) -> None:
    holder = Thing()
    fn = ck.graphed(lambda x: x * float(holder.table.ravel('K')[1]))
    for order, want in (('C', 2.0), ('F', 3.0), ('C', 2.0)):
        holder.table = np.array([[1.0, 2.0], [3.0, 4.0]], order=order)
        for _ in range(3):
            assert fn(cp.ones(1)).get().tolist() == [want]


def test_a_container_that_is_also_a_global(cp: Any) -> None:
    @ck.graphed
    def fn(x: Any, given: list[Any]) -> Any:
        given.append(1)
        found = x * len(SHARED)
        given.pop()
        return found

    for given, want in [([1.0], 1)] * 3 + [(SHARED, 2)] * 3 + [([1.0], 1)] * 2:
        assert fn(cp.ones(1), given).get().tolist() == [want]


def test_containers_come_back_as_themselves(cp: Any) -> None:
    @ck.graphed
    def gives(state: dict[str, Any]) -> Any:
        state['x'] *= 2
        return state, SHARED

    state = {'x': cp.ones(1)}
    for i in range(4):
        found, shared = gives(state)
        assert found is state and shared is SHARED
        assert state['x'].get().tolist() == [2.0 ** (i + 1)]


def test_arrays_in_tuples_are_kept_and_changed_in_place(cp: Any) -> None:
    thing = Thing(w=cp.zeros(2))

    @ck.graphed
    def fn(x: Any, pair: Any) -> Any:
        pair[0].w += x
        return x * 2

    for i in range(4):
        fn(cp.ones(2), (thing, 1))
        assert thing.w.get().tolist() == [i + 1.0] * 2
    thing.w = cp.full(2, 9.0)
    for i in range(3):
        fn(cp.ones(2), (thing, 1))
        assert thing.w.get().tolist() == [i + 10.0] * 2
    assert fn.variants[0].state == 'recorded'


def test_a_shape_that_is_set_is_seen(cp: Any) -> None:
    kept = cp.arange(6.0)
    fn = ck.graphed(lambda x: kept.sum(axis=0) + x)
    for _ in range(3):
        assert fn(cp.zeros(1)).get().tolist() == [15]
    kept.shape = (2, 3)
    for _ in range(3):
        assert fn(cp.zeros(1)).get().tolist() == [3, 5, 7]


def test_a_dataclass_without_equality_is_told_by_identity() -> None:
    plain = dataclasses.make_dataclass('Plain', ['a'])
    own = dataclasses.make_dataclass('Own', ['a'], eq=False)
    assert not opaque(plain(1)) and opaque(own(1))
