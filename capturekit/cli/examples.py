"""What :mod:`capturekit.cli.explain` says in words: where each rule is met, a wrong example of it and a right one.

Nothing here says what is legal: that is :mod:`capturekit.model.rules`. :func:`program` makes an example whole. Tests
run every example on the simulated device: the wrong ones raise what they explain; the right ones hold with their
launches, and not without them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from capturekit.model.rules import Code

_IMPORTS = 'import capturekit as ck\nimport cupy as cp\n'
_ARRAY = 'x = cp.arange(4.0)\n'


@dataclass(frozen=True)
class Lesson:
    """``met``: where the trouble is met. ``wrong`` and ``right``: code. ``seen``: threads of people who met it.

    ``unshown``: why there is no wrong example, or why the simulated device does not raise it. ``raises``: the name of
    what the wrong example raises, where that is not what its topic says.
    """

    met: str
    wrong: str = ''
    right: str = ''
    seen: tuple[str, ...] = ()
    unshown: str = ''
    raises: str = ''


@dataclass(frozen=True)
class Kind:
    """A kind of step in a recording, or of finding of ``ck.lint()``, that is not a rule."""

    name: str
    says: str


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind('adapted', 'A call that a strict capture refuses got the meaning that it has in a graph.'),
        Kind('assumed', 'A host read was answered with what the rehearsal read there; every launch compares.'),
        Kind('constant', 'Values of the host were uploaded once, while recording: they are the same at every launch.'),
        Kind('cut', 'The graph goes on in another part: a value is checked in between, or the host acts.'),
        Kind('decision', 'A conditional node: the device decides at each launch whether a body runs, or how often.'),
        Kind('drawn', 'Numbers of a generator that counts on the host: it draws new ones before each launch.'),
        Kind('embedded', 'Another graph stands here as one node.'),
        Kind('outside-handle', 'Work was given to a stream outside of the capture by its handle: it runs at once, and '
             'no launch repeats it.'),
        Kind('seam', 'A call that no capture can hold: it ends one graph, is made by the host at every launch, and '
             'another graph goes on.'),
    )
}  # fmt: skip


def program(code: str) -> str:
    """An example as a whole: with what every example begins with."""
    head, _, rest = code.partition('\n\n')
    imports, rest = (f'{head}\n', rest.lstrip('\n')) if head.startswith(('import ', 'from ')) else ('', code)
    gap = '\n\n' if rest.startswith(('def ', '@')) else ''
    return f'{_IMPORTS}{imports}\n{_ARRAY}{gap}{rest}'


#: What CUDA means by its codes.
MEANINGS: dict[Code, str] = {
    Code.cudaErrorInvalidValue: 'An argument of the call can not be what it is; in a capture it often is an event or '
    'a pointer that stands for nothing there.',
    Code.cudaErrorIllegalState: 'The call does not fit the state of its stream: it is being captured already, or not '
    'at all.',
    Code.cudaErrorStreamCaptureUnsupported: 'The call can not be made while a stream is being captured: it would have '
    "to wait for the work or to ask about it, it can not be put into a graph, or the capture's mode keeps it away.",
    Code.cudaErrorStreamCaptureInvalidated: 'An earlier call has lost the capture. CUDA says so to each later one, and '
    'at the end, but not which call it was.',
    Code.cudaErrorStreamCaptureMerge: 'The call would make one capture out of two.',
    Code.cudaErrorStreamCaptureUnmatched: 'The capture was not begun on this stream.',
    Code.cudaErrorStreamCaptureUnjoined: 'The capture has a fork that was not joined to the origin, or that was worked '
    'on after its join. CUDA does not say which.',
    Code.cudaErrorStreamCaptureIsolation: 'A captured stream was told to wait for something outside of the capture.',
    Code.cudaErrorStreamCaptureImplicit: 'The call would order the legacy stream after a captured stream that it '
    'synchronises with: a blocking one.',
    Code.cudaErrorCapturedEvent: 'The event was last recorded in a capture: it stands for nodes, not for running work.',
    Code.cudaErrorStreamCaptureWrongThread: 'The capture was not begun by this thread.',
    Code.cudaErrorTimeout: 'A wait took longer than it was allowed to.',
    Code.cudaErrorGraphExecUpdateFailure: 'An executable graph could not be updated: the new graph has other nodes or '
    'other edges, or a node changed what can not be changed.',
}

_FORK = """\
side = cp.cuda.Stream(non_blocking=True)
with ck.capture() as cap:
    side.wait_event(cap.stream.record())
    with side:
        y = x * 2
"""

#: The key is the name of a rule, of a code whose example is not its first rule's, or of an exception without a rule.
LESSONS: dict[str, Lesson] = {
    'sync-captured': Lesson(
        "`stream.synchronize()` of the capture's stream or of a lane, where one stream is to wait for another.",
        _FORK
        + """\
    side.synchronize()
    z = y + 1
""",
        _FORK
        + """\
    cap.join(side)
    z = y + 1
cap.graph.launch()
assert cp.allclose(z, x * 2 + 1)
""",
    ),
    'query-captured': Lesson(
        '`stream.done` of a captured stream. CuPy takes every error for False, so that on bare CuPy nothing is raised.',
        _FORK
        + """\
    while not side.done:
        pass
    cap.join(side)
""",
        _FORK
        + """\
    cap.join(side)
stream = cp.cuda.Stream(non_blocking=True)
cap.graph.launch(stream)
while not stream.done:
    pass
assert cp.allclose(y, x * 2)
""",
    ),
    'sync-captured-event': Lesson(
        '`event.synchronize()` of an event that was recorded on a stream in the capture.',
        """\
with ck.capture() as cap:
    y = x * 2
    event = cap.stream.record()
    event.synchronize()
""",
        """\
with ck.capture() as cap:
    y = x * 2
cap.graph.launch()
event = cp.cuda.get_current_stream().record()
event.synchronize()
assert cp.allclose(y, x * 2)
""",
    ),
    'query-captured-event': Lesson(
        '`event.done` of an event that was recorded on a stream in the capture.',
        """\
with ck.capture() as cap:
    y = x * 2
    event = cap.stream.record()
    ready = event.done
""",
        """\
with ck.capture() as cap:
    y = x * 2
cap.graph.launch()
event = cp.cuda.get_current_stream().record()
while not event.done:
    pass
assert cp.allclose(y, x * 2)
""",
    ),
    'time-captured-event': Lesson(
        '`cp.cuda.get_elapsed_time` of events that were recorded on streams in the capture.',
        """\
with ck.capture() as cap:
    start = cap.stream.record()
    y = x * 2
    end = cap.stream.record()
    cp.cuda.get_elapsed_time(start, end)
""",
        """\
with ck.capture() as cap:
    y = x * 2
stream = cp.cuda.Stream(non_blocking=True)
start, end = cp.cuda.Event(), cp.cuda.Event()
start.record(stream)
cap.graph.launch(stream)
end.record(stream)
end.synchronize()
assert cp.cuda.get_elapsed_time(start, end) >= 0
assert cp.allclose(y, x * 2)
""",
    ),
    'device-sync': Lesson(
        '`cp.cuda.Device().synchronize()`, often left over from timing. From another thread it waits until the capture '
        'is closed.',
        """\
with ck.capture() as cap:
    y = x * 2
    cp.cuda.Device().synchronize()
""",
        """\
with ck.capture() as cap:
    y = x * 2
cap.graph.launch()
cp.cuda.Device().synchronize()
assert cp.allclose(y, x * 2)
""",
        seen=('https://github.com/NVIDIA/TensorRT/issues/2888',),
    ),
    'unsafe-in-mode': Lesson(
        'Raw memory, pinned memory, making and destroying graphs. Arrays made in the block are no such calls: their '
        "memory is the graph's.",
        """\
with ck.capture(mode='global') as cap:
    staging = cp.cuda.alloc_pinned_memory(64)
    y = x * 2
""",
        """\
staging = cp.cuda.alloc_pinned_memory(64)
with ck.capture(mode='global') as cap:
    y = x * 2
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
        seen=('https://github.com/pytorch/pytorch/issues/104555', 'https://github.com/pytorch/pytorch/issues/159594'),
    ),
    'unsafe-sync-in-mode': Lesson(
        '`other.synchronize()`, `other.done` and the same of events that have nothing to do with the capture.',
        """\
other = cp.cuda.Stream(non_blocking=True)
with ck.capture(mode='thread_local') as cap:
    y = x * 2
    other.synchronize()
""",
        """\
other = cp.cuda.Stream(non_blocking=True)
with ck.capture() as cap:
    y = x * 2
    other.synchronize()
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
        seen=('https://github.com/pytorch/pytorch/issues/148594',),
    ),
    'legacy-stream': Lesson(
        '`with cp.cuda.Stream.null:`, `Stream.null.synchronize()`, and the copies and memsets that take no stream: '
        '`a.data.copy_from_device`, `a.data.memset`.',
        """\
with ck.capture() as cap:
    y = x * 2
    with cp.cuda.Stream.null:
        z = y + 1
""",
        """\
with ck.capture() as cap:
    y = x * 2
    z = y + 1
cap.graph.launch()
assert cp.allclose(z, x * 2 + 1)
""",
        seen=('https://github.com/meta-pytorch/tritonbench/issues/110',),
    ),
    'cudaErrorStreamCaptureImplicit': Lesson(
        'The legacy stream waits for blocking streams: `cp.cuda.Stream()` is one, `cp.cuda.Stream(non_blocking=True)` '
        'and the stream that `ck.capture()` makes are not.',
        """\
with ck.capture(cp.cuda.Stream()) as cap:
    y = x * 2
    y.data.memset(0, y.nbytes)
""",
        """\
with ck.capture() as cap:
    y = x * 2
    y.data.memset_async(0, y.nbytes)
    y += 1
cap.graph.launch()
assert cp.allclose(y, 1)
""",
        seen=('https://github.com/meta-pytorch/tritonbench/issues/110',),
    ),
    'escaped-work': Lesson(
        'Work on a stream that was made current in the block, or named, and never forked. No launch would repeat it.',
        """\
side = cp.cuda.Stream(non_blocking=True)
with ck.capture() as cap:
    with side:
        y = x * 2
""",
        _FORK
        + """\
    cap.join(side)
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
    ),
    'isolation': Lesson(
        '`cap.stream.wait_event(event)` of an event that a stream outside recorded, a loader say.',
        """\
loader = cp.cuda.Stream(non_blocking=True)
loaded = loader.record()
with ck.capture() as cap:
    cap.stream.wait_event(loaded)
    y = x * 2
""",
        """\
loader = cp.cuda.Stream(non_blocking=True)
loaded = loader.record()
with ck.capture() as cap:
    y = x * 2
stream = cp.cuda.Stream(non_blocking=True)
stream.wait_event(loaded)
cap.graph.launch(stream)
stream.synchronize()
assert cp.allclose(y, x * 2)
""",
    ),
    'merge': Lesson(
        'Two captures are open, and a stream of one waits for an event of the other.',
        """\
with ck.capture() as first:
    y = x * 2
    done = first.stream.record()
    with ck.capture() as second:
        second.stream.wait_event(done)
        z = y + 1
""",
        """\
with ck.capture() as first:
    y = x * 2
with ck.capture() as second:
    z = y + 1
stream = cp.cuda.Stream(non_blocking=True)
first.graph.launch(stream)
second.graph.launch(stream)
stream.synchronize()
assert cp.allclose(z, x * 2 + 1)
""",
        seen=('https://github.com/pytorch/pytorch/issues/191681',),
    ),
    'end-elsewhere': Lesson(
        '`end_capture()` on a lane, in code that begins and ends captures by hand.',
        _FORK
        + """\
    side.end_capture()
""",
        _FORK
        + """\
    cap.join(side)
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
    ),
    'end-wrong-thread': Lesson(
        'Code that begins and ends captures by hand, and ends one in a worker, a callback or a finalizer of another '
        'thread.',
        """\
import threading
from capturekit.guard import watch

faults = []


def end():
    try:
        stream.end_capture()
    except RuntimeError as error:
        faults.append(error)


stream = cp.cuda.Stream(non_blocking=True)
with watch():  # as `capturekit run` does for a whole script
    stream.begin_capture(cp.cuda.runtime.streamCaptureModeGlobal)
    worker = threading.Thread(target=end)
    worker.start()
    worker.join()
    stream.end_capture()  # refused there, it can still be ended here
    raise faults[0]
""",
        """\
import threading

with ck.capture(mode='global') as cap:
    y = x * 2
worker = threading.Thread(target=cap.graph.launch)
worker.start()
worker.join()
assert cp.allclose(y, x * 2)
""",
    ),
    'not-capturing': Lesson(
        '`end_capture()` where no capture is open, or a second time.',
        """\
side = cp.cuda.Stream(non_blocking=True)
with ck.capture() as cap:
    y = x * 2
    side.end_capture()
""",
        """\
with ck.capture() as cap:
    y = x * 2
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
    ),
    'already-capturing': Lesson(
        'Code that records by itself is called in a capture, and begins another one on the same stream.',
        """\
with ck.capture() as cap:
    cap.stream.begin_capture()
    y = x * 2
""",
        """\
with ck.capture() as cap:
    y = x * 2
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
    ),
    'callback': Lesson(
        '`stream.add_callback(...)` on a stream in the capture.',
        """\
launches = []
with ck.capture() as cap:
    y = x * 2
    cap.stream.add_callback(lambda stream, status, arg: launches.append(arg), 1)
""",
        """\
launches = []
with ck.capture() as cap:
    y = x * 2
    cap.stream.launch_host_func(launches.append, 1)
cap.graph.launch()
assert cp.allclose(y, x * 2)
assert launches == [1]
""",
    ),
    'graph-launch': Lesson(
        '`graph.launch()` in the block, of capturekit or of CuPy. Put the code of both into one block, or launch one '
        'after the other.',
        """\
with ck.capture() as inner:
    y = x * 2
with ck.capture() as cap:
    inner.graph.launch()
    z = y + 1
""",
        """\
with ck.capture() as inner:
    y = x * 2
with ck.capture() as cap:
    z = y + 1
inner.graph.launch()
cap.graph.launch()
assert cp.allclose(z, x * 2 + 1)
""",
    ),
    'graph-upload': Lesson(
        '`graph.upload()` in the block.',
        """\
with ck.capture() as inner:
    y = x * 2
with ck.capture() as cap:
    inner.graph.upload()
    z = y + 1
""",
        """\
with ck.capture() as cap:
    y = x * 2
cap.graph.upload()
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
    ),
    'stream-flags': Lesson(
        '`cudaStreamGetFlags` of a stream in the capture, asked by a C library. `stream.is_non_blocking` and '
        '`runtime.streamGetFlags` are harmless: capturekit answers with what it read when the stream entered.',
        """\
from capturekit.driver.cuda import current

driver = current().device  # stands for a C library: it goes past CuPy
with ck.capture() as cap:
    y = x * 2
    driver.stream_flags(cap.stream.ptr)
""",
        """\
with ck.capture() as cap:
    assert cap.stream.is_non_blocking
    y = x * 2
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
        raises='CudaCallError',
    ),
    'peer-copy': Lesson(
        '`runtime.memcpyPeerAsync` on a stream in the capture.',
        """\
y = cp.empty_like(x)
with ck.capture() as cap:
    cp.cuda.runtime.memcpyPeerAsync(y.data.ptr, 0, x.data.ptr, 0, x.nbytes, cap.stream.ptr)
""",
        """\
y = cp.empty_like(x)
with ck.capture() as cap:
    y.data.copy_from_device_async(x.data, x.nbytes)
    y += 1
cap.graph.launch()
assert cp.allclose(y, x + 1)
""",
    ),
    'prefetch': Lesson(
        '`runtime.memPrefetchAsync` on a stream in the capture.',
        """\
managed = cp.cuda.malloc_managed(64)
with ck.capture() as cap:
    cp.cuda.runtime.memPrefetchAsync(managed.ptr, 64, 0, cap.stream.ptr)
""",
        """\
a = cp.ndarray((8,), cp.float64, cp.cuda.malloc_managed(64))
a.fill(3)  # used there before the capture, it lies on the device, as after a prefetch
with ck.capture() as cap:
    a += 2
cap.graph.launch()
assert cp.allclose(a, 5)
""",
    ),
    'dead-event': Lesson(
        'An event that was last recorded in a capture is used after it, or in the next one.',
        """\
with ck.capture() as cap:
    with ck.capture() as first:
        y = x * 2
        event = first.stream.record()
    cap.stream.wait_event(event)
    z = x + 1
""",
        """\
event = cp.cuda.Event(disable_timing=True)
with ck.capture() as first:
    y = x * 2
    event.record(first.stream)
with ck.capture() as cap:
    event.record(cap.stream)
    with cap.fork(1) as (lane,), lane:
        lane.stream.wait_event(event)
        z = x + 1
cap.graph.launch()
assert cp.allclose(z, x + 1)
""",
    ),
    'invalidated': Lesson(
        'A C library, cuda-bindings or another thread made a call that capturekit does not see. `error.active_at` is '
        'the last line after which the capture was still good: look between it and the line of the error.',
        """\
from capturekit.driver.cuda import current

driver = current().device  # stands for a C library: it goes past CuPy
with ck.capture() as cap:
    y = x * 2
    try:
        driver.device_synchronize()
    except RuntimeError:
        pass  # as if its return code were ignored
""",
        """\
from capturekit.driver.cuda import current

driver = current().device
with ck.capture() as cap:
    y = x * 2
    z = y + 1
cap.graph.launch()
driver.device_synchronize()
assert cp.allclose(z, x * 2 + 1)
""",
        seen=('https://github.com/csarofeen/pytorch/issues/2098', 'https://github.com/pytorch/pytorch/issues/92684'),
    ),
    'unjoined': Lesson(
        'A side stream was forked and never joined, or worked on again after its join. `error.lanes` has the story of '
        'each: who forked it, where, and its last use.',
        _FORK
        + """\
    z = x + 1
""",
        _FORK
        + """\
    z = x + 1
    cap.join(side)
cap.graph.launch()
assert cp.allclose(y + z, x * 3 + 1)
""",
        seen=('https://github.com/deepseek-ai/DeepEP/issues/62', 'https://github.com/pytorch/pytorch/issues/185546'),
    ),
    'host-read': Lesson(
        '`float(a)`, `int(a)`, `if a.any():`, `print(a)`, `a.get()`, `cp.asnumpy(a)`, `a[a > 0]`. '
        '`@ck.graphed` and `ck.rehearse` record such code as it stands, with a check at each launch.',
        """\
with ck.capture() as cap:
    y = x / x.max() if float(x.max()) > 1 else x
""",
        """\
with ck.capture() as cap:
    top = x.max()
    y = cp.where(top > 1, x / top, x)
cap.graph.launch()
assert cp.allclose(y, x / 3)
""",
    ),
    'host-write': Lesson(
        '`a.set(values)` of an array that was there before the block.',
        """\
import numpy as np

with ck.capture() as cap:
    x.set(np.ones(4))
    y = x * 2
""",
        """\
import numpy as np

with ck.capture() as cap:
    y = x * 2
x.set(np.ones(4))
cap.graph.launch()
assert cp.allclose(y, 2)
""",
    ),
    'outside-pointer': Lesson(
        '`runtime.freeAsync`, on a stream in the capture, of memory that was allocated outside of it. capturekit '
        'leaves this refusal to CUDA: what is raised is the CUDARuntimeError of CuPy.',
        """\
address = cp.cuda.runtime.malloc(64)
with ck.capture() as cap:
    y = x * 2
    cp.cuda.runtime.freeAsync(address, cap.stream.ptr)
""",
        """\
address = cp.cuda.runtime.malloc(64)
with ck.capture() as cap:
    y = x * 2
cp.cuda.runtime.free(address)
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
        raises='CUDARuntimeError',
    ),
    'CaptureError': Lesson(
        'The base of all refusals; a RuntimeError. `except ck.CaptureError` around a block catches each of them.',
        """\
with ck.capture() as cap:
    y = x * 2
    cap.stream.synchronize()
""",
        """\
try:
    with ck.capture() as cap:
        y = x * 2
        cap.stream.synchronize()
except ck.CaptureError as error:
    assert error.operation == 'Stream.synchronize()' and error.remedy
    with ck.capture() as cap:
        y = x * 2
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
    ),
    'CudaCallError': Lesson(
        "CUDA answered a call of capturekit's own with an error, which no rule foresaw: `error.code` and `error.call`. "
        'Out of memory is the usual one, and a cuda-bindings too old for the call (cudaErrorNotSupported).',
        """\
from capturekit.driver.cuda import current

current().device.stream_synchronize(0x1234)  # no stream
""",
        """\
from capturekit.driver.cuda import current

with ck.capture() as cap:
    y = x * 2
stream = cp.cuda.Stream(non_blocking=True)
cap.graph.launch(stream)
current().device.stream_synchronize(stream.ptr)
assert cp.allclose(y, x * 2)
""",
    ),
    'AssumptionError': Lesson(
        'A graph was recorded with the host reads of a rehearsal, and a launch met another value. Nothing after that '
        'read has run. `@ck.graphed` runs such a call eagerly instead.',
        """\
def halved(x):
    return x / 2 if float(x.max()) > 1 else x


rehearsal = ck.rehearse(halved, x)
with ck.capture(rehearsal=rehearsal) as cap:
    y = halved(x)
x *= 0.1
cap.graph.launch()
""",
        """\
@ck.graphed
def halved(x):
    return x / 2 if bool(x.max() > 1) else x


for factor in (1, 1, 1, 0.1):
    y = halved(x * factor)
    assert cp.allclose(y, x / 2 if factor == 1 else x * factor)
assert halved.variants[1].launches
""",
    ),
    'CheckError': Lesson(
        'A graphed function was called with `check=`, and a launch gave something else than the eager run beside it. '
        'With `pure=True` the function breaks the promise that nothing but its arguments counts.',
        """\
rate = [2.0]


@ck.graphed(pure=True, check=True)
def scaled(x):
    return x * rate[0]


for rate[0] in (2.0, 2.0, 2.0, 3.0):
    y = scaled(x)
""",
        """\
@ck.graphed(pure=True, check=True)
def scaled(x, rate):
    return x * rate


for rate in (2.0, 2.0, 2.0, 3.0):
    x = x + 1
    y = scaled(x, rate)
    assert cp.allclose(y, x * rate)
""",
    ),
    'FreedMemoryError': Lesson(
        'The block reads an array that no variable held when it began and that is gone at its end, so that its memory '
        "may be somebody else's by the time of a launch.",
        """\
from collections import deque

loaded = deque([x * 2])
with ck.capture() as cap:
    y = loaded.popleft() + 1
""",
        """\
from collections import deque

loaded = deque([x * 2])
first = loaded.popleft()
with ck.capture() as cap:
    y = first + 1
cap.graph.launch()
assert cp.allclose(y, x * 2 + 1)
""",
        seen=('https://github.com/cupy/cupy/issues/9655', 'https://github.com/cupy/cupy/issues/8318'),
        unshown='The simulated device does not look into the arguments of kernels, so this is raised on a GPU only.',
    ),
    'ClosedError': Lesson(
        'A graph was launched after `close()`, a capture entered twice, or `cap.graph` asked for in the block.',
        """\
with ck.capture() as cap:
    y = x * 2
    cap.graph.launch()
""",
        """\
with ck.capture() as cap:
    y = x * 2
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
    ),
    'GeneratorError': Lesson(
        'A `yield` or `await` inside the block: other code would run with the capture open. Before Python 3.12 a '
        'generator or coroutine can not open one at all.',
        """\
def steps():
    with ck.capture() as cap:
        y = x * 2
        yield y


next(steps())
""",
        """\
def step():
    with ck.capture() as cap:
        y = x * 2
    return cap, y


def steps():
    cap, y = step()
    while True:
        cap.graph.launch()
        yield y


assert cp.allclose(next(steps()), x * 2)
""",
    ),
    'cudaErrorTimeout': Lesson('It has its number between the codes of captures, and nothing to do with them.'),
    'RaceError': Lesson(
        'With `check_races=True` or `strict=False`: two nodes touch the same bytes, one of them writes, and '
        'no event orders them. `print(graph.races())` lists all of them.',
        """\
side = cp.cuda.Stream(non_blocking=True)
with ck.capture(check_races=True) as cap:
    side.wait_event(cap.stream.record())
    with side:
        y = x * 2
    x += 1
    cap.join(side)
""",
        """\
side = cp.cuda.Stream(non_blocking=True)
with ck.capture(check_races=True) as cap:
    side.wait_event(cap.stream.record())
    with side:
        y = x * 2
    cap.join(side)
    x += 1
cap.graph.launch()
assert cp.allclose(y, (x - 1) * 2)
""",
    ),
    'UpdateError': Lesson(
        '`graph.update(other)` where `other` has other nodes or edges, or recorded them in another order; a change of '
        'one node that CUDA does not make in an executable graph.',
        """\
with ck.capture() as cap:
    y = x * 2
with ck.capture() as other:
    z = x * 2 + 1
cap.graph.update(other.graph)
""",
        """\
with ck.capture() as cap:
    y = x * 2
graph = cap.graph
for n in range(3):  # updated in place where CUDA does, else instantiated anew
    with ck.capture(update=graph) as cap:
        y = x * n if n < 2 else x * n + 1
    graph.launch()
assert cp.allclose(y, x * 2 + 1) and cap.update.how == 'instantiated'
""",
    ),
}
LESSONS.update({
    'adapted': Lesson(
        '`ck.capture(strict=False)` and `@ck.graphed`: synchronising a lane becomes a join, a stream that was never '
        'forked is forked, a lane left open is joined at the end. `cap.recording.adaptations` has their lines.',
        _FORK
        + """\
    side.synchronize()
    z = y + 1
""",
        """\
side = cp.cuda.Stream(non_blocking=True)
with ck.capture(strict=False) as cap:
    with side:
        y = x * 2
    side.synchronize()
    z = y + 1
assert len(cap.recording.adaptations) == 2
cap.graph.launch()
assert cp.allclose(z, x * 2 + 1)
""",
        raises='SynchronizationError',
    ),
    'constant': Lesson(
        '`cp.array([1, 2])`, `cp.asarray(numpy_array)`, `a[[0, 2]]` in the block. `cap.recording.constants` and '
        '`graph.constants()` list them, `graph.verify()` finds those that should not be constant.',
        """\
scale = [1.0]
with ck.capture() as cap:
    y = x * cp.array(scale)
scale[0] = 3.0
cap.graph.launch()
assert cp.allclose(y, x * 3)  # it is x * 1
""",
        """\
scale = cp.array([1.0])
with ck.capture() as cap:
    y = x * scale
scale[0] = 3.0
cap.graph.launch()
assert cp.allclose(y, x * 3)
""",
        raises='AssertionError',
    ),
    'cut': Lesson(
        'A host read that a rehearsal answers, or a call that is made between two graphs. All lanes are joined there; '
        'several cuts are worth it, many are not.',
        right="""\
def total(a):
    s = a.sum()
    return a / s if float(s) > 0 else a


with ck.capture(rehearsal=ck.rehearse(total, x)) as cap:
    y = total(x)
cap.graph.launch()
assert [step.kind for step in cap.recording.steps].count('cut') == 1
""",
        unshown='Nothing goes wrong by a cut: it is what a read costs.',
    ),
    'decision': Lesson(
        '`cap.while_`, `cap.if_`, `cap.if_else`, `cap.switch`. What a pass of a loop hands to the next is written in '
        'place: a name that is bound to another array means that one only while recording.',
        """\
left = cp.full((), 3)
with ck.capture() as cap, cap.while_(left):
    left -= 1
    print(left)
""",
        """\
left = cp.full((), 3)
with ck.capture() as cap, cap.while_(left) as loop:
    left -= 1
cap.graph.launch()
assert int(loop.passes) == 3
""",
        raises='HostReadError',
    ),
    'drawn': Lesson(
        '`cp.random.rand`, `cp.random.normal` and all of `cp.random` but `Generator`, which draws on the device. Seeds '
        'and state behave as in eager code; numbers that are to stay the same are drawn before the block.',
        """\
with ck.capture() as cap:
    noise = cp.random.rand(4)
cap.graph.launch()
first = noise.copy()
cap.graph.launch()
assert cp.allclose(noise, first)  # every launch draws new ones
""",
        """\
noise = cp.random.rand(4)
with ck.capture() as cap:
    y = x + noise
cap.graph.launch()
assert cp.allclose(y, x + noise)
""",
        raises='AssertionError',
    ),
    'embedded': Lesson(
        '`cap.embed(graph)`: its nodes are copied as they are then, what they use is kept. The same graph on two lanes '
        'that may run at once would write its memory twice.',
        """\
with ck.capture() as one:
    y = x * 2
with ck.capture() as cap, cap.fork(2) as (left, right):
    with left:
        cap.embed(one.graph)
    with right:
        cap.embed(one.graph)
""",
        """\
with ck.capture() as one:
    y = x * 2
with ck.capture() as cap:
    cap.embed(one.graph)
    z = y + 1
cap.graph.launch()
assert cp.allclose(z, x * 2 + 1)
""",
        raises='UnsupportedCallError',
    ),
    'outside-handle': Lesson(
        'The `stream=` argument of a kernel, or `stream.ptr` given to another library, of a stream that was not forked '
        'from the capture. A capture notes it in `cap.recording.notes`, for nobody can see what it is used for.',
        right=_FORK
        + """\
    cap.join(side)
cap.graph.launch()
assert cp.allclose(y, x * 2)
""",
        unshown='Nothing is raised: the work just runs once, and is missing from the graph.',
    ),
    'seam': Lesson(
        '`cp.linalg.svd`, `eigh`, `lstsq`, `pinv`, products of two sparse matrices: their libraries wait for the '
        'stream inside. `variant.seams` of a `@ck.graphed` function shows the line of each, and what it costs.',
        """\
with ck.capture() as cap:
    values = cp.linalg.eigvalsh(cp.diag(x))
""",
        """\
@ck.graphed
def doubled(x):
    return cp.linalg.eigvalsh(cp.diag(x * 2)) + 1


for _ in range(4):
    y = doubled(x)
    assert cp.allclose(y, x * 2 + 1)
assert len(doubled.variants[0].seams) == 1 and doubled.variants[0].launches
""",
        raises='UnsupportedCallError',
    ),
})  # fmt: skip
LESSONS['assumed'] = replace(LESSONS['AssumptionError'], raises='AssumptionError')
LESSONS['cudaErrorGraphExecUpdateFailure'] = LESSONS['UpdateError']
LESSONS['cudaErrorIllegalState'] = LESSONS['already-capturing']
