"""How the stand-in for CuPy reaches its device: one verb is asked at a time, and a refusal becomes CuPy's error."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.model.cleanup import GARBAGE
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus
from capturekit.simulated.device.address_space import AddressSpace
from capturekit.simulated.device.constants import CONSTANTS, ERRORS
from capturekit.simulated.device.graph_nodes import Given
from capturekit.simulated.device.machine import SimulatedDevice

_NOT_READY = 600
_NOT_PERMITTED = 800


_numbers = itertools.count()


class Thread(threading.local):
    """What CuPy and NCCL keep for each thread; :func:`of_thread` adds to it."""

    allocator: Callable[[int], Any] | None = None
    #: Whether CuPy may wait for the device, and whether it reads if a factorization has failed.
    allowed = True
    linalg = 'ignore'
    #: What makes the product that cuBLAS is called for.
    product: Callable[[], Any] | None = None
    #: How many groups of collectives are open, and what was asked for in them.
    groups = 0
    calls: tuple[Any, ...] = ()

    def __init__(self) -> None:
        #: The current stream's handle, by device.
        self.pointers: dict[int, int] = {}


class State:
    """All that programs leave behind in the stand-in for CuPy. A device that is installed comes with a new one.

    What is freed later than that gives nothing back: each object that owns something of a device has its number.
    """

    def __init__(self, device: SimulatedDevice | None = None) -> None:
        self.device = device
        self.number = next(_numbers)
        self.thread = Thread()
        self.device_memory = AddressSpace()
        self.pinned_memory = AddressSpace()
        #: Memory that graphs allocate: only that can be freed in a capture.
        self.of_graphs: set[int] = set()
        #: Of each allocation, which parts recorded work was given for its arrays.
        self.recorded: dict[int, NDArray[np.bool_]] = {}
        #: Events without a time.
        self.untimed: set[int] = set()
        #: What programs have set; None: memory comes from no pool.
        self.allocator: Callable[[int], Any] | None = None
        self.pinned_allocator: Callable[[int], Any] | None = None
        #: The pools that memory and pinned memory come from at first.
        self.pools: tuple[Any, Any] = (None, None)
        #: Events and what is kept until they are done.
        self.transfers: list[tuple[Any, Any]] = []
        #: The generators of cuRAND by their handles, and the random states of devices.
        self.generators: dict[int, Any] = {}
        self.random_states: dict[int, Any] = {}
        #: What CuPy is told of libraries by the kind of kernel, and of products by the kind of numbers.
        self.accelerators: dict[str, list[int]] = {kind: [1] for kind in ('elementwise', 'reduction', 'routine')}
        self.compute_types = [1, 1, 1]


#: Of no device while the stand-in is put together.
state = State()
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


def begin(new: State) -> None:
    """Let every call find another state from now on."""
    global state
    state = new


class Owned:
    """Something of a device, by its handle, which goes back with the object unless another device is there by then."""

    ptr: int = 0
    _born = -1

    def _own(self, make: Callable[..., int], *args: Any) -> None:
        self._born = state.number
        self.ptr = make(*args)

    def __del__(self, is_shutting_down: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_shutting_down() and self.ptr and self._born == state.number:
            self._give_back()

    def _give_back(self) -> None:
        """Nothing, for what has an owner elsewhere."""


def of_thread(name: str, make: Callable[[], Any]) -> Any:
    """What CuPy keeps for this thread by a name; made when it is first asked for."""
    held = vars(state.thread)
    if name not in held:
        held[name] = make()
    return held[name]


def device() -> SimulatedDevice:
    if state.device is None:
        raise RuntimeError('this stand-in for CuPy has no device: use capturekit.simulated.install()')
    return state.device


class _Calling(threading.local):
    """Whether this thread is in a function that CUDA calls."""

    of_cuda = False


_CALLING = _Calling()


def of_cuda(call: Callable[[], None]) -> None:
    """Make a call as CUDA calls a host function: it must not call CUDA, and what it raises is only printed.

    No garbage is collected meanwhile: finalizers of others' streams and events would call CUDA.
    """
    before, _CALLING.of_cuda = _CALLING.of_cuda, True
    GARBAGE.hold()
    try:
        _UNHEARD(call)()
    finally:
        _CALLING.of_cuda = before
        GARBAGE.release()


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
    return bool(ask(device().submit, stream, work, name, kind, given))


def is_late() -> bool:
    """Whether work waits until the host has to know."""
    return state.device is not None and state.device.queue is not None


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


# -- the current stream's handle, per thread and device (``cupy_backends.cuda.stream``): no stream objects are needed --

STREAM_LEGACY = 1
STREAM_PER_THREAD = 2

_ptds = bool(int(os.environ.get('CUPY_CUDA_PER_THREAD_DEFAULT_STREAM', '0')))


def is_ptds_enabled() -> bool:
    return _ptds


def get_current_stream_ptr() -> int:
    ptr = state.thread.pointers.get(device().get_device(), 0)
    return STREAM_PER_THREAD if ptr == 0 and _ptds else ptr


def set_current_stream_ptr(ptr: int, device_id: int) -> None:
    state.thread.pointers[device_id] = int(ptr)


def get_default_stream_ptr() -> int:
    """Return the default stream's handle, never 0."""
    return STREAM_PER_THREAD if _ptds else STREAM_LEGACY
