"""Arrays that were made in the body of a decision, and that something still holds when the body has ended.

The device decides at each launch whether the body runs. So such an array has a value only while its body runs, and
nothing that is recorded elsewhere may use it. From the end of the body to the end of the capture these arrays are of
a class that refuses whatever CuPy asks them, before anything is recorded. CuPy does not ask for everything (an array
given as ``out=`` may be taken as it is), so at the end of the capture the nodes outside of the body are looked through,
too. The memory is held until then, so that no other array can have got it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from capturekit.driver.node_accesses import Access
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model import errors
from capturekit.model.cleanup import instances
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.source_line import Place, here

#: What may be asked of such an array: nothing of this is work, and none of it leads to work in CuPy's compiled code.
_HARMLESS = frozenset(
    {
        'shape', 'dtype', 'itemsize', 'size', 'nbytes', 'strides', 'data', 'base', '_shape', '_strides', '__class__',
        '__doc__', '__module__', '__dict__',
    }
)  # fmt: skip
#: CuPy looks for these methods, and its compiled code takes any exception of the look-up for their absence.
_CALLED = ('__cupy_override_elementwise_kernel__', '__cupy_override_reduction_kernel__')


@dataclass(eq=False)
class LeftMemory:
    """Memory of an array that has outlived its body: the line that made it, and how many nodes were recorded by then.

    Earlier nodes may have used it for other arrays.
    """

    mem: Any
    made: Place | None
    decides: str
    body: Place | None
    nodes: dict[int, int]

    def refusal(self, at: Place | None) -> CaptureError:
        """The error for work outside of the body that uses the array."""
        return errors.UnsupportedCallError(
            'Work with an array that was made in the body of a decision',
            location=at,
            rule=f'The array was made at {self.made}, in a body of `{self.decides}` (at {self.body}) that has ended. '
            'It has a value only while that body runs, and the device decides at each launch whether it does.',
            remedy=RETURNED,
        )

    def met_by(self, access: Access) -> bool:
        """Whether a node touches the memory. Where only an address is known, it may be what was left in a structure."""
        low, high = access.extent
        start = int(self.mem.ptr)
        return bool(access.itemsize) and low < start + int(self.mem.size) and start < high


#: What to write instead.
RETURNED = (
    'Let the decision return it: `y = cap.cond(condition, lambda: ..., lambda: ...)`, `x = cap.loop(condition, body, '
    'x)`; or write into an array from before the decision: `y[...] = ...`.'
)


def made_at(value: Any) -> int:
    """The address of the memory of an array; 0 for other values."""
    data = getattr(value, 'data', None)
    return int(getattr(getattr(data, 'mem', None), 'ptr', 0))


class LeftArrays:
    """Makes arrays that have outlived their body refuse all work, until their capture ends."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: By address: the memory of all of them.
        self._known: dict[int, LeftMemory] = {}
        self._classes: dict[type, type] = {}

    def leave(self, live: OpenCapture, decision: Any) -> None:
        """The body of a decision has ended: what it has made, and others still hold, refuses work from now on."""
        kind, device = self.state.platform.cupy.ndarray, self.state.platform.device
        nodes: dict[int, int] = {}
        for array in instances(kind, since=decision.collections) if decision.made else ():
            data = array.data
            if type(array) is not kind or data is None or int(data.mem.ptr) not in decision.made:
                continue
            address = int(data.mem.ptr)
            if address not in self._known:
                nodes = nodes or {graph: device.graph_node_count(graph) for graph in _graphs(live, decision.graph)}
                made = decision.made[address]
                self._known[address] = LeftMemory(data.mem, made, decision.decides, decision.at, nodes)
                live.decisions.left.append(self._known[address])
            array.__class__ = self._class(kind)

    def has_left(self, array: Any) -> bool:
        """Whether an array has outlived its body."""
        return type(array) in self._classes.values()

    def restore(self, live: OpenCapture) -> None:
        """The capture ends: the arrays are ordinary ones again."""
        mine = {int(one.mem.ptr) for one in live.decisions.left}
        for kind, left in self._classes.items() if mine else ():
            for array in instances(left):
                if int(array.data.mem.ptr) in mine:
                    array.__class__ = kind

    def check(self, live: OpenCapture) -> None:
        """Raise for a node outside of the bodies that uses such an array all the same."""
        left, trace, device = live.decisions.left, live.trace, live.platform.device
        with self.state.inside, suppress(CudaCallError):  # this driver does not tell what nodes touch
            for graph in _graphs(live, device.capture_info(live.origin.ptr).graph) if left else ():
                order, touched = device.graph_nodes(graph), device.graph_accesses(graph)
                later = ((one, node) for one in left for node in order[one.nodes.get(graph, 0) :])
                found = next((pair for pair in later if any(map(pair[0].met_by, touched[pair[1]].accesses))), None)
                if found is not None:
                    raise found[0].refusal((None if trace is None else trace.maker(found[1], order)) or live.at)

    def forget(self, live: OpenCapture) -> None:
        """The memory need not be held any more."""
        for one in live.decisions.left:
            self._known.pop(int(one.mem.ptr), None)
        live.decisions.left.clear()

    def _class(self, kind: type) -> type:
        if kind not in self._classes:
            self._classes[kind] = _class_of(kind, self._refuse)
        return self._classes[kind]

    def _refuse(self, array: Any) -> NoReturn:
        raise self._known[int(array.data.mem.ptr)].refusal(here())


def _class_of(kind: Any, refuse: Callable[[Any], NoReturn]) -> type:
    """A class with the layout of CuPy's arrays, whose objects refuse what they are asked."""

    class Left(kind):  # type: ignore[misc]
        """An array that was made in a body which has ended."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in _HARMLESS:
                return super().__getattribute__(name)
            return (lambda *_args, **_kwargs: refuse(self)) if name in _CALLED else refuse(self)

        def __array_finalize__(self, obj: Any) -> None:
            refuse(obj)

    def refused(self: Any, *_args: Any) -> NoReturn:
        refuse(self)

    for name in 'getitem setitem iter len matmul rmatmul imatmul bool int float complex'.split():
        setattr(Left, f'__{name}__', refused)
    Left.__name__ = Left.__qualname__ = kind.__name__
    return Left


def _graphs(live: OpenCapture, now: int) -> list[int]:
    """The graphs that the capture has recorded into so far, with the present one."""
    parts = [] if live.parts.plan is None else [*live.parts.plan.parts, live.parts.current]
    graphs = [now]
    graphs += [graph for part in parts if part is not None for graph in (part.graph, *part.bodies) if graph]
    graphs += [body for bodies in live.decisions.bodies.values() for body in bodies]
    return list(dict.fromkeys(graphs))
