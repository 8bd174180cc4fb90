"""The edges of the driver's graphs: read with the data that they carry, removed and added.

CUDA Driver API, "Graph Management": ``cuGraphGetEdges``, ``cuGraphAddDependencies``, ``cuGraphRemoveDependencies``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from capturekit.driver.node_reader import Reader
from capturekit.model.errors import CudaCallError


class EdgeWriter:
    """Reads and changes the edges of graphs of the driver's."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._call = reader.call

    def edges(self, graph: int) -> list[tuple[int, int, int]]:
        """(from, to, data) of each edge; the eight bytes of data are 0 where the end of a node is waited for."""
        count = ctypes.c_size_t()
        self._edges('cuGraphGetEdges', graph, None, None, None, ctypes.byref(count))
        if not count.value:  # then asking for them is an error
            return []
        starts, ends = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
        data = (ctypes.c_uint64 * count.value)()
        self._edges('cuGraphGetEdges', graph, starts, ends, data, ctypes.byref(count))
        return [(a or 0, b or 0, how) for a, b, how in zip(starts, ends, data)]

    def remove(self, graph: int, edges: Sequence[tuple[int, int, int]]) -> None:
        """``cuGraphRemoveDependencies``."""
        self._change('cuGraphRemoveDependencies', graph, edges)

    def add(self, graph: int, edges: Iterable[tuple[int, int]]) -> None:
        """``cuGraphAddDependencies``: the second node of an edge waits for the end of the first."""
        self._change('cuGraphAddDependencies', graph, [(a, b, 0) for a, b in edges])

    def rewire(self, graph: int, removed: Sequence[tuple[int, int]], added: Sequence[tuple[int, int]]) -> None:
        """Remove edges and add others. Either all of it is done or nothing.

        Some edges let a kernel begin before the one before it has ended, which such a kernel then waits for itself
        (programmatic launch: cuBLAS records them). What is added is an ordinary edge, and so is every other edge into
        its second node afterwards: the kernel finds that its wait is over, and begins later than it might.
        """
        data = {(a, b): how for a, b, how in self.edges(graph)}
        out, into = set(removed), {b for _a, b in added}
        early = [(a, b) for (a, b), how in data.items() if how and b in into and (a, b) not in out]
        old = [(a, b, data.get((a, b), 0)) for a, b in [*removed, *early]]
        self.remove(graph, old)
        try:
            self.add(graph, [*added, *early])
        except CudaCallError:
            self._change('cuGraphAddDependencies', graph, old)
            raise

    def _change(self, call: str, graph: int, edges: Sequence[tuple[int, int, int]]) -> None:
        if not edges:
            return
        starts, ends = ((ctypes.c_void_p * len(edges))(*side) for side in list(zip(*edges))[:2])
        data = (ctypes.c_uint64 * len(edges))(*(how for _a, _b, how in edges))
        self._edges(call, graph, starts, ends, data, ctypes.c_size_t(len(edges)))

    def _edges(self, call: str, graph: int, starts: Any, ends: Any, data: Any, count: Any) -> None:
        """Drivers before CUDA 12.3 have no data at their edges, nor the functions that take it."""
        if hasattr(self._reader.library, f'{call}_v2'):
            self._call(f'{call}_v2', ctypes.c_void_p(graph), starts, ends, data, count)
        else:
            self._call(call, ctypes.c_void_p(graph), starts, ends, count)


# -- graphs and nodes of other libraries are known by their types: CUDA crashes where a number is no graph's handle ---


_GRAPHS, _NODES = ('CUgraph', 'cudaGraph_t'), ('CUgraphNode', 'cudaGraphNode_t')
#: What is accepted as a graph, in words.
ACCEPTED = 'a cuda.core GraphDefinition or a cudaGraph_t of cuda-bindings'


def handle_of_graph(given: Any) -> int | None:
    """The handle of a graph of cuda-bindings or cuda.core; None for anything else.

    Raises:
        ValueError: it is a null handle.
    """
    handle = _handle(given, _GRAPHS)
    if handle == 0:
        raise ValueError(f'the {type(given).__name__} is a null handle')
    return handle


def handle_of_node(given: Any) -> int | None:
    """The handle of a node of cuda-bindings or cuda.core, or a number; None for anything else.

    A number does no harm here: it is looked for among the nodes of the graph.
    """
    return given if isinstance(given, int) and not isinstance(given, bool) else _handle(given, _NODES)


def told(given: Any) -> str:
    """Describe what is not accepted as a graph, with the way to give a number."""
    if isinstance(given, int) and not isinstance(given, bool):
        return f'the number {given!r}: if it is a graph, say so with cuda.bindings.runtime.cudaGraph_t(number)'
    return type(given).__name__


def _handle(given: Any, names: tuple[str, ...]) -> int | None:
    if type(given).__module__.startswith('cuda.core'):
        given = getattr(given, 'handle', None)
    of_bindings = any(one.__name__ in names and one.__module__.startswith('cuda.') for one in type(given).__mro__)
    return int(given) if of_bindings else None
