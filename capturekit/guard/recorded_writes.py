"""Whether work that is only being recorded writes an array: until a launch, the host would read what was there."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from capturekit.driver.node_accesses import Access, linear, overlap
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus


def awaits(state: State, live: OpenCapture, array: Any) -> bool | None:
    """Return True if an array's values are computed by work that a capture has recorded, None if they may be.

    Memory that was allocated for recorded work has no values yet, whichever kernel will write them. In a capture that
    somebody began by hand, other memory is looked for among the arguments of the nodes: a library's kernel does not
    tell which of its arguments it writes.
    """
    if live.memory is not None:
        return live.memory.owns(array.data.mem)
    if live.records(array.data.mem):
        return True
    found: bool | None = False
    mine = Access(int(array.data.ptr), array.shape, array.strides, int(array.itemsize), False)
    block = linear(int(array.data.mem.ptr), int(array.data.mem.size), False)
    for access in _accesses(state, live):
        if access.writes is False or not overlap(access, mine if access.itemsize else block):
            continue
        if access.writes and access.itemsize:
            return True
        found = None
    return found


def _accesses(state: State, live: OpenCapture) -> list[Access]:
    """Return the accesses of the nodes that a capture has so far, as far as they can be read."""
    device = state.platform.device
    with state.inside, suppress(CudaCallError):  # a driver whose nodes can't be read leaves the memory's owner only
        info = device.capture_info(live.origin.ptr)
        if info.status is CaptureStatus.ACTIVE:
            return [one for touched in device.graph_accesses(info.graph).values() for one in touched.accesses]
    return []
