"""Parts of a function that run while it is recorded: if it can't be recorded, what they wrote is put back.

They run where the host makes a call between two parts, which needs their results. The eager run that follows begins
from what was there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capturekit.driver.cuda import Platform
from capturekit.guard import GUARD, OpenCapture
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.outside_memory import OutsideMemory
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
