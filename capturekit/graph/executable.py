"""A recorded graph, which can be launched, uploaded, examined and closed. It can replace a ``cupy.cuda.Graph``.

CUDA C++ Programming Guide, "CUDA Graphs": a graph is a definition; an executable graph is launched, and never runs
twice at once: a launch waits, on the device, for the one before. ``cudaGraph_t`` is not thread-safe, so calls on
one graph take turns here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex

from capturekit import render  # noqa: F401 - how notebooks show a recording
from capturekit.analysis.concurrency import Concurrency, study
from capturekit.analysis.node_view import Look, Node, fill
from capturekit.analysis.races import Races
from capturekit.analysis.verify import Verification, verify
from capturekit.driver.cuda import Platform
from capturekit.graph.changeable import Changeable
from capturekit.graph.given import positive
from capturekit.graph.launching import LAUNCH, launch_of, plain_launch, upload
from capturekit.graph.state import GraphState, Owner
from capturekit.graph.whole import must_be_whole
from capturekit.launch.at_exit import close_at_end
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Plan
from capturekit.model.counted import counted
from capturekit.model.counters import FIGURES
from capturekit.model.lease import Lease
from capturekit.model.ledger import Ledger
from capturekit.model.recording import Recording, Timeline

if TYPE_CHECKING:
    from typing import Self


#: What to call instead of names that graphs have in other libraries.
_INSTEAD = {'replay': 'launch()', 'run': 'launch()', 'instantiate': 'launch(), which needs no more', 'reset': 'close()'}


class Graph(Changeable):
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
    ) -> Self:
        """Make a graph from what a capture recorded. ``launch`` launches it, or ``plan`` does so step by step.

        ``lease`` holds what the graph needs, and is handed over to it.
        """
        cuda = platform.cupy.cuda
        device, device_id, current = platform.device, cuda.Device().id, cuda.get_current_stream
        state = GraphState(
            device, device_id, current, topology, before, inside, made, memory, lease.hand_over(), recording, plan
        )
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
        from capturekit.graph.clone import clone

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
        return verify(self, self._state, fn, args, outputs, values, rounds, rtol, atol, sys._getframe(1))

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
        from capturekit.analysis.race_report import check, races_of

        frame = sys._getframe(1)
        check(observe, frame)
        state = self._state
        with state.lock:
            state.must_be_open('Graph.races()')
            with state.relaxed(), state.memory.turn(state.current().ptr) if observe else nullcontext():
                return races_of(state, observe, frame)

    def measure(self, launches: int = 20, warmup: int = 3, by: Literal['profiler', 'events'] | None = None) -> Timeline:
        """Launch the graph, and again while its nodes are timed; return when each node ran.

        The answer is also ``recording.timeline``, and all nodes and edges are written into the recording, as by
        :meth:`describe`, so that the recording can be drawn and saved with it. Start and end of each node are medians,
        with what the measuring itself costs taken off. ``timeline.by`` says how they were measured:

        - 'profiler': NVIDIA's CUPTI timed the nodes (``pip install nvidia-cuda-cupti``; PyTorch brings it). Start and
          end are within 2 us or 3 % of what kernels measure themselves, whichever is more. On a lane that the rest does
          not wait for, each earlier node adds up to 0.3 us; with 32 lanes of short kernels single starts were 11 us
          off. CUPTI keeps about half a megabyte of device memory each time. Only CUPTI can measure a graph of several
          devices, because it has one clock for all (on two H200, nodes in a row never seemed to overlap).
        - 'events': a copy of the graph with an event before and after each node. The duration of a node includes two
          to three microseconds for starting and ending it, and lanes of many short nodes look less parallel than they
          are.
        - 'model': the simulated device computes the times. ``timeline.source`` says, too, that nothing was measured.

        The graph runs ``2 * (launches + warmup) + 1`` times: once as by :meth:`launch`, then without timing its nodes,
        then with. Arrays that it changes in place are changed that often, or more often if the profiler fails, which
        the note says. For 'events', edges that let a kernel begin before another one ends become ordinary edges.

        Args:
            launches: the number of launches of each kind that the medians are taken of. warmup: how many come first.
            by: 'profiler' or 'events': use only this one. None: the profiler if it is available and there are no other
                threads, else events; ``timeline.note`` then says why. With other threads (a notebook has some),
                'profiler' is safe as long as none of them uses the device: CUPTI must not be detached while one does.

        Raises:
            TypeError, ValueError: ``launches`` is not a whole number of 1 or more, ``warmup`` not one of 0 or more, or
                ``by`` is something else.
            UnmatchedError: this thread has a capture open.
            UpdateError: the graph can't be copied: it has conditional or memory nodes, is launched in several parts, or
                CUDA refuses. The profiler was asked for, or is needed for several devices, and can't be had.
                ClosedError: it is closed. What :meth:`launch` raises, as the graph of a ``@graphed`` function does.
                Then nothing has been measured, and the recording is as it was.

        It works on CuPy's current stream and waits for it. It takes some microseconds for each node and launch, besides
        the launches. Threads: other calls on the graph, and other measurements by the profiler, wait for it; other work
        on the device makes times longer. Do not call it while another profiler that uses CUPTI is active,
        such as ``torch.profiler``: CUPTI serves one at a time. CUDA Driver API, "Graph Management"; CUPTI User's Guide.
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
