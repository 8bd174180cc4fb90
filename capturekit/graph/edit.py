"""Changes of single nodes of a graph after its recording.

Launches run the executable graph, and ``graph.nodes`` reads the definition. Each change is made in both, so that
``graph.nodes`` shows what the next launch runs. CUDA C++ Programming Guide, "Updating Instantiated Graphs",
"Individual Node Update".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from capturekit.analysis.node_view import Node
from capturekit.driver.node_writer import Change
from capturekit.graph.addresses import NodeAt
from capturekit.graph.launching import aim
from capturekit.graph.refused import refused
from capturekit.graph.state import (
    GraphState,
    Lent,
    NodeNames,
    fits_device,
    is_array,
    must_be_whole,
    together,
    whole_or_closed,
)
from capturekit.launch.executable_graph import close_at_end
from capturekit.model.counted import counted
from capturekit.model.errors import CudaCallError
from capturekit.model.skipped_exits import contextmanager

# -- the nodes of a graph by their numbers, and which of them are switched on -----------------------------------------


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


def set_child(state: GraphState, node: Node | int, other: GraphState) -> None:
    """Let a child graph node run what ``other`` runs now."""
    state.index = None  # the child graph has other addresses
    if other is state:
        raise ValueError('a graph can not be in itself')
    if other.device_id != state.device_id:
        raise ValueError(f'the graph lives on device {state.device_id}, the other one on device {other.device_id}')
    with changing(state, 'Graph.set_child()', node, 'graph', beside=other) as at:
        must_be_whole(other, at.call)
        if other.names.off:
            raise refused(at.call, 'Nodes of the other graph are disabled, and as a child it would run all.', AGAIN)
        child = other.made.graph
        try:
            state.device.child_take(state.made.graphExec, at.source, child)
        except CudaCallError as error:
            rule = f'CUDA refuses that {at.words} runs this graph: its nodes or edges differ.'
            raise refused(at.call, rule, AGAIN, error) from None
        with whole_or_closed(state, at.call):
            state.device.set_child(state.made.graph, at.handle, child)
            state.memory.keep(Lent(other.memory, other.made, other.put_in))
            if state.memory.join_turns(other.memory):
                aim(state)
            if other.memory.to_close:
                close_at_end(state)
            after_change(state)


@contextmanager
def changing(
    state: GraphState, call: str, node: Node | int, *kinds: str, beside: GraphState | None = None
) -> Iterator[NodeAt]:
    """Hold the locks of the graph and of the one ``beside`` it, and find a node of one of these kinds."""
    if isinstance(node, bool) or not isinstance(node, (Node, int)):
        raise TypeError(f'{call} takes one of graph.nodes, or its number, got {type(node).__name__}')
    number = node.number if isinstance(node, Node) else node
    with together(state, beside):
        must_be_whole(state, call)
        with state.relaxed():
            at = node_at(state, call, number)
            if kinds and at.info.kind not in kinds:
                wanted = ' or '.join(kinds)
                raise TypeError(f'{call} takes a node of kind {wanted}, and {at.words} is of kind {at.info.kind}')
            yield at


def apply(state: GraphState, at: NodeAt, change: Callable[[], Change], arrays: list[Any]) -> None:
    """Change the definition, let the executable graph take it over, and keep what the node needs from now on."""
    for one in state.alterations:
        one.before_change(state, 'a node was changed before the first launch', at)
    state.index = None  # the node's addresses change
    try:
        done = change()
        try:
            state.device.node_take(state.made.graphExec, at.source, state.made.graph, at.handle)
        except BaseException:
            with whole_or_closed(state, at.call):
                done.undo()
            raise
    except CudaCallError as error:
        raise refused(at.call, f'CUDA refuses this change of {at.words}.', AGAIN, error) from None
    state.recording.timeline = None  # it describes what the graph did before
    for thing in (*arrays, done.keep):
        if thing is not None and not isinstance(thing, int):
            state.memory.keep(getattr(thing, 'data', thing) if is_array(thing) else thing)
    state.declared.pop(at.handle, None)  # it was said of what the node did before
    after_change(state)


def address(state: GraphState, name: str, value: Any, nbytes: int, at: NodeAt) -> int:
    """The address of an end of a copy or a memset."""
    if value is None:
        return int(at.info.detail[name])
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    fits_device(state, value)
    host = getattr(value, '__array_interface__', None) if not is_array(value) else None
    if not is_array(value) and (host is None or at.info.kind == 'memset'):
        raise TypeError(f'{name} must be an array or an address, got {type(value).__name__}')
    if not value.flags['C_CONTIGUOUS'] if host else not value.flags.c_contiguous:
        raise ValueError(f'the elements of {name} do not lie one after the other')
    if value.nbytes < nbytes:
        raise ValueError(f'{name} has {counted(value.nbytes, "byte")}, and {nbytes} are to be moved or set')
    return int(host['data'][0]) if host else int(value.data.ptr)
