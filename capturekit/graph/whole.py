"""Who changes a graph, or reads it as one, has its lock and finds it whole: open, and launched in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from capturekit.graph.refused import gone, refused
from capturekit.graph.state import GraphState


def must_be_whole(state: GraphState, call: str) -> None:
    """Refuse a graph that is closed or is launched in several parts; do without packed memory that is still to be shown
    to be right. The caller holds the lock."""
    if state.made is None:
        raise gone(call)
    if state.plan is not None and not state.plan.plain:
        rule = 'A graph with rehearsed reads, seams or drawn numbers is launched in several parts, with checks.'
        raise refused(call, rule, 'Record again instead, or record without a rehearsal.')
    state.as_recorded()


@contextmanager
def together(state: GraphState, other: GraphState | None) -> Iterator[None]:
    """Take both locks, always in the same order: two threads may name the graphs the other way round."""
    with ExitStack() as stack:
        for one in sorted((state, other or state), key=id)[: 1 if other is None else 2]:
            stack.enter_context(one.lock)
        yield


def must_be_changeable(state: GraphState, launch: Callable[..., None], call: str, report: object, instead: str) -> None:
    """Refuse a ``report`` that is not a bool, a closed graph, and one that calls alone ``launch``.

    The caller holds the lock.
    """
    if not isinstance(report, bool):
        raise TypeError(f'report is True or False, got {report!r}')
    state.must_be_open(call)
    if getattr(launch, '__qualname__', '') != 'Graph.launch':
        raise refused(call, 'It is the graph of a graphed function, which calls alone launch.', instead)
