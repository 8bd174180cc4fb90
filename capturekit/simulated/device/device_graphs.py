"""Graphs of the simulated device: read, built node by node, destroyed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from capturekit.driver.node_reader import NodeInfo
from capturekit.model.errors import CudaCallError
from capturekit.model.ledger import last_node, next_after
from capturekit.model.rules import Code
from capturekit.simulated.device.device_streams import Streams
from capturekit.simulated.device.graph_nodes import ExecutableGraph, GraphDefinition, GraphNode
from capturekit.simulated.device.node_changes import info_of


class Graphs(Streams):
    """The calls about graphs of :class:`capturekit.simulated.device.machine.SimulatedDevice`."""

    def graph_nodes(self, g: int) -> list[int]:
        """Handles of a graph's nodes, in order of recording; ``g`` may be a graph still being captured."""
        return [n.handle for n in self._graph(g).nodes]

    def graph_node_count(self, g: int) -> int:
        """How many nodes a graph has."""
        return len(self._graph(g).nodes)

    def last_nodes(self) -> Callable[[int], int]:
        """A function that tells a stream's last node: 0 where there is none; -1 in a lost capture, -2 in none."""
        return lambda s: last_node(self.capture_info(s))

    def next_after(self) -> Callable[[int], tuple[int, ...]]:
        """A function that tells the nodes a stream's next work comes after: (-1,) in a lost capture, (-2,) in none."""
        return lambda s: next_after(self.capture_info(s))

    def node_destroy(self, node: int) -> None:
        """``cudaGraphDestroyNode``: take a node and its edges out of a graph. One that allocates keeps its nodes."""
        with self._lock:
            for graph in self.graphs.values():
                found = next((n for n in graph.nodes if n.handle == node), None)
                if found is not None:
                    if any(n.kind in ('memAlloc', 'memFree') for n in graph.nodes):
                        raise CudaCallError(Code.cudaErrorNotSupported, 'graphDestroyNode')
                    self._whole(GraphDefinition(0, [found]))
                    graph.nodes.remove(found)
                    graph.maimed |= bool(found.bodies)
                    for n in filter(lambda one: found in one.after, graph.nodes):
                        n.after -= {found}
                    for body in found.bodies:
                        self._forget(body)
                    return
            raise CudaCallError(Code.cudaErrorInvalidValue, 'graphDestroyNode')

    def graph_edge_count(self, g: int) -> int:
        """How many edges a graph has."""
        return sum(len(n.after) for n in self._graph(g).nodes)

    def graph_edges(self, g: int) -> list[tuple[int, int]]:
        """Pairs (from, to) of node handles."""
        nodes = self._graph(g).nodes
        return [(a.handle, n.handle) for n in nodes for a in sorted(n.after, key=lambda a: a.handle)]

    def node_kind(self, g: int, node: int) -> tuple[str, str]:
        """A node's kind and name."""
        found = next(n for n in self._graph(g).nodes if n.handle == node)
        return found.kind, found.name

    def node_infos(self, g: int) -> list[NodeInfo]:
        """What is known of each node, in the order in which they were made."""
        return [info_of(node) for node in self._graph(g).nodes]

    def graph_create(self) -> int:
        """``cudaGraphCreate``: an empty graph."""
        with self._lock:
            g = self._handle()
            self.graphs[g] = GraphDefinition(g)
            return g

    def _new_node(
        self, g: int, after: Sequence[int], work: Callable[[], None], name: str, kind: str
    ) -> tuple[GraphDefinition, GraphNode]:
        graph = self._graph(g)
        known = {n.handle: n for n in graph.nodes}
        if len(set(after)) != len(after) or not known.keys() >= set(after):
            raise CudaCallError(Code.cudaErrorInvalidValue, f'dependencies of a node of kind {kind!r}')
        node = GraphNode(work, name, kind, frozenset(known[a] for a in after), self._handle())
        return graph, node

    def condition_create(self, g: int, default: int = 0) -> int:
        """``cudaGraphConditionalHandleCreate``: a value that each launch of ``g`` begins with the default."""
        with self._lock:
            graph = self._graph(g)
            condition = self._handle()
            graph.conditions[condition] = default
            return condition

    def can_decide(self, decides: str, count: int) -> bool:
        """Whether the device knows such conditional nodes: it does."""
        return True

    def add_if(self, g: int, after: Sequence[int], condition: int) -> tuple[int, int]:
        """``cudaGraphAddNode`` with an IF node: return the node, and the body graph, which is the node's."""
        node, (body,) = self.add_conditional(g, after, condition, 'if', 1)
        return node, body

    def add_conditional(
        self, g: int, after: Sequence[int], condition: int, decides: str, count: int
    ) -> tuple[int, list[int]]:
        """``cudaGraphAddNode``: an IF (of 1 or 2 bodies), WHILE (1) or SWITCH node; return it, and its body graphs."""
        with self._lock:
            if decides not in ('if', 'while', 'switch') or not 1 <= count <= {'if': 2, 'while': 1}.get(decides, count):
                raise CudaCallError(Code.cudaErrorInvalidValue, 'graphAddNode')
            graph, node = self._new_node(g, after, lambda: None, decides, 'conditional')
            node.condition, node.decides = condition, decides
            node.bodies = tuple(GraphDefinition(self._handle(), is_body=True) for _ in range(count))
            self.graphs.update((body.handle, body) for body in node.bodies)
            graph.nodes.append(node)
            return node.handle, [body.handle for body in node.bodies]

    def add_child(self, g: int, after: Sequence[int], child: int) -> int:
        """``cudaGraphAddChildGraphNode``: a node that runs a copy of ``child`` as it is now."""
        with self._lock:
            copy = ExecutableGraph.of(self._graph(child))
            if any(n.kind in ('conditional', 'memAlloc', 'memFree') for n in copy.nodes):
                raise CudaCallError(Code.cudaErrorNotSupported, 'addChildGraphNode')
            graph, node = self._new_node(g, after, lambda: None, 'child', 'graph')
            node.child = copy
            node.inside = self._inside(copy.nodes)
            graph.nodes.append(node)
            return node.handle

    def _inside(self, nodes: Sequence[GraphNode]) -> GraphDefinition:
        """The graph in a child graph's node, which nobody else has: nor do others have the graphs in its nodes."""
        inner = {n: None if n.inside is None else self._inside(n.inside.nodes) for n in nodes}
        copies = {n: replace(n, inside=inside) for n, inside in inner.items()}
        for n, copy in copies.items():
            copy.after = frozenset(copies[a] for a in n.after)
        inside = GraphDefinition(self._handle(), list(copies.values()), is_body=True)
        self.graphs[inside.handle] = inside
        return inside

    def graph_destroy(self, g: int) -> None:
        """``cudaGraphDestroy``: also of the bodies of its conditional nodes, which can't be destroyed alone."""
        with self._lock:
            graph = self._whole(self._graph(g))
            if graph.is_body:
                raise CudaCallError(Code.cudaErrorInvalidValue, 'graphDestroy')
            if all(capture.graph is not graph for capture in self.captures):
                self._forget(graph)

    def _forget(self, graph: GraphDefinition) -> None:
        self.graphs.pop(graph.handle, None)
        for node in graph.nodes:
            for body in node.bodies if node.inside is None else (node.inside,):
                self._forget(body)

    def graph_dot(self, g: int, flags: int = 0) -> str:
        """The graph in DOT."""
        return 'digraph capturekit {\n' + '\n'.join(_dot(self._graph(g))) + '\n}\n'

    def graph_scalars(self, graphs: list[int]) -> list[tuple[str, int, str, Any]]:
        """The simulated device's nodes are Python functions: what they hold can't be read."""
        return []


def _dot(graph: GraphDefinition, indent: str = '  ') -> list[str]:
    lines = [f'{indent}"{n.handle:#x}" [label="{n.kind}\\n{n.name}"];' for n in graph.nodes]
    lines += [f'{indent}"{a.handle:#x}" -> "{n.handle:#x}";' for n in graph.nodes for a in n.after]
    for n in graph.nodes:
        for body in n.bodies:
            lines.append(f'{indent}subgraph "cluster {body.handle:#x}" {{')
            lines.append(f'{indent}  label="body of {n.handle:#x}";')
            lines += _dot(body, indent + '  ')
            lines.append(f'{indent}}}')
    return lines
