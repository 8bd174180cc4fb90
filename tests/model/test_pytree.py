"""Arrays inside nested containers: forms, round trips, and what a run changed around the arrays."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
import math
import threading
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturekit.graphed.value_changes import difference, shape_of_change, snapshot
from capturekit.model.plain_values import show
from capturekit.model.pytree import put_together, take_apart


class Array:
    """Stands for an array on the device: nothing but an identity, and comparing it is an error."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError('an array was compared')

    __hash__ = None  # type: ignore[assignment]


def is_array(value: object) -> bool:
    return type(value) is Array


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Config:
    weight: Any
    lr: float = 0.1


@dataclasses.dataclass(frozen=True)
class Frozen:
    weight: Any
    lr: float = 0.1


class Slotted:
    __slots__ = ('a', 'b')

    def __init__(self, a: Any) -> None:
        self.a = a  # b stays unset


class Hostile:
    """Everything that could be asked of it raises."""

    def __init__(self, x: Any) -> None:
        object.__setattr__(self, 'x', x)

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError('compared')

    def __hash__(self) -> int:
        raise AssertionError('hashed')

    def __repr__(self) -> str:
        raise AssertionError('shown')


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class MyList(list):  # type: ignore[type-arg]
    pass


class MyInt(int):
    pass


A, B, C = Array(), Array(), Array()


def form(value: object, **options: Any) -> Any:
    return take_apart(value, is_array, **options)[1]


def alike(one: Any, other: Any) -> bool:
    """Equal by the rules, worked out in another way than forms are."""
    if type(one) is not type(other):
        return False
    if type(one) is Array:
        return one is other
    if type(one) is float:
        nans = math.isnan(one) and math.isnan(other)
        return nans or (one == other and math.copysign(1, one) == math.copysign(1, other))
    if isinstance(one, (np.ndarray, np.generic)) and one.dtype != object:
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    parts = parts_of(one)
    if parts is None:
        return bool(one == other)
    others = parts_of(other)
    return len(parts) == len(others) and all(alike(a, b) for a, b in zip(parts, others))


def parts_of(one: Any) -> Any:
    """What a value is made of, in order; None for what has no parts."""
    if isinstance(one, complex):
        return one.real, one.imag
    if isinstance(one, dict):
        return *one, *one.values(), getattr(one, 'default_factory', None)
    if isinstance(one, slice):
        return one.start, one.stop, one.step
    if isinstance(one, functools.partial):
        return one.func, one.args, one.keywords
    if isinstance(one, Slotted):
        return one.a, hasattr(one, 'b')
    if isinstance(one, (Config, Frozen, types.SimpleNamespace)):
        return tuple(vars(one).items())
    if isinstance(one, (list, tuple, collections.deque, set, frozenset, np.ndarray)):
        return *one, getattr(one, 'maxlen', None)
    return None


simple = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf, 0.1]),
    st.sampled_from([0j, complex(0.0, -0.0), 1 + 0j]), st.text('ab', max_size=2), st.binary(max_size=1),
    st.sampled_from([Colour.RED, Colour.BLUE, Level.LOW, np.float32(1), np.float64(1), np.int32(1), np.float64(-0.0)]),
    st.sampled_from([np.dtype('f4'), np.dtype('f8'), range(3), ..., slice(1, 2), slice(None, 2, None)]),
)  # fmt: skip
arrays = st.sampled_from([A, B, C])


def objects(items: list[Any]) -> Any:
    made = np.empty(len(items), object)
    for number, item in enumerate(items):
        made[number] = item
    return made


numpy_arrays = st.builds(
    lambda items, kind: np.array(items, kind), st.lists(st.integers(0, 1), max_size=2), st.sampled_from(['f4', 'i8'])
)
keys = st.one_of(st.text('ab', max_size=2), st.integers(0, 2), st.booleans(), st.tuples(st.integers(0, 1)))
hashable = st.one_of(st.integers(0, 2), st.text('ab', max_size=1), st.none(), st.sampled_from([1.0, 0.5]))
values = st.recursive(
    st.one_of(simple, arrays, numpy_arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=2),
        st.dictionaries(keys, inner, max_size=2).map(collections.OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Config, inner),
        st.builds(Frozen, inner),
        st.frozensets(hashable, max_size=2),
        st.sets(hashable, max_size=2),
        st.lists(inner, max_size=2).map(collections.deque),
        st.lists(inner, max_size=2).map(lambda items: collections.deque(items, 3)),
        st.lists(inner, max_size=2).map(MyList),
        st.dictionaries(keys, inner, max_size=2).map(lambda items: collections.defaultdict(list, items)),
        st.builds(Slotted, inner),
        st.builds(types.SimpleNamespace, x=inner),
        st.builds(functools.partial, st.just(max), inner, key=st.just(len)),
        st.builds(slice, inner, st.just(2)),
        st.lists(inner, min_size=1, max_size=2).map(objects),
    ),
    max_leaves=6,
)


@given(values)
def test_what_is_put_together_is_what_was_taken_apart(value: Any) -> None:
    leaves, made = take_apart(value, is_array)
    again = put_together(made, leaves)
    assert alike(value, again)
    assert take_apart(again, is_array) == (leaves, made) or not leaves
    assert hash(made) == hash(take_apart(again, is_array)[1])
    assert len({id(leaf) for leaf in leaves}) == len(leaves)
    if type(value) is np.ndarray and value.dtype != object:
        assert again is not value and put_together(made, leaves) is not again


@given(values, values)
def test_forms_with_their_leaves_are_equal_where_values_are(one: Any, other: Any) -> None:
    leaves, made = take_apart(one, is_array)
    others, another = take_apart(other, is_array)
    same = made == another and len(leaves) == len(others) and all(a is b for a, b in zip(leaves, others))
    assert same == alike(one, other)


@given(values)
def test_other_arrays_in_the_same_places_have_the_same_form(value: Any) -> None:
    leaves, made = take_apart(value, is_array)
    fresh = [Array() for _ in leaves]
    found, another = take_apart(put_together(made, fresh), is_array)
    assert all(a is b for a, b in zip(found, fresh))
    assert another == made


@given(values)
def test_a_snapshot_of_what_was_not_touched_shows_no_change(value: Any) -> None:
    before = snapshot(value, is_array)
    assert shape_of_change(before, value) is None


@given(values, values)
def test_a_snapshot_tells_values_apart_as_forms_do(one: Any, other: Any) -> None:
    holder = [one]
    before = snapshot(holder, is_array)
    holder[0] = other
    changed = difference(before, holder) is not None
    by_identity = ('Config', 'Frozen', 'Slotted', 'namespace')
    if not any(kind in repr((one, other)) for kind in by_identity):
        assert changed == (not alike(one, other))


class MySet(set[int]):
    def __iter__(self) -> Any:
        raise AssertionError('iterated')


class MyFrozenSet(frozenset[int]):
    pass


@pytest.mark.parametrize('cls', [set, frozenset, MySet, MyFrozenSet])
@pytest.mark.parametrize('members', [(0, 8), (8, 0), (1, 9, 17), (17, 1, 9), (9, 17, 1, 25), tuple(range(0, 80, 8))])
def test_sets_with_colliding_members_keep_their_order(cls: type, members: tuple[int, ...]) -> None:
    base: Any = set if issubclass(cls, set) else frozenset
    value = cls(members)
    leaves, made = take_apart([value], is_array)
    (again,) = put_together(made, leaves)
    assert type(again) is cls
    assert list(base.__iter__(again)) == list(base.__iter__(value))
    assert take_apart([again], is_array)[1] == made


def test_a_set_whose_order_no_copy_has_cannot_be_described() -> None:
    shrunk = set(range(100)) - set()
    for member in range(100):
        if member not in (3, 64):
            shrunk.discard(member)
    assert list(shrunk) == [3, 64] != list(set(shrunk))
    with pytest.raises(TypeError, match=r'args\[0\] is a set whose members come in another order in a copy'):
        take_apart([shrunk], is_array)


def test_an_array_met_twice_is_one_leaf() -> None:
    leaves, made = take_apart((A, [B, A], {'x': B}), is_array)
    assert [id(leaf) for leaf in leaves] == [id(A), id(B)]
    again = put_together(made, [C, B])
    assert again[0] is C and again[1][1] is C and again[2]['x'] is B
    assert made != form((A, [B, B], {'x': B}))
    assert take_apart((A, A), is_array)[1] != take_apart((A, B), is_array)[1]


@pytest.mark.parametrize(
    'one, other',
    [
        (1, 1.0),
        (1, True),
        (0, False),
        (0.0, -0.0),
        (1, np.int64(1)),
        (np.float32(1), np.float64(1)),
        (np.float64(0.0), np.float64(-0.0)),
        ('a', b'a'),
        ([1], (1,)),
        ({'a': 1, 'b': 2}, {'b': 2, 'a': 1}),
        ({1: 0}, {True: 0}),
        ({}, collections.OrderedDict()),
        ({1}, frozenset({1})),
        ({1}, {1.0}),
        (Point(1, 2), (1, 2)),
        (Config(1), Frozen(1)),
        (Colour.RED, Colour.BLUE),
        (Level.LOW, 1),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, 'f4')),
        (np.zeros(2), np.zeros((1, 2))),
        (np.zeros(2), -np.zeros(2)),
        (slice(1), slice(1.0)),
        (complex(0.0, 0.0), complex(0.0, -0.0)),
        (np.datetime64(1, 's'), np.datetime64(1, 'ms')),
        (collections.deque([1]), collections.deque([1], 5)),
        (collections.defaultdict(list), collections.defaultdict(dict)),
        (MyInt(1), 1),
        (MyList([1]), [1]),
        (datetime.timedelta(1), datetime.timedelta(2)),
        (len, print),
        (int, float),
        (np, math),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
        (np.array([1, 'a'], object), np.array([1, 'b'], object)),
    ],
)
def test_different_values_have_different_forms(one: object, other: object) -> None:
    assert form(one) != form(other)
    assert form((one, A)) != form((other, A))
    assert form(one) == form(one)
    assert hash(form(one)) == hash(form(one))
    holder = [one]
    before = snapshot(holder, is_array)
    holder[0] = other
    assert shape_of_change(before, holder) is not None


@pytest.mark.parametrize(
    'one, other',
    [
        (float('nan'), float('nan')),
        (np.float32('nan'), np.float32('nan')),
        (np.longdouble('0.5'), np.longdouble('0.5')),
        (np.dtype('float32'), np.dtype('f4')),
        (np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3)),
        (Path('a'), Path('a')),
        (MyInt(3), MyInt(3)),
        (range(1, 4), range(1, 4)),
        ({1, 2, 3}, {3, 2, 1}),
        (Config(A), Config(A)),
        (Slotted(A), Slotted(A)),
        (functools.partial(max, A), functools.partial(max, A)),
    ],
)
def test_equal_values_have_equal_forms(one: object, other: object) -> None:
    assert form(one) == form(other)
    assert hash(form(one)) == hash(form(other))


@pytest.mark.parametrize('one', [math.nan, np.nan])
def test_the_nan_that_everybody_has_stays_the_same_object(one: float) -> None:
    leaves, made = take_apart((A, one), is_array)
    assert put_together(made, leaves)[1] is one
    assert put_together(form([one]), [])[0] is one
    assert form(one) != form(float('nan'))


def test_opaque_objects_are_compared_by_identity() -> None:
    one, other = Config(A), Config(A)

    def opaque(value: object) -> bool:
        return type(value) is Config

    assert form(one) == form(other)
    assert form(one, opaque=opaque) != form(other, opaque=opaque)
    leaves, made = take_apart((one, B), is_array, opaque)
    assert [id(leaf) for leaf in leaves] == [id(B)] and put_together(made, leaves)[0] is one


def test_functions_and_bound_methods_by_identity() -> None:
    one, other = Config(1), MyList()
    assert form(other.append) == form(other.append)
    assert form(other.append) != form(MyList().append)
    assert form(threading.Thread.start) == form(threading.Thread.start)
    assert form(one.__init__) == form(one.__init__)  # type: ignore[misc]
    assert form(one.__init__) != form(Config(1).__init__)  # type: ignore[misc]
    assert put_together(form(one.__eq__), [])(one)


def test_no_code_of_the_objects_is_called() -> None:
    one, other = Hostile(A), Hostile(A)
    assert form([one]) == form([other])
    assert hash(form([one])) == hash(form([other]))
    assert object.__getattribute__(put_together(form(one), [B]), 'x') is B
    holder = [one]
    before = snapshot(holder, is_array)
    assert shape_of_change(before, holder) is None
    holder[0] = other
    assert 'Hostile' in str(shape_of_change(before, holder))


@pytest.mark.parametrize(
    'value, text',
    [
        (([], {'x': (n for n in [])}), 'args[1]["x"] is a generator'),
        ((threading.Lock(),), 'args[0] is a lock'),
        (types.SimpleNamespace(lock=iter([])), 'args.lock is a list_iterator'),
        (({1: iter([])},), 'args[0][1] is a list_iterator'),
        ((memoryview(b''),), 'args[0] is a memoryview'),
        ((ValueError(),), 'args[0] is a ValueError'),
        ((np.ma.masked_array([1], [True]),), 'args[0] is a MaskedArray'),
    ],
)
def test_what_cannot_be_described_is_named(value: Any, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        take_apart(value, is_array)
    assert str(caught.value) == text


def test_arrays_in_sets_and_keys_are_refused() -> None:
    class Hashed:
        pass

    array = Hashed()
    for value in ({array}, {array: 1}, {(1, array): 1}):
        with pytest.raises(TypeError, match='has an array in'):
            take_apart(value, lambda found: type(found) is Hashed)


def test_cycles_and_a_list_that_is_there_twice_are_refused() -> None:
    items: list[Any] = [1]
    items.append(items)
    with pytest.raises(TypeError, match=r'^args\[1\] holds itself: a list in a cycle$'):
        take_apart(items, is_array)
    config = Config(None)
    config.weight = {'up': config}
    with pytest.raises(TypeError, match=r'args\.weight\["up"\] holds itself: a Config'):
        take_apart(config, is_array)
    twice = [1]
    with pytest.raises(TypeError, match=r'^args\[1\] is a list that is there twice$'):
        take_apart([twice, twice], is_array)
    assert put_together(form([[1], [1]]), []) == [[1], [1]]


def test_depth_is_no_crash() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match='nested too deeply'):
        take_apart(deep, is_array)
    snapshot(deep, is_array)
    while deep:
        deep = deep.pop()


@pytest.mark.parametrize(
    'change, text',
    [
        (lambda v: v[0].append(1), 'args[0] has 3 items and had 2 before'),
        (lambda v: v[0].pop(), 'args[0] has 1 item and had 2 before'),
        (lambda v: v[1].update(w=B), 'args[1]["w"] is not the Array that it was before'),
        (lambda v: v[1].update(lr=0.2), 'args[1]["lr"] is 0.2 and was 0.1 before'),
        (lambda v: v[1].update(new=0.2), 'args[1]["new"] is there and was not before'),
        (lambda v: v[1].pop('lr'), 'args[1]["lr"] is gone and was there before'),
        (
            lambda v: v[1].update(w=v[1].pop('w')),
            'args[1] does not have its keys in the order that they were in before',
        ),
        (lambda v: v[2].fill(3), 'args[2] does not hold the values that it held before'),
        (lambda v: v[3].add(4), 'args[3] has 2 items and had 1 before'),
        (lambda v: setattr(v[4], 'weight', B), 'args[4].weight is not the Array that it was before'),
        (lambda v: setattr(v[4], 'cache', 1), 'args[4].cache is there and was not before'),
        (lambda v: v[4].lr.append(1), 'args[4].lr has 1 item and had 0 before'),
        (lambda v: setattr(v[5], 'b', 1), 'args[5].b is there and was not before'),
        (lambda v: v[6].append(0), 'args[6] does not hold the values that it held before'),
        (lambda v: v[7].__setitem__(0, B), 'args[7][0] is not the Array that it was before'),
    ],
)
def test_changes_around_arrays_are_named(change: Any, text: str) -> None:
    value: Any = (
        [A, 1], {'w': A, 'lr': 0.1}, np.zeros(2), {3}, Config(A, []), Slotted(A), bytearray(2), np.array([A], object),
    )  # fmt: skip
    before = snapshot(value, is_array)
    assert shape_of_change(before, value) is None
    change(value)
    assert shape_of_change(before, value) == text


def test_snapshots_take_cycles_and_leave_opaque_objects_alone() -> None:
    config = Config(None)
    config.weight = [config, A]
    before = snapshot(config, is_array)
    assert shape_of_change(before, config) is None
    config.weight.append(1)
    assert shape_of_change(before, config) == 'args.weight has 3 items and had 2 before'
    holder = [config]
    before = snapshot(holder, is_array, lambda value: type(value) is Config)
    config.lr = 7
    assert shape_of_change(before, holder) is None


# -- the texts of values in messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (3, '3'),
        (-(1 << 4095), str(-(1 << 4095))[:57] + '...'),
        (1 << 30_000, 'a whole number of 30001 bits'),
        ((1 << 30_000, 2), '(a whole number of 30001 bits, 2)'),
        ('a' * 80, "'" + 'a' * 56 + '...'),
    ],
    ids=['short', 'long', 'longer than Python writes', 'in a tuple', 'a text'],
)
def test_a_value_is_shown_in_short(value: Any, text: str) -> None:
    assert show(value) == text
