"""Changes of single nodes of a graph after its recording.

Launches run the executable graph, and ``graph.nodes`` reads the definition. Each change is made in both, so that
``graph.nodes`` shows what the next launch runs. CUDA C++ Programming Guide, "Updating Instantiated Graphs",
"Individual Node Update".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from capturekit.analysis.node_view import Node
from capturekit.driver.kernel_args import encode
from capturekit.driver.node_writer import Change
from capturekit.graph.addresses import NodeAt
from capturekit.graph.given import fits_device, is_array, positive, three
from capturekit.graph.half_changed import whole_or_closed
from capturekit.graph.launching import aim
from capturekit.graph.nodes import AGAIN, after_change, node_at, switch
from capturekit.graph.refused import refused
from capturekit.graph.state import GraphState, Lent
from capturekit.graph.whole import must_be_whole, together
from capturekit.launch.at_exit import close_at_end
from capturekit.launch.host_function import HostFunction
from capturekit.model.counted import counted
from capturekit.model.errors import CudaCallError
from capturekit.model.source_line import here

_SWITCHED = ('kernel', 'memcpy', 'memset')
_ONE = (1, 1, 1)


def set_kernel(
    state: GraphState,
    node: Node | int,
    grid: int | Sequence[int] | None,
    block: int | Sequence[int] | None,
    shared: int | None,
    args: Mapping[int, Any] | None,
) -> None:
    """Give a kernel node another grid, block, shared memory or arguments."""
    if args is not None and not isinstance(args, Mapping):
        raise TypeError(f'args must be a mapping of numbers to arguments, got {type(args).__name__}')
    with changing(state, 'Graph.set_kernel()', node, 'kernel') as at:
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
            tuple(detail.get(name, _ONE)) if value is None else three(name, value)
            for name, value in (('grid', grid), ('block', block))
        ]
        nbytes = detail.get('shared', 0) if shared is None else positive('shared', shared, 0)
        arrays = [value for value in (args or {}).values() if is_array(value)]
        _apply(state, at, lambda: state.device.set_kernel(g, at.handle, *shape, nbytes, data), arrays)


def set_memcpy(state: GraphState, node: Node | int, dst: Any, src: Any, nbytes: int | None) -> None:
    """Give a copy node another source, destination or size."""
    with changing(state, 'Graph.set_memcpy()', node, 'memcpy') as at:
        size = at.info.detail['bytes'] if nbytes is None else positive('nbytes', nbytes, 1)
        ends = [_address(state, name, value, size, at) for name, value in (('dst', dst), ('src', src))]
        g = state.made.graph
        _apply(state, at, lambda: state.device.set_memcpy(g, at.handle, *ends, size), [dst, src])


def set_memset(state: GraphState, node: Node | int, dst: Any, value: int | None, nbytes: int | None) -> None:
    """Give a memset node another address, value or size."""
    with changing(state, 'Graph.set_memset()', node, 'memset') as at:
        size = at.info.detail['bytes'] if nbytes is None else positive('nbytes', nbytes, 1)
        now = at.info.detail['value'] if value is None else positive('value', value, 0)
        if now >= 1 << 32:
            raise ValueError(f'value must fit into 32 bits, got {now}')
        to, g = _address(state, 'dst', dst, size, at), state.made.graph
        _apply(state, at, lambda: state.device.set_memset(g, at.handle, to, now, size), [dst])


def set_host(state: GraphState, node: Node | int, fn: Callable[[Any], Any], arg: Any) -> None:
    """Let a host node call ``fn(arg)``."""
    if not callable(fn):
        raise TypeError(f'set_host() takes a function, got {type(fn).__name__}')
    with changing(state, 'Graph.set_host()', node, 'host') as at:
        host, g = HostFunction(fn, here(), 'graph.launch()'), state.made.graph
        call = lambda: host(arg)  # noqa: E731
        _apply(state, at, lambda: state.device.set_host(g, at.handle, call), [])


def set_event(state: GraphState, node: Node | int, event: Any) -> None:
    """Let an event node record, or wait for, another CuPy event."""
    ptr = getattr(event, 'ptr', None)
    if not isinstance(ptr, int):
        raise TypeError(f'set_event() takes a CuPy event, got {type(event).__name__}')
    with changing(state, 'Graph.set_event()', node, 'event record', 'wait event') as at:
        g = state.made.graph
        _apply(state, at, lambda: state.device.set_event(g, at.handle, ptr), [event])


def set_child(state: GraphState, node: Node | int, other: GraphState) -> None:
    """Let a child graph node run what ``other`` runs now."""
    state.index = None  # the child graph has other addresses
    if other is state:
        raise ValueError('a graph can not be in itself')
    if other.device_id != state.device_id:
        raise ValueError(f'the graph lives on device {state.device_id}, the other one on device {other.device_id}')
    with changing(state, 'Graph.set_child()', node, 'graph', beside=other) as at:
        must_be_whole(other, at.call)
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


def set_enabled(state: GraphState, node: Node | int, on: bool) -> None:
    """Let a kernel, a memset or a copy run at launches, or do nothing."""
    with changing(state, 'Graph.enable()' if on else 'Graph.disable()', node, *_SWITCHED) as at:
        switch(state, at, on)


def is_enabled(state: GraphState, node: Node | int) -> bool:
    """Whether a node runs at launches."""
    with changing(state, 'Graph.enabled()', node) as at:
        return at.number not in state.names.off


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


def _apply(state: GraphState, at: NodeAt, change: Callable[[], Change], arrays: list[Any]) -> None:
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


def _address(state: GraphState, name: str, value: Any, nbytes: int, at: NodeAt) -> int:
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
