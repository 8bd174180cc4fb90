"""Blocks whose end is skipped: it is made up for at once.

Python calls ``__exit__`` when a ``with`` block is left. A signal handler that raises at the first instruction of
``__exit__``, or behind the last one of ``__enter__``, keeps it from doing anything, and nobody calls it again. But
the object that Python has fetched to call it goes away whenever the block is left, and nothing else holds it.
"""

from __future__ import annotations

import _thread
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, _GeneratorContextManager
from typing import Any, TypeVar

_T = TypeVar('_T')


class CertainExit:
    """An ``__exit__``; if the block was entered, and left without it, ``make_up`` is called with the context manager.

    ``entered`` says how many blocks of a context manager are open. It is asked before a block, and when it was left.
    """

    def __init__(self, leave: Callable[..., Any], entered: Callable[[Any], int], make_up: Callable[[Any], Any]) -> None:
        self._leave, self._entered, self._make_up = leave, entered, make_up

    def __get__(self, block: Any, owner: type | None = None) -> Callable[..., Any]:
        if block is None:
            return self._leave
        leave = functools.partial(self._leave, block)  # no frame holds it, so that no traceback does
        left = functools.partial(self._left, block, self._entered(block))
        leave.__dict__['left'] = weakref.ref(leave, left)
        return leave

    def _left(self, block: Any, before: int, _gone: object) -> None:
        if self._entered(block) > before:
            self._make_up(block)


_RLock: Any = _thread.RLock


class Lock(_RLock):  # type: ignore[misc]
    """A re-entrant lock, which ``with lock:`` gives back whatever a signal interrupts."""

    depth: Any = _RLock._recursion_count  # how often this thread holds it

    if sys.version_info >= (3, 14):  # a handler may raise behind a C function that begins a block, and before the block

        def __enter__(self) -> Any:
            return [*map(self.acquire, (True,))]  # no call follows


class _Block(_GeneratorContextManager[Any]):
    """The block of a :func:`contextmanager`."""

    __exit__: Any = CertainExit(
        _GeneratorContextManager.__exit__, lambda one: int(one.gen.gi_suspended), lambda one: one.gen.close()
    )


def contextmanager(function: Callable[..., Iterator[_T]]) -> Callable[..., AbstractContextManager[_T]]:
    """``contextlib.contextmanager``, but what follows the ``yield`` runs even if a signal skips the block's end."""

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> AbstractContextManager[_T]:
        return _Block(function, args, kwargs)  # type: ignore[arg-type]

    return entered
