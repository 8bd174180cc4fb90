"""``graph.clone()``: a second executable graph of the same nodes."""

from __future__ import annotations

from dataclasses import replace

from capturekit.driver.cuda import current
from capturekit.graph.nodes import NOT_COPIED, switch_off
from capturekit.graph.refused import refused
from capturekit.graph.state import GraphState
from capturekit.graph.whole import must_be_whole
from capturekit.launch.declared import of_copy
from capturekit.launch.deferred_unload import UNLOADING
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.lease import Lease

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
            copy = _copy(state, made, lease.hand_over())
        try:
            _as_changed(state, copy)
        except BaseException:
            copy.destroy()
            raise
        return copy


def _copy(state: GraphState, made: ExecutableGraph, lease: Lease) -> GraphState:
    return GraphState(
        state.device,
        state.device_id,
        state.current,
        state.topology,
        state.before,
        state.inside,
        made,
        state.memory,
        lease,
        replace(state.recording),
    )


def _as_changed(state: GraphState, copy: GraphState) -> None:
    """Let a copy know what its graph knows of itself, and hold the arrays that were put into it."""
    copy.put_in.update(state.put_in)
    copy.memory.hold_what_is_in(copy.put_in)
    switch_off(copy, _CALL, state.names.off)
    copies = state.device.graph_nodes(copy.made.graph)
    copy.declared = of_copy(state.declared, state.device, state.made.graph, copies)
    mine = state.device.graph_nodes(state.made.graph)
    copy.alterations = [one.of_copy(dict(zip(mine, copies))) for one in state.alterations]
