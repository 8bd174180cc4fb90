"""What becomes of a call that reaches CuPy while a capture is open: refused, given another meaning, or let through.

Every intercepted entry point has a method here (its *verb*). The topology says what the driver would answer; what
would cost the capture, or be silently left out of the graph, raises before the driver is asked; with
``strict=False`` what has an equal meaning inside a graph is given it, and noted. Then CuPy's original runs, and the
topology is told. Patches are process-wide, judgement is per thread and per stream: a thread without a capture goes on
as always, except that calls which would cost somebody's capture wait until it is closed.

Streams that are not in the capture but are made current inside it are *trapped*: put into a capture of their own that
is thrown away, so that work sent to them neither runs nor goes missing unseen. It is reported when the stream is left,
and an allocation for such work is refused at its own line.

How it is cut: each file adds the verbs of one kind to the class of the file below it. From the ground up: judging,
allocators, lanes, callers, joins, uploads, cuts, bodies, switches, visits, work, collectives, ordering, waits, arrays,
draws, seams, effects, endings. On top lies the shadow, which is asked instead of the guard in a thread that is linted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from capturekit.driver.cuda import current
from capturekit.guard.lint_guard import Shadow
from capturekit.guard.manual_captures import Endings
from capturekit.guard.open_capture import HEARD, Live, close_recording, new_recording, tell

__all__ = ['GUARD', 'HEARD', 'Guard', 'Live', 'Shadow', 'close_recording', 'new_recording', 'tell', 'watch']


class Guard(Endings):
    """The guard, whole: one for the process, :data:`GUARD`."""


GUARD = Guard()


@contextmanager
def watch() -> Iterator[None]:
    """Keep the guard in force for a block, so that captures begun by hand (``begin_capture``) are guarded, too."""
    GUARD.install(current())
    try:
        yield
    finally:
        GUARD.uninstall()
