"""What the host does at each launch beside launching graphs, on the device where it was recorded.

A launch belongs to one device, whose stream it is given. A draw of random numbers or a call of a library between two
parts may have been made with another device current. There the library has its state, and the call its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from capturekit.guard.state import State
from capturekit.model.skipped_exits import contextmanager

T = TypeVar('T')


def on_device(state: State, device: int, go: Callable[[], T]) -> T:
    """Call ``go`` with a device current, as part of a launch that another device may be making.

    There it works on CuPy's current stream of that device, as the call did in eager code: after what the launching
    stream was given before, and before what it is given next.
    """
    if state.current_device() == device:
        return go()
    with _over_there(state, device):
        return go()


@contextmanager
def _over_there(state: State, device: int) -> Iterator[None]:
    """A block on another device, between what the launching stream was given before and what it is given next.

    That holds also for what a block has begun that raises: the arrays which it was changing may be put back next.
    """
    cuda, here = state.platform.cupy.cuda, state.current_device()
    launching = cuda.get_current_stream()
    with state.inside:
        before = launching.record()
        with state.on(device):
            stream = cuda.get_current_stream()
            stream.wait_event(before)
            try:
                yield
            finally:
                after = stream.record()
                with state.on(here):
                    launching.wait_event(after)


def on_its_device(state: State, go: Callable[[], T]) -> Callable[[], T]:
    """``go``, to be called on the device that is current now, whichever one launches."""
    return partial(on_device, state, state.current_device(), go)
