"""What of a definition can be fused: what its nodes do and touch, read once, and what becomes of them then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from capturekit.analysis.node_memory import ON_DEVICE, FreeMemory, memory_of
from capturekit.driver.node_accesses import Access
from capturekit.fusion.blocks import gather
from capturekit.fusion.cuda_nodes import nodes_of
from capturekit.fusion.elementwise import Rounded, kind_of
from capturekit.fusion.fused_kernel import FusedKernel
from capturekit.fusion.lines import Definition, Fusing, Fusion, edges_between, fusion_of
from capturekit.fusion.reduction import CUB, Halves, Reduction, of_calls
from capturekit.fusion.reductions import reduced
from capturekit.fusion.rounded_memory import RoundedNumbers, rounded_numbers
from capturekit.fusion.unneeded_nodes import UNREAD, Thinned, thinned
from capturekit.graph.graph_facts import INTERNAL_PREFIX, Sight
from capturekit.launch.declared import Declared
from capturekit.model.dag import Order

# -- all that becomes of a definition that is fused: what is not needed goes, the rest becomes fewer kernels ----------


def whole_fusion(known: Definition, gathers: bool = False) -> Fusion:
    """Find what of a definition can become fused kernels, and what is not needed.

    ``gathers``: whether values between fused kernels come to lie in few blocks.
    """
    seen = list(known.memory)
    for n, one in enumerate(known.does):
        if isinstance(one, Reduction):  # known to the byte, which a kernel's name does not tell
            seen[n] = [operand.access for operand in one.operands if operand.number is None]
    for pair in known.halves:
        for n, accesses in zip(pair.nodes, pair.memory):
            seen[n] = accesses
    thin = thinned(replace(known, memory=seen))
    copies = {n: one for n, one in known.copies.items() if n not in thin.gone}
    left = replace(known, does=thin.does, memory=thin.memory, copies=copies)
    found = fusion_of(left)
    if thin.moved or known.halves or any(isinstance(one, Reduction) for one in thin.does):
        reduced(found, left, thin.moved)
    if thin.gone:
        _without(found, thin, known.order)
    if gathers:
        gather(found, left, seen)
    return found


def _without(fusion: Fusion, thin: Thinned, order: Order) -> None:
    """The same without the nodes that are not needed."""
    fusion.unneeded = dict.fromkeys(sorted(thin.unread), UNREAD)
    for node, one in thin.again.items():
        fusion.unneeded[node] = f'node {one} has computed the same'
        fusion.stands.setdefault(one, []).append(node)
    for at, kernel in enumerate(fusion.kernels):
        more = [n for one in kernel.parts for n in fusion.stands.pop(one, ())]
        fusion.kernels[at] = replace(kernel, copies=(*kernel.copies, *more))
    fusion.gone = sorted({*fusion.gone, *thin.gone})
    fusion.edges = edges_between(order, fusion.gone)


class Fusible:
    """A definition, by the numbers of its nodes: what they do and touch, read once.

    Attributes:
        sight: a look at the graph.
        known: what is known of the definition.
        nodes: what reads the nodes of the device, and makes fused kernels.
        does: what each node computes for each element or reduces, or why it is not fused; None for no kernels.
    """

    def __init__(self, sight: Sight, graph: int, own: FreeMemory, gathers: bool) -> None:
        """``own``: the graph's own memory that no array lies in. ``gathers``: whether values between fused kernels come
        to lie in few blocks: work that could run at once can not then.

        Raises CudaCallError.
        """
        self.sight, self._graph, self._gathers = sight, graph, gathers
        device, definitions = sight.platform.device, sight.definitions
        self.nodes = nodes_of(device)
        handles = self._handles = device.graph_nodes(graph)
        place = {handle: n for n, handle in enumerate(handles)}
        infos = sorted(definitions.infos(graph), key=lambda info: place[info.handle])
        memory = memory_of(definitions, graph, sight.blocks)
        found: dict[int, Any] = {**self.nodes.graph_elementwise(graph), **self.nodes.graph_reductions(graph)}
        rows, pairs = self._rows([handle for handle in handles if found.get(handle) == CUB], infos)
        found.update({handle: Rounded.of(CUB, does) for handle, does in rows.items()})
        found.update({handle: Rounded.of(CUB, CUB) for one in pairs for handle in one.nodes})
        self.does = [found.get(handle) for handle in handles]
        on_device = sight.platform.cupy.cuda.runtime.pointerGetAttributes
        self.known = Definition(
            Order(len(place), [(place[a], place[b]) for a, b in device.graph_edges(graph)]),
            self.does,
            [memory[handle] for handle in handles],
            own,
            frozenset(n for n, info in enumerate(infos) if info.name.startswith(INTERNAL_PREFIX)),
            {
                n: (info.detail['dst'], info.detail['src'], info.detail['bytes'])
                for n, info in enumerate(infos)
                if info.kind == 'memcpy'
                and len(ends := memory[info.handle] or ()) == 2
                and all(one.itemsize and one.dense for one in ends)  # bytes that lie one after the other
                and all(on_device(info.detail[end]).type in ON_DEVICE for end in ('dst', 'src'))
            },
            [n for n, info in enumerate(infos) if info.kind == 'memset'],
            self.nodes.copy_operation,
            [replace(one, nodes=(place[one.nodes[0]], place[one.nodes[1]])) for one in pairs],
        )

    def _rows(self, nodes: list[int], infos: Sequence[Any]) -> tuple[dict[int, Reduction], list[Halves]]:
        """What ``nodes`` of CUB's reduce, by their handles, and pairs of them."""
        definitions = self.sight.definitions
        calls = {handle: said.rows for handle, said in definitions.declared.items() if said.rows is not None}
        nodes = [handle for handle in nodes if handle in calls]
        if not nodes:
            return {}, []
        blocks = {info.handle: int(info.detail['grid'][0]) for info in infos if info.handle in nodes}
        return of_calls(nodes, calls, definitions.accesses(self._graph), blocks)

    def fusion(self, refused: Mapping[int, str], fast: bool) -> Fusion:
        """What becomes of the definition.

        Args:
            refused: nodes that stay alone, with the reason.
            fast: whether results may be rounded otherwise.
        """
        does = [one.does if fast and isinstance(one, Rounded) else one for one in self.does]
        does = [refused.get(n, one) for n, one in enumerate(does)]
        halves = self.known.halves if fast else ()
        found = whole_fusion(replace(self.known, does=does, halves=halves), self._gathers)
        if fast:
            found.kernels = [_fast(one) for one in found.kernels]
        return found

    def reasons(self, fusion: Fusion, refused: Mapping[int, str]) -> dict[int, str]:
        """Why nodes stay alone, of a fusion that keeps every bit; and which of them another one would not leave.

        ``refused``: nodes that stay alone anyway.
        """
        why = dict(fusion.why)
        if any(isinstance(one, Rounded) for one in why.values()):
            other = {n for one in self.fusion(refused, True).kernels for n in one.parts}
            why.update({n: f"{one}; fuse='fast' does fuse it" for n, one in why.items() if n in other})
        return why

    def rounded(self, fusion: Fusion, arrays: Iterable[Any]) -> list[RoundedNumbers]:
        """The numbers that a launch rounds otherwise, of a fusion that does not keep every bit.

        ``arrays``: those that it writes by addresses which no node shows.
        """
        definitions, known = self.sight.definitions, self.known
        memory = memory_of(definitions, self._graph, self.sight.blocks, by_word=True)
        seen = [() if n in known.blind else memory[handle] for n, handle in enumerate(self._handles)]
        said = {n: definitions.declared.get(handle) for n, handle in enumerate(self._handles)}
        calls = {n: _computed(one) for n, one in said.items() if one is not None and one.call}
        fused = {n for one in fusion.kernels for n in one.parts}
        found = rounded_numbers(known.order.sequence, self.does, seen, fused, calls, known.copies)
        for array in arrays:
            access = Access(int(array.data.ptr), array.shape, array.strides, array.itemsize, True)
            found.append(RoundedNumbers(access, (str(array.dtype),) if array.dtype.kind in 'fc' else ()))
        return found


def _computed(said: Declared) -> tuple[str, ...] | None:
    """The dtypes of what a library's call computes, if every bit of it does not count; None where any may be."""
    if '.cub.' not in said.call:
        return None
    return (said.rows.dtype,) if said.rows is not None and kind_of(said.rows.dtype) == 'f' else ()


def _fast(one: Fusing) -> Fusing:
    """The same kernel, whose results may be rounded otherwise."""
    if isinstance(one.kernel, FusedKernel):
        return replace(one, kernel=replace(one.kernel, fast=True))
    front, behind = (replace(half, fast=True) for half in (one.kernel.front, one.kernel.behind))
    return replace(one, kernel=replace(one.kernel, front=front, behind=behind))
