"""A graph with new edges that is changed: the order that its data needs is found again, from the edges as recorded."""

from __future__ import annotations

from capturekit.analysis.needed_order import TooManyError
from capturekit.graph.executables import instantiate
from capturekit.graph.launching import aim_all
from capturekit.graph.needed import needed_now
from capturekit.graph.refused import refused
from capturekit.graph.state import GraphState
from capturekit.model.errors import CudaCallError


def order_again(state: GraphState) -> None:
    """Nodes touch other memory than before: a graph whose edges follow its data gets the edges that it needs now."""
    new_edges = state.new_edges
    if new_edges is None:
        return
    new_edges.not_compared('a node was changed before the first launch')
    with state.relaxed():
        try:
            levels = needed_now(state)
            if not all(level.is_so for level in levels):
                for level in levels:
                    level.rewire(state.device, level.wanted)
                instantiate(state)
        except (CudaCallError, TooManyError) as error:
            rule = f'The nodes touch other memory now, and the order that they need can not be found: {error}.'
            raise refused('Graph.relane()', rule, 'Record again.') from error
    aim_all(state)
