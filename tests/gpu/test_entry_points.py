"""Every guarded entry point, called inside an open capture on the GPU.

One table, ``CASES``. Each row is a call made in the middle of a strict capture that has a forked lane ``side`` and a
world around it (an outside stream, events recorded outside, a graph of CuPy's own ...). A row is either refused, with
its own exception, or allowed. Whichever it is: afterwards the driver itself says that the origin is still Active, the
block goes on, and the graph that it makes gives the right numbers when it is launched.

``CAPTUREKIT_TABLE=path`` writes what happened as a table.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard import GUARD
from capturekit.guard.entry_points import ENTRIES, SEAMS, Entry, resolve
from tests.gpu.world import in_process, in_thread, status, world

cp = pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu

curand: Any = None
with suppress(ImportError):
    from cupy_backends.cuda.libs import curand
svd_of_before = cp.linalg.svd

N = 1024
BYTES = 64
#: How many random numbers are drawn at a time: an even number, as cuRAND wants it, and BYTES are enough for them.
COUNT = 8
MODES = ('thread_local', 'global')


class Around:
    """What lies around the captures: made once, outside of any."""

    def __init__(self) -> None:
        self.x = cp.arange(N, dtype='f8')
        self.w = cp.ones(N)
        self.scratch = cp.zeros(N)
        for warm in (self.x + 1, self.x * 2, self.w - 1, self.x.sum(), self.x > 3, self.x[cp.array([1, 2])]):
            del warm
        self.scratch[cp.array([1])] = 0
        self.scratch.fill(0)
        self.side = cp.cuda.Stream(non_blocking=True)
        self.outside = cp.cuda.Stream(non_blocking=True)
        self.other = cp.cuda.Stream(non_blocking=True)
        self.before = self.outside.record()
        self.before2 = self.outside.record()
        self.never = cp.cuda.Event()
        self.spare = cp.cuda.Event()
        self.cupy_graph = self._graph()
        self.host = np.zeros(N)
        self.pinned = cp.cuda.alloc_pinned_memory(4096)
        self.async_pool: Any = None
        with suppress(RuntimeError):
            self.async_pool = cp.cuda.MemoryAsyncPool()
        self.managed = cp.cuda.malloc_managed(4096)
        self.foreign_ptr = cp.cuda.runtime.mallocAsync(4096, self.outside.ptr)
        self.matrix = cp.arange(16, dtype='f8').reshape(4, 4) + cp.eye(4) * 20
        self._sources()
        cp.cuda.Device().synchronize()

    def _sources(self) -> None:
        """What random numbers come from: for the captures, and a twin of each for eager calls."""
        self.state: Any = None
        self.twin: Any = None
        self.quasi = self.quasi_twin = 0
        if curand is not None:
            self.state, self.twin = (cp.random.RandomState(7) for _ in range(2))
            self.quasi, self.quasi_twin = (curand.createGenerator(curand.CURAND_RNG_QUASI_SOBOL64) for _ in range(2))
        self.bits, self.bits_twin = (cp.random.Philox4x3210(7, size=256) for _ in range(2))
        self.generator, self.generator_twin = cp.random.Generator(self.bits), cp.random.Generator(self.bits_twin)
        self.generator_twin.random(COUNT)

    def _graph(self) -> Any:
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            self.scratch.fill(0)
            return stream.end_capture()


class Scene:
    """One open capture: ``a`` on the origin, ``b`` on the lane ``side``, ``e`` the event that forked it."""

    def __init__(self, around: Around, cap: Any) -> None:
        self.__dict__.update(around.__dict__)
        self.cap = cap
        self.origin = cap.stream
        self.a = self.x + 1
        self.e = self.origin.record()
        self.side.wait_event(self.e)
        with self.side:
            self.b = self.a * 2
        self.seen: list[Any] = []
        self.kept: list[Any] = []


Call = Callable[[Scene], Any]
Check = Callable[[Scene], bool]


@dataclass(frozen=True)
class Case:
    """A row: ``expect`` is the exception, or None; ``check``: what else must hold after ``launches`` launches.

    ``needs``: an optional module without which the call can't be made.
    """

    entry: str
    call: str
    run: Call
    expect: type[BaseException] | None
    mode: str = 'relaxed'
    check: Check | None = None
    launches: int = 2
    needs: str = ''

    def __str__(self) -> str:
        return f'{self.entry}-{self.call}' + ('' if self.mode == 'relaxed' else f'-{self.mode}')


CASES: list[Case] = []


def row(
    entry: str, call: str, run: Call, expect: type[BaseException] | None = None, *, mode: str = 'relaxed',
    check: Check | None = None, launches: int = 2, needs: str = '',
) -> None:  # fmt: skip
    CASES.append(Case(entry, call, run, expect, mode, check, launches, needs))


rt = cp.cuda.runtime
sync, read, legacy = ck.SynchronizationError, ck.HostReadError, ck.LegacyStreamError
escaped, unsupported, unmatched = ck.EscapedWorkError, ck.UnsupportedCallError, ck.UnmatchedError
null, ptds = cp.cuda.Stream.null, cp.cuda.Stream.ptds


def external(stream: Any) -> Any:
    """A second object for the same stream, as other libraries hand them over."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)
        return cp.cuda.ExternalStream(stream.ptr)


class OfOtherLibrary:
    """An array of another library: memory of ``array``, and a stream that its work is on."""

    def __init__(self, array: Any, stream: int | None) -> None:
        self.owner = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, 'stream': stream, 'version': 3}


# -- streams --------------------------------------------------------------------------------------------------

S = 'cupy.cuda.stream._BaseStream'

row(f'{S}.synchronize', 'origin', lambda s: s.origin.synchronize(), sync)
row(f'{S}.synchronize', 'lane', lambda s: s.side.synchronize(), sync)
row(f'{S}.synchronize', 'ExternalStream of lane', lambda s: external(s.side).synchronize(), sync)
row(f'{S}.synchronize', 'ExternalStream of origin', lambda s: external(s.origin).synchronize(), sync)
row(f'{S}.synchronize', 'from_external of lane', lambda s: cp.cuda.Stream.from_external(s.side).synchronize(), sync)
row(f'{S}.synchronize', 'lane, from another thread', lambda s: in_thread(s.side.synchronize), sync)
row(f'{S}.synchronize', 'Stream.null', lambda s: null.synchronize(), legacy)
row(f'{S}.synchronize', 'outside', lambda s: s.outside.synchronize())
row(f'{S}.synchronize', 'ExternalStream of outside', lambda s: external(s.outside).synchronize())
row(f'{S}.synchronize', 'Stream.ptds', lambda s: ptds.synchronize())
row(f'{S}.done', 'origin', lambda s: s.origin.done, sync)
row(f'{S}.done', 'lane', lambda s: s.side.done, sync)
row(f'{S}.done', 'ExternalStream of lane', lambda s: external(s.side).done, sync)
row(f'{S}.done', 'Stream.null', lambda s: null.done, legacy)
row(f'{S}.done', 'outside', lambda s: s.outside.done)
row(f'{S}.done', 'Stream.ptds', lambda s: ptds.done)
row(f'{S}.record', 'lane', lambda s: s.side.record())
row(f'{S}.record', 'lane, event of before', lambda s: s.side.record(cp.cuda.Event()))
row(f'{S}.record', 'ExternalStream of lane', lambda s: external(s.side).record())
row(f'{S}.record', 'outside', lambda s: s.outside.record())
row(f'{S}.record', 'outside, captured event', lambda s: s.outside.record(s.origin.record()))
row(f'{S}.record', 'Stream.null', lambda s: null.record())
row(f'{S}.wait_event', 'origin, event recorded outside', lambda s: s.origin.wait_event(s.before), ck.IsolationError)
row(f'{S}.wait_event', 'lane, event recorded outside', lambda s: s.side.wait_event(s.before), ck.IsolationError)
row(f'{S}.wait_event', 'Stream.null, captured event', lambda s: null.wait_event(s.e), legacy)
row(f'{S}.wait_event', 'Stream.null, event recorded outside', lambda s: null.wait_event(s.before))
row(f'{S}.wait_event', 'origin, never recorded', lambda s: s.origin.wait_event(s.never))
row(f'{S}.wait_event', 'origin, event of lane (join)', lambda s: s.origin.wait_event(s.side.record()))
row(f'{S}.wait_event', 'outside, captured event (fork)', lambda s: s.outside.wait_event(s.e))
row(f'{S}.wait_event', 'ExternalStream of outside (fork)', lambda s: external(s.outside).wait_event(s.e))
row(f'{S}.wait_event', 'Stream.ptds, captured event (fork)', lambda s: ptds.wait_event(s.e))
row(f'{S}.wait_event', 'outside, event recorded outside', lambda s: s.outside.wait_event(s.before))


def merge(s: Scene, who: Callable[[Any], Any]) -> None:
    """Wait on a lane of this capture for an event of a second one; both stay Active."""
    s.other.begin_capture()
    try:
        foreign = s.other.record()
        who(s).wait_event(foreign)
    finally:
        assert status(s.other) == 'Active'
        assert status(s.origin) == 'Active'
        s.kept.append(s.other.end_capture())


def merge_across_threads(s: Scene) -> None:
    """The same with a second `ck.capture()` that is open in another thread, which afterwards makes its graph."""
    recorded, go_on = threading.Event(), threading.Event()

    def second() -> None:
        with cp.cuda.Stream(non_blocking=True) as stream, ck.capture(stream) as cap:
            s.kept.append(s.w + 41)
            s.seen.append(cap.stream.record())
            recorded.set()
            assert go_on.wait(30)
            s.seen.append(status(cap.stream))
        cap.graph.launch(s.other)
        s.other.synchronize()
        s.seen.append(cap)

    thread = threading.Thread(target=second)
    thread.start()
    try:
        assert recorded.wait(30)
        s.origin.wait_event(s.seen[0])
    finally:
        go_on.set()
        thread.join(30)
        assert s.seen[1] == 'Active'
        assert not thread.is_alive()


row(f'{S}.wait_event', 'origin, event of another capture', lambda s: merge(s, lambda s: s.origin), ck.MergeError)
row(f'{S}.wait_event', 'lane, event of another capture', lambda s: merge(s, lambda s: s.side), ck.MergeError)
row(
    f'{S}.wait_event', 'origin, event of a capture in another thread', merge_across_threads, ck.MergeError,
    check=lambda s: bool((s.kept[0].get(stream=s.other) == 42).all()),
)  # fmt: skip


def use(s: Scene, stream: Any, work: bool = False) -> None:
    try:
        stream.use()
        if work:
            s.w.__imul__(2)
        s.origin.use()
    finally:
        s.origin.use()


def enter(s: Scene, stream: Any, work: str = '') -> None:
    with stream:
        if work == 'in place':
            s.w.__imul__(2)
        elif work == 'empty':
            s.kept.append(cp.empty(N))
        elif work:
            s.kept.append(s.x * 2)


row(f'{S}.use', 'lane', lambda s: use(s, s.side))
row(f'{S}.use', 'outside, no work', lambda s: use(s, s.outside))
row(f'{S}.use', 'outside, work in place', lambda s: use(s, s.outside, work=True), escaped)
row(f'{S}.use', 'Stream.ptds, work in place', lambda s: use(s, ptds, work=True), escaped)
row(f'{S}.use', 'Stream.null', lambda s: use(s, null), legacy)
row(f'{S}.__enter__', 'lane', lambda s: enter(s, s.side))
row(f'{S}.__enter__', 'ExternalStream of lane', lambda s: enter(s, external(s.side)))
row(f'{S}.__enter__', 'outside, work that allocates', lambda s: enter(s, s.outside, 'new'), escaped)
row(f'{S}.__enter__', 'ExternalStream of outside, work', lambda s: enter(s, external(s.outside), 'new'), escaped)
row(f'{S}.__enter__', 'Stream.ptds, work that allocates', lambda s: enter(s, ptds, 'new'), escaped)
row(f'{S}.__enter__', 'Stream.null', lambda s: enter(s, null), legacy)
row(f'{S}.__exit__', 'outside, no work', lambda s: enter(s, s.outside))
row(f'{S}.__exit__', 'outside, cp.empty, which is no work', lambda s: enter(s, s.outside, 'empty'))
row(f'{S}.__exit__', 'outside, work in place', lambda s: enter(s, s.outside, 'in place'), escaped)


def by_hand(s: Scene) -> None:
    s.outside.begin_capture()
    s.kept.append(s.outside.end_capture())


def end_in_wrong_thread(s: Scene) -> None:
    """A capture begun by hand is ended by a thread that did not begin it; then by the one that did."""
    s.outside.begin_capture(rt.streamCaptureModeThreadLocal)
    try:
        in_thread(s.outside.end_capture)
    finally:
        assert status(s.outside) == 'Active'
        s.kept.append(s.outside.end_capture())


row(f'{S}.begin_capture', 'origin again', lambda s: s.origin.begin_capture(), unmatched)
row(f'{S}.begin_capture', 'lane', lambda s: s.side.begin_capture(), unmatched)
row(f'{S}.begin_capture', 'ck.capture() on the origin', lambda s: ck.capture(s.origin).__enter__(), unmatched)
row(f'{S}.begin_capture', 'ck.capture() on a lane', lambda s: ck.capture(s.side).__enter__(), unmatched)
row(f'{S}.begin_capture', 'Stream.null', lambda s: null.begin_capture(), legacy)
row(f'{S}.begin_capture', 'outside', by_hand)
row(f'{S}.end_capture', 'origin', lambda s: s.origin.end_capture(), unmatched)
row(f'{S}.end_capture', 'lane', lambda s: s.side.end_capture(), unmatched)
row(f'{S}.end_capture', 'ExternalStream of lane', lambda s: external(s.side).end_capture(), unmatched)
row(f'{S}.end_capture', 'outside', lambda s: s.outside.end_capture(), unmatched)
row(f'{S}.end_capture', 'outside, begun by hand', by_hand)
row(f'{S}.end_capture', 'Stream.null', lambda s: null.end_capture(), legacy)
row(f'{S}.end_capture', 'origin, from another thread', lambda s: in_thread(s.origin.end_capture), unmatched)
row(f'{S}.end_capture', 'capture by hand, from another thread', end_in_wrong_thread, ck.WrongThreadError)
row(
    f'{S}.end_capture', 'leaving the block in another thread',
    lambda s: in_thread(lambda: s.cap.__exit__(None, None, None)), ck.WrongThreadError,
)  # fmt: skip


def equal(got: Any, want: Any) -> Any:
    assert got == want, (got, want)
    return got


row(f'{S}.is_capturing', 'origin', lambda s: equal(s.origin.is_capturing(), True))
row(f'{S}.is_capturing', 'lane', lambda s: equal(s.side.is_capturing(), True))
row(f'{S}.is_capturing', 'outside', lambda s: equal(s.outside.is_capturing(), False))
row(f'{S}.is_capturing', 'Stream.null', lambda s: equal(null.is_capturing(), False))
row(f'{S}.is_non_blocking', 'origin', lambda s: equal(s.origin.is_non_blocking, True))
row(f'{S}.is_non_blocking', 'lane', lambda s: equal(s.side.is_non_blocking, True))
row(f'{S}.is_non_blocking', 'outside', lambda s: equal(s.outside.is_non_blocking, True))
row(f'{S}.is_non_blocking', 'Stream.null', lambda s: equal(null.is_non_blocking, False))
row(f'{S}.priority', 'origin', lambda s: equal(s.origin.priority, 0))
row(f'{S}.priority', 'lane', lambda s: equal(s.side.priority, 0))
row(f'{S}.priority', 'outside', lambda s: equal(s.outside.priority, 0))
row(f'{S}.priority', 'Stream.null', lambda s: equal(null.priority, 0))
row(f'{S}.add_callback', 'origin', lambda s: s.origin.add_callback(lambda *a: None, 1), unsupported)
row(f'{S}.add_callback', 'lane', lambda s: s.side.add_callback(lambda *a: None, 1), unsupported)
row(f'{S}.add_callback', 'outside', lambda s: s.outside.add_callback(s.seen.append, 1), escaped)
row(f'{S}.add_callback', 'Stream.null', lambda s: null.add_callback(lambda *a: None, 1), legacy)
row(
    f'{S}.launch_host_func', 'origin', lambda s: s.origin.launch_host_func(s.seen.append, 5),
    check=lambda s: s.seen == [5, 5],
)  # fmt: skip
row(
    f'{S}.launch_host_func', 'lane', lambda s: s.side.launch_host_func(s.seen.append, 5),
    check=lambda s: s.seen == [5, 5],
)  # fmt: skip
row(f'{S}.launch_host_func', 'outside', lambda s: s.outside.launch_host_func(s.seen.append, 5), escaped)
row(f'{S}.launch_host_func', 'Stream.null', lambda s: null.launch_host_func(s.seen.append, 5), legacy)


def library_work(s: Scene, ptr: int) -> None:
    """Work of a library that is given a handle and calls CUDA itself."""
    from cuda.bindings import runtime as bindings

    assert int(bindings.cudaMemsetAsync(s.scratch.data.ptr, 0, BYTES, ptr)[0]) == 0


def noted(text: str) -> Check:
    return lambda s: any(text in step.text for step in s.cap.recording.notes)


row(f'{S}.ptr', 'origin', lambda s: library_work(s, s.origin.ptr))
row(f'{S}.ptr', 'lane', lambda s: library_work(s, s.side.ptr))
row(f'{S}.ptr', 'outside, which is noted', lambda s: library_work(s, s.outside.ptr), check=noted('handle'))
row(f'{S}.ptr', 'Stream.null, which is noted', lambda s: library_work(s, null.ptr), check=noted('handle'))


def dropped(s: Scene, forked: bool) -> None:
    """A stream that Python forgets in the block, destroyed with its object; one that is a lane must be kept."""
    stream = cp.cuda.Stream(non_blocking=True)
    if forked:
        stream.wait_event(s.e)
        s.origin.wait_event(stream.record())
    del stream


row('cupy.cuda.stream.Stream.__del__', 'a stream of the block', lambda s: dropped(s, forked=False))
row('cupy.cuda.stream.Stream.__del__', 'a lane', lambda s: dropped(s, forked=True))

# -- events ---------------------------------------------------------------------------------------------------

E = 'cupy.cuda.stream.Event'
row(f'{E}.__init__', 'new event', lambda s: cp.cuda.Event())
row(f'{E}.__init__', 'new event, used to join', lambda s: s.origin.wait_event(s.side.record(cp.cuda.Event())))
row(f'{E}.__init__', 'without timing', lambda s: s.side.record(cp.cuda.Event(disable_timing=True)))
row(f'{E}.record', 'current stream', lambda s: cp.cuda.Event().record())
row(f'{E}.record', 'lane', lambda s: cp.cuda.Event().record(s.side))
row(f'{E}.record', 'outside', lambda s: cp.cuda.Event().record(s.outside))
row(f'{E}.synchronize', 'captured', lambda s: s.e.synchronize(), sync)
row(f'{E}.synchronize', 'captured, from another thread', lambda s: in_thread(s.e.synchronize), sync)
row(f'{E}.synchronize', 'recorded outside', lambda s: s.before.synchronize())
row(f'{E}.synchronize', 'never recorded', lambda s: s.never.synchronize())
row(f'{E}.done', 'captured', lambda s: s.e.done, sync)
row(f'{E}.done', 'recorded outside', lambda s: equal(s.before.done, True))
for holder in ('cupy.cuda', 'cupy.cuda.stream'):
    timed = cp.cuda if holder == 'cupy.cuda' else cp.cuda.stream
    elapsed = f'{holder}.get_elapsed_time'
    row(elapsed, 'both captured', lambda s, of=timed: of.get_elapsed_time(s.e, s.e), sync)
    row(elapsed, 'one captured', lambda s, of=timed: of.get_elapsed_time(s.before, s.e), sync)
    row(elapsed, 'both outside', lambda s, of=timed: of.get_elapsed_time(s.before, s.before2))

# -- the device, values, exchange -----------------------------------------------------------------------------

row('cupy.cuda.device.Device.synchronize', 'this device', lambda s: cp.cuda.Device().synchronize(), sync)


def on_this_device(s: Scene) -> None:
    with cp.cuda.Device(0):
        s.kept.append(s.a + 3)


for name in ('__enter__', '__exit__'):
    row(f'cupy.cuda.device.Device.{name}', 'this device', on_this_device)
row('cupy.cuda.device.Device.use', 'this device', lambda s: cp.cuda.Device(0).use())
row('cupy.copyto', 'to this device', lambda s: cp.copyto(s.scratch, s.a))
row(
    'cupy._core.syncdetect._declare_synchronize', 'as CuPy calls it',
    lambda s: cp._core.syncdetect._declare_synchronize(), sync,
)  # fmt: skip

A = 'cupy.ndarray'
row(f'{A}.get', 'captured array', lambda s: s.a.get(), read)
row(f'{A}.get', 'captured array, on outside', lambda s: s.a.get(stream=s.outside), read)
row(f'{A}.get', 'array of before', lambda s: s.x.get(), read)
row(f'{A}.get', 'array of before, on outside', lambda s: equal(float(s.x.get(stream=s.outside)[3]), 3.0))
row(f'{A}.get', 'cp.asnumpy', lambda s: cp.asnumpy(s.a), read)
row(f'{A}.get', 'float()', lambda s: float(s.a.sum()), read)
row(f'{A}.get', 'bool()', lambda s: bool((s.a > 3).any()), read)
row(f'{A}.get', 'item()', lambda s: s.a[0].item(), read)
row(f'{A}.get', 'tolist()', lambda s: s.a.tolist(), read)
row(f'{A}.get', 'str()', lambda s: str(s.a), read)
row(f'{A}.get', 'empty array', lambda s: cp.empty(0).get())
row(f'{A}.set', 'captured array', lambda s: s.a.set(s.host), unsupported)
row(f'{A}.set', 'array of before', lambda s: s.x.set(s.host), unsupported)
row(f'{A}.set', 'array of before, on outside', lambda s: s.x.set(s.host, s.outside), unsupported)


def keep(s: Scene, value: Any) -> None:
    s.kept.append(value)


def kept_equals(*want: float) -> Check:
    return lambda s: bool(np.array_equal(s.kept[0].get(), np.array(want)))


row(f'{A}.__getitem__', 'slice', lambda s: keep(s, s.a[1:3] + 0), check=kept_equals(2, 3))
row(f'{A}.__getitem__', 'list', lambda s: keep(s, s.a[[1, 5]]), check=kept_equals(2, 6))
row(f'{A}.__getitem__', 'NumPy array', lambda s: keep(s, s.a[np.array([2, 0])]), check=kept_equals(3, 1))
row(f'{A}.__getitem__', 'boolean mask', lambda s: s.a[s.a > 3], read)
row(
    f'{A}.__setitem__', 'list', lambda s: s.scratch.__setitem__([1, 3], 7.0),
    check=lambda s: s.scratch[:4].tolist() == [0, 7, 0, 7],
)  # fmt: skip
row(f'{A}.__dlpack__', 'no stream', lambda s: s.a.__dlpack__(), legacy)
row(f'{A}.__dlpack__', 'legacy stream (1)', lambda s: s.a.__dlpack__(stream=1), legacy)
row(f'{A}.__dlpack__', 'origin', lambda s: s.a.__dlpack__(stream=s.origin.ptr))
row(f'{A}.__dlpack__', 'lane', lambda s: s.a.__dlpack__(stream=s.side.ptr))
row(f'{A}.__dlpack__', 'no order (-1)', lambda s: s.a.__dlpack__(stream=-1))
row(f'{A}.__dlpack__', 'outside, which is forked', lambda s: s.a.__dlpack__(stream=s.outside.ptr))
row(f'{A}.__dlpack__', 'to the CPU', lambda s: s.a.__dlpack__(dl_device=(1, 0)), read)
row(f'{A}.__dlpack__', 'array of before, to the CPU', lambda s: s.x.__dlpack__(dl_device=(1, 0)), read)
row(f'{A}.__dlpack__', 'cp.from_dlpack', lambda s: keep(s, cp.from_dlpack(s.a)[:2] * 1), check=kept_equals(1, 2))

C = 'cupy._core.array'
row(C, 'list', lambda s: keep(s, cp.array([1.0, 2.0]) * 3), check=kept_equals(3, 6))
row(C, 'NumPy array', lambda s: keep(s, cp.asarray(np.array([4.0, 5.0])) * 3), check=kept_equals(12, 15))
row(C, 'list of arrays', lambda s: keep(s, cp.array([s.a[0], s.a[1]])), check=kept_equals(1, 2))
for name, on, what in (
    ('interface without a stream', lambda s: None, None),
    ('interface naming the current stream', lambda s: s.origin.ptr, None),
    ('interface naming another lane', lambda s: s.side.ptr, sync),
    ('interface naming an outside stream', lambda s: s.outside.ptr, None),
    ('interface naming the legacy stream', lambda s: 1, None),
):
    row(C, name, lambda s, on=on: keep(s, cp.asarray(OfOtherLibrary(s.x[:2], on(s))) * 2), what)
for entry in ('cupy.cuda.memory.UnownedMemory', 'cupy._util.CUDA_ARRAY_INTERFACE_SYNC'):
    for name, on, what in (
        ('operand without a stream', lambda s: None, None),
        ('operand naming the current stream', lambda s: s.origin.ptr, None),
        ('operand naming another lane', lambda s: s.side.ptr, sync),
        ('operand naming an outside stream', lambda s: s.outside.ptr, None),
    ):
        row(entry, name, lambda s, on=on: keep(s, s.x[:2] + OfOtherLibrary(s.x[:2], on(s))), what)
J = 'cupy._core.concatenate_method'
row(J, 'two arrays', lambda s: keep(s, cp.concatenate([s.a[:1], s.a[2:3]])), check=kept_equals(1, 3))
row(J, 'eight arrays', lambda s: keep(s, cp.stack([s.a[0]] * 8)[:2] * 1), check=kept_equals(1, 1))
row(J, 'nine arrays', lambda s: cp.concatenate([s.a[:1]] * 9), unsupported)
row(J, 'twenty arrays, stacked', lambda s: cp.stack([s.a] * 20), unsupported)

# -- graphs and memory ----------------------------------------------------------------------------------------

G = 'cupy.cuda.graph.Graph'
row(f'{G}.launch', 'current stream', lambda s: s.cupy_graph.launch(), unsupported)
row(f'{G}.launch', 'lane', lambda s: s.cupy_graph.launch(s.side), unsupported)
row(f'{G}.launch', 'outside', lambda s: s.cupy_graph.launch(s.outside), escaped)
row(f'{G}.launch', 'Stream.null', lambda s: s.cupy_graph.launch(null), legacy)
row(f'{G}.upload', 'current stream', lambda s: s.cupy_graph.upload(), unsupported)
row(f'{G}.upload', 'outside', lambda s: s.cupy_graph.upload(s.outside))
row(
    'cupy.cuda.memory.MemoryPool.free_all_blocks',
    "the capture's own",
    lambda s: own_pool().free_all_blocks(),
    unsupported,
)
row(
    'cupy.cuda.memory.MemoryPool.free_all_blocks',
    'default pool',
    lambda s: cp.get_default_memory_pool().free_all_blocks(),
)


def own_pool() -> Any:
    live = GUARD.mine()
    assert live is not None
    assert live.memory is not None
    return live.memory.pool


def trim(s: Scene, stream: Any) -> None:
    if s.async_pool is None:
        pytest.skip('this device has no memory pools of the driver')
    s.async_pool.free_all_blocks(stream)


row('cupy.cuda.memory.MemoryAsyncPool.free_all_blocks', 'current stream', lambda s: trim(s, None), sync)
row('cupy.cuda.memory.MemoryAsyncPool.free_all_blocks', 'outside', lambda s: trim(s, s.outside))
row(
    'cupy.cuda.pinned_memory.PinnedMemoryPool.free_all_blocks', 'default pool',
    lambda s: cp.get_default_pinned_memory_pool().free_all_blocks(),
)  # fmt: skip
for holder in ('cupy.cuda', 'cupy.cuda.pinned_memory'):
    pins = cp.cuda if holder == 'cupy.cuda' else cp.cuda.pinned_memory
    row(f'{holder}.alloc_pinned_memory', '1 MiB', lambda s, of=pins: s.kept.append(of.alloc_pinned_memory(1 << 20)))

P = 'cupy.cuda.memory.MemoryPointer'


def to_pinned(s: Scene) -> int:
    return int(s.pinned.ptr)


#: method -> the call's arguments without the stream
ASYNC: dict[str, Callable[[Scene], tuple[Any, ...]]] = {
    'copy_from_device_async': lambda s: (s.x.data, BYTES),
    'copy_from_host_async': lambda s: (to_pinned(s), BYTES),
    'copy_to_host_async': lambda s: (to_pinned(s), BYTES),
    'copy_from_async': lambda s: (s.x.data, BYTES),
    'memset_async': lambda s: (0, BYTES),
}
SYNC: dict[str, Callable[[Scene], tuple[Any, ...]]] = {
    'copy_from_device': ASYNC['copy_from_device_async'],
    'copy_from_host': ASYNC['copy_from_host_async'],
    'copy_to_host': ASYNC['copy_to_host_async'],
    'copy_from': ASYNC['copy_from_async'],
    'memset': ASYNC['memset_async'],
}


def pointer(method: str, where: Callable[[Scene], Any] | None) -> Call:
    def run(s: Scene) -> None:
        stream = () if where is None else (where(s),)
        getattr(s.scratch.data, method)(*(ASYNC.get(method) or SYNC[method])(s), *stream)

    return run


for method in ASYNC:
    # CuPy itself refuses copies to and from the host on a captured stream, before the driver is asked
    own_words = RuntimeError if 'host' in method else None
    row(f'{P}.{method}', 'current stream', pointer(method, None), own_words)
    row(f'{P}.{method}', 'lane', pointer(method, lambda s: s.side), own_words)
    row(f'{P}.{method}', 'outside', pointer(method, lambda s: s.outside), escaped)
    row(f'{P}.{method}', 'Stream.null', pointer(method, lambda s: null), legacy)
for method in SYNC:
    row(f'{P}.{method}', 'uses the legacy stream', pointer(method, None), legacy)


def other_allocator(s: Scene) -> None:
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        s.kept.append(s.a[:2] * 10)
    s.kept.append(s.a[:2] * 1)


row(
    'cupy.cuda.memory._set_thread_local_allocator', 'using_allocator of another pool', other_allocator,
    check=kept_equals(10, 20),
)  # fmt: skip

# -- cupy.cuda.runtime, with handles --------------------------------------------------------------------------

R = 'cupy.cuda.runtime'
row(f'{R}.streamSynchronize', 'lane', lambda s: rt.streamSynchronize(s.side.ptr), sync)
row(f'{R}.streamSynchronize', 'legacy (0)', lambda s: rt.streamSynchronize(0), legacy)
row(f'{R}.streamSynchronize', 'legacy (1)', lambda s: rt.streamSynchronize(1), legacy)
row(f'{R}.streamSynchronize', 'outside', lambda s: rt.streamSynchronize(s.outside.ptr))
row(f'{R}.streamSynchronize', 'per thread (2)', lambda s: rt.streamSynchronize(2))
row(f'{R}.streamQuery', 'lane', lambda s: rt.streamQuery(s.side.ptr), sync)
row(f'{R}.streamQuery', 'outside', lambda s: rt.streamQuery(s.outside.ptr))
row(
    f'{R}.streamWaitEvent',
    'origin, outside',
    lambda s: rt.streamWaitEvent(s.origin.ptr, s.before.ptr),
    ck.IsolationError,
)
row(f'{R}.streamWaitEvent', 'outside, captured (fork)', lambda s: rt.streamWaitEvent(s.outside.ptr, s.e.ptr))
row(f'{R}.streamWaitEvent', 'origin, outside, external', lambda s: rt.streamWaitEvent(s.origin.ptr, s.before.ptr, 1))
row(f'{R}.streamWaitEvent', 'outside, external', lambda s: rt.streamWaitEvent(s.outside.ptr, s.before.ptr, 1), escaped)
row(f'{R}.streamBeginCapture', 'lane', lambda s: rt.streamBeginCapture(s.side.ptr), unmatched)
row(f'{R}.streamBeginCapture', 'origin', lambda s: rt.streamBeginCapture(s.origin.ptr, 2), unmatched)


def by_handle(s: Scene) -> None:
    rt.streamBeginCapture(s.outside.ptr, rt.streamCaptureModeRelaxed)
    rt.graphDestroy(rt.streamEndCapture(s.outside.ptr))


row(f'{R}.streamBeginCapture', 'outside', by_handle)
row(f'{R}.streamEndCapture', 'outside', by_handle)
row(f'{R}.streamEndCapture', 'lane', lambda s: rt.streamEndCapture(s.side.ptr), unmatched)
row(f'{R}.streamEndCapture', 'origin', lambda s: rt.streamEndCapture(s.origin.ptr), unmatched)
row(f'{R}.streamEndCapture', 'outside, not capturing', lambda s: rt.streamEndCapture(s.outside.ptr), unmatched)
row(f'{R}.streamGetFlags', 'lane', lambda s: equal(rt.streamGetFlags(s.side.ptr), 1))
row(f'{R}.streamGetFlags', 'origin', lambda s: equal(rt.streamGetFlags(s.origin.ptr), 1))
row(f'{R}.streamGetFlags', 'outside', lambda s: equal(rt.streamGetFlags(s.outside.ptr), 1))
row(f'{R}.streamGetPriority', 'lane', lambda s: equal(rt.streamGetPriority(s.side.ptr), 0))
row(f'{R}.streamGetPriority', 'origin', lambda s: equal(rt.streamGetPriority(s.origin.ptr), 0))
row(f'{R}.streamGetPriority', 'outside', lambda s: equal(rt.streamGetPriority(s.outside.ptr), 0))
row(f'{R}.streamGetPriority', 'legacy (0)', lambda s: equal(rt.streamGetPriority(0), 0))
row(f'{R}.streamAddCallback', 'lane', lambda s: rt.streamAddCallback(s.side.ptr, lambda *a: None, 0), unsupported)
row(f'{R}.streamAddCallback', 'outside', lambda s: rt.streamAddCallback(s.outside.ptr, lambda *a: None, 0), escaped)
row(f'{R}.streamDestroy', 'lane', lambda s: rt.streamDestroy(s.side.ptr), unsupported)
row(f'{R}.streamDestroy', 'origin', lambda s: rt.streamDestroy(s.origin.ptr), unsupported)
row(f'{R}.streamDestroy', 'a stream of its own', lambda s: rt.streamDestroy(rt.streamCreateWithFlags(1)))
row(f'{R}.eventRecord', 'lane', lambda s: rt.eventRecord(s.spare.ptr, s.side.ptr))
row(f'{R}.eventRecord', 'outside', lambda s: rt.eventRecord(s.before2.ptr, s.outside.ptr))
row(f'{R}.eventQuery', 'captured', lambda s: rt.eventQuery(s.e.ptr), sync)
row(f'{R}.eventQuery', 'recorded outside', lambda s: rt.eventQuery(s.before.ptr))
row(f'{R}.eventSynchronize', 'captured', lambda s: rt.eventSynchronize(s.e.ptr), sync)
row(f'{R}.eventSynchronize', 'recorded outside', lambda s: rt.eventSynchronize(s.before.ptr))
row(f'{R}.eventElapsedTime', 'captured', lambda s: rt.eventElapsedTime(s.e.ptr, s.e.ptr), sync)
row(f'{R}.eventElapsedTime', 'outside', lambda s: rt.eventElapsedTime(s.before.ptr, s.before.ptr))


def raw_event(s: Scene, make: Callable[[], int]) -> None:
    event = make()
    rt.eventRecord(event, s.side.ptr)
    rt.streamWaitEvent(s.origin.ptr, event)


row(f'{R}.eventCreate', 'used to join', lambda s: raw_event(s, rt.eventCreate))
row(f'{R}.eventCreateWithFlags', 'used to join', lambda s: raw_event(s, lambda: rt.eventCreateWithFlags(2)))
row(f'{R}.deviceSynchronize', 'this device', lambda s: rt.deviceSynchronize(), sync)
row(f'{R}.setDevice', 'this device', lambda s: rt.setDevice(0))
row(f'{R}.graphLaunch', 'origin', lambda s: rt.graphLaunch(s.cupy_graph.graphExec, s.origin.ptr), unsupported)
row(f'{R}.graphLaunch', 'outside', lambda s: rt.graphLaunch(s.cupy_graph.graphExec, s.outside.ptr), escaped)
row(f'{R}.graphLaunch', 'legacy (0)', lambda s: rt.graphLaunch(s.cupy_graph.graphExec, 0), legacy)
row(f'{R}.graphUpload', 'lane', lambda s: rt.graphUpload(s.cupy_graph.graphExec, s.side.ptr), unsupported)
row(f'{R}.graphUpload', 'outside', lambda s: rt.graphUpload(s.cupy_graph.graphExec, s.outside.ptr))


def cuda_array(s: Scene) -> Any:
    """16 x 4 floats as a CUDA array."""
    form = cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, rt.cudaChannelFormatKindFloat)
    s.kept.append(cp.cuda.texture.CUDAarray(form, 16, 4))
    return s.kept[-1].ptr


def copy_3d(s: Scene) -> int:
    """The address of parameters for a copy of 64 x 4 x 1 bytes from ``w`` to ``scratch``."""
    from cuda.bindings import runtime as bindings

    params = bindings.cudaMemcpy3DParms()
    params.srcPtr = bindings.make_cudaPitchedPtr(s.w.data.ptr, BYTES, BYTES, 4)
    params.dstPtr = bindings.make_cudaPitchedPtr(s.scratch.data.ptr, BYTES, BYTES, 4)
    params.extent = bindings.make_cudaExtent(BYTES, 4, 1)
    params.kind = bindings.cudaMemcpyKind.cudaMemcpyDeviceToDevice
    s.seen.append(params)
    return int(params.getPtr())


D2D = 3
#: function -> its arguments without the stream
WORK: dict[str, Callable[[Scene], tuple[Any, ...]]] = {
    'memcpyAsync': lambda s: (s.scratch.data.ptr, s.w.data.ptr, BYTES, D2D),
    'memsetAsync': lambda s: (s.scratch.data.ptr, 0, BYTES),
    'memcpy2DAsync': lambda s: (s.scratch.data.ptr, BYTES, s.w.data.ptr, BYTES, BYTES, 4, D2D),
    'memcpy3DAsync': lambda s: (copy_3d(s),),
    'memcpy2DFromArrayAsync': lambda s: (s.scratch.data.ptr, BYTES, cuda_array(s), 0, 0, BYTES, 4, D2D),
    'memcpy2DToArrayAsync': lambda s: (cuda_array(s), 0, 0, s.w.data.ptr, BYTES, BYTES, 4, D2D),
}
for name, arguments in WORK.items():
    for where, at, what in (
        ('origin', lambda s: s.origin.ptr, None),
        ('lane', lambda s: s.side.ptr, None),
        ('outside', lambda s: s.outside.ptr, escaped),
        ('per thread (2)', lambda s: 2, escaped),
        ('legacy (0)', lambda s: 0, legacy),
    ):
        row(f'{R}.{name}', where, lambda s, f=name, to=arguments, at=at: getattr(rt, f)(*to(s), at(s)), what)

row(f'{R}.launchHostFunc', 'lane', lambda s: rt.launchHostFunc(s.side.ptr, s.seen.append, 5), ck.UnsupportedCallError)
row(f'{R}.launchHostFunc', 'outside', lambda s: rt.launchHostFunc(s.outside.ptr, s.seen.append, 5), escaped)


def peer(s: Scene, to: int) -> None:
    rt.memcpyPeerAsync(s.scratch.data.ptr, 0, s.w.data.ptr, 0, BYTES, to)


row(f'{R}.memcpyPeerAsync', 'lane', lambda s: peer(s, s.side.ptr), unsupported)
row(f'{R}.memcpyPeerAsync', 'outside', lambda s: peer(s, s.outside.ptr), escaped)
row(f'{R}.memPrefetchAsync', 'lane', lambda s: rt.memPrefetchAsync(s.managed.ptr, 4096, 0, s.side.ptr), unsupported)
row(f'{R}.memPrefetchAsync', 'outside', lambda s: rt.memPrefetchAsync(s.managed.ptr, 4096, 0, s.outside.ptr), escaped)

#: functions that use the legacy stream: refused before their arguments are looked at
LEGACY = ('memcpy', 'memset', 'memcpy2D', 'memcpy3D', 'memcpyPeer', 'memcpy2DFromArray', 'memcpy2DToArray')
for name in LEGACY:
    row(f'{R}.{name}', 'uses the legacy stream', lambda s, f=name: getattr(rt, f)(), legacy)


# -- calls that a capture's mode may keep away ------------------------------------------------------------------


def array_form(s: Scene) -> int:
    s.kept.append(cp.cuda.texture.ChannelFormatDescriptor(32, 0, 0, 0, rt.cudaChannelFormatKindFloat))
    return int(s.kept[-1].ptr)


def registered(s: Scene) -> None:
    buffer = ctypes.create_string_buffer(1 << 14)
    address = (ctypes.addressof(buffer) + 4095) // 4096 * 4096
    rt.hostRegister(address, 4096, 0)
    rt.hostUnregister(address)


def own_driver_pool(s: Scene) -> None:
    props = rt.MemPoolProps(rt.cudaMemAllocationTypePinned, rt.cudaMemHandleTypeNone, rt.cudaMemLocationTypeDevice, 0)
    rt.memPoolDestroy(rt.memPoolCreate(props))


def threshold(s: Scene) -> None:
    pool, which = rt.deviceGetMemPool(0), rt.cudaMemPoolAttrReleaseThreshold
    rt.memPoolSetAttribute(pool, which, rt.memPoolGetAttribute(pool, which))


def stack_limit(s: Scene) -> None:
    rt.deviceSetLimit(rt.cudaLimitStackSize, rt.deviceGetLimit(rt.cudaLimitStackSize))


def instantiated(s: Scene) -> None:
    rt.graphExecDestroy(rt.graphInstantiate(s.cupy_graph.graph))


#: function -> a call of it (and of what undoes it) with good arguments
UNSAFE: dict[str, Call] = {
    'malloc': lambda s: rt.free(rt.malloc(4096)),
    'free': lambda s: rt.free(rt.malloc(4096)),
    'mallocManaged': lambda s: rt.free(rt.mallocManaged(4096)),
    'mallocArray': lambda s: rt.freeArray(rt.mallocArray(array_form(s), 16, 16)),
    'malloc3DArray': lambda s: rt.freeArray(rt.malloc3DArray(array_form(s), 16, 16, 4)),
    'freeArray': lambda s: rt.freeArray(rt.mallocArray(array_form(s), 16, 16)),
    'hostAlloc': lambda s: rt.freeHost(rt.hostAlloc(4096, 0)),
    'freeHost': lambda s: rt.freeHost(rt.hostAlloc(4096, 0)),
    'hostRegister': registered,
    'hostUnregister': registered,
    'graphInstantiate': instantiated,
    'graphExecDestroy': instantiated,
    'profilerStart': lambda s: (rt.profilerStart(), rt.profilerStop()),
    'profilerStop': lambda s: rt.profilerStop(),
    'deviceSetLimit': stack_limit,
    'deviceSetMemPool': lambda s: rt.deviceSetMemPool(0, rt.deviceGetMemPool(0)),
    'memPoolTrimTo': lambda s: rt.memPoolTrimTo(rt.deviceGetMemPool(0), 0),
    'memPoolCreate': own_driver_pool,
    'memPoolDestroy': own_driver_pool,
    'memPoolGetAttribute': lambda s: rt.memPoolGetAttribute(
        rt.deviceGetMemPool(0), rt.cudaMemPoolAttrReservedMemCurrent
    ),
    'memPoolSetAttribute': threshold,
    'memAdvise': lambda s: rt.memAdvise(s.managed.ptr, 4096, rt.cudaMemAdviseSetReadMostly, 0),
}
for name, call in UNSAFE.items():
    row(f'{R}.{name}', 'good arguments', call)
    for mode in MODES:
        # no arguments: if it were let through, Python itself would complain
        row(f'{R}.{name}', 'unsafe', lambda s, f=name: getattr(rt, f)(), unsupported, mode=mode)


def async_memory(s: Scene, stream: int) -> None:
    rt.freeAsync(rt.mallocAsync(4096, stream), stream)


def free_elsewhere(s: Scene) -> None:
    """CUDA refuses to free, in a capture, memory that the graph did not allocate; the capture stays good."""
    rt.freeAsync(s.foreign_ptr, s.origin.ptr)


for name in ('mallocAsync', 'freeAsync'):
    row(f'{R}.{name}', 'lane: nodes of the graph', lambda s: async_memory(s, s.side.ptr))
    row(f'{R}.{name}', 'outside', lambda s: async_memory(s, s.outside.ptr))
row(f'{R}.freeAsync', 'origin, memory of before', free_elsewhere, RuntimeError)


def pool_memory(s: Scene, stream: int) -> None:
    rt.freeAsync(rt.mallocFromPoolAsync(4096, rt.deviceGetDefaultMemPool(0), stream), stream)


row(f'{R}.mallocFromPoolAsync', 'lane: nodes of the graph', lambda s: pool_memory(s, s.side.ptr))
row(f'{R}.mallocFromPoolAsync', 'outside', lambda s: pool_memory(s, s.outside.ptr))

#: (entry, call, what to do, what the modes answer): waiting, asking and allocating beside the capture
KEPT_AWAY: tuple[tuple[str, str, Call, type[BaseException]], ...] = (
    (f'{S}.synchronize', 'outside', lambda s: s.outside.synchronize(), sync),
    (f'{S}.synchronize', 'Stream.ptds', lambda s: ptds.synchronize(), sync),
    (f'{S}.done', 'outside', lambda s: s.outside.done, sync),
    (f'{E}.synchronize', 'recorded outside', lambda s: s.before.synchronize(), sync),
    (f'{E}.done', 'recorded outside', lambda s: s.before.done, sync),
    (f'{R}.streamSynchronize', 'outside', lambda s: rt.streamSynchronize(s.outside.ptr), sync),
    (f'{R}.streamQuery', 'outside', lambda s: rt.streamQuery(s.outside.ptr), sync),
    (f'{R}.eventSynchronize', 'recorded outside', lambda s: rt.eventSynchronize(s.before.ptr), sync),
    (f'{R}.eventQuery', 'recorded outside', lambda s: rt.eventQuery(s.before.ptr), sync),
    (f'{A}.get', 'array of before, on outside', lambda s: s.x.get(stream=s.outside), sync),
    (C, 'interface naming an outside stream', lambda s: cp.asarray(OfOtherLibrary(s.x, s.outside.ptr)), sync),
    ('cupy.cuda.alloc_pinned_memory', '1 MiB', lambda s: cp.cuda.alloc_pinned_memory(1 << 20), unsupported),
    (
        'cupy.cuda.pinned_memory.alloc_pinned_memory', '1 MiB',
        lambda s: cp.cuda.pinned_memory.alloc_pinned_memory(1 << 20), unsupported,
    ),
    (
        'cupy.cuda.memory.MemoryPool.free_all_blocks', 'default pool',
        lambda s: cp.get_default_memory_pool().free_all_blocks(), unsupported,
    ),
    (
        'cupy.cuda.memory.MemoryAsyncPool.free_all_blocks', 'outside', lambda s: trim(s, s.outside), unsupported,
    ),
    (
        'cupy.cuda.pinned_memory.PinnedMemoryPool.free_all_blocks', 'default pool',
        lambda s: cp.get_default_pinned_memory_pool().free_all_blocks(), unsupported,
    ),
    (f'{R}.mallocAsync', 'outside', lambda s: rt.mallocAsync(4096, s.outside.ptr), unsupported),
    (f'{R}.mallocFromPoolAsync', 'outside', lambda s: pool_memory(s, s.outside.ptr), unsupported),
    (f'{R}.freeAsync', 'outside', lambda s: rt.freeAsync(s.foreign_ptr, s.outside.ptr), unsupported),
    (f'{S}.synchronize', 'lane', lambda s: s.side.synchronize(), sync),
    ('cupy.cuda.device.Device.synchronize', 'this device', lambda s: cp.cuda.Device().synchronize(), sync),
    (f'{S}.record', 'lane', lambda s: s.side.record(), None),
    (f'{R}.memsetAsync', 'lane', lambda s: rt.memsetAsync(s.scratch.data.ptr, 0, BYTES, s.side.ptr), None),
    (C, 'list', lambda s: keep(s, cp.array([1.0, 2.0]) * 3), None),
)  # fmt: skip
for entry, name, call, what in KEPT_AWAY:
    for mode in MODES:
        row(entry, name, call, what, mode=mode)


# -- random numbers ---------------------------------------------------------------------------------------------

CR = 'cupy_backends.cuda.libs.curand'
#: function -> what it is given after the generator, the address and the count
DRAWS: dict[str, tuple[float, ...]] = {
    'generate': (),
    'generateLongLong': (),
    'generateUniform': (),
    'generateUniformDouble': (),
    'generateNormal': (1.0, 2.0),
    'generateNormalDouble': (1.0, 2.0),
    'generateLogNormal': (0.0, 0.5),
    'generateLogNormalDouble': (0.0, 0.5),
    'generatePoisson': (4.0,),
}
#: (function, call, a method of ``RandomState`` that draws by it)
METHODS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ('generate', 'tomaxint()', lambda state: state.tomaxint(COUNT)),
    ('generateUniform', 'random_sample(), float32', lambda state: state.random_sample(COUNT, 'f')),
    ('generateUniformDouble', 'random_sample()', lambda state: state.random_sample(COUNT)),
    ('generateNormal', 'normal(), float32', lambda state: state.normal(1.0, 2.0, COUNT, 'f')),
    ('generateNormalDouble', 'normal()', lambda state: state.normal(1.0, 2.0, COUNT)),
    ('generateNormalDouble', 'normal(), an odd count', lambda state: state.normal(1.0, 2.0, COUNT - 1)),
    ('generateLogNormal', 'lognormal(), float32', lambda state: state.lognormal(0.0, 0.5, COUNT, 'f')),
    ('generateLogNormalDouble', 'lognormal()', lambda state: state.lognormal(0.0, 0.5, COUNT)),
)


def start_again(s: Scene) -> None:
    """From now on the sources of the captures and their twins give the same numbers."""
    if curand is not None:
        s.state.seed(11)
        s.twin.seed(11)
        curand.setGeneratorOffset(s.quasi, 0)
        curand.setGeneratorOffset(s.quasi_twin, 0)
    s.bits_twin._state[...] = s.bits._state


def first_kept(s: Scene) -> Any:
    return s.kept[0].get()


def like_eager(eager: Call, got: Call = first_kept, *, fed: bool = True, same: bool = False) -> Check:
    """Each launch gives what the same call, made eagerly, gives next.

    ``fed``: by the host, which is noted. ``same``: these are the same numbers every time.
    """

    def check(s: Scene) -> bool:
        start_again(s)
        found = []
        for _ in range(3):
            s.cap.graph.launch()
            found.append(np.array(got(s)))
            np.testing.assert_allclose(found[-1], cp.asnumpy(eager(s)), rtol=1e-12)
        told = any('by the host at every launch' in step.text for step in s.cap.recording.steps)
        again = [np.array_equal(a, b) for a, b in itertools.pairwise(found)]
        return told == fed and again == [same, same]

    return check


def curand_call(s: Scene, name: str, array: Any, eager: bool = False) -> None:
    """Draw to where an array lies, with the captures' generator or its twin."""
    if name == 'generateLongLong':  # cuRAND draws 64 bits by its quasi-random generators only
        generator = s.quasi_twin if eager else s.quasi
    else:
        generator = (s.twin if eager else s.state)._generator
    getattr(curand, name)(generator, array.data.ptr, COUNT, *DRAWS[name])


def drawn_eagerly(s: Scene, name: str) -> Any:
    array = cp.zeros(COUNT)
    curand_call(s, name, array, eager=True)
    return array.get().view('u1')


def in_lane(s: Scene, call: Call) -> None:
    with s.side:
        call(s)


for name in DRAWS:
    row(
        f'{CR}.{name}', 'by handles', lambda s, f=name: curand_call(s, f, s.scratch),
        check=like_eager(lambda s, f=name: drawn_eagerly(s, f), lambda s: s.scratch[:COUNT].get().view('u1')),
    )  # fmt: skip
for name, called, method in METHODS:
    row(
        f'{CR}.{name}', called, lambda s, of=method: keep(s, of(s.state)),
        check=like_eager(lambda s, of=method: of(s.twin)),
    )  # fmt: skip
U = f'{CR}.generateUniformDouble'
row(
    U, 'random_sample(), lane', lambda s: in_lane(s, lambda s: keep(s, s.state.random_sample(COUNT))),
    check=like_eager(lambda s: s.twin.random_sample(COUNT)),
)  # fmt: skip
row(
    U, 'random_sample(), twice', lambda s: keep(s, s.state.random_sample(COUNT) + s.state.random_sample(COUNT)),
    check=like_eager(lambda s: s.twin.random_sample(COUNT) + s.twin.random_sample(COUNT)),
)  # fmt: skip
for mode in MODES:
    row(
        U, 'random_sample()', lambda s: keep(s, s.state.random_sample(COUNT)), mode=mode,
        check=like_eager(lambda s: s.twin.random_sample(COUNT)),
    )  # fmt: skip


def draw_outside(s: Scene, draw: Callable[[], Any]) -> None:
    with s.outside:
        s.kept.append(draw())


row(U, 'random_sample(), outside', lambda s: draw_outside(s, lambda: s.state.random_sample(COUNT)), escaped)
row(
    U, 'by handles, outside',
    lambda s: draw_outside(s, lambda: curand_call(s, 'generateUniformDouble', s.scratch)), escaped,
)  # fmt: skip

RS = 'cupy.random._generator.RandomState'


def seeded_draw(s: Scene) -> None:
    s.state.seed(5)
    s.kept.append(s.state.random_sample(COUNT))


def seeded_draw_eagerly(s: Scene) -> Any:
    s.twin.seed(5)
    return s.twin.random_sample(COUNT)


row(
    f'{RS}._get_seed', 'gamma()', lambda s: keep(s, s.state.gamma(2.0, 3.0, COUNT)), needs=CR,
    check=like_eager(lambda s: s.twin.gamma(2.0, 3.0, COUNT)),
)  # fmt: skip
row(
    f'{RS}._get_seed', 'poisson(), lane', needs=CR,
    run=lambda s: in_lane(s, lambda s: keep(s, s.state.poisson(9.0, COUNT))),
    check=like_eager(lambda s: s.twin.poisson(9.0, COUNT)),
)  # fmt: skip
row(
    f'{RS}._get_seed', 'choice() without replacement', lambda s: s.state.choice(16, 3, replace=False), unsupported,
    needs=CR,
)  # fmt: skip
row(f'{RS}.seed', 'and a draw', seeded_draw, needs=CR, check=like_eager(seeded_draw_eagerly, same=True))
row(
    f'{RS}.seed', 'alone: every launch seeds', lambda s: s.state.seed(5), needs=CR,
    check=like_eager(seeded_draw_eagerly, lambda s: s.state.random_sample(COUNT).get(), same=True),
)  # fmt: skip

B = 'cupy.random._bit_generator.BitGenerator.__init__'


def philox() -> Any:
    return cp.random.Generator(cp.random.Philox4x3210(3, size=256))


row(B, 'Philox4x3210() without a seed', lambda s: cp.random.Philox4x3210(), unsupported)
row(B, 'default_rng() without a seed', lambda s: cp.random.default_rng(), unsupported)
row(
    B, 'with a seed: every launch starts from it', lambda s: keep(s, philox().random(COUNT)),
    check=like_eager(lambda s: philox().random(COUNT), fed=False, same=True),
)  # fmt: skip

Q = 'cupy.random._bit_generator._cuRANDGenerator.state'
row(Q, 'called by hand', lambda s: equal(s.bits.state(), s.bits._state.data.ptr))
row(
    Q, 'Generator.random()', lambda s: keep(s, s.generator.random(COUNT)),
    check=like_eager(lambda s: s.generator_twin.random(COUNT), fed=False),
)  # fmt: skip
row(
    Q, 'Generator.random(), lane', lambda s: in_lane(s, lambda s: keep(s, s.generator.random(COUNT))),
    check=like_eager(lambda s: s.generator_twin.random(COUNT), fed=False),
)  # fmt: skip

# -- calls that no capture can hold -----------------------------------------------------------------------------

for name in SEAMS:
    # no arguments: if it were let through, Python itself would complain
    row(name, 'by its name', lambda s, f=name: resolve(f)(), unsupported)

#: function -> a call of it that is right outside of a capture
SOLVERS: dict[str, Call] = {
    'svd': lambda s: cp.linalg.svd(s.matrix),
    'eigh': lambda s: cp.linalg.eigh(s.matrix),
    'eigvalsh': lambda s: cp.linalg.eigvalsh(s.matrix),
    'eig': lambda s: cp.linalg.eig(s.matrix),
    'eigvals': lambda s: cp.linalg.eigvals(s.matrix),
    'lstsq': lambda s: cp.linalg.lstsq(s.matrix, s.w[:4], rcond=None),
    'pinv': lambda s: cp.linalg.pinv(s.matrix),
    'cond': lambda s: cp.linalg.cond(s.matrix),
    'matrix_rank': lambda s: cp.linalg.matrix_rank(s.matrix),
}
for name, call in SOLVERS.items():
    row(f'cupy.linalg.{name}', 'a matrix', call, unsupported)
row('cupy.linalg.svd', 'a captured matrix', lambda s: cp.linalg.svd(s.a[:16].reshape(4, 4)), unsupported)
row('cupy.linalg.svd', 'lane', lambda s: in_lane(s, lambda s: cp.linalg.svd(s.matrix)), unsupported)
row('cupy.linalg.svd', 'a name imported before the capture', lambda s: svd_of_before(s.matrix), unsupported)
row('cupy.linalg.svd', 'cp.linalg.norm(a, 2)', lambda s: cp.linalg.norm(s.matrix, 2), unsupported)
row('cupy.polyfit', 'a line', lambda s: cp.polyfit(s.x[:8], s.w[:8], 1), unsupported)
row('cupy.roots', 'of a polynomial', lambda s: cp.roots(s.x[1:4]), unsupported)
for mode in MODES:
    row('cupy.linalg.svd', 'a matrix', lambda s: cp.linalg.svd(s.matrix), unsupported, mode=mode)


# -- the tests --------------------------------------------------------------------------------------------------


@functools.cache
def absent(entry: str) -> bool:
    """True for an optional entry that the CuPy of this machine has not, or can't load the library of."""
    found = next(one for one in ENTRIES if str(one) == entry)
    try:
        return not hasattr(resolve(found.holder), found.name) and found.optional
    except (AttributeError, ImportError):
        return found.optional


def loaded(module: str) -> bool:
    """True for a module that can be imported."""
    try:
        resolve(module)
    except (AttributeError, ImportError):
        return False
    return True


@dataclass
class Line:
    """What became of a row."""

    case: Case
    outcome: str
    origin: str
    lane: str
    launched: bool = False


LINES: list[Line] = []


@pytest.fixture(scope='module')
def around() -> Around:
    return Around()


@pytest.fixture(scope='module', autouse=True)
def _table() -> Iterator[None]:
    yield
    path = os.environ.get('CAPTUREKIT_TABLE')
    if path and LINES:
        with open(path, 'w', encoding='utf-8') as f:
            f.write(table())


def table() -> str:
    """The lines as a page: docs/evidence/guarded_calls.md."""
    head = (
        '# Every guarded call, made on a GPU\n\n'
        "Each of CuPy's entry points that capturekit watches was called inside a capture. The table says how "
        'capturekit answered,\nwhat the driver said of the origin and of the lane afterwards, and whether the graph '
        'launched with the right numbers.\n\n'
        f'{len({line.case.entry for line in LINES})} entry points, {len(LINES)} calls, '
        f'{sum(line.outcome == "allowed" for line in LINES)} allowed, '
        f'{sum(line.origin == "Active" for line in LINES)} with the capture still Active, '
        f'{sum(line.launched for line in LINES)} with a graph that launched and gave the right numbers\n\n'
        '| entry | call | mode | outcome | driver: origin, lane | launched, right |\n'
        '| --- | --- | --- | --- | --- | --- |\n'
    )
    rows = (
        f'| {line.case.entry} | {line.case.call} | {line.case.mode} | {line.outcome} '
        f'| {line.origin}, {line.lane} | {"yes" if line.launched else "no"} |\n'
        for line in LINES
    )
    return head + ''.join(rows)


def attempt(case: Case, scene: Scene) -> BaseException | None:
    """Make the call; return what it raised."""
    try:
        case.run(scene)
    except (RuntimeError, MemoryError, TypeError, ValueError, AttributeError, AssertionError) as error:
        return error
    return None


def outcome(error: BaseException | None) -> str:
    if error is None:
        return 'allowed'
    return type(error).__name__ + ('' if isinstance(error, ck.CaptureError) else " (CuPy's own)")


@pytest.mark.parametrize('case', CASES, ids=str)
def test_refused_or_allowed_and_the_capture_unharmed(case: Case, around: Around) -> None:
    for name, lacking in ((case.entry, absent(case.entry)), (case.needs, bool(case.needs) and not loaded(case.needs))):
        if lacking:
            pytest.skip(f'{name} is not to be had here: this CuPy lacks it, or its library can not be loaded')
    before = world()
    around.w.fill(1)
    around.scratch.fill(0)
    cp.cuda.Device().synchronize()
    with ck.capture(mode=case.mode) as cap:
        scene = Scene(around, cap)
        error = attempt(case, scene)
        line = Line(case, outcome(error), status(scene.origin), status(scene.side))
        LINES.append(line)
        scene.origin.wait_event(scene.side.record())
        result = scene.a + scene.b
    for _ in range(case.launches):
        cap.graph.launch()
    cp.cuda.Device().synchronize()
    line.launched = bool(np.array_equal(result.get(), (np.arange(N) + 1.0) * 3))
    if case.expect is None:
        assert error is None, f'refused: {error!r}'
    else:
        assert isinstance(error, case.expect), f'{error!r}, not {case.expect.__name__}'
    assert (line.origin, line.lane) == ('Active', 'Active')
    assert line.launched
    if case.check is not None:
        assert case.check(scene)
    if isinstance(error, ck.CaptureError):
        assert_says_where(error)
        assert float(around.w[0]) == 1, 'the refused work ran'
    assert world() == before
    assert status(around.side) == status(around.outside) == status(around.other) == 'None'
    cap.graph.close()


def assert_says_where(error: ck.CaptureError) -> None:
    """The error carries its data, and names this file's line as the user's."""
    assert error.operation
    assert error.rule
    assert error.remedy
    assert error.location is not None
    assert Path(error.location.file).parent == Path(__file__).parent
    assert len(str(error).splitlines()) == 3


def test_every_entry_is_in_the_table() -> None:
    listed = {case.entry for case in CASES}
    # NCCL's are called in tests/guard/test_collectives.py
    assert [str(entry) for entry in ENTRIES if str(entry) not in listed and not entry.loaded] == []
    assert listed - {str(entry) for entry in ENTRIES} == set()


def test_every_verb_is_tried_where_it_is_refused_and_allowed() -> None:
    """Entries that are never refused, and entries that are never allowed, are these and no others."""
    verbs: dict[str, set[bool]] = {}
    by_name: dict[str, Entry] = {str(entry): entry for entry in ENTRIES}
    for case in CASES:
        verbs.setdefault(by_name[case.entry].verb, set()).add(case.expect is None)
    always = sorted(verb for verb, answers in verbs.items() if answers == {True})
    never = sorted(verb for verb, answers in verbs.items() if answers == {False})
    assert always == [
        'allocator_set', 'array_setitem', 'copied_to', 'device_enter', 'device_exit', 'device_use', 'event_made',
        'event_record', 'generator_state', 'random_seeded', 'runtime_event_made', 'runtime_event_record',
        'runtime_set_device', 'runtime_stream_flags', 'runtime_stream_priority', 'stream_deleted', 'stream_handed_out',
        'stream_is_capturing', 'stream_is_non_blocking', 'stream_priority', 'stream_record',
    ]  # fmt: skip
    assert never == [
        'array_set', 'declared_synchronize', 'device_synchronize', 'graph_launch', 'pointer_sync',
        'runtime_add_callback', 'runtime_device_synchronize', 'runtime_host_func', 'runtime_launch', 'runtime_legacy',
        'runtime_peer_copy', 'runtime_prefetch', 'seam', 'stream_add_callback',
    ]  # fmt: skip


def test_the_rows_have_names_of_their_own() -> None:
    names = sorted(map(str, CASES))
    assert [a for a, b in itertools.pairwise(names) if a == b] == []


@pytest.mark.parametrize('strict', [True, False])
def test_what_no_capture_can_hold_is_refused_by_name(around: Around, strict: bool) -> None:
    """One capture meets them all, and goes on."""
    with ck.capture(strict=strict) as cap:
        scene = Scene(around, cap)
        for name in (name for name in SEAMS if not absent(name)):
            with pytest.raises(ck.UnsupportedCallError) as info:
                resolve(name)()
            assert info.value.operation == f'{name}()'
            assert_says_where(info.value)
            assert status(scene.origin) == status(scene.side) == 'Active', name
        cap.join(scene.side)
        result = scene.a + scene.b
    cap.graph.launch()
    assert np.array_equal(result.get(), (np.arange(N) + 1.0) * 3)


@pytest.mark.skipif(curand is None, reason='cuRAND can not be loaded here')
def test_draws_follow_the_eager_sequence_in_adapting_mode(around: Around) -> None:
    """On the origin, and on a stream that the capture forks by itself."""
    with ck.capture(strict=False) as cap:
        scene = Scene(around, cap)
        a = scene.state.random_sample(COUNT)
        with scene.other:
            b = scene.state.normal(size=COUNT) + scene.state.gamma(2.0, size=COUNT)
        scene.other.synchronize()
        keep(scene, a + b)
    assert like_eager(
        lambda s: s.twin.random_sample(COUNT) + (s.twin.normal(size=COUNT) + s.twin.gamma(2.0, size=COUNT))
    )(scene)
    assert status(around.side) == status(around.other) == 'None'
    cap.graph.close()


def test_capturekits_own_graph_into_a_capture(around: Around) -> None:
    """`cap.graph.launch()` and `upload()` of a graph that capturekit made are judged as CuPy's are."""
    with ck.capture() as first:
        around.scratch.fill(0)
    with ck.capture() as cap:
        scene = Scene(around, cap)
        for call, what in (
            (lambda: first.graph.launch(), unsupported),
            (lambda: first.graph.launch(scene.side), unsupported),
            (lambda: first.graph.launch(scene.outside), escaped),
            (lambda: first.graph.launch(null), legacy),
            (lambda: first.graph.upload(), unsupported),
        ):
            with pytest.raises(what):
                call()
            assert status(scene.origin) == status(scene.side) == 'Active'
        first.graph.upload(scene.outside)
        cap.join(scene.side)
        result = scene.a + scene.b
    cap.graph.launch()
    assert np.array_equal(result.get(), (np.arange(N) + 1.0) * 3)


def test_a_blocking_lane_keeps_the_legacy_stream_away(around: Around) -> None:
    """Beside a blocking stream in the capture any use of the legacy stream would lose it (906)."""
    blocking = cp.cuda.Stream()
    with ck.capture() as cap:
        scene = Scene(around, cap)
        blocking.wait_event(scene.e)
        for call in (
            null.record,
            null.synchronize,
            lambda: null.wait_event(scene.before),
            lambda: scene.scratch.data.memset_async(0, 8, null),
            lambda: rt.memset(scene.scratch.data.ptr, 0, 8),
        ):
            with pytest.raises(ck.LegacyStreamError):
                call()
            assert status(scene.origin) == status(blocking) == 'Active'
        cap.join(blocking)
        cap.join(scene.side)
        result = scene.a + scene.b
    cap.graph.launch()
    assert np.array_equal(result.get(), (np.arange(N) + 1.0) * 3)


HOST_FUNCTION = """
    import cupy as cp, capturekit as ck
    from warnings import simplefilter
    simplefilter('ignore')
    x = cp.arange(8.0); x + 1
    side = cp.cuda.Stream(non_blocking=True)
    seen = []
    with ck.capture() as cap:
        a = x + 1
        side.wait_event(cap.stream.record())
        try:
            {call}
        except ck.UnsupportedCallError:
            seen = None
        cap.join(side)
        b = a + 1
    for _ in range(3):
        cap.graph.launch()
    cp.cuda.Device().synchronize()
    assert b.tolist() == (cp.arange(8.0) + 2).tolist()
    assert seen is None or seen == [5, 5, 5], seen
"""


@pytest.mark.parametrize(
    'call',
    [
        'cp.cuda.runtime.launchHostFunc(side.ptr, seen.append, 5)',
        'cp.cuda.ExternalStream(side.ptr).launch_host_func(seen.append, 5)',
        'cp.cuda.Stream.from_external(side).launch_host_func(seen.append, 5)',
        'side.launch_host_func(seen.append, 5)',
    ],
)
def test_host_functions_are_refused_or_survive_every_launch(call: str) -> None:
    """In a process of its own: a host function that was freed after its first call would end it."""
    in_process(HOST_FUNCTION.format(call=call))
