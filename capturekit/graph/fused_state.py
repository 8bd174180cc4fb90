"""What a graph with fused kernels has to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from capturekit.analysis.fused import Fused
from capturekit.analysis.node_view import Look, Node
from capturekit.graph.first_launch import FirstLaunch
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.recording import Span


@dataclass
class FusedState:
    """What a graph with fused kernels has to know.

    Attributes:
        report: the report that ``fuse()`` returned.
        recorded: the graph as it was recorded; None where it can not be had back.
        spans: which line made which nodes, as recorded.
        members: by the handle of a fused kernel's node, the nodes that it replaces.
        launch: launches the graph, given its state and a stream's handle, with the comparison that is still to come.
        trial: the first launch, which is still to be compared; None after it.
        keeps: what the kernels' code lives in.
        by_calls: whether calls of a graphed function launch it.
        fast: whether its results may be rounded otherwise.
    """

    call: ClassVar[str] = 'Graph.fuse()'

    report: Fused
    recorded: ExecutableGraph | None
    spans: list[Span]
    members: dict[int, tuple[Node, ...]]
    launch: Callable[[Any, int], None]
    trial: FirstLaunch | None = None
    keeps: list[Any] = field(default_factory=list)
    by_calls: bool = False
    fast: bool = False

    def not_compared(self, why: str) -> None:
        """Do without the comparison."""
        if self.trial is not None:
            self.trial, self.report.compared = None, f'not compared: {why}'


def with_members(look: Look, members: Mapping[int, tuple[Node, ...]]) -> Look:
    """A look at a graph in which fused kernels have the nodes that they replace."""
    for handle, replaced in members.items():
        number = look.numbers.get(handle)
        if number is not None:
            node = look.nodes[number]
            lines = [f'{one.name} at {one.at}' if one.at is not None else one.name for one in replaced]
            look.nodes[number] = replace(node, inner=replaced, detail={**node.detail, 'fused': lines})
    return look
