"""Ending the driver's capture, and what CUDA destroys when that fails.

If a capture is lost, or has lanes that are not joined, ``cudaStreamEndCapture`` destroys the graph that was captured
into, also one that was there before, and also the body of a conditional node. The graph around such a node then ends
the process when it is destroyed or instantiated, and so does destroying the node (measured on driver 580.159.04). So
the recorded work is joined before a capture is thrown away, and a graph that has lost a body is never destroyed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from capturekit.guard.open_capture import OpenCapture
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus


def join_for_good(device: Any, origin: int, graph: int, count: int = 0) -> None:
    """Order the origin after all nodes but the first ``count``, before a failing capture into ``graph`` ends."""
    if device.stream_status(origin) is CaptureStatus.ACTIVE:
        device.set_dependencies(origin, device.graph_nodes(graph)[count:])


def end_driver_capture(live: OpenCapture) -> int:
    """End the driver's capture on the origin and return its graph; note what CUDA destroys if that fails."""
    try:
        return int(live.platform.device.end_capture(live.origin.ptr))
    except CudaCallError:
        _note_destroyed(live)
        raise


def emptied(device: Any, bodies: Iterable[int], decided: dict[int, list[int]]) -> None:
    """Destroy the nodes in bodies of conditional nodes.

    A conditional node has to stay, since a graph whose condition has lost its node can't be instantiated any more. It
    stays with empty bodies.
    """
    for body in bodies:
        for node in reversed(device.graph_nodes(body)):
            if node in decided:
                emptied(device, decided[node], decided)
            else:
                device.node_destroy(node)


def in_body(live: OpenCapture) -> bool:
    """Whether the driver captures into the body of a conditional node, which belongs to the graph around it."""
    return bool(live.parts.check_node or live.decisions.open)


def _note_destroyed(live: OpenCapture) -> None:
    if in_body(live):
        live.parts.spoilt = True
    elif live.parts.current is not None:
        live.parts.current.graph = 0
