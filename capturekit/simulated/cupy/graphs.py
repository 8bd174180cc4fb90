"""``cupy.cuda.Graph``."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from . import current, runtime


class Graph:
    """A CUDA graph and its executable form; made by ``Stream.end_capture()``."""

    graph: int
    graphExec: int
    host_funcargs: list[Any] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            'currently this class cannot be initiated by the user and must be created via stream capture'
        )

    def __del__(self) -> None:
        if getattr(self, 'graph', 0) > 0:
            runtime.graphDestroy(self.graph)
        if getattr(self, 'graphExec', 0) > 0:
            runtime.graphExecDestroy(self.graphExec)

    def launch(self, stream: Any = None) -> None:
        """Launch the graph on ``stream``, by default on the current stream."""
        runtime.graphLaunch(self.graphExec, current.get_current_stream_ptr() if stream is None else stream.ptr)

    def upload(self, stream: Any = None) -> None:
        """Upload the graph to ``stream``, by default to the current stream."""
        runtime.graphUpload(self.graphExec, current.get_current_stream_ptr() if stream is None else stream.ptr)

    def debug_dot_str(self, flags: int = 0) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'graph.dot')
            runtime.graphDebugDotPrint(self.graph, path, flags)
            with open(path) as text:
                return text.read()


def from_stream(g: int, host_funcargs: list[Any] | None) -> Graph:
    """Return the object for a captured graph, which it instantiates."""
    executable = runtime.graphInstantiate(g)
    graph = Graph.__new__(Graph)
    graph.graph, graph.graphExec, graph.host_funcargs = g, executable, host_funcargs
    return graph
