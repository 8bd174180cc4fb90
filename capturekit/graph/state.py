"""The state of a graph: one record, which :class:`capturekit.Graph` owns and gives to all that works on it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from capturekit.analysis.node_view import Look
from capturekit.driver.cuda import current
from capturekit.graph.addresses import Index
from capturekit.graph.fused_state import FusedState, with_members
from capturekit.graph.new_edges import NewEdges
from capturekit.graph.refused import closed
from capturekit.guard import GUARD
from capturekit.launch.declared import Declared
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Part, Plan
from capturekit.model.lease import Lease
from capturekit.model.ledger import Ledger
from capturekit.model.recording import Recording
from capturekit.model.rules import Mode


@dataclass
class NodeNames:
    """The handles of a definition's nodes by number, those of the executable graph's, and which are disabled."""

    handles: dict[int, int] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)
    off: set[int] = field(default_factory=set)


class Lent:
    """Memory and host functions of a graph that is embedded in another; given back with the other graph's memory."""

    def __init__(self, memory: GraphMemory, made: Any, put_in: dict[tuple[int, int], Any]) -> None:
        self._lease = memory.hold()
        self._made = made
        self._put_in = list(put_in.values())  # the graph itself may use others later

    def __del__(self) -> None:
        self._lease.release()


class Owner:
    """Who owns a state: a graph, and its ``launch`` where somebody keeps that alone. It is destroyed with the last."""

    __slots__ = ('state',)

    def __init__(self, state: GraphState) -> None:
        self.state = state

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing() and self.state.made is not None:
            self.state.destroy()


def _stays(*_launch: Callable[[], None]) -> None:
    """What binds the launch of a graph that is launched step by step: its steps name their executable graphs."""


@dataclass(eq=False)
class GraphState:
    """All that a graph is made of.

    Attributes:
        device, device_id: the calls of the device, and its number.
        current: returns CuPy's current stream.
        topology, before, inside: the open captures, what a launch tells them, and the block for capturekit's own calls.
        made: the definition and its executable graph; None once the graph is closed.
        memory, lease: the memory that the nodes use, and what is given back with it.
        recording: what the capture has noted.
        plan: how a graph is launched step by step; None for one launch.
        names: the nodes by their numbers.
        declared: what the user says that nodes touch, by their handles.
        index: the addresses in the nodes; None where they have to be read anew.
        new_edges, fused: what there is to know of a graph that was relaned, and of one with fused kernels.
        lock: calls on a graph take turns.
        bind: lets ``launch`` do something else; without an argument it refuses launches from then on.
        put_in: the arrays that nodes use instead of those that were recorded, by where they lie.
        quick, by_name: how often the graph was launched, by the quick way and by another.
    """

    device: Any
    device_id: int
    current: Callable[[], Any]
    topology: Ledger
    before: Callable[[bool, int], None]
    inside: Callable[[], AbstractContextManager[None]]
    made: Any
    memory: GraphMemory
    lease: Lease
    recording: Recording
    plan: Plan | None = None
    names: NodeNames = field(default_factory=NodeNames)
    declared: dict[int, Declared] = field(default_factory=dict)
    index: Index | None = None
    new_edges: NewEdges | None = None
    fused: FusedState | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    bind: Callable[..., None] = _stays
    quick: Callable[[], int] = lambda: 0
    by_name: int = 0
    put_in: dict[tuple[int, int], Any] = field(default_factory=dict)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Make the graph's device current, in a capture mode in which the calls lose no open capture."""
        old = self.device.exchange_thread_mode(Mode.RELAXED)
        try:
            with self.inside(), current().cupy.cuda.Device(self.device_id):
                yield
        finally:
            self.device.exchange_thread_mode(old)

    @property
    def off(self) -> set[int]:
        """The numbers of the disabled nodes."""
        return self.names.off

    def must_be_open(self, call: str) -> None:
        """Refuse a call on a closed graph."""
        if self.made is None:
            raise closed(call)

    def parts(self) -> list[Part]:
        """The graphs that are launched one after the other."""
        return [Part(self.made.graph)] if self.plan is None else self.plan.parts

    def definitions(self) -> list[int]:
        """The graph and the bodies in it."""
        return [g for part in self.parts() for g in part.graphs if g]

    def look(self) -> Look:
        """What the graph's nodes are now; fused kernels have the nodes that they replace."""
        look = Look(self.device, self.parts(), self.recording.spans, self.memory)
        return look if self.fused is None else with_members(look, self.fused.members)

    def lend(self, memory: GraphMemory) -> None:
        """Let ``memory``, another graph's, keep what this graph's nodes use: that graph holds a copy of this one."""
        with self.lock:
            self.must_be_open('Capture.embed()')
            memory.keep(Lent(self.memory, self.made, self.put_in))
            memory.join_turns(self.memory)
            memory.to_close |= self.memory.to_close

    def close(self) -> None:
        """Give back all that the graph holds, unless that was done before. Launches under way finish first."""
        with self.lock:
            if self.made is not None:
                self.destroy()

    def destroy(self) -> None:
        """Give back all that the graph holds, in a thread mode that harms no open capture."""
        self.bind()
        old = self.device.exchange_thread_mode(Mode.RELAXED)
        try:
            self.made = self.new_edges = self.fused = None
            with self.inside(), self.lease:
                if self.plan is not None:
                    self.plan.close()
                if not self.memory.private:
                    GUARD.waits.unless_captured(self.device)  # a launch may be under way, and others use the pool
        finally:
            self.device.exchange_thread_mode(old)
