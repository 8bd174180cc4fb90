"""The table of rules: which calls are allowed while a stream is being captured.

The rules in one paragraph: a capture begins on one stream, the *origin*. Waiting, on another stream, for an event
recorded in the capture pulls that stream in (a *fork*: it is now a *lane*); waiting on a lane for another lane's
event is a *join*; at the end every lane's work must lie before the origin's next piece of work. While the capture
is open nothing runs, so nothing can be waited for or asked about: such calls are answered with an error **and the
capture is lost**, which CUDA only says at its end. Calls that are merely *unsafe* (an allocation, a
synchronisation of some unrelated stream) are refused according to the capture's mode. And work that goes to a
stream outside of the capture is not an error: it runs at once and is missing from the graph.

``KINDS`` has a row for every kind of call, ``RULES`` the words, ``BY_HISTORY`` the answers that depend on the past of a
capture. All rows were measured on the drivers in ``MEASURED``, which answer alike (``tests/data/*.json``; see CUDA C++
Programming Guide, "Creating a Graph Using Stream Capture"), and a test compares them. Another driver is assumed to
answer like these. ``python -m tests.gpu.measure_rules`` measures the present one.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from capturekit.model import errors
from capturekit.model.errors import CaptureError


class Code(enum.IntEnum):
    """CUDA's error codes that can occur with captures."""

    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorInvalidResourceHandle = 400
    cudaErrorIllegalState = 401
    cudaErrorNotReady = 600
    cudaErrorNotSupported = 801
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901
    cudaErrorStreamCaptureMerge = 902
    cudaErrorStreamCaptureUnmatched = 903
    cudaErrorStreamCaptureUnjoined = 904
    cudaErrorStreamCaptureIsolation = 905
    cudaErrorStreamCaptureImplicit = 906
    cudaErrorCapturedEvent = 907
    cudaErrorStreamCaptureWrongThread = 908
    cudaErrorTimeout = 909
    cudaErrorGraphExecUpdateFailure = 910


class Mode(enum.IntEnum):
    """In which threads a capture forbids unsafe calls (``cudaStreamCaptureMode``).

    GLOBAL: in every thread. THREAD_LOCAL: in the capturing thread. RELAXED: in none.
    """

    GLOBAL = 0
    THREAD_LOCAL = 1
    RELAXED = 2


class CaptureStatus(enum.IntEnum):
    """``cudaStreamCaptureStatus``."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2


class Effect(enum.Enum):
    """What a call does to the capture, whatever code it returns."""

    NOTHING = 'nothing'
    RECORDED = 'recorded'
    ESCAPES = 'runs at once, not recorded'
    INVALIDATES = 'invalidates'
    ENDS = 'ends'


class Operation(enum.StrEnum):
    """A CUDA call, by the runtime's name without its prefix; variants that share their rule share a name."""

    STREAM_SYNCHRONIZE = 'streamSynchronize'
    STREAM_QUERY = 'streamQuery'
    STREAM_IS_CAPTURING = 'streamIsCapturing'
    STREAM_GET_FLAGS = 'streamGetFlags'
    STREAM_GET_PRIORITY = 'streamGetPriority'
    STREAM_CREATE = 'streamCreate'
    STREAM_DESTROY = 'streamDestroy'
    STREAM_ADD_CALLBACK = 'streamAddCallback'
    LAUNCH_HOST_FUNC = 'launchHostFunc'
    BEGIN_CAPTURE = 'beginCapture'
    END_CAPTURE = 'endCapture'
    WORK = 'work'
    LEGACY_WORK = 'legacy work'
    PEER_COPY = 'memcpyPeerAsync'
    PREFETCH = 'memPrefetchAsync'
    MALLOC_ASYNC = 'mallocAsync'
    FREE_ASYNC = 'freeAsync'
    DEVICE_SYNCHRONIZE = 'deviceSynchronize'
    EVENT_CREATE = 'eventCreate'
    EVENT_DESTROY = 'eventDestroy'
    EVENT_RECORD = 'eventRecord'
    EVENT_RECORD_EXTERNAL = 'eventRecordExternal'
    EVENT_QUERY = 'eventQuery'
    EVENT_SYNCHRONIZE = 'eventSynchronize'
    EVENT_ELAPSED_TIME = 'eventElapsedTime'
    WAIT_EVENT = 'waitEvent'
    WAIT_EVENT_EXTERNAL = 'waitEventExternal'
    GRAPH_LAUNCH = 'graphLaunch'
    GRAPH_UPLOAD = 'graphUpload'
    UNSAFE = 'unsafe'
    HARMLESS = 'harmless'


class Target(enum.StrEnum):
    """What a call addresses, seen from the capture."""

    ORIGIN = 'origin'
    LANE = 'lane'
    OUTSIDE = 'outside'
    LEGACY = 'legacy'
    CAPTURED_EVENT = 'captured event'
    OUTSIDE_EVENT = 'outside event'
    DEAD_EVENT = 'event of an ended capture'
    DEAD_FORK = 'outside, event of an ended capture'
    NEVER_RECORDED = 'never recorded event'
    FOREIGN_EVENT = 'event of another capture'
    FORK = 'fork'
    LEGACY_OTHER_THREAD = 'legacy, from another thread'
    LEGACY_FORK = 'legacy, captured event'
    OUTSIDE_PAIR = 'outside, outside event'
    WRONG_THREAD = 'origin, from another thread'
    RELAXED_THREAD = 'thread exchanged to relaxed'
    OTHER_THREAD = 'from another thread'
    NONE = ''


@dataclass(frozen=True)
class Answer:
    """The code that a call returns, and what happens to the capture."""

    code: Code
    effect: Effect = Effect.NOTHING

    @property
    def loses(self) -> bool:
        """True when the capture is lost."""
        return self.effect in (Effect.INVALIDATES, Effect.ENDS) and self.code is not Code.cudaSuccess

    @property
    def refused(self) -> bool:
        """True when CUDA returns an error."""
        return self.code is not Code.cudaSuccess


@dataclass(frozen=True)
class Pattern:
    """Answers by mode (global, thread-local, relaxed), each beside a non-blocking and a blocking origin."""

    answers: tuple[Answer, Answer, Answer, Answer, Answer, Answer]

    def __call__(self, mode: Mode, blocking: bool) -> Answer:
        return self.answers[2 * mode + blocking]


def _everywhere(code: Code, effect: Effect = Effect.NOTHING) -> Pattern:
    return Pattern((Answer(code, effect),) * 6)


def _by_mode(unsafe: Answer, relaxed: Answer, *, thread_local: Answer | None = None) -> Pattern:
    middle = unsafe if thread_local is None else thread_local
    return Pattern((unsafe, unsafe, middle, middle, relaxed, relaxed))


def _by_origin(nonblocking: Answer, blocking: Answer) -> Pattern:
    return Pattern((nonblocking, blocking) * 3)


_OK = Answer(Code.cudaSuccess)
_RUNS = Answer(Code.cudaSuccess, Effect.ESCAPES)
_ENDS = Answer(Code.cudaSuccess, Effect.ENDS)
_UNSUPPORTED = Answer(Code.cudaErrorStreamCaptureUnsupported, Effect.INVALIDATES)
_IMPLICIT = Answer(Code.cudaErrorStreamCaptureImplicit, Effect.INVALIDATES)

ALLOWED = _everywhere(Code.cudaSuccess)
RECORDED = _everywhere(Code.cudaSuccess, Effect.RECORDED)
ESCAPES = _everywhere(Code.cudaSuccess, Effect.ESCAPES)
CONFLICT = _everywhere(Code.cudaErrorStreamCaptureUnsupported, Effect.INVALIDATES)
UNSAFE = _by_mode(_UNSUPPORTED, _OK)
UNSAFE_ELSEWHERE = _by_mode(_UNSUPPORTED, _OK, thread_local=_OK)
LEGACY_USE = _by_origin(_RUNS, _IMPLICIT)
LEGACY_TOUCH = _by_origin(_OK, _IMPLICIT)
LEGACY_ASK = _by_origin(_OK, Answer(Code.cudaErrorStreamCaptureImplicit))
LEGACY_WAIT = Pattern((_UNSUPPORTED, _IMPLICIT, _UNSUPPORTED, _IMPLICIT, _OK, _IMPLICIT))
LEGACY_WAIT_ELSEWHERE = Pattern((_UNSUPPORTED, _IMPLICIT, _OK, _IMPLICIT, _OK, _IMPLICIT))
LEGACY_BEGIN = _by_origin(Answer(Code.cudaErrorStreamCaptureUnsupported), _IMPLICIT)
LEGACY_END = _by_origin(Answer(Code.cudaErrorIllegalState), _IMPLICIT)
LEGACY_FORK = _everywhere(Code.cudaErrorStreamCaptureImplicit, Effect.INVALIDATES)
CAPTURED_EVENT = _everywhere(Code.cudaErrorCapturedEvent, Effect.INVALIDATES)
CAPTURED_EVENT_TIMED = _everywhere(Code.cudaErrorCapturedEvent)
ISOLATION = _everywhere(Code.cudaErrorStreamCaptureIsolation, Effect.INVALIDATES)
MERGE = _everywhere(Code.cudaErrorStreamCaptureMerge, Effect.INVALIDATES)
UNMATCHED = _everywhere(Code.cudaErrorStreamCaptureUnmatched, Effect.INVALIDATES)
ILLEGAL_STATE = _everywhere(Code.cudaErrorIllegalState)
BAD_VALUE = _everywhere(Code.cudaErrorInvalidValue)
DEAD_WAIT = _everywhere(Code.cudaErrorInvalidValue, Effect.INVALIDATES)
WRONG_THREAD = _by_mode(Answer(Code.cudaErrorStreamCaptureWrongThread, Effect.ENDS), _ENDS)
END = _everywhere(Code.cudaSuccess, Effect.ENDS)


class FromElsewhere(enum.Enum):
    """The answer to a call that would lose only captures of other threads."""

    REFUSED = 'refused'
    RELAXED = 'made in a thread mode that loses no capture'
    WAITS = 'made when those captures are closed, if its thread has none open'


@dataclass(frozen=True)
class Rule:
    """The words of a rule in messages. ``waited``: the remedy where captures of other threads were never closed."""

    name: str
    error: type[CaptureError]
    says: str
    remedy: str
    from_elsewhere: FromElsewhere = FromElsewhere.REFUSED
    waited: str = ''


#: The rules: the name, the error's class, and the answer from elsewhere if it is not refused; what it says; behind an
#: arrow the remedy, and behind a second one that where captures of other threads were never closed.
_WORDS = """
sync-captured SynchronizationError
  A stream being captured has no running work to wait for
  -> Order streams by `cap.join(side)` or `stream.wait_event(side.record())`; what is on one stream is in order. Wait
     for results after the launch: `cap.graph.launch(s)`, then `s.synchronize()`.
query-captured SynchronizationError
  A stream being captured has no running work to ask about, and CuPy would swallow the error
  -> Ask after the graph was launched: `cap.graph.launch(s)`, then `s.done`.
sync-captured-event SynchronizationError
  An event recorded in a capture stands for nodes of the graph, not for work that runs
  -> Order work by it instead: `stream.wait_event(event)`; or wait after `cap.graph.launch()`.
query-captured-event SynchronizationError
  An event recorded in a capture stands for nodes of the graph, and has no state to ask for
  -> Ask an event that was recorded outside the capture, after `cap.graph.launch()`.
time-captured-event SynchronizationError
  Events recorded in a capture carry no time
  -> Time the launch: record events on the stream before and after `cap.graph.launch(stream)`.
device-sync SynchronizationError WAITS
  A stream of the device is being captured: its work does not run, so nothing can wait for the whole device
  -> Move the call out of the `with ck.capture()` block; inside, order lanes with `cap.join(stream)`.
  -> Synchronise one stream instead of the device, or close the capture first.
unsafe-in-mode UnsupportedCallError RELAXED
  This call may wait for the device, and the mode of this capture forbids such calls
  -> Open the capture with mode='relaxed' (the default), or make the call before it.
unsafe-sync-in-mode SynchronizationError RELAXED
  Waiting for or asking about work outside of the capture is unsafe in the mode of this capture
  -> Open the capture with mode='relaxed' (the default), or make the call before it.
legacy-stream LegacyStreamError WAITS
  The legacy default stream can not be captured: its work runs at once and is missing from the graph, and if a
  captured stream is blocking, its use loses the capture
  -> Use a stream of the capture: leave `Stream.null` out, the capture has made its own stream current.
escaped-work EscapedWorkError
  This stream is not in the capture: its work would run at once and be missing from the graph
  -> Fork it first: `stream.wait_event(cap.stream.record())` before its work, and `cap.join(stream)` after it, before
     the result is used; or work in `with cap.fork(1) as (lane,), lane:`.
isolation IsolationError
  A stream being captured can only wait for events recorded in the same capture
  -> Wait before the capture begins, or let the launching stream wait: `s.wait_event(event); cap.graph.launch(s)`.
merge MergeError
  An event of one capture can not be waited for in another: the two would become one, and both be lost
  -> Record both parts in one capture, or order the two graphs by launching them on one stream.
end-elsewhere UnmatchedError
  A capture ends on the stream that began it
  -> Leave the block instead: its end is the end of the capture; a lane is joined by `cap.join(lane)`.
end-wrong-thread WrongThreadError
  A capture that is not relaxed ends in the thread that began it
  -> End it in the thread that began it, or begin it with `stream.begin_capture()`, which is relaxed.
not-capturing UnmatchedError
  This stream is not being captured
  -> Begin a capture on it first.
already-capturing UnmatchedError
  This stream is already in a capture
  -> Use the open capture, fork a lane from it, or begin the second capture on another stream.
callback UnsupportedCallError
  Stream callbacks can not be recorded
  -> Use `stream.launch_host_func(fn, arg)`, which becomes a host node.
graph-launch UnsupportedCallError
  An executable graph can not be launched into a stream that is being captured
  -> Launch it before or after the capture; inside, `cap.embed(graph)` makes it a part of this one.
graph-upload UnsupportedCallError
  An executable graph can not be uploaded on a stream that is being captured
  -> Upload it before or after the capture.
stream-flags UnsupportedCallError
  Asking a captured stream for its flags loses the capture
  -> Read `stream.is_non_blocking` before the capture.
peer-copy UnsupportedCallError
  memcpyPeerAsync can not be recorded
  -> Use memcpyAsync with unified addresses: `a.data.copy_from_device_async(b.data, nbytes)`.
prefetch UnsupportedCallError
  Prefetching managed memory can not be recorded
  -> Prefetch before the capture, or on the launching stream before `cap.graph.launch()`.
dead-event IsolationError
  This event was recorded in a capture that has ended or was lost, and stands for nothing any more
  -> Record it again, in this capture or outside of any.
invalidated InvalidatedError
  The capture was lost before this call
  -> End the capture and begin anew; the call that lost it is above this line.
unjoined UnjoinedError
  Every lane must be joined to the origin before the capture ends
  -> Join each after its last work: `cap.join(stream)`, or `cap.stream.wait_event(stream.record())`.
host-read HostReadError
  The host reads a value that recorded work has not computed yet
  -> Keep the value on the device (`cp.where` instead of `if`), or read it after `cap.graph.launch()`.
host-write UnsupportedCallError
  The host writes into an array here: that would happen once, now, and not at each launch
  -> Call `set` before the capture or before a launch; for a constant make a new array: `cp.asarray(values)`.
outside-pointer UnsupportedCallError
  Only memory that the graph itself allocated can be freed inside it
  -> Free it outside the capture.
"""
#: Special cases. One of a rule (``case = rule``) has only the words that are not the rule's; others are as above.
_SPECIAL = """
work-on-another-device = escaped-work
  No stream of this device is in the capture: work sent there would run at once and be missing from the graph
  -> Give the device a lane: `with cap.fork(devices=[0, 1]) as lanes:` and `with lanes[1]:`; or fork a stream of it,
     `side.wait_event(cap.stream.record())`, and make it current there.
work-of-cupy-on-another-device = escaped-work
  CuPy goes to the other device to rearrange elements there, and nothing orders that with the lane that is current
  here
  -> Do it there, with a lane of that device: `with lanes[1]: part = cp.ascontiguousarray(x)`; what is contiguous and
     of the same dtype is copied as it is.
event-after-capture = dead-event  # nothing is recorded there: such events are mostly meant to time the launch
  This event was recorded in a capture that is over. It stands for nodes of the graph: no launch of the graph records
  it, and so it has no time and can not be waited for
  -> Record it again around the launch: `event.record(stream)` before or after `graph.launch(stream)`, then use it.
begin-on-legacy-stream = legacy-stream
  The legacy default stream can not be captured
  -> Capture on another stream, `stream = cp.cuda.Stream(non_blocking=True)`: `with stream:` around `begin_capture()`,
     the work and `end_capture()`.
end-by-block UnmatchedError
  This capture belongs to a `with ck.capture()` block
  -> Leave the block instead: its end is the end of the capture.
host-read-elsewhere = host-read  # nothing refuses this one: the host would read what lay there before
  Another thread is only recording the work that computes this array: the host would read what was in its memory
  before
  -> Read it after `cap.graph.launch()`: hand it to this thread then.
host-read-into = host-read  # a read into an array of the host
  -> Read it after `cap.graph.launch()`: `y.get(out=buffer)`. To copy at each launch, into pinned memory, write
     `cp.cuda.runtime.memcpyAsync(buffer.ctypes.data, y.data.ptr, y.nbytes, cp.cuda.runtime.memcpyDeviceToHost,
     cp.cuda.get_current_stream().ptr)`, keep `buffer` as long as the graph, and wait for the launch before you look
     at it.
host-read-unknown = host-read  # a read on another stream
  Recorded work was given the address of this array. It may write it, and nobody can tell before a launch: the host
  would read what was there before
  -> Read it before the capture, or after `cap.graph.launch()`.
host-read-unseen = host-read  # the same, where the arguments of recorded work can't be read
  Recorded work may write this array, and it can not be seen which memory it writes: the host would read what was
  there before
  -> Read it before the capture, or after `cap.graph.launch()`.
host-values = host-write  # of captures begun by hand: those of a block upload such values past the capture
  CuPy copies values of the host to the device here, once and now, and a launch would not do that again
  -> Make the array before `begin_capture()`.
dlpack-legacy LegacyStreamError
  DLPack without a stream makes the legacy default stream wait for this one
  -> Name the stream: `x.__dlpack__(stream=cap.stream.ptr)`, or exchange before the capture.
"""


def _read(text: str) -> Iterator[tuple[str, Rule]]:
    for part in re.split(r'\n(?=\S)', text.strip()):
        head, _, words = part.partition('\n')
        name, error, kind = f'{head.partition("#")[0]} REFUSED'.split()[:3]
        says, remedy, *waited = (' '.join(one.split()) for one in words.split(' -> '))
        if error == '=':
            yield name, replace(RULES[kind], says=says or RULES[kind].says, remedy=remedy)
        else:
            yield name, Rule(name, getattr(errors, error), says, remedy, FromElsewhere[kind], *waited)


RULES: dict[str, Rule] = dict(_read(_WORDS))
#: Special cases of rules, by the name of the case.
VARIANTS: dict[str, Rule] = {
    **dict(_read(_SPECIAL)),
    # it is not the stream that has to change, but the place of the call
    'wait-for-legacy-stream': replace(RULES['legacy-stream'], remedy=RULES['device-sync'].remedy),
    'query-legacy-stream': replace(RULES['legacy-stream'], remedy=RULES['query-captured'].remedy),
}

_O = Operation
_T = Target

#: (operation, target, what the driver answers, the rule in the message or '', the measured calls of this kind)
KINDS: tuple[tuple[Operation, Target, Pattern, str, *tuple[str, ...]], ...] = (
    (_O.STREAM_SYNCHRONIZE, _T.ORIGIN, CONFLICT, 'sync-captured', 'streamSynchronize(origin)',
      'streamSynchronize(origin) other thread', 'streamSynchronize(origin), thread exchanged to relaxed'),
    (_O.STREAM_SYNCHRONIZE, _T.LANE, CONFLICT, 'sync-captured', 'streamSynchronize(side captured)'),
    (_O.STREAM_SYNCHRONIZE, _T.OUTSIDE, UNSAFE, 'unsafe-sync-in-mode', 'streamSynchronize(uncaptured nonblocking)',
      'streamSynchronize(uncaptured blocking)', 'streamSynchronize(perthread)'),
    (_O.STREAM_SYNCHRONIZE, _T.LEGACY, LEGACY_WAIT, 'legacy-stream', 'streamSynchronize(legacy)'),
    (_O.STREAM_SYNCHRONIZE, _T.LEGACY_OTHER_THREAD, LEGACY_WAIT_ELSEWHERE, 'legacy-stream',
      'streamSynchronize(legacy) other thread'),
    (_O.STREAM_SYNCHRONIZE, _T.OTHER_THREAD, UNSAFE_ELSEWHERE, 'unsafe-sync-in-mode',
      'streamSynchronize(uncaptured) other thread', 'streamSynchronize(perthread) other thread'),
    (_O.STREAM_SYNCHRONIZE, _T.RELAXED_THREAD, ALLOWED, '',
      'streamSynchronize(uncaptured), thread exchanged to relaxed'),
    (_O.STREAM_QUERY, _T.ORIGIN, CONFLICT, 'query-captured', 'streamQuery(origin)'),
    (_O.STREAM_QUERY, _T.LANE, CONFLICT, 'query-captured', 'streamQuery(side captured)'),
    (_O.STREAM_QUERY, _T.OUTSIDE, UNSAFE, 'unsafe-sync-in-mode', 'streamQuery(uncaptured)'),
    (_O.STREAM_QUERY, _T.LEGACY, LEGACY_WAIT, 'legacy-stream', 'streamQuery(legacy)'),
    (_O.STREAM_QUERY, _T.OTHER_THREAD, UNSAFE_ELSEWHERE, 'unsafe-sync-in-mode', 'streamQuery(uncaptured) other thread'),
    (_O.STREAM_QUERY, _T.RELAXED_THREAD, ALLOWED, '', 'streamQuery(uncaptured), thread exchanged to relaxed'),
    (_O.STREAM_IS_CAPTURING, _T.ORIGIN, ALLOWED, '', 'streamIsCapturing(origin)'),
    (_O.STREAM_IS_CAPTURING, _T.LANE, ALLOWED, '', 'streamIsCapturing(side captured)'),
    (_O.STREAM_IS_CAPTURING, _T.OUTSIDE, ALLOWED, '', 'streamIsCapturing(uncaptured)'),
    (_O.STREAM_IS_CAPTURING, _T.LEGACY, LEGACY_ASK, 'legacy-stream', 'streamIsCapturing(legacy)'),
    (_O.STREAM_GET_FLAGS, _T.ORIGIN, CONFLICT, 'stream-flags', 'streamGetFlags(origin)'),
    (_O.STREAM_GET_FLAGS, _T.LANE, CONFLICT, 'stream-flags', 'streamGetFlags(side captured)'),
    (_O.STREAM_GET_FLAGS, _T.OUTSIDE, ALLOWED, '', 'streamGetFlags(uncaptured)'),
    (_O.STREAM_GET_FLAGS, _T.LEGACY, LEGACY_TOUCH, 'legacy-stream', 'streamGetFlags(legacy)'),
    (_O.STREAM_GET_PRIORITY, _T.ORIGIN, ALLOWED, '', 'streamGetPriority(origin)'),
    (_O.STREAM_GET_PRIORITY, _T.LANE, ALLOWED, '', 'streamGetPriority(side captured)'),
    (_O.STREAM_GET_PRIORITY, _T.OUTSIDE, ALLOWED, '', 'streamGetPriority(uncaptured)'),
    (_O.STREAM_GET_PRIORITY, _T.LEGACY, LEGACY_TOUCH, 'legacy-stream', 'streamGetPriority(legacy)'),
    (_O.STREAM_CREATE, _T.NONE, ALLOWED, '', 'streamCreate', 'streamCreateWithPriority'),
    (_O.STREAM_DESTROY, _T.OUTSIDE, ALLOWED, '', 'streamDestroy(uncaptured)'),
    (_O.STREAM_DESTROY, _T.LANE, ALLOWED, '', 'streamDestroy(side captured)'),
    (_O.STREAM_ADD_CALLBACK, _T.ORIGIN, CONFLICT, 'callback', 'streamAddCallback(origin)'),
    (_O.STREAM_ADD_CALLBACK, _T.LANE, CONFLICT, 'callback', 'streamAddCallback(side captured)'),
    (_O.STREAM_ADD_CALLBACK, _T.OUTSIDE, ESCAPES, 'escaped-work', 'streamAddCallback(uncaptured)'),
    (_O.STREAM_ADD_CALLBACK, _T.LEGACY, LEGACY_USE, 'legacy-stream', 'streamAddCallback(legacy)'),
    (_O.LAUNCH_HOST_FUNC, _T.ORIGIN, RECORDED, '', 'launchHostFunc(origin)'),
    (_O.LAUNCH_HOST_FUNC, _T.LANE, RECORDED, '', 'launchHostFunc(side captured)'),
    (_O.LAUNCH_HOST_FUNC, _T.OUTSIDE, ESCAPES, 'escaped-work', 'launchHostFunc(uncaptured)'),
    (_O.LAUNCH_HOST_FUNC, _T.LEGACY, LEGACY_USE, 'legacy-stream', 'launchHostFunc(legacy)'),
    (_O.BEGIN_CAPTURE, _T.ORIGIN, ILLEGAL_STATE, 'already-capturing', 'beginCapture(origin again)'),
    (_O.BEGIN_CAPTURE, _T.LANE, ILLEGAL_STATE, 'already-capturing', 'beginCapture(side already captured)'),
    (_O.BEGIN_CAPTURE, _T.OUTSIDE, ALLOWED, '', 'beginCapture(uncaptured)'),
    (_O.BEGIN_CAPTURE, _T.LEGACY, LEGACY_BEGIN, 'legacy-stream', 'beginCapture(legacy)'),
    (_O.END_CAPTURE, _T.ORIGIN, END, '', 'end (nothing illegal)'),
    (_O.END_CAPTURE, _T.LANE, UNMATCHED, 'end-elsewhere', 'endCapture(side)'),
    (_O.END_CAPTURE, _T.OUTSIDE, ILLEGAL_STATE, 'not-capturing', 'endCapture(uncaptured)'),
    (_O.END_CAPTURE, _T.LEGACY, LEGACY_END, 'legacy-stream', 'endCapture(legacy)'),
    (_O.END_CAPTURE, _T.WRONG_THREAD, WRONG_THREAD, 'end-wrong-thread', 'endCapture(origin, other thread)'),
    (_O.WORK, _T.ORIGIN, RECORDED, '', 'memsetAsync(origin)', 'memsetAsync(origin) other thread',
      'memcpyAsync D2D (origin)', 'memcpy2DAsync D2D (origin)', 'memcpyAsync D2H pageable (origin)',
      'memcpyAsync H2D pageable (origin)', 'memcpyAsync D2H pinned (origin)', 'memcpyAsync H2D pinned (origin)'),
    (_O.WORK, _T.LANE, RECORDED, '', 'memsetAsync(side captured)'),
    (_O.WORK, _T.OUTSIDE, ESCAPES, 'escaped-work', 'memcpyAsync D2D (uncaptured)', 'memcpyAsync D2D (perthread)',
      'memsetAsync(perthread)', 'memsetAsync(uncaptured nonblocking)', 'memsetAsync(uncaptured blocking)'),
    (_O.WORK, _T.LEGACY, LEGACY_USE, 'legacy-stream', 'memcpyAsync D2D (legacy)', 'memsetAsync(legacy)'),
    (_O.LEGACY_WORK, _T.LANE, LEGACY_FORK, 'legacy-stream', 'memsetAsync(legacy), blocking side captured'),
    (_O.WORK, _T.OTHER_THREAD, ALLOWED, '', 'memsetAsync(uncaptured) other thread'),
    (_O.LEGACY_WORK, _T.OTHER_THREAD, LEGACY_USE, 'legacy-stream', 'memsetAsync(legacy) other thread',
      'memset sync other thread'),
    (_O.LEGACY_WORK, _T.LEGACY, LEGACY_USE, 'legacy-stream', 'memcpy H2D sync', 'memcpy D2H sync', 'memcpy D2D sync',
      'memcpy2D D2D sync', 'memcpyPeer sync', 'memset sync'),
    (_O.PEER_COPY, _T.ORIGIN, CONFLICT, 'peer-copy', 'memcpyPeerAsync (origin)'),
    (_O.PREFETCH, _T.ORIGIN, CONFLICT, 'prefetch', 'memPrefetchAsync(origin)'),
    (_O.PEER_COPY, _T.LANE, CONFLICT, 'peer-copy', 'memcpyPeerAsync(side captured)'),
    (_O.PREFETCH, _T.LANE, CONFLICT, 'prefetch', 'memPrefetchAsync(side captured)'),
    (_O.MALLOC_ASYNC, _T.LANE, RECORDED, '', 'mallocAsync(side captured)'),
    (_O.FREE_ASYNC, _T.LANE, BAD_VALUE, 'outside-pointer', 'freeAsync(side captured, outside pointer)'),
    (_O.PREFETCH, _T.OUTSIDE, ESCAPES, 'escaped-work', 'memPrefetchAsync(uncaptured)'),
    (_O.MALLOC_ASYNC, _T.ORIGIN, RECORDED, '', 'mallocAsync(origin)', 'mallocFromPoolAsync(origin)'),
    (_O.MALLOC_ASYNC, _T.OUTSIDE, UNSAFE, 'unsafe-in-mode', 'mallocAsync(uncaptured)',
      'mallocFromPoolAsync(uncaptured)'),
    (_O.FREE_ASYNC, _T.ORIGIN, BAD_VALUE, 'outside-pointer', 'freeAsync(origin, outside pointer)'),
    (_O.FREE_ASYNC, _T.OUTSIDE, UNSAFE, 'unsafe-in-mode', 'freeAsync(uncaptured)'),
    (_O.DEVICE_SYNCHRONIZE, _T.NONE, CONFLICT, 'device-sync', 'deviceSynchronize', 'driverCtxSynchronize'),
    (_O.DEVICE_SYNCHRONIZE, _T.OTHER_THREAD, CONFLICT, 'device-sync',
      'deviceSynchronize other thread, exchanged to relaxed', 'deviceSynchronize other thread'),
    (_O.DEVICE_SYNCHRONIZE, _T.RELAXED_THREAD, CONFLICT, 'device-sync',
      'deviceSynchronize, thread exchanged to relaxed'),
    (_O.EVENT_CREATE, _T.NONE, ALLOWED, '', 'eventCreate'),
    (_O.EVENT_DESTROY, _T.CAPTURED_EVENT, ALLOWED, '', 'eventDestroy(captured)'),
    (_O.EVENT_DESTROY, _T.OUTSIDE_EVENT, ALLOWED, '', 'eventDestroy(uncaptured)'),
    (_O.EVENT_RECORD, _T.ORIGIN, ALLOWED, '', 'eventRecord(origin)', 'eventRecord(origin, timing event)'),
    (_O.EVENT_RECORD, _T.LANE, ALLOWED, '', 'eventRecord(side captured)'),
    (_O.EVENT_RECORD, _T.OUTSIDE, ALLOWED, '', 'eventRecord(uncaptured stream)',
      'eventRecord(uncaptured stream, captured event)', 'eventRecord(perthread)',
      'eventRecord(uncaptured stream) other thread'),
    (_O.EVENT_RECORD, _T.LEGACY, LEGACY_TOUCH, 'legacy-stream', 'eventRecord(legacy)'),
    (_O.EVENT_RECORD_EXTERNAL, _T.ORIGIN, RECORDED, '', 'eventRecordExternal(origin)'),
    (_O.EVENT_RECORD_EXTERNAL, _T.LANE, RECORDED, '', 'eventRecordExternal(side captured)'),
    (_O.EVENT_RECORD_EXTERNAL, _T.OUTSIDE, ILLEGAL_STATE, 'not-capturing', 'eventRecordExternal(uncaptured)'),
    (_O.EVENT_QUERY, _T.DEAD_EVENT, BAD_VALUE, 'dead-event', 'eventQuery(event of an ended capture)'),
    (_O.EVENT_SYNCHRONIZE, _T.DEAD_EVENT, BAD_VALUE, 'dead-event', 'eventSynchronize(event of an ended capture)'),
    (_O.EVENT_ELAPSED_TIME, _T.DEAD_EVENT, BAD_VALUE, 'dead-event', 'eventElapsedTime(event of an ended capture)'),
    (_O.EVENT_QUERY, _T.CAPTURED_EVENT, CAPTURED_EVENT, 'query-captured-event', 'eventQuery(captured)'),
    (_O.EVENT_QUERY, _T.OUTSIDE_EVENT, UNSAFE, 'unsafe-sync-in-mode', 'eventQuery(uncaptured)'),
    (_O.EVENT_QUERY, _T.NEVER_RECORDED, UNSAFE, 'unsafe-sync-in-mode', 'eventQuery(never recorded)'),
    (_O.EVENT_QUERY, _T.OTHER_THREAD, UNSAFE_ELSEWHERE, 'unsafe-sync-in-mode', 'eventQuery(uncaptured) other thread'),
    (_O.EVENT_QUERY, _T.RELAXED_THREAD, ALLOWED, '', 'eventQuery(uncaptured), thread exchanged to relaxed'),
    (_O.EVENT_SYNCHRONIZE, _T.CAPTURED_EVENT, CAPTURED_EVENT, 'sync-captured-event', 'eventSynchronize(captured)'),
    (_O.EVENT_SYNCHRONIZE, _T.OUTSIDE_EVENT, UNSAFE, 'unsafe-sync-in-mode', 'eventSynchronize(uncaptured)'),
    (_O.EVENT_SYNCHRONIZE, _T.NEVER_RECORDED, UNSAFE, 'unsafe-sync-in-mode', 'eventSynchronize(never recorded)'),
    (_O.EVENT_SYNCHRONIZE, _T.OTHER_THREAD, UNSAFE_ELSEWHERE, 'unsafe-sync-in-mode',
      'eventSynchronize(uncaptured) other thread'),
    (_O.EVENT_SYNCHRONIZE, _T.RELAXED_THREAD, ALLOWED, '', 'eventSynchronize(uncaptured), thread exchanged to relaxed'),
    (_O.EVENT_ELAPSED_TIME, _T.CAPTURED_EVENT, CAPTURED_EVENT_TIMED, 'time-captured-event',
      'eventElapsedTime(captured,captured)', 'eventElapsedTime(uncaptured,captured)'),
    (_O.EVENT_ELAPSED_TIME, _T.OUTSIDE_EVENT, ALLOWED, '', 'eventElapsedTime(uncaptured,uncaptured)'),
    (_O.WAIT_EVENT, _T.CAPTURED_EVENT, ALLOWED, '', 'waitEvent(origin, side event) [join]'),
    (_O.WAIT_EVENT, _T.NEVER_RECORDED, ALLOWED, '', 'waitEvent(origin, never recorded)'),
    (_O.WAIT_EVENT, _T.OUTSIDE_EVENT, ISOLATION, 'isolation', 'waitEvent(origin, uncaptured recorded)',
      'waitEvent(side captured, uncaptured recorded)'),
    (_O.WAIT_EVENT, _T.FOREIGN_EVENT, MERGE, 'merge', 'waitEvent(origin, event of another capture) [merge]'),
    (_O.WAIT_EVENT, _T.FORK, ALLOWED, '', 'waitEvent(uncaptured nonblocking, captured) [fork]',
      'waitEvent(uncaptured blocking, captured) [fork]', 'waitEvent(perthread, captured) [fork]'),
    (_O.WAIT_EVENT, _T.LEGACY_FORK, LEGACY_FORK, 'legacy-stream', 'waitEvent(legacy, captured)'),
    (_O.WAIT_EVENT, _T.LEGACY, LEGACY_TOUCH, 'legacy-stream', 'waitEvent(legacy, uncaptured recorded)',
      'waitEvent(legacy, never recorded)'),
    (_O.WAIT_EVENT, _T.OUTSIDE_PAIR, ALLOWED, '', 'waitEvent(uncaptured, uncaptured recorded)',
      'waitEvent(uncaptured, never recorded)'),
    (_O.WAIT_EVENT, _T.DEAD_EVENT, DEAD_WAIT, 'dead-event', 'waitEvent(origin, event of an ended capture)'),
    (_O.WAIT_EVENT, _T.DEAD_FORK, BAD_VALUE, 'dead-event', 'waitEvent(uncaptured, event of an ended capture)'),
    (_O.WAIT_EVENT_EXTERNAL, _T.LANE, RECORDED, '', 'waitEventExternal(side captured, uncaptured recorded)'),
    (_O.WAIT_EVENT_EXTERNAL, _T.ORIGIN, RECORDED, '', 'waitEventExternal(origin, uncaptured recorded)'),
    (_O.GRAPH_LAUNCH, _T.ORIGIN, CONFLICT, 'graph-launch', 'graphLaunch(origin)'),
    (_O.GRAPH_LAUNCH, _T.LANE, CONFLICT, 'graph-launch', 'graphLaunch(side captured)'),
    (_O.GRAPH_LAUNCH, _T.OUTSIDE, ESCAPES, 'escaped-work', 'graphLaunch(uncaptured)', 'graphLaunch(perthread)'),
    (_O.GRAPH_LAUNCH, _T.LEGACY, LEGACY_USE, 'legacy-stream', 'graphLaunch(legacy)'),
    (_O.GRAPH_LAUNCH, _T.OTHER_THREAD, ALLOWED, '', 'graphLaunch(uncaptured) other thread'),
    (_O.GRAPH_UPLOAD, _T.ORIGIN, CONFLICT, 'graph-upload', 'graphUpload(origin)'),
    (_O.GRAPH_UPLOAD, _T.LANE, CONFLICT, 'graph-upload', 'graphUpload(side captured)'),
    (_O.GRAPH_UPLOAD, _T.OUTSIDE, ALLOWED, '', 'graphUpload(uncaptured)'),
    (_O.GRAPH_UPLOAD, _T.LEGACY, LEGACY_TOUCH, 'legacy-stream', 'graphUpload(legacy)'),
    (_O.UNSAFE, _T.NONE, UNSAFE, 'unsafe-in-mode', 'malloc', 'mallocManaged', 'mallocArray', 'malloc3DArray',
      'mallocHost', 'hostAlloc+free', 'free', 'freeHost', 'hostRegister+unregister', 'graphInstantiate(other)',
      'graphExecDestroy', 'profilerStart', 'profilerStop', 'deviceSetLimit', 'deviceSetMemPool', 'memPoolTrim',
      'memPoolCreate', 'memPoolDestroy', 'memPoolGetAttribute', 'memPoolSetAttribute', 'memAdvise',
      'driverModuleUnload'),
    (_O.UNSAFE, _T.OTHER_THREAD, UNSAFE_ELSEWHERE, 'unsafe-in-mode', 'malloc other thread', 'mallocHost other thread',
      'free other thread', 'graphInstantiate other thread'),
    (_O.UNSAFE, _T.RELAXED_THREAD, ALLOWED, '', 'malloc, thread exchanged to relaxed',
      'mallocHost, thread exchanged to relaxed', 'free, thread exchanged to relaxed',
      'graphInstantiate, thread exchanged to relaxed', 'malloc other thread, exchanged to relaxed',
      'streamSynchronize(uncaptured) other thread, exchanged to relaxed'),
    (_O.HARMLESS, _T.NONE, ALLOWED, '', 'memGetInfo', 'deviceGetAttribute', 'pointerGetAttributes',
      'driverModuleLoadData', 'driverModuleGetFunction', 'driverCtxGetCurrent', 'streamGetCaptureInfo(origin)',
      'deviceGetDefaultMemPool', 'deviceGetMemPool', 'deviceGetLimit', 'deviceCanAccessPeer', 'deviceGetPCIBusId',
      'getDeviceProperties', 'setDevice', 'ipcGetMemHandle', 'graphDestroy', 'graphDebugDotPrint', 'graphExecUpdate'),
)  # fmt: skip
#: (measured label, operation, target, what the driver answers, the rule in the message or '')
ROWS = tuple((label, op, target, answers, name) for op, target, answers, name, *labels in KINDS for label in labels)


class History(enum.Enum):
    """The past of a capture or an event, where an answer depends on it."""

    LOST = 'the capture was lost before'
    UNJOINED = 'lanes of the capture are open'
    NEVER_RECORDED = 'the event was never recorded'
    DEAD_EVENT = 'the event was recorded in a capture that has ended'


_AFTER_LOSS = (
    _O.WORK, _O.LAUNCH_HOST_FUNC, _O.EVENT_RECORD, _O.EVENT_RECORD_EXTERNAL, _O.WAIT_EVENT, _O.WAIT_EVENT_EXTERNAL,
    _O.STREAM_GET_PRIORITY,
)  # fmt: skip

#: (what was before, operation) -> what the driver answers, the rule in the message or ''
BY_HISTORY: dict[tuple[History, Operation], tuple[Answer, str]] = {
    **{(History.LOST, one): (Answer(Code.cudaErrorStreamCaptureInvalidated), 'invalidated') for one in _AFTER_LOSS},
    (History.LOST, _O.END_CAPTURE): (Answer(Code.cudaErrorStreamCaptureInvalidated, Effect.ENDS), 'invalidated'),
    (History.UNJOINED, _O.END_CAPTURE): (Answer(Code.cudaErrorStreamCaptureUnjoined, Effect.ENDS), 'unjoined'),
    (History.NEVER_RECORDED, _O.EVENT_ELAPSED_TIME): (Answer(Code.cudaErrorInvalidResourceHandle), ''),
    (History.DEAD_EVENT, _O.WAIT_EVENT_EXTERNAL): (Answer(Code.cudaErrorInvalidValue), 'dead-event'),
}


def after(history: History, operation: Operation) -> tuple[Answer, Rule | None]:
    """Return what every driver answers to a call because of the past, and the rule for it.

    Raises:
        KeyError: the past does not change the answer.
    """
    answer, name = BY_HISTORY[history, operation]
    return answer, RULES.get(name)


@dataclass(frozen=True)
class Measured:
    """A machine on which every cell was measured; ``cuda`` is what ``cudaDriverGetVersion`` says: 13000 for 13.0."""

    cuda: int
    driver: str
    device: str


MEASURED: tuple[Measured, ...] = (
    Measured(13000, '580.159.04', 'NVIDIA H200'),
    Measured(13000, '580.159.04', 'NVIDIA H100 80GB HBM3'),
)
NEWEST = max(MEASURED, key=lambda one: one.cuda)


_BY_CALL = {(operation, target): (answers, RULES.get(name)) for operation, target, answers, name, *_ in KINDS}


def row(operation: Operation, target: Target) -> tuple[Pattern, Rule | None]:
    """Return what the driver answers to a kind of call, and the rule for it.

    Raises:
        KeyError: it was not measured.
    """
    return _BY_CALL[operation, target]
