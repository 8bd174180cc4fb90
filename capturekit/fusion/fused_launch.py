"""The first launch of a graph with fused kernels: it is compared with one without them, and may undo them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from capturekit.analysis.node_memory import NotRepeatableError, joined, written_ranges
from capturekit.analysis.node_view import Look, Node, fill
from capturekit.fusion.fusible import Fusible
from capturekit.fusion.report import Fused
from capturekit.graph.addresses import NodeAt
from capturekit.graph.first_launch import FirstLaunch
from capturekit.graph.half_changed import whole_or_closed
from capturekit.graph.launching import aim
from capturekit.graph.nodes import forget_nodes
from capturekit.graph.refused import refused
from capturekit.graph.sight import OURS, unsteady_of
from capturekit.graph.state import Alteration, GraphState
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.counted import counted
from capturekit.model.counters import LOG
from capturekit.model.recording import Span
from capturekit.model.source_line import here

if TYPE_CHECKING:
    from capturekit.fusion.lines import Fusion

_CALL = 'Graph.fuse()'


@dataclass
class FusedState(Alteration):
    """What a graph with fused kernels has to know.

    Attributes:
        report: the report that ``fuse()`` returned.
        recorded: the graph as it was recorded; None where it can not be had back.
        spans: which line made which nodes, as recorded.
        members: by the handle of a fused kernel's node, the nodes that it replaces.
        fuse: fuses another graph, given its state and whether results may be rounded otherwise.
        trial: the first launch, which is still to be compared; None after it.
        keeps: what the kernels' code lives in.
        by_calls: whether calls of a graphed function launch it.
        fast: whether its results may be rounded otherwise.
    """

    call: ClassVar[str] = _CALL
    as_aimed: ClassVar[bool] = False

    report: Fused
    recorded: ExecutableGraph | None
    spans: list[Span]
    members: dict[int, tuple[Node, ...]]
    fuse: Callable[[GraphState, bool], Fused]
    trial: FirstLaunch | None = None
    keeps: list[Any] = field(default_factory=list)
    by_calls: bool = False
    fast: bool = False

    def not_compared(self, why: str) -> None:
        """Do without the comparison."""
        if self.trial is not None:
            self.trial, self.report.compared = None, f'not compared: {why}'

    def launch(self, state: GraphState, stream: int) -> None:
        first_launch(state, stream)

    def look(self, look: Look) -> Look:
        return with_members(look, self.members)

    def of_copy(self, copies: Mapping[int, int]) -> FusedState:
        compared = 'not compared: the graph is a copy' if self.trial is not None else self.report.compared
        members = {copies[handle]: nodes for handle, nodes in self.members.items()}
        return replace(self, report=replace(self.report, compared=compared), recorded=None, members=members, trial=None)

    def before_change(self, state: GraphState, why: str, node: NodeAt | None = None) -> None:
        """The graph does something else from now on than the graph that was recorded."""
        if node is not None and node.handle in self.members:
            made_of = counted(len(self.members[node.handle]), 'recorded node')
            rule = f'Node {node.number} is a fused kernel, made of {made_of}.'
            raise refused(node.call, rule, 'Record again without fusing, and change the node there.')
        waits = self.trial is not None
        self.not_compared(why)
        self.recorded = None
        if waits:
            aim(state)

    def make_alike(self, state: GraphState, other: GraphState) -> list[Callable[[bool], None]]:
        if fused_of(other) is not None or not self.fuse(other, self.fast):
            return []
        return [lambda instantiated: None if instantiated else unfuse(other, '')]

    def make_unlike(self, other: GraphState) -> None:
        if self.recorded is not None:
            unfuse(other, 'another graph that is not fused has taken it over')

    def handed_over(self) -> None:
        super().handed_over()
        self.recorded = None


def fused_of(state: GraphState) -> FusedState | None:
    """What there is to know of a graph's fused kernels; None where it has none."""
    return state.altered_by(FusedState)


def with_members(look: Look, members: Mapping[int, tuple[Node, ...]]) -> Look:
    """A look at a graph in which fused kernels have the nodes that they replace."""
    for handle, replaced in members.items():
        number = look.numbers.get(handle)
        if number is not None:
            node = look.nodes[number]
            lines = [f'{one.name} at {one.at}' if one.at is not None else one.name for one in replaced]
            look.nodes[number] = replace(node, inner=replaced, detail={**node.detail, 'fused': lines})
    return look


class Besides(NamedTuple):
    """What a launch writes by addresses that no node shows: ranges of memory, and the arrays that lie there."""

    ranges: Sequence[tuple[int, int]]
    arrays: Sequence[Any]


def trial_of(
    state: GraphState, report: Fused, fusible: Fusible, fusion: Fusion, also: Besides | None
) -> FirstLaunch | None:
    """The comparison of the first launch. ``also``: memory that is written besides; None: nothing is."""
    sight, own = fusible.sight, fusible.own
    try:
        ranges = written_ranges(
            sight.platform,
            sight.definitions,
            state.made.graph,
            sight.blocks,
            OURS if also is not None else '',
            own,
        )
    except NotRepeatableError as error:
        report.compared = f'not compared: {error}'
        return None
    report.compared = 'not yet'
    every = joined([*ranges, *(also.ranges if also is not None else ())])
    again, unseen = also is not None, state.memory.unseen()
    loose = unsteady_of(sight, state.made.graph)
    arrays = also.arrays if also is not None else ()
    rounded = fusible.rounded(fusion, arrays) if report.fast else ()
    return FirstLaunch(sight.platform, state.made, every, sight.blocks, again, unseen, loose, rounded)


def first_launch(state: GraphState, stream: int) -> None:
    """Launch on a stream, by its handle, with the comparison that is still to come."""
    fused = fused_of(state)
    assert fused is not None and fused.trial is not None
    for one in state.alterations:
        if one is not fused:
            one.not_compared('the launch is compared with the graph before it was fused')
    trial = fused.trial
    with state.relaxed():
        try:
            apart = trial.run(state.made.graphExec, stream)
            same = f'the same as without fused kernels{trial.besides}'
            fused.report.compared = f'differs: {apart}' if apart else same
        except MemoryError as error:
            fused.report.compared, apart = f'not compared: no memory for copies ({error})', ''
            state.device.graph_launch(state.made.graphExec, stream)
        fused.trial = None
        with whole_or_closed(state, _CALL):
            if apart:
                unfuse(state, f'the first launch gave something else: {apart}')
            aim(state)
    if apart:
        words = f'{_CALL} is undone: the first launch gave something else than without it ({apart})'
        if fused.by_calls:
            LOG.warning('%s', words)
        else:
            _warn(words)


def unfuse(state: GraphState, why: str) -> None:
    """Be the graph again that was recorded."""
    fused = fused_of(state)
    assert fused is not None and fused.recorded is not None
    fused.report.kept = why
    state.alterations = []
    state.made = fused.recorded
    forget_nodes(state)
    state.recording.spans = fused.spans
    aim(state)  # the launch was bound to an executable graph that is gone
    note_graph(state)


def note_graph(state: GraphState) -> None:
    """The recording tells of the nodes and edges that the graph has now."""
    recording, g = state.recording, state.made.graph
    recording.timeline = None
    recording.node_count = state.device.graph_node_count(g)
    recording.edge_count = state.device.graph_edge_count(g)
    if recording.arrows or recording.graph:
        fill(recording, state.look())


def _warn(words: str) -> None:
    at = here()
    if at is None:
        warnings.warn(words, RuntimeWarning, stacklevel=3)
    else:
        warnings.warn_explicit(words, RuntimeWarning, at.file, at.line)
