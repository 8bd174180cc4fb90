"""The temporaries of a capture whose memory is used again late: which blocks they are, and giving them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from capturekit.launch.asked_bytes import AskedBytes
from capturekit.launch.lane_blocks import UNIT, LaneBlocks, PoolBlock
from capturekit.launch.memory_group import Share
from capturekit.launch.workspaces import Workspaces
from capturekit.model.ledger import LedgerCapture
from capturekit.model.rules import CaptureStatus


class TemporaryBlocks:
    """What :class:`capturekit.launch.graph_memory.GraphMemory` knows of blocks that no array lies in."""

    private: bool
    late: int | None
    share: Share | None
    workspaces: Workspaces
    holders: int
    ends: Callable[[int], tuple[int, ...]]
    _scratch_chunk: Callable[[int], Any]
    _asked: AskedBytes
    _capture: LedgerCapture | None
    _chunks: list[tuple[int, int]]
    _devices: set[int]
    _fresh: Any
    _held: list[Any]
    blocks: LaneBlocks
    _loops: list[tuple[Any, LaneBlocks]]
    _on: Callable[[int], AbstractContextManager[Any]]

    @property
    def packs(self) -> bool:
        """Whether temporaries lie in memory of its own until they are packed into that of the group."""
        return self.share is not None and self.share.packs

    @property
    def workspaces_stay(self) -> bool:
        """Whether workspaces are the group's, so that none of them is packed."""
        return self.share is not None and not self.share.packs

    def place(self) -> tuple[int, ...] | None:
        """The nodes before the next one, of a capture of one lane with memory that is used again late; else None."""
        capture = self._capture
        if self.late is None or capture is None or len(capture.lanes) > 1:
            return None
        return self.ends(capture.origin.stream) if capture.status is CaptureStatus.ACTIVE else None

    def temporaries(self) -> list[PoolBlock]:
        """Blocks that no array lies in any more, and workspaces, as far as this graph alone has them."""
        stay = self.share is not None and self.share.scratch is not None and not self.packs
        if self.late is None or not self.private or stay or self._loops or self.holders != 1:
            return []
        own, size = [] if self.workspaces_stay else self.workspaces.every(), self.workspaces.nbytes
        return self.blocks.free() + [PoolBlock(pointer, size, True) for pointer in own]

    def take(self, size: int) -> Any:
        """Take memory that is nobody's yet: :meth:`keep` or :meth:`give_back` decides on it."""
        return self._scratch_chunk(-(-size // UNIT) * UNIT) if self.packs else self._fresh.malloc(size)

    def give_back(self, low: int, size: int) -> None:
        """Give such memory back to the device or to the group, when nothing refers to it any more."""
        if self.packs:
            assert self.share is not None and self.share.scratch is not None
            high = low + -(-size // UNIT) * UNIT
            self.share.scratch.give_back(low, high)
            self._chunks.remove((low, high))
        else:
            self._give({(low, low + size)})

    def give_up(self, blocks: Sequence[PoolBlock]) -> None:
        """Give such blocks back to the device, for good. No node may use them; launches that do must have ended."""
        gone = {(int(one.pointer.ptr), int(one.pointer.ptr) + one.size) for one in blocks}
        starts = {low for low, _high in gone}
        self._held = [one for one in self._held if not (hasattr(one, 'mem') and int(one.ptr) in starts)]
        self.workspaces.forget(starts)
        self.blocks.give_up(blocks)
        self._asked.forget(starts)
        self._give(gone)

    def _give(self, gone: set[tuple[int, int]]) -> None:
        self._chunks = [one for one in self._chunks if one not in gone]
        for device in self._devices:
            with self._on(device):
                self._fresh.free_all_blocks()


def all_free(pool: Any) -> Iterator[Any]:
    """A pool's free memory for the current stream, in pieces; the pool can't grow: it raises MemoryError instead."""
    size = 1 << max(int(pool.free_bytes()), 1).bit_length() - 1
    while size >= UNIT:
        try:
            yield pool.malloc(size)
        except MemoryError:
            size //= 2
