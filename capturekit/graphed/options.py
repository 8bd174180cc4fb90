"""The options of a graphed function."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from capturekit.launch.memory_group import MemoryGroup
from capturekit.recorder.options import check_flag, check_fuse, check_lanes, check_memory


class Options(NamedTuple):
    """The arguments of :func:`capturekit.graphed`, of which ``check`` is a number of launches, 0 for never."""

    strict: bool = False
    checks: str = 'now'
    pieces: bool = True
    limit: int = 16
    pool: Any = None
    pure: bool = False
    check: int = 0
    fuse: bool | str = False
    lanes: str | None = None
    memory_limit: int | None = None
    memory: MemoryGroup | None = None

    @property
    def later(self) -> bool:
        """Whether calls return before their checks."""
        return self.checks == 'later'


def options_of(given: dict[str, Any]) -> Options:
    """Check the options and return them. Raises TypeError or ValueError for a wrong type or a value out of bounds."""
    found = Options(**given)
    if found.checks not in ('now', 'later'):
        raise ValueError(f"checks must be 'now' or 'later', got {found.checks!r}")
    if not isinstance(found.strict, bool) or not isinstance(found.pieces, bool):
        raise TypeError('strict and pieces must be True or False')
    check_flag('pure', found.pure)
    check_fuse(found.fuse)
    check_lanes(found.lanes, found.memory_limit)
    check_memory(found.pool, found.memory, found.memory_limit)
    if isinstance(found.limit, bool) or not isinstance(found.limit, int):
        raise TypeError(f'limit must be a whole number, got {found.limit!r}')
    if found.limit < 1:
        raise ValueError(f'limit must be 1 or more, got {found.limit}')
    if not isinstance(found.check, int):
        raise TypeError(f'check must be True, False or a whole number, got {found.check!r}')
    if found.check < 0:
        raise ValueError(f'check must be 0 or more, got {found.check}')
    memory = None if found.pool is not None else found.memory or MemoryGroup()
    return found._replace(check=int(found.check) or _everywhere(), memory=memory)


def _everywhere() -> int:
    """The number in CAPTUREKIT_CHECK, which holds for all graphed functions."""
    text = os.environ.get('CAPTUREKIT_CHECK', '')
    if not text:
        return 0
    if not text.isdecimal():
        raise ValueError(f'CAPTUREKIT_CHECK must be a whole number of launches, got {text!r}')
    return int(text)
