"""The report of ``graph.fuse()``: which nodes became one kernel, which did not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from capturekit.analysis.node_view import Node
from capturekit.fusion.fused_kernel import FusedKernel
from capturekit.fusion.fused_reduction import FusedReduction
from capturekit.model.counted import counted
from capturekit.model.shown import Shown

#: So many fused kernels, lines of one kernel, and reasons are printed.
_SHOWN = 8


@dataclass(frozen=True)
class FusedNodes:
    """One kernel in the place of several nodes.

    Attributes:
        name: the kernel's name.
        number: the number of its node in the graph as it is now; -1 in a report of a graph that was not changed.
        nodes: the nodes that it replaces, with their numbers as recorded, in order.
        elements: the number of elements that each of them worked on.
        loads, stores: how many arrays it reads and writes.
        registers: how many temporaries are not in memory any more.
    """

    name: str
    number: int
    nodes: tuple[Node, ...]
    elements: int
    loads: int
    stores: int
    registers: int

    @classmethod
    def of(cls, name: str, nodes: tuple[Node, ...], kernel: FusedKernel | FusedReduction) -> FusedNodes:
        """What the report says of a kernel that is in no graph yet."""
        places = kernel.places
        loads, stores = sum(p.loads for p in places), sum(p.stores for p in places)
        return cls(name, -1, nodes, kernel.size, loads, stores, sum(not p.in_memory for p in places))


@dataclass(repr=False)
class Fused(Shown):
    """What :meth:`Graph.fuse` did, or would do. True if the graph has fused kernels.

    Attributes:
        kernels: the fused kernels.
        alone: elementwise kernels and other kernels that stayed as they are, each with the reason.
        unneeded: nodes that were taken out, each with the reason: nobody reads what they write, or another node
            has computed the same.
        nodes: how many nodes the graph had.
        kept: the reason for which the graph is as it was recorded; '' where it has fused kernels.
        compared: what the first launch has shown, or why it shows nothing.
        seconds: how long it took to make the kernels, with the compiler.
        fast: whether results may be rounded otherwise.
    """

    kernels: list[FusedNodes] = field(default_factory=list)
    alone: list[tuple[Node, str]] = field(default_factory=list)
    unneeded: list[tuple[Node, str]] = field(default_factory=list)
    nodes: int = 0
    kept: str = ''
    compared: str = ''
    seconds: float = 0.0
    fast: bool = False

    def __bool__(self) -> bool:
        return not self.kept

    def _brief(self) -> str:
        inside = sum(len(one.nodes) for one in self.kernels)
        text = f'{counted(self.nodes, "node")}, {inside} of them in {counted(len(self.kernels), "fused kernel")}'
        text += ' that may round otherwise' if self.fast and self.kernels else ''
        text += f', {len(self.unneeded)} taken out' if self.unneeded else ''
        return text + (f'; as recorded: {self.kept}' if self.kept else '')

    def __str__(self) -> str:
        lines = [self._brief().partition(';')[0]]
        for one in self.kernels[:_SHOWN]:
            lines += _about(one)
        if len(self.kernels) > _SHOWN:
            lines.append(f'and {counted(len(self.kernels) - _SHOWN, "more kernel")}')
        lines += _reasons('taken out', self.unneeded)
        lines += _reasons('not fused', self.alone)
        lines.append(
            f'the graph is as it was recorded: {self.kept}' if self.kept else 'the graph has these kernels now'
        )
        if self.compared:
            lines.append(f'first launch: {self.compared}')
        return '\n'.join(lines)


def _reasons(what: str, nodes: list[tuple[Node, str]]) -> Iterator[str]:
    """What becomes of nodes, and why, those of one reason together."""
    groups = Counter(why for _node, why in nodes)
    for why, count in groups.most_common(_SHOWN):
        node = next(node for node, reason in nodes if reason == why)
        more = f', and {counted(count - 1, "more node")}' if count > 1 else ''
        yield f'{what}: {node.words}{more}: {why}'


def _about(one: FusedNodes) -> Iterator[str]:
    yield (
        f'{one.name}: {counted(len(one.nodes), "node")} over {counted(one.elements, "element")}, '
        f'reads {counted(one.loads, "array")}, writes {one.stores}, keeps {one.registers} in registers'
    )
    for node in one.nodes[:_SHOWN]:
        yield f'  {node.words}'
    if len(one.nodes) > _SHOWN:
        yield f'  and {counted(len(one.nodes) - _SHOWN, "more node")}'
