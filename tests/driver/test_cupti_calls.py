"""CUPTI's callbacks, read by a source that gets a library which calls back as CUPTI does."""

from __future__ import annotations

import _thread
import ctypes
import glob
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import pytest

from capturekit.driver.cupti import Profiler, Untraceable
from capturekit.driver.cupti_calls import CuptiCalls, ParameterLayout, layout
from capturekit.model.cuda_functions import EXCHANGE, ApiCall, function
from capturekit.model.rules import CaptureStatus, Mode, Operation

_O = Operation
DRIVER, RUNTIME = 1, 2
NAMES = {
    (DRIVER, 7): 'cuStreamBeginCapture_v2',
    (DRIVER, 8): 'cuStreamEndCapture',
    (DRIVER, 9): 'cuLaunchKernel_ptsz',
    (DRIVER, 10): 'cuStreamSynchronize',
    (DRIVER, 11): 'cuThreadExchangeStreamCaptureMode',
    (DRIVER, 12): 'cuStreamWaitEvent',
    (DRIVER, 13): 'cuLaunchKernelEx',
    (DRIVER, 14): 'cuCtxGetCurrent',
    (RUNTIME, 3): 'cudaStreamSynchronize_v3020',
    (RUNTIME, 4): 'cudaStreamBeginCapture_v10000',
    (RUNTIME, 5): 'cudaLaunchKernel_v7000',
}
NUMBERS = {name: number for number, name in NAMES.items()}


class Cupti:
    """What is used of CUPTI's library."""

    def __init__(self, refuses: int = 0) -> None:
        self.refuses = refuses
        self.enabled: set[tuple[int, int]] = set()
        self.callback: Any = None

    def cuptiGetCallbackName(self, domain: int, number: int, name: Any) -> int:
        found = NAMES.get((domain, number))
        name._obj.value = None if found is None else found.encode()
        return int(found is None)

    def cuptiSubscribe(self, subscriber: Any, callback: Any, _user: Any) -> int:
        if not self.refuses:
            subscriber._obj.value, self.callback = 1, callback
        return self.refuses

    def cuptiUnsubscribe(self, _subscriber: Any) -> int:
        self.callback = None
        self.enabled.clear()
        return 0

    def cuptiEnableCallback(self, on: int, _subscriber: Any, domain: int, number: int) -> int:
        (self.enabled.add if on else self.enabled.discard)((domain, number))
        return 0

    def site(self, name: str, leaving: bool, parameters: bytes, code: int = 0) -> None:
        """Call back, if that is enabled."""
        if self.callback is None or NUMBERS[name] not in self.enabled:
            return
        given, answer = ctypes.create_string_buffer(parameters), ctypes.c_uint32(code)
        data = (ctypes.c_uint64 * 9)(int(leaving), 0, ctypes.addressof(given), ctypes.addressof(answer))
        self.callback(None, *NUMBERS[name], ctypes.addressof(data))

    def made(self, name: str, *words: int, code: int = 0) -> None:
        """Make a call whose parameters are words of eight bytes."""
        parameters = b''.join(word.to_bytes(8, 'little') for word in words)
        self.site(name, False, parameters)
        self.site(name, True, parameters, code)


class Driver:
    """What is asked of the driver's library."""

    def __init__(self) -> None:
        self.cupti: Cupti | None = None

    def cuStreamIsCapturing(self, stream: Any, found: Any) -> int:
        if self.cupti is not None:  # the driver may call back for a question of the source's own
            self.cupti.made('cuStreamSynchronize', 99, code=900)
        found._obj.value = 2 if stream.value == 16 else 0
        return 0 if stream.value in (16, 32) else 400

    def cuStreamGetFlags(self, stream: Any, found: Any) -> int:
        found._obj.value = 1 if stream.value == 16 else 0
        return 0

    def cuCtxGetDevice(self, found: Any) -> int:
        found._obj.value = 3
        return 0


class Listens:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.idle = True
        self.heard: list[tuple[str, ApiCall, int]] = []
        self.worked_on: list[int] = []
        self.failure: BaseException | None = None

    def before(self, call: ApiCall) -> None:
        self.heard.append(('before', call, 0))

    def after(self, call: ApiCall, code: int) -> None:
        if call.operation in (_O.BEGIN_CAPTURE, _O.END_CAPTURE):
            self.idle = call.operation is _O.END_CAPTURE
        self.heard.append(('after', call, code))

    def worked(self, stream: int) -> bool:
        self.worked_on.append(stream)
        return stream == 16

    def failed(self, failure: BaseException) -> None:
        self.failure = failure


@pytest.fixture
def parts() -> Any:
    cupti, driver, listener = Cupti(), Driver(), Listens()
    source = CuptiCalls(Profiler(cupti), driver)
    source.open(listener)
    yield cupti, driver, listener, source
    source.close()


@pytest.fixture
def begun(parts: Any) -> Any:
    """With a capture open."""
    cupti, _driver, listener, _source = parts
    cupti.made('cuStreamBeginCapture_v2', 16, 0)
    return cupti, listener


def after(listener: Listens) -> list[ApiCall]:
    return [call for when, call, _code in listener.heard if when == 'after']


def test_only_the_begin_of_a_capture_is_told_while_none_is_open(parts: Any) -> None:
    cupti, _driver, listener, _source = parts
    begins = {NUMBERS['cuStreamBeginCapture_v2'], NUMBERS['cudaStreamBeginCapture_v10000']}
    assert cupti.enabled == begins
    cupti.made('cuStreamSynchronize', 16)
    assert listener.heard == []
    cupti.made('cuStreamBeginCapture_v2', 16, 2)
    assert cupti.enabled == set(NUMBERS.values()) - {NUMBERS['cuCtxGetCurrent'], NUMBERS['cudaLaunchKernel_v7000']}
    cupti.made('cuStreamEndCapture', 16)
    assert cupti.enabled == begins
    begin, end = after(listener)
    assert (begin.function, begin.operation, begin.stream, begin.mode) == (
        'cuStreamBeginCapture', _O.BEGIN_CAPTURE, 16, Mode.RELAXED
    )  # fmt: skip
    assert begin.thread == threading.get_ident() and end.operation is _O.END_CAPTURE


def test_a_call_has_the_runtime_s_name_and_the_driver_s_answer(begun: Any) -> None:
    cupti, listener = begun
    cupti.site('cudaStreamSynchronize_v3020', False, bytes(8))
    cupti.made('cuStreamSynchronize', 16, code=900)
    cupti.site('cudaStreamSynchronize_v3020', True, bytes(8), 900)
    cupti.made('cuStreamSynchronize', 32, code=0)
    told = [(call.function, call.stream, code) for when, call, code in listener.heard if when == 'after'][1:]
    assert told == [('cudaStreamSynchronize', 16, 900), ('cuStreamSynchronize', 32, 0)]


def test_the_function_that_ends_a_capture_names_no_later_call(parts: Any) -> None:
    cupti, _driver, listener, _source = parts
    cupti.site('cudaStreamBeginCapture_v10000', False, bytes(8))
    cupti.made('cuStreamBeginCapture_v2', 16, 0)
    cupti.site('cudaStreamBeginCapture_v10000', True, bytes(8))
    cupti.made('cuStreamEndCapture', 16)
    cupti.made('cuStreamBeginCapture_v2', 16, 0)
    assert [call.function for call in after(listener)] == [
        'cudaStreamBeginCapture', 'cuStreamEndCapture', 'cuStreamBeginCapture'
    ]  # fmt: skip


def test_work_is_asked_for_the_short_way_first(begun: Any) -> None:
    cupti, listener = begun
    cupti.made('cuLaunchKernel_ptsz', 0, 0, 0, 0, 0, 16)
    cupti.made('cuLaunchKernel_ptsz', 0, 0, 0, 0, 0, 32)
    cupti.made('cuLaunchKernel_ptsz', 0, 0, 0, 0, 0, 0)
    cupti.made('cuLaunchKernel_ptsz', 0, 0, 0, 0, 0, 16, code=901)
    config = (ctypes.c_uint64 * 6)(0, 0, 0, 0, 48, 0)
    cupti.made('cuLaunchKernelEx', ctypes.addressof(config))  # which names its stream in another place
    assert listener.worked_on == [16, 32, 2, 48]
    assert [call.stream for call in after(listener)[1:]] == [32, 2, 16, 48]


def test_events_and_flags_are_read(begun: Any) -> None:
    cupti, listener = begun
    cupti.made('cuStreamWaitEvent', 16, 5, 1, code=905)
    (before, one, _), (_, other, code) = listener.heard[-2:]
    assert before == 'before' and one == other and code == 905
    assert (one.stream, one.event, one.external) == (16, 5, True)


def test_the_mode_of_a_thread_is_read_before_it_is_exchanged(begun: Any) -> None:
    cupti, listener = begun
    mode = ctypes.c_uint32(2)
    given = ctypes.addressof(mode).to_bytes(8, 'little')
    cupti.site('cuThreadExchangeStreamCaptureMode', False, given)
    mode.value = 0
    cupti.site('cuThreadExchangeStreamCaptureMode', True, given)
    assert (after(listener)[-1].operation, after(listener)[-1].mode) == (None, Mode.RELAXED)


def test_the_driver_is_asked_without_a_word(parts: Any) -> None:
    cupti, driver, listener, source = parts
    cupti.made('cuStreamBeginCapture_v2', 16, 0)
    driver.cupti = cupti
    heard = len(listener.heard)
    assert [source.status(stream) for stream in (16, 32, 48)] == [CaptureStatus.INVALIDATED, CaptureStatus.NONE, None]
    assert (source.blocking(16), source.blocking(32), source.device()) == (False, True, 3)
    assert len(listener.heard) == heard
    cupti.made('cuStreamSynchronize', 16)
    assert len(listener.heard) == heard + 1


def test_a_failure_ends_the_telling_and_reaches_no_caller(parts: Any) -> None:
    cupti, _driver, listener, _source = parts

    def before(_call: ApiCall) -> None:
        raise ZeroDivisionError

    listener.before = before
    cupti.made('cuStreamBeginCapture_v2', 16, 0)
    assert isinstance(listener.failure, ZeroDivisionError) and listener.heard == []
    cupti.made('cuStreamBeginCapture_v2', 16, 0)
    assert listener.heard == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A job in the background begins without a handler of interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures('interruptible')
def test_an_interrupt_within_a_callback_comes_after_it(parts: Any) -> None:
    cupti, _driver, listener, _source = parts
    interrupts = [KeyboardInterrupt]

    def before(_call: ApiCall) -> None:
        if interrupts:
            raise interrupts.pop()

    listener.before = before
    with pytest.raises(KeyboardInterrupt):
        cupti.made('cuStreamBeginCapture_v2', 16, 0)
        assert not interrupts
        for _ in range(1000):
            time.sleep(0.01)
    cupti.made('cuStreamEndCapture', 16)
    assert [call.operation for call in after(listener)] == [_O.BEGIN_CAPTURE, _O.END_CAPTURE]


@pytest.mark.usefixtures('interruptible')
@pytest.mark.parametrize('kind', [KeyboardInterrupt, TimeoutError])
def test_a_signal_that_comes_before_a_callback_is_not_lost(parts: Any, kind: type[BaseException]) -> None:
    """Its handler runs at the callback's first instruction, where no ``try`` of the callback's sees what it raises."""
    cupti, _driver, listener, _source = parts

    def handler(*_: Any) -> None:
        raise kind

    signal.signal(signal.SIGINT, handler)
    data = (ctypes.c_uint64 * 9)(1)
    calling = partial(cupti.callback, None, *NUMBERS['cuStreamSynchronize'], ctypes.addressof(data))
    both = chain(iter(_thread.interrupt_main, None), iter(calling, None))  # without an instruction of Python's between
    if kind is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            deque(both)
            for _ in range(1000):
                time.sleep(0.01)
        assert listener.failure is None
    else:
        deque(both)
        assert isinstance(listener.failure, TimeoutError)


def test_afterwards_nothing_is_told(parts: Any) -> None:
    cupti, _driver, listener, source = parts
    callback = cupti.callback
    source.close()
    source.close()
    assert cupti.callback is None
    callback(None, *NUMBERS['cuStreamBeginCapture_v2'], 0)  # one that was under way
    assert listener.heard == []


def test_cupti_stays_attached_while_other_threads_call(parts: Any) -> None:
    cupti, _driver, listener, source = parts
    told, over = threading.Event(), threading.Event()

    def wait_for_a_stream() -> None:
        cupti.site('cuStreamSynchronize', False, bytes(8))
        told.set()
        over.wait()
        cupti.site('cuStreamSynchronize', True, bytes(8))

    cupti.made('cuStreamBeginCapture_v2', 16, 0)
    thread = threading.Thread(target=wait_for_a_stream)
    thread.start()
    told.wait()
    cupti.made('cuStreamEndCapture', 16)
    source.close()
    assert cupti.callback is not None and not cupti.enabled
    again = Listens()
    source.open(again)
    cupti.made('cuStreamBeginCapture_v2', 16, 0)
    source.close()
    assert cupti.callback is not None and not cupti.enabled and len(listener.heard) == 3
    assert [call.operation for call in after(again)] == [_O.BEGIN_CAPTURE]
    over.set()
    thread.join()
    source.detach()
    assert cupti.callback is None


def test_a_measurement_gets_cupti_when_nobody_listens() -> None:
    cupti = Cupti()
    tool = Profiler(cupti)
    source = CuptiCalls(tool, Driver())
    assert not tool.watched
    source.open(Listens())
    assert tool.watched
    tool.make_room()
    assert cupti.callback is not None, 'somebody listens'
    ended = threading.Thread(target=cupti.made, args=('cuStreamBeginCapture_v2', 16, 0))
    ended.start()
    ended.join()
    source.close()
    tool.make_room()
    assert cupti.callback is None


def test_another_tool_s_cupti_is_left_to_it() -> None:
    source = CuptiCalls(Profiler(Cupti(refuses=39)), Driver())
    with pytest.raises(Untraceable, match='error 39'):
        source.open(Listens())
    source.close()


def asleep() -> None:
    time.sleep(0.3)


@pytest.mark.parametrize('target, stays', [(asleep, True), (partial(time.sleep, 0.3), True), ('waits', False)])
def test_threads_that_may_be_in_a_call_keep_cupti_attached(target: Any, stays: bool) -> None:
    cupti, over = Cupti(), threading.Event()
    source = CuptiCalls(Profiler(cupti), Driver())
    source.open(Listens())
    thread = threading.Thread(target=over.wait if target == 'waits' else target)
    thread.start()
    time.sleep(0.05)
    source.close()
    assert (cupti.callback is not None) == stays and not cupti.enabled
    over.set()
    thread.join()
    source.detach()
    assert cupti.callback is None


# -- where streams, events and modes lie among the parameters ---------------------------------------------------------


HEADERS = sorted(glob.glob('/usr/local/cuda*/include/generated_cuda_meta.h'))
#: Types of one word of four bytes; the others that occur here have eight.
SMALL = ('int', 'unsigned int', 'CUstreamCaptureMode', 'unsigned char', 'unsigned short', 'CUdevice', 'float')
#: Operations that name a stream or an event.
NAMING = (
    _O.BEGIN_CAPTURE, _O.END_CAPTURE, _O.STREAM_SYNCHRONIZE, _O.STREAM_QUERY, _O.STREAM_GET_FLAGS, _O.WAIT_EVENT,
    _O.STREAM_ADD_CALLBACK, _O.EVENT_RECORD, _O.EVENT_QUERY, _O.EVENT_SYNCHRONIZE, _O.EVENT_ELAPSED_TIME,
    _O.EVENT_DESTROY, _O.LAUNCH_HOST_FUNC, _O.GRAPH_LAUNCH, _O.GRAPH_UPLOAD, _O.PEER_COPY, _O.PREFETCH,
    _O.MALLOC_ASYNC, _O.FREE_ASYNC, _O.WORK,
)  # fmt: skip


def structures() -> dict[str, dict[str, int]]:
    """The offsets of streams, events, modes and flags by the function's name, from the header."""
    with open(HEADERS[-1]) as header:
        text = header.read()
    found = {}
    for name, body in re.findall(r'typedef struct (cu\w+)_params_st \{(.*?)\}', text, re.DOTALL):
        offset, fields = 0, {}
        for declared in filter(None, (line.strip() for line in body.split(';'))):
            kind, field = re.fullmatch(r'(.*?)\s*(\w+)', declared).groups()  # type: ignore[union-attr]
            size = 4 if kind in SMALL else 8
            offset += -offset % size
            role = {'CUstream': 'stream', 'CUevent': 'event', 'CUstreamCaptureMode': 'mode'}.get(kind)
            role = 'flags' if field.lower() == 'flags' else role
            fields[f'{role}2' if role in fields else str(role)] = offset
            offset += size
        found[name] = fields
    return found


@pytest.mark.skipif(not HEADERS, reason='the CUDA toolkit with its headers is not installed')
def test_the_offsets_are_those_of_the_header() -> None:
    checked = 0
    for name, fields in structures().items():
        known = function(name)
        if known is None or known.operation not in NAMING:
            continue
        here = layout(name)
        if here.config:
            assert fields.keys() == {'None'}
            continue
        assert (here.stream, here.event, here.event2) == (
            fields.get('stream'), fields.get('event'), fields.get('event2')
        ), name  # fmt: skip
        assert here.mode == fields.get('mode'), name
        assert here.flags in (None, fields.get('flags')), name
        checked += 1
    assert checked > 60


def test_some_functions_have_a_layout_of_their_own() -> None:
    assert layout('cuMemPrefetchAsync').stream == 24 and layout('cuMemPrefetchAsync_v2_ptsz').stream == 32
    assert layout('cuStreamBeginCapture').mode is None and layout('cuStreamBeginCapture_v2_ptsz').mode == 8
    assert layout(f'cu{EXCHANGE}') == ParameterLayout(exchanged=True)
    assert layout('cuLaunchKernelEx_ptsz') == ParameterLayout(config=True)
