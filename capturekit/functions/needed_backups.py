"""Which arrays a launch has to put back if a check stops it: those that the graph, or a call of the host, may write.

A function reaches more arrays than it uses: other items of a list, say. Its caller may be working on these meanwhile,
on other streams and devices, and what is written there must stay.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from capturekit.guard import GUARD, OpenCapture
from capturekit.launch.plan import Backup


def needed_backups(live: OpenCapture) -> list[Backup]:
    """The backups of a recording whose arrays its launches may write; all of them, where that can't be told."""
    backups, plan = live.host_calls.backups, live.parts.plan
    if plan is None or not backups:
        return backups
    with GUARD.inside:
        words = _words(live.platform.device, [graph for part in plan.parts for graph in part.graphs if graph], backups)
    if words is None:
        return backups
    addresses = sorted(words | live.host_calls.given)
    return [one for one in backups if _is_touched(one.array.data.mem, addresses)]


def _words(device: Any, graphs: list[int], backups: list[Backup]) -> set[int] | None:
    """What may be an address among the arguments of all nodes but those that make backups; None: a node shows none."""
    copies = {one.node for one in backups}
    words: set[int] = set()
    while graphs:
        for info in device.node_infos(graphs.pop()):
            if info.handle in copies:
                continue
            if info.kind == 'kernel' and not info.words:
                return None
            words.update(info.words)
            graphs += [info.inner] if info.inner else []
    return words


def _is_touched(block: Any, addresses: list[int]) -> bool:
    """Whether one of these addresses lies in a block of memory, or at its end."""
    at = bisect_left(addresses, int(block.ptr))
    return at < len(addresses) and addresses[at] <= int(block.ptr) + int(block.size)
