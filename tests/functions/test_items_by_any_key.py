"""Launches change items of dicts whose keys are texts, numbers or tuples of such, also of a ``defaultdict``."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions.carried_state import CarriedPlace
from capturekit.model.class_layout import MISSING
from tests.functions.test_counters import Maker, Work, alike


class Server:
    """What keeps parameters and gradients by the number of a layer and a name."""

    def __init__(self, cp: Any, kind: Any = dict) -> None:
        self.params, self.grads = kind(), kind()
        self.updates: Any = defaultdict(int)
        for layer in (1, 2):
            self.params[layer, 'W'] = cp.ones(3) * layer
            self.grads[layer, 'W'] = cp.zeros(3)
            self.updates[layer, 'W'] += 0

    def get(self, layer: int, name: str) -> Any:
        return self.params[layer, name]

    def put(self, layer: int, name: str, value: Any) -> None:
        self.params[(layer, name)] = value

    def add(self, layer: int, name: str, value: Any) -> None:
        self.grads[layer, name] += value


def new_arrays(cp: Any, kind: Any = dict) -> tuple[Work, Callable[[], Any]]:
    one = Server(cp, kind)

    def work(x: Any) -> Any:
        for layer in (1, 2):
            one.put(layer, 'W', one.get(layer, 'W') * 0.5 + x)
        return one.get(2, 'W') * 2

    return work, lambda: [one.params, one.grads]


def in_a_defaultdict(cp: Any) -> tuple[Work, Callable[[], Any]]:
    return new_arrays(cp, lambda: defaultdict(lambda: None))


def in_an_ordered_dict(cp: Any) -> tuple[Work, Callable[[], Any]]:
    return new_arrays(cp, OrderedDict)


def views_put_back(cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Server(cp)

    def work(x: Any) -> Any:
        flat = one.get(1, 'W').reshape(-1)
        flat -= x * 0.1
        one.put(1, 'W', flat.reshape(3))
        return x + 1

    return work, lambda: [one.params, one.grads]


def gradients_added(cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Server(cp)

    def work(x: Any) -> Any:
        one.add(1, 'W', x)
        one.add(2, 'W', x * 2)
        return one.grads[1, 'W'] + one.grads[2, 'W']

    return work, lambda: [one.params, one.grads]


def counted(cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Server(cp)

    def work(x: Any) -> Any:
        for layer in (1, 2):
            one.updates[layer, 'W'] += layer
            key = layer, 'W'
            one.updates[key] += 1
        return x * 2

    return work, lambda: one.updates


def counted_by_an_attribute(cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Server(cp)
    one.key = 1, 'W'  # type: ignore[attr-defined]

    def work(x: Any) -> Any:
        one.updates[one.key] += x.size  # type: ignore[attr-defined]
        return x * 2

    return work, lambda: one.updates


NATURAL: list[Maker] = [
    new_arrays,
    in_a_defaultdict,
    in_an_ordered_dict,
    views_put_back,
    gradients_added,
]


def read_as_well(cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Server(cp)

    def work(x: Any) -> Any:
        key = 1, 'W'
        one.updates[key] += 1
        return x * one.updates[key]

    return work, lambda: one.updates


def read_by_an_alias(cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Server(cp)

    def work(x: Any) -> Any:
        key, found = (1, 'W'), one.updates
        one.updates[key] += 1
        return x * found[key]

    return work, lambda: one.updates


def an_amount_that_reads_it(cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Server(cp)

    def work(x: Any) -> Any:
        for layer in (1, 2):
            one.updates[layer, 'W'] += one.updates[3 - layer, 'W'] + 1
        return x * 2

    return work, lambda: one.updates


def a_key_that_it_gives(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = {0: 1, 1: 2, 2: 0}

    def work(x: Any) -> Any:
        found[found[0]] += 1
        return x * 2

    return work, lambda: found


def a_new_item_at_each_call(cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Server(cp)

    def work(x: Any) -> Any:
        one.updates[len(one.updates), 'W'] += 1
        return x * 2

    return work, lambda: one.updates


def read_where_none_is(cp: Any) -> tuple[Work, Callable[[], Any]]:
    found: Any = defaultdict(lambda: 7)
    found['a'] = cp.zeros(3)

    def work(x: Any) -> Any:
        found['a'] = found['a'] + found[x.size]
        return x * len(found)

    return work, lambda: found


def a_type_that_changes(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found: Any = {(1, 'a'): 0, (True, 'b'): 0}

    def work(x: Any) -> Any:
        for key in ((1, 'a'), (1.0, 'b')):
            found[key] += 1
        return x * 2

    return work, lambda: found


def moved_to_the_end(cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = OrderedDict({1: cp.zeros(3), 2: cp.ones(3)})

    def work(x: Any) -> Any:
        key = next(iter(found))
        found.move_to_end(key)
        found[key] = found[key] + x
        return x * key

    return work, lambda: [found, list(found)]


ADVERSARIAL: list[Maker] = [
    read_as_well, read_by_an_alias, an_amount_that_reads_it, a_key_that_it_gives, a_new_item_at_each_call,
    read_where_none_is, a_type_that_changes, moved_to_the_end, counted, counted_by_an_attribute,
]  # fmt: skip


@pytest.mark.parametrize('maker', NATURAL, ids=lambda one: one.__name__)
def test_each_launch_changes_the_items(sim: Any, maker: Maker) -> None:
    assert alike(sim, maker) >= 9


@pytest.mark.parametrize('maker', ADVERSARIAL, ids=lambda one: one.__name__)
def test_what_else_happens_to_them_is_right(sim: Any, maker: Maker) -> None:
    alike(sim, maker)


def changed_between(number: int, state: Any) -> None:
    """Change keys, values and the factory from outside."""
    found = state[0] if isinstance(state, list) else state
    if number == 3:
        found[1, 'W'] = found[1, 'W'] + 1
    if number == 5:
        found[2, 'W'] = found.pop((2, 'W'))
    if number == 7:
        found[True, 'W'] = found.pop((1, 'W'))
    if number == 9:
        found[3, 'W'] = found[2, 'W']
    if number == 11 and isinstance(found, defaultdict):
        found.default_factory = list
    if number == 12:
        del found[2, 'W']
        found[2, 'W'] = found[3, 'W']


@pytest.mark.parametrize('maker', NATURAL, ids=lambda one: one.__name__)
def test_somebody_else_changes_the_items(sim: Any, maker: Maker) -> None:
    alike(sim, maker, 17, changed_between)


@pytest.mark.parametrize('other', [[1, 2], ['a'], OrderedDict(), None], ids=['list', 'texts', 'no items', 'none'])
def test_something_else_takes_the_place_of_the_dict(sim: Any, other: Any) -> None:
    one, plain = Server(sim), Server(sim)

    def step(server: Server, x: Any) -> Any:
        server.params[1, 'W'] = server.params[1, 'W'] * 0.5 + x
        return server.params[1, 'W']

    fn = ck.graphed(lambda x: step(one, x))
    for number in range(8):
        if number == 5:
            one.params = plain.params = other
        x = sim.arange(3.0)
        found = []
        for call in (fn, lambda x: step(plain, x)):
            try:
                found.append(call(x).tolist())
            except (TypeError, KeyError) as error:
                found.append((type(error), str(error)))
        assert found[0] == found[1], number
    assert sum(variant.launches for variant in fn.variants) >= 2


@pytest.mark.parametrize(
    ('held', 'found'),
    [
        ({(1, 'W'): 5}, 5),
        (defaultdict(list, {(1, 'W'): 5}), 5),
        (defaultdict(list), MISSING),
        ([5], MISSING),
        (None, MISSING),
    ],
    ids=['dict', 'defaultdict', 'no item', 'list', 'none'],
)
def test_a_place_that_is_gone_is_missing(held: Any, found: Any) -> None:
    """Another thread may have put something else there since the places were compared."""
    entry: Any = SimpleNamespace(read=lambda: held)
    size = len(held or ())
    assert CarriedPlace(entry, ((1, 'W'),)).read() == found
    assert len(held or ()) == size, 'reading has made an item'
