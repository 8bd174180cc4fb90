"""``graph.relane()``: the edges that a graph's data needs, or the fastest of several orders."""

from __future__ import annotations

from collections.abc import Callable

from capturekit.graph.state import GraphState, must_be_changeable, positive
from capturekit.lanes.new_order import relane_now
from capturekit.lanes.report import Relaned
from capturekit.model.errors import UnmatchedError
from capturekit.model.source_line import here

_CALL = 'Graph.relane()'


def relane(state: GraphState, launch: Callable[..., None], report: bool, rounds: int) -> Relaned:
    """Let a graph have the edges that its data needs. ``launch`` is the graph's, by which it must be launchable.

    ``report``: only tell what would be done. ``rounds``: how often each of several orders is timed.
    """
    if positive('rounds', rounds, 0) and report is True:
        raise ValueError('report=True launches nothing: rounds= goes without it')
    if rounds and state.gate.occupied():
        rule = 'It launches the graph and waits for it, and this thread has a capture or a rehearsal open.'
        raise UnmatchedError(_CALL, location=here(), rule=rule, remedy='Ask outside of it, or without rounds=.')
    with state.lock:
        must_be_changeable(state, launch, _CALL, report, "Write @ck.graphed(lanes='auto').")
        found = relane_now(state, apply=not report)
        if rounds and found:
            from capturekit.lanes.contest import keep_fastest  # only those who time orders need it

            with state.relaxed():
                keep_fastest(state, found, rounds)
        return found
