"""A graph in several orders: launched in turn, and timed.

Each launch starts from the same bytes: all memory that the graph writes is put back before it, and after the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from capturekit.driver.cuda import Platform
from capturekit.graph.first_launch import bytes_at

#: Launches follow each other, as in a loop: the host may need longer for one than the device. There are as many as take
#: so many microseconds, and not fewer or more than these: the first ones after another graph's take longer.
IN_A_ROW, FEWEST, MOST = 2000.0, 4, 25
_Name = TypeVar('_Name')


class SameStart:
    """Memory that is put back before each launch, and once more when all is over: all that a launch writes."""

    def __init__(self, platform: Platform, ranges: Sequence[tuple[int, int]], stream: int) -> None:
        """Copy the memory. Raises MemoryError where there is no room for that."""
        self._views = [bytes_at(platform, low, high) for low, high in ranges]
        self._copies = [view.copy() for view in self._views]
        self._platform, self._stream = platform, stream

    def put_back(self) -> None:
        for view, copy in zip(self._views, self._copies):
            view[...] = copy


@contextmanager
def same_start(platform: Platform, ranges: Sequence[tuple[int, int]], stream: int) -> Iterator[SameStart]:
    """For a block of launches on a stream, which ends when they have ended."""
    start = SameStart(platform, ranges, stream)
    try:
        yield start
    finally:
        platform.device.stream_synchronize(stream)  # memory of the host is put back at once
        start.put_back()
        platform.device.stream_synchronize(stream)


def timed(
    device: Any, start: SameStart, executables: Mapping[_Name, int], rounds: int, stream: int
) -> dict[_Name, tuple[float, ...]]:
    """Launch executable graphs in turn, ``rounds`` times each after one that does not count; return microseconds.

    Each time it is launched several times in a row, and all but the first are timed.
    """
    found: dict[_Name, list[float]] = {name: [] for name in executables}
    counts = dict.fromkeys(executables, FEWEST)
    names = list(executables)
    for number in range(1 + rounds):
        for name in names:
            start.put_back()
            us = device.graph_time(executables[name], stream, counts[name])
            if number:
                found[name].append(us)
            else:
                counts[name] = max(FEWEST, min(MOST, int(IN_A_ROW / max(us, 1.0))))
        names = names[::-1] if len(names) == 2 else [*names[1:], names[0]]
    return {name: tuple(times) for name, times in found.items()}
