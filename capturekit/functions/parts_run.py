"""What a function writes while it is recorded, or in a launch that a check stops, and has to be put back.

Parts of a recording run where the host makes a call between two of them, which needs their results. If the function
can not be recorded, the eager run that follows begins from what was there before.

A function reaches more arrays than it uses: other items of a list, say. Its caller may be working on these meanwhile,
on other streams and devices, and what is written there must stay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.guard import GUARD, OpenCapture
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.outside_memory import OutsideMemory
from capturekit.launch.plan import Backup
from capturekit.model.host_reads import Rehearsal


def wait_for_others(platform: Platform, rehearsal: Rehearsal) -> None:
    """Wait for the device if parts of the call run while it is recorded, so that they come after earlier work.

    Wait also if CuPy has copied from the host: before the next such copy CuPy asks the events of earlier ones, which a
    capture forbids. So all of them must have happened before.
    """
    cuda = platform.cupy.cuda
    if rehearsal.seams or rehearsal.records_events:
        GUARD.waits.for_devices(platform, [int(cuda.runtime.getDevice())])
    if rehearsal.records_events:
        cuda.alloc_pinned_memory(1)  # which drops the events that have happened


def keep_what_they_write(live: OpenCapture, seams: Sequence[str], known: Sequence[Any]) -> None:
    """Before such a part runs, copy the memory outside of the graph that it may write. ``known``: arrays with a backup
    that each launch makes."""
    if seams:
        live.host_calls.outside = OutsideMemory(live.platform, live.graph_memory, known)


def take_back(live: OpenCapture, stream: Any) -> None:
    """Put back what parts of a failed recording wrote outside of the graph's memory while it was made."""
    cuda = live.platform.cupy.cuda
    assert live.parts.plan is not None
    with current_for_now(cuda, stream):
        live.parts.plan.put_back(live.host_calls.backups, None)
        if live.host_calls.outside is not None:
            live.host_calls.outside.put_back()
    here = int(cuda.runtime.getDevice())
    GUARD.waits.for_devices(live.platform, [here])  # other streams of the caller may read this next


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
