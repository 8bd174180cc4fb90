"""What no order of a graph's nodes can fall below: its longest path, and what only one node at a time can have.

Kernels of more threads than the device holds follow each other, whatever the lanes, and so do copies of one direction
between the host and the device, for which there is one engine each. The times of the nodes are those of a launch on one
lane, so that the answer is an estimate: the device may begin a kernel while the last threads of another one end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from capturekit.analysis.node_view import Node
from capturekit.lanes.one_lane import Capacity, fills
from capturekit.model.dag import Order


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
