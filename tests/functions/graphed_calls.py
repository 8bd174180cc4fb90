"""Calls of graphed functions, written shortly: arrays to give, and what is asked of the variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import capturekit as ck

Make = Callable[[Any], Any]


def ar(v: float = 0, n: int = 4, dtype: str = 'f8') -> Make:
    return lambda cp: cp.arange(n, dtype=dtype) + v


def seq(*values: float, n: int = 4) -> list[Make]:
    return [ar(v, n) for v in values]


def square(*values: float) -> list[Make]:
    return [lambda cp, v=v: (cp.arange(9.0) + v).reshape(3, 3) for v in values]  # type: ignore[misc]


def states(fn: ck.Graphed) -> set[str]:
    return {variant.state for variant in fn.variants}


class Box:
    def __init__(self, inside: Any) -> None:
        self.inside = inside
