"""Functions that only keep the values that they read on the host: each makes (function, what tells its state)."""

from __future__ import annotations

from typing import Any

import numpy as np

Made = tuple[Any, Any]


class Solver:
    """A solver as libraries write them: costs in a list, which is an array in the end."""

    def setup(self, x: Any) -> None:
        self.r = x.copy()
        self.cost: list[float] = []
        self.cost.append(float((self.r * self.r).sum()))

    def step(self) -> Any:
        self.r = self.r * 0.5
        self.cost.append(float(self.r.max()))
        return self.r

    def solve(self, x: Any) -> Any:
        self.setup(x)
        for _ in range(3):
            self.step()
        self.cost = np.array(self.cost)  # type: ignore[assignment]
        return self.r, len(self.cost), self.cost


def returned(_cp: Any) -> Made:
    return (lambda x: (x * 2, float(x.sum()))), tuple


def alone(_cp: Any) -> Made:
    return (lambda x: x.sum().item()), tuple


def of_single_precision(_cp: Any) -> Made:
    return (lambda x: {'loss': float(x.astype('f4').sum()), 'y': x + 1}), tuple


def dropped(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        unused = float(x.sum())  # noqa: F841
        return x * 2

    return fn, tuple


def in_a_list(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        costs = []
        for number in range(3):
            costs.append((x * number).sum().item())
        return x, costs, costs[-1], len(costs)

    return fn, tuple


def by_a_solver(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        found, count, costs = Solver().solve(x)
        return found, count, costs

    return fn, tuple


def of_which_one_part_is_taken(_cp: Any) -> Made:
    return (lambda x: Solver().solve(x)[0]), tuple


def through_lists_and_tuples(_cp: Any) -> Made:
    def solve(x: Any) -> Any:
        parts = list(Solver().solve(x))
        parts[0] = parts[0] + 1
        return tuple(parts)

    return (lambda x: solve(x)), tuple


def into_a_list_that_stays(_cp: Any) -> Made:
    costs: list[float] = []

    def fn(x: Any) -> Any:
        costs.append(float(x.sum()))
        return x * 2

    return fn, lambda: list(costs)


def whole_arrays(cp: Any) -> Made:
    def fn(x: Any) -> Any:
        wide = cp.stack([x, x + 1])
        return wide.get(), wide.T.get(), cp.asnumpy(x * 3), (x * 1j).get(), x.astype('i8').get()

    return fn, tuple


def twice_the_same(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        total = float(x.sum())
        return total, [total, (total, x)], float(x.sum())

    return fn, tuple


def until_it_is_small(_cp: Any) -> Made:
    def fn(x: Any, tol: float = 100.0) -> Any:
        costs: list[float] = []
        for number in range(4):
            cost = float((x.astype(bool) * 0 + number).sum())
            costs.append(cost)
            if cost > tol or tol <= cost or cost != cost:
                break
        return x, costs, not cost > 1000.0

    return fn, tuple


LIMIT = 1e6


class Callback:
    """What stops a solver whose costs are no numbers any more, as libraries write it."""

    stop = False

    def after(self, solver: Solver) -> None:
        if np.isnan(solver.cost[-1]) or np.isinf(solver.cost[-1]):
            self.stop = True


def with_a_callback(_cp: Any) -> Made:
    most = 50

    def fn(x: Any) -> Any:
        solver, callback = Solver(), Callback()
        solver.setup(x.astype(bool) * 1.0)
        for _ in range(3):
            solver.step()
            callback.after(solver)
            if callback.stop or solver.cost[-1] > LIMIT or solver.cost[0] > most:
                break
        return solver.r, solver.cost

    return fn, tuple


def large_or_small(_cp: Any) -> Made:
    def fn(x: Any) -> Any:
        total = float((x.astype(bool) * 0).sum() + 3)
        return (x + 1, total) if total > 9 else (x - 1, total)

    return fn, tuple


class Trainer:
    """What keeps the last loss in an attribute, and lives on."""

    def __init__(self) -> None:
        self.last = 0.0

    def step(self, x: Any) -> Any:
        y = x * 2
        self.last = float(y.sum())
        return y


def in_an_attribute_that_stays(_cp: Any) -> Made:
    trainer = Trainer()
    return trainer.step, lambda: trainer.last


CASES = [
    in_an_attribute_that_stays,
    until_it_is_small, with_a_callback, large_or_small,
    returned, alone, of_single_precision, dropped, in_a_list, by_a_solver, of_which_one_part_is_taken,
    through_lists_and_tuples, into_a_list_that_stays, whole_arrays, twice_the_same,
]  # fmt: skip
