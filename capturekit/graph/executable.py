"""A recorded graph, which can be launched, uploaded, examined and closed. It can replace a ``cupy.cuda.Graph``.

CUDA C++ Programming Guide, "CUDA Graphs": a graph is a definition; an executable graph is launched, and never runs
twice at once: a launch waits, on the device, for the one before. ``cudaGraph_t`` is not thread-safe, so calls on
one graph take turns here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex

from capturekit import render  # noqa: F401 - how notebooks show a recording
from capturekit.analysis.concurrency import Concurrency, study
from capturekit.analysis.graph_diff import Update
from capturekit.analysis.node_view import Look, Node, fill
from capturekit.analysis.races import Races
from capturekit.analysis.verify import Verification, verify
from capturekit.driver.cuda import Platform
from capturekit.driver.kernel_args import encode
from capturekit.graph import edit
from capturekit.graph.extending import EXTENSIONS
from capturekit.graph.launching import LAUNCH, launch_of, plain_launch, upload
from capturekit.graph.state import GraphState, Owner, fits_device, is_array, must_be_whole, positive, three
from capturekit.graph.update import update
from capturekit.launch.executable_graph import close_at_end
from capturekit.launch.gate import Gate
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.host_function import HostFunction
from capturekit.launch.plan import Plan
from capturekit.model.counted import counted
from capturekit.model.counters import FIGURES
from capturekit.model.lease import Lease
from capturekit.model.recording import Recording, Timeline
from capturekit.model.source_line import here

if TYPE_CHECKING:
    from typing import Self

    from capturekit.fusion.report import Fused
    from capturekit.lanes.report import Relaned

#: The kinds of nodes that can be disabled.
_SWITCHED = ('kernel', 'memcpy', 'memset')
#: What to call instead of names that graphs have in other libraries.
_INSTEAD = {'replay': 'launch()', 'run': 'launch()', 'instantiate': 'launch(), which needs no more', 'reset': 'close()'}


class Graph:
    """The graph that a capture made. It has no public constructor: ``with ck.capture() as cap: ...`` makes
    ``cap.graph``.

    Holds the memory that its nodes read and write. Threads: calls take turns; streams: any of the graph's device.
    """

    __slots__ = {
        '__weakref__': None,
        '_state': None,
        'counted': 'how many of its launches ck.statistics(reset=True) has already reported',
        'launch': LAUNCH,
    }

    counted: int
    launch: Callable[..., None]
    _state: GraphState

    def __init__(self) -> None:
        raise TypeError('a Graph is made by a capture: `with ck.capture() as cap: ...`, then `cap.graph`')

    @classmethod
    def _make(
        cls,
        platform: Platform,
        made: Any,
        launch: Callable[[], None],
        memory: GraphMemory,
        lease: Lease,
        recording: Recording,
        gate: Gate,
        plan: Plan | None = None,
    ) -> Self:
        """Make a graph from what a capture recorded. ``launch`` launches it, or ``plan`` does so step by step.

        ``lease`` holds what the graph needs, and is handed over to it.
        """
        cuda = platform.cupy.cuda
        device, device_id, current = platform.device, cuda.Device().id, cuda.get_current_stream
        state = GraphState(device, device_id, current, gate, made, memory, lease.hand_over(), recording, plan)
        return cls._of(state, launch)

    @classmethod
    def _of(cls, state: GraphState, launch: Callable[[], None]) -> Self:
        """The graph that owns a state."""
        self = object.__new__(cls)
        self.counted = 0
        self.launch = launch_of(Owner(state), launch)
        self._state = state
        FIGURES.made(self)
        if state.memory.to_close:
            close_at_end(state)
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            instead = _INSTEAD.get(name)
            hint = '' if instead is None else f'; call {instead}'
            raise AttributeError(f'a Graph has no attribute {name!r}{hint}', name=name, obj=self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise TypeError(
            'a Graph has one owner, and lives in one process: graph.clone() makes a second graph of the same nodes'
        )

    @property
    def device_id(self) -> int:
        """The device the graph lives on."""
        return self._state.device_id

    @property
    def recording(self) -> Recording:
        """The :class:`Recording` of its capture."""
        return self._state.recording

    def upload(self, stream: Any = None) -> None:
        """Put the graph on the device before its first launch (``cudaGraphUpload``). Raises as :meth:`launch`."""
        upload(self._state, stream)

    def clone(self) -> Self:
        """Return a copy: a second executable graph of the same nodes (``cudaGraphClone``), which can be changed alone.

        Both read and write the same arrays. So you must order the launches of both, by one stream or an event, unless a
        change lets one of them write only to other memory. The memory is given back when both are closed. Nodes that
        are disabled here are disabled in the copy.

        Raises:
            UpdateError: the graph has conditional nodes, which CUDA does not copy, or is launched in several parts.
            ClosedError: the graph is closed.
        """
        from capturekit.graph.update import clone

        state = clone(self._state)
        return self._of(state, plain_launch(state))

    def constants(self) -> list[dict[str, Any]]:
        """List the values that came from the host and are the same at every launch.

        Uploaded arrays have ``'kind': 'upload'``, ``'at'`` (file, line, function) and ``'nbytes'``. On a GPU, scalars
        of CuPy's kernels have ``'kind': 'scalar'``, ``'kernel'``, ``'argument'``, ``'dtype'`` and ``'value'``.
        Reading the nodes takes some microseconds for each. Raises ClosedError on a closed graph.
        """
        state = self._state
        with state.lock:
            state.must_be_open('Graph.constants()')
            found: list[dict[str, Any]] = [
                {'kind': 'upload', 'text': step.text, 'at': step.at, 'nbytes': step.nbytes}
                for step in state.recording.constants
            ]
            graphs = [graph for part in state.parts() for graph in part.graphs]
            for name, number, dtype, value in state.device.graph_scalars(graphs):
                found.append({'kind': 'scalar', 'kernel': name, 'argument': number, 'dtype': dtype, 'value': value})
            return found

    @property
    def nodes(self) -> list[Node]:
        """Every node, in the order of recording: kind, name, line, lane, arguments.

        Each access asks the driver, which takes some microseconds for each node. Raises ClosedError on a closed graph.
        """
        return self._look('Graph.nodes').nodes

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The edges, as pairs (from, to) of nodes' numbers. Raises ClosedError on a closed graph."""
        return self._look('Graph.edges').edges

    def describe(self) -> Recording:
        """Write all nodes and edges into ``recording``, for saving and drawing, and return it.

        Raises ClosedError on a closed graph."""
        fill(self.recording, self._look('Graph.describe()'))
        return self.recording

    def verify(
        self,
        fn: Callable[..., Any],
        *args: Any,
        outputs: Any = None,
        values: Sequence[Sequence[Any]] | None = None,
        rounds: int = 3,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> Verification:
        """Launch with other inputs over poisoned memory, and compare with eager runs of ``fn``, to find constants.

        ``graph.verify(fn, x, w, outputs=y)`` for a graph that was recorded as ``y = fn(x, w)``. Each round fills the
        inputs with other values, writes over free memory of the graph, launches, runs ``fn`` on copies, launches again
        on the same inputs. ``print(report)`` names the outputs that stay the same, differ, or change on the second
        launch (as what draws from a ``cupy.random.Generator`` does), each with the lines where something came from the
        host. All arrays are put back as they were.

        Args:
            fn: the function that was recorded; it is run eagerly, once a round.
            args: its arguments; arrays among them, also in lists, tuples and dictionaries, must be those that the graph
                reads. Those that are changed in place are compared, too.
            outputs: the arrays that ``fn`` returned while it was recorded and that the graph writes, in the same order,
                shapes and dtypes. Leave it out if ``fn`` only changes arguments in place.
            values: for each round, the contents of the arrays among ``args``, in their order. None: random contents
                in the range of the present ones, made by :func:`capturekit.analysis.verify.changed`.
            rounds: how many rounds with other contents, after one with the present contents.
            rtol, atol: what counts as equal, as in ``numpy.allclose``. None: the square root of the dtype's precision,
                and for ``atol`` that times the largest element. Whole numbers and booleans must be the same.

        Raises:
            TypeError, ValueError: an argument is not as described; ``fn`` returns other arrays than ``outputs``.
            ClosedError: the graph was closed. UnmatchedError: this thread has a capture open.
            UnsupportedCallError: the graph belongs to a ``@graphed`` function, and only calls of that may launch it.
            Whatever ``fn`` raises on the inputs as they are.

        It works on CuPy's current stream and waits for it. No other thread may use the graph or the arrays meanwhile.
        """
        return verify(self, self._state, fn, args, outputs, values, rounds, rtol, atol, sys._getframe(1))

    def races(self, *, observe: bool = False) -> Races:
        """Find nodes that touch the same memory, at least one of them writing, with no path between them.

        ``print(graph.races())`` names, for each race, both nodes with their lines, the memory and the missing edge. A
        race is certain if both nodes are CuPy's kernels, copies or memsets, whose arguments show to the byte what they
        read and write. It is possible if only a kernel's author or a library knows that, or if elements are chosen as
        the kernel runs (``raw`` arguments, ``where=``, an ``if``). Memory behind textures and tables of addresses is
        not seen. Disabled nodes touch nothing. The search takes some 20 microseconds for each node.

        Args:
            observe: whether to find out which nodes write, by running such kernels alone, once each, after all nodes
                before them. Memory that does not change, while other memory does, is taken as only read, and listed in
                the report's ``notes``. Device memory is put back from a copy; host memory is not. On the simulated
                device the two orders of each pair are run as well: ``race.order`` is the one that differs.

        Raises:
            TypeError: ``observe`` is not a bool. ClosedError: the graph was closed.
            UnmatchedError: ``observe`` is True, and this thread has a capture open.

        With ``observe`` it works on CuPy's current stream and waits for it; launches on other streams must have ended,
        and no other thread may use the arrays.
        """
        from capturekit.analysis.race_report import check, races_of

        frame = sys._getframe(1)
        state = self._state
        check(state, observe, frame)
        with state.lock:
            state.must_be_open('Graph.races()')
            with state.relaxed(), state.memory.turn(state.current().ptr) if observe else nullcontext():
                return races_of(state, observe, frame)

    def measure(self, launches: int = 20, warmup: int = 3, by: Literal['profiler', 'events'] | None = None) -> Timeline:
        """Launch the graph, and again while its nodes are timed; return when each node ran.

        The answer is also ``recording.timeline``, and all nodes and edges are written into the recording, as by
        :meth:`describe`. Start and end of each node are medians, with what the measuring itself costs taken off.
        ``timeline.by`` says how they were measured:

        - 'profiler': NVIDIA's CUPTI timed the nodes (``pip install nvidia-cuda-cupti``; PyTorch brings it). Start and
          end are within 2 us or 3 % of what kernels measure themselves, whichever is more. On a lane that the rest does
          not wait for, each earlier node adds up to 0.3 us; with 32 lanes of short kernels single starts were 11 us
          off. CUPTI keeps about half a megabyte of device memory each time. Only CUPTI, which has one clock for all
          devices, can measure a graph of several.
        - 'events': a copy of the graph with an event before and after each node. A node's duration includes the two to
          three microseconds in which it is started and ended, and lanes of many short nodes look less parallel than
          they are. Edges that let a kernel begin before another one ends become ordinary edges.
        - 'model': the simulated device computes the times. ``timeline.source`` says, too, that nothing was measured.

        The graph runs ``2 * (launches + warmup) + 1`` times, or more often if the profiler fails, which the note says:
        so often are arrays changed that it changes in place.

        Args:
            launches: the number of launches of each kind that the medians are taken of. warmup: how many come first.
            by: 'profiler' or 'events': use only this one. None: the profiler if it is available and there are no other
                threads, else events; ``timeline.note`` then says why. With other threads, 'profiler' is safe as long as
                none of them uses the device: CUPTI must not be detached while one does.

        Raises:
            TypeError, ValueError: an argument is not as described. UnmatchedError: this thread has a capture open.
            UpdateError: the graph can't be copied: it has conditional or memory nodes, is launched in several parts, or
                CUDA refuses. The profiler was asked for, or is needed for several devices, and can't be had.
            ClosedError: it is closed. What :meth:`launch` raises. Then the recording is as it was.

        It works on CuPy's current stream and waits for it, and takes some microseconds for each node and launch besides
        the launches. Threads: other measurements wait for it; other work on the device makes times longer. Do not call
        it while another profiler that uses CUPTI (``torch.profiler``) is active: CUPTI serves one at a time. CUDA
        Driver API, "Graph Management"; CUPTI User's Guide.
        """
        from capturekit.graph.measure import measure

        return measure(self._state, self.launch, launches, warmup, by)

    def concurrency(self, timeline: Timeline | None = None) -> Concurrency:
        """Report whether lanes overlap, how much they could, and what hinders them: ``print(graph.concurrency())``.

        Args:
            timeline: from :meth:`measure`. None: the one in ``recording.timeline``, else it is measured now, which
                launches the graph.

        Raises:
            TypeError, ValueError: ``timeline`` is not a Timeline, or belongs to another graph. What :meth:`measure`
            raises, if it has to measure.

        Threads: calls take turns. A call takes some milliseconds for each hundred nodes.
        """
        if timeline is not None and not isinstance(timeline, Timeline):
            raise TypeError(f'timeline comes from graph.measure(), got {type(timeline).__name__}')
        found, state = timeline or self.recording.timeline or self.measure(), self._state
        with state.lock:
            must_be_whole(state, 'Graph.concurrency()')
            with state.relaxed():
                look = state.look()
                if len(look.nodes) != len(found.nodes):
                    size = f'{counted(len(found.nodes), "node")}, and the graph has {len(look.nodes)}'
                    raise ValueError(f'the timeline is of another graph: it has {size}')
                return study(state, look, found)

    def show(self, path: str | os.PathLike[str] | None = None) -> None:
        """Show the graph with all its nodes: in a notebook as a page, on a terminal as text; or write it to a file.

        ``path`` is that of :meth:`Recording.show <capturekit.Recording.show>`. For a closed graph it shows what the
        recording has.
        """
        self._shown().show(path)

    def svg(self) -> str:
        """The graph with all its nodes, as an SVG document."""
        return self._shown().svg()

    def _shown(self) -> Recording:
        return self.recording if self.closed else self.describe()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self._shown()._repr_mimebundle_(include, exclude)

    def _look(self, call: str) -> Look:
        with self._state.lock:
            self._state.must_be_open(call)
            return self._state.look()

    def debug_dot_str(self, flags: int = 0) -> str:
        """Return the graph in DOT (``cudaGraphDebugDotPrint``). Raises ClosedError on a closed graph, and TypeError and
        ValueError for flags that are none."""
        state, flags = self._state, positive('flags', flags, 0)
        with state.lock:
            state.must_be_open('Graph.debug_dot_str()')
            parts = [state.made.graph] if state.plan is None else [p.graph for p in state.plan.parts]
            return ''.join(str(state.device.graph_dot(part, flags)) for part in parts)

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
            does not fit. ClosedError: the graph is closed. If it raises, nothing has changed; or the change has ended
            halfway, and the graph is closed, which the exception says. Launches that have begun are not affected;
            later ones do what was set.
        """
        if args is not None and not isinstance(args, Mapping):
            raise TypeError(f'args must be a mapping of numbers to arguments, got {type(args).__name__}')
        state = self._state
        with edit.changing(state, 'Graph.set_kernel()', node, 'kernel') as at:
            detail, g = at.info.detail, state.made.graph
            now = state.device.node_arguments(g, at.handle)
            data = [argument.data for argument in now]
            for number, value in (args or {}).items():
                if not isinstance(number, int) or not 0 <= number < len(data):
                    has = counted(len(data), 'argument')
                    raise IndexError(f'the kernel has {has}, and none has the number {number!r}')
                fits_device(state, value)
                try:
                    data[number] = encode(now[number], value, is_array)
                except (TypeError, ValueError) as error:
                    raise type(error)(f'argument {number}: {error}') from None
            shape = [
                tuple(detail.get(name, (1, 1, 1))) if value is None else three(name, value)
                for name, value in (('grid', grid), ('block', block))
            ]
            nbytes = detail.get('shared', 0) if shared is None else positive('shared', shared, 0)
            arrays = [value for value in (args or {}).values() if is_array(value)]
            edit.apply(state, at, lambda: state.device.set_kernel(g, at.handle, *shape, nbytes, data), arrays)

    def set_memcpy(self, node: Node | int, *, dst: Any = None, src: Any = None, nbytes: int | None = None) -> None:
        """Give a copy node another source, destination or size (``cudaGraphExecMemcpyNodeSetParams1D``).

        Args:
            node: one of ``graph.nodes``, or its number. What is not named stays.
            dst, src: a C-contiguous CuPy or NumPy array, which the graph keeps; or an address. Host memory can only
                be replaced by host memory, and device memory by device memory.
            nbytes: the number of bytes to copy; the arrays must be as large.

        Raises as :meth:`set_kernel`.
        """
        state = self._state
        with edit.changing(state, 'Graph.set_memcpy()', node, 'memcpy') as at:
            size = at.info.detail['bytes'] if nbytes is None else positive('nbytes', nbytes, 1)
            ends = [edit.address(state, name, value, size, at) for name, value in (('dst', dst), ('src', src))]
            g = state.made.graph
            edit.apply(state, at, lambda: state.device.set_memcpy(g, at.handle, *ends, size), [dst, src])

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
        state = self._state
        with edit.changing(state, 'Graph.set_memset()', node, 'memset') as at:
            size = at.info.detail['bytes'] if nbytes is None else positive('nbytes', nbytes, 1)
            now = at.info.detail['value'] if value is None else positive('value', value, 0)
            if now >= 1 << 32:
                raise ValueError(f'value must fit into 32 bits, got {now}')
            to, g = edit.address(state, 'dst', dst, size, at), state.made.graph
            edit.apply(state, at, lambda: state.device.set_memset(g, at.handle, to, now, size), [dst])

    def set_host(self, node: Node | int, fn: Callable[[Any], Any], arg: Any = None) -> None:
        """Let a host node call ``fn(arg)`` (``cudaGraphExecHostNodeSetParams``). CUDA calls it in its own thread, where
        it must not call CUDA. The graph keeps both. Raises as :meth:`set_kernel`."""
        if not callable(fn):
            raise TypeError(f'set_host() takes a function, got {type(fn).__name__}')
        state = self._state
        with edit.changing(state, 'Graph.set_host()', node, 'host') as at:
            host, g = HostFunction(fn, here(), 'graph.launch()'), state.made.graph
            edit.apply(state, at, lambda: state.device.set_host(g, at.handle, lambda: host(arg)), [])

    def set_event(self, node: Node | int, event: Any) -> None:
        """Let an event node record, or wait for, another CuPy event, which the graph keeps
        (``cudaGraphExecEventRecordNodeSetEvent``, ``cudaGraphExecEventWaitNodeSetEvent``). Raises as
        :meth:`set_kernel`."""
        ptr = getattr(event, 'ptr', None)
        if not isinstance(ptr, int):
            raise TypeError(f'set_event() takes a CuPy event, got {type(event).__name__}')
        state = self._state
        with edit.changing(state, 'Graph.set_event()', node, 'event record', 'wait event') as at:
            g = state.made.graph
            edit.apply(state, at, lambda: state.device.set_event(g, at.handle, ptr), [event])

    def set_child(self, node: Node | int, other: Graph) -> None:
        """Let a child graph node run what ``other`` runs now (``cudaGraphExecChildGraphNodeSetParams``).

        ``other`` must have the same nodes and edges, in the same order, as the present child graph. It stays as it is
        and may be closed: this graph keeps what the nodes use. Priorities of its lanes count only if this graph uses
        those of its own lanes. Raises as :meth:`set_kernel`.
        """
        edit.set_child(self._state, node, _state_of(other, 'set_child()'))

    def disable(self, node: Node | int) -> None:
        """Let a kernel, a memset or a copy do nothing at launches until :meth:`enable` (``cudaGraphNodeSetEnabled``).

        Its place in the order stays. Raises as :meth:`set_kernel`.
        """
        with edit.changing(self._state, 'Graph.disable()', node, *_SWITCHED) as at:
            edit.switch(self._state, at, False)

    def enable(self, node: Node | int) -> None:
        """Let a node that was disabled run again, with the parameters that it has now. Raises as :meth:`set_kernel`."""
        with edit.changing(self._state, 'Graph.enable()', node, *_SWITCHED) as at:
            edit.switch(self._state, at, True)

    def enabled(self, node: Node | int) -> bool:
        """False for a node that :meth:`disable` was called for. Raises IndexError, TypeError and ClosedError."""
        with edit.changing(self._state, 'Graph.enabled()', node) as at:
            return at.number not in self._state.names.off

    # -- the whole graph ----------------------------------------------------------------------------------------

    def rebind(self, *pairs: tuple[Any, Any]) -> int:
        """Let every node that reads or writes the first array of a pair use the second; return how many were changed.

        ``graph.rebind((x, new_x), (y, new_y))``. Views are replaced as well: an address in the old array's memory
        becomes the one at the same offset in the new array. Both arrays must have the same shape, dtype and strides,
        and lie on the graph's device. Two arrays may change places. The graph keeps the new arrays, and drops those
        that an earlier call had put in their place. Either all nodes are changed or none; launches that have begun are
        not affected. The first call reads all nodes; later calls take some microseconds for each node that is changed.
        In a kernel of your own, an argument that could be an address inside the array is taken for one; in other
        kernels' structures, so is any word.

        Raises:
            TypeError: the arguments are not pairs of arrays. ValueError: they do not fit, no node uses an old one, or
                the new ones overlap each other or what else the graph uses.
            UpdateError: a node that uses the old array can't be changed: a child graph's, a conditional body's, a
                library's kernel whose arguments hide addresses, or one whose larger temporary array lay there before.
            ClosedError: the graph is closed.
        """
        from capturekit.graph.rebind import rebind

        return rebind(self._state, pairs)

    def update(self, other: Graph, *, instantiate: bool = False) -> Update:
        """Let the next launches do what ``other`` does, by updating this graph in place (``cudaGraphExecUpdate``).

        CUDA can do so if ``other`` has as many nodes of the same kinds with the same edges, recorded in the same order,
        and if both use the priorities of their lanes or neither does; kernels and nearly all parameters may differ.
        ``other`` is closed, and what it held (memory, arrays, host functions, its recording) belongs to this graph.
        What this graph held before is given back; arrays that still lie there keep their memory. If there is memory to
        give back, the call waits for launches that have begun.

        Args:
            other: another recording, of the same device.
            instantiate: True: if CUDA refuses, make a new executable graph instead of raising.

        Returns an :class:`Update`: ``how`` ('updated' or 'instantiated'), ``why``, ``seconds``, ``differences`` (up to
        1,000 nodes).

        Raises:
            UpdateError: CUDA refuses, and says why as a difference of the two graphs; or one of them is launched in
                several parts. Both graphs are as they were.
            TypeError: ``other`` is not a graph. ValueError: it is this one, or lives on another device.
            ClosedError: one of the two is closed.
        """
        return update(self._state, _state_of(other, 'update()'), instantiate)

    def relane(self, *, report: bool = False, rounds: int = 0) -> Relaned:
        """Let the graph have the edges that its data needs, and no others; ``print(graph.relane())`` tells which.

        A read comes after the write before it, a write after the reads and the write before it, to the byte. A node
        keeps its order with all others where it is not known what it touches: kernels of your own, kernels of libraries
        whose call is not understood, and host functions, unless :func:`reads` and :func:`writes` say it; conditional
        nodes and nodes for events. Nodes that were recorded in no order stay in none, if no lanes are chosen for them
        (``rounds``). Each body of a conditional node is treated by itself.

        The graph stays as it was recorded, and ``kept`` has the reason, where its data needs the whole order, where it
        is launched in several parts, where CUDA refuses, where :meth:`races` would find something new, and where it has
        more than 32,768 nodes. The first
        launch runs the graph with the old edges as well, compares all that both wrote, byte by byte, and waits for
        this; where they differ, the graph gets its old edges again, with a RuntimeWarning. ``compared`` tells the
        outcome, or why a launch can not be compared: host functions, checks of host reads and conditional nodes would
        act twice, and sums of CUB's scans differ from launch to launch. Copies of what the graph writes take memory for
        that one launch.

        Nodes keep their numbers; ``graphExec`` is another one afterwards. Changes of nodes, :meth:`rebind` and
        :meth:`update` compute the order again, from the edges as recorded.

        Args:
            report: True: only tell what would be done.
            rounds: how often each order is timed, in turn, after one round that does not count; 0: not at all. The
                orders are: as recorded; as the data needs it; the same with all first nodes behind one of them; and on
                2, 4, 8, 16 and 32 lanes, as far as so many nodes may run at once. Its memory is put back from a copy
                before each row of 4 to 25 launches and at the end, so fill its inputs first. The graph keeps the
                fastest order whose upper quartile is below the lower quartile of the recorded one, and the recorded one
                where there is none; temporaries (of ``lanes='auto'``) are packed for it. ``times`` has the figures. A
                graph that can not be launched twice with the same effect is not timed, and ``untimed`` tells why. On
                the simulated device times come from a model.

        Raises:
            TypeError, ValueError: ``report`` is not a bool, ``rounds`` not a whole number of 0 or more; or both are
                asked for. ClosedError: the graph was closed. UpdateError: the graph of a ``@graphed`` function.
            UnmatchedError: ``rounds`` is not 0, and this thread has a capture open.

        Threads: calls take turns. Nothing is launched, and launches under way are not affected; but with ``rounds`` it
        works on CuPy's current stream and waits for it, launches on other streams must have ended, and no other thread
        may use the arrays. Some 200 microseconds for each node.
        """
        return EXTENSIONS.relane(self._state, self.launch, report, rounds)

    def fuse(self, how: Literal['exact', 'fast'] = 'exact', *, report: bool = False) -> Fused:
        """Let runs of elementwise kernels become one kernel each; ``print(graph.fuse())`` tells which, and why not.

        A run is several of CuPy's elementwise kernels (ufuncs, ``ElementwiseKernel``, ``where``, ``clip``, casts,
        copies) that follow each other and work on as many elements, of any shapes, strides and dtypes. Values go from
        one to the next in registers, and temporary arrays that nobody can see any more are not written. Each operation
        keeps its own code, dtypes and rounding, so that every bit is the same as without. Other kernels, events, lanes
        that meet, conditional nodes and child graphs end a run. CuPy's own reductions compute what they read and work
        on their results. Nodes whose results nobody reads are taken out, and equal nodes run once.

        The graph stays as it was recorded, and ``kept`` has the reason, where nothing can be fused, where it is
        launched in several parts or was relaned, and where CUDA or the compiler refuses. The first launch is compared
        with the graph as recorded, as that of :meth:`relane` is, and ``compared`` tells the outcome.

        A fused kernel has the number and the line of its last node; ``node.inner`` are the nodes that it replaces.
        ``graphExec`` is another one afterwards. A second call returns the same report.

        With ``how='fast'`` results may be rounded otherwise: the compiler makes products and sums one instruction,
        operations that add products are fused, too (kernels of ``cupy.fuse``, products of complex numbers, ``hypot``),
        and so are sums, products, minima and maxima of rows that lie in one piece, in another order of sums. Nothing is
        less accurate than such rounding makes it. The first launch then lets numbers differ by a tolerance: 1e-12 for
        float64, 1e-5 for float32, 1e-2 for float16, 4e-2 for bfloat16, as a part of the number plus the mean size of
        the numbers in its array; for complex numbers part by part. Whole numbers and truth values have to be the same.

        Args:
            how: ``'exact'`` keeps every bit; ``'fast'`` does not.
            report: True: only tell what would be done.

        Raises:
            TypeError: ``report`` is not a bool. ValueError: ``how`` is something else. ClosedError: the graph was
                closed.
            UpdateError: the graph of a ``@graphed`` function: write ``@ck.graphed(fuse=True)``; or it has been fused
                in the other way.

        Threads: calls take turns. Streams: nothing is launched; launches under way are not affected. The compiler takes
        some 100 milliseconds for each kernel that CuPy's cache on disk does not have yet.
        """
        return EXTENSIONS.fuse(self._state, self.launch, how, report)

    # -- what it holds ----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._state.made is None

    @property
    def graph(self) -> int:
        """The ``cudaGraph_t`` as an int (of the first part, if there are several); 0 when closed."""
        made = self._state.made
        return 0 if made is None else made.graph

    @property
    def graphExec(self) -> int:
        """The ``cudaGraphExec_t`` as an int (of the first part, if there are several); 0 when closed."""
        made = self._state.made
        return 0 if made is None else made.graphExec

    @property
    def launches(self) -> int:
        """How often the graph was launched so far, by :meth:`launch` or by calls of a ``@graphed`` function."""
        state = self._state
        return state.quick() + state.by_name + (0 if state.plan is None else state.plan.launches)

    @property
    def memory_bytes(self) -> int:
        """Bytes of device memory held for the graph alone. What it shares with others, its :class:`MemoryGroup` has."""
        return self._state.memory.used_bytes()

    def close(self) -> None:
        """Destroy the graph and give its memory back. A second call is no error. Launches under way finish first.

        Giving the memory back waits for the device: call it outside of captures.
        """
        self._state.close()

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, '_state', None) is not None and not _finalizing():
            FIGURES.gone(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        sizes = f'{counted(self.recording.node_count, "node")}, {counted(len(self.recording.lanes), "lane")}'
        state = 'closed' if self.closed else sizes
        return f'<capturekit.Graph {state}>'


def _state_of(other: Any, call: str) -> GraphState:
    """The state of another graph that is given to a call."""
    if not isinstance(other, Graph):
        raise TypeError(f'{call} takes another capturekit.Graph, got {type(other).__name__}')
    return other._state
