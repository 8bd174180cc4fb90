"""What the host does at each launch beside launching graphs, on the device where it was recorded.

A launch belongs to one device, whose stream it is given. A draw of random numbers or a call of a library between two
parts may have been made with another device current. There the library has its state, and the call its arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from capturekit.guard.state import State

T = TypeVar('T')


def on_device(state: State, device: int, go: Callable[[], T]) -> T:
    """Call ``go`` with a device current, as part of a launch that another device may be making.

    There it works on CuPy's current stream of that device, as the call did in eager code: after what the launching
    stream was given before, and before what it is given next.
    """
    if state.current_device() == device:
        return go()
    cuda = state.platform.cupy.cuda
    launching = cuda.get_current_stream()
    with state.inside:
        before = launching.record()
        with state.on(device):
            stream = cuda.get_current_stream()
            stream.wait_event(before)
            result = go()
            after = stream.record()
        launching.wait_event(after)
    return result


def on_its_device(state: State, go: Callable[[], T]) -> Callable[[], T]:
    """``go``, to be called on the device that is current now, whichever one launches."""
    return partial(on_device, state, state.current_device(), go)
