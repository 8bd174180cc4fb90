"""How the stand-in for CuPy reaches its device: one verb is asked at a time, and a refusal becomes CuPy's error."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Any

from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus
from capturekit.simulated.device.constants import CONSTANTS, ERRORS
from capturekit.simulated.device.graph_nodes import Given
from capturekit.simulated.device.machine import SimulatedDevice

_NOT_READY = 600
_NOT_PERMITTED = 800

_bound: SimulatedDevice | None = None
#: The modules that programs see, by name: what CuPy looks up at each call is looked up there, since it can be replaced.
public: dict[str, Any] = {}


class _Cupy:
    """The module ``cupy``, by what it holds at each call."""

    def __getattr__(self, name: str) -> Any:
        return getattr(public['cupy'], name)


cupy: Any = _Cupy()


class CUDARuntimeError(RuntimeError):
    """An error code of the CUDA runtime, in ``status``."""

    def __init__(self, status: int) -> None:
        self.status = status
        name, text = ERRORS.get(status, ('cudaErrorUnknown', 'unknown error'))
        super().__init__(f'{name}: {text}')

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.status,))


def bind(to: SimulatedDevice) -> None:
    """Set the device that every call goes to."""
    global _bound
    _bound = to


def device() -> SimulatedDevice:
    """The device that every call goes to."""
    if _bound is None:
        raise RuntimeError('this stand-in for CuPy has no device: use capturekit.simulated.cupy.assembly.build(device)')
    return _bound


def is_bound() -> bool:
    """False while the stand-in is still being imported."""
    return _bound is not None


class _Calling(threading.local):
    """Whether this thread is in a function that CUDA calls."""

    of_cuda = False


_CALLING = _Calling()


def of_cuda(call: Callable[[], None]) -> None:
    """Make a call as CUDA calls a host function: it must not call CUDA, and what it raises is only printed.

    No garbage is collected meanwhile: finalizers of others' streams and events would call CUDA.
    """
    before, _CALLING.of_cuda = _CALLING.of_cuda, True
    collects = gc.isenabled()
    gc.disable()
    try:
        _UNHEARD(call)()
    finally:
        _CALLING.of_cuda = before
        if collects:
            gc.enable()


#: CuPy calls host functions from C, where an exception has nobody to go to; so does ctypes.
_UNHEARD = ctypes.CFUNCTYPE(None)


def ask(verb: Callable[..., Any], *args: Any) -> Any:
    """Call a verb of the device; raise CUDARuntimeError where it refuses."""
    if _CALLING.of_cuda:
        raise CUDARuntimeError(_NOT_PERMITTED)
    try:
        return verb(*args)
    except CudaCallError as e:
        raise CUDARuntimeError(int(e.code)) from e


def status_of(verb: Callable[..., bool], *args: Any) -> int:
    """The status that a question to the device is answered with: success, not ready, or an error code."""
    try:
        return 0 if verb(*args) else _NOT_READY
    except CudaCallError as e:
        return int(e.code)


def submit(stream: int, work: Callable[[], None], name: str, kind: str = 'kernel', given: Given | None = None) -> bool:
    """Launch ``work`` on a stream; return True if it was recorded instead of run."""
    recorded: bool = ask(device().submit, stream, work, name, kind, given)
    return recorded


def is_late() -> bool:
    """Whether work waits until the host has to know."""
    return _bound is not None and _bound.queue is not None


def is_captured(stream: int) -> bool:
    """Whether a capture holds the stream, be it a good one or a lost one."""
    return stream not in (0, CONSTANTS['streamLegacy']) and ask(device().stream_status, stream) is not (
        CaptureStatus.NONE
    )


def after_all(call: Callable[[], None]) -> None:
    """Make a call that waits for all devices first."""
    queue = device().queue
    if queue is None:
        call()
    else:
        queue.after_all(call)


def meet(streams: list[int]) -> None:
    """What the streams do next comes after what each of them was given."""
    ask(device().meet, streams)
