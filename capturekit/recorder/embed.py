"""Graphs put together: a graph in a capture, and captures into a graph that exists.

CUDA C++ Programming Guide, "Graph Structure" (child graphs); CUDA Runtime API, ``cudaGraphAddChildGraphNode``,
``cudaStreamBeginCaptureToGraph``, ``cudaStreamUpdateCaptureDependencies``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from capturekit.analysis.node_view import Look, fill
from capturekit.driver.cuda import current
from capturekit.graph.executable import Graph
from capturekit.guard import GUARD, OpenCapture, new_recording
from capturekit.launch.plan import Part
from capturekit.model import errors
from capturekit.model.cleanup import uninterrupted
from capturekit.model.counted import counted
from capturekit.model.ledger import Lane, covers
from capturekit.model.recording import Recording
from capturekit.model.rules import Code, Mode, Operation
from capturekit.model.source_line import here

#: The kinds of nodes that a child graph can't hold.
_NOT_INSIDE = frozenset({'conditional', 'mem alloc', 'mem free'})


def embed(live: OpenCapture, graph: Any) -> None:
    """Record, on the current lane, a node that runs ``graph``."""
    if not isinstance(graph, Graph):
        raise TypeError(f'embed() takes a capturekit.Graph, got {type(graph).__name__}')
    if graph.closed:
        raise errors.ClosedError(
            'Capture.embed()', location=here(), rule='The graph was closed.', remedy='Close it later, or record again.'
        )
    here_id = live.platform.cupy.cuda.Device().id
    if graph.device_id != here_id:
        raise ValueError(f'the graph lives on device {graph.device_id}, the capture is on device {here_id}')
    _fits(live, graph)
    _lanes_on_its_devices(live, graph)
    graph._state.prepare_for_embedding()
    with uninterrupted(), GUARD.lock:
        lane = _lane(live)
        _shares_no_memory(live, graph)
        _one_at_a_time(live, lane, graph)
        GUARD.work.on_stream(Operation.WORK, 'Capture.embed()', lane.stream, lambda: _add(live, lane.stream, graph))
        turns = frozenset(graph._state.memory.turns)
        live.recorder.embedded.append((graph.graph, turns, lane.capture, lane.number, lane.segment))
        graph._state.lend(live.graph_memory)
        live.note('embedded', lane, f'a graph of {counted(graph.recording.node_count, "node")}', here())


def _refused(rule: str, remedy: str, cuda_error: str = '') -> errors.UnsupportedCallError:
    return errors.UnsupportedCallError(
        'Capture.embed()', location=here(), rule=rule, remedy=remedy, cuda_error=cuda_error
    )


def _fits(live: OpenCapture, graph: Graph) -> None:
    plan, rule = graph._state.plan, ''
    kinds = {info.kind for info in live.platform.device.node_infos(graph.graph)}
    if plan is not None and not plan.plain:
        rule = 'It is launched in several parts, with checks or calls of the host in between.'
    elif found := sorted(kinds & _NOT_INSIDE):
        rule = f'A child graph can not hold {" or ".join(found)} nodes.'
    elif graph._state.names.off:
        rule = 'Nodes of the graph are disabled, and as a child graph it would run all.'
    if rule:
        remedy = 'Record its code in this block instead, or launch the graphs one after the other.'
        raise _refused(rule, remedy, Code.cudaErrorNotSupported.name)


def _lanes_on_its_devices(live: OpenCapture, graph: Graph) -> None:
    """Refuse a graph that works on a device where the capture has no lane: a recording names its devices by lanes."""
    devices = graph.recording.devices
    missing = [str(device) for device in devices if device not in live.capture.devices]
    if missing:
        raise _refused(
            f'The graph works on device {" and ".join(missing)}, too, and the capture has no lane there.',
            remedy=f'Give it lanes there: `with cap.fork(devices={devices}) as lanes, lanes[0]: cap.embed(graph)`.',
        )


def _lane(live: OpenCapture) -> Lane:
    stream = live.platform.cupy.cuda.get_current_stream()
    lane = live.lane_of(stream)
    if lane is None:
        raise errors.UnmatchedError(
            'Capture.embed()',
            stream=stream.ptr,
            location=here(),
            rule='The current stream is not in this capture.',
            remedy='Make a lane of the capture current: `with cap.stream:`.',
        )
    return lane


def _one_at_a_time(live: OpenCapture, lane: Lane, graph: Graph) -> None:
    """Refuse the same graph, or two of a memory group, on lanes that may run at once: both would write that memory."""
    for handle, turns, capture, number, segment in live.recorder.embedded:
        one = handle == graph.graph or not turns.isdisjoint(graph._state.memory.turns)
        if one and capture is lane.capture and not covers(lane, [(number, segment)]):
            rule = 'A graph of the same memory group is on a lane that may run beside this one.'
            if handle == graph.graph:
                rule = 'This graph is already on a lane that may run beside this one, and both would write its memory.'
            raise _refused(rule, remedy='Join that lane first, or record the code twice.')


def _shares_no_memory(live: OpenCapture, graph: Graph) -> None:
    """Refuse a graph of a memory group where launches can't take turns, or inside of a graph of its own group."""
    turns, share, rule = graph._state.memory.turns, live.graph_memory.share, ''
    if share is not None and share.turns in turns:
        rule = 'The graph shares memory with the graph around it, and both would use it at once.'
    elif turns and live.recorder.into:
        rule = 'The graph shares memory with others, and launches of the graph around it would not take turns.'
    if rule:
        raise _refused(rule, 'Record one of the two without memory=.')


def _add(live: OpenCapture, stream: int, graph: Graph) -> None:
    device = live.platform.device
    with GUARD.inside:
        info = device.capture_info(stream)
        node = device.add_child(info.graph, info.dependencies, graph.graph)
        device.set_dependencies(stream, [node])
    live.recorder.embeds_priorities |= graph.recording.by_priority


def look(definition: Any) -> Recording:
    """Return the nodes and edges of any graph as a :class:`Recording`, to be drawn, saved and compared.

    Args:
        definition: a ``cuda.core.graph.GraphDefinition``, a ``cudaGraph_t`` of cuda-bindings, or a graph of CuPy's or
            capturekit's. A number is refused, because CUDA crashes if it is no graph's:
            ``cuda.bindings.runtime.cudaGraph_t(number)`` says that it is one.

    ``recording.graph`` are the nodes, ``recording.arrows`` the edges as pairs (from, to) of node numbers; lanes and
    lines are unknown. The driver does not show what the body of a conditional node holds.

    Raises:
        TypeError: ``definition`` is none of these. ValueError: it is a null handle.
        ClosedError: it is a graph of capturekit's that was closed.
    """
    from capturekit.driver.graph_edges import ACCEPTED, handle_of_graph, told

    platform = current()
    if isinstance(definition, (Graph, platform.cupy.cuda.Graph)):
        handle: int | None = int(definition.graph)
    else:
        handle = handle_of_graph(definition)
    if handle is None:
        raise TypeError(f"look() takes a graph of CuPy's or capturekit's, {ACCEPTED}, got {told(definition)}")
    if not handle:
        raise errors.ClosedError('look()', location=here(), rule='The graph was closed.', remedy='Look at it before.')
    found = Look(platform.device, [Part(handle)], [], None)
    recording = new_recording(platform, Mode.RELAXED, strict=True)
    recording.mode, recording.outcome = '', 'good'
    recording.node_count, recording.edge_count = len(found.nodes), len(found.edges)
    fill(recording, found)
    return recording


@dataclass
class EmbedTarget:
    """A graph that a capture adds to: its handle, the nodes that come before, and how many there were."""

    definition: Any
    handle: int
    after: tuple[int, ...]
    count: int = 0
    ends: tuple[int, ...] = ()

    def nodes(self, handles: Iterable[int]) -> list[Any]:
        """Nodes as the definition has them: objects of cuda.core, or handles."""
        nodes = getattr(self.definition, 'nodes', None)
        if nodes is None:
            return list(handles)
        known = {int(node.handle): node for node in (nodes() if callable(nodes) else nodes)}
        return [known[handle] for handle in handles]


def target(into: Any, after: Any) -> EmbedTarget | None:
    """Check ``into`` and ``after`` of :func:`capturekit.capture`."""
    if into is None:
        if after is not None:
            raise TypeError('after= names nodes of the graph given as into=')
        return None
    from capturekit.driver.graph_edges import ACCEPTED, handle_of_graph, handle_of_node, told

    handle = handle_of_graph(into)
    if handle is None:
        raise TypeError(f'into must be {ACCEPTED}, got {told(into)}')
    given = () if after is None else tuple(after) if isinstance(after, Iterable) else (after,)
    nodes = [handle_of_node(one) for one in given]
    if None in nodes:
        raise TypeError(f'after must be nodes of the graph, got {type(given[nodes.index(None)]).__name__}')
    return EmbedTarget(into, handle, tuple(node for node in nodes if node is not None))


def check(device: Any, target: EmbedTarget) -> None:
    """Raise ValueError, before anything is begun, unless the graph is a graph and the nodes belong to it."""
    known = set(device.graph_nodes(target.handle))
    if strangers := [node for node in target.after if node not in known]:
        raise ValueError(f'after: {len(strangers)} of the nodes are not in the graph')
    target.count = len(known)
