"""What the user says that nodes of a graph touch, kept right while memory is replaced and graphs are copied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capturekit.launch.declared import Declared


def moved(declared: Mapping[int, Declared], moves: Sequence[tuple[int, int, int]]) -> dict[int, Declared]:
    """The same where nodes use other memory: that from the third address of a move on, for its first to its second."""
    found = {handle: one.moved(moves) for handle, one in declared.items()}
    return {handle: one for handle, one in found.items() if one is not None}


def of_copy(declared: Mapping[int, Declared], device: Any, g: int, copies: Iterable[int]) -> dict[int, Declared]:
    """The same of the nodes of a copy of a definition, which has them in the same order."""
    pairs = zip(device.graph_nodes(g), copies) if declared else ()
    return {other: declared[mine] for mine, other in pairs if mine in declared}
