"""The state of a graph: one record, which :class:`capturekit.Graph` owns and gives to all that works on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from capturekit.analysis.node_view import Look
from capturekit.driver.cuda import current
from capturekit.graph.addresses import Index, NodeAt
from capturekit.graph.refused import closed, refused
from capturekit.launch.declared import Declared
from capturekit.launch.gate import Gate
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Part, Plan
from capturekit.model.errors import CudaCallError
from capturekit.model.lease import Lease
from capturekit.model.recording import Recording
from capturekit.model.rules import Mode
from capturekit.model.skipped_exits import Lock, contextmanager


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


class Turns(Lock):
    """Calls on a graph take turns; one within another of the same thread is refused, because that one is half done."""

    def __enter__(self) -> Any:
        if self.depth():
            rule = 'A destructor or a handler of signals makes it in the middle of another call on the same graph.'
            raise refused('A call on a graph', rule, 'Make it later, outside of that call.')
        return [*map(self.acquire, (True,))]  # no call follows, at whose end a signal could keep the lock


class Owner:
    """Who owns a state: a graph, and its ``launch`` where somebody keeps that alone. It is destroyed with the last."""

    __slots__ = ('state',)

    def __init__(self, state: GraphState) -> None:
        self.state = state

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing() and self.state.made is not None:
            self.state.destroy()


class Alteration:
    """What there is to know of a graph whose edges or kernels an extension has replaced. Extensions derive from it.

    Attributes:
        call: the call that has altered the graph.
        launch: launches the graph, given its state and a stream's handle, with the comparison that is still to come.
        trial: the first launch, which is still to be compared; None after it.
        as_aimed: whether that launch may use other arrays than the recorded ones in the place of arguments.
    """

    call: ClassVar[str]
    as_aimed: ClassVar[bool] = True
    launch: Callable[[Any, int], None]
    trial: Any

    def not_compared(self, why: str) -> None:
        """Do without the comparison."""

    def look(self, look: Look) -> Look:
        """A look at the graph, with what only the extension knows of its nodes."""
        return look

    def of_copy(self, copies: Mapping[int, int]) -> Alteration:
        """The same for a copy of the graph; ``copies``: the handles of its nodes, by those of the graph's."""
        raise NotImplementedError

    def before_change(self, state: GraphState, why: str, node: NodeAt | None = None) -> None:
        """A node, or an array in nodes, is to be changed. May refuse that for ``node``."""

    def after_change(self, state: GraphState) -> None:
        """Nodes touch other memory than before."""

    def switched(self, state: GraphState, why: str) -> None:
        """A node was switched on or off."""
        self.before_change(state, why)

    def as_recorded(self, state: GraphState) -> None:
        """Do without what nothing has shown to be right yet: the graph is changed, or becomes a part of another."""

    def make_alike(self, state: GraphState, other: GraphState) -> list[Callable[[bool], None]]:
        """Alter another graph, which is to be taken over, like this one. Return how to undo that.

        What is returned is told whether the other graph is instantiated anew in the place of this one.
        """
        return []

    def make_unlike(self, other: GraphState) -> None:
        """This graph, of state ``other``, is to be taken over by one that is not altered like this."""

    def handed_over(self) -> None:
        """Another graph takes this one over."""
        self.not_compared('another graph has taken this one over')


_A = TypeVar('_A', bound=Alteration)


def _stays(*_launch: Callable[[], None]) -> None:
    """What binds the launch of a graph that is launched step by step: its steps name their executable graphs."""


@dataclass(eq=False)
class GraphState:
    """All that a graph is made of.

    Attributes:
        device, device_id: the calls of the device, and its number.
        current: returns CuPy's current stream.
        gate: what it asks of the guard.
        made: the definition and its executable graph; None once the graph is closed.
        memory, lease: the memory that the nodes use, and what is given back with it.
        recording: what the capture has noted.
        plan: how a graph is launched step by step; None for one launch.
        names: the nodes by their numbers.
        declared: what the user says that nodes touch, by their handles.
        index: the addresses in the nodes; None where they have to be read anew.
        alterations: what extensions have made of the graph, in the order in which they did.
        lock: calls on a graph take turns.
        bind: lets ``launch`` do something else; without an argument it refuses launches from then on.
        put_in: the arrays that nodes use instead of those that were recorded, by where they lie.
        quick, by_name: how often the graph was launched, by the quick way and by another.
    """

    device: Any
    device_id: int
    current: Callable[[], Any]
    gate: Gate
    made: Any
    memory: GraphMemory
    lease: Lease
    recording: Recording
    plan: Plan | None = None
    names: NodeNames = field(default_factory=NodeNames)
    declared: dict[int, Declared] = field(default_factory=dict)
    index: Index | None = None
    alterations: list[Alteration] = field(default_factory=list)
    lock: Turns = field(default_factory=Turns)
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

    def inside(self) -> AbstractContextManager[None]:
        """A block for capturekit's own calls."""
        return self.gate.inside()

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
        """What the graph's nodes are now."""
        look = Look(self.device, self.parts(), self.recording.spans, self.memory)
        for one in self.alterations:
            look = one.look(look)
        return look

    def altered_by(self, kind: type[_A]) -> _A | None:
        """The alteration of a kind, if the graph has it."""
        return next((one for one in self.alterations if isinstance(one, kind)), None)

    def alter(self, one: Alteration) -> None:
        """Note an alteration, in the place of an earlier one of its kind."""
        self.alterations = [old for old in self.alterations if old.call != one.call] + [one]

    def restore(self, one: Alteration) -> None:
        """Forget an alteration: the graph is as it was recorded."""
        self.alterations = [other for other in self.alterations if other is not one]

    @property
    def trial(self) -> Alteration | None:
        """The alteration whose first launch is still to be compared; of several the first one is."""
        return next((one for one in self.alterations if one.trial is not None), None)

    def as_recorded(self) -> None:
        """Do without what nothing has shown to be right yet. The caller holds the lock."""
        for one in self.alterations:
            one.as_recorded(self)

    def prepare_for_embedding(self) -> None:
        """The nodes are to run as a part of something else, where no launch can be compared."""
        with self.lock:
            if self.made is not None:
                self.as_recorded()

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
            self.made, self.alterations = None, []
            with self.inside(), self.lease:
                if self.plan is not None:
                    self.plan.close()
                if not self.memory.private:
                    self.gate.waits.unless_captured(self.device)  # a launch may be under way, and others use the pool
        finally:
            self.device.exchange_thread_mode(old)


# -- a change that ends halfway closes the graph: half changed, it would launch what nobody has asked for -------------


class HalfChangedError(Exception):
    """What was tried could not be taken back, because of its argument. Whoever catches this closes the graph."""


@contextmanager
def taking_back() -> Iterator[None]:
    """Raise a HalfChangedError where the block, which takes something back, fails: the graph is still in use."""
    try:
        yield
    except BaseException as error:
        raise HalfChangedError(error) from error


@contextmanager
def whole_or_closed(state: GraphState, call: str) -> Iterator[None]:
    """Close the graph if the block ends by an exception, which says so. The caller holds the graph's lock."""
    try:
        yield
    except BaseException as error:
        if state.made is None:
            raise
        _close(state, error)
        if isinstance(error, CudaCallError):
            rule = f'CUDA refuses halfway ({error}). The graph is closed: half changed, it would do something else.'
            raise refused(call, rule, 'Record again.', error) from error
        error.add_note(f'capturekit: {call} ended halfway, and the graph is closed: it would do something else.')
        raise


def _close(state: GraphState, error: BaseException) -> None:
    try:
        state.destroy()
    except Exception as fault:
        error.add_note(f'and then, closing the graph: {fault!r}')


# -- who changes a graph, or reads it as one, has its lock and finds it whole: open, and launched in one --------------


def must_be_whole(state: GraphState, call: str) -> None:
    """Refuse a graph that is closed or is launched in several parts; do without packed memory that is still to be shown
    to be right. The caller holds the lock."""
    state.must_be_open(call)
    if state.plan is not None and not state.plan.plain:
        rule = 'A graph with rehearsed reads, seams or drawn numbers is launched in several parts, with checks.'
        raise refused(call, rule, 'Record again instead, or record without a rehearsal.')
    state.as_recorded()


@contextmanager
def together(state: GraphState, other: GraphState | None) -> Iterator[None]:
    """Take both locks, always in the same order: two threads may name the graphs the other way round."""
    first, second = sorted((state, other or state), key=id)
    with first.lock, nullcontext() if second is first else second.lock:
        yield


def must_be_changeable(state: GraphState, launch: Callable[..., None], call: str, report: object, instead: str) -> None:
    """Refuse a ``report`` that is not a bool, a closed graph, and one that calls alone ``launch``.

    The caller holds the lock.
    """
    if not isinstance(report, bool):
        raise TypeError(f'report is True or False, got {report!r}')
    state.must_be_open(call)
    if getattr(launch, '__qualname__', '') != 'Graph.launch':
        raise refused(call, 'It is the graph of a graphed function, which calls alone launch.', instead)


# -- what users give to a graph, checked: arrays and numbers ----------------------------------------------------------


def is_array(value: Any) -> bool:
    """Whether it is an array of CuPy's."""
    return isinstance(value, current().cupy.ndarray)


def fits_device(state: GraphState, value: Any) -> None:
    """Refuse an array that lies on a device that the graph does not work on."""
    if is_array(value) and value.device.id not in (state.device_id, *state.recording.devices):
        raise ValueError(f'the graph lives on device {state.device_id}, the array on device {value.device.id}')


def positive(name: str, value: Any, least: int) -> int:
    """A whole number that is not less than ``least``. Raises TypeError and ValueError."""
    if isinstance(value, bool) or not hasattr(value, '__index__'):
        raise TypeError(f'{name} must be a whole number, got {type(value).__name__}')
    if value < least:
        raise ValueError(f'{name} must be at least {least}, got {value}')
    return int(value)


def three(name: str, value: Any) -> tuple[int, ...]:
    """One to three positive numbers as three. Raises TypeError and ValueError."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f'{name} must be one to three numbers, got {value!r}')
    numbers = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(numbers) <= 3:
        raise ValueError(f'{name} must be one to three numbers, got {value!r}')
    return tuple(positive(name, one, 1) for one in (*numbers, 1, 1)[:3])
