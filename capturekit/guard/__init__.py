"""What happens to a call that reaches CuPy while a capture is open: it is refused, adapted, or let through.

Every guarded entry point has a row in :mod:`capturekit.guard.entry_points`, which names its *verb*: a method of a
component. The *ledger* (:mod:`capturekit.model.ledger`), which knows what is in which capture, says what the driver
would answer. A call that would lose the capture, or be left out of it, raises before the driver is called; with
``strict=False`` it is *adapted*: replaced by its equivalent in a graph, if there is one, and noted. Then the original
runs, and the ledger is updated. Wrappers are process-wide, decisions are made for each thread and stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import FrameType

from capturekit.driver.cuda import Platform, current
from capturekit.guard.allocators import Allocators, Uploads
from capturekit.guard.arrays import Arrays
from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.captures import Captures, Parts
from capturekit.guard.conditional_bodies import Bodies
from capturekit.guard.current_streams import CurrentStreams
from capturekit.guard.effects import Effects, SwallowedRefusals, WithheldOutput
from capturekit.guard.events import Events
from capturekit.guard.lanes import Lanes
from capturekit.guard.libraries import LibraryAccess, LibraryCalls
from capturekit.guard.manual_captures import GraphInputs, ManualCaptures
from capturekit.guard.open_capture import LISTENERS, OpenCapture, close_recording, new_recording, tell_listeners
from capturekit.guard.random_draws import RandomDraws
from capturekit.guard.state import State
from capturekit.guard.stream_calls import Collectives, HostWaits, StreamWork
from capturekit.guard.verdicts import Verdicts
from capturekit.launch.plan import Feed
from capturekit.model import errors
from capturekit.model.cleanup import Undo, undoing, uninterrupted
from capturekit.model.host_reads import Rehearsal
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import here

__all__ = ['GUARD', 'LISTENERS', 'Guard', 'OpenCapture', 'close_recording', 'new_recording', 'tell_listeners', 'watch']


class Components:
    """The components by their names: each verb in the table of entry points is a method of one of them.

    A component is made from those below it. Calls in the other direction are connected at the end.
    """

    # what is of another kind where no capture is open in the driver
    kind_of_lanes: type[Lanes] = Lanes
    kind_of_streams: type[CurrentStreams] = CurrentStreams
    kind_of_events: type[Events] = Events
    kind_of_arrays: type[Arrays] = Arrays
    kind_of_draws: type[RandomDraws] = RandomDraws
    kind_of_manual: type[ManualCaptures] = ManualCaptures

    def __init__(self, state: State) -> None:
        self.state = state
        self.verdicts = verdicts = Verdicts(state)
        self.captures = captures = Captures(state)
        self.lanes = lanes = self.kind_of_lanes(state)
        self.uploads = uploads = Uploads(state, lanes)
        self.allocators = allocators = Allocators(state, verdicts, uploads)
        self.callers = callers = CallerStreams(state, verdicts, lanes)
        self.parts = parts = Parts(state, verdicts, allocators, lanes, uploads)
        self.bodies = bodies = Bodies(state, lanes, parts)
        self.streams = streams = self.kind_of_streams(state, verdicts, allocators, lanes, callers, parts)
        self.inputs = inputs = GraphInputs(state)
        self.manual = self.kind_of_manual(state, verdicts, captures, lanes, streams, inputs)
        given = state, verdicts, allocators, lanes, callers, uploads, parts, bodies, streams, inputs
        self.work = work = StreamWork(*given)
        self.collectives = Collectives(*given)
        self.events = self.kind_of_events(*given, work)
        self.waits = HostWaits(*given)
        self.arrays = self.kind_of_arrays(*given)
        self.draws = self.kind_of_draws(*given)
        self.libraries = LibraryAccess(state)
        self.calls = LibraryCalls(*given, self.libraries, self.waits)
        self.effects = Effects(state, callers)
        self.swallowed = SwallowedRefusals(state)
        self.output = WithheldOutput()
        # calls of components below
        verdicts.meet, verdicts.settle = lanes.met, streams.settle
        allocators.settle = streams.settle
        captures.before_end = [self.manual.let_go, self.events.over]
        captures.after_end = [self.manual.keep_out_again]


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

    def _install_until(self, undo: Undo, platform: Platform) -> None:
        """Put the wrappers in place until the steps of ``undo`` are made."""
        held = [platform]

        def give_back() -> None:
            with uninterrupted():
                if held:  # a signal after it would have it called again
                    held.pop()
                    self.uninstall()

        with uninterrupted():
            self.install(platform)
            undo.push(give_back)

    @contextmanager
    def rehearsing(self, platform: Platform, rehearsal: Rehearsal, drawn: list[Feed] | None = None) -> Iterator[None]:
        """For a block, remember the values that this thread reads on the host; use the numbers in ``drawn`` again."""
        me, state = threading.get_ident(), self.state
        if state.mine() is not None:
            rule = 'A rehearsal runs eagerly, and this thread has a capture open.'
            raise errors.UnmatchedError(
                'ck.rehearse()', location=here(), rule=rule, remedy='Rehearse before the capture.'
            )
        before = state.rehearsals.get(me)

        def put_back() -> None:
            state.redraws.pop(me, None)
            if before is None:
                state.rehearsals.pop(me, None)
            else:
                state.rehearsals[me] = before

        with undoing() as undo:
            self._install_until(undo, platform)
            undo.push(put_back)
            state.rehearsals[me] = rehearsal
            if drawn:
                state.redraws[me] = drawn
            yield

    def opens(self, frame: FrameType) -> None:
        """Note that a graphed function, whose eager run is followed, opens a capture itself."""
        rehearsal = self.state.rehearsals.get(threading.get_ident())
        if rehearsal is not None and self.state.mine() is None:
            rehearsal.effects.append(('capture', f'the function opens a capture of its own at {here(frame)}'))


GUARD = Guard(State())


@contextmanager
def watch() -> Iterator[None]:
    """Keep the guard installed for a block, so that captures begun by a script's own ``begin_capture`` are guarded."""
    with undoing() as undo:
        GUARD._install_until(undo, current())
        yield
