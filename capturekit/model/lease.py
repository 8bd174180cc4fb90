"""Resources that are handed from owner to owner and given back exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self


class Lease:
    """Resources that are held as long as an owner needs them. A second :meth:`release` does nothing.

    ``parts`` are other leases, and functions that give something back. The last part is given back first; each is
    given back even if others fail. ``with lease:`` gives back, at the end of the block, all that was not handed over.
    """

    __slots__ = ('_steps',)

    def __init__(self, *parts: Lease | Callable[[], Any]) -> None:
        self._steps: list[Callable[[], Any]] = []
        self.add(*parts)

    def add(self, *parts: Lease | Callable[[], Any]) -> None:
        """Hold more parts, which are given back first."""
        self._steps += [part.release if isinstance(part, Lease) else part for part in parts]

    def hand_over(self) -> Lease:
        """Move all that this lease holds into a new lease, and return that."""
        steps, self._steps = self._steps, []
        return Lease(*steps)

    def release(self) -> None:
        """Give everything back, and then raise the first failure, if there was one. A second call is no error."""
        steps, self._steps = self._steps, []
        failure: BaseException | None = None
        for give_back in reversed(steps):
            try:
                give_back()
            except BaseException as error:
                failure = failure or error
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback holds this frame

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()
