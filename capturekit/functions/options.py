"""The options of a graphed function."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from capturekit.launch.memory_group import MemoryGroup
from capturekit.recorder.arguments import check_lanes


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
    if not isinstance(found.pure, bool):
        raise TypeError(f'pure must be True or False, got {found.pure!r}')
    if not isinstance(found.fuse, bool) and found.fuse != 'fast':
        raise TypeError(f"fuse must be True, False or 'fast', got {found.fuse!r}")
    check_lanes(found.lanes, found.memory_limit, None, None)
    if isinstance(found.limit, bool) or not isinstance(found.limit, int):
        raise TypeError(f'limit must be a whole number, got {found.limit!r}')
    if found.limit < 1:
        raise ValueError(f'limit must be 1 or more, got {found.limit}')
    if found.pool is not None and not callable(getattr(found.pool, 'malloc', None)):
        raise TypeError(f'pool must be a cupy.cuda.MemoryPool or None, got {type(found.pool).__name__}')
    if found.memory is not None and not isinstance(found.memory, MemoryGroup):
        raise TypeError(f'memory must be a capturekit.MemoryGroup or None, got {type(found.memory).__name__}')
    if found.memory is not None and found.pool is not None:
        raise TypeError('memory= can not be combined with pool=')
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
