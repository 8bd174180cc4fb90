"""``graph.update()``: a whole graph replaced by another recording.

CUDA C++ Programming Guide, "Updating Instantiated Graphs", "Whole Graph Update".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from capturekit.analysis.graph_diff import (
    STRUCTURE,
    GraphDifference,
    Update,
    differences,
    edge_order,
    heeding,
    in_words,
    priorities,
    reasons,
)
from capturekit.analysis.node_view import Look
from capturekit.driver.cuda import current
from capturekit.graph.edit import NOT_COPIED, switch_off
from capturekit.graph.launching import aim
from capturekit.graph.refused import refused
from capturekit.graph.state import GraphState, NodeNames, must_be_whole, together, whole_or_closed
from capturekit.launch.declared import of_copy
from capturekit.launch.deferred_unload import UNLOADING
from capturekit.launch.executable_graph import ExecutableGraph, close_at_end
from capturekit.model.cleanup import uninterrupted
from capturekit.model.counters import FIGURES
from capturekit.model.errors import CudaCallError, UpdateError
from capturekit.model.lease import Lease
from capturekit.model.rules import Code
from capturekit.model.source_line import here

# -- ``graph.clone()``: a second executable graph of the same nodes ---------------------------------------------------


_CALL = 'Graph.clone()'


def clone(state: GraphState) -> GraphState:
    """The state of a copy, which can be changed alone. Whoever owns it has to destroy it."""
    with state.lock, state.relaxed():
        must_be_whole(state, _CALL)
        device = state.device
        if {info.kind for info in device.node_infos(state.made.graph)} & NOT_COPIED:
            rule = 'CUDA copies no graph that has conditional nodes or memory nodes.'
            raise refused(_CALL, rule, 'Record its code once more.')
        definition = device.graph_clone(state.made.graph)
        made = ExecutableGraph.of_definition(device, definition, state.made.host_funcargs)
        made = made.instantiated(device, state.recording.by_priority)
        with Lease(UNLOADING.hold(current()), state.memory.hold()) as lease:
            device_id, recording = state.device_id, replace(state.recording)
            copy = GraphState(
                device, device_id, state.current, state.gate, made, state.memory, lease.hand_over(), recording
            )
        try:
            _as_changed(state, copy)
        except BaseException:
            copy.destroy()
            raise
        return copy


def _as_changed(state: GraphState, copy: GraphState) -> None:
    """Let a copy know what its graph knows of itself, and hold the arrays that were put into it."""
    copy.put_in.update(state.put_in)
    copy.memory.hold_what_is_in(copy.put_in)
    switch_off(copy, _CALL, state.names.off)
    copies = state.device.graph_nodes(copy.made.graph)
    copy.declared = of_copy(state.declared, state.device, state.made.graph, copies)
    mine = state.device.graph_nodes(state.made.graph)
    copy.alterations = [one.of_copy(dict(zip(mine, copies))) for one in state.alterations]


#: Graphs of more nodes are not compared where they are instantiated anew.
_MANY = 1000
_REFUSED = Code.cudaErrorGraphExecUpdateFailure
_CALL_UPDATE = 'Graph.update()'


def update(state: GraphState, other: GraphState, instantiate: bool) -> Update:
    """Let the next launches do what ``other`` does. ``instantiate``: make a new executable graph where CUDA refuses."""
    start = time.perf_counter()
    if other is state:
        raise ValueError('a graph can not take over itself')
    if other.device_id != state.device_id:
        raise ValueError(f'the graph lives on device {state.device_id}, the other one on device {other.device_id}')
    with together(state, other):
        for one in (state, other):
            must_be_whole(one, _CALL_UPDATE)
        return _update(state, other, instantiate, start)


def check_update(state: GraphState, call: str) -> None:
    """Raise UpdateError or ClosedError where a graph can not be updated."""
    with state.lock:
        must_be_whole(state, call)


def _update(state: GraphState, other: GraphState, instantiate: bool, start: float) -> Update:
    with state.relaxed():
        with whole_or_closed(other, _CALL_UPDATE):
            undo = _made_alike(state, other)
        why, found = _try_update(state, other, instantiate)
        if why:
            with whole_or_closed(other, _CALL_UPDATE):
                for step in reversed(undo):
                    step(instantiate)
        if why and not instantiate:
            raise _failure_of(why, found)
        if why and not other.made.graphExec:
            other.made = other.made.instantiated(state.device, other.recording.by_priority)
        with whole_or_closed(state, _CALL_UPDATE), uninterrupted():
            _take_over(state, other, anew=bool(why))
        seconds = time.perf_counter() - start
        FIGURES.count('reinstantiations' if why else 'updates', seconds)
        return Update('instantiated' if why else 'updated', why, seconds, tuple(found))


def _made_alike(state: GraphState, other: GraphState) -> list[Callable[[bool], None]]:
    """Let extensions alter another graph like this one: CUDA updates no graph to one of other nodes or edges."""
    kinds = {type(one) for one in state.alterations}
    for one in other.alterations:
        if type(one) not in kinds:
            one.make_unlike(other)
    return [step for one in state.alterations for step in one.make_alike(state, other)]


# -- CUDA's update ------------------------------------------------------------------------------------------------


def _try_update(state: GraphState, other: GraphState, instantiate: bool) -> tuple[str, list[GraphDifference]]:
    """Update in place if CUDA does; else return its reason, and the differences that may be behind it.

    Comparing all nodes takes longer than instantiating them, so large graphs are compared only for an exception.
    """
    if state.recording.by_priority != other.recording.by_priority:
        return 'priorities', [heeding(other.recording.by_priority)]
    try:
        why, node = state.device.graph_exec_update(state.made.graphExec, other.made.graph)
    except CudaCallError as error:
        why, node = str(error), 0
    if not why or (instantiate and other.recording.node_count > _MANY):
        return why, []
    old, new = state.look(), other.look()
    found = differences(old, new)
    if not any(one.kind in STRUCTURE for one in found):
        found = edge_order(old, new) or _reordered(state, other, old, new) or found
    return why, reasons(found, new.numbers.get(node))


def _reordered(state: GraphState, other: GraphState, old: Look, new: Look) -> list[GraphDifference]:
    """Nodes whose lanes have another priority, which an update does not change if the graph uses it."""
    if not other.recording.by_priority:
        return []
    before, after = ({lane.number: lane.priority for lane in one.recording.lanes} for one in (state, other))
    return priorities(old.nodes, new.nodes, before, after)


def _failure_of(why: str, found: list[GraphDifference]) -> UpdateError:
    words = in_words(found) or 'both graphs look the same'
    error = UpdateError(
        _CALL_UPDATE,
        location=here(),
        rule=f'CUDA can not put the new graph in the place of the old one ({why}): {words}.',
        remedy='Record the same work in the same order, or let the graph be instantiated anew: '
        '`graph.update(other, instantiate=True)`.',
        cuda_error=_REFUSED.name,
    )
    error.reason, error.differences = why, tuple(found)
    return error


# -- what changes hands -------------------------------------------------------------------------------------------


def _take_over(state: GraphState, other: GraphState, *, anew: bool) -> None:
    """Take over all of ``other``; with ``anew`` its executable graph as well."""
    for one in other.alterations:
        one.handed_over()
    state.alterations = []
    if not anew:
        for number in state.names.off:
            state.device.node_enable(state.made.graphExec, state.names.sources[number], True)
    old, memory, switched = state.made, state.memory, other.names.off
    lease, state.lease = state.lease, other.lease.hand_over()
    state.made = other.made if anew else old.updated(other.made)
    turned = state.memory.turns != other.memory.turns
    state.plan, state.memory, state.recording = other.plan, other.memory, other.recording
    if state.memory.to_close:
        close_at_end(state)
    state.names = NodeNames()
    other.bind()
    other.made, other.plan, other.memory, other.names = None, None, memory, NodeNames()
    state.put_in, other.put_in = other.put_in, state.put_in
    if anew or turned:
        aim(state)
    calls = old.host_funcargs  # until the memory is given back, which waits for earlier launches
    with state.inside(), lease:
        if not memory.private or calls:
            state.gate.waits.unless_captured(state.device)  # an earlier launch may be under way
        del old
    switch_off(state, _CALL_UPDATE, switched)
    state.declared, state.alterations = other.declared, other.alterations
    other.declared, other.alterations = {}, []
