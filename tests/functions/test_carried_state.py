"""What a function changes in Python's state is changed again by each launch, with this call's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck


class Holder:
    """An object with all that the functions below change."""

    def __init__(self, cp: Any) -> None:
        self.count = 0
        self.flag = False
        self.array = cp.ones(3)
        self.other = cp.zeros(3)
        self.pair = (cp.ones(3), 2.0)
        self.grads: dict[str, Any] = {'w': None, 'b': cp.ones(3)}
        self.rows = [cp.ones(3), cp.zeros(3)]
        self.history: list[Any] = []
        self.nested = {'deep': [cp.ones(3)]}


def counted(one: Any, x: Any) -> Any:
    one.count += 1
    return x * 2


def counted_three_times(one: Any, x: Any) -> Any:
    for _ in range(3):
        one.count += 2
    one.count -= 1
    return x * 2


def turned(one: Any, x: Any) -> Any:
    one.flag = not one.flag
    return x * (2 if one.flag else 3)


def stored(one: Any, x: Any) -> Any:
    one.array = x * 2
    return one.array + 1


def stored_and_returned(one: Any, x: Any) -> Any:
    one.array = x * 2
    return one.array


def moved_on(one: Any, x: Any) -> Any:
    one.array = one.array * 0.5 + x
    return one.array * 2


def exchanged(one: Any, x: Any) -> Any:
    one.array[0] += 1
    one.array, one.other = one.other, one.array
    return one.array + x


def changed_in_place_and_replaced(one: Any, x: Any) -> Any:
    before = one.array
    one.array = x * 3
    before += 1
    return before * 2


def in_a_tuple(one: Any, x: Any) -> Any:
    one.pair = (one.pair[0] + x, one.pair[1])
    return one.pair[0] * one.pair[1]


def in_a_dict(one: Any, x: Any) -> Any:
    one.grads['w'] = x * 2
    one.grads['b'] = one.grads['b'] + x
    return x


def in_a_list(one: Any, x: Any) -> Any:
    one.rows[0], one.rows[1] = one.rows[1], x * 2
    return one.rows[0] + 1


def in_a_list_in_a_dict(one: Any, x: Any) -> Any:
    one.nested['deep'][0] = one.nested['deep'][0] * x
    return x


def the_argument_itself(one: Any, x: Any) -> Any:
    one.array = x
    return x + 1


def in_pieces(one: Any, x: Any) -> Any:
    import cupy

    one.array = cupy.linalg.eigvalsh(cupy.outer(x, x) + cupy.eye(3)) + one.array
    one.count += 1
    return one.array * 2


def with_a_host_read(one: Any, x: Any) -> Any:
    one.count += 1
    one.array = one.array + x
    if one.array.sum() > 1e6:
        return x
    return one.array * 2


def appended(one: Any, x: Any) -> Any:
    one.history.append(x * 2)
    one.history.append(3)
    return x + 1


def appended_and_returned(one: Any, x: Any) -> Any:
    y = x * 2
    one.history.append(y)
    one.history.append(x)
    return y


FUNCTIONS = [
    counted, counted_three_times, turned, stored, stored_and_returned, moved_on, exchanged,
    changed_in_place_and_replaced, in_a_tuple, in_a_dict, in_a_list, in_a_list_in_a_dict, the_argument_itself,
    in_pieces, with_a_host_read, appended, appended_and_returned,
]  # fmt: skip


def shown(value: Any) -> Any:
    """All that can be told of a value; of arrays that are the same object, that too."""
    seen: dict[int, int] = {}

    def show(one: Any) -> Any:
        if hasattr(one, 'get') and hasattr(one, 'dtype'):
            return seen.setdefault(id(one), len(seen)), one.dtype.name, one.get().tolist()
        if isinstance(one, dict):
            return {key: show(part) for key, part in one.items()}
        if isinstance(one, (list, tuple)):
            return type(one), [show(part) for part in one]
        return type(one), one

    return show(value)


def own_work(function: Callable[..., Any], one: Any) -> Callable[..., Any]:
    """A function of its own, which reaches nothing but its own state."""
    return lambda *args: function(one, *args)


def alike(cp: Any, function: Callable[..., Any], calls: int = 8, between: Any = None, **options: Any) -> Any:
    """Call it eagerly and graphed, each with a state of its own: both have to agree after each call."""
    states = Holder(cp), Holder(cp)
    fn = ck.graphed(own_work(function, states[1]), **options)
    for number in range(calls):
        arguments = [cp.arange(3.0) + number for _ in range(2)]
        results = function(states[0], arguments[0]), fn(arguments[1])
        told = [shown([result, vars(one), a]) for result, one, a in zip(results, states, arguments)]
        assert told[0] == told[1], number
        for one in states:
            if between is not None:
                between(number, one)
    return fn


def launches(fn: Any) -> int:
    return sum(variant.launches for variant in fn.variants)


@pytest.mark.parametrize('function', FUNCTIONS, ids=lambda one: one.__name__)
def test_each_launch_changes_it_again(cp: Any, function: Callable[..., Any]) -> None:
    assert launches(alike(cp, function)) >= 4


@pytest.mark.parametrize('function', FUNCTIONS, ids=lambda one: one.__name__)
def test_an_eager_run_beside_each_launch_agrees(cp: Any, function: Callable[..., Any]) -> None:
    assert launches(alike(cp, function, check=True)) >= 4


def test_a_global(cp: Any) -> None:
    space: dict[str, Any] = {}
    source = (
        'TOTAL, LAST = 0, None\ndef work(x):\n    global TOTAL, LAST\n    TOTAL += 2\n    LAST = x * 2\n    return x'
    )
    exec(source + ' + 1', space)
    fn = ck.graphed(space['work'])
    for number in range(7):
        assert fn(cp.full(2, float(number))).get().tolist() == [number + 1.0] * 2
        assert space['TOTAL'] == 2 * (number + 1) and space['LAST'].get().tolist() == [2.0 * number] * 2
    assert launches(fn) >= 4


def test_a_variable_of_a_closure(cp: Any) -> None:
    def made() -> tuple[Any, Any]:
        calls, last = 0, cp.zeros(2)

        def work(x: Any) -> Any:
            nonlocal calls, last
            calls += 1
            last = last + x
            return last * 1

        def told() -> tuple[int, Any]:
            return calls, last

        return work, told

    work, told = made()
    fn = ck.graphed(work)
    for number in range(1, 8):
        assert fn(cp.ones(2)).get().tolist() == [number] * 2
        assert told()[0] == number and told()[1].get().tolist() == [number] * 2
    assert launches(fn) >= 5


def test_slots(cp: Any) -> None:
    class Slotted:
        __slots__ = ('array', 'turned')

    one = Slotted()
    one.turned, one.array = False, cp.zeros(2)

    def work(x: Any) -> Any:
        one.turned = not one.turned
        one.array = one.array + x
        return one.array * 2

    fn = ck.graphed(work)
    for number in range(1, 10):
        assert fn(cp.ones(2)).get().tolist() == [2 * number] * 2
        assert one.turned == bool(number % 2) and one.array.get().tolist() == [number] * 2
    assert launches(fn) >= 5


def other_arrays(number: int, one: Holder) -> None:
    cp = pytest.importorskip('cupy')
    if number == 3:
        one.array = cp.full(3, 7.0)
    if number == 5:
        one.array = cp.full(2, 7.0)[:1]
    if number == 6:
        one.array = cp.full(3, 9.0)[::-1]


def other_values(number: int, one: Holder) -> None:
    if number == 3:
        one.array = 2.0
        one.count = 5
    if number == 5:
        one.array, one.count = one.other, True


@pytest.mark.parametrize('between', [other_arrays, other_values], ids=lambda one: one.__name__)
@pytest.mark.parametrize('function', [moved_on, stored, counted, the_argument_itself], ids=lambda one: one.__name__)
def test_somebody_else_puts_something_there(sim: Any, function: Callable[..., Any], between: Any) -> None:
    alike(sim, function, 14, between)


def test_a_list_that_another_name_leads_to(sim: Any) -> None:
    one = Holder(sim)
    one.rows = one.history = [sim.ones(1)]

    def work(x: Any) -> Any:
        one.history.append(x)
        return x + len(one.rows)

    fn = ck.graphed(work)
    assert [fn(sim.zeros(1)).get().tolist() for _ in range(6)] == [[2.0 + n] for n in range(6)]


def test_places_that_hold_the_same_array(sim: Any) -> None:
    def together(number: int, one: Holder) -> None:
        if number % 3 == 2:
            one.other = one.array

    alike(sim, exchanged, 14, together)


def test_an_argument_that_lies_in_a_place(cp: Any) -> None:
    eager, graphed = Holder(cp), Holder(cp)
    fn = ck.graphed(lambda x: moved_on(graphed, x))
    for _ in range(6):
        wanted, found = moved_on(eager, eager.array), fn(graphed.array)
        assert shown([wanted, vars(eager)]) == shown([found, vars(graphed)])


def test_memory_of_results_is_the_callers(cp: Any) -> None:
    """What is changed in a result that was put in a place is changed there, and nowhere else."""

    def between(number: int, one: Holder) -> None:
        one.array *= 2

    alike(cp, stored_and_returned, 8, between)
    alike(cp, moved_on, 8, between)


def test_a_host_read_that_fails_counts_once(cp: Any) -> None:
    def between(number: int, one: Holder) -> None:
        if number in (4, 6):
            one.array = pytest.importorskip('cupy').full(3, 1e7)
        if number == 5:
            one.array = pytest.importorskip('cupy').ones(3)

    alike(cp, with_a_host_read, 10, between)


def test_a_recording_that_fails_leaves_all_as_it_was(sim: Any) -> None:
    def fails_while_recording(one: Any, x: Any) -> Any:
        one.count += 1
        one.array = x * 2
        one.grads['w'] = one.array
        return x + float(np.frombuffer(x.get().tobytes())[0])

    fn = alike(sim, fails_while_recording, 8)
    assert launches(fn) == 0 or fn.variants


def test_an_exception_of_the_function(sim: Any) -> None:
    one = Holder(sim)

    def work(x: Any) -> Any:
        one.count += 1
        if x.sum() > 100:
            raise ValueError('too large')
        return x * 2

    fn = ck.graphed(work)
    for number in range(6):
        fn(sim.ones(2))
        assert one.count == number + 1
    with pytest.raises(ValueError, match='too large'):
        fn(sim.full(2, 1e3))
    assert one.count == 7


def test_checks_that_come_later_leave_it_eager(sim: Any) -> None:
    assert launches(alike(sim, counted, checks='later')) == 0


@pytest.mark.parametrize('number', [1, 2, 3])
def test_another_number_among_the_arguments(cp: Any, number: int) -> None:
    states = Holder(cp), Holder(cp)

    def work(one: Any, x: Any, factor: float) -> Any:
        one.array = one.array + x * factor
        one.count += 1
        return one.array * 2

    fn = ck.graphed(own_work(work, states[1]))
    for step in range(12):
        results = work(states[0], cp.ones(3), step * number), fn(cp.ones(3), step * number)
        assert shown([results[0], vars(states[0])]) == shown([results[1], vars(states[1])])


def test_explain_tells_of_it(sim: Any, capsys: Any) -> None:
    alike(sim, in_a_dict).explain()
    told = capsys.readouterr().out
    assert "changed at each launch: attribute grads['w'] of a Holder object" in told, told


def test_what_is_not_understood_stays_eager(sim: Any) -> None:
    def appended_and_read(one: Any, x: Any) -> Any:
        one.rows.append(x)
        return x * one.rows[0]

    def appended_and_counted(one: Any, x: Any) -> Any:
        one.rows.append(x)
        return x * len(one.rows)

    def inserted(one: Any, x: Any) -> Any:
        one.rows.insert(0, x)
        return x * 2

    def another_dict(one: Any, x: Any) -> Any:
        one.grads = {'w': x}
        return x * 2

    def a_new_key(one: Any, x: Any) -> Any:
        one.grads[str(len(one.grads))] = x
        return x * 2

    assert launches(alike(sim, another_dict)) >= 5
    for function in (appended_and_read, appended_and_counted, inserted, a_new_key):
        assert launches(alike(sim, function)) == 0, function
