"""Launches reckon anew with functions of ``math``, ``abs``, ``max``, ``min`` and ``pow``, as plain runs do."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions.outcomes import FunctionPlace
from capturekit.functions.recorded_number import taking_numbers
from tests.functions import models_with_rates
from tests.functions.models_with_rates import Model
from tests.functions.test_reckoned_reads import ODD, alike, launches, ordinary, told

OTHER = 2.5


def root(_cp: Any, x: Any, v: float) -> Any:
    return x / math.sqrt(v), math.sqrt(v * 2 + 1)


def two_arguments(_cp: Any, x: Any, v: float) -> Any:
    return x * math.hypot(v, 3, OTHER) + math.atan2(v, v + 1) - math.copysign(2, -v) + math.fmod(v, 3)


def one_of_another(_cp: Any, x: Any, v: float) -> Any:
    return x * math.exp(-math.log(v + 1.0)) + math.cos(math.pi * v) * math.sin(v)


def whole_numbers(_cp: Any, x: Any, v: float) -> Any:
    return x * math.floor(v) + math.ceil(v * 3) - math.trunc(-v), math.floor(v)


def positive(_cp: Any, x: Any, v: float) -> Any:
    return x * abs(v - 40), abs(-v)


def power(_cp: Any, x: Any, v: float) -> Any:
    return x * pow(v, 2) + math.pow(v, 0.5) * pow(1.01, v)


def the_larger(_cp: Any, x: Any, v: float) -> Any:
    size = max(v, 1e-12)
    return x / size - min(1000.0, v, OTHER + 500), size * 2


def asked_for_nan(_cp: Any, x: Any, v: float) -> Any:
    return x * 0 if math.isnan(v) or math.isinf(v) else x * v


NATURAL: list[Any] = [
    root, two_arguments, one_of_another, whole_numbers, positive, power, the_larger, asked_for_nan,
]  # fmt: skip


def reading(work: Any) -> Any:
    """A function that reads a number and computes with it."""

    def maker(cp: Any) -> Any:
        def read(x: Any) -> Any:
            return work(cp, x, x.sum().item())

        return read, tuple

    return maker


def written(text: str, read: str = 'x.sum().item()', more: str = '', **names: Any) -> Any:
    """The same, where the number is a variable of the function that reads it; ``more``: what its module has, too."""

    def maker(cp: Any) -> Any:
        space = {'math': math, 'root': math.sqrt, 'OTHER': OTHER, 'cp': cp, **names}
        exec(f'{more}\ndef work(x):\n    v = {read}\n    return {text}\n', space)
        before = {**space}
        return space['work'], lambda: [name for name in {**space, **before} if space.get(name) is not before.get(name)]

    return maker


TEXTS: dict[str, str] = {
    'root': 'x / math.sqrt(v), math.sqrt(v * 2 + 1)',
    'two arguments': 'x * math.hypot(v, 3, OTHER) + math.atan2(v, v + 1) - math.copysign(2, -v) + math.fmod(v, 3)',
    'one of another': 'x * math.exp(-math.log(v + 1.0)) + math.cos(math.pi * v) * math.sin(v)',
    'whole numbers': 'x * math.floor(v) + math.ceil(v * 3) - math.trunc(-v), math.floor(v)',
    'positive': 'x * abs(v - 40), abs(-v)',
    'power': 'x * pow(v, 2) + math.pow(v, 0.5) * pow(1.01, v)',
    'the larger': 'x / max(v, 1e-12) - min(1000.0, v, OTHER + 500), max(v, 1e-12) * 2',
    'asked for nan': 'x * 0 if math.isnan(v) or math.isinf(v) else x * v',
}
SEEN: dict[str, str] = {
    'the type of the larger': 'x * (3 if isinstance(max(v, 1e-12), float) else 2)',
    'the larger as a text': 'x * len(str(max(v, 1e-12)))',
    'the larger with a key': 'x * max(v, 4.0, key=lambda one: -one)',
    'the larger of a list': 'x * max([v, 4.0])',
    'the larger of one number': 'x * max(v, default=3) if cp is None else x',
    'the smaller of an array': 'x * min(v, x.max())',
    'the larger of the user': 'x * (1.0 if max(v, ODD_ONE) is ODD_ONE else 2.0)',
    'a root of the user': 'x * math.hypot(v, ODD_ONE)',
    'a root as a text': 'x * len(f"{math.sqrt(abs(v))}")',
    'a root as an index': 'x[math.floor(abs(v)) % 3]',
    'a truth value of a root': 'x * (2 if math.sqrt(abs(v)) else 3)',
    'a power and a remainder': 'x * pow(int(v), 2, 7)',
    'a sum': 'x * math.fsum([v, 1.0])',
    'near': 'x * (2 if math.isclose(v, 3.0, rel_tol=0.5) else 3)',
    'handed on': 'x * sum(map(math.sqrt, [abs(v)]))',
    'by another name': 'x * ROOT(abs(v))',
    'a name of its own': 'x * SELF.sqrt(v)',
    'a user called math': 'x * (lambda math: math.sqrt(v))(SELF)',
    'absolute and seen': 'x * (abs(v) == 3)',
    'outside of its domain': 'x * math.log(v - 30)',
    'too large': 'x * math.exp(v * 20)',
    'of a truth value': 'x * math.hypot(v, True)',
    'named': 'x * math.nextafter(v, 9.0)',
}


class OddOne:
    """A number of the user's, which sees what it is compared with and what asks it for its value."""

    asked = 0

    def __float__(self) -> float:
        type(self).asked += 1
        return float(type(self).asked % 3)

    def __gt__(self, other: float) -> bool:
        return f'{other}' < '5'

    __lt__ = __gt__

    def __rmul__(self, other: Any) -> Any:
        return other * 2


class Mine:
    """What has a name as a function of ``math`` does."""

    def sqrt(self, value: float) -> float:
        return float(str(value)[:1].replace('-', '2').replace('n', '3').replace('i', '4'))


NAMES = {'ODD_ONE': OddOne(), 'ROOT': math.sqrt, 'SELF': Mine()}


@pytest.mark.parametrize('how', TEXTS)
def test_each_launch_computes_anew(sim: Any, how: str) -> None:
    assert launches(alike(sim, written(TEXTS[how]), ordinary(12))) >= 8


@pytest.mark.parametrize('how', TEXTS)
def test_odd_numbers_come_out_alike(sim: Any, how: str) -> None:
    alike(sim, written(TEXTS[how]), [*ordinary(5), *ODD, *ordinary(3), *reversed(ODD)])


@pytest.mark.parametrize('work', NATURAL, ids=lambda one: one.__name__)
def test_in_another_function_it_is_right(sim: Any, work: Any) -> None:
    alike(sim, reading(work), [*ordinary(5), *ODD])


@pytest.mark.parametrize('how', SEEN)
def test_what_sees_a_number_is_right(sim: Any, how: str) -> None:
    fn = alike(sim, made_anew(SEEN[how]), [*ordinary(6), *ODD])
    assert not any('eager run' in variant.reason for variant in fn.variants), 'it was launched, and was wrong'


def made_anew(text: str) -> Any:
    """The same, where each function has a user's number of its own."""

    def maker(cp: Any) -> Any:
        cls = type('OddOne', (OddOne,), {'asked': 0})
        return written(text, **{**NAMES, 'ODD_ONE': cls()})(cp)

    return maker


STATES = (
    'adam cosine_schedule decaying_to_a_least_rate with_reads domain_ends as_a_whole_number whole_and_not '
    'the_last_one_counts'
).split()


def loaded(name: str) -> Callable[[Model, Any], Any]:
    """A function of that module, loaded anew: where other threads run, those that ``gc.freeze`` hides are not known."""
    file = models_with_rates.__file__
    space: dict[str, Any] = {'__name__': models_with_rates.__name__}
    exec(compile(Path(file).read_text(), file, 'exec'), space)
    function: Callable[[Model, Any], Any] = space[name]
    return function


def together(cp: Any, work: Callable[[Model, Any], Any], calls: int) -> Any:
    """Call it plainly and graphed, each with a model of its own; return the graphed function."""
    mine, plain = Model(cp), Model(cp)
    fn = ck.graphed(lambda x: work(mine, x))
    for number in range(calls):
        x = cp.arange(3.0) + number
        assert _told(fn, mine, x) == _told(lambda x: work(plain, x), plain, x), number
    return fn


def _told(fn: Any, one: Model, x: Any) -> Any:
    try:
        found = told(fn(x))
    except ValueError as error:
        found = str(error)
    return found, told([one.n, one.rate])


@pytest.mark.parametrize('name', STATES)
def test_numbers_of_attributes_are_right(sim: Any, name: str) -> None:
    together(sim, loaded(name), 26)


@pytest.mark.parametrize('name', STATES[:4])
def test_numbers_of_attributes_are_launched(sim: Any, name: str) -> None:
    assert launches(together(sim, loaded(name), 20)) >= 12


def test_functions_are_as_they_were_after_it(sim: Any) -> None:
    before = dict(vars(math))
    alike(sim, written(TEXTS['root']), ordinary(12))
    alike(sim, written('x * math.log(v - 30)'), [31.0, 32.0, 33.0, 1.0, 34.0, 35.0])
    assert all(vars(math)[name] is before[name] for name in before)


def test_a_function_that_is_replaced_is_called(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, plain = (written(TEXTS['root'])(sim)[0] for _ in range(2))
    fn = ck.graphed(fn)
    for number in range(20):
        if number == 6:
            assert launches(fn) >= 2
        if number in (6, 9, 15):
            root = (lambda value: value * 2.0) if number != 9 else math.log
            monkeypatch.setattr(math, 'sqrt', root)
        x = sim.arange(3.0) + number
        assert told(fn(x)) == told(plain(x)), number


def test_one_replaced_before_stays(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    doubled: Any = lambda value: value * 2.0  # noqa: E731
    monkeypatch.setattr(math, 'sqrt', doubled)
    alike(sim, written(TEXTS['root']), ordinary(10))
    assert math.sqrt is doubled


def test_other_threads_compute_meanwhile(sim: Any) -> None:
    wrong: list[Any] = []
    ends = threading.Event()

    def compute() -> None:
        while not ends.is_set():
            found = math.sqrt(2.25), math.hypot(3, 4), math.floor(2.5), math.isnan(1.0)
            if found != (1.5, 5.0, 2, False):
                wrong.append(found)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(5):
            alike(sim, written(TEXTS['root']), ordinary(8))
    finally:
        ends.set()
        thread.join()
    assert wrong == []


SHOWN: dict[str, str] = {
    'in a variable': 'root = math.sqrt; kept.append(root)',
    'in a list': 'kept.append(math.sqrt)',
    'by is': 'x = x * (2 if math.sqrt is ROOT else 3)',
    'by its type': 'x = x * (2 if type(math.sqrt) is type(len) else 3)',
    'by a text': "x = x * (2 if getattr(math, 'sqrt') is ROOT else 3)",
    'by an import': 'from math import sqrt; x = x * (2 if sqrt is ROOT else 3)',
    'by the names of the module': "x = x * (2 if vars(math)['sqrt'] is ROOT else 3)",
    'in a condition': 'x = x * (2 if (math.sqrt if x is None else ROOT) is ROOT else 3)',
}


@pytest.mark.parametrize('how', SHOWN)
def test_nobody_sees_what_stands_for_a_function(sim: Any, how: str) -> None:
    kept: list[Any] = []
    space = {'math': math, 'ROOT': math.sqrt, 'kept': kept}
    exec(f'def work(x):\n    v = x.sum().item()\n    {SHOWN[how]}\n    return x * math.sqrt(v)\n', space)
    fn: Any = ck.graphed(space['work'])
    for number in range(12):
        x = sim.arange(3.0) + number
        assert told(fn(x)) == told(space['work'](x)), number  # type: ignore[operator]
    assert all(one is math.sqrt for one in kept)
    assert not any('eager run' in variant.reason for variant in fn.variants), 'it was launched, and was wrong'


class Interrupted(dict[str, Any]):
    """A module's globals; Ctrl-C comes as something is put there."""

    def setdefault(self, *_: Any) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_leaves_no_other_object_in_a_module() -> None:
    """It comes after the first place was taken, and before the recording has begun."""
    first: dict[str, Any] = {'sqrt': math.sqrt}
    places = [FunctionPlace(first, 'sqrt', math.sqrt), FunctionPlace(Interrupted(), 'float', float)]
    with pytest.raises(KeyboardInterrupt), taking_numbers(None, places):  # type: ignore[arg-type]
        raise AssertionError('it began')
    assert first == {'sqrt': math.sqrt}
    with taking_numbers(None, places[:1]):  # type: ignore[arg-type]
        assert first['sqrt'] is not math.sqrt
    assert first == {'sqrt': math.sqrt}


@pytest.mark.parametrize('threads', [False, True])
def test_math_itself_stays_as_it_is(threads: bool) -> None:
    """Only code that is recorded finds other functions: modules that it imports, and other threads, find the same."""
    used: dict[str, Any] = {'maths': math}
    place = FunctionPlace(used, 'maths', math.sqrt, True, math)
    before, ends = dict(vars(math)), threading.Event()
    thread = threading.Thread(target=ends.wait)
    if threads:
        thread.start()
    try:
        with taking_numbers(None, [place]):  # type: ignore[arg-type]
            assert vars(math) == before
            assert used['maths'] is not math and used['maths'].sqrt is not math.sqrt
            assert used['maths'].sqrt(2.25) == 1.5 and used['maths'].pi is math.pi
            with pytest.raises(AttributeError, match="module 'math' has no attribute 'root'"):
                used['maths'].root(2.0)
    finally:
        ends.set()
    assert used == {'maths': math}


def test_another_module_may_do_anything_with_them(sim: Any) -> None:
    other: dict[str, Any] = {'math': math}
    exec('def first(values):\n    return sorted(values, key=math.sqrt)[0] * (2 if math.sqrt is ROOT else 3)\n', other)
    other['ROOT'] = math.sqrt
    space: dict[str, Any] = {'math': math, 'first': other['first']}
    exec('def work(x):\n    v = x.sum().item()\n    return x * math.sqrt(v) * first([9.0, 4.0])\n', space)
    assert launches(alike(sim, lambda _: (space['work'], dict), ordinary(12))) >= 8


NAMED: dict[str, str] = {
    'in a variable': 'named = math',
    'in a list': 'named = [math]',
    'by is': 'x = x * (2 if math is NUMBERS else 3)',
    'by its type': 'x = x * (2 if type(math) is type(NUMBERS) else 3)',
    'by a text': "x = x * (2 if getattr(math, 'pi') > 3 else 3)",
    'handed on': 'x = x * (2 if hasattr(math, "sqrt") else 3)',
    'in a condition': 'x = x * (2 if (math if x is None else NUMBERS) is NUMBERS else 3)',
    'a function of it': 'named = math.sqrt',
    'by several arguments': 'x = x * math.hypot(*[3.0, 4.0])',
    'in a class': 'class Mine:\n        root = math.sqrt\n    x = x * (2 if Mine.root is NUMBERS.sqrt else 3)',
}


@pytest.mark.parametrize('how', NAMED)
def test_what_stands_for_math_is_not_seen(sim: Any, how: str) -> None:
    space: dict[str, Any] = {'math': math, 'NUMBERS': math}
    exec(f'def work(x):\n    v = x.sum().item()\n    {NAMED[how]}\n    return x * math.sqrt(v)\n', space)
    alike(sim, lambda _: (space['work'], dict), [*ordinary(6), *ODD, *ordinary(3)])
    assert space['math'] is math


def test_code_that_names_constants_may_run_beside_threads(sim: Any) -> None:
    """All of the module's functions count where other threads run: one that keeps a function of ``math`` is the reason
    that the value is assumed."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    found = []
    try:
        for beside in ('return math.pi * math.floor(x)', 'return [math.pi, math.floor]'):
            space: dict[str, Any] = {'math': math}
            exec(f'def beside(x):\n    {beside}\n', space)
            exec('def work(x):\n    return x * math.sqrt(x.sum().item())\n', space)
            found.append(launches(alike(sim, lambda _: (space['work'], dict), ordinary(12))))  # noqa: B023
    finally:
        ends.set()
        thread.join()
    assert found[0] >= 8 and found[1] == 0
