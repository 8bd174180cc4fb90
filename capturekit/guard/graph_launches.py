"""Launches and uploads of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capturekit.guard.graph_inputs import GraphInputs
from capturekit.guard.state import State
from capturekit.guard.stream_work import StreamWork
from capturekit.model.rules import Operation

_O = Operation


class GraphLaunches:
    """Launches and uploads of graphs."""

    def __init__(self, state: State, work: StreamWork, inputs: GraphInputs) -> None:
        self.state = state
        self.work = work
        self.inputs = inputs

    def graph_launch(self, original: Callable[..., Any], graph: Any, stream: Any = None) -> Any:
        self.inputs.launched(graph)
        ptr = self.state.platform.cupy.cuda.get_current_stream().ptr if stream is None else stream.ptr
        return self.work.on_stream(_O.GRAPH_LAUNCH, 'Graph.launch()', ptr, lambda: original(graph, stream))

    def graph_upload(self, original: Callable[..., Any], graph: Any, stream: Any = None) -> Any:
        ptr = self.state.platform.cupy.cuda.get_current_stream().ptr if stream is None else stream.ptr
        return self.work.on_stream(_O.GRAPH_UPLOAD, 'Graph.upload()', ptr, lambda: original(graph, stream))

    def launching(self, upload: bool, ptr: int) -> None:
        """Judge the launch or upload of a capturekit graph on a stream, before it is made."""
        substitute = self.state.inside.substitute
        if substitute is not None and (self.state.mine() is None or not substitute.asks_calls_only):
            substitute.launching(upload, ptr)
            return
        operation, call = (_O.GRAPH_UPLOAD, 'Graph.upload()') if upload else (_O.GRAPH_LAUNCH, 'Graph.launch()')
        self.work.on_stream(operation, call, ptr, lambda: None)

    def plain_launch(self, graph: Any) -> Callable[[], None]:
        """CuPy's own launch of a graph, without the wrapper, as a bound method."""
        bound: Callable[[], None] = self.state.installation.originals['cupy.cuda.graph.Graph.launch'].__get__(graph)
        return bound

    def runtime_launch(self, original: Callable[..., Any], graph: int, stream: int) -> Any:
        self.inputs.ran(graph)
        go = lambda: original(graph, stream)  # noqa: E731
        return self.work.on_stream(_O.GRAPH_LAUNCH, 'cupy.cuda.runtime.graphLaunch()', stream, go)

    def runtime_upload(self, original: Callable[..., Any], graph: int, stream: int) -> Any:
        go = lambda: original(graph, stream)  # noqa: E731
        return self.work.on_stream(_O.GRAPH_UPLOAD, 'cupy.cuda.runtime.graphUpload()', stream, go)
