"""Rows: streams, by their objects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import capturekit as ck
from tests.gpu.guarded.scene import (
    BYTES,
    Check,
    N,
    Scene,
    cp,
    equal,
    escaped,
    external,
    legacy,
    row,
    rt,
    sync,
    unmatched,
    unsupported,
)
from tests.gpu.guarded.scene import STREAM as S
from tests.gpu.world import in_thread, status

row(f'{S}.synchronize', 'origin', lambda s: s.origin.synchronize(), sync)
row(f'{S}.synchronize', 'lane', lambda s: s.side.synchronize(), sync)
row(f'{S}.synchronize', 'ExternalStream of lane', lambda s: external(s.side).synchronize(), sync)
row(f'{S}.synchronize', 'ExternalStream of origin', lambda s: external(s.origin).synchronize(), sync)
row(f'{S}.synchronize', 'from_external of lane', lambda s: cp.cuda.Stream.from_external(s.side).synchronize(), sync)
row(f'{S}.synchronize', 'lane, from another thread', lambda s: in_thread(s.side.synchronize), sync)
row(f'{S}.synchronize', 'Stream.null', lambda s: s.null.synchronize(), legacy)
row(f'{S}.synchronize', 'outside', lambda s: s.outside.synchronize())
row(f'{S}.synchronize', 'ExternalStream of outside', lambda s: external(s.outside).synchronize())
row(f'{S}.synchronize', 'Stream.ptds', lambda s: s.ptds.synchronize())
row(f'{S}.done', 'origin', lambda s: s.origin.done, sync)
row(f'{S}.done', 'lane', lambda s: s.side.done, sync)
row(f'{S}.done', 'ExternalStream of lane', lambda s: external(s.side).done, sync)
row(f'{S}.done', 'Stream.null', lambda s: s.null.done, legacy)
row(f'{S}.done', 'outside', lambda s: s.outside.done)
row(f'{S}.done', 'Stream.ptds', lambda s: s.ptds.done)
row(f'{S}.record', 'lane', lambda s: s.side.record())
row(f'{S}.record', 'lane, event of before', lambda s: s.side.record(cp.cuda.Event()))
row(f'{S}.record', 'ExternalStream of lane', lambda s: external(s.side).record())
row(f'{S}.record', 'outside', lambda s: s.outside.record())
row(f'{S}.record', 'outside, captured event', lambda s: s.outside.record(s.origin.record()))
row(f'{S}.record', 'Stream.null', lambda s: s.null.record())
row(f'{S}.wait_event', 'origin, event recorded outside', lambda s: s.origin.wait_event(s.before), ck.IsolationError)
row(f'{S}.wait_event', 'lane, event recorded outside', lambda s: s.side.wait_event(s.before), ck.IsolationError)
row(f'{S}.wait_event', 'Stream.null, captured event', lambda s: s.null.wait_event(s.e), legacy)
row(f'{S}.wait_event', 'Stream.null, event recorded outside', lambda s: s.null.wait_event(s.before))
row(f'{S}.wait_event', 'origin, never recorded', lambda s: s.origin.wait_event(s.never))
row(f'{S}.wait_event', 'origin, event of lane (join)', lambda s: s.origin.wait_event(s.side.record()))
row(f'{S}.wait_event', 'outside, captured event (fork)', lambda s: s.outside.wait_event(s.e))
row(f'{S}.wait_event', 'ExternalStream of outside (fork)', lambda s: external(s.outside).wait_event(s.e))
row(f'{S}.wait_event', 'Stream.ptds, captured event (fork)', lambda s: s.ptds.wait_event(s.e))
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
row(f'{S}.use', 'Stream.ptds, work in place', lambda s: use(s, s.ptds, work=True), escaped)
row(f'{S}.use', 'Stream.null', lambda s: use(s, s.null), legacy)
row(f'{S}.__enter__', 'lane', lambda s: enter(s, s.side))
row(f'{S}.__enter__', 'ExternalStream of lane', lambda s: enter(s, external(s.side)))
row(f'{S}.__enter__', 'outside, work that allocates', lambda s: enter(s, s.outside, 'new'), escaped)
row(f'{S}.__enter__', 'ExternalStream of outside, work', lambda s: enter(s, external(s.outside), 'new'), escaped)
row(f'{S}.__enter__', 'Stream.ptds, work that allocates', lambda s: enter(s, s.ptds, 'new'), escaped)
row(f'{S}.__enter__', 'Stream.null', lambda s: enter(s, s.null), legacy)
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
row(f'{S}.begin_capture', 'Stream.null', lambda s: s.null.begin_capture(), legacy)
row(f'{S}.begin_capture', 'outside', by_hand)
row(f'{S}.end_capture', 'origin', lambda s: s.origin.end_capture(), unmatched)
row(f'{S}.end_capture', 'lane', lambda s: s.side.end_capture(), unmatched)
row(f'{S}.end_capture', 'ExternalStream of lane', lambda s: external(s.side).end_capture(), unmatched)
row(f'{S}.end_capture', 'outside', lambda s: s.outside.end_capture(), unmatched)
row(f'{S}.end_capture', 'outside, begun by hand', by_hand)
row(f'{S}.end_capture', 'Stream.null', lambda s: s.null.end_capture(), legacy)
row(f'{S}.end_capture', 'origin, from another thread', lambda s: in_thread(s.origin.end_capture), unmatched)
row(f'{S}.end_capture', 'capture by hand, from another thread', end_in_wrong_thread, ck.WrongThreadError)
row(
    f'{S}.end_capture', 'leaving the block in another thread',
    lambda s: in_thread(lambda: s.cap.__exit__(None, None, None)), ck.WrongThreadError,
)  # fmt: skip


row(f'{S}.is_capturing', 'origin', lambda s: equal(s.origin.is_capturing(), True))
row(f'{S}.is_capturing', 'lane', lambda s: equal(s.side.is_capturing(), True))
row(f'{S}.is_capturing', 'outside', lambda s: equal(s.outside.is_capturing(), False))
row(f'{S}.is_capturing', 'Stream.null', lambda s: equal(s.null.is_capturing(), False))
row(f'{S}.is_non_blocking', 'origin', lambda s: equal(s.origin.is_non_blocking, True))
row(f'{S}.is_non_blocking', 'lane', lambda s: equal(s.side.is_non_blocking, True))
row(f'{S}.is_non_blocking', 'outside', lambda s: equal(s.outside.is_non_blocking, True))
row(f'{S}.is_non_blocking', 'Stream.null', lambda s: equal(s.null.is_non_blocking, False))
row(f'{S}.priority', 'origin', lambda s: equal(s.origin.priority, 0))
row(f'{S}.priority', 'lane', lambda s: equal(s.side.priority, 0))
row(f'{S}.priority', 'outside', lambda s: equal(s.outside.priority, 0))
row(f'{S}.priority', 'Stream.null', lambda s: equal(s.null.priority, 0))
row(f'{S}.add_callback', 'origin', lambda s: s.origin.add_callback(lambda *a: None, 1), unsupported)
row(f'{S}.add_callback', 'lane', lambda s: s.side.add_callback(lambda *a: None, 1), unsupported)
row(f'{S}.add_callback', 'outside', lambda s: s.outside.add_callback(s.seen.append, 1), escaped)
row(f'{S}.add_callback', 'Stream.null', lambda s: s.null.add_callback(lambda *a: None, 1), legacy)
row(
    f'{S}.launch_host_func', 'origin', lambda s: s.origin.launch_host_func(s.seen.append, 5),
    check=lambda s: s.seen == [5, 5],
)  # fmt: skip
row(
    f'{S}.launch_host_func', 'lane', lambda s: s.side.launch_host_func(s.seen.append, 5),
    check=lambda s: s.seen == [5, 5],
)  # fmt: skip
row(f'{S}.launch_host_func', 'outside', lambda s: s.outside.launch_host_func(s.seen.append, 5), escaped)
row(f'{S}.launch_host_func', 'Stream.null', lambda s: s.null.launch_host_func(s.seen.append, 5), legacy)


def library_work(s: Scene, ptr: int) -> None:
    """Work of a library that is given a handle and calls CUDA itself."""
    s.memset_of_before(s.scratch.data.ptr, 0, BYTES, ptr)


def noted(text: str) -> Check:
    return lambda s: any(text in step.text for step in s.cap.recording.notes)


row(f'{S}.ptr', 'origin', lambda s: library_work(s, s.origin.ptr))
row(f'{S}.ptr', 'lane', lambda s: library_work(s, s.side.ptr))
row(f'{S}.ptr', 'outside, which is noted', lambda s: library_work(s, s.outside.ptr), check=noted('handle'))
row(f'{S}.ptr', 'Stream.null, which is noted', lambda s: library_work(s, s.null.ptr), check=noted('handle'))


def dropped(s: Scene, forked: bool) -> None:
    """A stream that Python forgets in the block, destroyed with its object; one that is a lane must be kept."""
    stream = cp.cuda.Stream(non_blocking=True)
    if forked:
        stream.wait_event(s.e)
        s.origin.wait_event(stream.record())
    del stream


row('cupy.cuda.stream.Stream.__del__', 'a stream of the block', lambda s: dropped(s, forked=False))
row('cupy.cuda.stream.Stream.__del__', 'a lane', lambda s: dropped(s, forked=True))
