"""The state of files and random number generators that is not in attributes or contents."""

from __future__ import annotations

import contextvars
import io
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from capturekit.model.class_layout import MISSING, dictionary_of_class
from capturekit.model.kept_values import Kept
from capturekit.model.value_changes import difference

#: The types of files whose position is asked, since only Python's own code answers for them.
FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedRandom, io.FileIO, io.BytesIO, io.StringIO)
#: Those of them whose contents are in memory.
IN_MEMORY = (io.BytesIO, io.StringIO)
#: Names through which code reads the state of a generator without drawing.
STATE_NAMES = frozenset('getstate get_state state seed_seq bit_generator __getstate__ __reduce__ __reduce_ex__'.split())
#: Names of functions that give a generator another state without drawing, which may be the one that it has.
STATE_SETTERS = frozenset('seed setstate set_state set_bit_generator __setstate__'.split())


def state_of(value: Any) -> Any:
    """The hidden state of a file or a random number generator, without user code."""
    if issubclass(type(value), random.Random):
        return random.Random.getstate(value)
    if issubclass(type(value), np.random.RandomState):
        return np.random.RandomState.get_state(value, legacy=False)
    if issubclass(type(value), (np.random.Generator, np.random.BitGenerator)):
        bits = value.bit_generator if issubclass(type(value), np.random.Generator) else value
        seeds = getattr(bits, 'seed_seq', None)
        return bits.state, getattr(seeds, 'n_children_spawned', None)
    try:
        return value.tell() if value.seekable() else None
    except (OSError, ValueError) as error:  # closed, or being iterated over
        return str(error)


def held_by(value: Any) -> Any:
    """What a file in memory holds, and its position."""
    try:
        return value.getvalue(), value.tell()
    except ValueError as error:  # closed
        return str(error)


def value_in(variable: contextvars.ContextVar[Any]) -> Any:
    """The value of a context variable, or its own default if it is not set."""
    try:
        return variable.get()
    except LookupError:
        return MISSING


def is_in_state(value: Any, kept: Kept) -> bool:
    """True if a generator or file is still in the kept state."""
    return difference(kept, state_of(value)) is None


def random_types() -> tuple[type, ...]:
    """The classes of generators of random numbers on the host."""
    # numpy.random is imported late, so that `import capturekit` does not take longer for it
    return (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)


def seeded_by(function: Any) -> Any:
    """NumPy's own generator for a function that seeds it and is no method of it, as ``np.random.seed``; else None."""
    module: Any = sys.modules.get('numpy.random.mtrand')
    if module is None or not any(function is vars(module).get(name) for name in STATE_SETTERS):
        return None
    return module._rand


def sets_a_state(function: Any) -> bool:
    """Whether a function is one by which generators are given another state."""
    classes = map(dictionary_of_class, random_types())
    return any(function is members.get(name) for members in classes for name in STATE_SETTERS)


HOST_RANDOMNESS: dict[str, Callable[[], Any]] = {
    'random': random.getstate,
    'numpy.random': lambda: np.random.get_state(legacy=False),
}
