"""What libraries' code and code written in C ask of the user's objects, which no code of the user's names."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import json
import random
import statistics
import string
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import arrays

#: A function of an array, and the change after its fourth call.
Made = tuple[Callable[[Any], Any], Callable[[], Any]]


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


def answers(function: Any, change: Callable[[], Any], x: Any) -> list[Any]:
    """What seven calls give: numbers, or the class of an exception."""
    found: list[Any] = []
    for number in range(7):
        if number == 4:
            change()
        try:
            found.append(float(function(x)[0]))
        except (KeyError, TypeError) as error:
            found.append(type(error))
    return found


def compared(make: Callable[[], Made], cp: Any) -> Any:
    """Compare plain and graphed calls, each with a world of its own, and return the graphed function."""
    x = cp.ones(1)
    plainly = answers(*make(), x)
    function, change = make()
    fn = ck.graphed(function)
    assert answers(fn, change, x) == plainly
    return fn


# -- libraries' code


def an_attribute_that_an_encoder_reads() -> Made:
    class Encoder(json.JSONEncoder):
        item_separator = ','

    return lambda x: x * len(json.dumps([1, 2], cls=Encoder)), lambda: setattr(Encoder, 'item_separator', ' , ')


def a_method_that_a_block_calls() -> Made:
    class Base:
        def close(self) -> None: ...

    class Thing(Base): ...

    def bad(_self: Any) -> None:
        raise KeyError

    thing = Thing()

    def of(x: Any) -> Any:
        with contextlib.closing(thing):
            return x * 2

    return of, lambda: setattr(Thing, 'close', bad)


def a_method_put_onto_an_object() -> Made:
    class Thing:
        def close(self) -> None: ...

    def bad() -> None:
        raise KeyError

    thing: Any = Thing()

    def of(x: Any) -> Any:
        with contextlib.closing(thing):
            return x * 2

    return of, lambda: setattr(thing, 'close', bad)


def a_method_that_a_counter_calls() -> Made:
    class Count(collections.Counter[str]): ...

    count = Count('aab')
    return lambda x: x * count.most_common(1)[0][1], lambda: setattr(Count, 'items', lambda _: [('z', 9)])


def a_method_that_a_mapping_compares_by() -> Made:
    class Pairs(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return {'a': 1}[key]

        def __iter__(self) -> Iterator[str]:
            return iter('a')

        def __len__(self) -> int:
            return 1

    pairs = Pairs()
    return lambda x: x * (2 if pairs == {'a': 1} else 3), lambda: setattr(Pairs, 'items', lambda _: [])


def the_fields_of_a_named_tuple() -> Made:
    Pair = collections.namedtuple('Pair', 'a b')
    pair = Pair(1, 2)
    return lambda x: x * len(pair._asdict()), lambda: setattr(Pair, '_fields', ('a',))


def a_pattern_of_a_template() -> Made:
    import re

    class Text(string.Template): ...

    text = Text('$a b')
    nothing = re.compile('(?P<escaped>%%)|(?P<named>zz)|(?P<braced>yy)|(?P<invalid>qq)')
    return lambda x: x * len(text.safe_substitute(a='xyz')), lambda: setattr(Text, 'pattern', nothing)


def a_ratio_that_statistics_asks_for() -> Made:
    class Number(float): ...

    numbers = [Number(2.0), Number(4.0)]
    return (
        lambda x: x * float(statistics.mean(numbers)),
        lambda: setattr(Number, 'as_integer_ratio', lambda _: (7, 1)),
    )


def a_method_of_numpy_that_is_overridden() -> Made:
    class Wide(np.vectorize): ...

    wide = Wide(lambda value: value + 1.0)
    return (
        lambda x: x * float(wide(np.ones(2)).sum()),
        lambda: setattr(Wide, '_vectorize_call', lambda *_: np.array(9.0)),
    )


def a_draw_that_another_calls() -> Made:
    class Source(random.Random): ...

    source = Source(3)

    def of(x: Any) -> Any:
        source.seed(1)
        return x * source.uniform(0, 1)

    return of, lambda: setattr(Source, 'random', lambda _: 0.25)


# -- code written in C


def an_object_with_a_dtype() -> Made:
    class Config: ...

    config: Any = Config()
    config.dtype = np.dtype('f8')
    return lambda x: x * x.astype(config).itemsize, lambda: setattr(config, 'dtype', np.dtype('f4'))


def what_a_pattern_gets() -> Made:
    class Pairs(dict[str, float]): ...

    pairs = Pairs(a=2.0)

    def of(x: Any) -> Any:
        match pairs:
            case {'a': found}:
                return x * found
        return x

    return of, lambda: setattr(Pairs, 'get', lambda *_: 7.0)


def keys_that_are_unpacked() -> Made:
    class Pairs:
        def keys(self) -> list[str]:
            return ['a']

        def __getitem__(self, key: str) -> float:
            return 3.0

    pairs: Any = Pairs()
    return lambda x: x * len(dict(**pairs)), lambda: setattr(pairs, 'keys', lambda: ['a', 'b'])


def a_conjugate_of_an_object() -> Made:
    class Number:
        def conjugate(self) -> float:
            return 2.0

    number: Any = Number()
    numbers = np.array([number], dtype=object)
    return lambda x: x * numbers.conj()[0], lambda: setattr(number, 'conjugate', lambda: 5.0)


def where_a_class_was_made() -> Made:
    class Thing: ...

    return lambda x: x * len(str(Thing)), lambda: setattr(Thing, '__module__', 'q')


def bases_of_an_object() -> Made:
    class Kind:
        __bases__ = ()

    class Thing: ...

    kind: Any = Kind()
    thing: Any = Thing()
    thing.__bases__ = (kind,)
    return lambda x: x * (2 if issubclass(thing, kind) else 3), lambda: setattr(thing, '__bases__', ())


# -- what no name leads to


def another_name_of_a_member() -> Made:
    class Color(enum.Enum):
        RED = 1.0
        BLUE = 2.0

    members: Any = Color
    return lambda x: x * len(Color.__members__), lambda: members._member_map_.update(AZURE=Color.BLUE)


def members_that_change() -> Made:
    class Color(enum.Enum):
        RED = 1.0
        BLUE = 2.0

    members: Any = Color
    return lambda x: x * sum(one.value for one in Color), lambda: members._member_map_.update(BLUE=Color.RED)


def a_method_of_a_builtin_method() -> Made:
    values = {'k': 2.0}
    method = types.MethodType(values.get, 'k')
    return lambda x: x * method(), lambda: values.update(k=5.0)


def attributes_of_a_function() -> Made:
    def rate(x: Any) -> Any:
        return x * rate.factor  # type: ignore[attr-defined]

    rate.factor = 2  # type: ignore[attr-defined]
    return lambda x: rate(x), lambda: setattr(rate, '__dict__', {'factor': 9})


SEEN = [
    an_attribute_that_an_encoder_reads, a_method_that_a_block_calls, a_method_put_onto_an_object,
    a_method_that_a_counter_calls, a_method_that_a_mapping_compares_by, the_fields_of_a_named_tuple,
    a_pattern_of_a_template, a_ratio_that_statistics_asks_for, a_method_of_numpy_that_is_overridden,
    a_draw_that_another_calls, an_object_with_a_dtype, what_a_pattern_gets, keys_that_are_unpacked,
    a_conjugate_of_an_object, where_a_class_was_made, bases_of_an_object, another_name_of_a_member,
    members_that_change, a_method_of_a_builtin_method, attributes_of_a_function,
]  # fmt: skip


@pytest.mark.parametrize('make', SEEN, ids=lambda make: make.__name__)
def test_a_change_is_seen(cp: Any, make: Callable[[], Made]) -> None:
    fn = compared(make, cp)
    assert sum(variant.launches for variant in fn.variants) >= 2


def test_a_change_deep_in_a_large_argument_is_seen(cp: Any) -> None:
    class Thing:
        rate = 2.0

    values = {'k': 2.0}

    def called(fn: Any) -> list[float]:
        found, x = [], cp.ones(1)
        things: list[Any] = [1.0] * 12_000 + [Thing(), functools.partial(values.get, 'k')]
        values['k'] = 2.0
        for number in range(7):
            if number == 4:
                things[-2].rate = 5.0
            if number == 5:
                values['k'] = 3.0
            found.append(float(fn(x, things)[0]))
        return found

    def of(x: Any, things: list[Any]) -> Any:
        return x * things[-2].rate * things[-1]()

    fn = ck.graphed(of)
    assert called(fn) == called(of) == [4.0, 4.0, 4.0, 4.0, 10.0, 15.0, 15.0]
    assert sum(variant.launches for variant in fn.variants) >= 2


# -- eager


def an_element_popped_and_put_back() -> Made:
    numbers = {1, 2, 3}

    def of(x: Any) -> Any:
        number = numbers.pop()
        numbers.add(number)
        return x * number

    return of, bool


def a_time_of_day() -> Made:
    day = np.datetime64('2020-01-01T00:00')
    return lambda x: x * float(np.datetime_as_string(day, timezone='local')[11:13]), bool


@pytest.mark.parametrize(
    ('make', 'reason'),
    [
        (a_time_of_day, 'calls numpy.datetime_as_string'),
        (an_element_popped_and_put_back, 'takes an element out of a set by pop()'),
    ],
    ids=lambda value: getattr(value, '__name__', ''),
)
def test_what_may_differ_at_each_call_is_eager(cp: Any, make: Callable[[], Made], reason: str) -> None:
    fn = compared(make, cp)
    assert reason in fn.variants[0].reason and fn.variants[0].launches == 0


def two_views(values: Any) -> tuple[Any, ...]:
    return values[1:3], values[1:3]


def a_view_and_its_owner(values: Any) -> tuple[Any, ...]:
    return values[1:3], values[1:]


def one_that_overlaps_itself(_values: Any) -> tuple[Any, ...]:
    return np.lib.stride_tricks.as_strided(np.ones(2), (3,), (0,)), None


def a_list_of_views(values: Any) -> tuple[Any, ...]:
    return [values[1:], values[1:]], None


@pytest.mark.parametrize('make', [two_views, a_view_and_its_owner, one_that_overlaps_itself, a_list_of_views])
def test_numpy_arguments_that_share_memory_are_eager(cp: Any, make: Callable[[Any], tuple[Any, ...]]) -> None:
    given, x = make(np.ones(4)), cp.ones(1)

    def of(x: Any, a: Any, b: Any) -> Any:
        first, second = a if type(a) is list else (a, a if b is None else b)
        first[0] = 5
        read = float(second[0 if second is not a else -1])
        first[0] = 1
        return x * read

    fn = ck.graphed(of)
    assert [float(fn(x, *given)[0]) for _ in range(5)] == [5.0] * 5
    reasons = [variant.reason for variant in fn.variants]
    assert all('whose memory another object has, too' in reason for reason in reasons)
    assert bool(reasons) == (make is not one_that_overlaps_itself)  # no recording gets one with strides of its own


def test_a_numpy_argument_of_its_own_is_recorded(cp: Any) -> None:
    fn, x = ck.graphed(lambda x, values: x * float(values.sum())), cp.ones(1)
    for values in (np.arange(4.0), np.arange(4.0).reshape(2, 2)):
        assert [float(fn(x, values)[0]) for _ in range(4)] == [6.0] * 4
    assert [variant.launches for variant in fn.variants] == [3, 3]


def test_a_method_that_is_called_at_the_end_of_objects(cp: Any) -> None:
    ended: list[int] = []

    class Thing: ...

    def of(x: Any) -> Any:
        thing = Thing()
        return x * 2 if thing else x

    fn = ck.graphed(of)
    answers(fn, lambda: setattr(Thing, '__del__', lambda _: ended.append(1)), cp.ones(1))
    assert ended == [1, 1, 1]


def test_a_warning_of_another_function_is_no_reason(cp: Any) -> None:
    """CuPy's compiled code warns at the line of capturekit's that calls it, which all functions come by."""
    guard = vars(arrays)
    guard['__warningregistry__'] = {('text', UserWarning, line): True for line in range(1, 10**3)}
    fn = ck.graphed(lambda x: x.__setitem__(slice(1), x[1:2]) or x * 2)
    for _ in range(3):
        fn(cp.ones(2))
    assert fn.variants[0].launches == 2
