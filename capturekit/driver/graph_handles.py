"""Graphs and nodes of other libraries are known by their types: CUDA crashes where a number is no graph's handle."""

from __future__ import annotations

from typing import Any

_GRAPHS, _NODES = ('CUgraph', 'cudaGraph_t'), ('CUgraphNode', 'cudaGraphNode_t')
#: What is accepted as a graph, in words.
ACCEPTED = 'a cuda.core GraphDefinition or a cudaGraph_t of cuda-bindings'


def handle_of_graph(given: Any) -> int | None:
    """The handle of a graph of cuda-bindings or cuda.core; None for anything else.

    Raises:
        ValueError: it is a null handle.
    """
    handle = _handle(given, _GRAPHS)
    if handle == 0:
        raise ValueError(f'the {type(given).__name__} is a null handle')
    return handle


def handle_of_node(given: Any) -> int | None:
    """The handle of a node of cuda-bindings or cuda.core, or a number; None for anything else.

    A number does no harm here: it is looked for among the nodes of the graph.
    """
    return given if isinstance(given, int) and not isinstance(given, bool) else _handle(given, _NODES)


def told(given: Any) -> str:
    """Describe what is not accepted as a graph, with the way to give a number."""
    if isinstance(given, int) and not isinstance(given, bool):
        return f'the number {given!r}: if it is a graph, say so with cuda.bindings.runtime.cudaGraph_t(number)'
    return type(given).__name__


def _handle(given: Any, names: tuple[str, ...]) -> int | None:
    if type(given).__module__.startswith('cuda.core'):
        given = getattr(given, 'handle', None)
    of_bindings = any(one.__name__ in names and one.__module__.startswith('cuda.') for one in type(given).__mro__)
    return int(given) if of_bindings else None
