"""Whether work that is only being recorded writes an array: until a launch, the host would read what was there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from capturekit.driver.node_accesses import Access, linear, overlap
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus, Rule


def rule_for_read(state: State, live: OpenCapture, array: Any) -> Rule | None:
    """Return the rule by which the host can not read an array during a capture, or None if it can.

    Memory that was allocated for recorded work has no values yet, whichever kernel will write them. Other memory is
    looked for among the arguments of the nodes: a library's kernel does not tell which of its arguments it writes.
    """
    mem = array.data.mem
    if live.memory.owns(mem) if live.memory is not None else live.records(mem):
        return RULES['host-read']
    mine = Access(int(array.data.ptr), array.shape, array.strides, int(array.itemsize), False)
    block = linear(int(mem.ptr), int(mem.size), False)
    found: Rule | None = None
    try:
        with state.inside:
            for access in _accesses(live, state.platform.device):
                shared = False if access.writes is False else overlap(access, mine if access.itemsize else block)
                if shared and access.writes:
                    return RULES['host-read']
                if shared is False:
                    continue
                found = VARIANTS['host-read-unknown']
    except CudaCallError:  # this driver, or an eager run, does not tell what recorded work is given
        return VARIANTS['host-read-unseen']
    return found


def _accesses(live: OpenCapture, device: Any) -> Iterator[Access]:
    """Yield the accesses of the nodes that a capture has so far, and of the bodies of decisions among them."""
    info = device.capture_info(live.origin.ptr)
    if info.status is not CaptureStatus.ACTIVE:
        return
    graphs = [info.graph, *(decision.graph for decision in live.decisions.open)]
    for graph in graphs:
        for node, touched in device.graph_accesses(graph).items():
            graphs += [body for body in live.decisions.bodies.get(node, ()) if body not in graphs]
            yield from touched.accesses
