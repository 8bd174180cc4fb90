"""One recorded way of a function: made once, launched for every call that it fits."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from capturekit.functions.carried_state import CarriedState
from capturekit.functions.environment import Environment
from capturekit.functions.fences import Fences
from capturekit.functions.number_arguments import NumberSlots
from capturekit.functions.places import whole_extent
from capturekit.graph.executable import Graph
from capturekit.launch.graph_memory import extent
from capturekit.launch.plan import Backup, Feed, Plan, Seam
from capturekit.model import errors
from capturekit.model.class_layout import found_in_class, is_dataclass
from capturekit.model.counted import counted
from capturekit.model.host_reads import Read, Rehearsal


class Variant:
    """One way of a function: for these shapes and values, in this environment, on these assumptions.

    Attributes:
        state: 'rehearsed' (ran eagerly once), 'recorded' (one graph), 'pieces' (graphs with calls by the host between
            them), 'eager' (can't be recorded, see ``reason``) or 'closed'.
        reason: why it is eager, in words; else ''.
        calls: how many calls it has answered. launches: how many of them with a graph.
        seams: the calls made by the host at every launch, each with its line and what it costs.
        assumptions: the host reads that it took for given: value and line.
        graph: the :class:`~capturekit.graph.executable.Graph`, or None.
        aims: the numbers of the arguments that are not copied: nodes are aimed at them.
    """

    def __init__(self, environment: Environment | None, rehearsal: Rehearsal, reason: str = '') -> None:
        self.state = 'eager' if reason else 'rehearsed'
        #: It is for calls whose arrays share memory in a way that a recording can't follow.
        self.shares = False
        self.reason = reason
        self.calls = 0
        self.launches = 0
        self.environment = environment
        self.assumptions: list[Read] = rehearsal.reads
        self.rehearsal = rehearsal
        self.graph: Graph | None = None
        self.aims: list[int] = []
        self.lock = threading.Lock()
        self.changed = (lambda: None) if environment is None else environment.changed
        self.run: Callable[[Sequence[Any], bool], Any] | None = None
        self.quick: Callable[[Sequence[Any], Sequence[int]], Any] | None = None
        self.backups: list[Backup] = []
        #: Extents of the arrays that the function reaches otherwise than as arguments, sorted, none in another.
        self.outside: list[tuple[int, int]] = []
        #: The function may work beyond the elements of an array, so that none may be a part of another one.
        self.far = environment is not None and environment.far
        reached = [a for a in (environment.arrays() if environment else ()) if a.size]
        for low, high in sorted(whole_extent(a) if self.far else extent(a) for a in reached):
            if self.outside and low < self.outside[-1][1]:
                low, high = self.outside[-1][0], max(high, self.outside.pop()[1])
            self.outside.append((low, high))
        #: What a result of the rehearsal held by identity; and all of it that was no array.
        self.held: list[Any] = []
        self.values: Any = None
        #: The stream that was current at the rehearsal.
        self.rehearsed_on = 0
        #: What a launch owes to its caller's streams; None where that is nothing.
        self.fences: Fences | None = None
        #: What the graph reads of numbers among the arguments; and launches that are still to be compared for it.
        self.slots: NumberSlots | None = None
        self.untried = 0
        #: Calls that were answered before their checks.
        self.unsettled: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def carried(self) -> CarriedState | None:
        """What the function changes in Python's state, and each launch does again."""
        return None if self.environment is None else self.environment.carried

    @property
    def plan(self) -> Plan | None:
        return None if self.graph is None else self.graph._plan

    @property
    def seams(self) -> list[Seam]:
        return [] if self.plan is None else self.plan.seams

    def give_up(self, reason: str) -> None:
        """It can't be recorded."""
        self.close()
        self.state, self.reason = 'eager', reason

    def close(self) -> None:
        """Give the graph and its memory back. Calls whose checks nobody has waited for yet are told their verdicts."""
        for call in list(self.unsettled):
            call.holds()
        graph, self.graph, self.run, self.quick = self.graph, None, None, None
        self.state = 'closed'
        self.backups = []
        if graph is not None:
            graph.close()

    def restore(self, error: errors.AssumptionError | None = None) -> None:
        """Put back what the last launch, which was stopped, has written outside of its own memory."""
        if self.plan is not None:
            self.plan.put_back(self.backups, None if error is None else error.index)
            if self.fences is not None:
                self.fences.close()

    def drawn(self) -> list[Feed]:
        """What the last launch was given by generators on the host."""
        return [] if self.plan is None else self.plan.drawn()

    def __repr__(self) -> str:
        more = f': {self.reason}' if self.reason else ''
        told = [counted(self.calls, 'call'), counted(self.launches, 'launch')]
        told += [counted(len(self.assumptions), 'assumption')] if self.assumptions else []
        told += [counted(len(self.seams), 'seam')] if self.seams else []
        return f'<{self.state} variant, {", ".join(told)}{" ".join(more.split())}>'

    def __str__(self) -> str:
        lines = [repr(self)[1:-1]]
        lines += [f'  assumes {read}' for read in self.assumptions]
        lines += [f'  seam {seam}' for seam in self.seams]
        return '\n'.join(lines)

    def _repr_html_(self) -> str:
        drawn = '' if self.graph is None or self.graph.closed else self.graph.svg()
        return f'{drawn}<pre style="white-space:pre-wrap">{escape(str(self))}</pre>'


def opaque(value: Any) -> bool:
    """True for objects that a call is told by identity: people's own, whose attributes the environment watches."""
    cls = type(value)
    if issubclass(cls, tuple) or (issubclass(cls, np.ndarray) and cls is np.ndarray):
        return False
    return not is_dataclass(cls) or found_in_class(cls, '__eq__') is object.__eq__
