"""What a function read besides its arguments: what is watched, what counts as changed, what as written."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import functools
import gc
import io
import itertools
import math
import os
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from capturekit.functions import environment
from capturekit.functions.environment import Environment
from capturekit.functions.libraries import default_skip
from capturekit.functions.watch import Watch

HERE = os.path.basename(__file__)
pytestmark = pytest.mark.usefixtures('no_collection')


class Array:
    """Stands for an array on the device: nothing but an identity, and comparing it is an error."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError('an array was compared')

    __hash__ = None  # type: ignore[assignment]


def is_array(value: object) -> bool:
    return type(value) is Array


def watch(fn: Callable[..., Any], *args: Any, **options: Any) -> Environment:
    with Watch(fn, is_array=is_array, **options) as watching:
        fn(*args)
    return watching.environment


def clean(fn: Callable[..., Any], *args: Any) -> Environment:
    """The environment of a function that writes nothing, seen unchanged twice."""
    found = watch(fn, *args)
    assert found.written() is found.changed() is found.changed() is None
    return found


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Hostile:
    """Everything that could be asked of it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError('compared')

    def __hash__(self) -> int:
        raise AssertionError('hashed')

    def __repr__(self) -> str:
        raise AssertionError('shown')


value: Any = None
other: Any = None


@pytest.fixture(autouse=True)
def globals_of_this_file() -> Iterator[None]:
    before = dict(globals())
    yield
    globals().clear()
    globals().update(before)


def reads() -> Any:
    return value


@pytest.mark.parametrize(
    'before, after, text',
    [
        (0.1, 0.05, 'is 0.05 and was 0.1'),
        (1, True, 'is True and was 1'),
        (1, 1.0, 'is 1.0 and was 1'),
        (0.0, -0.0, 'is -0.0 and was 0.0'),
        (None, 0, 'is 0 and was None'),
        ('a', b'a', "is b'a' and was 'a'"),
        (Colour.RED, Colour.BLUE, 'is Colour.BLUE and was Colour.RED'),
        (np.float32(1), np.float64(1), 'is np.float64(1.0) and was np.float32(1.0)'),
        (np.dtype('f4'), np.dtype('f8'), "is dtype('float64') and was dtype('float32')"),
        (slice(1), slice(2), 'is slice(None, 2, None) and was slice(None, 1, None)'),
        (range(1), range(2), 'is range(0, 2) and was range(0, 1)'),
        ((1, 2), (1, 3), '[1] of HERE is 3 and was 2'),
        ((1, 2), (1, 2, 3), 'has 3 items and had 2'),
        (frozenset({1}), frozenset({2}), 'does not have the members that it had'),
        (Array(), Array(), 'is not the Array that it was'),
        ([1], [2], '[0] of HERE is 2 and was 1'),
        ({'a': 1, 'b': 2}, {'b': 2, 'a': 1}, 'does not have its keys in the order'),
        ({'a': [1]}, {'a': [2]}, '["a"][0] of HERE is 2 and was 1'),
        (np.zeros(2), np.ones(2), 'does not hold the values that it held'),
        (np.zeros(2), np.zeros(3), 'is of float64, shape (3,) and was of float64, shape (2,)'),
        (math.sin, math.cos, 'is not the builtin_function_or_method that it was'),
        (int, float, 'is class float and was class int'),
        ([1], (1,), 'is (1,) and was a list'),
    ],
)
def test_a_global_that_changed_is_named(before: Any, after: Any, text: str) -> None:
    global value
    value = before
    found = clean(reads)
    value = after
    said = found.changed()
    assert said is not None and said.startswith('global value') and said.endswith(' when recorded')
    assert (text.replace('HERE', HERE)) in said or text.split(' and ')[0].replace('HERE', HERE) in said
    value = before
    assert found.changed() is None


def test_hostile_objects_are_compared_by_identity() -> None:
    global value
    value = Hostile()
    found = clean(reads)
    value = Hostile()
    assert 'is not the Hostile that it was' in str(found.changed())


def test_the_sentence() -> None:
    global value
    value = 0.1
    found = clean(reads)
    value = 0.05
    assert found.changed() == f'global value of {HERE} is 0.05 and was 0.1 when recorded'
    del globals()['value']
    assert found.changed() == f'global value of {HERE} is gone and was 0.1 when recorded'


@pytest.mark.parametrize(
    'before, again',
    [
        (1000.5, 1000.5),
        ([1, [2]], [1, [2]]),
        ({'a': {1, 2}}, {'a': {2, 1}}),
        (np.arange(3), np.arange(3)),
        ((0.5, 'x'), (0.5, 'x')),
        (bytearray(b'x'), bytearray(b'x')),
        (functools.partial(max, 1), functools.partial(max, 1)),
    ],
)
def test_equal_values_are_no_change(before: Any, again: Any) -> None:
    global value
    value = before
    found = clean(reads)
    value = copy.deepcopy(again)
    assert found.changed() is None
    assert found.changed() is None
    value = None
    assert found.changed() is not None


@pytest.mark.parametrize(
    'start, change',
    [
        ([1], lambda v: v.append(2)),
        ([[1]], lambda v: v[0].append(2)),
        ([1], lambda v: v.__setitem__(0, True)),
        ({'a': 1}, lambda v: v.update(a=2)),
        ({'a': 1}, lambda v: v.update(b=2)),
        ({1, 2}, lambda v: v.add(3)),
        ({1, 2}, lambda v: (v.remove(1), v.add(5))),
        (([1], 2), lambda v: v[0].clear()),
        (np.zeros(3), lambda v: v.fill(1)),
        (np.array([None, 1], object), lambda v: v.__setitem__(0, 3)),
        (bytearray(2), lambda v: v.__setitem__(0, 3)),
        ([Array()], lambda v: v.__setitem__(0, Array())),
        (functools.partial(max, key=[1]), lambda v: v.keywords['key'].append(2)),
        ([].append, lambda v: v(1)),
    ],
)
def test_containers_are_compared_inside_and_writing_to_them_is_told(start: Any, change: Any) -> None:
    global value, other
    value, other = copy.deepcopy(start) if not isinstance(start, types.BuiltinMethodType) else [].append, change
    found = clean(reads)
    change(value)
    assert found.changed() is not None

    value = copy.deepcopy(start) if not isinstance(start, types.BuiltinMethodType) else [].append

    def writes() -> None:
        other(value)

    said = watch(writes).written()
    assert said is not None and said.startswith('the function changes global value')


def test_containers_that_hold_themselves() -> None:
    global value
    value = [1]
    value.append(value)
    found = clean(reads)
    value.append(2)
    assert 'has 3 items and had 2' in str(found.changed())


def test_too_much_to_watch_is_said() -> None:
    global value
    value = list(range(10_001))
    found = watch(reads)
    assert found.unwatchable == [f'global value of {HERE} holds too many values to compare at each call']
    assert found.written() == found.unwatchable[0]
    value = list(range(9_000))
    found = clean(reads)
    value[8_999] = 0
    assert 'value[8999]' in str(found.changed())


def test_what_is_not_named_is_not_watched() -> None:
    global value, other
    found = clean(reads)
    other = 5
    assert found.changed() is None
    assert [entry.key for entry in found.entries if entry.kind == 'global'] == ['value']


def inner_helper() -> Any:
    return other


def test_functions_that_run_are_followed_and_others_are_not() -> None:
    global value, other
    value, other = False, 1

    def calls() -> Any:
        return inner_helper() if value else None

    found = clean(calls)
    other = 2
    assert found.changed() is None
    value = True
    found = clean(calls)
    other = 3
    assert found.changed() == f'global other of {HERE} is 3 and was 2 when recorded'


def test_nested_code_is_followed() -> None:
    global value
    value = 1
    found = clean(lambda: [(lambda: value)() for _ in range(2)])
    value = 2
    assert found.changed() is not None


def test_replaced_functions_and_code() -> None:
    def calls() -> Any:
        return inner_helper()

    found = clean(calls)
    code = inner_helper.__code__
    inner_helper.__code__ = (lambda: 7).__code__
    try:
        assert found.changed() == '__code__ of inner_helper is not the code that it was when recorded'
    finally:
        inner_helper.__code__ = code
    assert found.changed() is None
    globals()['inner_helper'] = lambda: 7
    assert 'global inner_helper' in str(found.changed())


def test_closures() -> None:
    rate = 0.1

    def step() -> float:
        return rate

    found = clean(step)
    rate = 0.2
    assert found.changed() == 'variable rate of the closure of step is 0.2 and was 0.1 when recorded'
    rate = 0.1
    assert found.changed() is None


def test_closures_of_functions_that_are_called() -> None:
    made = {}

    def make(name: str, rate: float) -> None:
        def step() -> float:
            return rate

        def set_rate(new: float) -> None:
            nonlocal rate
            rate = new

        made[name] = step, set_rate

    make('a', 0.1)
    make('b', 0.2)
    step = made['a'][0]
    found = clean(lambda: step())
    made['b'][1](0.3)
    assert found.changed() is None
    made['a'][1](0.3)
    assert 'variable rate of the closure of step' in str(found.changed())


def test_a_closure_that_nothing_names_is_found() -> None:
    def make() -> tuple[Any, Any]:
        rate = 0.1

        def step() -> float:
            return rate

        def set_rate(new: float) -> None:
            nonlocal rate
            rate = new

        return step, set_rate

    step, set_rate = make()
    found = watch(lambda function: function(), step, arguments=((step,), {}))
    set_rate(0.2)
    assert found.written() is None and 'variable rate' in str(found.changed())


def test_defaults() -> None:
    def step(rate: float = 0.1, *, seen: Any = []) -> Any:  # noqa: B006
        return rate, seen

    found = clean(step)
    step.__defaults__ = (0.2,)
    assert found.changed() == '__defaults__[0] of step is 0.2 and was 0.1 when recorded'
    step.__defaults__ = (0.1,)
    assert found.changed() is None
    step.__kwdefaults__['seen'].append(1)
    assert '__kwdefaults__["seen"] of step' in str(found.changed())

    def grows(seen: Any = []) -> None:  # noqa: B006
        seen.append(1)

    assert watch(grows).written() == 'the function changes __defaults__[0] of grows: it has 1 item and had 0 before'


class Part:
    rate, unread = 0.1, 2


class Filter:
    gain = 2.0
    names: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.W = Array()
        self.n = 3
        self.unread = 1
        self.t = 0
        self.sub = Part()
        vars(self.sub).update(rate=0.1, unread=2)

    def step(self) -> Any:
        return self.W, self.n, self.gain, self.sub.rate

    def count(self) -> None:
        self.t += 1

    def cached(self) -> Any:
        if not hasattr(self, '_cache'):
            self._cache = Array()
        return self._cache

    def peeks(self) -> Any:
        return getattr(self, 'maybe', None)

    @property
    def half(self) -> float:
        return self.n / 2

    @functools.cached_property
    def lazy(self) -> int:
        return 5

    @classmethod
    def of_class(cls) -> Any:
        return cls.gain

    def class_counts(self) -> None:
        type(self).gain += 1

    def class_creates(self) -> None:
        type(self).made = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    'change, text',
    [
        (lambda f: setattr(f, 'W', Array()), 'attribute W of a Filter object is not the Array that it was'),
        (lambda f: setattr(f, 'n', 4), 'attribute n of a Filter object is 4 and was 3'),
        (lambda f: setattr(f, 'gain', 3.0), 'attribute gain of a Filter object is 3.0 and was not there'),
        (lambda f: setattr(f.sub, 'rate', 0.2), 'attribute rate of a Part object is 0.2 and was 0.1'),
        (lambda f: setattr(f, 'sub', 1), 'attribute sub of a Filter object is 1 and was a Part object'),
        (lambda f: delattr(f, 'n'), 'attribute n of a Filter object is gone and was 3'),
        (lambda f: setattr(f, '__dict__', {**f.__dict__, 'n': 9}), 'attribute n of a Filter object is 9 and was 3'),
        (lambda f: setattr(f, 'step', int), 'attribute step of a Filter object is class int and was not there'),
    ],
)
def test_attributes(change: Any, text: str) -> None:
    one = Filter()
    for found in (clean(one.step), clean(lambda: one.step()), clean(Filter.step, one)):
        assert [id(array) for array in found.arrays()] == [id(one.W)]
    found = clean(lambda: one.step())
    one.unread = 7
    one.sub.unread = 7
    assert found.changed() is None
    one.__dict__ = dict(one.__dict__)
    assert found.changed() is None
    change(one)
    assert found.changed() == text + ' when recorded'


def test_attributes_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Derived(Filter):
        pass

    one = Derived()
    found = clean(one.step)
    monkeypatch.setattr(Filter, 'gain', 3.0)
    assert found.changed() == 'attribute gain of class Filter is 3.0 and was 2.0 when recorded'
    found = clean(one.step)
    Derived.gain = 3.0
    assert found.changed() == 'attribute gain of class Derived is 3.0 and was not there when recorded'
    found = clean(Derived.of_class)
    Derived.gain = 4.0
    assert 'attribute gain of class Derived' in str(found.changed())
    found = clean(one.step)
    monkeypatch.setattr(Filter, 'step', lambda self: None)
    assert 'attribute step of class Filter' in str(found.changed())
    found = clean(Derived().half.__class__)
    one.__class__ = Filter
    assert found.changed() is None


def test_another_class() -> None:
    class Derived(Filter):
        pass

    one = Filter()
    found = clean(one.step)
    one.__class__ = Derived
    assert found.changed() == 'an object that was a Filter object is a Derived object'

    def becomes() -> None:
        one.__class__ = Filter

    assert watch(becomes).written() == 'the function changes the class of a Derived object'


def test_properties_are_followed_and_not_evaluated() -> None:
    one = Filter()
    found = clean(lambda: one.half)
    one.n = 5
    assert 'attribute n' in str(found.changed())


def test_attributes_read_by_name() -> None:
    one = Filter()
    found = clean(one.peeks)
    one.maybe = 1  # type: ignore[attr-defined]
    assert found.changed() == 'attribute maybe of a Filter object is 1 and was not there when recorded'
    one = Filter()
    found = clean(lambda: vars(one).items())
    one.unread = 7
    assert 'attribute unread' in str(found.changed())


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    unnamed: int = 1


def test_readers_of_whole_objects() -> None:
    global value
    value = Config()
    found = clean(lambda: dataclasses.replace(value))
    value.unnamed = 2
    assert 'attribute unnamed' in str(found.changed())
    found = clean(lambda: copy.copy(value))
    value.unnamed = 3
    assert 'attribute unnamed' in str(found.changed())


class Slotted:
    __slots__ = ('rate', 'unset')

    def __init__(self) -> None:
        self.rate = 0.1

    def read(self) -> Any:
        return self.rate, hasattr(self, 'unset')

    def write(self) -> None:
        self.rate = 1.0

    def create(self) -> None:
        self.unset = 1


def test_slots() -> None:
    one = Slotted()
    found = clean(one.read)
    one.rate = 0.2
    assert found.changed() == 'attribute rate of a Slotted object is 0.2 and was 0.1 when recorded'
    one.rate = 0.1
    assert found.changed() is None
    one.unset = 1
    assert found.changed() == 'attribute unset of a Slotted object is 1 and was not there when recorded'
    assert watch(Slotted().write).written() == 'the function rebinds attribute rate of a Slotted object'
    assert watch(Slotted().create).written() == 'the function creates attribute unset of a Slotted object'


def test_writing_attributes() -> None:
    assert watch(Filter().count).written() == 'the function rebinds attribute t of a Filter object'
    assert watch(Filter().cached).written() == 'the function creates attribute _cache of a Filter object'
    one = Filter()
    assert 'creates attribute lazy' in str(watch(lambda: one.lazy).written())

    def deletes() -> None:
        del one.n

    assert watch(deletes).written() == 'the function deletes attribute n of a Filter object'
    gain = Filter.gain
    assert watch(Filter().class_counts).written() == 'the function rebinds attribute gain of class Filter'
    Filter.gain = gain
    assert watch(Filter().class_creates).written() == 'the function creates attribute made of class Filter'
    del Filter.made  # type: ignore[attr-defined]


def test_an_environment_of_a_run_that_wrote_is_changed() -> None:
    assert watch(Filter().count).changed() == 'attribute t of a Filter object is 1 and was 0 when recorded'


def test_writing_globals_and_variables() -> None:
    def rebinds() -> None:
        global value
        value = 7

    def creates() -> None:
        global brand_new
        brand_new = 7  # type: ignore[name-defined]

    count = 0

    def counts() -> None:
        nonlocal count
        count += 1

    assert watch(rebinds).written() == f'the function rebinds global value of {HERE}'
    assert watch(rebinds).written() is None
    assert watch(creates).written() == f'the function creates global brand_new of {HERE}'
    assert watch(counts).written() == 'the function rebinds variable count of the closure of counts'


def test_attributes_of_functions() -> None:
    def step() -> int:
        step.calls += 1  # type: ignore[attr-defined]
        return 0

    step.calls = 0  # type: ignore[attr-defined]
    assert watch(step).written() == 'the function rebinds attribute calls of function step'


def test_modules_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    global value
    settings = types.ModuleType('settings')
    settings.rate, settings.unread = 0.1, 1  # type: ignore[attr-defined]
    value = settings
    found = clean(lambda: (value.rate, math.pi))
    settings.unread = 2  # type: ignore[attr-defined]
    assert found.changed() is None
    with monkeypatch.context() as patched:
        patched.setattr(math, 'pi', 3)
        assert 'attribute pi of module math is 3' in str(found.changed())
    assert found.changed() is None
    settings.rate = 0.2  # type: ignore[attr-defined]
    assert found.changed() == 'attribute rate of module settings is 0.2 and was 0.1 when recorded'


def test_objects_in_containers() -> None:
    layers = [Filter(), Filter()]
    found = clean(lambda: [layer.n for layer in layers])
    layers[1].n = 9
    assert 'attribute n of a Filter object' in str(found.changed())

    def counts() -> None:
        for layer in layers:
            layer.t += 1

    assert 'attribute t' in str(watch(counts).written())
    assert 'attribute t' in str(watch(lambda these: [each.count() for each in these], layers).written())


def test_objects_that_the_run_made_are_its_own() -> None:
    def makes() -> Any:
        one = Filter()
        one.count()
        box = types.SimpleNamespace(x=1)
        fills(box)
        fills(box)
        return one

    def fills(box: Any) -> None:
        box.x += 1
        box.y = 2

    assert [watch(makes).written() for _ in range(3)] == [None] * 3


def test_what_the_run_made_is_told_from_what_has_died_meanwhile() -> None:
    """What is made gets the addresses of what died just before, and is the run's own all the same."""

    def counts() -> None:
        for one in [Filter() for _ in range(500)]:
            one.count()

    old = [Filter() for _ in range(500)]
    with Watch(counts, is_array=is_array) as watching:
        old.clear()
        counts()
    assert watching.environment.written() is None, watching.environment.written()


def test_nothing_is_held_once_the_run_has_ended() -> None:
    one = Filter()
    gone = weakref.ref(one)
    with pytest.raises(KeyError), Watch(reads, is_array=is_array) as failed:
        raise KeyError
    with Watch(reads, is_array=is_array) as watching:
        reads()
    del one
    assert gone() is None
    assert (failed, watching) is not None


def test_iterators_that_the_run_makes() -> None:
    """Comprehensions hand them to a function of their own before Python 3.12, generator expressions always."""
    numbers = [1.0, 2.0]

    def made() -> Any:
        return [n * m for n, m in zip(numbers, numbers)], sum(n for n in map(float, iter(numbers))), helper(iter([1]))

    def helper(these: Iterator[int]) -> list[int]:
        return [each + 1 for each in these]

    for _ in range(5):
        clean(made)
    old = iter([1, 2, 3])
    assert "what is left in it can't be compared" in str(watch(lambda: sum(each for each in old)).written())


def test_arguments_that_the_caller_compares() -> None:
    config = Config()

    def reader(given: Config) -> float:
        return given.lr

    found = clean(reader, config)
    config.lr = 0.5
    assert found.changed() is not None
    found = watch(reader, config, ignore=lambda found: type(found) is Config)
    config.lr = 0.6
    assert found.changed() is None


def test_helpers_see_values_from_before_the_run() -> None:
    """What is changed before the code that reads it is met, too, was changed by the run."""
    one = Filter()

    def early() -> None:
        one.__dict__['n'] = 77
        late()

    def late() -> Any:
        return one.n

    assert 'attribute n' in str(watch(early).written())


def test_host_randomness() -> None:
    generator = np.random.default_rng(0)
    old = np.random.RandomState(0)
    own = random.Random(0)
    assert watch(lambda: np.random.rand()).written() == 'the function draws from numpy.random on the host'
    assert watch(lambda: random.random()).written() == 'the function draws from random on the host'
    assert 'draws from a Generator object' in str(watch(lambda: generator.normal()).written())
    assert 'draws from a RandomState object' in str(watch(lambda: old.rand()).written())
    assert 'draws from a Random object' in str(watch(lambda: own.random()).written())
    assert 'draws from a Random object' in str(watch(lambda given: given.random(), own).written())
    found = clean(lambda: (generator, old, own, np.random, random))
    np.random.rand()
    own.random()
    assert found.changed() is None
    secret = random.SystemRandom()
    assert 'leave no trace' in str(watch(lambda: secret.random()).written())


def test_generators_iterators_and_files() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield 2

    stream = numbers()
    assert 'advances a generator' in str(watch(lambda: next(stream)).written())
    idle = numbers()
    clean(lambda: idle)
    clean(lambda: list(numbers()))
    counter = itertools.count()
    assert "is or holds a count object: what is left in it can't be compared" in str(watch(lambda: counter).written())
    clean(lambda: list(iter([1, 2])))
    log = io.StringIO()
    assert 'reads or writes a file' in str(watch(lambda: log.write('x')).written())
    clean(lambda: log)


def test_nothing_of_the_objects_is_called() -> None:
    class Raising:
        def __get__(self, instance: object, owner: object) -> Any:
            raise AssertionError('asked')

    class Holder:
        trap = Raising()
        __slots__ = ('__dict__', 'x')

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    holder, hostile = Holder(), [Hostile()]

    def reader(test: bool) -> Any:
        return (holder.trap, holder.x, hostile[0].x) if test else (holder, hostile)  # type: ignore[attr-defined]

    found = clean(reader, False)
    hostile[0] = Hostile()
    assert 'Hostile' in str(found.changed())


def test_metaclasses_are_not_asked() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(cls, other: object) -> bool:
            raise AssertionError('compared')

        __hash__ = None  # type: ignore[assignment]

    kind = Meta('Kind', (), {'rate': 1})
    one = object.__new__(kind)
    found = clean(lambda test: (kind.rate, one.rate) if test else (kind, one), False)  # type: ignore[attr-defined]
    type.__setattr__(kind, 'rate', 2)
    assert 'attribute rate' in str(found.changed())


def test_a_thread_that_is_started_is_not_followed() -> None:
    def elsewhere() -> Any:
        return other

    def starts(thread: threading.Thread) -> None:
        thread.start()
        thread.join()

    said = watch(starts, threading.Thread(target=elsewhere)).unwatchable
    assert any(f'the function calls threading.start at {HERE}' in text for text in said)


def test_the_profile_function_before_is_called_and_comes_back() -> None:
    seen: list[str] = []

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == 'call':
            seen.append(frame.f_code.co_name)

    def fails() -> None:
        raise KeyError('mine')

    sys.setprofile(profile)
    try:
        clean(reads)
        assert sys.getprofile() is profile
        assert 'reads' in seen
        watching = Watch(fails, is_array=is_array)
        with pytest.raises(KeyError, match='mine'), watching:
            fails()
        assert sys.getprofile() is profile
        with pytest.raises(RuntimeError, match='did not come to its end'):
            _ = watching.environment
    finally:
        sys.setprofile(None)
    with contextlib.suppress(KeyError), Watch(fails, is_array=is_array):
        fails()
    assert sys.getprofile() is None


def test_inside_another_watch_and_cprofile() -> None:
    global other
    other = 1

    def outer() -> None:
        clean(inner_helper)

    with Watch(outer, is_array=is_array) as watching:
        outer()
    found = watching.environment
    assert found.changed() is None
    other = 2
    assert 'global other' in str(found.changed())

    import cProfile

    profiler = cProfile.Profile()
    profiler.enable()
    try:
        clean(reads)
        reads()
    finally:
        profiler.disable()
    assert any('reads' in str(entry.code) for entry in profiler.getstats())


def test_a_function_that_sets_a_profile_function() -> None:
    def sets() -> None:
        sys.setprofile(lambda *_: None)

    try:
        assert any('set a profile function' in text for text in watch(sets).unwatchable)
    finally:
        sys.setprofile(None)


def test_a_failure_of_the_watch_is_told_and_does_not_reach_the_function() -> None:
    def broken(found: object) -> bool:
        raise ZeroDivisionError

    assert 'could not be followed' in str(watch(lambda x: x, 1, ignore=broken).written())


def test_frozen_garbage() -> None:
    one = Filter()
    gc.freeze()
    try:
        found = clean(lambda given: given.n, one)

        def makes() -> None:
            Filter().count()

        clean(makes)
    finally:
        gc.unfreeze()
    one.n = 9
    assert 'attribute n' in str(found.changed())


def test_what_is_skipped() -> None:
    assert default_skip(os.__file__) and default_skip(np.__file__) and default_skip(environment.__file__)
    assert default_skip('<frozen importlib._bootstrap>')
    assert not default_skip(__file__) and not default_skip('<stdin>') and not default_skip(pytest.__file__)
    assert not clean(reads).arrays()
    found = watch(reads, skip=lambda filename: True)
    assert [entry.kind for entry in found.entries if entry.kind != 'argument'] == ['function'] * 3


def test_entries_tell_holder_key_and_value() -> None:
    global value
    value = 3
    (entry,) = [entry for entry in clean(reads).entries if entry.kind == 'global']
    assert (entry.holder is globals(), entry.key, entry.value) == (True, 'value', 3)
    assert repr(entry) == f'<global value of {HERE}>'
