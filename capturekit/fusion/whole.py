"""All that becomes of a definition that is fused: what is not needed goes, the rest becomes fewer kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from capturekit.analysis.free_memory import FreeMemory
from capturekit.analysis.needed_order import Memory
from capturekit.fusion.blocks import gather
from capturekit.fusion.cub_reduction import Halves
from capturekit.fusion.lines import Edges, Fusion, fusion_of, lines_of
from capturekit.fusion.reduction import Reduction
from capturekit.fusion.reductions import Reductions, reduced
from capturekit.fusion.thinned import UNREAD, Does, Thinned, operand_access, thinned
from capturekit.model.dag import Order

_REDUCES = 'it is a reduction'


def whole_fusion(
    order: Order,
    does: Sequence[Does],
    memory: Sequence[Memory],
    free: FreeMemory,
    blind: frozenset[int] = frozenset(),
    copies: Mapping[int, tuple[int, int, int]] | None = None,
    fills: Collection[int] = (),
    gathers: bool = False,
    halves: Sequence[Halves] = (),
    copying: Callable[[str], Any] | None = None,
) -> Fusion:
    """Find what of a definition can become fused kernels, and what is not needed.

    Args:
        gathers: whether values between fused kernels come to lie in few blocks.
        halves: pairs of nodes that reduce together.
        does: what each node computes for each element or reduces, or why that is not known; None for no kernels.
        fills: nodes that only fill memory of the device.
        The others are those of :func:`capturekit.fusion.lines.fusion_of`.
    """
    copied = copies or {}
    seen = list(memory)
    for n, one in enumerate(does):
        if isinstance(one, Reduction):  # known to the byte, which a kernel's name does not tell
            seen[n] = [operand_access(operand) for operand in one.operands if operand.number is None]
    for pair in halves:
        for n, accesses in zip(pair.nodes, pair.memory):
            seen[n] = accesses
    thin = thinned(order, does, seen, free, blind, {*copied, *fills})
    left = {n: one for n, one in copied.items() if n not in thin.gone}
    each = [_REDUCES if isinstance(one, Reduction) else one for one in thin.does]
    reductions = {n: one for n, one in enumerate(thin.does) if isinstance(one, Reduction)}
    fronts = {*reductions, *(pair.nodes[0] for pair in halves)}
    found = fusion_of(order, each, thin.memory, free, blind, left, copying, fronts)
    if reductions or thin.moved or halves:
        known = Reductions(reductions, thin.moved, tuple(halves))
        reduced(found, order, lines_of(order), each, thin.memory, free, blind, known)
    if thin.gone:
        found = _without(found, thin)
    if gathers:
        gather(found, thin.memory, free, blind, seen)
    return found


def _without(fusion: Fusion, thin: Thinned) -> Fusion:
    """The same without the nodes that are not needed."""
    fusion.unneeded = dict.fromkeys(sorted(thin.unread), UNREAD)
    for node, one in thin.again.items():
        fusion.unneeded[node] = f'node {one} has computed the same'
        fusion.stands.setdefault(one, []).append(node)
    for at, kernel in enumerate(fusion.kernels):
        more = [n for one in kernel.parts for n in fusion.stands.pop(one, ())]
        fusion.kernels[at] = replace(kernel, copies=(*kernel.copies, *more))
    fusion.edges = _bridged(fusion.edges, thin.gone)
    fusion.gone = sorted({*fusion.gone, *thin.gone})
    return fusion


def _bridged(edges: Edges, gone: Collection[int]) -> Edges:
    """Edges between the nodes that are left, with the order that those which are gone made."""
    before: dict[int, set[int]] = {}
    after: dict[int, set[int]] = {}
    for a, b in edges:
        before.setdefault(b, set()).add(a)
        after.setdefault(a, set()).add(b)
    for node in gone:
        earlier, later = before.pop(node, set()), after.pop(node, set())
        for a in earlier:
            after[a] = (after[a] - {node}) | later
        for b in later:
            before[b] = (before[b] - {node}) | earlier
    return sorted((a, b) for a, several in after.items() for b in several)
