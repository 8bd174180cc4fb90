"""Who writes, found out: kernels of which only their author knows are run alone, and what has changed is looked at.

A copy of the executable graph has all its nodes disabled but those that are to run, so that each kernel runs behind all
that comes before it, on the values that it would find. What was there is put back. CUDA C++ Programming Guide,
"Individual Node Enable".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import numpy as np

from capturekit.accesses import Access, Touched
from capturekit.cuda import Platform
from capturekit.looking import Look
from capturekit.order import Order

_SWITCHED = frozenset({'kernel', 'memcpy', 'memset'})
#: What does nothing to memory, and may run beside.
_HARMLESS = frozenset({'empty', 'event record', 'wait event'})


def why_not(look: Look) -> str:
    """Why nodes of a graph can't be run alone; '' if they can."""
    other = sorted({node.kind for node in look.nodes} - _SWITCHED - _HARMLESS)
    return f'nodes of kind {", ".join(other)} can not be disabled, so that no node can be run alone' if other else ''


#: ``cudaMemoryTypeDevice``, ``cudaMemoryTypeManaged``.
_DEVICE = (2, 3)


class Observation:
    """One observation of one graph, which is not launched meanwhile.

    ``end`` tells where the memory block around an address ends, None where that is nobody's.
    """

    def __init__(self, platform: Platform, g: int, look: Look, end: Callable[[int], int | None]) -> None:
        self._platform = platform
        self._device = platform.device
        self._cupy = platform.cupy
        self._g = g
        self._look = look
        self._end = end
        self._handles = self._device.graph_nodes(g)
        self._touched: Mapping[int, Touched] = self._device.graph_accesses(g)

    def run(self, inside: Callable[[], AbstractContextManager[None]]) -> dict[tuple[str, int], bool]:
        """(kernel, argument's number) -> whether it was seen to be written; what changed nothing is left out.

        Waits for the current stream.
        """
        number = {handle: n for n, handle in enumerate(self._handles)}
        edges = [(number[a], number[b]) for a, b in self._device.graph_edges(self._g)]
        order = [self._handles[n] for n in Order(len(self._handles), edges).sequence]
        asked = self._asked(order)
        found: dict[tuple[str, int], bool] = {}
        if not asked:
            return found
        with ExitStack() as stack:
            stack.enter_context(inside())
            for saved in self._saved():
                stack.callback(saved)
            x = self._device.graph_instantiate(self._g)
            stack.callback(self._device.graph_exec_destroy, x)
            stack.callback(self._cupy.cuda.get_current_stream().synchronize)
            self._walk(x, order, asked, found)
        return found

    def _asked(self, order: list[int]) -> dict[int, list[Access]]:
        """The first node of each kernel that may write what it was given, and what that is."""
        found: dict[int, list[Access]] = {}
        names = set()
        for handle in order:
            node = self._look.nodes[self._look.numbers[handle]]
            unknown = [one for one in self._touched[handle].accesses if one.writes is None and one.argument >= 0]
            if unknown and node.name not in names:
                names.add(node.name)
                found[handle] = unknown
        return found

    def _walk(self, x: int, order: list[int], asked: dict[int, list[Access]], found: dict[Any, bool]) -> None:
        device, stream = self._device, self._cupy.cuda.get_current_stream().ptr
        for handle in order:
            self._switch(x, handle, False)
        waiting: list[int] = []
        for handle in order:
            waiting.append(handle)
            if handle not in asked:
                continue
            before, alone = waiting[:-1], waiting[-1:]
            for some in (before, alone):
                views = [self._bytes(*self._range(access)) for access in asked[handle]] if some is alone else []
                copies = [view.copy() for view in views]
                for one in some:
                    self._switch(x, one, True)
                device.graph_launch(x, stream)
                for one in some:
                    self._switch(x, one, False)
                name = self._look.nodes[self._look.numbers[handle]].name
                seen = [bool((view != copy).any()) for view, copy in zip(views, copies)]
                # where nothing has changed at all, what it writes may have been there before
                if any(seen):
                    for access, changed in zip(asked[handle], seen):
                        found[name, access.argument] = found.get((name, access.argument), False) or changed
            waiting.clear()

    def _switch(self, x: int, handle: int, on: bool) -> None:
        if self._look.nodes[self._look.numbers[handle]].kind in _SWITCHED:
            self._device.node_enable(x, handle, on)

    def _range(self, access: Access) -> tuple[int, int]:
        """Where it may be written; nothing where it can't be told what is there."""
        low, high = access.extent
        if not access.itemsize:
            high = self._end(low) or low  # no address, or of nothing that the graph holds
        return low, high

    def _on_device(self, address: int) -> bool:
        return self._cupy.cuda.runtime.pointerGetAttributes(address).type in _DEVICE

    def _bytes(self, low: int, high: int) -> Any:
        """Memory as an array of bytes."""
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(low, high - low, None, cuda.Device().id)
        return self._cupy.ndarray((high - low,), np.uint8, cuda.MemoryPointer(memory, 0))

    def _saved(self) -> list[Callable[[], None]]:
        """Put back what any node may write on the device."""
        found: list[Callable[[], None]] = []
        for low, high in self._written():
            view = self._bytes(low, high)
            found.append(partial(self._put, view, view.copy()))
        return found

    @staticmethod
    def _put(view: Any, copy: Any) -> None:
        view[...] = copy

    def _written(self) -> list[tuple[int, int]]:
        """Where nodes may write, as ranges that lie apart."""
        ranges = sorted(
            self._range(access)
            for touched in self._touched.values()
            for access in touched.accesses
            if access.writes is not False and self._on_device(access.address)
        )
        joined: list[tuple[int, int]] = []
        for low, high in ranges:
            if joined and low <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
            else:
                joined.append((low, high))
        return joined
