"""Workspaces of cuBLAS in a graph's memory: one for each lane, or several in turn where one lane is to be split."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

#: For cuBLAS on each lane: what NVIDIA's documentation of cublasSetWorkspace recommends for Hopper and later. With
#: another size it might choose other kernels than in an eager run.
WORKSPACE_BYTES = 32 << 20
#: So many of them are used in turn at the most, and of the device's memory not more than this part; fewer, where they
#: stay. Others are packed once the order is known.
_MOST, _PART, _MOST_THAT_STAY = 128, 32, 32


def count_of(cupy: Any, late: int | None, stay: bool = False) -> int:
    """How many workspaces a lane uses in turn: one, unless memory is to be used again ``late`` (0 or a limit in bytes).

    Two calls of cuBLAS that share one come one after the other. Of a limit half is left for what the block allocates.
    ``stay``: whether they are shared with other graphs, so that none is given back.
    """
    if late is None:
        return 1
    most = late // 2 if late else int(cupy.cuda.runtime.memGetInfo()[1]) // _PART
    return max(1, min(_MOST_THAT_STAY if stay else _MOST, most // WORKSPACE_BYTES))


class Workspaces:
    """The workspaces of one graph. ``grow`` takes memory that stays with the graph."""

    def __init__(self, grow: Callable[[int], Any], count: int) -> None:
        self._grow, self._count = grow, count
        self._of: dict[int, list[Any]] = {}
        self.nbytes = WORKSPACE_BYTES

    def next(self, stream: int) -> tuple[int, int]:
        """Address and bytes of the one for the next call on a stream."""
        several = self._of.setdefault(stream, [])
        if len(several) < self._count:
            several.append(self._grow(self.nbytes))
        else:  # the one that was used first has waited longest
            several.append(several.pop(0))
        return int(several[-1].ptr), self.nbytes

    @property
    def taken(self) -> int:
        """Bytes of all of them."""
        return self.nbytes * sum(map(len, self._of.values()))

    def every(self) -> list[Any]:
        """All of them, as memory pointers."""
        return [pointer for several in self._of.values() for pointer in several]

    def forget(self, addresses: Container[int]) -> None:
        """Let go of those that begin there: they are given back."""
        for stream, several in self._of.items():
            self._of[stream] = [one for one in several if int(one.ptr) not in addresses]

    def clear(self) -> None:
        self._of.clear()
