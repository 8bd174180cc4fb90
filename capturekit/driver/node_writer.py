"""Changes of nodes, in a definition and in the executable graph made from it; updates of whole graphs.

The driver is called directly, because cuda-bindings does not pass on the reason for a refused update. CUDA Driver API,
"Graph Management": ``cuGraphKernelNodeSetParams``, ``cuGraphExecKernelNodeSetParams`` ..., ``cuGraphExecUpdate``.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from capturekit.driver.graph_edges import EdgeWriter
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_accesses import Touched, accesses_of
from capturekit.driver.node_reader import Described, NodeInfo, Reader, _Memcpy, _Memset, _Params, checked, copy_end
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

#: ``CUgraphExecUpdateResult``.
REASONS = (
    '', 'error', 'topology changed', 'node type changed', 'function changed', 'parameters changed', 'not supported',
    'unsupported function change', 'attributes changed',
)  # fmt: skip
#: ``CU_MEMORYTYPE_HOST``, ``CU_MEMORYTYPE_DEVICE``, ``CU_MEMORYTYPE_UNIFIED``.
_HOST, _DEVICE, _UNIFIED = 1, 2, 4
#: ``CU_POINTER_ATTRIBUTE_MEMORY_TYPE``. It is not known of memory that CUDA does not know: that is the host's.
_MEMORY_TYPE = 2
#: ``CU_LAUNCH_ATTRIBUTE_PRIORITY``, and the size of ``CUlaunchAttributeValue`` in numbers of four bytes.
_PRIORITY, _ATTRIBUTE = 8, 16
_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Host(ctypes.Structure):
    """``CUDA_HOST_NODE_PARAMS_v1``."""

    _fields_ = [('fn', ctypes.c_void_p), ('user', ctypes.c_void_p)]


class _Result(ctypes.Structure):
    """``CUgraphExecUpdateResultInfo_v1``."""

    _fields_ = [('result', ctypes.c_int), ('node', ctypes.c_void_p), ('source', ctypes.c_void_p)]


#: Kinds of nodes whose parameters are one plain structure: the word for them in CUDA's names, the structure.
_STRUCTURES: dict[str, tuple[str, type[ctypes.Structure]]] = {
    'memcpy': ('Memcpy', _Memcpy),
    'memset': ('Memset', _Memset),
    'host': ('Host', _Host),
}


@dataclass
class Change:
    """A change of a definition's node: how to undo it, and what must live as long as the node."""

    undo: Callable[[], None]
    keep: Any = None


def _given(params: _Params, args: Sequence[bytes]) -> list[Any]:
    """Let parameters have these arguments, in memory of our own: the list, which has each one's, must outlive them."""
    buffers: list[Any] = [ctypes.create_string_buffer(data, len(data)) for data in args]
    pointers = (ctypes.c_void_p * max(len(buffers), 1))(*(ctypes.addressof(one) for one in buffers))
    params.args, params.extra = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)), None
    return [*buffers, pointers]


class KernelAim:
    """A kernel node whose addresses are changed often: its parameters, with the arguments in our own memory."""

    def __init__(self, cuda: Any, node: int, params: _Params, arguments: list[Argument]) -> None:
        self.arguments = arguments
        self._node = ctypes.c_void_p(node)
        self._define, self._execute = cuda.cuGraphKernelNodeSetParams_v2, cuda.cuGraphExecKernelNodeSetParams_v2
        self._params = _Params.from_buffer_copy(params)
        self._data = _given(self._params, [one.data for one in arguments])
        self._reference = ctypes.byref(self._params)

    def write(self, number: int, offset: int, address: int) -> None:
        """Put an address into an argument; :meth:`put` brings it to the graph."""
        struct.pack_into('Q', self._data[number], offset, address)

    def define(self) -> None:
        """``cuGraphKernelNodeSetParams``: of the definition alone."""
        checked(int(self._define(self._node, self._reference)), 'cuGraphKernelNodeSetParams')

    def put(self, x: int, source: int) -> None:
        """``cuGraphKernelNodeSetParams`` and ``cuGraphExecKernelNodeSetParams``."""
        code = int(self._define(self._node, self._reference))
        checked(code or int(self.runner(x, source)()), 'cuGraphExecKernelNodeSetParams')

    def runner(self, x: int, source: int) -> Callable[[], int]:
        """Return a function that brings the arguments to an executable graph alone, and returns CUDA's code."""
        return functools.partial(self._execute, ctypes.c_void_p(x), ctypes.c_void_p(source), self._reference)


class NodeVerbs:
    """The verbs of :class:`capturekit.driver.cuda.CudaDevice` that read and change nodes and edges.

    ``g`` is a definition, of which no executable graph is changed; ``x`` is an executable graph. They need the driver's
    library.
    """

    reader: Any
    rt: Any
    _ask: Callable[[tuple[Any, ...], str], Any]

    def _needed(self, what: str) -> Reader:
        """The reader, for ``what`` in an error. Raises CudaCallError where the driver's library can't be reached."""
        if self.reader is None:
            raise CudaCallError(Code.cudaErrorNotSupported, f"{what}: the driver's library can't be reached")
        found: Reader = self.reader
        return found

    @property
    def _driver(self) -> Reader:
        return self._needed('changing a graph')

    # -- what a node has ----------------------------------------------------------------------------------------

    def node_info(self, g: int, node: int) -> NodeInfo:
        """What is known of one node of a definition."""
        return self._needed('reading a graph').info(node)

    def node_arguments(self, g: int, node: int) -> list[Argument]:
        """The arguments of a kernel's node of a definition. Of CuPy's own kernels what each is, too."""
        return self._driver.kernel(node)[2]

    def node_priority(self, g: int, node: int) -> int:
        """``cuGraphKernelNodeGetAttribute``: the priority of a kernel's node: lower numbers come first."""
        value = (ctypes.c_int * _ATTRIBUTE)()
        self._driver.call('cuGraphKernelNodeGetAttribute', ctypes.c_void_p(node), _PRIORITY, ctypes.byref(value))
        return int(value[0])

    def node_enabled(self, x: int, node: int) -> bool:
        """``cuGraphNodeGetEnabled``."""
        on = ctypes.c_uint()
        self._driver.call('cuGraphNodeGetEnabled', ctypes.c_void_p(x), ctypes.c_void_p(node), ctypes.byref(on))
        return bool(on.value)

    def graph_accesses(self, g: int, only: Collection[int] | None = None) -> dict[int, Touched]:
        """The accesses of each node of a definition, or ``only`` of these, by its handle.

        A child graph's node touches what its nodes touch. The accesses of host functions and conditional nodes are not
        known here.
        """
        return accesses_of(self._needed('reading a graph'), g, only)

    def _event(self, node: int) -> tuple[str, ctypes.c_void_p]:
        """The word for an event's node in CUDA's names, and its event."""
        what = 'Record' if self._driver.kind(node) == 'event record' else 'Wait'
        event = ctypes.c_void_p()
        self._driver.call(f'cuGraphEvent{what}NodeGetEvent', ctypes.c_void_p(node), ctypes.byref(event))
        return what, event

    # -- definitions --------------------------------------------------------------------------------------------

    def graph_clone(self, g: int) -> int:
        """``cudaGraphClone``: a copy of a graph; refused where it has conditional or memory nodes."""
        return int(self._ask(self.rt.cudaGraphClone(self.rt.cudaGraph_t(g)), 'graphClone'))

    def graph_rewire(self, g: int, removed: Sequence[tuple[int, int]], added: Sequence[tuple[int, int]]) -> None:
        """``cudaGraphRemoveDependencies`` and ``cudaGraphAddDependencies``: pairs (from, to) of nodes.

        Where CUDA refuses, the definition is as it was.
        """
        EdgeWriter(self._needed('changing edges')).rewire(g, removed, added)

    def kernel_aim(self, g: int, node: int) -> KernelAim:
        """A kernel node whose addresses are changed often: in the definition and in executable graphs."""
        reader = self._driver
        return KernelAim(reader.library, node, reader.params(node)[0], reader.kernel(node)[2])

    def set_kernel(
        self, g: int, node: int, grid: Sequence[int], block: Sequence[int], shared: int, args: Sequence[bytes]
    ) -> Change:
        """``cudaGraphKernelNodeSetParams``."""
        known: Described = {}
        old, _name, _layout = self._driver.params(node, known)
        now = [one.data for one in self._driver.kernel(node, known)[2]]
        before = tuple(old.grid), tuple(old.block), int(old.shared), now
        self._put_kernel(node, grid, block, shared, args)
        return Change(lambda: self._put_kernel(node, *before))

    def _put_kernel(
        self,
        node: int,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        args: Sequence[bytes],
        function: int = 0,
    ) -> None:
        """The same for good. ``function``: another one of the node's context, by the driver's handle."""
        params, _name, _layout = self._driver.params(node)
        if function:
            params.func, params.kern = function, None
        params.grid, params.block, params.shared = tuple(grid), tuple(block), shared
        _buffers = _given(params, args)
        self._driver.call('cuGraphKernelNodeSetParams_v2', ctypes.c_void_p(node), ctypes.byref(params))

    def set_memcpy(self, g: int, node: int, dst: int, src: int, nbytes: int) -> Change:
        """``cudaGraphMemcpyNodeSetParams1D``; one-dimensional copies between linear memory."""
        copy = self._driver.read('cuGraphMemcpyNodeGetParams', node, _Memcpy())
        flat = copy.Height <= 1 and copy.Depth <= 1
        if not flat or {copy.srcMemoryType, copy.dstMemoryType} - {_HOST, _DEVICE, _UNIFIED}:
            raise CudaCallError(Code.cudaErrorNotSupported, 'cuGraphMemcpyNodeSetParams: not one-dimensional')
        before = _Memcpy.from_buffer_copy(copy)
        for side, address in (('dst', dst), ('src', src)):
            where = getattr(copy, side + 'MemoryType')
            on_host = self._of_host(copy_end(copy, side)) if where == _UNIFIED else where == _HOST
            if on_host != self._of_host(address):  # the driver takes it; CUDA's guide says that the types stay
                raise CudaCallError(Code.cudaErrorInvalidValue, f'cuGraphMemcpyNodeSetParams: {side}')
            setattr(copy, side + ('Host' if where == _HOST else 'Device'), address)
        copy.WidthInBytes = nbytes
        return self._set('cuGraphMemcpyNodeSetParams', node, copy, before)

    def _of_host(self, address: int) -> bool:
        where = ctypes.c_uint()
        ask = self._driver.library.cuPointerGetAttribute
        return bool(ask(ctypes.byref(where), _MEMORY_TYPE, ctypes.c_void_p(address))) or where.value == _HOST

    def set_memset(self, g: int, node: int, dst: int, value: int, nbytes: int) -> Change:
        """``cudaGraphMemsetNodeSetParams``; the size of one element stays."""
        asked = self._driver.read('cuGraphMemsetNodeGetParams', node, _Memset())
        before = _Memset.from_buffer_copy(asked)
        rows = max(asked.height, 1)
        asked.dst, asked.value = dst, value
        if nbytes != asked.elementSize * asked.width * rows:
            if rows > 1 or nbytes % asked.elementSize:
                raise CudaCallError(Code.cudaErrorInvalidValue, 'cuGraphMemsetNodeSetParams: bytes')
            asked.width = nbytes // asked.elementSize
        return self._set('cuGraphMemsetNodeSetParams', node, asked, before)

    def set_host(self, g: int, node: int, call: Callable[[], None]) -> Change:
        """``cudaGraphHostNodeSetParams``: a thread of the driver's calls the function, which must not call CUDA."""
        before = self._driver.read('cuGraphHostNodeGetParams', node, _Host())
        function = _HostFunction(lambda _user: call())
        asked = _Host(ctypes.cast(function, ctypes.c_void_p).value, None)
        change = self._set('cuGraphHostNodeSetParams', node, asked, before)
        change.keep = function
        return change

    def set_event(self, g: int, node: int, event: int) -> Change:
        """``cudaGraphEventRecordNodeSetEvent`` or ``cudaGraphEventWaitNodeSetEvent``."""
        what, before = self._event(node)
        call, at = f'cuGraphEvent{what}NodeSetEvent', ctypes.c_void_p(node)
        self._driver.call(call, at, ctypes.c_void_p(event))
        return Change(lambda: self._driver.call(call, at, before))

    def _set(self, call: str, node: int, new: ctypes.Structure, old: ctypes.Structure) -> Change:
        self._driver.call(call, ctypes.c_void_p(node), ctypes.byref(new))
        return Change(lambda: self._driver.call(call, ctypes.c_void_p(node), ctypes.byref(old)))

    def set_child(self, g: int, node: int, child: int) -> None:
        """Give the nodes of a node's child graph what those of another graph have, which pair with them by number."""
        reader = self._driver
        mine, theirs = (reader.handles(graph) for graph in (reader.info(node).inner, child))
        kinds = [reader.kind(one) for one in theirs]
        if [reader.kind(one) for one in mine] != kinds:
            raise CudaCallError(Code.cudaErrorGraphExecUpdateFailure, 'a child graph of other nodes')
        for to, of, kind in zip(mine, theirs, kinds):
            self._copy(g, to, of, kind)

    def _copy(self, g: int, to: int, of: int, kind: str) -> None:
        at, reader = ctypes.c_void_p(to), self._driver
        if kind == 'kernel':
            params, _name, _layout = reader.params(of)
            reader.call('cuGraphKernelNodeSetParams_v2', at, ctypes.byref(params))
        elif kind == 'graph':
            self.set_child(g, to, reader.info(of).inner)
        elif kind in ('event record', 'wait event'):
            what, event = self._event(of)
            reader.call(f'cuGraphEvent{what}NodeSetEvent', at, event)
        elif kind in _STRUCTURES:
            name, structure = _STRUCTURES[kind]
            has = reader.read(f'cuGraph{name}NodeGetParams', of, structure())
            reader.call(f'cuGraph{name}NodeSetParams', at, ctypes.byref(has))

    # -- executable graphs --------------------------------------------------------------------------------------

    def graph_exec_update(self, x: int, g: int) -> tuple[str, int]:
        """``cudaGraphExecUpdate``: return ('', 0), or CUDA's reason for refusing and the node of ``g`` or 0."""
        result = _Result()
        try:
            self._driver.call('cuGraphExecUpdate_v2', ctypes.c_void_p(x), ctypes.c_void_p(g), ctypes.byref(result))
        except CudaCallError as error:
            if error.code != Code.cudaErrorGraphExecUpdateFailure:
                raise
            known = 0 < result.result < len(REASONS)
            return REASONS[result.result] if known else f'result {result.result}', int(result.node or 0)
        return '', 0

    def node_enable(self, x: int, node: int, on: bool) -> None:
        """``cudaGraphNodeSetEnabled``: kernels, memsets and copies only."""
        self._driver.call('cuGraphNodeSetEnabled', ctypes.c_void_p(x), ctypes.c_void_p(node), ctypes.c_uint(on))

    def node_take(self, x: int, source: int, g: int, node: int) -> None:
        """``cudaGraphExecNodeSetParams``: a node of an executable graph does what a definition's does from now on.

        ``source`` names it: the handle that it has in the graph that was instantiated.
        """
        reader = self._driver
        kind, at = reader.kind(node), (ctypes.c_void_p(x), ctypes.c_void_p(source))
        if kind == 'kernel':
            params, _name, _layout = reader.params(node)
            reader.call('cuGraphExecKernelNodeSetParams_v2', *at, ctypes.byref(params))
        elif kind in _STRUCTURES:
            name, structure = _STRUCTURES[kind]
            has, context = reader.read(f'cuGraph{name}NodeGetParams', node, structure()), ctypes.c_void_p()
            if kind != 'host':
                reader.call('cuCtxGetCurrent', ctypes.byref(context))
            more = () if kind == 'host' else (context,)
            reader.call(f'cuGraphExec{name}NodeSetParams', *at, ctypes.byref(has), *more)
        elif kind in ('event record', 'wait event'):
            what, event = self._event(node)
            reader.call(f'cuGraphExecEvent{what}NodeSetEvent', *at, event)
        elif kind == 'graph':
            self.child_take(x, source, reader.info(node).inner)
        else:
            raise CudaCallError(Code.cudaErrorNotSupported, f'a node of kind {kind!r}')

    def child_take(self, x: int, source: int, child: int) -> None:
        """``cudaGraphExecChildGraphNodeSetParams``: a node of an executable graph runs another child graph."""
        call = 'cuGraphExecChildGraphNodeSetParams'
        self._driver.call(call, ctypes.c_void_p(x), ctypes.c_void_p(source), ctypes.c_void_p(child))
