"""What no order of a graph's nodes can fall below: its longest path, and what only one node at a time can have.

Kernels of more threads than the device holds follow each other, whatever the lanes, and so do copies of one direction
between the host and the device, for which there is one engine each. The times of the nodes are those of a launch on one
lane, so that the answer is an estimate: the device may begin a kernel while the last threads of another one end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from capturekit.analysis.concurrency import Capacity, threads_of
from capturekit.analysis.node_view import Node
from capturekit.driver.node_accesses import Touched
from capturekit.model.dag import Order

# -- why one lane is best for a graph whose data would let nodes run at once ------------------------------------------


#: From this share of the time on, something is the reason.
_SHARE = 0.5
#: A node that moves this part of what the device could move in its time is held up by memory.
_BUSY = 0.5
#: The longest path that takes this part of the recorded order's leaves nothing to gain.
_PATH = 0.9


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
    moved = sum(
        one.itemsize * prod(length for length, stride in zip(one.shape, one.strides) if stride)
        for one in touched.accesses
    )
    return moved >= _BUSY * us * capacity.bytes_per_us


def fills(node: Node, capacity: Capacity) -> bool:
    """Whether a kernel has as many threads as the device holds."""
    return 0 < capacity.threads <= threads_of(node)


@dataclass(frozen=True)
class Bound:
    """``us``: the least time of a launch, in microseconds. ``why``: what takes it, in words."""

    us: float
    why: str

    def __str__(self) -> str:
        return f'about {self.us:,.1f} us ({self.why})'


def lower_bound(
    nodes: Sequence[Node], took: Sequence[float], needed: Order, capacity: Capacity, on_device: Callable[[int], bool]
) -> Bound:
    """The largest of what bounds an order from below.

    ``took``: the times of the nodes in a launch, in microseconds. ``needed``: the order that the data needs.
    ``on_device``: whether an address is one of the device's memory.
    """
    rows = {'the longest path': max(needed.longest(took)[0], default=0.0)}
    for node, us in zip(nodes, took):
        why = 'kernels that fill the device' if fills(node, capacity) else _direction(node, on_device)
        if why:
            rows[why] = rows.get(why, 0.0) + us
    why = max(rows, key=rows.__getitem__)
    return Bound(rows[why], why)


def _direction(node: Node, on_device: Callable[[int], bool]) -> str:
    if node.kind != 'memcpy' or not {'dst', 'src'} <= node.detail.keys():
        return ''
    to, of = on_device(node.detail['dst']), on_device(node.detail['src'])
    return '' if to == of else f'copies {"to the device" if to else "to the host"}'
