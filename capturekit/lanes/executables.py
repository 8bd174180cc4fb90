"""Executable graphs made anew, of definitions whose edges or addresses were changed."""

from __future__ import annotations

from dataclasses import replace

from capturekit.graph.half_changed import whole_or_closed
from capturekit.graph.launching import aim_all
from capturekit.graph.nodes import forget_nodes
from capturekit.graph.refused import refused
from capturekit.graph.state import GraphState, NodeNames
from capturekit.launch.plan import Part, Plan
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

_CALL = 'Graph.relane()'


def instantiate(state: GraphState) -> None:
    """Make executable graphs of the definitions as they are now. Nodes that are disabled stay so."""
    plan = state.plan
    if plan is not None and not plan.plain:
        _instantiate_parts(state, plan)
    else:
        try:
            made = state.made.instantiated(state.device, state.recording.by_priority)
            _switch_off(state, made.graphExec)
            state.made = made
        except CudaCallError as error:
            if plan is None or error.code != Code.cudaErrorNotSupported:
                raise
            _instantiate_parts(state, plan)
            with whole_or_closed(state, _CALL):
                _switch_off(state, state.made.graphExec)
        handles, off = state.names.handles, state.names.off
        forget_nodes(state)
        if off:
            state.names = NodeNames(handles, dict(handles), off)
    note_edges(state)


def _switch_off(state: GraphState, executable: int) -> None:
    for number in sorted(state.names.off):
        state.device.node_enable(executable, state.names.handles[number], False)


def note_edges(state: GraphState) -> None:
    """The recording tells of the edges that the graph has now."""
    recording = state.recording
    recording.timeline = None  # it describes what the graph did before
    if recording.arrows:
        recording.arrows = state.look().edges
    recording.edge_count = sum(state.device.graph_edge_count(g) for g in state.definitions())


def make_whole(state: GraphState) -> None:
    """After a refusal: parts whose executable graph had to go first get one of the recorded edges."""
    if state.plan is None or all(part.executable for part in state.plan.parts):
        return
    try:
        _complete(state, state.plan)
    except CudaCallError as error:
        rule = f'Of its definition CUDA makes no executable graph any more: {error}.'
        raise refused(_CALL, rule, 'Free memory of the device, and record again.') from error
    finally:
        aim_all(state)


def _instantiate_parts(state: GraphState, plan: Plan) -> None:
    """Make an executable graph of each part. Of those with conditional nodes, the old one has to go first."""
    device, by_priority = state.device, state.recording.by_priority
    made: list[tuple[Part, int]] = []
    last: list[Part] = []
    try:
        for part in plan.parts:
            try:
                made.append((part, device.graph_instantiate(part.graph, by_priority)))
            except CudaCallError as error:
                if error.code != Code.cudaErrorNotSupported:
                    raise
                last.append(part)
    except CudaCallError:
        for _part, x in made:
            device.graph_exec_destroy(x)
        raise
    for part, x in [*made, *((part, 0) for part in last)]:
        old, part.executable = part.executable, x
        device.graph_exec_destroy(old)
    _complete(state, plan)


def _complete(state: GraphState, plan: Plan) -> None:
    """Make an executable graph of each part that has none."""
    try:
        for part in plan.parts:
            plan.complete(part, state.recording.by_priority)
    finally:
        state.made = replace(state.made, graphExec=plan.parts[0].executable)
