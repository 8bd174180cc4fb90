"""Files that a run writes to and nobody reads: which they are, and what decides how a text is written to them.

A launch does not repeat what is printed. What lands in memory, or in an object of the user, is state like any other.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from capturekit.model.class_layout import MISSING, among, attributes_of, found_in_class

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
    if cls is not _WRAPPER and (not issubclass(cls, _WRAPPER) or any(map(_is_another, [cls] * len(_WRITES), _WRITES))):
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
    return partial(_is_as, values, name, file, form_of(file))


def output_now() -> tuple[Callable[[], Any], Any]:
    """How to read what counts of the standard output, and what that gives now: the file itself where it has state."""
    values = vars(sys)
    file = values.get('stdout', MISSING)
    return (is_as_it_was(values, 'stdout', file), True) if is_output(file) else (partial(_read, values, 'stdout'), file)


def _is_as(values: dict[str, Any], name: str, file: Any, form: tuple[Any, ...]) -> bool:
    return values.get(name) is file and form_of(file) == form


def _read(values: dict[str, Any], name: str) -> Any:
    return values.get(name, MISSING)


def _is_another(cls: type, name: str) -> bool:
    """Whether a class has a method of its own under a name."""
    return found_in_class(cls, name) is not found_in_class(_WRAPPER, name)
