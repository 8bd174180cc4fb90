"""Nodes that copy bytes, taken as elementwise work: so a kernel that has the values writes them itself.

CuPy copies an array that lies in one piece (``y[...] = x``, ``x.copy()``) by a node that copies bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from capturekit.fusion.elementwise import ElementOperand, Elementwise
from capturekit.fusion.runs import Item, Key, Run, Used

#: Dtypes that move so many bytes as one element, whatever they are.
_WORDS = {1: 'uint8', 2: 'uint16', 4: 'uint32', 8: 'uint64'}
_NAME = 'cupy_copy'


def as_elements(item: Item, now: Sequence[Run]) -> Elementwise | None:
    """A copy as work on the elements that a run has in a register; None if no run has what is copied."""
    assert item.copies is not None
    _to, source, nbytes = item.copies
    for run in reversed(now):
        for key, use in run.used.items():
            size = np.dtype(key.dtype).itemsize
            count = prod(key.shape)
            dense = (key.shape, key.strides) in (((), ()), ((count,), (size,)))
            if dense and (key.address, count * size) == (source, nbytes) and use.gone < 0 and _every_bit(key, use):
                return _copy(item, key.dtype, count)
    return None


def as_one_element(item: Item) -> Elementwise | None:
    """A copy of a few bytes as work on one element."""
    assert item.copies is not None
    dtype = _WORDS.get(item.copies[2])
    return _copy(item, dtype, 1) if dtype is not None else None


def _every_bit(key: Key, use: Used) -> bool:
    """Whether a register keeps all bits of an element: memory that is read as a truth value may hold other numbers."""
    return key.dtype != 'bool' or not use.reads


def _copy(item: Item, dtype: str, count: int) -> Elementwise | None:
    if item.copying is None or item.copies is None:
        return None
    to, source, _nbytes = item.copies
    size = np.dtype(dtype).itemsize
    shape, strides = ((count,), (size,)) if count > 1 else ((), ())
    if to % size or source % size:
        return None
    ends = (
        ElementOperand(dtype, source, shape, strides),
        ElementOperand(dtype, to, shape, strides, None, False, True, True),
    )
    return Elementwise(_NAME, item.copying(dtype), ends, True)
