"""The settings of loggers: which messages they pass on, who gets them, and whose code runs for that."""

from __future__ import annotations

import io
from collections.abc import Iterable
from operator import is_
from typing import Any

from capturekit.functions.hidden_state import held_by
from capturekit.functions.understood import module_of
from capturekit.model.class_layout import among, bases_of, name_of

_LOGGER = ('logging', 'Logger')
_DICT = object.__getattribute__
_PLAIN = (int, str, bool, float, tuple)
_GROWS = (list, dict, set)
_IN_MEMORY = (io.StringIO, io.BytesIO)


def is_logger(cls: type) -> bool:
    return any((module_of(base), name_of(base)) == _LOGGER for base in bases_of(cls))


def logger_state(value: Any) -> list[Any]:
    """All that decides what becomes of a message of a logger: its attributes, and those of all who may get it.

    What handlers have taken in and keep in memory belongs to it: a run that changes that is no run to repeat.
    """
    found: list[Any] = [_outdated(value)]
    at = value
    _add(found, value.manager)
    while at is not None:
        _add(found, at)
        _add_all(found, at.filters)
        for handler in at.handlers:
            _add(found, handler)
            _add_all(found, handler.filters)
            _add(found, handler.formatter)
            for one in _attributes(handler).values():
                _add_kept(found, one)
        at = at.parent
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
    kept = _attributes(value).get('_cache')
    if not kept:
        return ()
    at = value
    while not at.level and at.parent is not None:
        at = at.parent
    least, disabled = at.level, value.manager.disable
    return tuple((level, said) for level, said in kept.items() if said != (disabled < level and level >= least))


def _attributes(value: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = _DICT(value, '__dict__')
    except AttributeError:
        return {}
    return found


def _add(found: list[Any], value: Any) -> None:
    """Add an object, its class and its attributes."""
    found += (value, type(value))
    attributes = _attributes(value)
    found += attributes
    found += attributes.values()


def _add_all(found: list[Any], values: Iterable[Any]) -> None:
    for value in values:
        _add(found, value)


def _add_kept(found: list[Any], value: Any) -> None:
    """Add how much a handler keeps, or what it has written to a file in memory."""
    cls = type(value)
    if among(cls, _GROWS):
        found.append(len(value))
    elif among(cls, _IN_MEMORY):
        found.append(held_by(value))
    elif module_of(cls) in ('queue', '_queue'):
        found.append(value.qsize())
