"""The first launch of a graph with fused kernels: it is compared with one without them, and may undo them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from capturekit.analysis.fused import Fused
from capturekit.analysis.node_memory import NotRepeatableError, joined, written_ranges
from capturekit.analysis.node_view import fill
from capturekit.graph.first_launch import FirstLaunch
from capturekit.graph.fusible import Fusible
from capturekit.graph.half_changed import whole_or_closed
from capturekit.graph.launching import aim
from capturekit.graph.new_edges import unsteady_of
from capturekit.graph.nodes import forget_nodes
from capturekit.graph.relaned_launch import OURS
from capturekit.graph.state import GraphState
from capturekit.model.counters import LOG
from capturekit.model.source_line import here

if TYPE_CHECKING:
    from capturekit.analysis.fusion import Fusion

_CALL = 'Graph.fuse()'


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
    fused = state.fused
    assert fused is not None and fused.trial is not None
    if state.new_edges is not None:
        state.new_edges.not_compared('the launch is compared with the graph before it was fused')
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
    fused = state.fused
    assert fused is not None and fused.recorded is not None
    fused.report.kept = why
    state.fused = state.new_edges = None
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
