"""The definitions of a graph, and the order that the data needs in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capturekit.analysis.needed_order import needed_edges
from capturekit.analysis.node_memory import memory_of
from capturekit.analysis.node_view import Look, Node
from capturekit.graph.sight import Sight, allocates, sight_of
from capturekit.graph.state import GraphState
from capturekit.lanes.new_edges import Level, edges_of
from capturekit.lanes.report import Pairs
from capturekit.model.dag import Order


def levels_of(state: GraphState, look: Look) -> list[Level]:
    """The graph and the bodies in it, with the edges that they have and had."""
    found = []
    new_edges = edges_of(state)
    for number, g in enumerate(state.definitions()):
        handles = state.device.graph_nodes(g)
        place = {handle: n for n, handle in enumerate(handles)}
        present = sorted((place[a], place[b]) for a, b in state.device.graph_edges(g))
        level = Level(g, handles, present, present if new_edges is None else new_edges.recorded[number])
        level.lanes = new_edges.lanes[number] if new_edges is not None and new_edges.lanes else ()
        found.append(level)
    return found


def find_needed(levels: Sequence[Level], sight: Sight) -> list[Node]:
    """Find the needed edges of each level; return the nodes of unknown memory."""
    fixed = []
    for level in levels:
        memory = memory_of(sight.definitions, level.graph, sight.blocks, by_word=True)
        nodes = [sight.look.nodes[sight.look.numbers[handle]] for handle in level.handles]
        if allocates(nodes):
            level.needed = level.recorded
            continue
        order = Order(len(level.handles), level.recorded)
        level.needed = needed_edges(order, [memory[handle] for handle in level.handles])
        fixed += [node for node, handle in zip(nodes, level.handles) if memory[handle] is None]
    return sorted(fixed, key=lambda node: node.number)


def rewire(device: Any, levels: Sequence[Level], edges: Sequence[Pairs]) -> None:
    """Let the definitions have other edges."""
    for level, to in zip(levels, edges):
        level.rewire(device, to)


def needed_now(state: GraphState) -> list[Level]:
    """The graph and the bodies in it, with the edges that they need now. Raises TooManyError and CudaCallError."""
    sight = sight_of(state)
    levels = levels_of(state, sight.look)
    find_needed(levels, sight)
    return levels
