"""Captures and graphs of the simulated device: begun, ended, built node by node, instantiated, launched, destroyed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

import numpy as np

from capturekit.driver.event_timing import TIMED, Times
from capturekit.driver.node_reader import NodeInfo
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import last_node, next_after
from capturekit.model.progress import progress
from capturekit.model.rules import CaptureStatus, Code, Mode, Operation
from capturekit.simulated.device.address_space import AddressSpace
from capturekit.simulated.device.device_streams import LEGACY, SimulatedCapture, SimulatedStream, Streams
from capturekit.simulated.device.graph_nodes import ExecutableGraph, GraphDefinition, GraphNode
from capturekit.simulated.device.node_changes import _NOT_COPIED, info_of
from capturekit.simulated.device.stream_queues import any_order

#: Of so many nodes drawn from those that may run now, the one of the highest priority runs.
_DRAWS = 3


class Graphs(Streams):
    """The calls about captures and graphs of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

    # -- captures ---------------------------------------------------------------------------------------------

    def exchange_thread_mode(self, mode: Mode) -> Mode:
        """``cudaThreadExchangeStreamCaptureMode``: set this thread's mode, return the old one."""
        with self._lock:
            me = threading.get_ident()
            old = self._thread_modes.get(me, Mode.GLOBAL)
            self._thread_modes[me] = Mode(mode)
            return old

    def begin_capture(self, s: int, mode: Mode = Mode.RELAXED) -> None:
        """``cudaStreamBeginCapture``."""
        with self._lock:
            self._begin(s, mode, None)

    def begin_capture_to(self, s: int, g: int, mode: Mode = Mode.RELAXED, after: Sequence[int] = ()) -> None:
        """``cudaStreamBeginCaptureToGraph``: add to a graph, behind the nodes ``after``; to a body, say."""
        with self._lock:
            graph = self._graph(g)
            known = {n.handle: n for n in graph.nodes}
            if not known.keys() >= set(after):
                raise CudaCallError(Code.cudaErrorInvalidValue, 'beginCaptureToGraph')
            self._begin(s, mode, graph)
            self._stream(s).after = frozenset(known[a] for a in after)

    def can_continue(self) -> bool:
        """Whether captures can add to a graph that has nodes."""
        return True

    def set_dependencies(self, s: int, after: Sequence[int]) -> None:
        """``cudaStreamUpdateCaptureDependencies``: what a captured stream's next node comes after."""
        with self._lock:
            stream = self._stream(s)
            capture = self._live(stream, 'streamUpdateCaptureDependencies')
            if capture is None:
                self._fail(Code.cudaErrorIllegalState, 'streamUpdateCaptureDependencies')
            known = {n.handle: n for n in capture.graph.nodes}
            if not known.keys() >= set(after):
                raise CudaCallError(Code.cudaErrorInvalidValue, 'streamUpdateCaptureDependencies')
            stream.after = frozenset(known[a] for a in after)

    def _begin(self, s: int, mode: Mode, graph: GraphDefinition | None) -> None:
        if s in LEGACY:
            self._legacy('beginCapture')
            self._fail(Code.cudaErrorStreamCaptureUnsupported, 'beginCapture')
        stream = self._stream(s)
        if stream.capture is not None:
            self._fail(Code.cudaErrorIllegalState, 'beginCapture')
        self._captures_opened += 1
        to = GraphDefinition(self._handle()) if graph is None else graph
        capture = SimulatedCapture(self._captures_opened, s, Mode(mode), threading.get_ident(), to)
        self.captures.append(capture)
        self._enter(stream, s, capture)
        stream.after = frozenset()

    def end_capture(self, s: int) -> int:
        """``cudaStreamEndCapture``: return the graph's handle, which :meth:`capture_info` has told before."""
        with self._lock:
            if s in LEGACY:
                self._legacy('endCapture')
                self._fail(Code.cudaErrorIllegalState, 'endCapture')
            stream = self._stream(s)
            capture = stream.capture
            if capture is None:
                self._fail(Code.cudaErrorIllegalState, 'endCapture')
            if capture.origin != s:
                self._fail(Code.cudaErrorStreamCaptureUnmatched, 'endCapture', [capture])
            code = self._ending(stream, capture)
            self._release(capture)
            if code is not Code.cudaSuccess:
                self._forget(capture.graph)  # one that was there before, and the body of a node, too
                capture.graph.destroyed = True
                self._fail(code, 'endCapture')
            self.graphs[capture.graph.handle] = capture.graph
            return capture.graph.handle

    def _ending(self, origin: SimulatedStream, capture: SimulatedCapture) -> Code:
        if capture.status is CaptureStatus.INVALIDATED:
            return Code.cudaErrorStreamCaptureInvalidated
        joined = _ancestors(origin.after)
        left = set(capture.orphans)
        for s in capture.streams:
            left |= self._stream(s).after
        if not left <= joined:
            return Code.cudaErrorStreamCaptureUnjoined
        if capture.mode is not Mode.RELAXED and capture.thread != threading.get_ident():
            return Code.cudaErrorStreamCaptureWrongThread
        return Code.cudaSuccess

    def _release(self, capture: SimulatedCapture) -> None:
        capture.status = CaptureStatus.NONE
        self.captures.remove(capture)
        for s in capture.streams:
            stream = self._stream(s)
            stream.capture, stream.after = None, frozenset()

    # -- definitions ------------------------------------------------------------------------------------------

    def graph_nodes(self, g: int) -> list[int]:
        """Handles of a graph's nodes, in order of recording; ``g`` may be a graph still being captured."""
        return [n.handle for n in self._graph(g).nodes]

    def graph_node_count(self, g: int) -> int:
        """How many nodes a graph has."""
        return len(self._graph(g).nodes)

    def last_nodes(self) -> Callable[[int], int]:
        """A function that tells a stream's last node: 0 where there is none; -1 in a lost capture, -2 in none."""
        return lambda s: last_node(self.capture_info(s))

    def next_after(self) -> Callable[[int], tuple[int, ...]]:
        """A function that tells the nodes a stream's next work comes after: (-1,) in a lost capture, (-2,) in none."""
        return lambda s: next_after(self.capture_info(s))

    def node_destroy(self, node: int) -> None:
        """``cudaGraphDestroyNode``: take a node and its edges out of a graph. One that allocates keeps its nodes."""
        with self._lock:
            for graph in self.graphs.values():
                found = next((n for n in graph.nodes if n.handle == node), None)
                if found is not None:
                    if any(n.kind in ('memAlloc', 'memFree') for n in graph.nodes):
                        raise CudaCallError(Code.cudaErrorNotSupported, 'graphDestroyNode')
                    self._whole(GraphDefinition(0, [found]))
                    graph.nodes.remove(found)
                    graph.maimed |= bool(found.bodies)
                    for n in filter(lambda one: found in one.after, graph.nodes):
                        n.after -= {found}
                    for body in found.bodies:
                        self._forget(body)
                    return
            raise CudaCallError(Code.cudaErrorInvalidValue, 'graphDestroyNode')

    def graph_edge_count(self, g: int) -> int:
        """How many edges a graph has."""
        return sum(len(n.after) for n in self._graph(g).nodes)

    def graph_edges(self, g: int) -> list[tuple[int, int]]:
        """Pairs (from, to) of node handles."""
        nodes = self._graph(g).nodes
        return [(a.handle, n.handle) for n in nodes for a in sorted(n.after, key=lambda a: a.handle)]

    def node_kind(self, g: int, node: int) -> tuple[str, str]:
        """A node's kind and name."""
        found = next(n for n in self._graph(g).nodes if n.handle == node)
        return found.kind, found.name

    def node_infos(self, g: int) -> list[NodeInfo]:
        """What is known of each node, in the order in which they were made."""
        return [info_of(node) for node in self._graph(g).nodes]

    def graph_create(self) -> int:
        """``cudaGraphCreate``: an empty graph."""
        with self._lock:
            g = self._handle()
            self.graphs[g] = GraphDefinition(g)
            return g

    def _new_node(
        self, g: int, after: Sequence[int], work: Callable[[], None], name: str, kind: str
    ) -> tuple[GraphDefinition, GraphNode]:
        graph = self._graph(g)
        known = {n.handle: n for n in graph.nodes}
        if len(set(after)) != len(after) or not known.keys() >= set(after):
            raise CudaCallError(Code.cudaErrorInvalidValue, f'dependencies of a node of kind {kind!r}')
        node = GraphNode(work, name, kind, frozenset(known[a] for a in after), self._handle())
        return graph, node

    def condition_create(self, g: int, default: int = 0) -> int:
        """``cudaGraphConditionalHandleCreate``: a value that each launch of ``g`` begins with the default."""
        with self._lock:
            graph = self._graph(g)
            condition = self._handle()
            graph.conditions[condition] = default
            return condition

    def can_decide(self, decides: str, count: int) -> bool:
        """Whether the device knows such conditional nodes: it does."""
        return True

    def add_if(self, g: int, after: Sequence[int], condition: int) -> tuple[int, int]:
        """``cudaGraphAddNode`` with an IF node: return the node, and the body graph, which is the node's."""
        node, (body,) = self.add_conditional(g, after, condition, 'if', 1)
        return node, body

    def add_conditional(
        self, g: int, after: Sequence[int], condition: int, decides: str, count: int
    ) -> tuple[int, list[int]]:
        """``cudaGraphAddNode``: an IF (of 1 or 2 bodies), WHILE (1) or SWITCH node; return it, and its body graphs."""
        with self._lock:
            if decides not in ('if', 'while', 'switch') or not 1 <= count <= {'if': 2, 'while': 1}.get(decides, count):
                raise CudaCallError(Code.cudaErrorInvalidValue, 'graphAddNode')
            graph, node = self._new_node(g, after, lambda: None, decides, 'conditional')
            node.condition, node.decides = condition, decides
            node.bodies = tuple(GraphDefinition(self._handle(), is_body=True) for _ in range(count))
            self.graphs.update((body.handle, body) for body in node.bodies)
            graph.nodes.append(node)
            return node.handle, [body.handle for body in node.bodies]

    def add_child(self, g: int, after: Sequence[int], child: int) -> int:
        """``cudaGraphAddChildGraphNode``: a node that runs a copy of ``child`` as it is now."""
        with self._lock:
            copy = ExecutableGraph.of(self._graph(child))
            if any(n.kind in ('conditional', 'memAlloc', 'memFree') for n in copy.nodes):
                raise CudaCallError(Code.cudaErrorNotSupported, 'addChildGraphNode')
            graph, node = self._new_node(g, after, lambda: None, 'child', 'graph')
            node.child = copy
            node.inside = self._inside(copy.nodes)
            graph.nodes.append(node)
            return node.handle

    def _inside(self, nodes: Sequence[GraphNode]) -> GraphDefinition:
        """The graph in a child graph's node, which nobody else has: nor do others have the graphs in its nodes."""
        inner = {n: None if n.inside is None else self._inside(n.inside.nodes) for n in nodes}
        copies = {n: replace(n, inside=inside) for n, inside in inner.items()}
        for n, copy in copies.items():
            copy.after = frozenset(copies[a] for a in n.after)
        inside = GraphDefinition(self._handle(), list(copies.values()), is_body=True)
        self.graphs[inside.handle] = inside
        return inside

    def graph_destroy(self, g: int) -> None:
        """``cudaGraphDestroy``: also of the bodies of its conditional nodes, which can't be destroyed alone."""
        with self._lock:
            graph = self._whole(self._graph(g))
            if graph.is_body:
                raise CudaCallError(Code.cudaErrorInvalidValue, 'graphDestroy')
            if all(capture.graph is not graph for capture in self.captures):
                self._forget(graph)

    def _forget(self, graph: GraphDefinition) -> None:
        self.graphs.pop(graph.handle, None)
        for node in graph.nodes:
            for body in node.bodies if node.inside is None else (node.inside,):
                self._forget(body)

    def graph_dot(self, g: int, flags: int = 0) -> str:
        """The graph in DOT."""
        return 'digraph capturekit {\n' + '\n'.join(_dot(self._graph(g))) + '\n}\n'

    def graph_scalars(self, graphs: list[int]) -> list[tuple[str, int, str, Any]]:
        """The simulated device's nodes are Python functions: what they hold can't be read."""
        return []

    # -- executable graphs ------------------------------------------------------------------------------------

    def condition_set(self, condition: int, value: int) -> None:
        """``cudaGraphSetConditional``, which a kernel calls while it runs in a launch of the condition's graph.

        Raises InvalidValue anywhere else, where CUDA would do what it likes.
        """
        for values in reversed(self._launching()):
            if condition in values:
                values[condition] = value & 0xFFFFFFFF
                return
        raise CudaCallError(Code.cudaErrorInvalidValue, f'condition {condition:#x} belongs to no graph that runs here')

    def graph_instantiate(self, g: int, by_node_priority: bool = False) -> int:
        """``cudaGraphInstantiate``; a body alone is refused, and so are bodies that allocate memory.

        Of a graph with conditional nodes there is one executable graph at a time (measured: driver 580.159.04).
        ``by_node_priority``: kernels have the priorities of the streams that they were recorded on.
        """
        with self._lock:
            self._unsafe('graphInstantiate')
            graph = self._whole(self._graph(g))
            executable = ExecutableGraph.of(graph, by_node_priority)
            lost = not executable.conditions.keys() >= executable.used()
            if graph.is_body or graph.maimed or lost or executable.allocates_in_a_body():
                raise CudaCallError(Code.cudaErrorInvalidValue, 'graphInstantiate')
            if executable.bodies and any(one.source == g for one in self.executables.values()):
                raise CudaCallError(Code.cudaErrorNotSupported, 'graphInstantiate')
            x = self._handle()
            executable.source = g
            self.executables[x] = executable
            return x

    def graph_launch(self, x: int, s: int) -> None:
        """``cudaGraphLaunch``: run the nodes in a random order among those that the edges allow."""
        with self._lock:
            if s in LEGACY:
                self._legacy('graphLaunch')
            else:
                self._conflict(self._stream(s), Operation.GRAPH_LAUNCH)
            executable = self._exec(x)
            self.launches += 1
            queue = self.queue
            if queue is not None:
                now = executable.as_now()
                queue.launched[x] = queue.put(self._line(s), lambda: self._launch(now), [queue.launched.get(x)])
        self._begin_work(None if queue is not None else lambda: self._launch(executable))

    def _launch(self, executable: ExecutableGraph) -> None:
        values = dict(executable.conditions)
        launching = self._launching()
        launching.append(values)
        try:
            self._run(executable, values, executable.by_priority)
        finally:
            launching.pop()

    def launch_in_order(self, x: int, order: Sequence[int]) -> None:
        """Run an executable graph in an order of its nodes that the edges allow, at once. CUDA can not.

        Raises InvalidValue for any other order.
        """
        self.finish()
        with self._lock:
            executable = self._exec(x)
            nodes = [executable.anchors.get(handle) for handle in order]
        done: set[GraphNode | None] = set()
        for node in nodes:
            if node is None or node in done or not done >= node.after:
                raise CudaCallError(Code.cudaErrorInvalidValue, 'launchInOrder')
            done.add(node)
        if len(done) != len(executable.nodes):
            raise CudaCallError(Code.cudaErrorInvalidValue, 'launchInOrder')
        values = dict(executable.conditions)
        launching = self._launching()
        launching.append(values)
        try:
            self._run(executable, values, False, [node for node in nodes if node is not None])
        finally:
            launching.pop()

    def _launching(self) -> list[dict[int, int]]:
        """The values of conditions in the launches that this thread is in."""
        try:
            found: list[dict[int, int]] = self._running.values
        except AttributeError:
            found = self._running.values = []
        return found

    def _run(
        self,
        executable: ExecutableGraph,
        values: dict[int, int],
        by_priority: bool,
        order: list[GraphNode] | None = None,
    ) -> None:
        with self._lock:
            order = self._order(executable, by_priority) if order is None else order
        for node in order:
            if self.queue is not None:
                self.queue.between()
            bodies = executable.bodies.get(node)
            if node in executable.off:
                continue
            if node in executable.children:
                self._run(executable.children[node], {}, by_priority)
            elif bodies is None:
                _do(node, executable.works[node])
            elif node.decides == 'while':
                while values[node.condition]:
                    self._run(bodies[0], values, by_priority)
            else:
                chosen = values[node.condition] if node.decides == 'switch' else int(not values[node.condition])
                if chosen < len(bodies):
                    self._run(bodies[chosen], values, by_priority)

    def _order(self, graph: ExecutableGraph, by_priority: bool) -> list[GraphNode]:
        draws = _DRAWS if by_priority else 1

        def choose(ready: list[GraphNode]) -> int:
            drawn = (self.random.randrange(len(ready)) for _ in range(draws))
            return min(drawn, key=lambda at: graph.priorities.get(ready[at], 0))

        return any_order({n: n.after for n in graph.nodes}, choose)

    def graph_upload(self, x: int, s: int) -> None:
        """``cudaGraphUpload``."""
        with self._lock:
            if s in LEGACY:
                self._legacy('graphUpload')
            else:
                self._conflict(self._stream(s), Operation.GRAPH_UPLOAD)
            self._exec(x)

    def graph_exec_destroy(self, x: int) -> None:
        """``cudaGraphExecDestroy``: unsafe, so kept away by modes that do."""
        with self._lock:
            self._unsafe('graphExecDestroy')
            self._exec(x)
            del self.executables[x]
            if self.queue is not None:
                self.queue.launched.pop(x, None)

    # -- times -------------------------------------------------------------------------------------------------------

    def graph_measure(
        self,
        g: int,
        x: int,
        s: int,
        launches: int,
        warmup: int,
        off: Sequence[int] = (),
        by: str | None = None,
        by_node_priority: bool = False,
        several: bool = False,
    ) -> Times:
        """Launch ``x`` as often as a device would launch it and the other graph; tell what the model says of ``g``."""
        with self._lock:
            graph = self._graph(g)
            if any(node.kind in _NOT_COPIED for node in graph.nodes):
                raise CudaCallError(Code.cudaErrorNotSupported, 'graphClone')
            spans = modelled(graph.nodes, off)
        with progress('measuring launches', 2 * (warmup + launches)) as step:
            for _ in range(2 * (warmup + launches)):
                self.graph_launch(x, s)
                step()
        end = [max((end for _start, end in spans.values()), default=0.0)] * launches
        told = {n.handle: [span] * launches for n, span in spans.items() if n.kind in TIMED and n.handle not in off}
        return Times('modelled', list(end), list(end), [0.0], told, by='model')

    def graph_time(self, x: int, s: int, in_a_row: int = 1) -> float:
        """Tell how long one launch of an executable graph takes by the model, in microseconds.

        Two launches stand for any number of them in a row, since the model gives the same time for each.
        """
        with self._lock:
            executable = self._exec(x)
            spans = modelled(executable.nodes, {node.handle for node in executable.off})
        for _ in range(min(in_a_row, 2)):
            self.graph_launch(x, s)
        return max((end for _start, end in spans.values()), default=0.0)


def _ancestors(nodes: Iterable[GraphNode]) -> set[GraphNode]:
    seen: set[GraphNode] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.after)
    return seen


def _dot(graph: GraphDefinition, indent: str = '  ') -> list[str]:
    lines = [f'{indent}"{n.handle:#x}" [label="{n.kind}\\n{n.name}"];' for n in graph.nodes]
    lines += [f'{indent}"{a.handle:#x}" -> "{n.handle:#x}";' for n in graph.nodes for a in n.after]
    for n in graph.nodes:
        for body in n.bodies:
            lines.append(f'{indent}subgraph "cluster {body.handle:#x}" {{')
            lines.append(f'{indent}  label="body of {n.handle:#x}";')
            lines += _dot(body, indent + '  ')
            lines.append(f'{indent}}}')
    return lines


def _do(node: GraphNode, work: Callable[[], None]) -> None:
    try:
        work()
    except (ValueError, ArithmeticError, LookupError) as error:  # what NumPy raises for values
        raise RuntimeError(
            f'The Python body of kernel {node.name!r} raised {type(error).__name__} in a launch ({error}). No kernel '
            'on a GPU raises: a body that was given by `capturekit.simulated.body` has to take any values; '
            'that any other body does not is a fault of the simulated device.'
        ) from error


# -- how long nodes take, by a model ---------------------------------------------------------------------------------
# A node takes NODE_US, and one microsecond more for each BYTES_PER_US bytes that it reads or writes: of a kernel those
# of the arrays among its arguments, of a copy both ends. A child graph takes as long as its nodes. A node
# starts as soon as all that it comes after have ended, however many run at once, so that priorities change nothing. A
# model shows which nodes may overlap, what waits for what, and the shape of the thing; it is no prediction of any
# device's times. It is the same at each call.
#

#: Microseconds that every node takes.
NODE_US = 2.0
#: Bytes that a node reads or writes in one microsecond: 1 TB/s.
BYTES_PER_US = 1_000_000


def modelled(nodes: Iterable[GraphNode], off: Collection[int] = ()) -> dict[GraphNode, tuple[float, float]]:
    """Start and end of each node, in microseconds from the beginning of a launch. ``off``: handles of disabled ones."""
    found: dict[GraphNode, tuple[float, float]] = {}
    nodes = list(nodes)
    for node in TopologicalSorter({node: node.after for node in nodes}).static_order():
        start = max((found[a][1] for a in node.after), default=0.0)
        found[node] = (start, start + (0.0 if node.handle in off else _took(node)))
    return found


def _took(node: GraphNode) -> float:
    if node.kind not in TIMED:
        return 0.0
    if node.inside is not None:
        return max((end for _start, end in modelled(node.inside.nodes).values()), default=0.0)
    return NODE_US + (0 if node.given is None else _bytes(node.given.values)) / BYTES_PER_US


def _bytes(values: Mapping[str, Any]) -> int:
    """Bytes that a node reads and writes."""
    return int(values.get('bytes', 0)) * (2 if 'src' in values else 1) + _of(values.get('args', ()))


def _of(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_of, value))
    return math.prod(value.shape) * int(value.dtype.itemsize) if hasattr(value, 'ptr') else 0


# -- two nodes that nothing orders, run one way round and the other --------------------------------------------------


def differing(
    device: Any, memory: AddressSpace, g: int, first: int, second: int
) -> tuple[list[int], list[tuple[int, int]]] | None:
    """Run a definition with the node ``first`` before ``second``, and the other way round, from the same memory.

    Returns the second order, as handles, and where it left other bytes: address of the first, and how many, for each
    memory block. None where both orders give the same, or the edges allow one of them only. Memory is as before.
    """
    handles = device.graph_nodes(g)
    number = {handle: n for n, handle in enumerate(handles)}
    edges = [(number[a], number[b]) for a, b in device.graph_edges(g)]
    if first not in number or second not in number:  # in a body, which runs or does not
        return None
    a, b = number[first], number[second]
    try:
        orders = [Order(len(handles), [*edges, extra]).sequence for extra in ((a, b), (b, a))]
    except ValueError:
        return None
    device.finish()
    before = memory.contents()
    x = device.graph_instantiate(g)
    try:
        results = []
        for order in orders:
            device.launch_in_order(x, [handles[n] for n in order])
            results.append(memory.contents())
            memory.restore(before)
    finally:
        memory.restore(before)
        device.graph_exec_destroy(x)
    found = []
    for address, one in results[0].items():
        apart = np.flatnonzero(one != results[1].get(address, one))
        if apart.size:
            found.append((address + int(apart[0]), int(apart.size)))
    return ([handles[n] for n in orders[1]], found) if found else None
