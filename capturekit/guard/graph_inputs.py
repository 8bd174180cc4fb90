"""Arrays that a graph of a capture begun by hand was recorded with: CuPy's graph holds addresses, and no array.

Where such an array is gone by the launch, CuPy may have given its memory to another one: the launch would read and
write that. So a launch is refused where no array is left at an address from outside of the capture. What the capture
allocated itself is left out: CuPy's pool gives that to work of the same stream only. So is memory that something else
than arrays holds, such as a ``MemoryPointer`` of the user's: it may live without them.

Before the first launch of a graph its results hold what lay in their memory before. The host gets that without an
error, so that a read of such an array is worth a warning. It is seen while the wrappers stay in place after a capture,
as under ``capturekit run``.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model import errors
from capturekit.model.cleanup import instances
from capturekit.model.counters import LOG
from capturekit.model.source_line import Place, here


@dataclass
class InputBlock:
    """Memory from outside that nodes touch. ``arrays``: those that it belongs to; views hold their array as a base."""

    start: int
    words: str
    arrays: list[weakref.ref[Any]] = field(default_factory=list)


@dataclass
class TouchedMemory:
    """What the nodes of a capture begun by hand touch: memory from outside, and arrays that it allocated itself."""

    blocks: list[InputBlock] = field(default_factory=list)
    own: list[weakref.ref[Any]] = field(default_factory=list)


@dataclass(eq=False)
class Unlaunched:
    """A graph that was not launched when its capture had ended.

    ``fills`` says whether it fills an array, ``over`` whether it was launched meanwhile, or is gone.
    """

    at: Place | None
    launch: str
    fills: Callable[[Any], bool]
    over: Callable[[], bool]


def _references(held: list[Any]) -> int:
    """References to the one member of a list, with this function's own."""
    return sys.getrefcount(held[0])


_OWN = _references([object()])


def others_of(held: list[Any]) -> int:
    """References to the one member of a list, besides the list's own."""
    return _references(held) - _OWN


class BlockHolders:
    """Who holds a block of memory: objects that are no arrays may keep it alive without them."""

    def __init__(self) -> None:
        #: The pointers of arrays, by their ids.
        self._pointers: dict[int, list[Any]] = {}
        self._arrays: Counter[int] = Counter()

    def add(self, pointer: Any) -> None:
        """Note the pointer of an array."""
        self._pointers[id(pointer)] = [pointer]
        self._arrays[id(pointer)] += 1

    def are_arrays(self) -> bool:
        """True if nothing but these arrays refers to their pointers, and nothing but these to the memory."""
        memory = [next(iter(self._pointers.values()))[0].mem]
        return _references(memory) - _OWN == len(self._pointers) and all(
            _references(held) - _OWN == self._arrays[at] for at, held in self._pointers.items()
        )


class GraphInputs:
    """Refuses launches of graphs that were captured by hand and whose arrays from outside are gone."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: By handle of the executable graph, of which the newest graph counts: where its capture ended, and the blocks.
        self._graphs: dict[int, tuple[Place | None, list[InputBlock]]] = {}
        #: Graphs that were not launched when this was asked last, and the handles of those that were.
        self._unlaunched: list[Unlaunched] = []
        self._launched: set[int] = set()

    def found(self, live: OpenCapture) -> TouchedMemory:
        """Return what the nodes of a capture touch, just before it ends."""
        kind, device = self.state.platform.cupy.ndarray, self.state.platform.device
        with self.state.inside:
            graph = device.capture_info(live.origin.ptr).graph
            touched = sorted({one.address for node in device.graph_accesses(graph).values() for one in node.accesses})
        blocks: dict[int, InputBlock] = {}
        holders: dict[int, BlockHolders] = {}
        own = []
        for array in instances(kind) if touched else ():
            data = array.data
            if data is None or not array.size:  # without data it was never made
                continue
            start = int(data.mem.ptr)
            first = bisect_left(touched, start)
            if first == len(touched) or touched[first] >= start + data.mem.size:
                continue
            if live.records(data.mem):
                own.append(weakref.ref(_root(array)))
                continue
            block = blocks.setdefault(start, InputBlock(start, f'{array.dtype}{list(array.shape)}'))
            block.arrays.append(weakref.ref(_root(array)))
            holders.setdefault(start, BlockHolders()).add(data)
        array = data = None  # neither is a holder
        return TouchedMemory([block for start, block in blocks.items() if holders[start].are_arrays()], own)

    def made(self, graph: Any, touched: TouchedMemory, at: Place | None) -> None:
        """Note what a graph of CuPy's touches. Another kind of graph is instantiated elsewhere."""
        if not hasattr(graph, 'graphExec'):
            return
        handle, own = int(graph.graphExec), touched.own
        self._graphs[handle] = here(), touched.blocks
        self._unlaunched = [one for one in self._unlaunched if not one.over()]
        self._launched.discard(handle)  # it was an earlier graph's
        if own:
            self.recorded(
                Unlaunched(
                    at,
                    '`graph.launch()`',
                    lambda array: any(one() is _root(array) for one in own),
                    lambda: handle in self._launched or all(one() is None for one in own),
                )
            )

    def recorded(self, graph: Unlaunched) -> None:
        """Note a graph that has just been made."""
        self._unlaunched = [one for one in self._unlaunched if not one.over()] + [graph]

    def reads(self, array: Any) -> None:
        """Warn that the host reads a result of a graph which has not been launched; once for each graph."""
        if not self._unlaunched:
            return
        with self.state.lock, self.state.inside:
            self._unlaunched = [one for one in self._unlaunched if not one.over()]
            found = next((one for one in self._unlaunched if one.fills(array)), None)
            if found is not None:
                self._unlaunched.remove(found)
        if found is not None:
            LOG.warning(
                '%s: this reads an array of the capture begun at %s, and its graph has not been launched: the array '
                'holds what lay in its memory before. Call %s first.',
                here(), found.at, found.launch,
            )  # fmt: skip

    def launched(self, graph: Any) -> None:
        """Hear of a launch of a graph of CuPy's, or of its handle; refuse that of a graph whose arrays are gone."""
        if isinstance(graph, int):
            return self.ran(graph)
        at, blocks = self._graphs.get(int(graph.graphExec), (None, []))
        gone = next((one for one in blocks if all(array() is None for array in one.arrays)), None)
        if gone is not None:
            raise errors.FreedMemoryError(
                'Graph.launch()',
                location=here(),
                rule=f'The graph whose capture ended at {at} uses memory at {gone.start:#x}, and the array that was '
                f'there ({gone.words}) is gone: the launch would read or write what others have there by now.',
                remedy='Keep a name for every array that the capture uses as long as the graph is launched.',
            )
        self.ran(int(graph.graphExec))

    def ran(self, handle: int) -> None:
        """Note that an executable graph is launched."""
        if self._unlaunched:
            self._launched.add(handle)

    def forget(self) -> None:
        """Forget all graphs: the wrappers are gone, so that it is not seen what is captured from now on."""
        self._graphs.clear()
        self._unlaunched.clear()
        self._launched.clear()


def _root(array: Any) -> Any:
    """The array that a view belongs to; any other array itself."""
    return array if array.base is None else array.base
