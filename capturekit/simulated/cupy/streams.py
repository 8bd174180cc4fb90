"""``cupy.cuda.stream`` and ``cupy.cuda.graph``: streams, events, the thread's current stream, graphs.

Follows CuPy 14's ``stream.pyx`` line by line where behaviour can be seen: the two books that make ``with`` and
``use()`` rewind as they do, ``done`` that turns every error into False, the refusal to capture the default stream.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from . import runtime, runtime_calls
from .runtime_calls import STREAM_LEGACY, STREAM_PER_THREAD, Owned, get_current_stream_ptr

_BLOCKING_SYNC, _DISABLE_TIMING, _INTERPROCESS = 1, 2, 4


class _ThreadLocal:
    # The stack alone would not do: use() changes the current stream without pushing, and leaving a with block goes
    # back to what the stack says.
    def __init__(self) -> None:
        devices = range(runtime.getDeviceCount())
        self.current_stream: list[_BaseStream] = [get_default_stream() for _ in devices]
        self.current_stream_stack: list[list[_BaseStream]] = [[get_default_stream()] for _ in devices]
        # Leaving a stream brings back what was current on the device that it was entered on.
        self.current_device_id_stack: list[int] = []

    @staticmethod
    def get() -> Any:
        return runtime_calls.of_thread('tls', _ThreadLocal)

    def set_current_stream(self, stream: _BaseStream) -> None:
        device_id = runtime.getDevice() if stream.device_id == -1 else stream.device_id
        runtime_calls.set_current_stream_ptr(stream.ptr, device_id)
        self.current_stream[device_id] = stream


def get_default_stream() -> Any:
    return Stream.ptds if runtime_calls.is_ptds_enabled() else Stream.null


def get_current_stream(device_id: int = -1) -> Any:
    return _ThreadLocal.get().current_stream[runtime.getDevice() if device_id == -1 else device_id]


class Event(Owned):
    """A CUDA event."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        if interprocess and not disable_timing:
            raise ValueError('Timing must be disabled for interprocess events')
        flag = (block and _BLOCKING_SYNC) | (disable_timing and _DISABLE_TIMING) | (interprocess and _INTERPROCESS)
        self._own(runtime.eventCreateWithFlags, flag)

    def _give_back(self) -> None:
        runtime.eventDestroy(self.ptr)

    @property
    def done(self) -> bool:
        return runtime.eventQuery(self.ptr) == 0

    def record(self, stream: Any = None) -> None:
        runtime.eventRecord(self.ptr, get_current_stream_ptr() if stream is None else stream.ptr)

    def synchronize(self) -> None:
        runtime.eventSynchronize(self.ptr)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)


class Graph(Owned):
    """A CUDA graph and its executable form; made by ``Stream.end_capture()``."""

    graph: int
    graphExec: int
    host_funcargs: list[Any] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            'currently this class cannot be initiated by the user and must be created via stream capture'
        )

    def _give_back(self) -> None:
        runtime.graphDestroy(self.graph)
        runtime.graphExecDestroy(self.graphExec)

    def launch(self, stream: Any = None) -> None:
        runtime.graphLaunch(self.graphExec, get_current_stream_ptr() if stream is None else stream.ptr)

    def upload(self, stream: Any = None) -> None:
        runtime.graphUpload(self.graphExec, get_current_stream_ptr() if stream is None else stream.ptr)

    def debug_dot_str(self, flags: int = 0) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'graph.dot')
            runtime.graphDebugDotPrint(self.graph, path, flags)
            with open(path) as text:
                return text.read()


def from_stream(g: int, host_funcargs: list[Any] | None) -> Graph:
    graph = Graph.__new__(Graph)
    graph._own(runtime.graphInstantiate, g)
    graph.graph, graph.graphExec, graph.host_funcargs = g, graph.ptr, host_funcargs
    return graph


def _check_device(device_id: int) -> int:
    now = runtime.getDevice()
    if device_id not in (-1, now):
        raise RuntimeError(
            f'The device that the stream is created on ({device_id}) does not match with the current device ({now})'
        )
    return now


class _BaseStream(Owned):
    """What every stream object can do; ``ptr`` is the handle."""

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id
        self._graph_host_funcargs: list[tuple[Any, Any]] | None = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _BaseStream):
            return self.ptr == other.ptr
        return False

    def __enter__(self) -> Any:
        tls, device_id = _ThreadLocal.get(), _check_device(self.device_id)
        tls.current_stream_stack[device_id].append(self)
        tls.current_device_id_stack.append(device_id)
        tls.set_current_stream(self)
        return self

    def __exit__(self, *args: object) -> None:
        tls = _ThreadLocal.get()
        entered = tls.current_stream_stack[tls.current_device_id_stack.pop()]
        entered.pop()
        tls.set_current_stream(entered[-1])

    def __repr__(self) -> str:
        return f'<{type(self).__name__} {self.ptr} (device {self.device_id})>'

    def __hash__(self) -> int:
        return self.ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)

    def use(self) -> Any:
        tls = _ThreadLocal.get()
        _check_device(self.device_id)
        tls.set_current_stream(self)
        return self

    @property
    def done(self) -> bool:
        return runtime.streamQuery(self.ptr) == 0

    def synchronize(self) -> None:
        runtime.streamSynchronize(self.ptr)

    def add_callback(self, callback: Callable[[Any, int, Any], Any], arg: Any) -> None:
        def f(stream: int, status: int, dummy: int) -> None:
            callback(self, status, arg)

        runtime.streamAddCallback(self.ptr, f, 0)

    def launch_host_func(self, callback: Callable[[Any], Any], arg: Any) -> None:
        if self.is_capturing():
            func_arg = (callback, arg)
            runtime._launchHostFuncUnmanaged(self.ptr, func_arg)
            # As in CuPy: fails on a stream that was forked into the capture, which has no list.
            self._graph_host_funcargs.append(func_arg)  # type: ignore[union-attr]
        else:
            runtime.launchHostFunc(self.ptr, lambda dummy: callback(arg), 0)

    def record(self, event: Event | None = None) -> Event:
        if event is None:
            event = Event()
        runtime.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event: Event) -> None:
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr in (0, STREAM_LEGACY):
            raise RuntimeError('cannot capture on the default (legacy) stream')
        if mode is None:
            runtime.streamBeginCapture(self.ptr)
        else:
            runtime.streamBeginCapture(self.ptr, mode)
        self._graph_host_funcargs = []

    def end_capture(self) -> Graph:
        host_funcargs = self._graph_host_funcargs
        self._graph_host_funcargs = None
        return from_stream(runtime.streamEndCapture(self.ptr), host_funcargs)

    def is_capturing(self) -> bool:
        return runtime.streamIsCapturing(self.ptr)

    @property
    def is_non_blocking(self) -> bool:
        return bool(runtime.streamGetFlags(self.ptr) & 1)

    @property
    def priority(self) -> int:
        return int(runtime.streamGetPriority(self.ptr))


class Stream(_BaseStream):
    """A CUDA stream."""

    null: ClassVar[Any] = None
    ptds: ClassVar[Any] = None
    _foreign_stream_ref: Any = None

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        if null or ptds:
            super().__init__(0 if null else STREAM_PER_THREAD, -1)
            return
        self._own(runtime.streamCreateWithPriority, int(non_blocking), 0 if priority is None else priority)
        super().__init__(self.ptr, runtime.getDevice())

    __del__ = Owned.__del__  # its own, as in CuPy: it can be replaced

    def _give_back(self) -> None:
        runtime.streamDestroy(self.ptr)

    @classmethod
    def from_external(cls, obj: Any) -> Stream:
        if not hasattr(obj, '__cuda_stream__'):
            raise TypeError(
                f'Object of type {type(obj).__name__} does not implement '
                'the CUDA stream protocol (__cuda_stream__ method)'
            )
        version, stream_ptr = obj.__cuda_stream__()
        if version != 0 or not isinstance(stream_ptr, int):
            raise TypeError(f'__cuda_stream__() must return (0, int), got ({version!r}, {stream_ptr!r})')
        stream = cls.__new__(cls)
        _BaseStream.__init__(stream, stream_ptr, -1)
        stream._foreign_stream_ref = obj
        return stream


class ExternalStream(_BaseStream):
    """A stream that CuPy does not own, given by its handle."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        warnings.warn(
            'ExternalStream is deprecated. Use Stream.from_external() instead '
            'to interoperate with external streams that implement the CUDA '
            'stream protocol.',
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(ptr, device_id)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)
