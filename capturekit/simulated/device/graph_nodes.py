"""Definitions and executable graphs of the simulated device: nodes, what they were given, the edges between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_accesses import Access, Touched, linear, together
from capturekit.driver.node_reader import NodeInfo
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code


@dataclass(frozen=True)
class Given:
    """What a node was given, how its work is made of that, and whether other values may take the place of these.

    ``writes`` are the numbers of the arguments that the work writes; None where only the kernel's author knows.
    ``beside`` is what it reads that is no argument. ``each`` does the work on values in the place of the arguments, if
    the work does the same to each element: it writes into those that ``writes`` names. ``whole`` does it on arrays.
    """

    values: Mapping[str, Any]
    make: Callable[..., Callable[[], None]]
    fits: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] = lambda old, new: True
    writes: frozenset[int] | None = None
    beside: Any = ()
    each: Callable[[Sequence[Any]], None] | None = None
    whole: Callable[[Sequence[Any]], None] | None = None

    def work(self) -> Callable[[], None]:
        return self.make(**self.values)


@dataclass(eq=False)
class GraphNode:
    work: Callable[[], None]
    name: str
    kind: str
    after: frozenset[GraphNode]
    handle: int
    condition: int = 0
    #: The stream's that a kernel was recorded on.
    priority: int = 0
    #: What a conditional node decides: if, while or switch; and the graphs that it may run.
    decides: str = ''
    bodies: tuple[GraphDefinition, ...] = ()
    #: What the work was made of, where that can be changed; of a child graph, what it runs.
    given: Given | None = None
    child: ExecutableGraph | None = None
    #: The child graph, to be looked into.
    inside: GraphDefinition | None = None


@dataclass(eq=False)
class GraphDefinition:
    handle: int
    nodes: list[GraphNode] = field(default_factory=list)
    #: Handle of each condition created on this graph -> its value when a launch begins.
    conditions: dict[int, int] = field(default_factory=dict)
    is_body: bool = False
    #: A conditional node was taken out, and its condition is left without one.
    maimed: bool = False
    #: CUDA has destroyed it with a capture into it that was lost.
    destroyed: bool = False
    #: Where nodes were found, by their handles.
    places: dict[int, int] = field(default_factory=dict, repr=False)

    def has_lost_a_body(self) -> bool:
        """Whether CUDA has destroyed a body of a node: who destroys or instantiates this graph ends the process."""
        return any(body.destroyed or body.has_lost_a_body() for node in self.nodes for body in node.bodies)

    def node(self, handle: int) -> GraphNode | None:
        """The node of this handle; None if there is none."""
        at = self.places.get(handle, -1)
        if not 0 <= at < len(self.nodes) or self.nodes[at].handle != handle:
            self.places = {node.handle: n for n, node in enumerate(self.nodes)}
            at = self.places.get(handle, -1)
        return None if at < 0 else self.nodes[at]


def copies_of(
    nodes: Iterable[GraphNode], changes: Callable[[GraphNode], Mapping[str, Any]] = lambda node: {}
) -> dict[GraphNode, GraphNode]:
    """A copy of each node, which comes after copies; ``changes``: what a copy has otherwise."""
    copies = {node: replace(node, **changes(node)) for node in nodes}
    for copy in copies.values():
        copy.after = frozenset(copies[a] for a in copy.after)
    return copies


@dataclass(eq=False)
class ExecutableGraph:
    """Copies of a graph's nodes as they were when it was instantiated, with its bodies."""

    nodes: list[GraphNode]
    bodies: dict[GraphNode, tuple[ExecutableGraph, ...]]
    conditions: dict[int, int]
    #: Nodes that are disabled; and the nodes by the handles of the graph's own.
    off: set[GraphNode] = field(default_factory=set)
    anchors: dict[int, GraphNode] = field(default_factory=dict)
    by_priority: bool = False
    #: The handle of the graph that it was made of.
    source: int = 0

    @classmethod
    def of(cls, graph: GraphDefinition, by_priority: bool = False) -> ExecutableGraph:
        nodes = list(copies_of(graph.nodes).values())
        bodies = {n: tuple(cls.of(body) for body in n.bodies) for n in nodes if n.bodies}
        conditions = dict(graph.conditions)
        for body in itertools.chain(*bodies.values()):
            conditions.update(body.conditions)
        return cls(nodes, bodies, conditions, anchors={n.handle: n for n in nodes}, by_priority=by_priority)

    def as_now(self) -> ExecutableGraph:
        """What a launch runs that waits, whatever becomes of the graph meanwhile."""
        copies = copies_of(self.nodes)
        bodies = {copies[n]: bodies for n, bodies in self.bodies.items()}
        return replace(self, nodes=list(copies.values()), bodies=bodies, off={copies[n] for n in self.off})

    def allocates_in_a_body(self) -> bool:
        """Whether a body has nodes that allocate or free memory: CUDA then fails to instantiate, or crashes."""
        bodies = itertools.chain(*self.bodies.values())
        return any(allocates(body.nodes) or body.allocates_in_a_body() for body in bodies)

    def used(self) -> set[int]:
        """Conditions that conditional nodes ask for."""
        inside = (body.used() for body in itertools.chain(*self.bodies.values()))
        return {n.condition for n in self.bodies}.union(*inside)


def allocates(nodes: Iterable[GraphNode]) -> bool:
    """Whether any of these nodes allocates or frees memory."""
    return any(node.kind in ('memAlloc', 'memFree') for node in nodes)


#: What is told of a node, of all that it was given.
_TOLD = ('grid', 'block', 'shared', 'dst', 'src', 'value', 'bytes')
#: What can be disabled.
SWITCHED = ('kernel', 'memset', 'memcpy')
#: What can not be copied, nor be in a child graph.
NOT_COPIED = ('conditional', 'memAlloc', 'memFree')


def _fields(values: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """What is told of a node that was given ``values``: details, and the addresses among its arguments."""
    detail = {name: value for name, value in values.items() if name in _TOLD and values.get('block', 0) is not None}
    for name in ('grid', 'block'):
        if name in detail:
            detail[name] = (*detail[name], 1, 1)[:3]
    ends = [detail[name] for name in ('dst', 'src') if name in detail]
    return detail, (*ends, *(one.ptr for one in values.get('args', ()) if hasattr(one, 'ptr')))


def _slots(value: Any) -> Iterator[Any]:
    """The arrays in a value, in lists, tuples and dictionaries."""
    if hasattr(value, 'strides') and hasattr(value, 'ptr'):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _slots(part)


def _touched(slot: Any, writes: bool | None, argument: int) -> Access:
    exact = writes is not None  # who knows what a kernel writes knows how far it goes
    return Access(slot.ptr, slot.shape, slot.strides, slot.dtype.itemsize, writes, exact, argument)


def touched(node: GraphNode) -> Touched:
    """What a node touches."""
    return together(map(touched, node.inside.nodes)) if node.inside is not None else given_to(node.kind, node.given)


def given_to(kind: str, given: Given | None) -> Touched:
    """What work touches that was given this."""
    if given is None:
        return Touched((), kind not in ('kernel', 'memcpy', 'memset', 'host'))
    values, writes = given.values, given.writes
    found = [
        _touched(slot, None if writes is None else number in writes, number)
        for number, value in enumerate(values.get('args', ()))
        for slot in _slots(value)
        if 0 not in slot.shape
    ]
    found += [_touched(slot, False, -1) for slot in _slots(given.beside) if 0 not in slot.shape]
    found += [linear(values[end], values['bytes'], end == 'dst') for end in ('dst', 'src') if end in values]
    return Touched(tuple(found))


def info_of(node: GraphNode) -> NodeInfo:
    """What is known of a node."""
    detail, words = ({}, ()) if node.given is None else _fields(node.given.values)
    return NodeInfo(node.handle, node.kind, node.name, detail, words, 0 if node.inside is None else node.inside.handle)


def argument_of(value: Any, others: Sequence[Any], typed: bool) -> Argument:
    """A value as a kernel gets it. ``typed``: a kernel of CuPy's, which knows what it takes."""
    if hasattr(value, 'ptr'):
        data = int(value.ptr).to_bytes(8, 'little')
        reach = 1 + sum((n - 1) * step for n, step in zip(value.shape, value.strides) if n > 0 and step > 0)
        return Argument(data, str(value.dtype), True, reach) if typed else Argument(data)
    if isinstance(value, np.generic):
        return Argument(value.tobytes(), str(value.dtype) if typed else '', False if typed else None)
    if not isinstance(value, (bool, int, float, complex)):
        return Argument(b'', '', False)
    arrays = [one.dtype for one in others if hasattr(one, 'ptr')] if typed else []
    dtype = np.result_type(*arrays, value) if arrays else np.asarray(value).dtype
    return Argument(np.asarray(value).astype(dtype).tobytes(), str(dtype) if typed else '', False if typed else None)


def decoded(old: Any, argument: Argument, data: bytes) -> Any:
    """The value that bytes stand for in the place of another."""
    if data == argument.data:
        return old
    if hasattr(old, 'ptr'):
        return replace(old, ptr=int.from_bytes(data, 'little'))
    if isinstance(old, np.generic):
        return np.frombuffer(data, old.dtype)[0]
    return np.frombuffer(data, argument.dtype or np.asarray(old).dtype)[0].item()


class Aim:
    """A kernel's node whose addresses are to be changed often."""

    def __init__(self, device: Any, g: int, node: int, arguments: list[Argument]) -> None:
        self.arguments = arguments
        self._device, self._g, self._node = device, g, node
        self._data = [bytearray(one.data) for one in arguments]

    def write(self, number: int, offset: int, address: int) -> None:
        """Put an address into an argument; :meth:`put` brings it to the graph."""
        self._data[number][offset : offset + 8] = address.to_bytes(8, 'little')

    def runner(self, x: int, source: int) -> Callable[[], int]:
        """Return a function that brings the arguments to an executable graph alone, and returns CUDA's code."""
        recorded = [bytes(one.data) for one in self.arguments]

        def run() -> int:
            try:
                self.put(x, source)
            except CudaCallError as error:
                return int(error.code)
            self._define(recorded)
            return 0

        return run

    def put(self, x: int, source: int) -> None:
        """``cudaGraphKernelNodeSetParams`` and ``cudaGraphExecKernelNodeSetParams``."""
        self.define()
        self._device.node_take(x, source, self._g, self._node)

    def define(self) -> None:
        """``cudaGraphKernelNodeSetParams``: of the definition alone."""
        self._define([bytes(one) for one in self._data])

    def _define(self, arguments: list[bytes]) -> None:
        detail = self._device.node_info(self._g, self._node).detail
        form = (detail.get('grid', (1, 1, 1)), detail.get('block', (1, 1, 1)), detail.get('shared', 0))
        self._device.set_kernel(self._g, self._node, *form, arguments)


class Refused(Exception):
    """CUDA's reason, and the node of the new graph."""


def paired(old: ExecutableGraph, new: ExecutableGraph, by_priority: bool = False) -> dict[GraphNode, GraphNode]:
    """Each node of an executable graph with the one of the new graph that takes its place. Raises Refused.

    CUDA pairs from the last nodes backwards: the nodes that nothing comes after in the order in which they were made,
    then what each comes after, one by one (CUDA Driver API, ``cuGraphExecUpdate``).
    ``by_priority``: nodes have their own priorities, which can not change.
    """
    if len(old.nodes) != len(new.nodes):
        raise Refused('topology changed', None)
    waiting = _zipped(_ends(old), _ends(new), None)
    pairs: dict[GraphNode, GraphNode] = {}
    taken: dict[GraphNode, GraphNode] = {}
    while waiting:
        a, b = waiting.pop()
        if a in pairs or b in taken:
            if pairs.get(a) is not b:
                raise Refused('topology changed', b)
            continue
        pairs[a], taken[b] = b, a
        _alike(old, a, new, b, by_priority)
        waiting += _zipped(_in_order(a.after), _in_order(b.after), b)
    return pairs


def _in_order(nodes: Any) -> list[GraphNode]:
    return sorted(nodes, key=lambda n: n.handle)  # handles are counted up


def _ends(graph: ExecutableGraph) -> list[GraphNode]:
    """The last nodes. Of different kinds their order does not matter to the driver, whatever the guide says (13.0)."""
    followed = {a for n in graph.nodes for a in n.after}
    return sorted((n for n in graph.nodes if n not in followed), key=lambda n: n.kind)


def _zipped(old: list[GraphNode], new: list[GraphNode], node: GraphNode | None) -> list[tuple[GraphNode, GraphNode]]:
    if len(old) != len(new):
        raise Refused('topology changed', node)
    return list(zip(old, new))


def _alike(old: ExecutableGraph, a: GraphNode, new: ExecutableGraph, b: GraphNode, by_priority: bool) -> None:
    """Refuse what an update can not change of a node."""
    if a.kind != b.kind:
        raise Refused('node type changed', b)
    if by_priority and a.priority != b.priority:
        raise Refused('attributes changed', b)
    bodies, others = old.bodies.get(a, ()), new.bodies.get(b, ())
    if (a.decides, len(bodies)) != (b.decides, len(others)):
        raise Refused('parameters changed', b)
    for one, other in zip(bodies, others):
        paired(one, other, by_priority)
    if a.child is not None and b.child is not None:
        paired(a.child, b.child, by_priority)


def wired(nodes: Sequence[GraphNode], before: Mapping[int, set[int]]) -> list[GraphNode]:
    """Copies of nodes, with the same handles, that come after others than these. A circle is refused."""
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        raise CudaCallError(Code.cudaErrorInvalidValue, 'graphAddDependencies') from None
    copies = {n.handle: replace(n) for n in nodes}
    for handle, copy in copies.items():
        copy.after = frozenset(copies[a] for a in before[handle])
    return list(copies.values())
