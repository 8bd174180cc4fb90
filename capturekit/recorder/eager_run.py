"""``rehearse()``: an eager run of code that is to be recorded, whose host reads the recording then uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from capturekit.model.host_reads import Rehearsal


def rehearse(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Rehearsal:
    """Run ``fn(*args, **kwargs)`` eagerly and remember each host read: order, line, shape, dtype, value.

    ``ck.capture(rehearsal=...)`` around the same call then records the branches that this run took. ``.result`` is what
    ``fn`` returned, ``.reads`` are its host reads.

    Raises:
        TypeError: ``fn`` is not callable. UnmatchedError: this thread has a capture open. Whatever ``fn`` raises.
    """
    if not callable(fn):
        raise TypeError(f'rehearse takes a function and its arguments, got {type(fn).__name__}')
    rehearsal = Rehearsal()
    with GUARD.rehearsing(current(), rehearsal):
        rehearsal.result = fn(*args, **kwargs)
    return rehearsal
