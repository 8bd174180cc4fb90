"""Arrays that users give to a graph."""

from __future__ import annotations

from typing import Any

from capturekit.driver.cuda import current
from capturekit.graph.state import GraphState


def is_array(value: Any) -> bool:
    """Whether it is an array of CuPy's."""
    return isinstance(value, current().cupy.ndarray)


def fits_device(state: GraphState, value: Any) -> None:
    """Refuse an array that lies on a device that the graph does not work on."""
    if is_array(value) and value.device.id not in (state.device_id, *state.recording.devices):
        raise ValueError(f'the graph lives on device {state.device_id}, the array on device {value.device.id}')
