"""A bench for the contract of devices: a device, simulated or CUDA, and the few things that have no verb."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus, Code, Mode
from capturekit.simulated.device.graph_nodes import Given
from capturekit.simulated.device.machine import SimulatedDevice

NONE, ACTIVE, LOST = CaptureStatus.NONE, CaptureStatus.ACTIVE, CaptureStatus.INVALIDATED


class Bench:
    """A device; its streams are freed of their captures at the end, and its executable graphs are destroyed."""

    device: Any
    work: Callable[[int], None]
    timing_event: Callable[[], int]
    #: The address of 64 bytes of device memory, which are 0 at first; and the first byte there.
    cell: Callable[[int], int]
    read: Callable[[int], int]
    #: The address of 64 bytes of the host's.
    pinned: Callable[[], int]
    #: Every byte of a cell becomes a value: a memset. A copy of 64 bytes between addresses.
    fill: Callable[[int, int, int], None]
    copy: Callable[[int, int, int], None]
    #: The first byte of a cell becomes a value: a kernel, of (address, int).
    put: Callable[[int, int, int], None]
    #: The host calls a function.
    call: Callable[[int, Callable[[], None]], None]

    def __init__(self) -> None:
        self.streams: list[int] = []
        self.executables: list[int] = []

    def stream(self, blocking: bool = False, priority: int = 0) -> int:
        self.streams.append(self.device.stream_create(not blocking, priority))
        return self.streams[-1]

    def order(self, first: int, then: int) -> int:
        """Let a stream wait for what another one has; return the event."""
        e = self.device.event_create()
        self.device.event_record(e, first)
        self.device.stream_wait_event(then, e)
        return int(e)

    def executable(self, g: int, by_node_priority: bool = False) -> int:
        self.executables.append(self.device.graph_instantiate(g, by_node_priority))
        return self.executables[-1]

    def recorded(self, work: Callable[[int], Any]) -> int:
        """A graph of what a function does on a stream."""
        s = self.stream()
        self.device.begin_capture(s)
        work(s)
        return int(self.device.end_capture(s))

    def events(self) -> list[int]:
        """One event of each kind: with timing and without."""
        return [self.timing_event(), self.device.event_create()]

    def graph(self, pieces: int = 1) -> int:
        """A graph of pieces of work, one after the other."""
        return self.recorded(lambda s: [self.work(s) for _ in range(pieces)])

    def elsewhere(self, call: Callable[[], Any]) -> Any:
        """Call in another thread."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(call).result()

    def close(self) -> None:
        self.device.exchange_thread_mode(Mode.RELAXED)
        for s in self.streams:
            if self.device.stream_status(s) is not NONE:
                with contextlib.suppress(CudaCallError):
                    self.device.graph_destroy(self.device.end_capture(s))
        self.device.exchange_thread_mode(Mode.GLOBAL)
        assert [s for s in self.streams if self.device.stream_status(s) is not NONE] == []
        for x in self.executables:
            self.device.graph_exec_destroy(x)
        for s in self.streams:
            self.device.stream_destroy(s)


class SimulatedBench(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.device = SimulatedDevice()
        self.done = 0
        self.cells: dict[int, int] = {}

    def work(self, s: int) -> None:
        self.device.submit(s, self._count, 'work')

    def _count(self) -> None:
        self.done += 1

    #: Cells lie from here on, what the host has below.
    BASE = 1 << 20

    def cell(self, number: int) -> int:
        return self.BASE + 64 * number

    def read(self, number: int) -> int:
        return self.cells.get(self.cell(number), 0)

    def pinned(self) -> int:
        return 4096

    def _submit(self, s: int, kind: str, work: Callable[..., None], **values: Any) -> None:
        def of_host(values: Any) -> list[bool]:
            return [values[end] < self.BASE for end in ('dst', 'src') if end in values]

        given = Given(values, lambda **now: lambda: work(now), lambda old, new: of_host(old) == of_host(new))
        self.device.submit(s, given.work(), kind, kind, given)

    def fill(self, s: int, number: int, value: int) -> None:
        fill = lambda now: self.cells.update({now['dst']: now['value']})  # noqa: E731
        self._submit(s, 'memset', fill, dst=self.cell(number), value=value, bytes=64)

    def copy(self, s: int, to: int, of: int) -> None:
        copy = lambda now: self.cells.update({now['dst']: self.cells.get(now['src'], 0)})  # noqa: E731
        self._submit(s, 'memcpy', copy, dst=to, src=of, bytes=64)

    def put(self, s: int, number: int, value: int) -> None:
        def put(now: Any) -> None:
            address, new = (int(one) for one in now['args'])
            self.cells[address] = new

        args = (np.uint64(self.cell(number)), np.int32(value))
        self._submit(s, 'kernel', put, args=args, grid=(1, 1, 1), block=(1, 1, 1), shared=0)

    def call(self, s: int, fn: Callable[[], None]) -> None:
        self.device.launch_host_func(s, fn)

    def timing_event(self) -> int:
        return self.device.event_create()


class BareHandle:
    """A stream's handle in the form of the stream protocol."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


class CudaBench(Bench):
    memory: int | None = None

    def __init__(self) -> None:
        super().__init__()
        from cuda.bindings import runtime

        from capturekit.driver.cuda import current

        self.device = current().device
        self.rt = runtime
        self.functions: list[Any] = []
        if CudaBench.memory is None:
            code, CudaBench.memory = runtime.cudaMalloc(4096)
            assert int(code) == 0, code
        assert int(runtime.cudaMemset(CudaBench.memory, 0, 4096)[0]) == 0
        assert int(runtime.cudaDeviceSynchronize()[0]) == 0  # the streams made here don't wait for the legacy one

    def work(self, s: int) -> None:
        code = int(self.rt.cudaMemsetAsync(self.memory, 0, 64, s)[0])
        if code:
            self.rt.cudaGetLastError()
            raise CudaCallError(Code(code), 'memsetAsync')

    host: int | None = None
    kernel: Any = None

    def cell(self, number: int) -> int:
        assert self.memory is not None
        return self.memory + 64 * number

    def read(self, number: int) -> int:
        import cupy

        self.device.device_synchronize()
        memory = cupy.cuda.UnownedMemory(self.cell(number), 64, None)
        return int(cupy.ndarray((64,), 'u1', cupy.cuda.MemoryPointer(memory, 0))[0])

    def pinned(self) -> int:
        if CudaBench.host is None:
            code, CudaBench.host = self.rt.cudaMallocHost(64)
            assert int(code) == 0, code
        return int(CudaBench.host)

    def fill(self, s: int, number: int, value: int) -> None:
        assert int(self.rt.cudaMemsetAsync(self.cell(number), value, 64, s)[0]) == 0

    def copy(self, s: int, to: int, of: int) -> None:
        default = self.rt.cudaMemcpyKind.cudaMemcpyDefault
        assert int(self.rt.cudaMemcpyAsync(to, of, 64, default, s)[0]) == 0

    def put(self, s: int, number: int, value: int) -> None:
        import cupy

        if CudaBench.kernel is None:
            code = 'extern "C" __global__ void put(unsigned char* p, int value) { *p = value; }'
            CudaBench.kernel = cupy.RawKernel(code, 'put')
            CudaBench.kernel.compile()
        with cupy.cuda.Stream.from_external(BareHandle(s)):
            CudaBench.kernel((1,), (1,), (np.uint64(self.cell(number)), np.int32(value)))

    def call(self, s: int, fn: Callable[[], None]) -> None:
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _user: fn())
        self.functions.append(function)
        launch = self.device.reader.library.cuLaunchHostFunc
        assert launch(ctypes.c_void_p(s), function, ctypes.c_void_p()) == 0

    def timing_event(self) -> int:
        code, event = self.rt.cudaEventCreate()
        assert int(code) == 0, code
        return int(event)


def refused(code: Code, call: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(CudaCallError) as info:
        call(*args)
    assert info.value.code is code


def forked(b: Bench, mode: Mode = Mode.RELAXED) -> tuple[int, int, int]:
    """A capture with work on its origin, and a lane that was forked behind it: origin, lane, the forking event."""
    d = b.device
    origin, lane = b.stream(), b.stream()
    d.begin_capture(origin, mode)
    b.work(origin)
    return origin, lane, b.order(origin, lane)


def end_somehow(b: Bench, s: int) -> None:
    try:
        b.device.graph_destroy(b.device.end_capture(s))
    except CudaCallError:
        assert b.device.stream_status(s) is NONE
