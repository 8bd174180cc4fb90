"""Graphs that have to be closed before the process ends.

``ncclCommDestroy`` waits, without end, until no graph is left that holds a collective of the communicator. At its end
Python drops the remaining objects in an order of its own, and destroys no graphs then.
"""

from __future__ import annotations

import atexit
import weakref
from typing import Any

_GRAPHS: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_end(graph: Any) -> None:
    """Close a graph when the process ends, if it lives so long."""
    if not _GRAPHS:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _GRAPHS.add(graph)


def _close_all() -> None:
    for graph in list(_GRAPHS):
        graph.close()
