"""Graphs that have to be closed before the process ends.

``ncclCommDestroy`` waits, possibly forever, until no graph is left that holds a collective of the communicator. When
the process ends, Python drops the remaining objects in an unknown order, and graphs are no longer destroyed.
"""

from __future__ import annotations

import atexit
import weakref
from typing import Any

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
