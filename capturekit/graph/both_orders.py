"""A graph with the order as recorded and with the one that its data needs: both launched in turn, and timed.

Each launch starts from the same bytes: all memory that the graph writes is put back before it, and after the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from capturekit.analysis.relaned import OrderTimes
from capturekit.driver.cuda import Platform
from capturekit.graph.first_launch import bytes_at


def timed(
    platform: Platform, recorded: int, needed: int, ranges: Sequence[tuple[int, int]], rounds: int, stream: int
) -> OrderTimes:
    """Launch two executable graphs in turn, ``rounds`` times each after one that does not count, and wait for them.

    ``ranges``: all memory that a launch writes. Raises MemoryError where there is no room for a copy of it: then
    nothing has been launched.
    """
    views = [bytes_at(platform, low, high) for low, high in ranges]
    copies = [view.copy() for view in views]
    found: dict[int, list[float]] = {recorded: [], needed: []}
    try:
        for number in range(1 + rounds):
            for executable in (recorded, needed) if number % 2 else (needed, recorded):
                _put_back(views, copies)
                us = platform.device.graph_time(executable, stream)
                if number:
                    found[executable].append(us)
    finally:
        _put_back(views, copies)
        platform.device.stream_synchronize(stream)
    return OrderTimes(tuple(found[recorded]), tuple(found[needed]), platform.simulated)


def _put_back(views: Sequence[object], copies: Sequence[object]) -> None:
    for view, copy in zip(views, copies):
        view[...] = copy  # type: ignore[index]
