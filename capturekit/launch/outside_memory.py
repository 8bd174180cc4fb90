"""Memory outside of a graph that its parts may change when they run during the recording: it is restored after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.outside_arrays import arrays_at, words_of


class OutsideMemory:
    """Copies of the memory outside of a graph that its parts may change, made before they run.

    ``besides``: arrays whose memory is not copied.
    """

    def __init__(self, platform: Platform, memory: GraphMemory, besides: Iterable[Any] = ()) -> None:
        self._platform = platform
        self._memory = memory
        self._besides = {int(array.data.mem.ptr) for array in besides}
        #: By address: all of an allocation, in bytes, and its copy.
        self._kept: dict[int, tuple[Any, Any]] = {}

    def keep(self, graphs: Iterable[int]) -> None:
        """Copy, on CuPy's current stream, the memory whose addresses these graphs have, if it is not copied already."""
        words = words_of(self._platform.device, graphs)
        self._keep(arrays_at(words, self._memory, self._platform.cupy.ndarray))

    def keep_arrays(self, arrays: Iterable[Any]) -> None:
        """The same for the memory of arrays."""
        self._keep([array.data for array in arrays if array.size and not self._memory.owns(array.data.mem)])

    def _keep(self, pointers: Iterable[Any]) -> None:
        for data in pointers:
            start = int(data.mem.ptr)
            if start not in self._kept and start not in self._besides:
                block = whole_block(self._platform.cupy, data)
                self._kept[start] = block, block.copy()

    def put_back(self) -> None:
        """Restore the memory. Whoever calls waits for that."""
        kept, self._kept = self._kept, {}
        for block, copy in kept.values():
            block[...] = copy


def whole_block(cupy: Any, data: Any) -> Any:
    """All bytes of the allocation that a pointer lies in, as an array."""
    return cupy.ndarray((int(data.mem.size),), 'u1', data + (int(data.mem.ptr) - int(data.ptr)))
