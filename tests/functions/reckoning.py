"""Functions that reckon with numbers which they read on the host: each makes (function, what tells its state)."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

Made = tuple[Callable[..., Any], Callable[[], Any]]
Maker = Callable[[Any], Made]


def nothing() -> None:
    return None


def normalized(cp: Any) -> Made:
    def work(x: Any) -> Any:
        for _ in range(3):
            size = cp.linalg.norm(x).item()
            x = x / size
        return x, size

    return work, nothing


class Solver:
    """Conjugate gradients as libraries write them."""

    def __init__(self, cp: Any, matrix: Any, b: Any) -> None:
        self.cp, self.matrix = cp, matrix
        self.x, self.r, self.p = cp.zeros(b.size), b.copy(), b.copy()
        self.old = (b @ b).item()
        self.resid = self.old**0.5
        self.alpha = 0.0

    def update(self) -> None:
        ap = self.matrix @ self.p
        bottom = (self.p @ ap).item()
        if bottom <= 0:
            self.resid = -1.0
            return
        self.alpha = self.old / bottom
        self.x = self.x + self.alpha * self.p
        self.r -= ap * self.alpha
        new = (self.r @ self.r).item()
        beta = new / self.old
        self.p = self.r + beta * self.p
        self.old = new
        self.resid = new**0.5

    def done(self) -> bool:
        return self.resid <= 1e-12


def conjugate_gradients(cp: Any) -> Made:
    matrix = cp.eye(4) * 3 + cp.ones((4, 4))

    def work(x: Any) -> Any:
        solver = Solver(cp, matrix, x)
        for _ in range(2):
            if solver.done():
                break
            solver.update()
        return solver.x, solver.resid, [solver.alpha, (solver.old, x)]

    return work, nothing


def kept_in_lists(cp: Any) -> Made:
    costs: list[float] = []

    def work(x: Any) -> Any:
        found = []
        for number in range(3):
            found.append((x * number).sum().item())
        costs.append((x + 1).sum().item())
        return x * (found[1] - 0.5) + found[2], found

    return work, lambda: costs


def put_in_an_attribute(cp: Any) -> Made:
    class Model:
        def __init__(self) -> None:
            self.last, self.twice, self.count = 0.0, 0.0, 0

        def step(self, x: Any) -> Any:
            self.last = x.max().item()
            self.twice = x.min().item() * 2.0
            self.count += 1
            return x * 2

    one = Model()
    return lambda x: one.step(x), lambda: vars(one)


def of_single_precision(cp: Any) -> Made:
    def work(x: Any) -> Any:
        y = x.astype('f4')
        top = y.max().item()
        return y / top, top * 3, (y * x) * -top, 2**top, top // 3, top % 0.7, y**2 - top

    return work, nothing


def with_whole_numbers(cp: Any) -> Made:
    def work(x: Any) -> Any:
        n = x.astype('i4')
        top = x.sum().item()
        n = n + 3
        return n * top, n + top > 3, 3 - top, (top > 2) + 1

    return work, nothing


def added_in_place(cp: Any) -> Made:
    def work(x: Any) -> Any:
        top = x.max().item()
        x += top
        x *= 1.5
        x -= top * 0.25
        return x * 2

    return work, nothing


def given_as_a_parameter(cp: Any) -> Made:
    def scaled(y: Any, by: float) -> Any:
        return y * by

    def work(x: Any) -> Any:
        return scaled(x, x.max().item() + 1.0)

    return work, nothing


def with_random_numbers(cp: Any) -> Made:
    def work(x: Any) -> Any:
        y = x + cp.random.rand(3)
        return y * y.max().item() + cp.random.rand(3)

    return work, nothing


def with_a_read_that_is_kept(cp: Any) -> Made:
    def work(x: Any) -> Any:
        y = x * x.max().item()
        return y, float(y.sum()), y.get()

    return work, nothing


def with_a_branch(cp: Any) -> Made:
    def work(x: Any) -> Any:
        top = x.sum().item()
        if top > 8.0:
            return x * top
        if 2.0 < top <= 5.0 or top != top:
            return x - top
        return x + top

    return work, nothing


def with_a_check_on_the_device(cp: Any) -> Made:
    def work(x: Any) -> Any:
        y = x * x.max().item()
        if bool(y.sum() > 30):
            return y - 1
        return y + 1

    return work, nothing


def changing_what_is_outside(cp: Any) -> Made:
    total, last = cp.zeros(3), {'x': cp.ones(3), 'calls': 0}

    def work(x: Any) -> Any:
        nonlocal total
        total += x
        x += 1
        last['calls'] += 1
        last['x'] = last['x'] * 0.5 + x
        size = total.max().item()
        total *= 0.25
        y = x / (1 / (size - 3.0))
        total += 1
        return y, last['x'] * (size / 2)

    return work, lambda: (total, last)


#: Functions that launches can repeat.
NATURAL: list[Maker] = [
    normalized, conjugate_gradients, kept_in_lists, put_in_an_attribute, of_single_precision, with_whole_numbers,
    added_in_place, with_random_numbers, with_a_read_that_is_kept, changing_what_is_outside,
]  # fmt: skip
#: Functions that go several ways, or are not followed that far.
OTHERS: list[Maker] = [given_as_a_parameter, with_a_branch, with_a_check_on_the_device]


class Reflected:
    """A number of the user's, which sees what it is added to."""

    def __radd__(self, other: float) -> float:
        return 1.0 if other > 5 else float(str(other)[:1]) if other == other else 0.0

    __rmul__ = __radd__

    def __gt__(self, other: float) -> bool:
        return f'{other}' < '5'


class Sub(float):
    def __rmul__(self, other: float) -> Any:
        return int(other) + float(self)


REFLECTED, SUB = Reflected(), Sub(2.0)
SEEN: dict[str, Callable[[Any, Any, float], Any]] = {
    'as a text': lambda cp, x, v: x * len(str(v)),
    'as its repr': lambda cp, x, v: x * len(repr(v)),
    'formatted': lambda cp, x, v: x * len(f'{v:.3f}'),
    'formatted with others': lambda cp, x, v: x * len(f'{v!r} {1}'),
    'hashed': lambda cp, x, v: x * (hash(v) % 7),
    'as a key': lambda cp, x, v: x * {v: 2}.get(3.0, 5),
    'as an item that is found': lambda cp, x, v: x * ((v in [3.0, 6.0, 9.0]) + 1),
    'by its type': lambda cp, x, v: x * (3 if type(v) is float else 2),
    'by isinstance': lambda cp, x, v: x * (3 if isinstance(v, float) else 2),
    'by its class': lambda cp, x, v: x * len(v.__class__.__name__),
    'by is': lambda cp, x, v: x * (2 if (v + 1) is (v + 1) else 3),
    'as a truth value': lambda cp, x, v: x * (2 if v else 3),
    'as not': lambda cp, x, v: x * (2 if not v else 3),
    'as a whole number': lambda cp, x, v: x * int(v),
    'rounded': lambda cp, x, v: x * round(v, 1),
    'its absolute value': lambda cp, x, v: x * abs(v),
    'its root': lambda cp, x, v: x * math.sqrt(abs(v) + 1),
    'its floor': lambda cp, x, v: x * math.floor(v),
    'its ratio': lambda cp, x, v: x * (v.as_integer_ratio()[0] % 5),
    'its method': lambda cp, x, v: x * (2 if v.is_integer() else 3),
    'divmod': lambda cp, x, v: x * divmod(v, 2)[1],
    'its power': lambda cp, x, v: x * pow(v, 2),
    'the larger': lambda cp, x, v: x * max(v, 4.0),
    'sorted': lambda cp, x, v: x * sorted([v, 4.0])[0],
    'summed': lambda cp, x, v: x * sum([v, 1.0]),
    'as an index': lambda cp, x, v: x[int(abs(v)) % 3],
    'a range': lambda cp, x, v: x * len(range(int(abs(v)) % 5)),
    'pickled': lambda cp, x, v: x * len(pickle.dumps([v, str(v)])),
    'as JSON': lambda cp, x, v: x * json.loads(json.dumps(v)) if v == v and abs(v) < 1e300 else x,
    'of NumPy': lambda cp, x, v: x * np.float64(v),
    'a NumPy operator': lambda cp, x, v: x * (np.float64(2.0) * v),
    'a NumPy array': lambda cp, x, v: x * (np.ones(1) * v).sum(),
    'in an array': lambda cp, x, v: x * cp.asarray([v, 1.0]).sum(),
    'filled': lambda cp, x, v: x + cp.full(3, v),
    'clipped': lambda cp, x, v: cp.clip(x, 0, v),
    'by a ufunc': lambda cp, x, v: cp.maximum(x, v),
    'put into an array': lambda cp, x, v: _put(x * 1, v),
    'in half precision': lambda cp, x, v: x.astype('f2') * v,
    'in a short integer': lambda cp, x, v: x.astype('i1') * v,
    'with complex numbers': lambda cp, x, v: x * (1j * v),
    'complex': lambda cp, x, v: (x * 1j) * v,
    'added to the user': lambda cp, x, v: x * (v + REFLECTED),
    'times the user': lambda cp, x, v: x * (v * SUB),
    'compared with the user': lambda cp, x, v: x * (2 if v < REFLECTED else 3),
    'compared with a text': lambda cp, x, v: x * (2 if v == '3.0' else 3),
    'compared with itself': lambda cp, x, v: x * (2 if v != v else 3),
    'a text so often': lambda cp, x, v: x * len('ab' * (v > 3)),
    'in a text of an error': lambda cp, x, v: x * _caught(lambda: [][v]),  # type: ignore[call-overload]
    'divided by zero and caught': lambda cp, x, v: x * _divided(v),
    'with matrices': lambda cp, x, v: _caught(lambda: x @ v),
    'bits': lambda cp, x, v: x * _caught(lambda: v | 1),  # type: ignore[operator]
    'inverted': lambda cp, x, v: x * (-v),
    'made positive': lambda cp, x, v: x * (+v),
    'to a power of itself': lambda cp, x, v: x * (abs(v) % 3) ** (v % 2),
    'remainders': lambda cp, x, v: x * (v % 0.3 - v // 0.7),
    'powers': lambda cp, x, v: x + 1.01**v,
    'the root of a negative number': lambda cp, x, v: x * ((v - 3) ** 0.5),
    'divided by': lambda cp, x, v: x / (v - 3.0),
    'a number divided by': lambda cp, x, v: x * (1 / (v - 3.0)),
    'overflowing': lambda cp, x, v: x * (v + 0.5) ** 300,
    'big whole numbers': lambda cp, x, v: x * ((v > 3) + (1 << 62)) ** 2 * 1e-30,
    'whole numbers beyond': lambda cp, x, v: x * (v * 0 + ((1 << 60) + 1)),
    'chained': lambda cp, x, v: x * (2 if -1.0 < v < 4.0 else 3),
    'kept in a tuple': lambda cp, x, v: (x, (v, [v, {'v': v}], -0.0 * v)),
    'unpacked': lambda cp, x, v: x * _unpacked(v),
    'of a generator': lambda cp, x, v: x * next(v * n for n in (2, 3)),
    'of a comprehension': lambda cp, x, v: x * [v * n for n in (2, 3)][1],
    'of a lambda': lambda cp, x, v: x * (lambda: v + 1)(),
}  # fmt: skip


def _put(x: Any, v: float) -> Any:
    x[0] = v
    return x


def _unpacked(v: float) -> float:
    one, two = v, v * 2
    return two - one / 4


def _caught(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return len(str(error))


def _divided(v: float) -> float:
    try:
        return 1.0 / (v - 3.0)
    except ZeroDivisionError:
        return 7.0


def seen(how: str) -> Maker:
    """A function that sees the number in one of these ways."""
    see = SEEN[how]

    def maker(cp: Any) -> Made:
        def work(x: Any) -> Any:
            v = x.sum().item()
            return see(cp, x, v), x * (v + 1.0)

        return work, nothing

    return maker


def written(how: str) -> Maker:
    """The same, with the text of that way in the function itself, where the number is a local variable."""
    import inspect

    text = inspect.getsource(SEEN[how]).strip().rstrip(',')
    text = text[text.index('lambda cp, x, v: ') + len('lambda cp, x, v: ') :].split('  # type')[0].rstrip().rstrip(',')

    def maker(cp: Any) -> Made:
        space = {**globals(), 'cp': cp}
        exec(f'def work(x):\n    v = x.sum().item()\n    return {text}, x * (v + 1.0)\n', space)
        return space['work'], nothing

    return maker
