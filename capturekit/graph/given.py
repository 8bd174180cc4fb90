"""What users give to a graph, checked: arrays and numbers."""

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


def positive(name: str, value: Any, least: int) -> int:
    """A whole number that is not less than ``least``. Raises TypeError and ValueError."""
    if isinstance(value, bool) or not hasattr(value, '__index__'):
        raise TypeError(f'{name} must be a whole number, got {type(value).__name__}')
    if value < least:
        raise ValueError(f'{name} must be at least {least}, got {value}')
    return int(value)


def three(name: str, value: Any) -> tuple[int, ...]:
    """One to three positive numbers as three. Raises TypeError and ValueError."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f'{name} must be one to three numbers, got {value!r}')
    numbers = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(numbers) <= 3:
        raise ValueError(f'{name} must be one to three numbers, got {value!r}')
    return tuple(positive(name, one, 1) for one in (*numbers, 1, 1)[:3])
