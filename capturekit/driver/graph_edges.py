"""The edges of the driver's graphs: read with the data that they carry, removed and added.

CUDA Driver API, "Graph Management": ``cuGraphGetEdges``, ``cuGraphAddDependencies``, ``cuGraphRemoveDependencies``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from capturekit.driver.checked_calls import CheckedCalls
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code


class EdgeWriter(CheckedCalls):
    """Reads and changes the edges of graphs of the driver's."""

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
        if hasattr(self._cuda, f'{call}_v2'):
            self._call(f'{call}_v2', ctypes.c_void_p(graph), starts, ends, data, count)
        else:
            self._call(call, ctypes.c_void_p(graph), starts, ends, count)


class Rewiring:
    """The verb of :class:`capturekit.driver.cuda.CudaDevice` that changes edges. It needs the driver's library."""

    reader: Any

    def graph_rewire(self, g: int, removed: Sequence[tuple[int, int]], added: Sequence[tuple[int, int]]) -> None:
        """``cudaGraphRemoveDependencies`` and ``cudaGraphAddDependencies``: pairs (from, to) of nodes of a definition.

        No executable graph is changed by it. Where CUDA refuses, the definition is as it was.
        """
        if self.reader is None:
            raise CudaCallError(Code.cudaErrorNotSupported, "changing edges: the driver's library can't be reached")
        EdgeWriter(self.reader).rewire(g, removed, added)
