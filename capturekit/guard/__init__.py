"""What becomes of a call that reaches CuPy while a capture is open: refused, given another meaning, or let through.

Every entry point that is guarded has a row in :mod:`capturekit.guard.entry_points`, which names a component and its
method, the *verb*. The ledger says what the driver would answer. What would cost the capture, or be silently left out
of the graph, raises before the driver is asked; with ``strict=False`` what has an equal meaning inside a graph is given
it, and noted. Then CuPy's original runs, and the ledger follows. Patches are process-wide, judgement is per thread and
per stream: a thread without a capture goes on as always, except that calls which would cost somebody's capture wait
until it is closed.

Streams that are not in the capture but are made current inside it are *held*: put into a capture of their own that is
thrown away, so that work sent to them neither runs nor goes missing unseen. It is reported when the stream is left, and
an allocation for such work is refused at its own line.

How it is cut: :mod:`capturekit.guard.state` is what all share. Each kind of call has a component, made of those that it
calls (:mod:`capturekit.guard.components`). A thread that is linted has a table of its own, with other components in the
place of some (:mod:`capturekit.guard.lint_guard`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from capturekit.driver.cuda import Platform, current
from capturekit.guard.components import Components, assemble
from capturekit.guard.lint_guard import Shadow
from capturekit.guard.open_capture import HEARD, Live, close_recording, new_recording, tell
from capturekit.guard.patching import Installation
from capturekit.guard.state import State
from capturekit.launch.plan import Feed
from capturekit.model import errors
from capturekit.model.errors import CaptureError
from capturekit.model.host_reads import Rehearsal
from capturekit.model.ledger import Ledger, LedgerCapture
from capturekit.model.rules import table
from capturekit.model.source_line import here

__all__ = ['GUARD', 'HEARD', 'Guard', 'Live', 'Shadow', 'close_recording', 'new_recording', 'tell', 'watch']


class Guard(Components):
    """The guard, whole: one for the process, :data:`GUARD`. The components, and the doors that others use most."""

    def install(self, platform: Platform) -> None:
        """Put the wrappers in place (counted)."""
        state = self.state
        with state.lock:
            if state.lives and state.platform.cupy is not platform.cupy:
                raise RuntimeError('captures are open on another CuPy: close them first')
            first = not self.installation.installed
            if first:
                state.ledger.table = table(platform.device.driver_version() or None)
            state.platform = platform
            self.installation.install(self)
            if first:
                try:
                    self.libraries.open(platform)
                except BaseException:
                    self.libraries.close()
                    self.installation.uninstall()
                    raise

    def uninstall(self) -> None:
        """Take the wrappers away again (counted); the last time what was known of events is forgotten, too."""
        with self.state.lock:
            try:
                self.installation.uninstall()
            finally:
                if not self.installation.installed:
                    self.libraries.close()
                if not self.installation.installed:
                    for live in list(self.state.lives.values()):
                        self.gone(live)  # begun by hand and never ended: nobody is left to hear of its end
                    self.state.ledger.marks.clear()
                    self.state.ledger.outside.clear()

    @contextmanager
    def rehearsing(self, platform: Platform, rehearsal: Rehearsal, drawn: list[Feed] | None = None) -> Iterator[None]:
        """Keep what this thread's host reads give, for a block; draw anew only what is not ``drawn`` already."""
        me, state = threading.get_ident(), self.state
        if state.mine() is not None:
            raise errors.UnmatchedError(
                'ck.rehearse()',
                location=here(),
                rule='A rehearsal runs eagerly, and this thread has a capture open.',
                remedy='Rehearse before the capture.',
            )
        self.install(platform)
        before = state.rehearsals.get(me)
        state.rehearsals[me] = rehearsal
        if drawn:
            state.redraws[me] = drawn
        try:
            yield
        finally:
            state.redraws.pop(me, None)
            if before is None:
                del state.rehearsals[me]
            else:
                state.rehearsals[me] = before
            self.uninstall()

    def has_refused(self, error: CaptureError, verb: str) -> None:
        """Remember that a verb has raised."""
        self.verdicts.has_refused(error, verb)

    def gone(self, live: Live) -> None:
        """Forget a capture that is over."""
        self.captures.gone(live)

    # -- the shared state, as others see it ----------------------------------------------------------------------

    @property
    def installation(self) -> Installation:
        """The wrappers, and what they stand for."""
        return self.state.installation

    @property
    def lock(self) -> threading.RLock:
        """Held while anything of the guard's is changed."""
        return self.state.lock

    @property
    def lives(self) -> dict[LedgerCapture, Live]:
        """The open captures."""
        return self.state.lives

    @property
    def ledger(self) -> Ledger:
        """Which streams are in which capture, and what orders them."""
        return self.state.ledger

    @property
    def platform(self) -> Platform:
        """CuPy and the device that the wrappers were installed for last."""
        return self.state.platform

    def mine(self) -> Live | None:
        """The capture opened last by this thread."""
        return self.state.mine()

    def occupied(self) -> bool:
        """Whether this thread has a capture open, or is in a rehearsal."""
        return self.state.occupied()

    def inside(self) -> AbstractContextManager[None]:
        """Calls made in the block are the guard's own: wrappers let them through."""
        return self.state.inside()

    def on(self, device: int, platform: Platform | None = None) -> AbstractContextManager[None]:
        """Another device for a while, for calls of the guard's own."""
        return self.state.on(device, platform)

    def own(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        """Call CuPy's original of an entry point, past the wrappers."""
        return self.state.own(entry, *args, **kwargs)


GUARD = assemble(Guard, State())


@contextmanager
def watch() -> Iterator[None]:
    """Keep the guard in force for a block, so that captures begun by hand (``begin_capture``) are guarded, too."""
    GUARD.install(current())
    try:
        yield
    finally:
        GUARD.uninstall()
