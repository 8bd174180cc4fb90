"""Access to CUDA: CuPy and cuda-bindings, imported when a capture first needs them.

:func:`current` gives the imported CuPy module and its device: :class:`CudaDevice`, or the simulated one if the
simulated CuPy is installed. Both have the same methods and pass the same contract tests. The methods take and return
ints (handles), raise :class:`~capturekit.model.errors.CudaCallError`, and are safe from any thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from capturekit.driver.call_notices import CallSource
from capturekit.driver.cupti import Timing
from capturekit.driver.graph_edges import EdgeWriter
from capturekit.driver.node_reader import KINDS, NodeInfo, Reader, checked
from capturekit.model.ledger import CaptureInfo, EventState, last_node, next_after
from capturekit.model.rules import CaptureStatus, Code, Mode
from capturekit.model.versions import BINDINGS, CUPY, command

_EXTERNAL = 1
_NON_BLOCKING = 1
_ASSIGN_DEFAULT = 1
_USE_NODE_PRIORITY = 8


@dataclass(frozen=True)
class Platform:
    """The imported CuPy module, real or simulated, and its device."""

    cupy: Any
    device: Any

    @property
    def simulated(self) -> bool:
        return hasattr(self.cupy, '__capturekit_simulated__')


_real: Platform | None = None


def current() -> Platform:
    """Return CuPy and its device.

    Raises:
        ImportError: CuPy or cuda-bindings is not installed, or too old; the message says what to install.
    """
    global _real
    loaded: ModuleType | None = sys.modules.get('cupy')
    simulated = getattr(loaded, '__capturekit_simulated__', None)
    if simulated is not None:
        return Platform(loaded, simulated)
    if _real is None or _real.cupy is not loaded:
        cupy = _cupy()
        _real = Platform(cupy, CudaDevice(cupy))
    return _real


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "capturekit records CuPy, which is not installed here: pip install 'capturekit[cuda13]' (or [cuda12]). "
            'Without a GPU: python -m capturekit run --simulate script.py, or CAPTUREKIT_SIMULATE=1 in the environment '
            'and `import capturekit` before `import cupy`'
        ) from error
    if CUPY.too_old(cupy.__version__):
        raise ImportError(CUPY.refusal(cupy.__version__, command()))
    return cupy


def stream_handle(stream: Any) -> int:
    """Return the handle of anything that is a stream: CuPy's, or any object with ``__cuda_stream__``.

    Raises:
        TypeError: it is neither.
    """
    handle = getattr(stream, 'ptr', None)
    if isinstance(handle, int):
        return handle
    protocol = getattr(stream, '__cuda_stream__', None)
    if callable(protocol):
        answer = protocol()
        if isinstance(answer, tuple) and len(answer) == 2 and answer[0] == 0:
            return int(answer[1])
    raise TypeError(f'expected a CuPy stream or an object with __cuda_stream__, got {type(stream).__name__}')


class StreamHandle:
    """A stream's handle as an object of the stream protocol."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)


class CudaDevice(Timing):
    """CUDA through cuda-bindings, with the methods of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

    def __init__(self, cupy: Any) -> None:
        try:
            from cuda.bindings import __version__, runtime
        except ImportError as error:
            raise ImportError(f'capturekit needs cuda-bindings beside CuPy: {command()}') from error
        if BINDINGS.too_old(__version__):
            raise ImportError(BINDINGS.refusal(__version__, command()))
        self.rt: Any = runtime
        self.spare_streams: dict[Any, list[Any]] = {}
        #: Kernels of capturekit's own, compiled once.
        self.kernels: dict[str, Any] = {}
        self._modes = [
            runtime.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal,
            runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal,
            runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed,
        ]
        self._reader: Reader | None = None
        self._launch = cupy.cuda.runtime.graphLaunch
        self.graph_launch = self._launch

    @property
    def reader(self) -> Reader | None:
        """The reader of nodes' parameters; None if the driver's library can't be reached."""
        if self._reader is None:
            try:
                self._reader = Reader()
            except (LookupError, OSError):
                return None
        return self._reader

    def _ask(self, answer: tuple[Any, ...], call: str) -> Any:
        """The values of an answer; raises if it is an error."""
        code = int(answer[0])
        if code:
            self.rt.cudaGetLastError()
            checked(code, call)
        return answer[1] if len(answer) == 2 else answer[1:]

    def driver_version(self) -> int:
        """``cudaDriverGetVersion``: 13000 for CUDA 13.0; 0 without a driver."""
        return int(self._ask(self.rt.cudaDriverGetVersion(), 'driverGetVersion'))

    # -- streams and events -----------------------------------------------------------------------------------

    def stream_create(self, non_blocking: bool = False, priority: int = 0) -> int:
        """``cudaStreamCreateWithPriority``."""
        flags = _NON_BLOCKING if non_blocking else 0
        return int(self._ask(self.rt.cudaStreamCreateWithPriority(flags, priority), 'streamCreate'))

    def stream_destroy(self, s: int) -> None:
        """``cudaStreamDestroy``."""
        self._ask(self.rt.cudaStreamDestroy(s), 'streamDestroy')

    def stream_synchronize(self, s: int) -> None:
        """``cudaStreamSynchronize``."""
        self._ask(self.rt.cudaStreamSynchronize(s), 'streamSynchronize')

    def stream_query(self, s: int) -> bool:
        """``cudaStreamQuery``."""
        answer = self.rt.cudaStreamQuery(s)
        if int(answer[0]) == Code.cudaErrorNotReady:
            return False
        self._ask(answer, 'streamQuery')
        return True

    def stream_flags(self, s: int) -> int:
        """``cudaStreamGetFlags``."""
        return int(self._ask(self.rt.cudaStreamGetFlags(s), 'streamGetFlags'))

    def stream_priority(self, s: int) -> int:
        """``cudaStreamGetPriority``."""
        return int(self._ask(self.rt.cudaStreamGetPriority(s), 'streamGetPriority'))

    def stream_device(self, s: int) -> int:
        """``cudaStreamGetDevice``: the device that a stream belongs to. Drivers before CUDA 12.8 can't be asked."""
        return int(self._ask(self.rt.cudaStreamGetDevice(s), 'streamGetDevice'))

    def stream_status(self, s: int) -> CaptureStatus:
        """``cudaStreamIsCapturing``."""
        return CaptureStatus(int(self._ask(self.rt.cudaStreamIsCapturing(s), 'streamIsCapturing')))

    def capture_info(self, s: int) -> CaptureInfo:
        """``cudaStreamGetCaptureInfo`` (its third form; cuda-bindings 12 gives the same without edge data)."""
        ask = getattr(self.rt, 'cudaStreamGetCaptureInfo_v3', self.rt.cudaStreamGetCaptureInfo)
        status, number, graph, nodes, *_edges = self._ask(ask(s), 'streamGetCaptureInfo')
        if CaptureStatus(int(status)) is not CaptureStatus.ACTIVE:
            return CaptureInfo(CaptureStatus(int(status)))
        return CaptureInfo(CaptureStatus.ACTIVE, int(number), int(graph), tuple(sorted(int(n) for n in nodes or ())))

    def stream_wait_event(self, s: int, e: int, external: bool = False) -> None:
        """``cudaStreamWaitEvent``."""
        self._ask(self.rt.cudaStreamWaitEvent(s, e, _EXTERNAL if external else 0), 'streamWaitEvent')

    def event_create(self) -> int:
        """``cudaEventCreateWithFlags``, without timing."""
        return int(self._ask(self.rt.cudaEventCreateWithFlags(self.rt.cudaEventDisableTiming), 'eventCreate'))

    def event_destroy(self, e: int) -> None:
        """``cudaEventDestroy``."""
        self._ask(self.rt.cudaEventDestroy(e), 'eventDestroy')

    def event_record(self, e: int, s: int, external: bool = False) -> None:
        """``cudaEventRecord``."""
        self._ask(self.rt.cudaEventRecordWithFlags(e, s, _EXTERNAL if external else 0), 'eventRecord')

    def event_query(self, e: int) -> bool:
        """``cudaEventQuery``."""
        answer = self.rt.cudaEventQuery(e)
        if int(answer[0]) == Code.cudaErrorNotReady:
            return False
        self._ask(answer, 'eventQuery')
        return True

    def event_synchronize(self, e: int) -> None:
        """``cudaEventSynchronize``."""
        self._ask(self.rt.cudaEventSynchronize(e), 'eventSynchronize')

    def event_elapsed_time(self, e1: int, e2: int) -> float:
        """``cudaEventElapsedTime`` in milliseconds."""
        return float(self._ask(self.rt.cudaEventElapsedTime(e1, e2), 'eventElapsedTime'))

    def device_synchronize(self) -> None:
        """``cudaDeviceSynchronize``."""
        self._ask(self.rt.cudaDeviceSynchronize(), 'deviceSynchronize')

    def event_state(self, e: int) -> EventState:
        """Find out what an event stands for, without losing any capture.

        Timing an event against itself decides most cases. The others (never recorded, or made without timing) are
        decided by a wait in a temporary capture on a temporary stream.
        """
        code = int(self.rt.cudaEventElapsedTime(e, e)[0])
        self.rt.cudaGetLastError()
        if code in (Code.cudaSuccess, Code.cudaErrorNotReady):
            return EventState.OUTSIDE
        if code == Code.cudaErrorCapturedEvent:
            return EventState.CAPTURED
        if code == Code.cudaErrorInvalidValue:
            return EventState.DEAD
        s = self.stream_create(non_blocking=True)
        try:
            self.begin_capture(s, Mode.RELAXED)
            waited = int(self.rt.cudaStreamWaitEvent(s, e, 0)[0])
            ended = self.rt.cudaStreamEndCapture(s)
            if int(ended[0]) == 0:
                self.graph_destroy(int(ended[1]))
            self.rt.cudaGetLastError()
        finally:
            self.stream_destroy(s)
        return EventState.NEVER if waited == 0 else EventState.OUTSIDE

    # -- capture ----------------------------------------------------------------------------------------------

    def begin_capture(self, s: int, mode: Mode = Mode.RELAXED) -> None:
        """``cudaStreamBeginCapture``."""
        self._ask(self.rt.cudaStreamBeginCapture(s, self._modes[mode]), 'streamBeginCapture')

    def begin_capture_to(self, s: int, g: int, mode: Mode = Mode.RELAXED, after: Sequence[int] = ()) -> None:
        """``cudaStreamBeginCaptureToGraph``: add to a graph, or to the body of a node, after the nodes ``after``."""
        rt = self.rt
        nodes = [rt.cudaGraphNode_t(n) for n in after] or None
        edges = [rt.cudaGraphEdgeData() for _ in after] or None
        answer = rt.cudaStreamBeginCaptureToGraph(s, rt.cudaGraph_t(g), nodes, edges, len(after), self._modes[mode])
        self._ask(answer, 'streamBeginCaptureToGraph')

    def can_continue(self) -> bool:
        """Whether the driver can capture into a graph that has nodes: from CUDA 12.3 on."""
        return self.driver_version() >= 12030

    def set_dependencies(self, s: int, after: Sequence[int]) -> None:
        """``cudaStreamUpdateCaptureDependencies``: set the nodes that a captured stream's next node comes after."""
        rt = self.rt
        update = getattr(rt, 'cudaStreamUpdateCaptureDependencies_v2', rt.cudaStreamUpdateCaptureDependencies)
        # cuda-bindings 13 has only the form with edge data, cuda-bindings 12 has both
        edges = [rt.cudaGraphEdgeData() for _ in after] or None
        nodes = [rt.cudaGraphNode_t(n) for n in after] or None
        how = rt.cudaStreamUpdateCaptureDependenciesFlags.cudaStreamSetCaptureDependencies
        self._ask(update(s, nodes, edges, len(after), how), 'streamUpdateCaptureDependencies')

    def end_capture(self, s: int) -> int:
        """``cudaStreamEndCapture``: return the graph."""
        return int(self._ask(self.rt.cudaStreamEndCapture(s), 'streamEndCapture'))

    def exchange_thread_mode(self, mode: Mode) -> Mode:
        """``cudaThreadExchangeStreamCaptureMode``: set this thread's mode, return the old one."""
        old = self._ask(self.rt.cudaThreadExchangeStreamCaptureMode(self._modes[mode]), 'threadExchangeMode')
        return Mode(int(old))

    # -- graphs -----------------------------------------------------------------------------------------------

    def graph_nodes(self, g: int) -> list[int]:
        """Handles of a graph's nodes, as they were made; ``g`` may be a graph still being captured."""
        if self.reader is not None:
            return self.reader.handles(g)
        rt = self.rt
        graph = rt.cudaGraph_t(g)
        count = self._ask(rt.cudaGraphGetNodes(graph), 'graphGetNodes')[1]
        if not count:
            return []
        return [int(n) for n in self._ask(rt.cudaGraphGetNodes(graph, count), 'graphGetNodes')[0]]

    def graph_node_count(self, g: int) -> int:
        """How many nodes a graph has."""
        return int(self._ask(self.rt.cudaGraphGetNodes(self.rt.cudaGraph_t(g)), 'graphGetNodes')[1])

    def last_nodes(self) -> Callable[[int], int]:
        """A function that returns a stream's last node: 0 where there is none; -1 in a lost capture, -2 in none.

        If new work would come after several nodes, as after a join, it returns one of them. For one thread at a time.
        """
        if self.reader is not None and self.reader.knows_last:
            return self.reader.last_nodes()
        return lambda s: last_node(self.capture_info(s))

    def next_after(self) -> Callable[[int], tuple[int, ...]]:
        """A function that returns the nodes before a stream's next work: (-1,) in a lost capture, (-2,) in none.

        Any thread may call it.
        """
        if self.reader is not None and self.reader.knows_last:
            return self.reader.next_after()
        return lambda s: next_after(self.capture_info(s))

    def node_destroy(self, node: int) -> None:
        """``cudaGraphDestroyNode``: take a node, and its edges, out of its graph."""
        self._ask(self.rt.cudaGraphDestroyNode(self.rt.cudaGraphNode_t(node)), 'graphDestroyNode')

    def graph_edge_count(self, g: int) -> int:
        """How many edges a graph has."""
        get = getattr(self.rt, 'cudaGraphGetEdges_v2', self.rt.cudaGraphGetEdges)
        return int(self._ask(get(self.rt.cudaGraph_t(g)), 'graphGetEdges')[-1])

    def graph_edges(self, g: int) -> list[tuple[int, int]]:
        """Pairs (from, to) of node handles."""
        if self.reader is not None:
            return [(a, b) for a, b, _data in EdgeWriter(self.reader).edges(g)]
        rt = self.rt
        get = getattr(rt, 'cudaGraphGetEdges_v2', rt.cudaGraphGetEdges)
        graph = rt.cudaGraph_t(g)
        count = self._ask(get(graph), 'graphGetEdges')[-1]
        if not count:
            return []
        begins, ends, *_data = self._ask(get(graph, count), 'graphGetEdges')
        return [(int(a), int(b)) for a, b in zip(begins, ends)]

    def node_kind(self, g: int, node: int) -> tuple[str, str]:
        """A node's kind, and its name where one is known."""
        kind = int(self._ask(self.rt.cudaGraphNodeGetType(self.rt.cudaGraphNode_t(node)), 'graphNodeGetType'))
        return KINDS.get(kind, str(kind)), ''

    def node_infos(self, g: int) -> list[NodeInfo]:
        """What is known of each node, in the order in which they were made."""
        if self.reader is not None:
            return self.reader.infos(g)
        return [NodeInfo(node, *self.node_kind(g, node)) for node in self.graph_nodes(g)]

    def graph_create(self) -> int:
        """``cudaGraphCreate``: an empty graph."""
        return int(self._ask(self.rt.cudaGraphCreate(0), 'graphCreate'))

    def condition_create(self, g: int, default: int = 0) -> int:
        """``cudaGraphConditionalHandleCreate``: a condition that is set to the default at each launch of ``g``."""
        answer = self.rt.cudaGraphConditionalHandleCreate(self.rt.cudaGraph_t(g), default, _ASSIGN_DEFAULT)
        return int(self._ask(answer, 'graphConditionalHandleCreate'))

    def can_decide(self, decides: str, count: int) -> bool:
        """Whether the driver knows such conditional nodes: from CUDA 12.4 on, with several bodies 12.8."""
        return self.driver_version() >= (12080 if decides == 'switch' or count > 1 else 12040)

    def add_conditional(
        self, g: int, after: Sequence[int], condition: int, decides: str, count: int
    ) -> tuple[int, list[int]]:
        """``cudaGraphAddNode``: an IF (of 1 or 2 bodies), WHILE (1) or SWITCH node; return it, and its body graphs."""
        rt = self.rt
        # cuda-bindings 12 takes edge data in another function, and there only one for each edge.
        edges = () if hasattr(rt, 'cudaGraphAddNode_v2') else (None,)
        params = rt.cudaGraphNodeParams()
        params.type = rt.cudaGraphNodeType.cudaGraphNodeTypeConditional
        params.conditional.handle = rt.cudaGraphConditionalHandle(condition)
        params.conditional.type = getattr(rt.cudaGraphConditionalNodeType, f'cudaGraphCondType{decides.capitalize()}')
        params.conditional.size = count
        nodes = [rt.cudaGraphNode_t(n) for n in after] or None
        node = self._ask(rt.cudaGraphAddNode(rt.cudaGraph_t(g), nodes, *edges, len(after), params), 'graphAddNode')
        return int(node), [int(params.conditional.phGraph_out[i]) for i in range(count)]

    def add_child(self, g: int, after: Sequence[int], child: int) -> int:
        """``cudaGraphAddChildGraphNode``: a node that runs a copy of ``child`` as it is now."""
        rt = self.rt
        nodes = [rt.cudaGraphNode_t(n) for n in after] or None
        answer = rt.cudaGraphAddChildGraphNode(rt.cudaGraph_t(g), nodes, len(after), rt.cudaGraph_t(child))
        return int(self._ask(answer, 'graphAddChildGraphNode'))

    def graph_instantiate(self, g: int, by_node_priority: bool = False) -> int:
        """``cudaGraphInstantiate``. ``by_node_priority``: kernels have the priorities of the streams that they were
        recorded on, not that of the launch's."""
        flags = _USE_NODE_PRIORITY if by_node_priority else 0
        return int(self._ask(self.rt.cudaGraphInstantiate(self.rt.cudaGraph_t(g), flags), 'graphInstantiate'))

    def graph_upload(self, x: int, s: int) -> None:
        """``cudaGraphUpload``."""
        self._ask(self.rt.cudaGraphUpload(self.rt.cudaGraphExec_t(x), s), 'graphUpload')

    def graph_destroy(self, g: int) -> None:
        """``cudaGraphDestroy``."""
        self._ask(self.rt.cudaGraphDestroy(self.rt.cudaGraph_t(g)), 'graphDestroy')

    def graph_exec_destroy(self, x: int) -> None:
        """``cudaGraphExecDestroy``."""
        self._ask(self.rt.cudaGraphExecDestroy(self.rt.cudaGraphExec_t(x)), 'graphExecDestroy')

    def graph_dot(self, g: int, flags: int = 0) -> str:
        """``cudaGraphDebugDotPrint``."""
        import tempfile  # it imports much, and few definitions are written out

        handle, path = tempfile.mkstemp(suffix='.dot')
        os.close(handle)
        try:
            self._ask(
                self.rt.cudaGraphDebugDotPrint(self.rt.cudaGraph_t(g), path.encode(), flags),
                'graphDebugDotPrint',
            )
            with open(path) as f:
                return f.read()
        finally:
            os.remove(path)

    def graph_scalars(self, graphs: list[int]) -> list[tuple[str, int, str, Any]]:
        """Scalar arguments of CuPy's kernels in graphs: kernel, argument's number, dtype, value."""
        reader = self.reader
        if reader is None:
            return []
        kernels = [kernel for graph in graphs for kernel in reader.kernels(graph)[0]]
        return [(kernel.name, *scalar) for kernel in kernels for scalar in kernel.scalars()]

    def call_source(self) -> CallSource:
        """Return who tells of the process's calls to CUDA. Raises Untraceable where CUPTI can't be had."""
        from capturekit.driver.cupti_calls import cuda_calls  # only those who watch need it

        return cuda_calls()

    def mem_get_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = self._ask(self.rt.cudaMemGetInfo(), 'memGetInfo')
        return int(free), int(total)
