"""One recorded way through a function: made once, launched for every call that it fits."""

from __future__ import annotations

import signal
import traceback
import weakref
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from capturekit.graph.executable import Graph
from capturekit.graphed.array_blocks import groups_of, whole_extent
from capturekit.graphed.carried_state import CarriedState
from capturekit.graphed.environment import Environment
from capturekit.graphed.outcomes import NOTHING, ArgumentNumber, Kept
from capturekit.graphed.reasons import NONE, Reason
from capturekit.graphed.stream_order import StreamOrder
from capturekit.launch.array_extent import extent
from capturekit.launch.plan import Backup, Feed, Plan, Seam
from capturekit.model import errors
from capturekit.model.class_layout import found_in_class, is_dataclass
from capturekit.model.counted import counted
from capturekit.model.host_reads import Read, Rehearsal
from capturekit.model.shown import preformatted

if TYPE_CHECKING:
    from capturekit.fusion.report import Fused
    from capturekit.lanes.report import Relaned

_BEGUN = 'launch_has_begun'


class Variant:
    """One way through a function: for certain shapes and values, Python state and values that the host reads.

    Attributes:
        state: 'rehearsed' (ran eagerly once), 'recorded' (one graph), 'pieces' (graphs with calls by the host between
            them), 'eager' (can't be recorded, see ``reason``) or 'closed'.
        reason: why it is eager, in words; '' if it is not.
        calls: how many calls it has answered. launches: how many of them with a graph.
        seams: the calls made by the host at every launch, each with its line and what it costs.
        assumptions: the host reads whose values it assumes: value and line.
        graph: the :class:`~capturekit.graph.executable.Graph`, or None.
        aims: the numbers of the arguments that are not copied: the graph's nodes use their addresses.
        fused: with ``fuse=True``, what :meth:`Graph.fuse <capturekit.Graph.fuse>` says of the graph; None before.
        relaned: with ``lanes='auto'``, what :meth:`Graph.relane <capturekit.Graph.relane>` says of it; None before.
    """

    #: What launches may reckon with; and the host reads with whose values they do, by number.
    reckonable = NOTHING
    reckoned: frozenset[int] = frozenset()
    #: How many of its launches have met another value than it assumes.
    missed = 0
    #: The number arguments of its rehearsal; and those with which the host reckons at each launch.
    numbers: Sequence[Any] = ()
    arguments: Sequence[ArgumentNumber] = ()

    def __init__(self, environment: Environment | None, rehearsal: Rehearsal, reason: Reason = NONE) -> None:
        self.state = 'eager' if reason else 'rehearsed'
        #: Whether it is for calls whose arrays share memory in a way that a recording can't follow.
        self.shares = False
        self.reason = reason
        self.calls = 0
        self.launches = 0
        self.environment = environment
        self.assume(rehearsal, {} if environment is None else environment.run.kept)
        self.rehearsal = rehearsal
        self.graph: Graph | None = None
        self.aims: list[int] = []
        self.fused: Fused | None = None
        self.relaned: Relaned | None = None
        self.changed = (lambda: None) if environment is None else environment.changed
        self.run: Callable[[Sequence[Any], bool], Any] | None = None
        #: Answers a call that needs one launch and nothing else, from its arrays and their addresses.
        self.quick: Callable[[Sequence[Any], Sequence[int]], Any] | None = None
        self.backups: list[Backup] = []
        #: Whether the function may use memory outside of an array's elements, so that no argument may be a slice.
        self.far = environment is not None and environment.run.far
        groups = groups_of([whole_extent(a) if self.far else extent(a) for a in self.reached if a.size])
        #: Extents of the arrays that the function uses and that are not arguments: sorted, without overlaps.
        self.outside = [(low, high) for low, high, _ in groups]
        #: The objects in the rehearsal's result that are compared by identity; and all of it that was not an array.
        self.held: list[Any] = []
        self.values: Any = None
        #: The stream that was current at the rehearsal.
        self.rehearsed_on = 0
        #: How launches are ordered with the caller's streams; None if they need no order.
        self.stream_order: StreamOrder | None = None
        #: The number arguments that the graph reads; and how many launches are still compared because of them.
        self.slots: Any = None
        self.untried = 0
        #: Calls that returned before their checks were done.
        self.unsettled: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def carried(self) -> CarriedState | None:
        """The changes of Python state that the function makes, and that each launch makes again."""
        return None if self.environment is None else self.environment.run.carried

    @property
    def reached(self) -> Sequence[Any]:
        """The arrays that the function uses and that are not arguments. They are compared by identity."""
        return () if self.environment is None else self.environment.run.arrays

    @property
    def known(self) -> Container[int]:
        """The ids of objects whose attributes are compared at each call."""
        return () if self.environment is None else self.environment.known

    @property
    def reckons(self) -> bool:
        """Whether launches reckon with numbers: with those that are read or given, or that attributes hold."""
        return bool(self.reckoned or self.arguments) or self.reckons_with_state

    @property
    def reckons_with_state(self) -> bool:
        """Whether launches reckon with numbers that attributes hold."""
        return self.carried is not None and bool(self.carried.numbers())

    @property
    def plan(self) -> Plan | None:
        return None if self.graph is None else self.graph._state.plan

    @property
    def draws(self) -> bool:
        """Whether the host draws numbers for its launches, which only an eager run of the same call can draw again."""
        return self.plan is not None and any(part.feeds for part in self.plan.parts)

    @property
    def seams(self) -> list[Seam]:
        return [] if self.plan is None else self.plan.seams

    def assume(self, rehearsal: Rehearsal, kept: Kept) -> None:
        """Assume the values of the host reads, but for those that launches make anew since they are only kept, and
        those that they reckon with."""
        self.kept = kept
        others = [number for number in range(len(rehearsal.reads)) if number not in kept]
        self.assumptions: list[Read] = [rehearsal.reads[number] for number in others if number not in self.reckoned]

    def reckon(self, reads: frozenset[int]) -> None:
        """Let launches reckon with the values of these reads, instead of assuming them: it is recorded anew."""
        self.close()
        self.state, self.reckoned = 'rehearsed', reads
        self.assume(self.rehearsal, self.kept)

    def may_reckon(self, error: errors.AssumptionError) -> bool:
        """Whether launches can reckon with the value of the read whose check has failed."""
        if self.reckoned or error.location is None:
            return False
        return any(self.rehearsal.reads[number].at == error.location for number in self.reckonable.reads)

    @property
    def checks(self) -> int:
        """How many host reads have to be checked at each launch."""
        return len(self.assumptions) + sum(bool(outcomes) for outcomes in self.kept.values())

    def give_up(self, reason: Reason) -> None:
        """Note that it can't be recorded, and why."""
        self.close()
        self.state, self.reason = 'eager', reason

    def stop_launching(self, reason: Reason) -> None:
        """Let later calls run eagerly. The graph is kept until the variant is closed: its launch may be under way."""
        self.run = self.quick = None
        self.state, self.reason = 'eager', reason

    def close(self) -> None:
        """Give the graph and its memory back, after calls whose checks were not awaited have got their outcome."""
        for call in list(self.unsettled):
            call.holds()
        graph, self.graph, self.run, self.quick = self.graph, None, None, None
        self.state = 'closed'
        self.backups = []
        if graph is not None:
            graph.close()

    def restore(self, error: errors.AssumptionError | None = None) -> None:
        """Put back what the last launch wrote outside of its own memory before a check stopped it."""
        if self.plan is not None:
            self.plan.put_back(self.backups, None if error is None else error.index)
            if self.stream_order is not None:
                self.stream_order.close()

    def undo(self, error: Exception) -> None:
        """The same after a launch that raised; raises ``error`` if the device may have begun it: it is not redone."""
        self.restore()
        if _BEGUN in error.__dict__:
            raise error

    def drawn(self) -> list[Feed]:
        """The numbers that generators on the host drew for the last launch."""
        return [] if self.plan is None else self.plan.drawn()

    def __repr__(self) -> str:
        more = f': {self.reason}' if self.reason else ''
        words = [counted(self.calls, 'call'), counted(self.launches, 'launch')]
        words += [counted(len(self.assumptions), 'assumption')] if self.assumptions else []
        anew = len(self.kept) + len(self.reckoned)
        words += [f'{counted(anew, "host read")} made anew'] if anew else []
        words += [counted(len(self.seams), 'seam')] if self.seams else []
        return f'<{self.state} variant, {", ".join(words)}{" ".join(more.split())}>'

    def __str__(self) -> str:
        lines = [repr(self)[1:-1]]
        lines += [f'  assumes {read}' for read in self.assumptions]
        lines += [f'  seam {seam}' for seam in self.seams]
        return '\n'.join(lines)

    def _repr_html_(self) -> str:
        drawn = '' if self.graph is None or self.graph.closed else self.graph.svg()
        return drawn + preformatted(str(self))


def mark_begun(error: BaseException) -> None:
    """Note on what a launch has raised that the device may have begun it."""
    error.__dict__[_BEGUN] = True


def of_what_ran(error: BaseException, restore: Callable[[], object] = int) -> Exception:
    """The exception of what ran. What ends a program, or a signal's handler has raised, goes on, after ``restore``."""
    codes = {getattr(signal.getsignal(number), '__code__', None) for number in signal.valid_signals()}
    if isinstance(error, Exception) and not any(at.f_code in codes for at, _ in traceback.walk_tb(error.__traceback__)):
        return error
    restore()
    raise error


def opaque(value: Any) -> bool:
    """True for objects that are compared by identity: those of the user's classes, whose attributes are watched."""
    cls = type(value)
    if issubclass(cls, tuple) or (issubclass(cls, np.ndarray) and cls is np.ndarray):
        return False
    return not is_dataclass(cls) or found_in_class(cls, '__eq__') is object.__eq__
