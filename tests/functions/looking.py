"""Functions that do more with a value that they read on the host than keep it, each in another way."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np

from tests.functions.keeping import Made, Solver


def compares(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        total = float(x.sum())
        return (x + 1, total) if total > 9 else (x - 1, total)

    return fn, tuple


def compares_with_a_parameter(_cp: Any) -> Made:
    def fn(x: Any, tol: float = 9.0) -> Any:
        total = float(x.sum())
        if total < 0:
            tol = 3.0
        return (x + 1, total) if total > tol else (x - 1, total)

    return fn, tuple


def compares_in_helpers(_cp: Any) -> Made:
    def is_large(x: Any, tol: float) -> Any:
        total = float(x.sum())
        return total >= tol, total

    def fn(x: Any) -> Any:
        one, other = is_large(x, 9.0), is_large(x, 3)
        return x + one[0] + 2 * other[0], one, other

    return fn, tuple


def compares_items(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        costs = []
        for _ in range(5):
            x = x * 2
            costs.append(x.sum().item())
            if costs[-1] > 99:
                break
        return x, costs

    return fn, tuple


def compares_two_reads(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        one, other = float(x.sum()), float(x[0] * 9)
        return (x + 1 if one < other else x - 1), one

    return fn, tuple


def asks_for_nan(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        total = float((x / x[0]).sum())
        return (x + 1, total) if np.isnan(total) else (x - 1, total)

    return fn, tuple


def compares_an_array(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        host = x.sum().astype('f4').get()
        return (x + 1, host) if host > 9.1 else (x - 1, host)

    return fn, tuple


def by_a_jump_to_the_store(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        old: list[float] = []
        costs = old if x.size else []
        costs.append(float(x.sum()))
        return x + (old[0] > 9), costs

    return fn, tuple


def by_a_jump_to_the_method(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        old: list[float] = []
        costs: list[float] = []
        (old if x.size else costs).append(float(x.sum()))
        return x + (old[0] > 9), costs

    return fn, tuple


def computes(_cp: Any) -> Made:
    return (lambda x: (x, float(x.sum()) * 2)), tuple


def scales(_cp: Any) -> Made:
    return (lambda x: x * float(x.sum())), tuple


def adds_up(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        total = 0.0
        for part in (x, x + 1):
            total += float(part.sum())
        return total, x

    return fn, tuple


def by_another_name(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        costs: list[float] = []
        other = costs
        costs.append(float(x.sum()))
        return x + (1 if other[0] > 9 else 2), costs

    return fn, tuple


def by_a_list_in_a_list(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        costs: list[float] = []
        box = [costs]
        costs.append(float(x.sum()))
        return x + (1 if box[0][0] > 9 else 2), costs

    return fn, tuple


class Noting(Solver):
    """A solver with an attribute that is computed when it is set."""

    large = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name == 'last':
            object.__setattr__(self, 'large', value > 9)
        object.__setattr__(self, name, value)


def by_a_setter(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        solver = Noting()
        solver.last = float(x.sum())
        return x + (1 if solver.large else 2), solver.last

    return fn, tuple


class Prop:
    @property
    def last(self) -> float:
        return self.kept

    @last.setter
    def last(self, value: float) -> None:
        self.kept = value
        self.large = value > 9


def by_a_property(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        holder = Prop()
        holder.last = float(x.sum())
        return x + (1 if holder.large else 2), holder.last

    return fn, tuple


class Log(list):  # type: ignore[type-arg]
    def append(self, value: Any) -> None:
        super().append(value > 9)


def by_a_list_of_its_own(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        log = Log()
        log.append(float(x.sum()))
        return x + (1 if log[0] else 2)

    return fn, tuple


def by_a_key(_cp: Any) -> Made:
    def total(part: Any) -> float:
        return float(part.sum())

    def fn(x: Any) -> Any:
        return sorted([x, x * 0 + 9, x * -1], key=total)

    return fn, tuple


def by_a_partial_function(_cp: Any) -> Made:
    def total(part: Any) -> float:
        return float(part.sum())

    in_order = functools.partial(sorted, key=total)

    def fn(x: Any) -> Any:
        return in_order([x, x * 0 + 9, x * -1])

    return fn, tuple


class Kept:
    pass


def by_getattr(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        kept: Any = Kept()
        kept.cost = float(x.sum())
        return x + (1 if getattr(kept, 'cost') > 9 else 2)  # noqa: B009

    return fn, tuple


def by_vars(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        kept: Any = Kept()
        kept.cost = float(x.sum())
        return x + (1 if vars(kept)['cost'] > 9 else 2)

    return fn, tuple


def by_a_copy(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        kept: Any = Kept()
        kept.cost = float(x.sum())
        other = copy.copy(kept)
        return x + (1 if other.cost > 9 else 2)

    return fn, tuple


def by_locals(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        total = float(x.sum())
        return x + (1 if locals()['total'] > 9 else 2)

    return fn, tuple


def by_an_inner_function(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        total = float(x.sum())

        def large() -> bool:
            return total > 9

        return x + (1 if large() else 2)

    return fn, tuple


def by_its_caller(_cp: Any) -> Made:
    def total(x: Any) -> float:
        return float(x.sum())

    def fn(x: Any) -> Any:
        return x + (1 if total(x) > 9 else 2)

    return fn, tuple


def by_a_branch(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        total = float(x.sum()) or 3.0
        return x, total

    return fn, tuple


def by_an_array_of_the_costs(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        costs = []
        costs.append(float(x.sum()))
        costs.append(float(x.max()))
        return x + int(np.argmax(np.array(costs)))

    return fn, tuple


def by_the_truth_of_an_array(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        solver = Solver()
        solver.setup(x - x[0])
        solver.cost = np.array(solver.cost)  # type: ignore[assignment]
        return x + (1 if solver.cost else 2)

    return fn, tuple


def as_an_index(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        return [x, x + 1, x * 2][int(float(x[0]) > 1) + 1]

    return fn, tuple


def as_a_key(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        return {float(x.sum()): x}

    return fn, tuple


def in_a_text(_cp: Any) -> Made:
    return (lambda x: (x, f'{float(x.sum()):.2f}')), tuple


def as_an_array_again(cp: Any) -> Made:
    return (lambda x: cp.asarray(x.get()) + 1), tuple


def a_part_of_an_array(_cp: Any) -> Made:
    return (lambda x: (x, x.get()[0])), tuple


def changed_afterwards(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        host = x.get()
        host[0] = host[1]
        return host

    return fn, tuple


def by_exceptions(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        try:
            assert float(x.sum()) < 9
            return x + 1
        except AssertionError:
            return x + 2

    return fn, tuple


def by_a_global(_cp: Any) -> Made:
    global LAST
    LAST = 0.0

    def fn(x: Any) -> Any:
        global LAST
        LAST = float(x.sum())
        return x + (1 if large() else 2)

    return fn, lambda: LAST


def large() -> bool:
    return LAST > 9


LAST = 0.0


class Trainer:
    def __init__(self) -> None:
        self.last = 0.0
        self.best = 0.0

    def step(self, x: Any) -> Any:
        before = self.last
        self.last = float(x.sum())
        return x + before

    def with_the_best(self, x: Any) -> Any:
        self.last = float(x.sum())
        self.best = max(self.best, self.last)
        return x + self.best


def an_equal_value_in_a_class(_cp: Any) -> Made:
    class Last:
        value = 7.0
        values: tuple[float, ...] = ()

    def fn(x: Any) -> Any:
        Last.value = float(x.sum())
        Last.values = (float(x.max()),)
        return x + 1

    return fn, lambda: (Last.value, Last.values)


def the_value_of_the_call_before(_cp: Any) -> Made:
    trainer = Trainer()
    return trainer.step, lambda: trainer.last


def the_best_value(_cp: Any) -> Made:
    trainer = Trainer()
    return trainer.with_the_best, lambda: (trainer.last, trainer.best)


CASES = [
    the_value_of_the_call_before, the_best_value, an_equal_value_in_a_class,
    compares_with_a_parameter, compares_in_helpers, compares_items, compares_two_reads, asks_for_nan,
    compares_an_array, by_a_jump_to_the_store, by_a_jump_to_the_method,
    compares, computes, scales, adds_up, by_another_name, by_a_list_in_a_list, by_a_setter, by_a_property,
    by_a_list_of_its_own, by_a_key, by_a_partial_function, by_getattr, by_vars, by_a_copy, by_locals,
    by_an_inner_function, by_its_caller, by_a_branch, by_an_array_of_the_costs, by_the_truth_of_an_array, as_an_index,
    as_a_key, in_a_text, as_an_array_again, a_part_of_an_array, changed_afterwards, by_exceptions, by_a_global,
]  # fmt: skip
