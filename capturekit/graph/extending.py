"""What extensions do for the core, which imports none of them: ``capturekit/extensions.py`` hands it in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capturekit.graph.graph_facts import Ranges
from capturekit.graph.state import GraphState

if TYPE_CHECKING:
    from capturekit.fusion.report import Fused
    from capturekit.lanes.report import Relaned


def _left_out(*_arguments: Any, **_named: Any) -> Any:
    raise NotImplementedError('capturekit was imported without the extension that does this')


@dataclass
class Extensions:
    """What extensions do for a graph. Each function returns its report.

    Attributes:
        relane: gives a graph the edges that its data needs; given the graph's state and its ``launch``, whether only to
            report, and how many rounds orders are timed.
        relane_recorded: the same for a graph that calls launch, given the memory that it writes besides.
        fuse: makes kernels one; given the graph's state and its ``launch``, how, and whether only to report.
        fuse_recorded: the same for a graph that was just recorded; given whether results may be rounded otherwise,
            whether temporaries are gathered, and for a graph that calls launch the memory that it writes besides and
            the arrays that lie there.
    """

    relane: Callable[[GraphState, Callable[..., None], bool, int], Relaned] = _left_out
    relane_recorded: Callable[[GraphState, Ranges], Relaned] = _left_out
    fuse: Callable[[GraphState, Callable[..., None], str, bool], Fused] = _left_out
    fuse_recorded: Callable[..., Fused] = _left_out


EXTENSIONS = Extensions()
