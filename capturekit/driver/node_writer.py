"""Changes of nodes, in a definition and in the executable graph made from it; updates of whole graphs.

The driver is called directly, because cuda-bindings does not pass on the reason for a refused update. CUDA Driver API,
"Graph Management": ``cuGraphKernelNodeSetParams``, ``cuGraphExecKernelNodeSetParams`` ..., ``cuGraphExecUpdate``.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from capturekit.driver.graph_edges import EdgeWriter
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_accesses import Touched, accesses_of
from capturekit.driver.node_reader import _SCALARS, KINDS, CheckedCalls, Described, NodeInfo, _Memcpy, _Memset, _Params
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


@dataclass
class Change:
    """A change of a definition's node: how to undo it, and what must live as long as the node."""

    undo: Callable[[], None]
    keep: Any = None


class KernelAim:
    """A kernel node whose addresses are changed often: its parameters, with the arguments in our own memory."""

    def __init__(self, cuda: Any, node: int, params: _Params, arguments: list[Argument]) -> None:
        self.arguments = arguments
        self._node = ctypes.c_void_p(node)
        self._define, self._execute = cuda.cuGraphKernelNodeSetParams_v2, cuda.cuGraphExecKernelNodeSetParams_v2
        self._params = _Params.from_buffer_copy(params)
        self._data = [ctypes.create_string_buffer(one.data, len(one.data)) for one in arguments]
        self._pointers = (ctypes.c_void_p * max(len(self._data), 1))(*(ctypes.addressof(one) for one in self._data))
        self._params.args, self._params.extra = ctypes.cast(self._pointers, ctypes.POINTER(ctypes.c_void_p)), None
        self._reference = ctypes.byref(self._params)

    def write(self, number: int, offset: int, address: int) -> None:
        """Put an address into an argument; :meth:`put` brings it to the graph."""
        struct.pack_into('Q', self._data[number], offset, address)

    def define(self) -> None:
        """``cuGraphKernelNodeSetParams``: of the definition alone."""
        code = int(self._define(self._node, self._reference))
        if code:
            raise CudaCallError(Code(code) if code in set(Code) else code, 'cuGraphKernelNodeSetParams')

    def put(self, x: int, source: int) -> None:
        """``cuGraphKernelNodeSetParams`` and ``cuGraphExecKernelNodeSetParams``."""
        code = int(self._define(self._node, self._reference))
        code = code or int(self._execute(ctypes.c_void_p(x), ctypes.c_void_p(source), self._reference))
        if code:
            raise CudaCallError(Code(code) if code in set(Code) else code, 'cuGraphExecKernelNodeSetParams')

    def runner(self, x: int, source: int) -> Callable[[], int]:
        """Return a function that brings the arguments to an executable graph alone, and returns CUDA's code."""
        return functools.partial(self._execute, ctypes.c_void_p(x), ctypes.c_void_p(source), self._reference)


class Writer(CheckedCalls):
    """Changes nodes of the driver's."""

    def update(self, x: int, g: int) -> tuple[str, int]:
        """``cuGraphExecUpdate``: ('', 0), or why not and the node of ``g``, 0 where CUDA names none."""
        result = _Result()
        try:
            self._call('cuGraphExecUpdate_v2', ctypes.c_void_p(x), ctypes.c_void_p(g), ctypes.byref(result))
        except CudaCallError as error:
            if error.code != Code.cudaErrorGraphExecUpdateFailure:
                raise
            known = 0 < result.result < len(REASONS)
            return REASONS[result.result] if known else f'result {result.result}', int(result.node or 0)
        return '', 0

    def enable(self, x: int, node: int, on: bool) -> None:
        """``cuGraphNodeSetEnabled``."""
        self._call('cuGraphNodeSetEnabled', ctypes.c_void_p(x), ctypes.c_void_p(node), ctypes.c_uint(on))

    def enabled(self, x: int, node: int) -> bool:
        """``cuGraphNodeGetEnabled``."""
        on = ctypes.c_uint()
        self._call('cuGraphNodeGetEnabled', ctypes.c_void_p(x), ctypes.c_void_p(node), ctypes.byref(on))
        return bool(on.value)

    def kind(self, node: int) -> str:
        """``cuGraphNodeGetType``."""
        kind = ctypes.c_int()
        self._call('cuGraphNodeGetType', ctypes.c_void_p(node), ctypes.byref(kind))
        return KINDS.get(kind.value, str(kind.value))

    def priority(self, node: int) -> int:
        """``cuGraphKernelNodeGetAttribute``: the priority of a kernel's node."""
        value = (ctypes.c_int * _ATTRIBUTE)()
        self._call('cuGraphKernelNodeGetAttribute', ctypes.c_void_p(node), _PRIORITY, ctypes.byref(value))
        return int(value[0])

    # -- what a node has ----------------------------------------------------------------------------------------

    def read(self, call: str, node: int, into: ctypes.Structure) -> Any:
        """A node's parameters, as one of the driver's functions gives them."""
        self._call(call, ctypes.c_void_p(node), ctypes.byref(into))
        return into

    def _params(self, node: int, known: Described | None = None) -> tuple[_Params, str, list[tuple[int, int]]]:
        params = self.read('cuGraphKernelNodeGetParams_v2', node, _Params())
        name, layout = self._reader.described((params.func or 0, params.kern or 0), known)
        if layout and not params.args:
            raise CudaCallError(Code.cudaErrorNotSupported, 'cuGraphKernelNodeGetParams: arguments in one buffer')
        return params, name, layout

    def arguments(self, node: int) -> list[Argument]:
        """The arguments of a kernel's node. Of CuPy's own kernels what each is, too."""
        return self.kernel(node)[1]

    def kernel(self, node: int, known: Described | None = None) -> tuple[int, list[Argument]]:
        """The driver's handle of a kernel node's function, 0 where it has a library's kernel instead; its arguments.

        ``known``: what the reader was asked before in the same look at nodes.
        """
        params, name, layout = self._params(node, known)
        types = _types(name, layout)
        found = []
        for number, (_offset, size) in enumerate(layout):
            dtype, array = types.get(number, ('', None))
            found.append(Argument(ctypes.string_at(params.args[number], size), dtype, array))
        return int(params.func or 0), found

    def aim(self, node: int) -> KernelAim:
        """A kernel node whose addresses are changed often."""
        params, _name, _layout = self._params(node)
        return KernelAim(self._cuda, node, params, self.arguments(node))

    # -- definitions --------------------------------------------------------------------------------------------

    def set_kernel(
        self, node: int, grid: Sequence[int], block: Sequence[int], shared: int, args: Sequence[bytes]
    ) -> Change:
        """``cuGraphKernelNodeSetParams``."""
        known: Described = {}
        old, _name, _layout = self._params(node, known)
        before = (tuple(old.grid), tuple(old.block), int(old.shared), [one.data for one in self.kernel(node, known)[1]])
        self._set_kernel(node, grid, block, shared, args)
        return Change(lambda: self._set_kernel(node, *before))

    def _set_kernel(
        self, node: int, grid: Sequence[int], block: Sequence[int], shared: int, args: Sequence[bytes]
    ) -> None:
        params = self.read('cuGraphKernelNodeGetParams_v2', node, _Params())
        params.grid, params.block, params.shared = tuple(grid), tuple(block), shared
        buffers = [ctypes.create_string_buffer(data, len(data)) for data in args]
        pointers = (ctypes.c_void_p * max(len(buffers), 1))(*(ctypes.addressof(one) for one in buffers))
        params.args, params.extra = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)), None
        self._call('cuGraphKernelNodeSetParams_v2', ctypes.c_void_p(node), ctypes.byref(params))

    def put_function(
        self, node: int, function: int, grid: Sequence[int], block: Sequence[int], args: Sequence[bytes]
    ) -> None:
        """``cuGraphKernelNodeSetParams`` with another function of the node's context."""
        params, _name, _layout = self._params(node)
        params.func, params.kern = function, None
        params.grid, params.block, params.shared = tuple(grid), tuple(block), 0
        buffers = [ctypes.create_string_buffer(data, len(data)) for data in args]
        pointers = (ctypes.c_void_p * max(len(buffers), 1))(*(ctypes.addressof(one) for one in buffers))
        params.args, params.extra = ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)), None
        self._call('cuGraphKernelNodeSetParams_v2', ctypes.c_void_p(node), ctypes.byref(params))

    def set_memcpy(self, node: int, dst: int, src: int, nbytes: int) -> Change:
        """``cuGraphMemcpyNodeSetParams``; one-dimensional copies between linear memory."""
        copy = self.read('cuGraphMemcpyNodeGetParams', node, _Memcpy())
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
        ask = self._cuda.cuPointerGetAttribute
        return bool(ask(ctypes.byref(where), _MEMORY_TYPE, ctypes.c_void_p(address))) or where.value == _HOST

    def set_memset(self, node: int, dst: int, value: int, nbytes: int) -> Change:
        """``cuGraphMemsetNodeSetParams``; the size of one element stays."""
        asked = self.read('cuGraphMemsetNodeGetParams', node, _Memset())
        before = _Memset.from_buffer_copy(asked)
        rows = max(asked.height, 1)
        asked.dst, asked.value = dst, value
        if nbytes != asked.elementSize * asked.width * rows:
            if rows > 1 or nbytes % asked.elementSize:
                raise CudaCallError(Code.cudaErrorInvalidValue, 'cuGraphMemsetNodeSetParams: bytes')
            asked.width = nbytes // asked.elementSize
        return self._set('cuGraphMemsetNodeSetParams', node, asked, before)

    def set_host(self, node: int, call: Callable[[], None]) -> Change:
        """``cuGraphHostNodeSetParams``: the function is called by a thread of the driver's, and must not call CUDA."""
        before = self.read('cuGraphHostNodeGetParams', node, _Host())
        function = _HostFunction(lambda _user: call())
        asked = _Host(ctypes.cast(function, ctypes.c_void_p).value, None)
        change = self._set('cuGraphHostNodeSetParams', node, asked, before)
        change.keep = function
        return change

    def _set(self, call: str, node: int, new: ctypes.Structure, old: ctypes.Structure) -> Change:
        self._call(call, ctypes.c_void_p(node), ctypes.byref(new))
        return Change(lambda: self._call(call, ctypes.c_void_p(node), ctypes.byref(old)))

    def set_event(self, node: int, event: int) -> Change:
        """``cuGraphEventRecordNodeSetEvent`` or ``cuGraphEventWaitNodeSetEvent``."""
        what = self._event_words(node)
        old = ctypes.c_void_p()
        self._call(f'cuGraphEvent{what}NodeGetEvent', ctypes.c_void_p(node), ctypes.byref(old))
        before = ctypes.c_void_p(old.value)
        self._call(f'cuGraphEvent{what}NodeSetEvent', ctypes.c_void_p(node), ctypes.c_void_p(event))
        return Change(lambda: self._call(f'cuGraphEvent{what}NodeSetEvent', ctypes.c_void_p(node), before))

    def _event_words(self, node: int) -> str:
        return 'Record' if self.kind(node) == 'event record' else 'Wait'

    # -- executable graphs --------------------------------------------------------------------------------------

    def take(self, x: int, source: int, node: int) -> None:
        """An executable graph's node does from now on what a definition's node does. ``source`` names it: the node of
        the graph that was instantiated."""
        kind = self.kind(node)
        at = (ctypes.c_void_p(x), ctypes.c_void_p(source))
        if kind == 'kernel':
            params, _name, _layout = self._params(node)
            self._call('cuGraphExecKernelNodeSetParams_v2', *at, ctypes.byref(params))
        elif kind in ('memcpy', 'memset'):
            read, into = ('Memcpy', _Memcpy()) if kind == 'memcpy' else ('Memset', _Memset())
            params = self.read(f'cuGraph{read}NodeGetParams', node, into)
            context = ctypes.c_void_p()
            self._call('cuCtxGetCurrent', ctypes.byref(context))
            self._call(f'cuGraphExec{read}NodeSetParams', *at, ctypes.byref(params), context)
        elif kind == 'host':
            host = self.read('cuGraphHostNodeGetParams', node, _Host())
            self._call('cuGraphExecHostNodeSetParams', *at, ctypes.byref(host))
        elif kind in ('event record', 'wait event'):
            event = ctypes.c_void_p()
            what = self._event_words(node)
            self._call(f'cuGraphEvent{what}NodeGetEvent', ctypes.c_void_p(node), ctypes.byref(event))
            self._call(f'cuGraphExecEvent{what}NodeSetEvent', *at, event)
        elif kind == 'graph':
            self.take_child(x, source, self._inner(node))
        else:
            raise CudaCallError(Code.cudaErrorNotSupported, f'a node of kind {kind!r}')

    def take_child(self, x: int, source: int, child: int) -> None:
        """``cuGraphExecChildGraphNodeSetParams``: the child graph of an executable graph's node is another."""
        call = 'cuGraphExecChildGraphNodeSetParams'
        self._call(call, ctypes.c_void_p(x), ctypes.c_void_p(source), ctypes.c_void_p(child))

    def _inner(self, node: int) -> int:
        inner = ctypes.c_void_p()
        self._call('cuGraphChildGraphNodeGetGraph', ctypes.c_void_p(node), ctypes.byref(inner))
        return inner.value or 0

    def set_child(self, node: int, child: int) -> None:
        """Give the nodes of a node's child graph what those of another graph have, which pair with them by number."""
        mine, theirs = (self._reader.handles(graph) for graph in (self._inner(node), child))
        if [self.kind(one) for one in mine] != [self.kind(one) for one in theirs]:
            raise CudaCallError(Code.cudaErrorGraphExecUpdateFailure, 'a child graph of other nodes')
        for to, of in zip(mine, theirs):
            self._copy(to, of)

    def _copy(self, to: int, of: int) -> None:
        kind = self.kind(of)
        if kind == 'kernel':
            params, _name, _layout = self._params(of)
            self._call('cuGraphKernelNodeSetParams_v2', ctypes.c_void_p(to), ctypes.byref(params))
        elif kind == 'graph':
            self.set_child(to, self._inner(of))
        elif kind in ('event record', 'wait event'):
            event = ctypes.c_void_p()
            self._call(f'cuGraphEvent{self._event_words(of)}NodeGetEvent', ctypes.c_void_p(of), ctypes.byref(event))
            self._call(f'cuGraphEvent{self._event_words(to)}NodeSetEvent', ctypes.c_void_p(to), event)
        elif kind in _STRUCTURES:
            name, structure = _STRUCTURES[kind]
            params = self.read(f'cuGraph{name}NodeGetParams', of, structure())
            self._call(f'cuGraph{name}NodeSetParams', ctypes.c_void_p(to), ctypes.byref(params))


#: Kinds of nodes whose parameters are one plain structure: the word for them in CUDA's names, the structure.
_STRUCTURES: dict[str, tuple[str, type[ctypes.Structure]]] = {
    'memcpy': ('Memcpy', _Memcpy),
    'memset': ('Memset', _Memset),
    'host': ('Host', _Host),
}


def copy_end(copy: _Memcpy, side: str) -> int:
    """The address of 'dst' or 'src'."""
    host = getattr(copy, side + 'MemoryType') == _HOST
    return int(getattr(copy, side + ('Host' if host else 'Device')) or 0)


def _types(name: str, layout: list[tuple[int, int]]) -> dict[int, tuple[str, bool]]:
    """What the name of a CuPy kernel says about its arguments: by number, the dtype and whether it is an array."""
    known = name.startswith('cupy_') and '__' in name
    found: dict[int, tuple[str, bool]] = {}
    for number, word in enumerate(name.rpartition('__')[2].split('_') if known else ()):
        size = layout[number][1] if number < len(layout) else 0
        scalar = _SCALARS.get((word, size))
        if scalar is not None:
            found[number] = (str(scalar), False)
        elif size >= 2 * ctypes.sizeof(ctypes.c_void_p):
            found[number] = (word, True)
    return found


class NodeVerbs:
    """The verbs of :class:`capturekit.driver.cuda.CudaDevice` that read and change nodes and edges. They need the
    driver's library."""

    reader: Any
    rt: Any
    _ask: Callable[[tuple[Any, ...], str], Any]

    def _writer(self, what: str = 'changing a graph') -> Writer:
        if self.reader is None:
            raise CudaCallError(Code.cudaErrorNotSupported, f"{what}: the driver's library can't be reached")
        return Writer(self.reader)

    def graph_exec_update(self, x: int, g: int) -> tuple[str, int]:
        """``cudaGraphExecUpdate``: return ('', 0), or CUDA's reason for refusing and the node of ``g`` or 0."""
        return self._writer().update(x, g)

    def graph_clone(self, g: int) -> int:
        """``cudaGraphClone``: a copy of a graph; refused where it has conditional or memory nodes."""
        return int(self._ask(self.rt.cudaGraphClone(self.rt.cudaGraph_t(g)), 'graphClone'))

    def node_enable(self, x: int, node: int, on: bool) -> None:
        """``cudaGraphNodeSetEnabled``: kernels, memsets and copies only."""
        self._writer().enable(x, node, on)

    def node_enabled(self, x: int, node: int) -> bool:
        """``cudaGraphNodeGetEnabled``."""
        return self._writer().enabled(x, node)

    def node_info(self, g: int, node: int) -> NodeInfo:
        """What is known of one node of a definition."""
        if self.reader is None:
            raise CudaCallError(Code.cudaErrorNotSupported, "reading a graph: the driver's library can't be reached")
        found: NodeInfo = self.reader.info(node)
        return found

    def node_arguments(self, g: int, node: int) -> list[Argument]:
        """The arguments of a kernel's node of a definition."""
        return self._writer().arguments(node)

    def node_priority(self, g: int, node: int) -> int:
        """The priority of a kernel's node of a definition: lower numbers come first."""
        return self._writer().priority(node)

    def kernel_aim(self, g: int, node: int) -> KernelAim:
        """A kernel node whose addresses are changed often: in the definition and in executable graphs."""
        return self._writer().aim(node)

    def set_kernel(
        self, g: int, node: int, grid: Sequence[int], block: Sequence[int], shared: int, args: Sequence[bytes]
    ) -> Change:
        """``cudaGraphKernelNodeSetParams``: of the definition ``g``; no executable graph is changed by it."""
        return self._writer().set_kernel(node, grid, block, shared, args)

    def set_memcpy(self, g: int, node: int, dst: int, src: int, nbytes: int) -> Change:
        """``cudaGraphMemcpyNodeSetParams1D``, of a definition."""
        return self._writer().set_memcpy(node, dst, src, nbytes)

    def set_memset(self, g: int, node: int, dst: int, value: int, nbytes: int) -> Change:
        """``cudaGraphMemsetNodeSetParams``, of a definition."""
        return self._writer().set_memset(node, dst, value, nbytes)

    def set_host(self, g: int, node: int, call: Callable[[], None]) -> Change:
        """``cudaGraphHostNodeSetParams``, of a definition."""
        return self._writer().set_host(node, call)

    def set_event(self, g: int, node: int, event: int) -> Change:
        """``cudaGraphEventRecordNodeSetEvent`` or ``cudaGraphEventWaitNodeSetEvent``, of a definition."""
        return self._writer().set_event(node, event)

    def set_child(self, g: int, node: int, child: int) -> None:
        """The nodes in a child graph's node of a definition get what those of the graph ``child`` have."""
        self._writer().set_child(node, child)

    def node_take(self, x: int, source: int, g: int, node: int) -> None:
        """``cudaGraphExecNodeSetParams``: a node of an executable graph does what a definition's does from now on.

        ``source`` names it: the handle that it has in the graph that was instantiated.
        """
        self._writer().take(x, source, node)

    def child_take(self, x: int, source: int, child: int) -> None:
        """``cudaGraphExecChildGraphNodeSetParams``: a node of an executable graph runs another child graph."""
        self._writer().take_child(x, source, child)

    def graph_accesses(self, g: int) -> dict[int, Touched]:
        """The accesses of each node of a definition, by its handle.

        A child graph's node touches what its nodes touch. The accesses of host functions and conditional nodes are not
        known here.
        """
        return accesses_of(self.reader, self._writer('reading a graph'), g)

    def graph_rewire(self, g: int, removed: Sequence[tuple[int, int]], added: Sequence[tuple[int, int]]) -> None:
        """``cudaGraphRemoveDependencies`` and ``cudaGraphAddDependencies``: pairs (from, to) of nodes of a definition.

        No executable graph is changed by it. Where CUDA refuses, the definition is as it was.
        """
        self._writer('changing edges')  # raises where the driver's library can't be reached
        EdgeWriter(self.reader).rewire(g, removed, added)
