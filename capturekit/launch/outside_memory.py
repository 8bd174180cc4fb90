"""Memory that is not a graph's, and that its parts may change which run while they are recorded: it is put back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.outside_arrays import arrays_at, words_of


class OutsideMemory:
    """Copies of the memory that parts of a graph may work on besides the graph's own, as it was before they ran."""

    def __init__(self, platform: Platform, memory: GraphMemory) -> None:
        self._platform = platform
        self._memory = memory
        #: By address: all of an allocation, in bytes, and its copy.
        self._kept: dict[int, tuple[Any, Any]] = {}

    def keep(self, graphs: Iterable[int]) -> None:
        """Copy what these graphs name the address of, on CuPy's current stream; what is kept already stays."""
        words = words_of(self._platform.device, graphs)
        self._keep(arrays_at(words, self._memory, self._platform.cupy.ndarray))

    def keep_arrays(self, arrays: Iterable[Any]) -> None:
        """The same for the memory of arrays."""
        self._keep([array.data for array in arrays if array.size and not self._memory.owns(array.data.mem)])

    def _keep(self, pointers: Iterable[Any]) -> None:
        for data in pointers:
            start = int(data.mem.ptr)
            if start not in self._kept:
                block = whole_block(self._platform.cupy, data)
                self._kept[start] = block, block.copy()

    def put_back(self) -> None:
        """Make the memory as it was, and wait for that."""
        kept, self._kept = self._kept, {}
        for block, copy in kept.values():
            block[...] = copy
        if kept:
            self._platform.cupy.cuda.runtime.deviceSynchronize()


def whole_block(cupy: Any, data: Any) -> Any:
    """All bytes of the allocation that a pointer lies in, as an array."""
    return cupy.ndarray((int(data.mem.size),), 'u1', data + (int(data.mem.ptr) - int(data.ptr)))
