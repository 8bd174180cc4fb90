"""The first launch of a graph that was relaned: it is compared with one of the recorded edges, and may undo them."""

from __future__ import annotations

import warnings

from capturekit.analysis.node_memory import NotRepeatableError, joined
from capturekit.graph.first_launch import FirstLaunch
from capturekit.graph.half_changed import whole_or_closed
from capturekit.graph.launching import aim
from capturekit.graph.nodes import forget_nodes, switch_off
from capturekit.graph.sight import OURS, Ranges, Sight, unsteady_of, written
from capturekit.graph.state import GraphState
from capturekit.lanes.executables import note_edges
from capturekit.lanes.needed import levels_of
from capturekit.lanes.new_edges import NewEdges, edges_of
from capturekit.lanes.packed import put_back, unpack
from capturekit.lanes.report import Relaned
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.counters import LOG
from capturekit.model.source_line import here

_CALL = 'Graph.relane()'


def trial_of(
    state: GraphState, made: ExecutableGraph, report: Relaned, sight: Sight, also: Ranges | None
) -> FirstLaunch | None:
    """The comparison of a first launch with ``made``; None where launches can not be compared: ``report`` says why.

    ``also``: memory that calls write by addresses that no node shows; None where no calls launch the graph.
    """
    try:
        ranges = written(state, sight, OURS if also is not None else '')
    except NotRepeatableError as error:
        report.compared = f'not compared: {error}'
        return None
    report.compared = 'not yet'
    every = joined([*ranges, *(also or ())])
    again, loose = also is not None, unsteady_of(sight, state.made.graph)
    return FirstLaunch(sight.platform, made, every, sight.blocks, again=again, unsteady=loose)


def first_launch(state: GraphState, stream: int) -> None:
    """Launch on a stream, by its handle, with the comparison that is still to come."""
    new_edges = edges_of(state)
    assert new_edges is not None and new_edges.trial is not None
    trial = new_edges.trial
    with state.relaxed():
        try:
            apart = trial.run(state.made.graphExec, stream)
        except MemoryError as error:
            _without_copies(state, new_edges, error)
            state.device.graph_launch(state.made.graphExec, stream)
            return
        with whole_or_closed(state, _CALL):
            apart = _heed(state, new_edges, trial, apart)
            aim(state)
    if apart:
        words = f'{_CALL} is undone: the first launch gave something else than the recorded edges do ({apart})'
        at = here()
        if new_edges.by_calls:
            LOG.warning('%s', words)
        elif at is None:
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        else:
            warnings.warn_explicit(words, RuntimeWarning, at.file, at.line)


def _without_copies(state: GraphState, new_edges: NewEdges, error: MemoryError) -> None:
    """Do without the comparison, and without packed memory, which nothing else shows to be right."""
    new_edges.not_compared(f'no memory for copies ({error})')
    unpack(state, f'no memory for copies ({error})')
    aim(state)


def _heed(state: GraphState, new_edges: NewEdges, trial: FirstLaunch, apart: str) -> str:
    """Let the graph be as its first launch has shown that it may be; return why its edges are the recorded ones."""
    new_edges.trial = None
    new_edges.note(f'differs: {apart}' if apart else f'the same as with the recorded edges{trial.besides}')
    if not apart:
        _settle(state, new_edges)
        return ''
    if new_edges.packing is None:
        fall_back(state, trial.recorded, f'the first launch gave something else: {apart}')
        return apart
    unpack(state, f'the first launch gave something else: {apart}')  # the order may be right all the same
    trial.gone, trial.passing = (), trial.gone
    new_edges.trial = None if new_edges.report.kept else trial
    new_edges.note('not yet')
    return ''


def _settle(state: GraphState, new_edges: NewEdges) -> None:
    """The packed memory is right: give back what the graph was recorded with."""
    packing, new_edges.packing = new_edges.packing, None
    if packing is not None:
        packing.settle()
        state.recording.memory_bytes = state.memory.used_bytes()
    if new_edges.report.kept and edges_of(state) is new_edges:
        state.restore(new_edges)


def fall_back(state: GraphState, recorded: ExecutableGraph, why: str) -> None:
    """Give the graph its recorded edges again, and the executable graph that was made of them."""
    new_edges = edges_of(state)
    assert new_edges is not None
    for level in levels_of(state, state.look()):
        level.rewire(state.device, level.recorded)
    new_edges.report.kept = why
    if new_edges.packing is not None:
        put_back(state, new_edges.packing)
        new_edges.report.packed = None
    state.recording.by_priority = state.recording.by_priority and not new_edges.by_priority
    state.restore(new_edges)
    state.made, off = recorded, state.names.off
    forget_nodes(state)
    switch_off(state, _CALL, sorted(off))
    note_edges(state)
