"""Another graph made like this one before it is taken over: CUDA updates no graph to one of other nodes or edges.

The other graph is fused as this one is, gets the edges that its data needs, and its kernels the priorities of this
one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from capturekit.analysis.needed_order import TooManyError
from capturekit.analysis.relaned import Pairs, Relaned
from capturekit.graph.executables import instantiate, note_edges
from capturekit.graph.needed import levels_of, needed_now
from capturekit.graph.new_edges import NewEdges
from capturekit.graph.relaned_launch import first_launch
from capturekit.graph.state import GraphState
from capturekit.model.errors import CudaCallError


@dataclass(frozen=True)
class MadeAlike:
    """What was done to another graph: whether it was fused and laid, and the priorities that its kernels had."""

    other: GraphState
    fused: bool
    laid: bool
    before: Mapping[int, int]

    def undo(self, instantiated: bool) -> None:
        """CUDA refuses the update. ``instantiated``: the other graph is instantiated anew instead, as it is now."""
        if self.before:
            _rank(self.other, self.before, False)
        if self.laid:
            if instantiated:
                instantiate(self.other)
            else:
                _lay_back(self.other)
        if self.fused and not instantiated:
            from capturekit.graph.fused_launch import unfuse

            unfuse(self.other, '')


def made_alike(state: GraphState, other: GraphState) -> MadeAlike:
    """Make another graph like this one."""
    fused = (state.fused is not None or other.fused is not None) and _fused_alike(state, other)
    laid = state.new_edges is not None and _lay(other, state.new_edges.lanes)
    return MadeAlike(other, fused, laid, _hand_priorities(state, other))


def _fused_alike(state: GraphState, other: GraphState) -> bool:
    """Fuse another graph as this one is, or not. Return whether it was fused."""
    from capturekit.graph.fuse import fuse_now
    from capturekit.graph.fused_launch import unfuse  # only those who fuse need it

    if state.fused is not None and other.fused is None:
        return bool(fuse_now(other, True, state.fused.fast))
    if state.fused is None and other.fused is not None and other.fused.recorded is not None:
        unfuse(other, 'another graph that is not fused has taken it over')
    return False


def _hand_priorities(state: GraphState, other: GraphState) -> dict[int, int]:
    """Give the kernels of another graph the priorities that a comparison has chosen for those of this one.

    CUDA updates no graph to one of other priorities. Returns those that the other graph's kernels had, by place.
    """
    edges = state.new_edges
    if edges is None or not edges.by_priority or other.recording.by_priority:
        return {}
    mine, theirs = (levels_of(one, one.look())[0] for one in (state, other))
    kernels = sorted(set(mine.kernels(state.device)) & set(theirs.kernels(other.device)))
    chosen, before = (level.priorities(state.device, kernels) for level in (mine, theirs))
    _rank(other, chosen, True)
    return before


def _rank(state: GraphState, priorities: Mapping[int, int], heeded: bool) -> None:
    """Give kernels of the definition priorities, by place, and note whether they are heeded."""
    levels_of(state, state.look())[0].give_priorities(state.device, priorities)
    state.recording.by_priority = heeded
    if state.new_edges is not None:
        state.new_edges.by_priority = heeded


def _lay(state: GraphState, lanes: Sequence[Pairs]) -> bool:
    """Give the definitions the edges that they need, and those of ``lanes``; leave the executable graphs."""
    if state.new_edges is not None:
        return False
    try:
        levels = needed_now(state)
        for level, pairs in zip(levels, lanes):
            level.lanes = pairs
        for level in levels:
            level.rewire(state.device, level.wanted)
    except (CudaCallError, TooManyError):
        return False
    report = Relaned(compared='not compared: another graph has taken this one over')
    state.new_edges = NewEdges([level.recorded for level in levels], report, first_launch, lanes=list(lanes))
    note_edges(state)
    return True


def _lay_back(state: GraphState) -> None:
    for level in levels_of(state, state.look()):
        level.rewire(state.device, level.recorded)
    state.new_edges = None
    note_edges(state)
