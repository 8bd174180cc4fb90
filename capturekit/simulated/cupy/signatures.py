"""Signatures from their text. The parts of the stand-in ask for them at each build: each text is read once."""

from __future__ import annotations

import functools
import inspect

import numpy as np

_NAMES = {
    'float': float, 'int': int, 'complex': complex, 'inf': np.inf, 'nan': np.nan, 'float64': np.float64,
    'int64': np.int64,
}  # fmt: skip


@functools.cache
def signature(parameters: str) -> inspect.Signature:
    """Return the signature of what stands between the parentheses."""
    # Defaults are literals or one of a few names; a lambda is Python's own parser for signatures.
    return inspect.signature(eval(f'lambda {parameters}: None', dict(_NAMES)))


@functools.cache
def declarations(text: str) -> tuple[tuple[str, inspect.Signature], ...]:
    """Return names and signatures from a table of :mod:`surface`."""
    lines = (line.strip().partition('(') for line in text.split('\n'))
    return tuple((name, signature(parameters[:-1])) for name, _, parameters in lines if name)
