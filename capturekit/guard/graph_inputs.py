"""Arrays that a graph of a capture begun by hand was recorded with: CuPy's graph holds addresses, and no array.

Where such an array is gone by the launch, CuPy may have given its memory to another one: the launch would read and
write that. So a launch is refused where no array is left at an address from outside of the capture. What the capture
allocated itself is left out: CuPy's pool gives that to work of the same stream only. So is memory that something else
than arrays holds, such as a ``MemoryPointer`` of the user's: it may live without them.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model import errors
from capturekit.model.live_objects import instances
from capturekit.model.source_line import Place, here


@dataclass
class InputBlock:
    """Memory from outside that nodes touch. ``arrays``: those that it belongs to; views hold their array as a base."""

    start: int
    words: str
    arrays: list[weakref.ref[Any]] = field(default_factory=list)


def _references(held: list[Any]) -> int:
    """References to the one member of a list, with this function's own."""
    return sys.getrefcount(held[0])


_OWN = _references([object()])


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

    def found(self, live: OpenCapture) -> list[InputBlock]:
        """Return the memory from outside that the nodes of a capture touch, just before it ends."""
        kind, device = self.state.platform.cupy.ndarray, self.state.platform.device
        with self.state.inside:
            graph = device.capture_info(live.origin.ptr).graph
            touched = sorted({one.address for node in device.graph_accesses(graph).values() for one in node.accesses})
        blocks: dict[int, InputBlock] = {}
        holders: dict[int, BlockHolders] = {}
        for array in instances(kind) if touched else ():
            data = getattr(array, 'data', None)
            if data is None or not array.size or live.records(data.mem):  # without data it was never made
                continue
            start = int(data.mem.ptr)
            first = bisect_left(touched, start)
            if first < len(touched) and touched[first] < start + data.mem.size:
                block = blocks.setdefault(start, InputBlock(start, f'{array.dtype}{list(array.shape)}'))
                block.arrays.append(weakref.ref(array if array.base is None else array.base))
                holders.setdefault(start, BlockHolders()).add(data)
        array = data = None  # neither is a holder
        return [block for start, block in blocks.items() if holders[start].are_arrays()]

    def made(self, graph: Any, blocks: list[InputBlock]) -> None:
        """Note what a graph of CuPy's touches. Another kind of graph is instantiated elsewhere."""
        if hasattr(graph, 'graphExec'):
            self._graphs[int(graph.graphExec)] = here(), blocks

    def launched(self, graph: Any) -> None:
        """Refuse to launch a graph of CuPy's whose arrays are gone."""
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

    def forget(self) -> None:
        """Forget all graphs: the wrappers are gone, so that it is not seen what is captured from now on."""
        self._graphs.clear()
