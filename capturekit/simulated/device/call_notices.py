"""Notices of the calls to the simulated device, as CUPTI gives them of the calls to a GPU's driver.

While a listener is there, each verb that matters to captures is wrapped, on the one device that is watched. The
stand-in for CuPy calls these verbs, and so does whoever plays a C library in a test.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from capturekit.driver.call_notices import Listener
from capturekit.model.cuda_functions import ApiCall, function
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus, Mode, Operation
from capturekit.model.source_line import is_ours

#: The functions of CUDA that the device's verbs stand for.
_VERBS = {
    **{name: 'cuda' + name.title().replace('_', '') for name in """
        device_synchronize event_destroy event_elapsed_time event_query event_record event_synchronize graph_launch
        graph_upload launch_host_func stream_query stream_synchronize stream_wait_event
    """.split()},
    'add_callback': 'cudaStreamAddCallback', 'begin_capture': 'cudaStreamBeginCapture',
    'begin_capture_to': 'cudaStreamBeginCaptureToGraph', 'end_capture': 'cudaStreamEndCapture',
    'exchange_thread_mode': 'cudaThreadExchangeStreamCaptureMode', 'stream_flags': 'cudaStreamGetFlags',
}  # fmt: skip
#: What ``submit`` stands for, by the kind of node.
_WORK = {
    'kernel': 'cuLaunchKernel',
    'memcpy': 'cudaMemcpyAsync',
    'memset': 'cudaMemsetAsync',
    'host': 'cudaLaunchHostFunc',
    'memAlloc': 'cudaMallocAsync',
    'memFree': 'cudaFreeAsync',
}
_SUBMIT = 'submit'
#: Verbs that are given the name of the runtime's function, and what that does where the table of rules has no name.
_NAMED = {'legacy_call': Operation.LEGACY_WORK, 'unsafe_call': Operation.UNSAFE}
#: How the modules of the stand-in for CuPy are called once they are installed.
_STAND_IN = '_capturekit_simulated_'


class _Thread(threading.local):
    """How deep a thread is in verbs that call verbs; ``caller`` of the outermost; ``deaf`` while the listener asks."""

    depth = 0
    deaf = False
    caller: FrameType | None = None


class NoticedCalls:
    """The calls of one simulated device. One listener at a time hears them."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._listener: Listener | None = None
        self._thread = _Thread()

    def open(self, listener: Listener) -> None:
        """Begin to tell a listener."""
        self._listener = listener
        for name in (*_VERBS, _SUBMIT, *_NAMED):
            setattr(self._device, name, self._noticed(name, getattr(self._device, name)))

    def close(self) -> None:
        """Stop telling."""
        if self._listener is not None:
            self._listener = None
            for name in (*_VERBS, _SUBMIT, *_NAMED):
                delattr(self._device, name)

    def status(self, stream: int) -> CaptureStatus | None:
        """``cudaStreamIsCapturing``; None for a stream that is no more."""
        try:
            return CaptureStatus(self._device.stream_status(stream))
        except CudaCallError:
            return None

    def blocking(self, stream: int) -> bool:
        """``cudaStreamGetFlags``."""
        thread, was = self._thread, self._thread.deaf
        thread.deaf = True
        try:
            return not self._device.stream_flags(stream)
        except CudaCallError:
            return False
        finally:
            thread.deaf = was

    def device(self) -> int | None:
        """``cudaGetDevice``."""
        return int(self._device.get_device())

    def libraries(self) -> tuple[str, ...]:
        """Return CuPy's name where the stand-in makes the call."""
        frame = self._thread.caller
        while frame is not None and is_ours(frame.f_code.co_filename):
            if str(frame.f_globals.get('__name__', '')).startswith(_STAND_IN):
                return ('cupy',)
            frame = frame.f_back
        return ()

    def _noticed(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(verb)

        @functools.wraps(verb)
        def call(*args: Any, **kwargs: Any) -> Any:
            listener, thread = self._listener, self._thread
            if listener is None or thread.deaf or thread.depth:
                return verb(*args, **kwargs)
            made = _call(name, parameters.bind(*args, **kwargs).arguments)
            thread.depth += 1
            thread.caller = sys._getframe(1)
            try:
                listener.before(made)
                return _told(listener, made, functools.partial(verb, *args, **kwargs))
            finally:
                thread.depth -= 1
                thread.caller = None

        return call


def _told(listener: Listener, made: ApiCall, go: Callable[[], Any]) -> Any:
    """Make a call, and tell what it was answered."""
    try:
        value = go()
    except CudaCallError as error:
        listener.after(made, int(error.code))
        raise
    if made.operation is not Operation.WORK or made.stream is None or not listener.worked(made.stream):
        listener.after(made, 0)
    return value


def _call(name: str, given: dict[str, Any]) -> ApiCall:
    """Return a call of a verb as the call that it stands for."""
    shown = _VERBS.get(name) or _WORK.get(given.get('kind', 'kernel'), 'cuLaunchKernel')
    if name in _NAMED:
        shown = f'cuda{given["name"][:1].upper()}{given["name"][1:]}'
    known = function(shown)
    operation = known.operation if known is not None else _NAMED[name]
    mode = Mode(given.get('mode', Mode.RELAXED)) if 'Capture' in shown else None
    stream, event = given.get('s'), given.get('e', given.get('e1'))
    return ApiCall(
        shown,
        operation,
        threading.get_ident(),
        None if stream is None else int(stream),
        None if event is None else int(event),
        given.get('e2'),
        mode,
        bool(given.get('external', False)),
    )
