"""What of a definition can be fused: what its nodes do and touch, read once, and what becomes of them then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from capturekit.analysis.node_memory import ON_DEVICE, FreeMemory, Memory, memory_of
from capturekit.driver.node_accesses import Access
from capturekit.fusion.blocks import gather
from capturekit.fusion.cuda_nodes import nodes_of
from capturekit.fusion.elementwise import Rounded, kind_of
from capturekit.fusion.fused_kernel import FusedKernel
from capturekit.fusion.lines import Definition, Fusion, edges_between, fusion_of
from capturekit.fusion.reduction import CUB, Halves, Reduction, of_calls
from capturekit.fusion.reductions import reduced
from capturekit.fusion.rounded_memory import RoundedNumbers, rounded_numbers
from capturekit.fusion.unneeded_nodes import UNREAD, Thinned, thinned
from capturekit.graph.graph_facts import INTERNAL_PREFIX, Sight
from capturekit.launch.declared import Declared
from capturekit.model.dag import Order

if TYPE_CHECKING:
    from capturekit.fusion.cuda_nodes import FusingNodes
    from capturekit.fusion.lines import Fusing, Fusion


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


_FAST = "fuse='fast' does fuse it"


@dataclass(frozen=True)
class Fusible:
    """A definition, by the numbers of its nodes.

    Attributes:
        sight, graph: a look at the graph, and the definition.
        own: the graph's own memory that no array lies in.
        gathers: whether values between fused kernels come to lie in few blocks: work that could run at once can not
            then.
    """

    sight: Sight
    graph: int
    own: FreeMemory
    gathers: bool

    def fusion(self, refused: Mapping[int, str], fast: bool) -> Fusion:
        """What becomes of the definition.

        Args:
            refused: nodes that stay alone, with the reason.
            fast: whether results may be rounded otherwise.
        """
        does = [one.does if fast and isinstance(one, Rounded) else one for one in self.does]
        does = [refused.get(n, one) for n, one in enumerate(does)]
        number, halves = self._handles.index, self._rows[1] if fast else []
        known = Definition(
            self.order,
            does,
            [self._memory[handle] for handle in self._handles],
            self.own,
            self._blind,
            self._copies,
            [n for n, info in enumerate(self._infos) if info.kind == 'memset'],
            self.nodes.copy_operation,
            [replace(one, nodes=(number(one.nodes[0]), number(one.nodes[1]))) for one in halves],
        )
        found = whole_fusion(known, self.gathers)
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
            why.update({n: f'{one}; {_FAST}' for n, one in why.items() if n in other})
        return why

    def rounded(self, fusion: Fusion, arrays: Iterable[Any]) -> list[RoundedNumbers]:
        """The numbers that a launch rounds otherwise, of a fusion that does not keep every bit.

        ``arrays``: those that it writes by addresses which no node shows.
        """
        definitions, blocks = self.sight.definitions, self.sight.blocks
        known = memory_of(definitions, self.graph, blocks, by_word=True)
        seen = [() if n in self._blind else known[handle] for n, handle in enumerate(self._handles)]
        said = {n: definitions.declared.get(handle) for n, handle in enumerate(self._handles)}
        calls = {n: _computed(one) for n, one in said.items() if one is not None and one.call}
        fused = {n for one in fusion.kernels for n in one.parts}
        found = rounded_numbers(self.order.sequence, self.does, seen, fused, calls, self._copies)
        for array in arrays:
            access = Access(int(array.data.ptr), array.shape, array.strides, array.itemsize, True)
            found.append(RoundedNumbers(access, (str(array.dtype),) if array.dtype.kind in 'fc' else ()))
        return found

    # -- read once --------------------------------------------------------------------------------------------------

    @cached_property
    def nodes(self) -> FusingNodes:
        """What reads the nodes of the device, and makes fused kernels."""
        return nodes_of(self._device)

    @cached_property
    def _device(self) -> Any:
        return self.sight.platform.device

    @cached_property
    def _handles(self) -> list[int]:
        handles: list[int] = self._device.graph_nodes(self.graph)
        return handles

    @cached_property
    def _infos(self) -> Sequence[Any]:
        by_handle = {info.handle: info for info in self.sight.definitions.infos(self.graph)}
        return [by_handle[handle] for handle in self._handles]

    @cached_property
    def _memory(self) -> Mapping[int, Memory]:
        return memory_of(self.sight.definitions, self.graph, self.sight.blocks)

    @cached_property
    def _blind(self) -> frozenset[int]:
        return frozenset(n for n, info in enumerate(self._infos) if info.name.startswith(INTERNAL_PREFIX))

    @cached_property
    def order(self) -> Order:
        """The order of the nodes."""
        place = {handle: n for n, handle in enumerate(self._handles)}
        return Order(len(place), [(place[a], place[b]) for a, b in self._device.graph_edges(self.graph)])

    @cached_property
    def does(self) -> list[Any]:
        """What each node computes for each element or reduces, or why it is not fused; None for no kernels."""
        found = dict(self._plainly)
        found.update({handle: Rounded.of(CUB, does) for handle, does in self._rows[0].items()})
        for one in self._rows[1]:
            found.update({handle: Rounded.of(CUB, CUB) for handle in one.nodes})
        return [found.get(handle) for handle in self._handles]

    @cached_property
    def _plainly(self) -> Mapping[int, Any]:
        return {**self.nodes.graph_elementwise(self.graph), **self.nodes.graph_reductions(self.graph)}

    @cached_property
    def _rows(self) -> tuple[dict[int, Reduction], list[Halves]]:
        """What nodes of CUB's reduce, by their handles, and pairs of them."""
        definitions = self.sight.definitions
        calls = {handle: said.rows for handle, said in definitions.declared.items() if said.rows is not None}
        nodes = [handle for handle in self._handles if handle in calls and self._plainly.get(handle) == CUB]
        if not nodes:
            return {}, []
        blocks = {info.handle: int(info.detail['grid'][0]) for info in self._infos if info.handle in nodes}
        return of_calls(nodes, calls, definitions.accesses(self.graph), blocks)

    @cached_property
    def _copies(self) -> dict[int, tuple[int, int, int]]:
        on_device = self.sight.platform.cupy.cuda.runtime.pointerGetAttributes
        return {
            n: (info.detail['dst'], info.detail['src'], info.detail['bytes'])
            for n, info in enumerate(self._infos)
            if info.kind == 'memcpy'
            and _is_flat(self._memory[info.handle])
            and all(on_device(info.detail[end]).type in ON_DEVICE for end in ('dst', 'src'))
        }


def _computed(said: Declared) -> tuple[str, ...] | None:
    """The dtypes of what a library's call computes, if every bit of it does not count; None where any may be."""
    if '.cub.' not in said.call:
        return None
    return (said.rows.dtype,) if said.rows is not None and kind_of(said.rows.dtype) == 'f' else ()


def _is_flat(memory: Memory) -> bool:
    """Whether a copy is one of bytes that lie one after the other."""
    return memory is not None and len(memory) == 2 and all(one.itemsize and one.dense for one in memory)


def _fast(one: Fusing) -> Fusing:
    """The same kernel, whose results may be rounded otherwise."""
    if isinstance(one.kernel, FusedKernel):
        return replace(one, kernel=replace(one.kernel, fast=True))
    front, behind = (replace(half, fast=True) for half in (one.kernel.front, one.kernel.behind))
    return replace(one, kernel=replace(one.kernel, front=front, behind=behind))
