"""What the user says that nodes of a graph touch, kept right while memory is replaced and nodes are changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capturekit.driver.node_writer import Change
from capturekit.graph.edit import _At
from capturekit.graph.rebind import Index, Rebindable, _Move
from capturekit.graph.update import Updatable
from capturekit.launch.declared import Declared

if TYPE_CHECKING:
    from typing_extensions import Self


class Declarable(Rebindable, Updatable):
    """A graph of whose nodes the user may have said what they touch."""

    if not TYPE_CHECKING:
        __slots__ = ()  # the subclass has them all

    #: By a node's handle.
    _declared: dict[int, Declared]

    def _apply(self, at: _At, change: Callable[[], Change], arrays: list[Any]) -> None:
        super()._apply(at, change, arrays)
        self._declared.pop(at.handle, None)  # it was said of what the node did before

    def _change(self, index: Index, moves: list[_Move], unused: bool) -> int:
        changed = super()._change(index, moves, unused)
        places = [(move.low, move.high, move.to) for move in moves]
        moved = {handle: one.moved(places) for handle, one in self._declared.items()}
        self._declared = {handle: one for handle, one in moved.items() if one is not None}
        return changed

    def _said_of_copy(self, g: int, copies: list[int]) -> dict[int, Declared]:
        """The same of the nodes of a copy, which has them in the same order."""
        pairs = zip(self._device.graph_nodes(g), copies) if self._declared else ()
        return {other: self._declared[mine] for mine, other in pairs if mine in self._declared}

    def clone(self) -> Self:
        made = super().clone()
        with self._lock:
            if self._made is not None:
                made._declared = self._said_of_copy(self._made.graph, self._device.graph_nodes(made._made.graph))
        return made

    def _take_over(self, other: Updatable, *, anew: bool) -> None:
        said = other._declared if isinstance(other, Declarable) else {}
        super()._take_over(other, anew=anew)
        self._declared = said
        if isinstance(other, Declarable):
            other._declared = {}
