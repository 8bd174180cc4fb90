"""Numbers that the host reads are followed to the very calls that they are returned to, and into tuples."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from tests.functions.reckoning import Made, nothing
from tests.functions.test_reckoned_reads import alike, launches, ordinary

DIRECT = pytest.mark.skipif(not (3, 12) <= sys.version_info < (3, 14), reason='this Python does not tell of calls')


def of_a_variable_that_holds_the_function(cp: Any) -> Made:
    def read(x: Any) -> float:
        return x.sum().item() + 1  # type: ignore[no-any-return]

    def work(x: Any) -> Any:
        for reads in (read,):
            x = x / reads(x)
        return x

    return work, nothing


def with_two_numbers_through_one_wrapper(cp: Any) -> Made:
    """One of them decides something. The other one must not be taken for it, nor it for the other one."""

    def passed(of: Callable[..., float], x: Any) -> float:
        found = of(x)
        return found

    def work(x: Any) -> Any:
        size = passed(lambda y: float((y * y).sum()) + 1, x)
        rank = passed(lambda y: float((y > 0).sum()), x)
        return x / size, [rank] * int(rank)

    return work, nothing


@DIRECT
def test_it_is_followed_to_its_call(sim: Any) -> None:
    assert launches(alike(sim, of_a_variable_that_holds_the_function, ordinary(12))) >= 8


def test_each_number_of_a_wrapper_goes_its_own_way(sim: Any) -> None:
    sums = [one if number % 3 else -one for number, one in enumerate(ordinary(16))]
    alike(sim, with_two_numbers_through_one_wrapper, sums)


class Shown:
    """What stands between a function and the code that calls it, and shows what is returned."""

    def __init__(self, function: Callable[..., float]) -> None:
        self.function = function

    def __mul__(self, x: Any) -> str:
        return f'{self.function(x):.3f}'

    def __getitem__(self, x: Any) -> int:
        return int(self.function(x))


def _rounded(function: Callable[..., float], x: Any) -> Any:
    """A plain function that shows it after all."""
    found = function(x)
    return round(found, 1)


class KeysSeen:
    """Its method is called by ``max``, which compares what it returns."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def key(self, factor: float) -> float:
        return float((self.x * factor).sum())


THROUGH: dict[str, Callable[[Callable[..., float], Any], Any]] = {
    'partial': lambda read, x: functools.partial(read, x)(),
    'map': lambda read, x: next(map(read, [x])),
    'reduce': lambda read, x: functools.reduce(lambda a, b: read(x) + a, [1, 2, 3], 0.0),
    'filter': lambda read, x: list(filter(lambda n: read(x * n), [0, 1, 2])),
    'sorted': lambda read, x: sorted([1, -1, 2], key=lambda n: read(x * n)),
    'max': lambda read, x: max([1.0, -1.0, 2.0], key=KeysSeen(x).key),
    'any': lambda read, x: any(read(x * n) for n in (0, 1)),
    'call': lambda read, x: operator.call(read, x) if hasattr(operator, 'call') else read(x),
    'text': lambda read, x: Shown(read) * x,
    'item': lambda read, x: Shown(read)[x],
    'plain': _rounded,
    'bool': lambda read, x: [n for n in (0, 1) if read(x * n)],
    'not': lambda read, x: not read(x),
    'property': lambda read, x: type('P', (), {'size': property(lambda _: read(x))})().size,
    'tuple': lambda read, x: (lambda pair: pair[0] if isinstance(pair, tuple) else -1)((read(x), x)),
    'list': lambda read, x: (lambda pair: pair if isinstance(pair, list) else [pair])(read(x)),
    'number': lambda read, x: (lambda v: 2 * v if type(v) is float else -1)(read(x)),
    'no tuple': lambda read, x: (lambda v: -1 if isinstance(v, tuple) else int(v))(read(x)),
}


@pytest.mark.parametrize('how', THROUGH)
def test_what_stands_between_may_see_it(sim: Any, how: str) -> None:
    def maker(cp: Any) -> Made:
        def read(x: Any) -> float:
            return float(x.sum())  # type: ignore[no-any-return]

        def work(x: Any) -> Any:
            found = THROUGH[how](read, x)
            return x * 2, found

        return work, nothing

    sums = [one if number % 3 else -one for number, one in enumerate(ordinary(9))]
    alike(sim, maker, [*sums, 0.0, *sums, -0.0, float('nan')])


def remembering(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function with a variable of a closure that has the name of another one's."""

    def remembered(x: Any) -> Any:
        return read(x)

    return remembered


class Steps:
    """An object with a method that has the name of what another object has."""

    def read(self, x: Any) -> Any:
        return x


plain, steps = remembering(lambda x: x), Steps()


def of_a_closure(sizes: Callable[[int], float], read: Callable[[Any], Any]) -> Any:
    def inner() -> Any:
        return read(map(sizes, (0, 1)))

    return inner()


def of_an_object(sizes: Callable[[int], float], read: Callable[[Any], Any]) -> Any:
    there = types.SimpleNamespace(read=read)
    return there.read(map(sizes, (0, 1)))


def of_a_class(sizes: Callable[[int], float], read: Callable[[Any], Any]) -> Any:
    there = type('There', (), {'read': staticmethod(read)})
    return there.read(map(sizes, (0, 1)))  # type: ignore[attr-defined]


def with_any_arguments(sizes: Callable[[int], float], read: Callable[[Any], Any]) -> Any:
    def called(*args: Any) -> Any:
        return read(*args)

    return called(map(sizes, (0, 1)))


def of_an_argument(sizes: Callable[[int], float], read: Callable[[Any], Any]) -> Any:
    return (lambda *args: args[0](*args[1:]))(read, map(sizes, (0, 1)))


@pytest.mark.parametrize('in_c', [any, max, sum], ids=lambda one: one.__name__)
@pytest.mark.parametrize('places', [of_a_closure, of_an_object, of_a_class, with_any_arguments, of_an_argument])
def test_a_function_in_c_under_the_same_name_sees_it(sim: Any, places: Callable[..., Any], in_c: Any) -> None:
    """The names are those of functions of the user's, but elsewhere."""

    def work(x: Any) -> Any:
        def sizes(factor: int) -> float:
            return float((x * factor).sum())

        plain(1)
        steps.read(1)
        return x * 2, places(sizes, in_c)

    sums = [one if number % 3 else -one for number, one in enumerate(ordinary(6))]
    alike(sim, lambda cp: (work, nothing), [*sums, 0.0, *sums, -0.0])


class Asking(type):
    """A class that looks at what it is asked about."""

    asked: list[Any]

    def __instancecheck__(cls, value: Any) -> bool:
        cls.asked.append(value[1])
        return type(value) is tuple


def test_a_class_that_looks_at_a_tuple_sees_the_number(sim: Any) -> None:
    def maker(cp: Any) -> Made:
        tuple = Asking('tuple', (), {'asked': []})

        def work(x: Any) -> Any:
            ret = x * 2, float(x.sum())
            first = ret[0] if isinstance(ret, tuple) else ret
            return first

        return work, lambda: tuple.asked

    alike(sim, maker, ordinary(8))


def test_a_variable_that_is_set_anew_is_followed(sim: Any) -> None:
    """What is loaded where the variable is no tuple, is the number that was put there before."""

    def maker(cp: Any) -> Made:
        def work(x: Any) -> Any:
            ret: Any = x.sum(), 1
            for _ in range(2):
                first = ret[0] if isinstance(ret, tuple) else ret
                ret = float(first) * 2
            return x * 2, int(ret), first

        return work, nothing

    alike(sim, maker, ordinary(8))


def test_tuples_in_tuples_without_end_are_left(sim: Any) -> None:
    """Code that calls itself puts what it returns into one more tuple each time."""

    def nested(x: Any, count: int) -> Any:
        if count:
            return nested(x, count - 1), count
        return float(x.sum())

    def work(x: Any) -> Any:
        return x * 2, nested(x, 3)

    alike(sim, lambda cp: (work, nothing), ordinary(6))


def test_many_numbers_meet_arrays(sim: Any) -> None:
    def work(x: Any) -> Any:
        for _ in range(40):
            x = x / ((x * x).sum().item() + 1)
        return x

    assert launches(alike(sim, lambda cp: (work, nothing), ordinary(9))) >= 5
