"""Classes of plain values. They have no state, so all stand-ins share them: this file is imported once, by its name.

To make such a class takes a hundred times as long as to make an ordinary one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Elements:
    """Where elements lie: the address of the first one, shape, strides in bytes, dtype."""

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


class Parameter(NamedTuple):
    """A parameter of an elementwise kernel, as it is declared."""

    type: str
    name: str
    raw: bool


@functools.lru_cache(maxsize=512)
def declared(text: str) -> tuple[Parameter, ...]:
    """Read declarations as ``'float32 x, raw T y'``."""
    found = []
    for part in filter(None, (p.strip() for p in text.split(','))):
        words = part.split()
        found.append(Parameter(words[-2], words[-1], 'raw' in words[:-2]))
    return tuple(found)


class UniqueAllResult(NamedTuple):
    """What ``cupy.unique_all`` returns."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    """What ``cupy.unique_counts`` returns."""

    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    """What ``cupy.unique_inverse`` returns."""

    values: Any
    inverse_indices: Any
