"""What happens to a call that reaches CuPy while a capture is open: it is refused, adapted, or let through.

Every guarded entry point has a row in :mod:`capturekit.guard.entry_points`, which names a component and its method, the
*verb*. The *ledger* (:mod:`capturekit.model.ledger`), which knows what is in which capture, says what the driver would
answer. A call that would lose the capture, or be silently left out of the graph, raises before the driver is called;
with ``strict=False`` it is *adapted*: replaced by its equivalent in a graph, if there is one, and noted. Then CuPy's
original runs, and the ledger is updated. Wrappers are process-wide, decisions are made for each thread and stream: a
thread without a capture is not affected, except that calls which would lose another thread's capture wait until that
is closed.

Streams that are not in the capture but are made current inside it are *held*: they are captured into a graph that is
thrown away, so that work sent to them neither runs nor is missed. Such work is reported when the stream is left, and
an allocation for it is refused at its own line.

:mod:`capturekit.guard.state` is what all components share. Each kind of call has a component, made from those that it
calls (:mod:`capturekit.guard.components`). What becomes of a refusal is the policy's: it is raised, unless an eager run
is linted, or a script observed (:mod:`capturekit.guard.policy`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import FrameType

from capturekit.driver.cuda import Platform, current
from capturekit.guard.components import Components
from capturekit.guard.open_capture import LISTENERS, OpenCapture, close_recording, new_recording, tell_listeners
from capturekit.guard.state import State
from capturekit.launch.plan import Feed
from capturekit.model import errors
from capturekit.model.host_reads import Rehearsal
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import here

__all__ = [
    'GUARD', 'LISTENERS', 'Guard', 'OpenCapture', 'close_recording', 'new_recording', 'tell_listeners', 'watch'
]  # fmt: skip


class Guard(Components):
    """All components, and the methods that other packages use most. The process has one guard: :data:`GUARD`."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        #: The wrappers, and what they replaced; the lock that is held while the guard's state is changed.
        self.installation, self.lock = state.installation, state.lock
        #: The open captures; and which streams are in which capture, and what orders them.
        self.lives, self.ledger = state.lives, state.ledger
        # what other packages call most, without a step in between
        self.mine, self.occupied, self.inside = state.mine, state.occupied, state.inside
        self.on, self.own, self.has_refused = state.on, state.own, self.verdicts.has_refused

    def install(self, platform: Platform) -> None:
        """Put the wrappers in place. Calls are counted: each needs its :meth:`uninstall`."""
        state = self.state
        with state.lock:
            if state.lives and state.platform.cupy is not platform.cupy:
                raise RuntimeError('captures are open on another CuPy: close them first')
            first = not self.installation.installed
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
        """Undo one :meth:`install`; the last one removes the wrappers and forgets all events."""
        with self.state.lock:
            try:
                self.installation.uninstall()
            finally:
                if not self.installation.installed:
                    self.libraries.close()
                    # those begun by hand and never ended: without wrappers their end would not be noticed
                    for live in list(self.state.lives.values()):
                        self.captures.gone(live)
                    self.inputs.forget()
                    self.state.ledger.marks.clear()
                    self.state.ledger.outside.clear()

    @contextmanager
    def rehearsing(self, platform: Platform, rehearsal: Rehearsal, drawn: list[Feed] | None = None) -> Iterator[None]:
        """For a block, remember the values that this thread reads on the host; use the numbers in ``drawn`` again."""
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

    def opens(self, frame: FrameType) -> None:
        """Note that a graphed function, whose eager run is followed, opens a capture itself."""
        rehearsal = self.state.rehearsals.get(threading.get_ident())
        if rehearsal is not None and self.state.mine() is None:
            rehearsal.effects.append(f'the function opens a capture of its own at {here(frame)}')

    @property
    def platform(self) -> Platform:
        """CuPy and the device that the wrappers were installed for last."""
        return self.state.platform


GUARD = Guard(State())


@contextmanager
def watch() -> Iterator[None]:
    """Keep the guard installed for a block, so that captures begun by hand (by the script's own ``begin_capture``) are
    guarded, too."""
    GUARD.install(current())
    try:
        yield
    finally:
        GUARD.uninstall()
