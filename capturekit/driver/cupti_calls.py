"""Every call of the process to CUDA, told by CUPTI's callbacks: whoever makes it, before it is made and after.

Callbacks are enabled for the functions that matter to captures alone, and, while no capture is open, for those that
begin one alone, so that the rest of a program costs nothing. The runtime's functions call the driver's, which are the
ones that are followed; of a runtime's function only the name is kept, since that is what the code calls.

A callback is Python code that CUDA calls in the thread that makes the call. It takes the interpreter's lock. It must
not be called when Python is gone, so all callbacks are disabled before Python ends.

CUPTI must not be detached while it calls back in another thread: the process crashes (driver 580.159.04, four threads
that record events and wait for streams: six of six runs crashed within seconds, three of three runs of 900 watches did
not where CUPTI stayed attached). So it stays attached, with all callbacks disabled, until the other threads that it has
called back in have ended, and as long as another thread of Python may wait in a callback for the interpreter's lock:
on a busy machine that takes longer than anybody would wait for it (one crash was seen).

Python runs the handlers of signals at the first instruction of a callback, before any ``try``. What they raise there,
most often ``KeyboardInterrupt``, ctypes hands to ``sys.unraisablehook`` and goes on, so that a Ctrl-C would be lost:
while a listener hears, that hook is this file's.
CUPTI User's Guide: "CUPTI Callback API".
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capturekit.driver.call_notices import Listener
from capturekit.driver.cupti import Profiler, Untraceable, profiler
from capturekit.driver.shared_objects import callers, files
from capturekit.model.cuda_functions import ApiCall, Function, function
from capturekit.model.ledger import PER_THREAD_HANDLE
from capturekit.model.rules import CaptureStatus, Mode, Operation
from capturekit.model.skipped_exits import Lock
from capturekit.model.source_line import other_threads

# -- where the streams, events and modes lie among the parameters of the driver's functions ---------------------------
#
# CUPTI gives a callback the parameters of a function as a C structure (``generated_cuda_meta.h``), whose fields are the
# function's arguments in their order. The offsets were made by a C compiler from the header of CUDA 13.0. The
# structures are part of the driver's binary interface: a function whose arguments change gets a new name (``_v2``).


#: The offset of the stream, by the function's name.
_STREAMS: dict[int, tuple[str, ...]] = {
    0: (
        'cuStreamBeginCapture', 'cuStreamBeginCaptureToGraph', 'cuStreamEndCapture', 'cuStreamSynchronize',
        'cuStreamQuery', 'cuStreamGetFlags', 'cuStreamAddCallback', 'cuStreamWaitEvent', 'cuStreamWaitValue32',
        'cuStreamWaitValue64', 'cuStreamWriteValue32', 'cuStreamWriteValue64', 'cuStreamBatchMemOp', 'cuLaunchHostFunc',
    ),
    8: (
        'cuMemcpy2DAsync', 'cuMemcpy3DAsync', 'cuMemFreeAsync', 'cuGraphUpload', 'cuGraphLaunch', 'cuEventRecord',
        'cuEventRecordWithFlags',
    ),
    16: ('cuMemAllocAsync',),
    24: (
        'cuMemcpyAsync', 'cuMemcpyHtoDAsync', 'cuMemcpyDtoHAsync', 'cuMemcpyDtoDAsync', 'cuMemsetD8Async',
        'cuMemsetD16Async', 'cuMemsetD32Async', 'cuMemAllocFromPoolAsync', 'cuMemPrefetchAsync',
    ),
    32: ('cuMemPrefetchAsync_v2',),
    40: (
        'cuMemcpyPeerAsync', 'cuMemsetD2D8Async', 'cuMemsetD2D16Async', 'cuMemsetD2D32Async', 'cuLaunchKernel',
        'cuLaunchCooperativeKernel',
    ),
}  # fmt: skip
#: The offsets of events, modes and flags.
_EVENTS = {
    'cuStreamWaitEvent': 8, 'cuEventRecord': 0, 'cuEventRecordWithFlags': 0, 'cuEventQuery': 0,
    'cuEventSynchronize': 0, 'cuEventDestroy': 0, 'cuEventElapsedTime': 8,
}  # fmt: skip
_SECOND_EVENTS = {'cuEventElapsedTime': 16}
_MODES = {'cuStreamBeginCapture_v2': 8, 'cuStreamBeginCaptureToGraph': 40}
_FLAGS = {'cuStreamWaitEvent': 16, 'cuEventRecordWithFlags': 16}
#: ``CUlaunchConfig``, whose address is the first parameter, has the stream at this offset.
_CONFIGURED, STREAM_OF_CONFIG = 'cuLaunchKernelEx', 32
_EXCHANGE = 'cuThreadExchangeStreamCaptureMode'
_BY_NAME = {name: offset for offset, names in _STREAMS.items() for name in names}


@dataclass(frozen=True)
class ParameterLayout:
    """The offsets of what is read of a function's parameters, or None where it has no such parameter.

    ``config``: the stream is in the structure that the first parameter points to. ``exchanged``: the first parameter
    points to a mode.
    """

    stream: int | None = None
    event: int | None = None
    event2: int | None = None
    mode: int | None = None
    flags: int | None = None
    config: bool = False
    exchanged: bool = False


def layout(name: str) -> ParameterLayout:
    """Return the layout of a driver's function by CUPTI's name for it: ``'cuStreamBeginCapture_v2_ptsz'``."""
    versioned = re.sub(r'_pt(?:sz|ds)$', '', name)
    plain = re.sub(r'_v\d+$', '', versioned)

    def find(table: dict[str, int]) -> int | None:
        return table.get(versioned, table.get(plain))

    return ParameterLayout(
        find(_BY_NAME),
        find(_EVENTS),
        find(_SECOND_EVENTS),
        _MODES.get(versioned),
        find(_FLAGS),
        plain == _CONFIGURED,
        plain == _EXCHANGE,
    )


_O = Operation
#: ``CUPTI_CB_DOMAIN_DRIVER_API`` and ``CUPTI_CB_DOMAIN_RUNTIME_API``.
_DRIVER, _RUNTIME = 1, 2
#: The numbers of CUPTI's functions lie below this one.
_MOST_NUMBERS = 4096
#: So many numbers without a function mean that there is none above them.
_GAP = 256
#: ``CUpti_CallbackData``: the offsets of the parameters' and the answer's addresses. The first field is 1 at the exit.
_PARAMETERS, _ANSWER = 16, 24
_EXTERNAL = 1
#: Seconds until an interrupt that came within a callback is raised again.
_SOON = 0.02
#: Seconds in which callbacks that wait for the interpreter's lock get it.
_GRACE = 0.02
#: Packages whose threads wait for messages and never call CUDA.
_WAITING = frozenset({'execnet', 'ipykernel', 'tqdm', 'zmq'})
_NON_BLOCKING = 1
_Called = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
_u32, _u64 = ctypes.c_uint32.from_address, ctypes.c_uint64.from_address
#: Functions that are called so often that the runtime's name for them is not asked for.
_FREQUENT = (_O.WORK, _O.EVENT_RECORD, _O.WAIT_EVENT, _O.EVENT_DESTROY)
#: Told before they are made, too: what they change can be asked for only then.
_BOTH = (_O.BEGIN_CAPTURE, _O.WAIT_EVENT)


@dataclass(frozen=True)
class _Callback:
    """A function whose callback may be enabled."""

    domain: int
    number: int
    function: Function
    layout: ParameterLayout

    @property
    def begins(self) -> bool:
        """Whether it is enabled while no capture is open."""
        return self.function.operation is _O.BEGIN_CAPTURE


class _Thread(threading.local):
    """``asking`` while the source itself asks CUDA in this thread."""

    asking = False


class CuptiCalls:
    """CUPTI's callbacks. One listener at a time hears them."""

    def __init__(self, tool: Profiler, driver: Any) -> None:
        self._cupti = library = tool.library
        tool.make_room = self.detach
        self._tool = tool
        self._driver = driver
        self._callbacks = {(one.domain, one.number): one for one in _callbacks(library)}
        #: What CUPTI is attached by, also when nobody listens any more.
        self._subscriber: Any = None
        self._listener: Listener | None = None
        #: The system's numbers of threads that were told of a call since CUPTI was attached.
        self._threads: set[int] = set()
        self._thread = _Thread()
        #: By thread, for one without Python has no memory of its own between two callbacks: the runtime's function that
        #: it is in, and the mode that it exchanges for its own.
        self._within: dict[int, Function] = {}
        self._modes: dict[int, Mode | None] = {}
        self._enabling = Lock()
        self._all = False
        self._heard = _Called(self._called)  # CUPTI keeps it
        #: What ``sys.unraisablehook`` was before; None while this object has not replaced it.
        self._hook: Callable[[Any], object] | None = None

    # -- for the listener ---------------------------------------------------------------------------------------------

    def open(self, listener: Listener) -> None:
        """Begin to tell a listener.

        Raises:
            Untraceable: another tool has attached CUPTI, or CUPTI does not fit the driver.
        """
        files()  # the first time, this loads a library
        self._within.clear()
        self._modes.clear()
        if self._subscriber is None:
            subscriber = ctypes.c_void_p()
            code = int(self._cupti.cuptiSubscribe(ctypes.byref(subscriber), self._heard, None))
            if code:
                why = 'most often another profiler or debugger is'
                raise Untraceable(f'CUPTI can not be attached (error {code}): {why}')
            self._subscriber, self._tool.watched = subscriber, True
        with self._enabling:
            self._listener, self._all = listener, False
            if self._hook is None:
                self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
            self._enable(True, begins=True)
        atexit.register(self.close)

    def close(self) -> None:
        """Stop telling. A call that is under way is not told any more. CUPTI is detached if that is safe."""
        atexit.unregister(self.close)
        with self._enabling:
            self._listener = None
            if self._subscriber is not None:
                for begins in (True, False):
                    self._enable(False, begins)
            if self._hook is not None and sys.unraisablehook == self._unraisable:
                sys.unraisablehook, self._hook = self._hook, None
        self.detach()

    def detach(self) -> None:
        """Detach CUPTI if nobody listens, and no other thread can be within a callback."""
        if self._subscriber is None or self._listener is not None:
            return
        time.sleep(_GRACE)
        with self._enabling:
            if self._subscriber is None or self._listener is not None:
                return
            if any(map(_runs, self._threads - {threading.get_native_id()})) or _others_may_call():
                return
            subscriber, self._subscriber = self._subscriber, None
            self._threads.clear()
        self._cupti.cuptiUnsubscribe(subscriber)

    def status(self, stream: int) -> CaptureStatus | None:
        """``cuStreamIsCapturing``."""
        found = ctypes.c_int()
        code = self._ask('cuStreamIsCapturing', ctypes.c_void_p(stream), ctypes.byref(found))
        return None if code else CaptureStatus(found.value)

    def blocking(self, stream: int) -> bool:
        """``cuStreamGetFlags``."""
        found = ctypes.c_uint()
        code = self._ask('cuStreamGetFlags', ctypes.c_void_p(stream), ctypes.byref(found))
        return not code and not found.value & _NON_BLOCKING

    def device(self) -> int | None:
        """``cuCtxGetDevice``."""
        found = ctypes.c_int()
        return None if self._ask('cuCtxGetDevice', ctypes.byref(found)) else found.value

    def libraries(self) -> tuple[str, ...]:
        """Return the libraries that this thread's call came through."""
        return callers(files())

    def _ask(self, name: str, *args: Any) -> int:
        thread, was = self._thread, self._thread.asking
        thread.asking = True
        try:
            return int(getattr(self._driver, name)(*args))
        finally:
            thread.asking = was

    # -- called by CUPTI ----------------------------------------------------------------------------------------------

    def _called(self, _user: Any, domain: int, number: int, data: int) -> None:
        """Hear of a call. CUPTI must see no exception."""
        self._threads.add(threading.get_native_id())
        listener, one = self._listener, self._callbacks.get((domain, number))
        if listener is None or one is None or self._thread.asking:
            return
        try:
            self._dispatch(listener, one, domain, data)
        except BaseException as failure:
            self._raised(failure)

    def _raised(self, failure: BaseException) -> None:
        """Raise an interrupt again when the callback is over. Other exceptions end the telling."""
        if isinstance(failure, KeyboardInterrupt):
            threading.Timer(_SOON, _thread.interrupt_main).start()
        elif (listener := self._listener) is not None:
            self._listener = None
            listener.failed(failure)

    def _unraisable(self, told: Any) -> None:
        """``sys.unraisablehook``: what a callback raised outside of its ``try`` is not lost."""
        trace, hook = told.exc_traceback, self._hook
        if trace is not None and trace.tb_frame.f_code is _CALLED:
            self._raised(told.exc_value if told.exc_value is not None else told.exc_type())
        elif hook is not None:
            hook(told)

    def _dispatch(self, listener: Listener, one: _Callback, domain: int, data: int) -> None:
        leaving = _u32(data).value
        if domain == _RUNTIME:
            if leaving:
                self._within.pop(threading.get_ident(), None)
            else:
                self._within[threading.get_ident()] = one.function
        elif leaving:
            self._left(listener, one, data)
        elif one.function.operation in _BOTH:
            listener.before(self._call(one, data))
        elif one.layout.exchanged:
            self._modes[threading.get_ident()] = _mode(_u32(_u64(_u64(data + _PARAMETERS).value).value).value)

    def _left(self, listener: Listener, one: _Callback, data: int) -> None:
        code = _u32(_u64(data + _ANSWER).value).value
        plain = one.function.operation is _O.WORK and not code and not one.function.reads
        if plain and listener.worked(self._stream(one, _u64(data + _PARAMETERS).value) or 0):
            return
        listener.after(self._call(one, data), code)
        if one.function.operation in (_O.BEGIN_CAPTURE, _O.END_CAPTURE) and self._all is listener.idle:
            self._follow(listener)

    def _stream(self, one: _Callback, parameters: int) -> int | None:
        where = one.layout
        if where.config:
            stream = _u64(_u64(parameters).value + STREAM_OF_CONFIG).value
        elif where.stream is None:
            return None
        else:
            stream = _u64(parameters + where.stream).value
        return PER_THREAD_HANDLE if not stream and one.function.own else stream

    def _call(self, one: _Callback, data: int) -> ApiCall:
        """Read the parameters of a call."""
        parameters, where, what = _u64(data + _PARAMETERS).value, one.layout, one.function
        me = threading.get_ident()
        mode = self._modes.pop(me, None) if where.exchanged else None
        if where.mode is not None:
            mode = _mode(_u32(parameters + where.mode).value)
        outer = self._within.get(me)
        shown = what if outer is None or outer.operation is not what.operation else outer
        flags = 0 if where.flags is None else _u32(parameters + where.flags).value
        return ApiCall(
            shown.shown,
            what.operation,
            me,
            self._stream(one, parameters),
            None if where.event is None else _u64(parameters + where.event).value,
            None if where.event2 is None else _u64(parameters + where.event2).value,
            mode,
            bool(flags & _EXTERNAL),
            what.reads,
        )

    # -- which callbacks are enabled ----------------------------------------------------------------------------------

    def _follow(self, listener: Listener) -> None:
        """Enable all callbacks when the first capture has begun, and all but its begin when the last one has ended."""
        with self._enabling:
            wanted = not listener.idle
            if self._listener is not None and wanted is not self._all:
                self._all = wanted
                self._within.pop(threading.get_ident(), None)  # the exit of what ends a capture is told no more
                self._enable(wanted, begins=False)

    def _enable(self, on: bool, begins: bool) -> None:
        for one in self._callbacks.values():
            if one.begins is begins:
                self._cupti.cuptiEnableCallback(int(on), self._subscriber, one.domain, one.number)


#: The code of the callback.
_CALLED = CuptiCalls._called.__code__


def _runs(thread: int) -> bool:
    """Whether a thread of this process has not ended, as far as the system tells."""
    return os.path.exists(f'/proc/self/task/{thread}') or not os.path.isdir('/proc/self/task')


def _others_may_call() -> bool:
    """Whether another thread of Python may be within a call to CUDA.

    A thread is not if what runs in it is code of the standard library that waits, or of a package whose threads only do
    that. Threads that begin with a compiled function have no code of their own but ``run``.
    """
    tops = other_threads().values()
    names = [(str(frame.f_globals.get('__name__', '')).partition('.')[0], frame.f_code.co_name) for frame in tops]
    return any(top not in _WAITING and (top not in sys.stdlib_module_names or name == 'run') for top, name in names)


def _mode(value: int) -> Mode | None:
    return Mode(value) if value in tuple(Mode) else None


def _callbacks(library: Any) -> list[_Callback]:
    """The functions that are followed, by the numbers that this version of CUPTI has for them."""
    found = []
    name = ctypes.c_char_p()
    for domain in (_DRIVER, _RUNTIME):
        last = 0
        for number in range(1, _MOST_NUMBERS):
            if library.cuptiGetCallbackName(domain, number, ctypes.byref(name)) or not name.value:
                if number > last + _GAP:
                    break
                continue
            last = number
            called = name.value.decode()
            what = function(called)
            if what is None:
                continue
            if domain == _DRIVER:
                found.append(_Callback(domain, number, what, layout(called)))
            elif what.operation is not None and what.operation not in _FREQUENT:
                found.append(_Callback(domain, number, what, ParameterLayout()))
    return found


@functools.lru_cache(maxsize=1)
def cuda_calls() -> CuptiCalls:
    """Return the source of a GPU's process, which lives as long as the process: CUPTI keeps its callback.

    Raises:
        Untraceable: CUPTI or the driver's library is not available; ``reason`` is one sentence.
    """
    found: Profiler | str = profiler()
    if isinstance(found, str):
        raise Untraceable(found)
    try:
        driver = ctypes.CDLL('libcuda.so.1')
    except OSError:
        raise Untraceable("the driver's library libcuda.so.1 can't be loaded") from None
    return CuptiCalls(found, driver)
