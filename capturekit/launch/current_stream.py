"""A stream that capturekit makes current for a while.

CuPy's ``with stream:`` brings back the stream of the ``with`` around it, and forgets one that ``use()`` has made
current since: the caller's own, or the guard's in the place of the null stream of another device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capturekit.model.skipped_exits import contextmanager


@contextmanager
def current_for_now(cuda: Any, stream: Any) -> Iterator[None]:
    """Make a stream of the current device current, and afterwards the one that was, however it became current.

    ``cuda``: ``cupy.cuda``.
    """
    before = cuda.get_current_stream()
    stream.use()
    try:
        yield
    finally:
        before.use()
