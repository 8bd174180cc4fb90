"""Objects, lists and dicts that a function makes anew at each call and keeps in an attribute."""

from __future__ import annotations

import dataclasses
import time
import weakref
from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

import capturekit as ck


class Result:
    def __init__(self, weights: Any, **more: Any) -> None:
        self.weights = weights
        self.more = more
        self.rank = 2

    def scaled(self, by: float) -> Any:
        return self.weights * by

    def __eq__(self, other: object) -> bool:
        raise AssertionError('nobody asks for this')

    __hash__ = None  # type: ignore[assignment]


class Slotted(ABC):  # noqa: B024
    __slots__ = ('factors', 'inner')

    def __init__(self, factors: Any, inner: Any = None) -> None:
        self.factors, self.inner = factors, inner


@dataclasses.dataclass
class Record:
    array: Any
    name: str = 'a'


class Finalized(Result):
    def __del__(self) -> None:
        self.rank = 0


class Registered:
    every: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()

    def __init__(self, array: Any) -> None:
        self.array = array
        self.every.add(self)


class Model:
    """What the functions change. ``result`` begins with an object that was there before."""

    def __init__(self, cp: Any) -> None:
        self.result: Any = Result(cp.ones(3))
        self.other: Any = None
        self.listed: Any = [cp.zeros(3)]
        self.named: Any = {'w': cp.zeros(3), 'b': 1.5}
        self.box = [1.0]
        self.settings: Any = {}
        self.array = cp.ones(3)


def fitted(one: Model, x: Any) -> Any:
    one.result = Result(x * 2, factors=[x + 1, x + 2], pair=(x, 3.0))
    return one.result.scaled(2.0)


def goes_on(one: Model, x: Any) -> Any:
    """What was there before is read."""
    one.result = Result(one.result.weights * 0.5 + x, last=one.result.weights)
    return one.result.weights + 1


def in_place(one: Model, x: Any) -> Any:
    """The array of the object that was there is changed, and replaced."""
    before = one.result.weights
    before += 1
    one.result = Result(x * before)
    return before * 2


def an_array_that_stays(one: Model, x: Any) -> Any:
    one.result = Result(one.result.weights, x=x)
    one.result.weights += x
    return x * 2


def with_slots(one: Model, x: Any) -> Any:
    one.result = Slotted([x, x * 2], Slotted((x * 3, 'text'), Record(x - 1)))
    return one.result.inner.factors[0]


def a_list(one: Model, x: Any) -> Any:
    one.listed = [x * 2, [one.listed[0] + 1], {'k': x}]
    return x + 1


def a_dict(one: Model, x: Any) -> Any:
    one.named = {'w': one.named['w'] * 0.5 + x, 'b': 1.5}
    return one.named['w']


def two_places(one: Model, x: Any) -> Any:
    one.result, one.listed = Result(x * 2), [x * 3]
    return one.result.weights + one.listed[0]


def without_arrays(one: Model, x: Any) -> Any:
    rank = one.other.rank if one.other is not None else 3
    one.other = Result(2.5, factors=('a', [1, 2]), last=rank)
    return x * rank


UNDERSTOOD = [
    without_arrays, fitted, goes_on, in_place, an_array_that_stays, with_slots, a_list, a_dict, two_places,
]  # fmt: skip


def in_both(one: Model, x: Any) -> Any:
    one.result = one.other = Result(x * 2)
    return x


def one_list_twice(one: Model, x: Any) -> Any:
    factors = [x * 2]
    one.result, one.listed = Result(x, factors=factors), factors
    return x


def returned_too(one: Model, x: Any) -> Any:
    one.result = Result(x * 2)
    return one.result


def a_part_is_returned(one: Model, x: Any) -> Any:
    one.result = Result(x * 2)
    return one.result.more, x


def itself_inside(one: Model, x: Any) -> Any:
    one.result = Result(x * 2)
    one.result.more['me'] = one.result
    return x


def what_was_there(one: Model, x: Any) -> Any:
    one.result = Result(x, before=one.result)
    return x


def moved(one: Model, x: Any) -> Any:
    one.result, one.other = Result(x), one.result
    return x


def of_the_box(one: Model, x: Any) -> Any:
    one.result = Result(x, box=one.box)
    return x


def an_empty_dict_that_was_there(one: Model, x: Any) -> Any:
    one.result = Result(x, settings=one.settings)
    return x


def with_a_finalizer(one: Model, x: Any) -> Any:
    one.result = Finalized(x)
    return x


def with_a_reference(one: Model, x: Any) -> Any:
    one.result = Result(x)
    one.result.more['me'] = weakref.ref(one)
    return x


def registered(one: Model, x: Any) -> Any:
    one.result = Registered(x)
    return x


def changed_before(one: Model, x: Any) -> Any:
    one.result.rank = 5
    one.result = Result(x)
    return x


def array_changed_before(one: Model, x: Any) -> Any:
    one.result.weights = one.result.weights + x
    one.result = Result(x * 2)
    return x


def list_changed_before(one: Model, x: Any) -> Any:
    one.listed[0] = x * 1
    one.listed = [x * 2]
    return x


def dict_in_it_changed_before(one: Model, x: Any) -> Any:
    one.result.more['k'] = 3
    one.result = Result(x)
    return x


def compared(one: Model, x: Any) -> Any:
    before = one.result
    one.result = Result(x)
    return x * (2 if before is one.result else 3)


NOT_UNDERSTOOD = [
    in_both, one_list_twice, returned_too, a_part_is_returned, itself_inside, what_was_there, moved, of_the_box,
    an_empty_dict_that_was_there, with_a_finalizer, with_a_reference, registered, changed_before, list_changed_before,
    array_changed_before, dict_in_it_changed_before, compared,
]  # fmt: skip


def shown(value: Any, seen: dict[int, int] | None = None) -> Any:
    """A value with all that it holds; what is in it twice is shown by its number."""
    seen = {} if seen is None else seen
    if isinstance(value, (int, float, str, type(None), weakref.ref)):
        return str(value)[:10]
    if id(value) in seen:
        return f'number {seen[id(value)]}'
    seen[id(value)] = len(seen)
    if hasattr(value, 'get') and hasattr(value, 'dtype'):
        return value.get().tolist()
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *[shown(part, seen) for part in value]]
    if isinstance(value, dict):
        return {key: shown(part, seen) for key, part in value.items()}
    names = vars(value) if hasattr(value, '__dict__') else {name: getattr(value, name) for name in value.__slots__}
    return type(value).__name__, {name: shown(part, seen) for name, part in names.items()}


Change = Callable[[Model, Any], Any]


def launches_of(cp: Any, function: Change, change: Change = lambda one, x: None, since: int = 5) -> int:
    """Compare graphed and plain calls; ``change`` is done to both objects before each call from this one on."""
    one, other = Model(cp), Model(cp)
    own: Any = lambda x: function(one, x)  # noqa: E731
    graphed = ck.graphed(own)
    held = []
    for number in range(10):
        x, y = cp.arange(3.0) + number, cp.arange(3.0) + number
        if number >= since:
            change(one, x)
            change(other, y)
        found, expected = graphed(x), function(other, y)
        assert shown((found, x, one)) == shown((expected, y, other)), number
        held.append(((one.result, one.listed), (other.result, other.listed)))
        assert [shown(pair[0]) for pair in held] == [shown(pair[1]) for pair in held], number
    assert len({id(pair[0][0]) for pair in held}) == len({id(pair[1][0]) for pair in held})
    return sum(variant.launches for variant in graphed.variants)


@pytest.mark.parametrize('function', UNDERSTOOD, ids=lambda one: one.__name__)
def test_objects_that_are_made_anew(sim: Any, function: Change) -> None:
    assert launches_of(sim, function) >= 6


@pytest.mark.parametrize('function', NOT_UNDERSTOOD, ids=lambda one: one.__name__)
def test_objects_that_others_hold_or_that_are_no_copies(sim: Any, function: Change) -> None:
    assert launches_of(sim, function) == 0


def begins_anew(one: Model, x: Any) -> None:
    one.result, one.listed, one.other = Result(x * 0 + 1, first=[1.0]), [x * 0], None


@pytest.mark.parametrize('function', NOT_UNDERSTOOD, ids=lambda one: one.__name__)
def test_the_same_where_each_call_finds_the_same(sim: Any, function: Change) -> None:
    assert launches_of(sim, function, begins_anew, 0) == 0


def another_rank(one: Model, x: Any) -> None:
    one.result.rank = 7


def another_attribute(one: Model, x: Any) -> None:
    one.result.extra = 7


def another_class(one: Model, x: Any) -> None:
    one.result = Record(x)


def another_shape(one: Model, x: Any) -> None:
    one.result = Result(x[:2] * 2)


def also_elsewhere(one: Model, x: Any) -> None:
    one.other = one.result


def the_array_elsewhere(one: Model, x: Any) -> None:
    one.array = one.result.weights


def the_argument(one: Model, x: Any) -> None:
    one.result = Result(x)


CHANGES = [
    another_rank, another_attribute, another_class, another_shape, also_elsewhere, the_array_elsewhere, the_argument,
]  # fmt: skip


def reads_all(one: Model, x: Any) -> Any:
    """It reads what was there, and other places that may hold the same."""
    rank = getattr(one.result, 'rank', 1)
    weights = one.result.weights if isinstance(one.result, Result) else one.result.array
    weights += 1
    scale = one.array[0] * rank
    if isinstance(one.other, Result):
        scale = scale + one.other.weights[0] * one.other.rank
    one.result = Result(x * scale + weights[0])
    return x + weights[-1]


@pytest.mark.parametrize('function', [fitted, goes_on, reads_all], ids=lambda one: one.__name__)
@pytest.mark.parametrize('change', CHANGES, ids=lambda one: one.__name__)
def test_what_was_put_is_changed_by_others(sim: Any, function: Change, change: Change) -> None:
    if function is goes_on and change in (another_class, another_shape):
        function = fitted
    alone = (function, change) != (reads_all, also_elsewhere)
    assert launches_of(sim, function, change) >= (3 if alone else 0)


class Bare:
    def __init__(self, array: Any) -> None:
        self.array = array


def test_an_object_in_the_place_that_is_reached_otherwise(sim: Any) -> None:
    kept = Bare(sim.ones(0))  # its memory tells nothing
    one = Model(sim)
    one.result = Bare(sim.zeros(0))

    def function(x: Any) -> Any:
        same = one.result == kept
        one.result = Bare(x[:0] * 2)
        return x * (2 if same else 3)

    graphed = ck.graphed(function)
    found = []
    for number in range(8):
        if number in (4, 5, 7):
            one.result = kept
        found.append(float(graphed(sim.ones(3))[0]))
    assert found == [3.0] * 4 + [2.0, 2.0, 3.0, 2.0]
    assert sum(variant.launches for variant in graphed.variants) >= 3


def test_a_number_that_was_read_on_the_host_is_in_the_object(sim: Any) -> None:
    one, other = Model(sim), Model(sim)

    def function(model: Model, x: Any) -> Any:
        model.result = Result(x * 2, loss=float(x.sum()))
        return x + 1

    own: Any = lambda x: function(one, x)  # noqa: E731
    graphed = ck.graphed(own)
    for number in range(8):
        x = sim.arange(3.0) + number
        assert shown((graphed(x), one)) == shown((function(other, x), other))


def timed(model: Model, x: Any) -> Any:
    begun = time.perf_counter()
    result = Result(x * 2)
    result.seconds = time.perf_counter() - begun  # type: ignore[attr-defined]
    model.result = result
    return x + 1


def timed_in_a_list(model: Model, x: Any) -> Any:
    begun = time.perf_counter()
    result = Result(x * 2)
    result.seconds = [time.perf_counter() - begun]  # type: ignore[attr-defined]
    model.result = result
    return x + 1


@pytest.mark.parametrize('function', [timed, timed_in_a_list])
def test_times_in_an_object_that_is_put(sim: Any, function: Change) -> None:
    one = Model(sim)
    graphed = ck.graphed(lambda x: function(one, x))
    found = []
    for _ in range(6):
        one.result = Result(sim.ones(3))
        graphed(sim.ones(3))
        found.append(str(one.result.seconds))
    assert len(set(found)) > 1
    reasons = {variant.reason for variant in graphed.variants}  # not only that two runs took different times
    assert reasons == {'the function rebinds attribute result of a Model object'}


def test_a_launch_that_puts_an_object_is_checked(sim: Any) -> None:
    one = Model(sim)
    graphed = ck.graphed(lambda x: goes_on(one, x), check=True)
    other = Model(sim)
    for number in range(6):
        x = sim.arange(3.0) + number
        assert shown((graphed(x), one)) == shown((goes_on(other, x), other))
    assert sum(variant.launches for variant in graphed.variants) >= 3


def test_a_launch_that_returns_an_object_is_checked(sim: Any) -> None:
    kept = Bare(1)
    graphed = ck.graphed(lambda x: (Bare(x * 2), kept), check=True)
    for number in range(5):
        found, same = graphed(sim.ones(3) * number)
        assert found.array.get().tolist() == [2.0 * number] * 3
        assert same is kept
    assert sum(variant.launches for variant in graphed.variants) >= 3


def test_objects_that_are_appended_stay_eager(sim: Any) -> None:
    rows: list[Any] = []
    last = Bare(sim.ones(3))

    def function(x: Any) -> Any:
        rows.append(last)
        return x * 2

    graphed = ck.graphed(function)
    for _ in range(4):
        graphed(sim.ones(3))
    assert all(row is last for row in rows) and len(rows) == 4


class Branch:
    """A node of a tree that knows its parent."""

    def __init__(self, parent: Any = None) -> None:
        self.parent, self.children = parent, list[Any]()
        if parent is not None:
            parent.children.append(self)


def of_one_another(kind: type) -> Any:
    """What holds itself, or the same part by very many ways."""
    if kind is Branch:
        return Branch(Branch())
    if kind is tuple:
        pair: Any = ([1],)
        for _ in range(40):
            pair = (pair, pair)
        return pair
    made: Any = [] if kind is list else {}
    made.append(made) if kind is list else made.update(itself=made)
    return made


@pytest.mark.parametrize('kind', [Branch, tuple, list, dict])
@pytest.mark.parametrize('put', [lambda x: None, lambda x: [x * 2], lambda x: x * 2, lambda x: of_one_another(tuple)])
def test_what_was_there_may_hold_itself(sim: Any, kind: type, put: Any) -> None:
    class Holder:
        def __init__(self) -> None:
            self.found = of_one_another(kind)

        def step(self, x: Any) -> Any:
            self.found = put(x)
            return x * 3

    x = sim.ones(3)
    holder = Holder()
    step = ck.graphed(holder.step)
    for number in range(5):
        assert step(x + number).tolist() == [3.0 * (1 + number)] * 3
        if number == 2:
            holder.found = of_one_another(kind)
