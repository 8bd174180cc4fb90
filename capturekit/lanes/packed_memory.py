"""Packed memory for a graph's temporaries: the nodes' addresses are changed in the definition, there and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from capturekit.driver.node_accesses import Access
from capturekit.driver.node_reader import NodeInfo
from capturekit.lanes.packing import PackedLayout
from capturekit.lanes.report import PackedBytes
from capturekit.lanes.temporaries import NodeWord, Temporary
from capturekit.launch.declared import Declared, moved
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.lane_blocks import PoolBlock
from capturekit.model.errors import CudaCallError

_WORD = 8
#: Puts addresses into a node of the definition, each at its place.
_Put = Callable[[Sequence[tuple[Any, int]]], None]


class Packing:
    """Temporaries of one definition, with a place for each in less memory: :meth:`aim` brings the nodes there."""

    def __init__(
        self,
        memory: GraphMemory,
        aims: Sequence[Aim],
        moved: Sequence[tuple[Temporary, PoolBlock]],
        layout: PackedLayout,
        own: Mapping[int, tuple[Access, ...]],
    ) -> None:
        """``own``: the graph's own memory that nodes have by an argument, by their handles, where it was recorded."""
        self._memory, self._aims = memory, aims
        self._blocks = [block for _one, block in moved]
        self.old = [(one.low, one.high) for one, _block in moved]
        self._arena = memory.take(layout.size) if layout.size else None
        self._place = 0 if self._arena is None else int(self._arena.ptr)
        self._size, self._own = layout.size, own
        pairs = zip(self.old, layout.offsets)
        self._moves = sorted((low, high, self._place + offset) for (low, high), offset in pairs)
        self._declared: dict[int, Declared] | None = None
        self.report = PackedBytes(sum(high - low for low, high in self.old), layout.size)

    def aim(self, declared: dict[int, Declared]) -> dict[int, Declared]:
        """Let the nodes use the packed memory. Return what is said of them now, where it was ``declared``.

        Where CUDA refuses one of them, :meth:`aim_back` brings them back."""
        to = {low: there - low for low, _high, there in self._moves}
        for one in self._aims:
            one.put(to)
        self._declared = declared
        return moved(declared, self._moves, self._own)

    def aim_back(self) -> dict[int, Declared]:
        """Let the nodes use the memory again that they were recorded with. Return what is said of them there."""
        for one in self._aims:
            one.put({})
        return self._declared or {}

    def drop(self) -> None:
        """Give the packed memory back: no node uses it."""
        if self._arena is not None:
            self._arena = None
            self._memory.give_back(self._place, self._size)

    def settle(self) -> None:
        """Give the memory back that the nodes were recorded with, if nobody else has it, and keep the packed one."""
        if self._arena is not None:
            self._memory.keep(self._arena)
        if self._memory.holders == 1:
            self._memory.give_up(self._blocks)
        self._blocks, self.report.settled = [], True


class Aim:
    """The addresses in one node that are changed. A block stays that the node has in another way than was seen."""

    def __init__(self, device: Any, g: int, info: NodeInfo, words: Sequence[tuple[NodeWord, Temporary]]) -> None:
        self._words = words
        self._put = self._kernel(device, g, info) if info.kind == 'kernel' else _copy(device, g, info)

    def settled(self) -> bool:
        """Leave the addresses out that stay. Return whether any other is left."""
        self._words = [(word, block) for word, block in self._words if not block.stays]
        return bool(self._words)

    def put(self, to: Mapping[int, int]) -> None:
        """Move each address by as many bytes as its block."""
        self._put([(word.place, word.address + to.get(block.low, 0)) for word, block in self._words])

    def _kernel(self, device: Any, g: int, info: NodeInfo) -> _Put:
        try:
            aim = device.kernel_aim(g, info.handle)
            arguments = [one.data for one in aim.arguments]
        except CudaCallError:
            aim, arguments = None, []
        for word, block in self._words:
            argument, offset = word.place
            data = arguments[argument][offset : offset + _WORD] if argument < len(arguments) else b''
            if len(data) != _WORD or int.from_bytes(data, 'little') != word.address:
                block.stays = f'{info.name} has its address in another way'

        def put(places: Sequence[tuple[Any, int]]) -> None:
            for (argument, offset), address in places:
                aim.write(argument, offset, address)
            aim.define()

        return put


def _copy(device: Any, g: int, info: NodeInfo) -> _Put:
    detail = info.detail

    def put(places: Sequence[tuple[Any, int]]) -> None:
        ends = {**detail, **dict(places)}
        if info.kind == 'memcpy':
            device.set_memcpy(g, info.handle, ends['dst'], ends['src'], detail['bytes'])
        else:
            device.set_memset(g, info.handle, ends['dst'], detail['value'], detail['bytes'])

    return put
