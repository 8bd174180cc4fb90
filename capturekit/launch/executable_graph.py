"""A graph's definition together with its executable graph, and the owners that destroy the two."""

from __future__ import annotations

import atexit
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from capturekit.launch.plan import Plan


class _Owner:
    """What CuPy did not make, a definition, an executable graph or a plan: it is destroyed with the last reference."""

    def __init__(self, destroy: Callable[[], Any]) -> None:
        self._destroy = destroy

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing():
            self._destroy()


@dataclass(frozen=True, eq=False)
class ExecutableGraph:
    """A definition (``cudaGraph_t``) and its executable graph (``cudaGraphExec_t``, 0 where there is none yet).

    ``definition`` and ``executable`` are what owns the two: each is destroyed with the last reference to its owner.
    ``source`` is the graph that was instantiated. It lives as long as ``executable`` does, because its nodes are the
    names by which CUDA knows those of the executable graph; after an update it is another one than ``graph``.
    """

    graph: int
    graphExec: int
    host_funcargs: Any
    definition: Any
    executable: Any
    source: int

    @classmethod
    def of_cupy(cls, made: Any) -> ExecutableGraph:
        """Make it of a graph that CuPy has recorded and instantiated; CuPy's object owns both."""
        return cls(int(made.graph), int(made.graphExec), made.host_funcargs, made, made, int(made.graph))

    @classmethod
    def of_plan(cls, plan: Plan, host_funcargs: Any) -> ExecutableGraph:
        """Make it of the first part of a plan, which owns all parts."""
        first, owner = plan.parts[0], _Owner(plan.close)
        return cls(first.graph, first.executable, host_funcargs, owner, owner, first.graph)

    @classmethod
    def of_definition(cls, device: Any, graph: int, host_funcargs: Any) -> ExecutableGraph:
        """Make it of a definition that is ours, without an executable graph."""
        return cls(graph, 0, host_funcargs, _Owner(partial(device.graph_destroy, graph)), None, graph)

    @property
    def by_cupy(self) -> bool:
        """True where CuPy has instantiated it, so that CuPy's own launch is the quickest."""
        return self.executable is self.definition and not isinstance(self.definition, _Owner)

    def instantiated(self, device: Any, by_priority: bool) -> ExecutableGraph:
        """The same definition with an executable graph made from it now."""
        x = int(device.graph_instantiate(self.graph, by_priority))
        owner = (self.definition, _Owner(partial(device.graph_exec_destroy, x)))  # a tuple's last one goes first
        return replace(self, graphExec=x, executable=owner, source=self.graph)

    def updated(self, definition: ExecutableGraph) -> ExecutableGraph:
        """This executable graph, which was updated to run another definition."""
        return replace(definition, graphExec=self.graphExec, executable=self.executable, source=self.source)


#: Graphs that have to be closed before the process ends. ``ncclCommDestroy`` waits, possibly forever, until no graph is
#: left that holds a collective of the communicator; and at the end Python drops objects in an unknown order.
_GRAPHS: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_end(graph: Any) -> None:
    """Close a graph when the process ends, unless it is gone before."""
    if not _GRAPHS:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _GRAPHS.add(graph)


def _close_all() -> None:
    for graph in list(_GRAPHS):
        graph.close()
