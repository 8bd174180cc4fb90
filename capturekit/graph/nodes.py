"""The nodes of a graph by their numbers, and which of them are switched on."""

from __future__ import annotations

from collections.abc import Iterable

from capturekit.graph.addresses import NodeAt
from capturekit.graph.launching import aim
from capturekit.graph.refused import refused
from capturekit.graph.state import GraphState, NodeNames
from capturekit.model.counted import counted
from capturekit.model.errors import CudaCallError

#: Kinds of nodes in graphs that CUDA does not copy.
NOT_COPIED = frozenset({'conditional', 'mem alloc', 'mem free'})
AGAIN = 'Record again, and let the graph take that over: `graph.update(other)`.'


def node_at(state: GraphState, call: str, number: int) -> NodeAt:
    """A node, for a change by ``call``. Raises IndexError, and UpdateError for a node of a body."""
    names = state.names
    if not names.handles:
        name_nodes(state, call)
    handle = names.handles.get(number)
    if handle is None:
        count = len(state.look().nodes)
        if 0 <= number < count:
            rule = f'Node {number} lies in the body of a conditional node.'
            raise refused(call, rule, AGAIN)
        raise IndexError(f'the graph has {counted(count, "node")}, and none has the number {number}')
    info = state.device.node_info(state.made.graph, handle)
    return NodeAt(call, number, handle, names.sources[number], info)


def name_nodes(state: GraphState, call: str) -> None:
    """Look up the handles of the nodes, by number.

    After an update CUDA does not report which node replaced which (two lanes that were recorded in the other order
    are paired by their kinds). So the executable graph is instantiated anew, once, from the definition.
    """
    if state.made.source != state.made.graph:
        try:
            state.made = state.made.instantiated(state.device, state.recording.by_priority)
        except CudaCallError as error:
            rule = 'After an update it needs another executable graph beside the present one, and CUDA makes none.'
            raise refused(call, rule, AGAIN, error) from error
        aim(state)
    mine = state.device.graph_nodes(state.made.graph)
    numbers = dict(enumerate(mine))
    if state.plan is not None:
        inside = set(mine)
        numbers = {number: handle for handle, number in state.look().numbers.items() if handle in inside}
    state.names.handles.update(numbers)
    state.names.sources.update(numbers)


def forget_nodes(state: GraphState) -> None:
    """Another executable graph, or another definition, is the graph now: its nodes have other handles."""
    state.names, state.index = NodeNames(), None


def switch(state: GraphState, at: NodeAt, on: bool) -> None:
    """Let the executable graph run a node, or not."""
    try:
        state.device.node_enable(state.made.graphExec, at.source, on)
    except CudaCallError as error:
        raise refused(at.call, f'CUDA refuses this change of {at.words}.', AGAIN, error) from None
    (state.names.off.discard if on else state.names.off.add)(at.number)
    state.recording.timeline = None
    for one in state.alterations:
        one.switched(state, 'a node was switched on or off before the first launch')


def switch_off(state: GraphState, call: str, numbers: Iterable[int]) -> None:
    """Let the executable graph run none of these nodes."""
    for number in numbers:
        switch(state, node_at(state, call, number), False)


def after_change(state: GraphState) -> None:
    """Nodes touch other memory than before."""
    for one in state.alterations:
        one.after_change(state)
