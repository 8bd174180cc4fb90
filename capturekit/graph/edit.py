"""Changes of single nodes of a graph after its recording.

Launches run the executable graph, and ``graph.nodes`` reads the definition. Each change is made in both, so that
``graph.nodes`` shows what the next launch runs. CUDA C++ Programming Guide, "Updating Instantiated Graphs",
"Individual Node Update".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capturekit.analysis.node_view import Look, Node
from capturekit.driver.cuda import current
from capturekit.driver.kernel_args import encode
from capturekit.driver.node_reader import NodeInfo
from capturekit.driver.node_writer import Change
from capturekit.launch.at_exit import close_at_end
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.host_function import HostFunction
from capturekit.launch.plan import Plan
from capturekit.model.counted import counted
from capturekit.model.errors import ClosedError, CudaCallError, UpdateError
from capturekit.model.lease import Lease
from capturekit.model.ledger import Ledger
from capturekit.model.recording import Recording
from capturekit.model.rules import Mode
from capturekit.model.source_line import here

if TYPE_CHECKING:
    from typing_extensions import Self

_NOT_COPIED = frozenset({'conditional', 'mem alloc', 'mem free'})
_SWITCHED = ('kernel', 'memcpy', 'memset')
_AGAIN = 'Record again, and let the graph take that over: `graph.update(other)`.'


class Lent:
    """Memory and host functions of a graph that is embedded in another; given back with the other graph's memory."""

    def __init__(self, memory: GraphMemory, made: Any) -> None:
        self._lease = memory.hold()
        self._made = made

    def __del__(self) -> None:
        self._lease.release()


@dataclass
class NodeNames:
    """The handles of a definition's nodes by number, those of the executable graph's, and which are disabled."""

    handles: dict[int, int] = field(default_factory=dict)
    sources: dict[int, int] = field(default_factory=dict)
    off: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _At:
    """A node that is changed: its number, and its handles in the definition and for the executable graph."""

    call: str
    number: int
    handle: int
    source: int
    info: NodeInfo


class Changeable:
    """The methods of :class:`capturekit.Graph` that change single nodes."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    _device: Any
    _lease: Lease
    _lock: threading.Lock
    _made: Any
    _memory: GraphMemory
    _plan: Plan | None
    _names: NodeNames
    _shut: Callable[..., None]
    _current: Callable[[], Any]
    _topology: Ledger
    _before: Callable[[bool, int], None]
    _inside: Callable[[], AbstractContextManager[None]]
    _make: Callable[..., Self]
    _look_in: Callable[[], Look]
    device_id: int
    recording: Recording

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
        """Give a kernel node another grid, block, shared memory or arguments (``cudaGraphExecKernelNodeSetParams``).

        Args:
            node: one of ``graph.nodes``, or its number. Parameters that are left out stay.
            grid, block: one to three positive whole numbers. shared: bytes of dynamic shared memory.
            args: new arguments by number, counted from 0: a CuPy array or a NumPy scalar, or a Python number if CuPy
                made the kernel. For a kernel that CuPy made, an array must be contiguous, with as many elements of the
                same dtype as before. The graph keeps the arrays.

        Raises:
            UpdateError: CUDA refuses, or the node can not be changed. TypeError, ValueError, IndexError: an argument
            does not fit. ClosedError: the graph is closed. If it raises, nothing has changed. Launches that have begun
            are not affected; later ones do what was set.
        """
        with self._changing('Graph.set_kernel()', node, 'kernel') as at:
            detail = at.info.detail
            now = self._device.node_arguments(self._made.graph, at.handle)
            data = [argument.data for argument in now]
            for number, value in (args or {}).items():
                if not isinstance(number, int) or not 0 <= number < len(data):
                    has = counted(len(data), 'argument')
                    raise IndexError(f'the kernel has {has}, and none has the number {number!r}')
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
        """Give a copy node another source, destination or size (``cudaGraphExecMemcpyNodeSetParams1D``).

        Args:
            node: one of ``graph.nodes``, or its number. What is not named stays.
            dst, src: a C-contiguous CuPy or NumPy array, which the graph keeps; or an address. Host memory can only
                be replaced by host memory, and device memory by device memory.
            nbytes: the number of bytes to copy; the arrays must be as large.

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
        """Give a memset node another address, value or size (``cudaGraphExecMemsetNodeSetParams``).

        Args:
            node: one of ``graph.nodes``, or its number. What is not named stays.
            dst: a C-contiguous CuPy array, which the graph keeps; or an address of device memory.
            value: the new value of each element of the memset (a byte in those that CuPy records).
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
        """Let a host node call ``fn(arg)`` (``cudaGraphExecHostNodeSetParams``). CUDA calls it in its own thread, where
        it must not call CUDA. The graph keeps both. Raises as :meth:`set_kernel`."""
        if not callable(fn):
            raise TypeError(f'set_host() takes a function, got {type(fn).__name__}')
        with self._changing('Graph.set_host()', node, 'host') as at:
            host = HostFunction(fn, here(), 'graph.launch()')
            call = lambda: host(arg)  # noqa: E731
            self._apply(at, lambda: self._device.set_host(self._made.graph, at.handle, call), [])

    def set_event(self, node: Node | int, event: Any) -> None:
        """Let an event node record, or wait for, another CuPy event, which the graph keeps
        (``cudaGraphExecEventRecordNodeSetEvent``, ``cudaGraphExecEventWaitNodeSetEvent``). Raises as
        :meth:`set_kernel`."""
        ptr = getattr(event, 'ptr', None)
        if not isinstance(ptr, int):
            raise TypeError(f'set_event() takes a CuPy event, got {type(event).__name__}')
        with self._changing('Graph.set_event()', node, 'event record', 'wait event') as at:
            self._apply(at, lambda: self._device.set_event(self._made.graph, at.handle, ptr), [event])

    def set_child(self, node: Node | int, other: Changeable) -> None:
        """Let a child graph node run what ``other`` runs now (``cudaGraphExecChildGraphNodeSetParams``).

        ``other`` must have the same nodes and edges, in the same order, as the present child graph. It stays as it is
        and may be closed: this graph keeps what the nodes use. Priorities of its lanes count only if this graph uses
        those of its own lanes. Raises as :meth:`set_kernel`.
        """
        if not isinstance(other, Changeable):
            raise TypeError(f'set_child() takes another capturekit.Graph, got {type(other).__name__}')
        if other is self:
            raise ValueError('a graph can not be in itself')
        if other.device_id != self.device_id:
            raise ValueError(f'the graph lives on device {self.device_id}, the other one on device {other.device_id}')
        with self._changing('Graph.set_child()', node, 'graph', beside=other) as at:
            other._must_be_whole(at.call)
            child = other._made.graph
            try:
                self._device.child_take(self._made.graphExec, at.source, child)
            except CudaCallError as error:
                rule = f'CUDA refuses that {_words(at)} runs this graph: its nodes or edges differ.'
                raise _failure(at.call, rule, _AGAIN, error) from None
            self._device.set_child(self._made.graph, at.handle, child)
            self._memory.keep(Lent(other._memory, other._made))
            if self._memory.join_turns(other._memory):
                self._aim()
            if other._memory.to_close:
                close_at_end(self)
            self._order_again()

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

    # -- checks and locks ---------------------------------------------------------------------------------------

    @contextmanager
    def _relaxed(self) -> Iterator[None]:
        """Make the graph's device current, in a capture mode in which the calls lose no open capture."""
        old = self._device.exchange_thread_mode(Mode.RELAXED)
        try:
            with self._inside(), current().cupy.cuda.Device(self.device_id):
                yield
        finally:
            self._device.exchange_thread_mode(old)

    def _must_be_whole(self, call: str) -> None:
        """Refuse a graph that is closed or is launched in several parts."""
        if self._made is None:
            rule = 'Its executable graph and its memory were given back by close(), or another graph took them over.'
            raise ClosedError(call, location=here(), rule=rule, remedy='Record again, or close it later.')
        if self._plan is not None and not self._plan.plain:
            rule = 'A graph with rehearsed reads, seams or drawn numbers is launched in several parts, with checks.'
            raise _failure(call, rule, 'Record again instead, or record without a rehearsal.')

    @contextmanager
    def _changing(self, call: str, node: Node | int, *kinds: str, beside: Changeable | None = None) -> Iterator[_At]:
        """Hold the locks of the graph and of the one ``beside`` it, and find a node of one of these kinds."""
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
        """Take both locks, always in the same order: two threads may name the graphs the other way round."""
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
            raise IndexError(f'the graph has {counted(count, "node")}, and none has the number {number}')
        info = self._device.node_info(self._made.graph, handle)
        return _At(call, number, handle, self._names.sources[number], info)

    def _name(self) -> None:
        """Look up the handles of the nodes, by number.

        After an update CUDA does not report which node replaced which (two lanes that were recorded in the other order
        are paired by their kinds). So the executable graph is instantiated anew, once, from the definition.
        """
        if self._made.source != self._made.graph:
            self._made = self._made.instantiated(self._device, self.recording.by_priority)
            self._aim()
        mine = self._device.graph_nodes(self._made.graph)
        numbers = dict(enumerate(mine))
        if self._plan is not None:
            inside = set(mine)
            numbers = {number: handle for handle, number in self._look_in().numbers.items() if handle in inside}
        self._names.handles.update(numbers)
        self._names.sources.update(numbers)

    def _aim(self) -> None:
        """Bind ``launch`` to the present executable graph."""
        launch, x, now = self._device.graph_launch, self._made.graphExec, self._current
        self._shut(lambda: launch(x, now().ptr))

    def _apply(self, at: _At, change: Callable[[], Change], arrays: list[Any]) -> None:
        """Change the definition, let the executable graph take it over, and keep what the node needs from now on."""
        try:
            done = change()
            try:
                self._device.node_take(self._made.graphExec, at.source, self._made.graph, at.handle)
            except CudaCallError:
                done.undo()
                raise
        except CudaCallError as error:
            raise _failure(at.call, f'CUDA refuses this change of {_words(at)}.', _AGAIN, error) from None
        self.recording.timeline = None  # it describes what the graph did before
        for thing in (*arrays, done.keep):
            if thing is not None and not isinstance(thing, int):
                self._memory.keep(getattr(thing, 'data', thing) if self._is_array(thing) else thing)

    def _order_again(self) -> None:
        """Nodes touch other memory than before: a graph whose edges follow its data finds out again what it needs."""

    def _switch(self, at: _At, on: bool) -> None:
        try:
            self._device.node_enable(self._made.graphExec, at.source, on)
        except CudaCallError as error:
            raise _failure(at.call, f'CUDA refuses this change of {_words(at)}.', _AGAIN, error) from None
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
            raise ValueError(f'{name} has {counted(value.nbytes, "byte")}, and {nbytes} are to be moved or set')
        return int(host['data'][0]) if host else int(value.data.ptr)


def _words(at: _At) -> str:
    name = f' {at.info.name}' if at.info.name else ''
    return f'node {at.number} ({at.info.kind}{name})'


def _failure(call: str, rule: str, remedy: str, error: CudaCallError | None = None) -> UpdateError:
    name = '' if error is None else getattr(error.code, 'name', str(int(error.code)))
    return UpdateError(call, location=here(), rule=rule, remedy=remedy, cuda_error=name)


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
