"""Blocks whose end is skipped: it is made up for at once.

Python calls ``__exit__`` when a ``with`` block is left. A signal handler that raises at the first instruction of
``__exit__``, or behind the last one of ``__enter__``, keeps it from doing anything, and nobody calls it again. But
the object that Python has fetched to call it goes away whenever the block is left, and nothing else holds it.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from capturekit.model.cleanup import Undo

_T = TypeVar('_T')


class CertainExit:
    """An ``__exit__``; if the block was entered, and left without it, ``make_up`` is called with the context manager.

    ``entered`` says how many blocks of a context manager are open. It is asked before a block, and when it was left.
    """

    def __init__(
        self, leave: Callable[..., Any], entered: Callable[[Any], int], make_up: Callable[[Any], object]
    ) -> None:
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


class _Block(contextlib._GeneratorContextManager[Any]):
    """The block of a :func:`contextmanager`."""

    def _is_entered(self) -> int:
        made: Any = self.gen
        return int(made.gi_suspended)

    __exit__: Any = CertainExit(
        contextlib._GeneratorContextManager.__exit__, _is_entered, lambda block: block.gen.close()
    )


def contextmanager(function: Callable[..., Iterator[_T]]) -> Callable[..., contextlib.AbstractContextManager[_T]]:
    """``contextlib.contextmanager``, but what follows the ``yield`` runs even if a signal skips the block's end."""

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[_T]:
        made: Any = _Block
        block: contextlib.AbstractContextManager[_T] = made(function, args, kwargs)
        return block

    return entered


@contextmanager
def undoing() -> Iterator[Undo]:
    """A block at whose end all steps are undone, whatever ends it; the first failure is raised."""
    steps = Undo()
    failure: BaseException | None = None
    try:
        yield steps
    finally:
        try:
            while steps:
                try:
                    failure = steps.run() or failure
                except BaseException as error:  # a signal at its first instruction: it is called again
                    failure = failure or error
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback holds this frame
