"""Whole numbers that a function only counts with, in attributes, items of dicts, and beside code of libraries."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck

Work = Callable[[Any], Any]
#: What makes a function and what tells its state.
Maker = Callable[[Any], tuple[Work, Callable[[], Any]]]


def items(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = {'steps': 0, 'last': None, 'rows': 1 << 62}

    def work(x: Any) -> Any:
        found['last'] = x * 2
        found['steps'] += 1
        found['rows'] -= x.shape[0]
        return found['last'] + 1

    return work, lambda: found


def items_of_an_attribute(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    class Model:
        def __init__(self) -> None:
            self.stats = {'calls': 0, 'seen': 5}

        def work(self, x: Any) -> Any:
            self.stats['calls'] += 1
            for _ in range(2):
                self.stats['seen'] += 2
            return x * self.scale()

        def scale(self) -> float:
            return 2.0

    one = Model()
    return lambda x: one.work(x), lambda: one.stats


def items_of_a_global(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    space: dict[str, Any] = {}
    exec("STATS = {'calls': 0}\ndef work(x):\n    STATS['calls'] += 1\n    return x * 2\n", space)
    return space['work'], lambda: space['STATS']


class Stepped:
    """An object whose attributes have the names of functions."""

    def __init__(self) -> None:
        self.iter = self.count = 0

    def update(self, x: Any) -> Any:
        """Make one step, and increment iter and count."""
        self.iter += 1
        self.count += 1
        for one in iter((1, 2)):
            x = x + one
        return x


def named_like_functions(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Stepped()
    return lambda x: one.update(x), lambda: vars(one)


def three(x: Any, y: Any, z: Any) -> Any:
    return x + y + z


def beside_types(cp: Any) -> tuple[Work, Callable[[], Any]]:
    one, h, part = Stepped(), cp.ones(3), functools.partial(three)

    def work(x: Any) -> Any:
        one.count += 1
        if type(h) is not type(x):
            return x
        return three(x, getattr(x, 'real', None), 2) + part(1, 2, 3)

    return work, lambda: vars(one)


def beside_inspect(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Stepped()

    def work(x: Any) -> Any:
        one.count += 1
        if x.ndim > 1:
            return inspect.isfunction(x)
        return x * 2

    return work, lambda: vars(one)


NATURAL: list[Maker] = [items, items_of_an_attribute, items_of_a_global, named_like_functions, beside_types]
if sys.version_info >= (3, 12):  # which tells the lines that ran
    NATURAL.append(beside_inspect)


def read_in_a_branch(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = {'steps': 0}

    def work(x: Any) -> Any:
        found['steps'] += 1
        if found['steps'] > 5:
            return x * 3
        return x * 2

    return work, lambda: found


def read_by_another_name(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = {'steps': 0}
    held = [found]

    def work(x: Any) -> Any:
        found['steps'] += 1
        return x * held[0]['steps']

    return work, lambda: found


def read_as_a_default(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = {'steps': 0}

    def told(stats: dict[str, int] = found) -> int:
        return stats['steps']

    def work(x: Any) -> Any:
        found['steps'] += 1
        return x * told()

    return work, lambda: found


def read_by_a_computed_key(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found, keys = {'steps': 0, 'a': 0}, ['st', 'eps']

    def work(x: Any) -> Any:
        found['steps'] += 1
        return x * found[''.join(keys)]

    return work, lambda: found


def read_by_a_method(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = {'steps': 0}

    def work(x: Any) -> Any:
        found['steps'] += 1
        return x * found.get('steps', 1), sum(found.values())

    return work, lambda: found


def read_as_a_text(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = {'steps': 0}

    def work(x: Any) -> Any:
        found['steps'] += 1
        return x * 2, '{steps}'.format(**found), f'{found}'

    return work, lambda: found


def added_to_itself(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = {'steps': 1, 'more': 1}

    def work(x: Any) -> Any:
        found['steps'] += found['steps']
        found['more'] += found['steps']
        return x * 2

    return work, lambda: found


def unpacked_in_a_loop(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    found = {'steps': 0}

    def work(x: Any) -> Any:
        found['steps'] += 1
        for _, value in found.items():
            x = x * value
        return x

    return work, lambda: found


def given_its_docstring(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    class Model:
        def __init__(self) -> None:
            self.count = 0

        def work(self, x: Any) -> Any:
            """{0.count}"""
            self.count += 1
            return x * int((type(self).work.__doc__ or '').format(self))

    one = Model()
    return lambda x: one.work(x), lambda: vars(one)


METHODS = {'__radd__': lambda self, number: number + (2 if number == 5 else 1)}
MAKE = functools.partial(type)


def added_by_a_class_made_there(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Stepped()

    def work(x: Any) -> Any:
        amount = type(Stepped)('Amount', (), METHODS)()
        one.count += amount
        return x * 2

    return work, lambda: vars(one)


def added_by_a_class_made_by_a_partial(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Stepped()

    def work(x: Any) -> Any:
        made = MAKE('Amount', (), METHODS)
        if type(made) is type(one):
            return x
        one.count += made()
        return x * 2

    return work, lambda: vars(one)


def seen_by_inspect(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Stepped()

    def work(x: Any) -> Any:
        one.count += 1
        return x * dict(inspect.getmembers(one))['count']

    return work, lambda: vars(one)


def seen_by_vars(_cp: Any) -> tuple[Work, Callable[[], Any]]:
    one = Stepped()

    def work(x: Any) -> Any:
        one.count += 1
        return x * [*vars(one).values()][1]

    return work, lambda: vars(one)


ADVERSARIAL: list[Maker] = [
    read_in_a_branch, read_by_another_name, read_as_a_default, read_by_a_computed_key, read_by_a_method, read_as_a_text,
    added_to_itself, unpacked_in_a_loop, given_its_docstring, added_by_a_class_made_there,
    added_by_a_class_made_by_a_partial, seen_by_inspect,
    seen_by_vars, beside_inspect,
]  # fmt: skip


def told(value: Any) -> Any:
    """All that can be told of a value."""
    if isinstance(value, dict):
        return {key: told(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [told(part) for part in value]
    return value.get().tolist() if hasattr(value, 'get') else (type(value), value)


def alike(cp: Any, maker: Maker, calls: int = 12, between: Callable[[int, Any], None] | None = None) -> int:
    """Call it plainly and graphed, each with a state of its own; return how often it was launched."""
    (plain, state), (other, graphed_state) = maker(cp), maker(cp)
    fn = ck.graphed(other)
    for number in range(calls):
        x = cp.arange(3.0) + number
        assert told(plain(x)) == told(fn(x.copy())), number
        assert told(state()) == told(graphed_state()), number
        if between is not None:
            between(number, state())
            between(number, graphed_state())
    return sum(variant.launches for variant in fn.variants)


@pytest.mark.parametrize('maker', NATURAL, ids=lambda one: one.__name__)
def test_it_is_counted_on_by_each_launch(sim: Any, maker: Maker) -> None:
    assert alike(sim, maker) >= 10


@pytest.mark.parametrize('maker', ADVERSARIAL, ids=lambda one: one.__name__)
def test_what_else_reads_it_is_right(sim: Any, maker: Maker) -> None:
    alike(sim, maker)


def test_somebody_else_changes_the_item(sim: Any) -> None:
    def between(number: int, found: Any) -> None:
        if number in (3, 6, 9):
            found['steps'] = {3: 2.5, 6: 7, 9: True}[number]
        if number == 8:
            found['new'] = 1
        if number == 10:
            found['last'] = found.pop('last')

    assert alike(sim, items, 16, between) >= 4


def test_an_item_that_is_gone(sim: Any) -> None:
    found = {'steps': 0}

    def work(x: Any) -> Any:
        found['steps'] += 1
        return x * 2

    fn = ck.graphed(work)
    for _ in range(4):
        fn(sim.ones(2))
    del found['steps']
    with pytest.raises(KeyError, match='steps'):
        fn(sim.ones(2))


def test_a_dict_that_is_an_argument_too(sim: Any) -> None:
    found = {'steps': 0}

    def work(x: Any, given: dict[str, int]) -> Any:
        found['steps'] += 1
        return x * given['steps']

    fn = ck.graphed(work)
    assert [float(fn(sim.ones(1), found)[0]) for _ in range(8)] == [1.0 + n for n in range(8)]
