"""State that is neither in attributes nor in contents: of files, outputs, loggers and generators of random numbers.

A launch does not repeat what is printed. What lands in memory, or in an object of the user, is state like any other.

Each run that draws entropy of the system draws other values, and nobody can compare them. NumPy's generators draw it
by ``secrets.randbits``, a function of Python's. ``RandomState(seed)`` does so, too: it makes a generator without a
seed first, and then gives it the state of the seed, and forgets what it has drawn.
"""

from __future__ import annotations

import contextvars
import io
import random
import sys
from collections.abc import Callable
from functools import partial
from operator import is_
from types import CodeType
from typing import Any

import numpy as np

from capturekit.graphed.allowlists import module_of
from capturekit.graphed.value_changes import difference
from capturekit.model.class_layout import (
    MISSING,
    among,
    attributes_of,
    bases_of,
    dictionary_of_class,
    found_in_class,
    name_of,
)
from capturekit.model.kept_values import Kept

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
    'random': lambda: str(random.getstate()),  # a text is compared at once, and 625 numbers one by one
    'numpy.random': lambda: np.random.get_state(legacy=False),
}


_LOGGER = ('logging', 'Logger')
_GET_ATTRIBUTE = object.__getattribute__
_PLAIN = (int, str, bool, float, tuple)
_GROWS = (list, dict, set)


def is_logger(cls: type) -> bool:
    return any((module_of(base), name_of(base)) == _LOGGER for base in bases_of(cls))


def logger_state(value: Any) -> list[Any]:
    """All that decides what becomes of a message of a logger: its attributes, and those of all who may get it.

    What handlers have taken in and keep in memory belongs to it: a run that changes that is no run to repeat.
    """
    found: list[Any] = [_outdated(value)]
    parts, at = [value.manager], value
    while at is not None:
        parts += [at, *at.filters]
        for handler in at.handlers:
            parts += [handler, *handler.filters, handler.formatter]
            found += map(_kept_by, _attributes_in(handler).values())
        at = at.parent
    for one in parts:
        attributes = _attributes_in(one)
        found += (one, type(one), *attributes, *attributes.values())
    return found


def is_logger_as(value: Any, state: list[Any]) -> bool:
    """Whether the state of a logger is this one; values that are not plain are compared by identity."""
    now = logger_state(value)
    if len(now) != len(state):
        return False
    return all(map(is_, now, state)) or all(
        one is other or (type(one) is type(other) and among(type(one), _PLAIN) and one == other)
        for one, other in zip(now, state)
    )


def _outdated(value: Any) -> tuple[Any, ...]:
    """The answers that a logger has kept to whether a level is enabled, and that it would not give any more."""
    kept = _attributes_in(value).get('_cache')
    if not kept:
        return ()
    at = value
    while not at.level and at.parent is not None:
        at = at.parent
    least, disabled = at.level, value.manager.disable
    return tuple((level, said) for level, said in kept.items() if said != (disabled < level and level >= least))


def _attributes_in(value: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = _GET_ATTRIBUTE(value, '__dict__')
    except AttributeError:
        return {}
    return found


def _kept_by(value: Any) -> Any:
    """How much an attribute of a handler keeps, or what was written to a file in memory; None for others."""
    cls = type(value)
    if among(cls, _GROWS):
        return len(value)
    if among(cls, IN_MEMORY):
        return held_by(value)
    return value.qsize() if module_of(cls) in ('queue', '_queue') else None


_WRAPPER: Any = io.TextIOWrapper
_BUFFER, *_ASKED = [
    vars(_WRAPPER)[name].__get__
    for name in ('buffer', 'closed', 'encoding', 'errors', 'line_buffering', 'write_through')
]
#: Buffers of files outside of the process.
_OUTSIDE = (io.BufferedWriter, io.BufferedRandom, io.BufferedReader, io.FileIO)
#: What a class derived from ``TextIOWrapper`` may not answer itself.
_WRITES = ('write', 'flush', '__getattribute__')


def is_output(file: Any) -> bool:
    """Whether a file is of Python's own code, and what is written to it leaves the process, or is lost."""
    cls = type(file)
    if not issubclass(cls, _WRAPPER):
        return False
    if cls is not _WRAPPER and any(found_in_class(cls, name) is not found_in_class(_WRAPPER, name) for name in _WRITES):
        return False
    try:
        return among(type(_BUFFER(file)), _OUTSIDE)
    except ValueError:  # its buffer was taken away
        return True


def form_of(file: Any) -> tuple[Any, ...]:
    """What decides how a text is written to an output, and whether it can be; and which mode it says that it has."""
    try:
        asked: list[Any] = [ask(file) for ask in _ASKED]
    except (ValueError, AttributeError) as error:
        asked = [str(error)]
    return (is_output(file), attributes_of(file).get('mode'), *asked)


def is_as_it_was(values: dict[str, Any], name: str, file: Any) -> Callable[[], bool]:
    """What tells whether a dictionary still has that very output, and it is as it is now."""
    form = form_of(file)
    return lambda: values.get(name) is file and form_of(file) == form


def output_now() -> tuple[Callable[[], Any], Any]:
    """How to read what counts of the standard output, and what that gives now: the file itself where it has state."""
    values = vars(sys)
    file = values.get('stdout', MISSING)
    if is_output(file):
        return is_as_it_was(values, 'stdout', file), True
    return partial(values.get, 'stdout', MISSING), file


#: The function by which entropy is drawn.
DRAWING: CodeType = random.SystemRandom.getrandbits.__code__
#: The name of the class whose calls have to be told of.
SEEDED = 'RandomState'
_NO_ARGUMENT: Any = getattr(getattr(sys, 'monitoring', None), 'MISSING', None)


def overwrites_entropy(function: Any, first: Any) -> bool:
    """Whether a call makes a generator with a seed, whose state no entropy is in. ``first``: its first argument."""
    made: Any = getattr(sys.modules.get('numpy.random'), SEEDED, None)
    return made is not None and function is made and first is not None and first is not _NO_ARGUMENT
