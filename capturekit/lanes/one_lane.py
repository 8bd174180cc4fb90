"""Why one lane is best for a graph whose data would let nodes run at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capturekit.analysis.node_view import Node
from capturekit.driver.node_accesses import Touched
from capturekit.model.dag import Order

#: From this share of the time on, something is the reason.
_SHARE = 0.5
#: A node that moves this part of what the device could move in its time is held up by memory.
_BUSY = 0.5
#: The longest path that takes this part of the recorded order's leaves nothing to gain.
_PATH = 0.9


@dataclass(frozen=True)
class Capacity:
    """What a device can do at once: threads, and bytes that its memory moves in a microsecond. 0 if not known."""

    threads: int = 0
    bytes_per_us: float = 0.0

    @classmethod
    def of(cls, device: Any) -> Capacity:
        """That of a device of CuPy's."""
        told = device.attributes
        threads = told.get('MultiProcessorCount', 0) * told.get('MaxThreadsPerMultiProcessor', 0)
        # kilohertz and bits; data goes at both edges of the clock
        return cls(threads, told.get('MemoryClockRate', 0) * told.get('GlobalMemoryBusWidth', 0) / 4 / 1000)


def why_one_lane(
    nodes: Sequence[Node],
    touched: Sequence[Touched],
    took: Sequence[float],
    orders: tuple[Order, Order],
    capacity: Capacity,
) -> str:
    """The reason in words, as the times of the nodes show it (``took``, in microseconds).

    ``orders``: the recorded one, and the one that the data needs.
    """
    total = sum(took) or 1.0
    was, path = (max(order.longest(took)[0], default=0.0) for order in orders)
    if path >= _PATH * was:
        return f'one chain of nodes takes {100 * path / (was or 1.0):.0f} % of the time'
    moving = sum(us for us, one in zip(took, touched) if _moves(one, us, capacity))
    if moving >= _SHARE * total:
        return f"nodes that are held up by the device's memory take {100 * moving / total:.0f} % of the time"
    filling = sum(us for us, node in zip(took, nodes) if fills(node, capacity))
    if filling >= _SHARE * total:
        return f'kernels that fill the device take {100 * filling / total:.0f} % of the time'
    return 'forks and joins cost as much as they bring'


def _moves(touched: Touched, us: float, capacity: Capacity) -> bool:
    if not capacity.bytes_per_us or us <= 0:
        return False
    moved = 0
    for access in touched.accesses:
        elements = access.itemsize
        for length, stride in zip(access.shape, access.strides):
            elements *= length if stride else 1
        moved += elements
    return moved >= _BUSY * us * capacity.bytes_per_us


def fills(node: Node, capacity: Capacity) -> bool:
    """Whether a kernel has as many threads as the device holds."""
    grid, block = node.detail.get('grid'), node.detail.get('block')
    if not grid or not block or not capacity.threads:
        return False
    threads = 1
    for number in (*grid, *block):
        threads *= int(number)
    return threads >= capacity.threads
