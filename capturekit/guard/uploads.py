"""Values of the host are copied to the device at once, outside of the capture.

CuPy's compiled code uploads some of them (``x.repeat([1, 2])``, ``x.take(list)``) and makes no Python call that could
be wrapped. But it first makes a new array by its shape, with memory from the guard's allocator. That returns pointers
of a subclass with its own method for copies from the host, and Cython calls methods that a Python class overrides. All
other memory has CuPy's own pointers: CUB's reductions pass theirs to a kernel, and CuPy accepts only its own class
there.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from capturekit.guard.lanes import Lanes
from capturekit.guard.open_capture import OpenCapture
from capturekit.guard.state import State
from capturekit.launch.current_stream import current_for_now
from capturekit.model.counted import counted
from capturekit.model.rules import Mode
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import here, is_ours

_HOST_TO_DEVICE = 1


class Uploads:
    """Copies values of the host to the device at once, outside of the capture."""

    def __init__(self, state: State) -> None:
        self.state = state

    def upload(self, live: OpenCapture, values: Any) -> Any:
        """Copy a NumPy array to the device at once; the graph keeps the copy."""
        original = self.state.installation.originals['cupy._core.array']
        return self.upload_made_by(live, functools.partial(original, values))

    def upload_made_by(self, live: OpenCapture, make: Callable[[], Any]) -> Any:
        """Call a CuPy function that makes an array from values of the host, outside of the capture."""
        cupy = self.state.platform.cupy
        memory = live.graph_memory
        set_allocator = self.state.installation.originals['cupy.cuda.memory._set_thread_local_allocator']
        before = cupy.cuda.memory._get_thread_local_allocator()
        with self._beside(live) as upload:
            set_allocator(memory.grow)
            try:
                with current_for_now(cupy.cuda, upload):
                    array = make()
                upload.synchronize()
                cupy.cuda.alloc_pinned_memory(1)  # it drops the event after the copy, which CuPy would ask later
            finally:
                set_allocator(before)
        return array

    def bytes_from(self, live: OpenCapture, address: int, size: int) -> tuple[Any, Any]:
        """Copy bytes of the host into the graph's memory; return that, and an event that has happened after it."""
        cupy = self.state.platform.cupy
        with self._beside(live) as upload:
            buffer = live.graph_memory.grow(size)
            cupy.cuda.runtime.memcpyAsync(buffer.ptr, address, size, _HOST_TO_DEVICE, upload.ptr)
            done = cupy.cuda.Event(disable_timing=True)
            done.record(upload)
            done.synchronize()
        return buffer, done

    @contextmanager
    def _beside(self, live: OpenCapture) -> Iterator[Any]:
        """A stream of the current device outside of the capture, in a mode that allows what a capture forbids."""
        device = self.state.platform.device
        with self.state.inside:
            number = self.state.current_device()
            if number not in live.uploads:
                live.uploads[number] = self.state.platform.cupy.cuda.Stream(non_blocking=True)
            old = device.exchange_thread_mode(Mode.RELAXED)
            try:
                yield live.uploads[number]
            finally:
                device.exchange_thread_mode(old)


_DEVICE_TO_DEVICE = 3
#: ``cudaMemoryTypeDevice`` of ``cudaPointerAttributes``.
_ON_DEVICE = 2
#: Device memory has addresses in this range; a table of addresses begins with such values.
_ADDRESSES, _LOOKED_AT = (1 << 32, 1 << 48), 16


class _Thread(threading.local):
    """The last new array of a thread, and the event that compiled code records after a copy."""

    #: Whether an array is being made by its shape.
    making = False
    #: Its address, and the instruction of the user's code that was running.
    new: tuple[int, tuple[int, int]] | None = None
    #: The instruction whose copy has been made, the stream that it was meant for, and an event that has happened.
    copied: tuple[tuple[int, int], int, Any] | None = None
    #: That event, once compiled code has it.
    given: Any = None


class CompiledUploads:
    """Takes over uploads by compiled code: values go to the device at once, and every launch copies them from there."""

    def __init__(self, state: State, lanes: Lanes, uploads: Uploads) -> None:
        self.state = state
        self.lanes = lanes
        self.uploads = uploads
        self._thread = _Thread()
        self._pointers: tuple[Any, Any] = (None, None)

    def seen(self, allocator: Callable[[int], Any]) -> Callable[[int], Any]:
        """The same allocator; pointers of arrays made by their shape take copies from the host to :meth:`upload`."""
        base = self.state.platform.cupy.cuda.MemoryPointer
        if self._pointers[0] is not base:
            self._pointers = base, _pointers_of(base, self)
        pointer_class, thread = self._pointers[1], self._thread

        def malloc(size: int) -> Any:
            if not thread.making:
                return allocator(size)
            pointer = pointer_class(allocator(size).mem, 0)
            thread.new = int(pointer.ptr), _instruction()
            return pointer

        return malloc

    def array_new(self, original: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Make an array by its shape: the next thing that happens to it may be a copy from the host."""
        thread = self._thread
        thread.making = True
        try:
            return original(cls, *args, **kwargs)
        finally:
            thread.making = False

    def upload(self, pointer: Any, host: Any, size: int, stream: Any) -> bool:
        """Take over a copy that compiled code makes into a new array. False for any other copy."""
        new, live = self._thread.new, self.state.mine()
        self._thread.new = None
        if live is None or live.memory is None or self.state.inside.active() or stream is None or not size:
            return False
        lane = self.state.ledger.lane(stream.ptr)
        if new != (int(pointer.ptr), _instruction()) or lane is None or lane.capture is not live.capture:
            return False
        address = host if isinstance(host, int) else int(host.value)
        if self._holds_addresses(address, size):
            return False
        with self.state.lock:
            buffer, done = self.uploads.bytes_from(live, address, size)
            with self.state.inside:
                self.state.platform.cupy.cuda.runtime.memcpyAsync(
                    pointer.ptr, buffer.ptr, size, _DEVICE_TO_DEVICE, stream.ptr
                )
            text = f'{counted(size, "byte")} of the host uploaded while recording, the same at every launch'
            live.note('constant', self.lanes.current_lane(live), text, here(), nbytes=size)
        self._thread.copied = _instruction(), int(stream.ptr), done
        return True

    def event_of_copy(self, stream: int) -> Any:
        """An event that has happened, for the one that compiled code records after its copy to know when it is done."""
        copied, self._thread.copied = self._thread.copied, None
        if copied is not None and copied[:2] == (_instruction(), stream):
            self._thread.given = copied[2]
            return copied[2]
        rehearsal = self.state.rehearsals.get(threading.get_ident())
        if rehearsal is not None:
            rehearsal.records_events = True
        return None

    def has_happened(self, event: Any) -> bool:
        """Whether this is the event that compiled code got after its copy, so that the driver need not be asked."""
        if event is not self._thread.given or event is None:
            return False
        self._thread.given = None
        return True

    def _holds_addresses(self, address: int, size: int) -> bool:
        """Whether the values are addresses of device memory, which the graph would use without keeping it."""
        words = numpy.frombuffer(ctypes.string_at(address, size - size % 8), numpy.uint64)
        low, high = _ADDRESSES
        found = words[(words > low) & (words < high)][:_LOOKED_AT]
        attributes_of = self.state.platform.cupy.cuda.runtime.pointerGetAttributes
        with self.state.inside:
            return any(attributes_of(int(word)).type == _ON_DEVICE for word in found)


def _pointers_of(base: Any, uploads: CompiledUploads) -> Any:
    """The class of pointers whose copies from the host are noticed, also in compiled code."""

    class Pointer(base):  # type: ignore[misc]
        """A pointer to a graph's memory."""

        __slots__ = ()

        def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
            """Copy from the host. Values for a new array, from compiled code, become a constant of the graph."""
            if not uploads.upload(self, mem, size, stream):
                super().copy_from_host_async(mem, size, stream)

    Pointer.__name__ = Pointer.__qualname__ = 'MemoryPointer'
    return Pointer


def _instruction() -> tuple[int, int]:
    """The frame, and the instruction in it, that called compiled code."""
    frame: Any = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return (id(frame), frame.f_lasti) if frame is not None else (0, 0)
