"""A recorded graph, which can be launched, uploaded, examined and closed. It can replace a ``cupy.cuda.Graph``.

CUDA C++ Programming Guide, "CUDA Graphs": a graph is a definition; an executable graph is launched, and never runs
twice at once: a launch waits, on the device, for the one before. ``cudaGraph_t`` is not thread-safe, so calls on
one graph take turns here.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from capturekit import render  # noqa: F401 - how notebooks show a recording
from capturekit.analysis.concurrency import Concurrency, study
from capturekit.analysis.node_view import Look, Node, fill
from capturekit.analysis.race_report import check, races_of
from capturekit.analysis.races import Races
from capturekit.analysis.verify import Verification, verify
from capturekit.driver.cuda import Platform, stream_handle
from capturekit.graph.closed import closed, refuse_launch
from capturekit.graph.edit import Lent, NodeNames
from capturekit.graph.in_turn import InTurn
from capturekit.graph.measure import Measurable
from capturekit.launch.at_exit import close_at_end
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Part, Plan
from capturekit.model.counted import counted
from capturekit.model.counters import FIGURES
from capturekit.model.errors import AssumptionError
from capturekit.model.lease import Lease
from capturekit.model.ledger import Ledger
from capturekit.model.recording import Recording, Timeline
from capturekit.model.rules import Mode

_LAUNCH = """Launch on ``stream`` (a CuPy stream or any object with ``__cuda_stream__``), or CuPy's current one.

Asynchronous: the call returns at once; but a graph recorded with a rehearsal waits for its checks, and one with seams
for what they wait for.

Raises:
    ClosedError: the graph was closed.
    AssumptionError: a value that was assumed while recording is different now; nothing after it has run.
    TypeError: ``stream`` is not a stream. ValueError: it belongs to another device.
    UnsupportedCallError: the stream is being captured (900).
    EscapedWorkError, LegacyStreamError: this thread has a capture open, and the stream is not in it.
"""


class Graph(InTurn, Measurable):
    """The graph that a capture made. It has no public constructor: ``with ck.capture() as cap: ...`` makes
    ``cap.graph``.

    Holds the memory that its nodes read and write. Threads: calls take turns; streams: any of the graph's device.
    """

    __slots__ = {
        '__weakref__': None,
        '_before': None,
        '_by_name': None,
        '_counted': None,
        '_current': None,
        '_declared': None,
        '_device': None,
        '_fused': None,
        '_index': None,
        '_inside': None,
        '_lease': None,
        '_lock': None,
        '_made': None,
        '_memory': None,
        '_names': None,
        '_new_edges': None,
        '_plan': None,
        '_shut': None,
        '_topology': None,
        'counted': 'how many of its launches ck.statistics(reset=True) has already reported',
        'device_id': 'the device the graph lives on',
        'launch': _LAUNCH,
        'recording': 'the Recording of its capture',
    }

    _counted: Callable[[], int]
    counted: int
    launch: Callable[..., None]

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
        topology: Ledger,
        before: Callable[[bool, int], None],
        inside: Callable[[], AbstractContextManager[None]],
        plan: Plan | None = None,
    ) -> Graph:
        """Make a graph from what a capture recorded. ``launch`` launches it, or ``plan`` does so step by step.

        ``lease`` holds what the graph needs, and is handed over to it.
        """
        self = object.__new__(cls)
        self._device = platform.device
        self._made = None
        self._lock = threading.Lock()
        self._memory = memory
        self._current = platform.cupy.cuda.get_current_stream
        self._topology = topology
        self._before = before
        self._inside = inside
        self.device_id = platform.cupy.cuda.Device().id
        self.recording = recording
        self._plan = plan
        self._by_name = self.counted = 0
        self._names = NodeNames()
        self._index = self._new_edges = self._fused = None
        self._declared = {}
        self._counted = lambda: 0
        self.launch, self._shut = self._launcher(launch) if plan is None or plan.plain else self._planned()
        self._made = made
        self._lease = lease.hand_over()
        FIGURES.made(self)
        if memory.to_close:
            close_at_end(self)
        return self

    def _launcher(self, launch: Callable[[], None]) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the function behind ``graph.launch`` and one that shuts it. All that the first needs is bound to it,
        because it is called very often, but it must not keep the graph alive. It takes a lock only if there is another
        thread, because a lock would cost an eighth of a launch."""
        captures, threads = self._topology.captures, _thread._count
        graph = weakref.ref(self)
        launches, current = 0, self._current
        turns = self._memory.turns[0] if self._memory.turns else None
        launch = self._memory.in_turn(launch, turns)

        def fast(stream: Any = None) -> None:
            nonlocal launches
            if stream is not None or captures or threads() or (turns is not None and turns.last is not current()):
                on_stream(stream)
                return
            launch()
            launches += 1

        def on_stream(stream: Any) -> None:
            found = graph()
            if found is None:
                raise closed('Graph.launch()')
            found._launch_on(stream)

        def shut(to: Callable[[], None] = refuse_launch) -> None:
            nonlocal launch
            found = graph()
            launch = to if to is refuse_launch or found is None else found._memory.in_turn(to, turns)

        self._counted = lambda: launches
        fast.__name__, fast.__qualname__, fast.__doc__ = 'launch', 'Graph.launch', _LAUNCH
        return fast, shut

    def _planned(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """The same for a graph that is launched by a plan."""
        graph = weakref.ref(self)

        def launch(stream: Any = None) -> None:
            found = graph()
            if found is None:
                raise closed('Graph.launch()')
            found._follow_plan(stream)

        launch.__name__, launch.__qualname__, launch.__doc__ = 'launch', 'Graph.launch', _LAUNCH
        return launch, lambda: None

    def _follow_plan(self, stream: Any) -> None:
        current = self._current()
        ptr = current.ptr if stream is None else self._checked(stream)
        if self._made is None or self._plan is None:
            raise closed('Graph.launch()')
        if self._topology.captures:
            self._before(False, ptr)
        with self._lock:
            if self._made is None:
                raise closed('Graph.launch()')
            with self._inside():
                try:
                    if ptr == current.ptr:
                        self._plan.run()
                    else:
                        self._plan.run_on(ptr)
                except AssumptionError as error:
                    error.recording = self.recording
                    raise

    def _launch_on(self, stream: Any = None) -> None:
        ptr = self._current().ptr if stream is None else self._checked(stream)
        if self._made is None:
            raise closed('Graph.launch()')
        if self._topology.captures:
            self._before(False, ptr)
        with self._lock:
            if self._made is None:
                raise closed('Graph.launch()')
            self._start(ptr)
            self._by_name += 1

    def _checked(self, stream: Any) -> int:
        device_id = getattr(stream, 'device_id', -1)
        if isinstance(device_id, int) and device_id not in (-1, self.device_id, *self.recording.devices):
            raise ValueError(f'the graph lives on device {self.device_id}, the stream on device {device_id}')
        return stream_handle(stream)

    def upload(self, stream: Any = None) -> None:
        """Put the graph on the device before its first launch (``cudaGraphUpload``). Raises as :meth:`launch`."""
        ptr = self._current().ptr if stream is None else self._checked(stream)
        if self._topology.captures:
            self._before(True, ptr)
        with self._lock:
            if self._made is None:
                raise closed('Graph.upload()')
            plan = self._plan
            parts = [self._made.graphExec] if plan is None or plan.plain else [p.executable for p in plan.parts]
            for executable in parts:
                self._device.graph_upload(executable, ptr)

    def constants(self) -> list[dict[str, Any]]:
        """List the values that came from the host and are the same at every launch.

        Uploaded arrays have ``'kind': 'upload'``, ``'at'`` (file, line, function) and ``'nbytes'``. On a GPU, scalars
        of CuPy's kernels have ``'kind': 'scalar'``, ``'kernel'``, ``'argument'``, ``'dtype'`` and ``'value'``.
        Reading the nodes takes some microseconds for each. Raises ClosedError on a closed graph.
        """
        with self._lock:
            if self._made is None:
                raise closed('Graph.constants()')
            found: list[dict[str, Any]] = [
                {'kind': 'upload', 'text': step.text, 'at': step.at, 'nbytes': step.nbytes}
                for step in self.recording.constants
            ]
            graphs = [graph for part in self._parts() for graph in part.graphs]
            for name, number, dtype, value in self._device.graph_scalars(graphs):
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
        """Launch with other inputs over poisoned memory, and compare with eager runs of ``fn``: find what was baked in.

        ``graph.verify(fn, x, w, outputs=y)`` for a graph that was recorded as ``y = fn(x, w)``. Each round fills the
        inputs with other values, writes over memory that lies free, launches, runs ``fn`` on copies, and launches again
        on the same inputs. ``print(report)`` names the outputs that stay the same, differ, or change on the second
        launch, each with the lines where something came from the host. All arrays are put back as they were. A graph
        that draws from a ``cupy.random.Generator`` changes at every launch, and the report says so.

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

        It works on CuPy's current stream and waits for it. Threads: no other thread may use the graph or the arrays
        during the call.
        """
        return verify(self, fn, args, outputs, values, rounds, rtol, atol, sys._getframe(1))

    def races(self, *, observe: bool = False) -> Races:
        """Find nodes that touch the same memory, at least one of them writing, with no path between them.

        ``print(graph.races())`` names, for each race, both nodes with their lines, the memory and the missing edge. A
        race is certain if both nodes are CuPy's kernels, copies or memsets, whose arguments show to the byte what they
        read and write. It is possible if only a kernel's author or a library knows that, or if elements are chosen as
        the kernel runs: ``raw`` arguments, ``where=``, an ``if`` in an elementwise kernel. Memory that is reached
        through textures and tables of addresses is not seen. Disabled nodes touch nothing. The search takes some
        20 microseconds for each node.

        Args:
            observe: whether to find out which nodes write, by running such kernels alone, once each, after all nodes
                before them. Memory that changes was written. Memory that does not change, while other memory does, is
                taken as only read, and listed in the report's ``notes``. Device memory is put back from a copy of the
                same size; host memory is not. This finds most before the first launch, when memory holds no results
                yet. On the simulated device the two orders of each pair are run as well, and ``race.order`` is the one
                that gives a different result.

        Raises:
            TypeError: ``observe`` is not a bool. ClosedError: the graph was closed.
            UnmatchedError: ``observe`` is True, and this thread has a capture open.

        With ``observe`` it works on CuPy's current stream and waits for it; launches on other streams must have ended.
        Threads: no other thread may use the arrays during the call.
        """
        frame = sys._getframe(1)
        check(observe, frame)
        with self._lock:
            if self._made is None:
                raise closed('Graph.races()')
            with self._relaxed(), self._memory.turn(self._current().ptr) if observe else nullcontext():
                return races_of(self, self._parts(), self._look_in(), observe, frame)

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
        found = timeline or self.recording.timeline or self.measure()
        with self._lock:
            self._must_be_whole('Graph.concurrency()')
            with self._relaxed():
                look = self._look_in()
                if len(look.nodes) != len(found.nodes):
                    size = f'{counted(len(found.nodes), "node")}, and the graph has {len(look.nodes)}'
                    raise ValueError(f'the timeline is of another graph: it has {size}')
                return study(self, self._parts()[0], look, found)

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
        with self._lock:
            if self._made is None:
                raise closed(call)
            return self._look_in()

    def _look_in(self) -> Look:
        return self._with_members(Look(self._device, self._parts(), self.recording.spans, self._memory))

    def _parts(self) -> list[Part]:
        return [Part(self._made.graph)] if self._plan is None else self._plan.parts

    def debug_dot_str(self, flags: int = 0) -> str:
        """Return the graph in DOT (``cudaGraphDebugDotPrint``). Raises ClosedError on a closed graph."""
        with self._lock:
            if self._made is None:
                raise closed('Graph.debug_dot_str()')
            parts = [self._made.graph] if self._plan is None else [p.graph for p in self._plan.parts]
            return ''.join(str(self._device.graph_dot(part, flags)) for part in parts)

    def _lend(self, memory: GraphMemory) -> None:
        """Let ``memory``, another graph's, keep what this graph's nodes use: that graph holds a copy of this one."""
        with self._lock:
            if self._made is None:
                raise closed('Capture.embed()')
            memory.keep(Lent(self._memory, self._made))
            memory.join_turns(self._memory)
            memory.to_close |= self._memory.to_close

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._made is None

    @property
    def graph(self) -> int:
        """The ``cudaGraph_t`` as an int (of the first part, if there are several); 0 when closed."""
        made = self._made
        return 0 if made is None else made.graph

    @property
    def graphExec(self) -> int:
        """The ``cudaGraphExec_t`` as an int (of the first part, if there are several); 0 when closed."""
        made = self._made
        return 0 if made is None else made.graphExec

    @property
    def launches(self) -> int:
        """How often the graph was launched so far, by :meth:`launch` or by calls of a ``@graphed`` function."""
        return self._counted() + self._by_name + (0 if self._plan is None else self._plan.launches)

    @property
    def memory_bytes(self) -> int:
        """Bytes of device memory held for the graph alone. What it shares with others, its :class:`MemoryGroup` has."""
        return self._memory.used_bytes()

    def close(self) -> None:
        """Destroy the graph and give its memory back. A second call is no error. Launches under way finish first.

        Giving the memory back waits for the device: call it outside of captures.
        """
        with self._lock:
            if self._made is not None:
                self._destroy()

    def _destroy(self) -> None:
        """Give back all that the graph holds, in a thread mode that harms no open capture."""
        self._shut()
        old = self._device.exchange_thread_mode(Mode.RELAXED)
        try:
            self._made = self._new_edges = self._fused = None
            with self._inside(), self._lease:
                if self._plan is not None:
                    self._plan.close()
                if not self._memory.private and not self._topology.captures:
                    self._device.device_synchronize()  # a launch may be under way, and others use the pool
        finally:
            self._device.exchange_thread_mode(old)

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing() and getattr(self, '_made', None) is not None:
            self._destroy()
        if not _finalizing() and getattr(self, 'launch', None) is not None:
            FIGURES.gone(self)

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        sizes = f'{counted(self.recording.node_count, "node")}, {counted(len(self.recording.lanes), "lane")}'
        state = 'closed' if self.closed else sizes
        return f'<capturekit.Graph {state}>'
