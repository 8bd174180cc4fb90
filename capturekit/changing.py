"""A graph changed after its recording: taken over by another recording, node by node, and copied.

What is launched is the executable graph; what is told of it is the definition. Each change is made in both, so that
``graph.nodes`` tells what the next launch runs. CUDA C++ Programming Guide, "Updating Instantiated Graphs".
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from capturekit.arguments import encode
from capturekit.atend import close_at_end
from capturekit.cuda import current
from capturekit.errors import ClosedError, CudaCallError, UpdateError
from capturekit.figures import FIGURES
from capturekit.looking import Look, Node
from capturekit.memory import GraphMemory
from capturekit.nodes import NodeInfo
from capturekit.places import here
from capturekit.plan import Plan
from capturekit.recording import Recording
from capturekit.rules import Code, Mode
from capturekit.setting import Change
from capturekit.topology import Topology
from capturekit.unloading import UNLOADING
from capturekit.updating import (
    STRUCTURE,
    Difference,
    Update,
    differences,
    edge_order,
    heeding,
    in_words,
    priorities,
    reasons,
)  # fmt: skip

if TYPE_CHECKING:
    from typing_extensions import Self

_NOT_COPIED = frozenset({'conditional', 'mem alloc', 'mem free'})
_SWITCHED = ('kernel', 'memcpy', 'memset')
#: Graphs of more nodes are not compared where they are instantiated anew.
_MANY = 1000
_REFUSED = Code.cudaErrorGraphExecUpdateFailure
_AGAIN = 'Record again, and let the graph take that over: `graph.update(other)`.'


class Owned:
    """A definition, an executable graph, or both, that CuPy did not make: destroyed with the last reference."""

    def __init__(self, device: Any, graph: int, executable: int = 0, host_funcargs: Any = None) -> None:
        self._device = device
        self.graph = graph
        self.graphExec = executable
        self.host_funcargs = host_funcargs

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if _finalizing():
            return
        if self.graphExec:
            self._device.graph_exec_destroy(self.graphExec)
        if self.graph:
            self._device.graph_destroy(self.graph)


class _Planned:
    """The same of a graph whose parts a plan holds."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing():
            self._plan.close()


class Lent:
    """Memory and host functions of a graph that is part of another; given back with that one's memory."""

    def __init__(self, memory: GraphMemory, made: Any) -> None:
        self._memory = memory
        self._made = made

    def __del__(self) -> None:
        self._memory.release()


@dataclass
class Revised:
    """A graph whose executable graph was made from another definition than the one that it runs now.

    ``definition`` and ``executable`` are what owns the two. ``source`` is the graph that was instantiated, and lives as
    long as what ``executable`` is: its nodes are the names by which CUDA knows those of the executable graph.
    """

    graph: int
    graphExec: int
    host_funcargs: Any
    definition: Any
    executable: Any
    source: int


@dataclass
class Names:
    """The handles of a definition's nodes by number, those of the executable graph's, and which are disabled."""

    handles: dict[int, int] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)
    off: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _At:
    """A node to be changed: its number, and its handles in the definition and for the executable graph."""

    call: str
    number: int
    handle: int
    source: int
    info: NodeInfo


class Changeable:
    """What changes a :class:`capturekit.Graph`; it is one."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    _device: Any
    _lock: threading.Lock
    _made: Any
    _memory: GraphMemory
    _plan: Plan | None
    _names: Names
    _shut: Callable[..., None]
    _current: Callable[[], Any]
    _topology: Topology
    _before: Callable[[bool, int], None]
    _inside: Callable[[], AbstractContextManager[None]]
    _make: Callable[..., Self]
    _look_in: Callable[[], Look]
    device_id: int
    recording: Recording

    # -- whole graphs -------------------------------------------------------------------------------------------

    def update(self, other: Changeable, *, instantiate: bool = False) -> Update:
        """Do from the next launch on what ``other`` does, in place: ``cudaGraphExecUpdate``.

        CUDA does so where ``other`` has as many nodes of the same kinds with the same edges, recorded in the same
        order, and both heed the same priorities or none; kernels may be others, and nearly all parameters. ``other`` is
        used up: it is closed, and what it holds (memory, arrays, host functions, its recording) is this graph's. What
        this graph held is given back; arrays that still lie in there keep their memory. That waits for launches under
        way where there is memory to give back.

        Args:
            other: another recording, of the same device.
            instantiate: where CUDA refuses, take another executable graph instead of raising.

        Returns an :class:`Update`: ``how`` ('updated' or 'instantiated'), ``why``, ``seconds``, ``differences`` (up to
        1,000 nodes).

        Raises:
            UpdateError: CUDA refuses, and says why as a difference of the two graphs; or one of them is launched in
                several parts. Both graphs are as they were.
            TypeError: ``other`` is no graph. ValueError: it is this one, or of another device.
            ClosedError: one of the two is closed.
        """
        call, start = 'Graph.update()', time.perf_counter()
        if not isinstance(other, Changeable):
            raise TypeError(f'update() takes another capturekit.Graph, got {type(other).__name__}')
        if other is self:
            raise ValueError('a graph can not take over itself')
        if other.device_id != self.device_id:
            raise ValueError(f'the graph lives on device {self.device_id}, the other one on device {other.device_id}')
        with self._together(other):
            for graph in (self, other):
                graph._must_be_whole(call)
            return self._update(call, other, instantiate, start)

    def _update(self, call: str, other: Changeable, instantiate: bool, start: float) -> Update:
        with self._relaxed():
            why, found = self._try_update(other, instantiate)
            if why and not instantiate:
                raise _refused(call, why, found)
            executable = 0
            if why and not other._made.graphExec:
                executable = self._device.graph_instantiate(other._made.graph, other.recording.by_priority)
            self._take_over(other, bool(why), executable)
            seconds = time.perf_counter() - start
            FIGURES.count('reinstantiations' if why else 'updates', seconds)
            return Update('instantiated' if why else 'updated', why, seconds, tuple(found))

    def _check_update(self, call: str) -> None:
        """Raise UpdateError or ClosedError where this graph can not be updated."""
        with self._lock:
            self._must_be_whole(call)

    def _try_update(self, other: Changeable, instantiate: bool) -> tuple[str, list[Difference]]:
        """Update in place if CUDA does; else its reason, and the differences that may be behind it.

        To look at all nodes takes longer than to instantiate them: of large graphs only where it is raised.
        """
        if self.recording.by_priority != other.recording.by_priority:
            return 'priorities', [heeding(other.recording.by_priority)]
        try:
            why, node = self._device.graph_exec_update(int(self._made.graphExec), int(other._made.graph))
        except CudaCallError as error:
            why, node = str(error), 0
        if not why or (instantiate and other.recording.nodes > _MANY):
            return why, []
        old, new = self._look_in(), other._look_in()
        found = differences(old, new)
        if not any(one.kind in STRUCTURE for one in found):
            found = edge_order(old, new) or self._reordered(other, old, new) or found
        return why, reasons(found, new.numbers.get(node))

    def _reordered(self, other: Changeable, old: Look, new: Look) -> list[Difference]:
        """Nodes whose lanes have another priority, which CUDA does not change where it is heeded."""
        if not other.recording.by_priority:
            return []
        before, after = ({lane.number: lane.priority for lane in g.recording.lanes} for g in (self, other))
        return priorities(old.nodes, new.nodes, before, after)

    def _take_over(self, other: Changeable, anew: bool, executable: int) -> None:
        """All of ``other`` becomes this graph's; ``anew``: its executable graph, or that given, as well."""
        if not anew:
            for number in self._names.off:
                self._device.node_enable(int(self._made.graphExec), self._names.sources[number], True)
        old, theirs = self._owners(), other._owners()
        made, memory, switched = self._made, self._memory, other._names.off
        if not anew:
            keeper, x, source = old.executable, old.graphExec, old.source
        elif executable:
            keeper, x = (Owned(self._device, 0, executable), theirs.definition), executable
            source = theirs.graph
        else:
            keeper, x, source = theirs.executable, theirs.graphExec, theirs.source
        self._made = Revised(theirs.graph, x, theirs.host_funcargs, theirs.definition, keeper, source)
        self._plan, self._memory, self.recording = other._plan, other._memory, other.recording
        if self._memory.to_close:
            close_at_end(self)
        self._names = Names()
        other._shut()
        other._made, other._plan, other._memory, other._names = None, None, memory, Names()
        if anew:
            self._aim()
        with self._inside():
            if not self._topology.captures and (not memory.private or old.host_funcargs):
                self._device.device_synchronize()  # a launch of before may be under way
            memory.release()
        del old, made
        UNLOADING.release()
        for number in switched:
            self._switch(self._at('Graph.update()', number), False)

    def _owners(self) -> Revised:
        """What this graph has, and who owns it."""
        made = self._made
        if isinstance(made, Revised):
            return made
        owner = made if self._plan is None else _Planned(self._plan)
        return Revised(int(made.graph), int(made.graphExec), made.host_funcargs, owner, owner, int(made.graph))

    def _aim(self) -> None:
        """Launches go to the executable graph that is there now."""
        launch, x, now = self._device.graph_launch, self._made.graphExec, self._current
        self._shut(lambda: launch(x, now().ptr))

    def clone(self) -> Self:
        """Return a copy: a second executable graph of the same nodes (``cudaGraphClone``), to be changed by itself.

        Both use the same memory: the same arrays are read and written, so that launches of both must be ordered, one
        stream or an event between them, unless a change has pointed all that one of them writes elsewhere. The memory
        is given back when both are closed. Nodes that are disabled here are so in the copy.

        Raises:
            UpdateError: the graph has conditional nodes, which CUDA does not copy, or is launched in several parts.
            ClosedError: the graph is closed.
        """
        with self._lock, self._relaxed():
            self._must_be_whole('Graph.clone()')
            if {info.kind for info in self._device.node_infos(int(self._made.graph))} & _NOT_COPIED:
                rule = 'CUDA copies no graph that has conditional nodes or memory nodes.'
                raise _failure('Graph.clone()', rule, 'Record its code once more.')
            copy = Owned(self._device, self._device.graph_clone(int(self._made.graph)))
            copy.host_funcargs = self._made.host_funcargs
            copy.graphExec = x = self._device.graph_instantiate(copy.graph, self.recording.by_priority)
            platform = current()
            launch, now = self._device.graph_launch, self._current
            UNLOADING.hold(platform)
            self._memory.share()
            made = self._make(
                platform, copy, lambda: launch(x, now().ptr), self._memory, replace(self.recording), self._topology,
                self._before, self._inside,
            )  # fmt: skip
            for number in self._names.off:
                made._switch(made._at('Graph.clone()', number), False)
            return made

    # -- single nodes -------------------------------------------------------------------------------------------

    def set_kernel(
        self,
        node: Node | int,
        *,
        grid: int | Sequence[int] | None = None,
        block: int | Sequence[int] | None = None,
        shared: int | None = None,
        args: Mapping[int, Any] | None = None,
    ) -> None:
        """Give a kernel's node another grid, block, shared memory or arguments (``cudaGraphExecKernelNodeSetParams``).

        Args:
            node: one of ``graph.nodes``, or its number. What is not named stays.
            grid, block: one to three positive numbers. shared: bytes of dynamic shared memory.
            args: by the argument's number, an array, a NumPy scalar, or a number of Python's where the kernel is one of
                CuPy's own. An array of CuPy's kernels must have as many elements, one after the other, of the same
                dtype. Arrays are kept by the graph.

        Raises:
            UpdateError: CUDA refuses, or the node can not be changed. TypeError, ValueError, IndexError: an argument
            does not fit. ClosedError: the graph is closed. Then nothing has changed. Launches under way are not
            touched; the next ones do what was set.
        """
        with self._changing('Graph.set_kernel()', node, 'kernel') as at:
            detail = at.info.detail
            now = self._device.node_arguments(self._made.graph, at.handle)
            data = [argument.data for argument in now]
            for number, value in (args or {}).items():
                if not isinstance(number, int) or not 0 <= number < len(data):
                    raise IndexError(f'the kernel has {len(data)} arguments, and {number!r} is the number of none')
                self._fits_device(value)
                try:
                    data[number] = encode(now[number], value, self._is_array)
                except (TypeError, ValueError) as error:
                    raise type(error)(f'argument {number}: {error}') from None
            shape = [_three('grid', grid, detail), _three('block', block, detail)]
            nbytes = detail.get('shared', 0) if shared is None else _positive('shared', shared, 0)
            change = lambda: self._device.set_kernel(self._made.graph, at.handle, *shape, nbytes, data)  # noqa: E731
            self._apply(at, change, [value for value in (args or {}).values() if self._is_array(value)])

    def set_memcpy(self, node: Node | int, *, dst: Any = None, src: Any = None, nbytes: int | None = None) -> None:
        """Give a copy's node other ends or another size (``cudaGraphExecMemcpyNodeSetParams1D``).

        Args:
            node: one of ``graph.nodes``, or its number. What is not named stays.
            dst, src: a CuPy array or a NumPy one, C-contiguous, which the graph keeps; or an address. Where there was
                memory of the host there must be some again, and of the device likewise.
            nbytes: bytes to copy, of which the arrays must have as many.

        Raises as :meth:`set_kernel`.
        """
        with self._changing('Graph.set_memcpy()', node, 'memcpy') as at:
            size = at.info.detail['bytes'] if nbytes is None else _positive('nbytes', nbytes, 1)
            ends = [self._address(name, value, size, at) for name, value in (('dst', dst), ('src', src))]
            change = lambda: self._device.set_memcpy(self._made.graph, at.handle, *ends, size)  # noqa: E731
            self._apply(at, change, [dst, src])

    def set_memset(
        self, node: Node | int, *, dst: Any = None, value: int | None = None, nbytes: int | None = None
    ) -> None:
        """Give a memset's node another address, value or size (``cudaGraphExecMemsetNodeSetParams``).

        Args:
            node: one of ``graph.nodes``, or its number. What is not named stays.
            dst: a CuPy array, C-contiguous, which the graph keeps; or an address of device memory.
            value: what each element of the memset becomes (a byte's, as CuPy records them).
            nbytes: bytes to set. CUDA may refuse another size than before.

        Raises as :meth:`set_kernel`.
        """
        with self._changing('Graph.set_memset()', node, 'memset') as at:
            size = at.info.detail['bytes'] if nbytes is None else _positive('nbytes', nbytes, 1)
            now = at.info.detail['value'] if value is None else _positive('value', value, 0)
            if now >= 1 << 32:
                raise ValueError(f'value must fit into 32 bits, got {now}')
            to = self._address('dst', dst, size, at)
            self._apply(at, lambda: self._device.set_memset(self._made.graph, at.handle, to, now, size), [dst])

    def set_host(self, node: Node | int, fn: Callable[[Any], Any], arg: Any = None) -> None:
        """Let a host node call ``fn(arg)`` (``cudaGraphExecHostNodeSetParams``): in a thread of CUDA's, which must not
        call CUDA. Both are kept by the graph. Raises as :meth:`set_kernel`."""
        if not callable(fn):
            raise TypeError(f'set_host() takes a function, got {type(fn).__name__}')
        with self._changing('Graph.set_host()', node, 'host') as at:
            call = lambda: fn(arg)  # noqa: E731
            self._apply(at, lambda: self._device.set_host(self._made.graph, at.handle, call), [])

    def set_event(self, node: Node | int, event: Any) -> None:
        """Let an event's node record, or wait for, another CuPy event, which the graph keeps
        (``cudaGraphExecEventRecordNodeSetEvent``, ``cudaGraphExecEventWaitNodeSetEvent``). Raises as
        :meth:`set_kernel`."""
        ptr = getattr(event, 'ptr', None)
        if not isinstance(ptr, int):
            raise TypeError(f'set_event() takes a CuPy event, got {type(event).__name__}')
        with self._changing('Graph.set_event()', node, 'event record', 'wait event') as at:
            self._apply(at, lambda: self._device.set_event(self._made.graph, at.handle, ptr), [event])

    def set_child(self, node: Node | int, other: Changeable) -> None:
        """Let a child graph's node run what ``other`` runs now (``cudaGraphExecChildGraphNodeSetParams``).

        ``other`` must have the same nodes and edges, in the same order, as what the node runs so far. It stays as it
        is and may be closed: what its nodes use is kept by this graph. Priorities of its lanes count only where this
        graph heeds those of its own. Raises as :meth:`set_kernel`.
        """
        if not isinstance(other, Changeable):
            raise TypeError(f'set_child() takes another capturekit.Graph, got {type(other).__name__}')
        if other is self:
            raise ValueError('a graph can not be in itself')
        if other.device_id != self.device_id:
            raise ValueError(f'the graph lives on device {self.device_id}, the other one on device {other.device_id}')
        with self._changing('Graph.set_child()', node, 'graph', beside=other) as at:
            other._must_be_whole(at.call)
            child = int(other._made.graph)
            try:
                self._device.child_take(self._made.graphExec, at.source, child)
            except CudaCallError as error:
                rule = f'CUDA refuses that {_words(at)} runs this graph: its nodes or edges are others.'
                raise _failure(at.call, rule, _AGAIN, error) from None
            self._device.set_child(self._made.graph, at.handle, child)
            other._memory.share()
            self._memory.keep(Lent(other._memory, other._made))
            if other._memory.to_close:
                close_at_end(self)

    def disable(self, node: Node | int) -> None:
        """Let a kernel, a memset or a copy do nothing at launches until :meth:`enable` (``cudaGraphNodeSetEnabled``).

        Its place in the order stays. Raises as :meth:`set_kernel`.
        """
        with self._changing('Graph.disable()', node, *_SWITCHED) as at:
            self._switch(at, False)

    def enable(self, node: Node | int) -> None:
        """Let a node that was disabled run again, with the parameters that it has now. Raises as :meth:`set_kernel`."""
        with self._changing('Graph.enable()', node, *_SWITCHED) as at:
            self._switch(at, True)

    def enabled(self, node: Node | int) -> bool:
        """False for a node that :meth:`disable` was called for. Raises IndexError, TypeError and ClosedError."""
        with self._changing('Graph.enabled()', node) as at:
            return at.number not in self._names.off

    # -- the ways in --------------------------------------------------------------------------------------------

    @contextmanager
    def _relaxed(self) -> Iterator[None]:
        """The graph's device, and a thread mode in which no open capture is hurt."""
        old = self._device.exchange_thread_mode(Mode.RELAXED)
        try:
            with self._inside(), current().cupy.cuda.Device(self.device_id):
                yield
        finally:
            self._device.exchange_thread_mode(old)

    def _must_be_whole(self, call: str) -> None:
        """Refuse what is closed, and what is launched in several parts."""
        if self._made is None:
            rule = 'Its executable graph and its memory were given back by close(), or another graph took them over.'
            raise ClosedError(call, location=here(), rule=rule, remedy='Record again, or close it later.')
        if self._plan is not None and not self._plan.plain:
            rule = 'A graph with rehearsed reads, seams or drawn numbers is launched in several parts, with checks.'
            raise _failure(call, rule, 'Record again instead, or record without a rehearsal.')

    @contextmanager
    def _changing(self, call: str, node: Node | int, *kinds: str, beside: Changeable | None = None) -> Iterator[_At]:
        """A node of one of these kinds, while nobody else uses the graph, nor the one ``beside`` it."""
        if isinstance(node, bool) or not isinstance(node, (Node, int)):
            raise TypeError(f'{call} takes one of graph.nodes, or its number, got {type(node).__name__}')
        number = node.number if isinstance(node, Node) else node
        with self._together(beside):
            self._must_be_whole(call)
            with self._relaxed():
                at = self._at(call, number)
                if kinds and at.info.kind not in kinds:
                    wanted = ' or '.join(kinds)
                    raise TypeError(f'{call} takes a node of kind {wanted}, and {_words(at)} is of kind {at.info.kind}')
                yield at

    @contextmanager
    def _together(self, other: Changeable | None) -> Iterator[None]:
        """Both locks, always in the same order: two threads may want them the other way round."""
        with ExitStack() as stack:
            for graph in sorted((self, other or self), key=id)[: 1 if other is None else 2]:
                stack.enter_context(graph._lock)
            yield

    def _at(self, call: str, number: int) -> _At:
        names = self._names
        if not names.handles:
            self._name()
        handle = names.handles.get(number)
        if handle is None:
            count = len(self._look_in().nodes)
            if 0 <= number < count:
                rule = f'Node {number} lies in the body of a conditional node.'
                raise _failure(call, rule, _AGAIN)
            raise IndexError(f'the graph has {count} nodes, and {number} is the number of none')
        info = self._device.node_info(int(self._made.graph), handle)
        return _At(call, number, handle, self._names.sources[number], info)

    def _name(self) -> None:
        """Find out the handles of the nodes, by number.

        After an update nobody tells which node has taken whose place (two lanes recorded the other way round pair by
        what they are): the executable graph is made anew once, so that the definition's own nodes are its names.
        """
        made = self._made
        if isinstance(made, Revised) and made.source != made.graph:
            self._anew(made)
        mine = self._device.graph_nodes(int(self._made.graph))
        numbers = dict(enumerate(mine))
        if self._plan is not None:
            inside = set(mine)
            numbers = {number: handle for handle, number in self._look_in().numbers.items() if handle in inside}
        self._names.handles.update(numbers)
        self._names.sources.update(numbers)

    def _anew(self, made: Revised) -> None:
        """Instantiate the definition, so that its own nodes are the names of the executable graph's."""
        x = self._device.graph_instantiate(int(made.graph), self.recording.by_priority)
        keeper = (Owned(self._device, 0, x), made.definition)
        self._made = replace(made, graphExec=x, executable=keeper, source=int(made.graph))
        self._aim()

    def _apply(self, at: _At, change: Callable[[], Change], arrays: list[Any]) -> None:
        """Change the definition, let the executable graph take it over, and keep what the node needs from now on."""
        try:
            done = change()
            try:
                self._device.node_take(int(self._made.graphExec), at.source, int(self._made.graph), at.handle)
            except CudaCallError:
                done.undo()
                raise
        except CudaCallError as error:
            raise _failure(at.call, f'CUDA refuses this of {_words(at)}.', _AGAIN, error) from None
        self.recording.timeline = None  # it tells of what the graph did before
        for thing in (*arrays, done.keep):
            if thing is not None and not isinstance(thing, int):
                self._memory.keep(getattr(thing, 'data', thing) if self._is_array(thing) else thing)

    def _switch(self, at: _At, on: bool) -> None:
        try:
            self._device.node_enable(int(self._made.graphExec), at.source, on)
        except CudaCallError as error:
            raise _failure(at.call, f'CUDA refuses this of {_words(at)}.', _AGAIN, error) from None
        (self._names.off.discard if on else self._names.off.add)(at.number)
        self.recording.timeline = None

    # -- values -------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_array(value: Any) -> bool:
        return isinstance(value, current().cupy.ndarray)

    def _fits_device(self, value: Any) -> None:
        if self._is_array(value) and value.device.id not in (self.device_id, *self.recording.devices):
            raise ValueError(f'the graph lives on device {self.device_id}, the array on device {value.device.id}')

    def _address(self, name: str, value: Any, nbytes: int, at: _At) -> int:
        """The address of an end of a copy or a memset."""
        if value is None:
            return int(at.info.detail[name])
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        self._fits_device(value)
        host = getattr(value, '__array_interface__', None) if not self._is_array(value) else None
        if not self._is_array(value) and (host is None or at.info.kind == 'memset'):
            raise TypeError(f'{name} must be an array or an address, got {type(value).__name__}')
        if not value.flags['C_CONTIGUOUS'] if host else not value.flags.c_contiguous:
            raise ValueError(f'the elements of {name} do not lie one after the other')
        if value.nbytes < nbytes:
            raise ValueError(f'{name} has {value.nbytes} bytes, and {nbytes} are to be moved or set')
        return int(host['data'][0]) if host else int(value.data.ptr)


def _words(at: _At) -> str:
    name = f' {at.info.name}' if at.info.name else ''
    return f'node {at.number} ({at.info.kind}{name})'


def _failure(call: str, rule: str, remedy: str, error: CudaCallError | None = None) -> UpdateError:
    name = '' if error is None else getattr(error.code, 'name', str(int(error.code)))
    return UpdateError(call, location=here(), rule=rule, remedy=remedy, cuda_error=name)


def _refused(call: str, why: str, found: list[Difference]) -> UpdateError:
    words = in_words(found) or 'both graphs look the same'
    error = UpdateError(
        call,
        location=here(),
        rule=f'CUDA can not put the new graph in the place of the old one ({why}): {words}.',
        remedy='Record the same work in the same order, or let the graph be instantiated anew: '
        '`graph.update(other, instantiate=True)`.',
        cuda_error=_REFUSED.name,
    )
    error.reason, error.differences = why, tuple(found)
    return error


def _three(name: str, value: Any, detail: Mapping[str, Any]) -> tuple[int, ...]:
    if value is None:
        return tuple(detail.get(name, (1, 1, 1)))
    numbers = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(numbers) <= 3:
        raise ValueError(f'{name} must be one to three numbers, got {value!r}')
    return tuple(_positive(name, one, 1) for one in (*numbers, 1, 1)[:3])


def _positive(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, '__index__'):
        raise TypeError(f'{name} must be a whole number, got {type(value).__name__}')
    if value < least:
        raise ValueError(f'{name} must be at least {least}, got {value}')
    return int(value)
