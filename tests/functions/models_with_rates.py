"""Models whose numbers change at each call, in a module that does nothing with ``math`` but to call what it has.

Where other threads run, a module that hands on ``math`` is not followed, as that of their tests.
"""

from __future__ import annotations

import math
from typing import Any


class Model:
    """What the functions below change."""

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        self.n, self.rate, self.least = 0, 1.0, 1e-3


def adam(one: Model, x: Any) -> Any:
    one.n += 1
    return x * (0.1 * math.sqrt(1 - 0.999**one.n) / (1 - 0.9**one.n))


def cosine_schedule(one: Model, x: Any) -> Any:
    one.rate = 0.5 * (1 + math.cos(math.pi * one.n / 50))
    one.n += 1
    return x - one.rate * 0.1


def decaying_to_a_least_rate(one: Model, x: Any) -> Any:
    one.rate = max(one.rate * 0.7, one.least)
    return x * one.rate


def with_reads(one: Model, x: Any) -> Any:
    size = x.sum().item()
    one.rate = math.sqrt(one.rate**2 + size**2)
    return x / one.rate


def domain_ends(one: Model, x: Any) -> Any:
    one.rate -= 0.125
    return x * math.sqrt(one.rate)


def as_a_whole_number(one: Model, x: Any) -> Any:
    one.n += 1
    return x * math.floor(one.n / 3)


def whole_and_not(one: Model, x: Any) -> Any:
    one.n += 1
    return x * max(one.n * 1.5, 9), max(one.n * 1.5, 9)


def the_last_one_counts(one: Model, x: Any) -> Any:
    one.n = min(one.n + 1, 6)
    return x * (one.n * 0.5) if one.n < 6 else x
