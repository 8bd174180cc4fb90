"""All that becomes of a definition that is fused: elementwise runs first, then the reductions that take them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from capturekit.analysis.free_memory import FreeMemory
from capturekit.analysis.fusion import Fusion, fusion_of, lines_of
from capturekit.analysis.fusion_reductions import operand_access, reduced
from capturekit.analysis.needed_order import Memory
from capturekit.driver.elementwise import Elementwise
from capturekit.driver.reduction import Reduction
from capturekit.model.dag import Order


def whole_fusion(
    order: Order,
    does: Sequence[Elementwise | Reduction | str | None],
    memory: Sequence[Memory],
    free: FreeMemory,
    blind: frozenset[int] = frozenset(),
    copies: Mapping[int, tuple[int, int, int]] | None = None,
) -> Fusion:
    """Find what of a definition can become fused kernels.

    Args:
        does: what each node computes for each element or reduces, or why that is not known; None for no kernels.
        The others are those of :func:`capturekit.analysis.fusion.fusion_of`.
    """
    reductions = {n: one for n, one in enumerate(does) if isinstance(one, Reduction)}
    each = ['it is a reduction' if isinstance(one, Reduction) else one for one in does]
    seen = list(memory)
    for n, one in reductions.items():  # known to the byte, which a kernel's name does not tell
        seen[n] = [operand_access(operand) for operand in one.operands if operand.number is None]
    found = fusion_of(order, each, seen, free, blind, copies)
    if reductions:
        reduced(found, order, lines_of(order), each, seen, free, blind, reductions)
    return found
