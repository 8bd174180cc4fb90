"""Forks that are not joined, or too early, or to the wrong stream; events that stand for something else."""

from __future__ import annotations

from typing import Any

import capturekit as ck
from tests.zoo.cases import case


@case('https://github.com/NVIDIA/TransformerEngine/pull/811', ck.UnjoinedError, 'cap.join(stream)', lambda x: x - 4,
      goes_on=False)  # fmt: skip
def never_joined(cp: Any, x: Any) -> Any:
    """Forks a side stream and forgets it."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x - 4  # <-- here
        cap.join(side)  # + <-- instead
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/185546', ck.UnjoinedError, 'after its last work', lambda x: x * 2 + 1,
      goes_on=False)  # fmt: skip
def joined_too_early(cp: Any, x: Any) -> Any:
    """Records the event of the join before the work that it is to wait for."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        finished = side.record()  # -
        with side:
            y = x * 2
            y += 1  # <-- here
        finished = side.record()  # + <-- instead
        cap.stream.wait_event(finished)
    return cap, y


@case('https://github.com/NVIDIA/TransformerEngine/pull/808', ck.UnjoinedError, 'after its last work',
      lambda x: x * 2 + 1, goes_on=False)  # fmt: skip
def joined_then_worked(cp: Any, x: Any) -> Any:
    """Joins a stream, and sends it one more piece of work."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x * 2
        cap.join(side)  # -
        with side:
            y += 1  # <-- here
        cap.join(side)  # + <-- instead
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/1469', ck.UnjoinedError, 'cap.join(stream)', lambda x: x + 6,
      goes_on=False)  # fmt: skip
def fork_of_a_fork(cp: Any, x: Any) -> Any:
    """A forked stream forks another one; only the first is joined."""
    outer, inner = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    with ck.capture() as cap:
        outer.wait_event(cap.stream.record())
        with outer:
            y = x + 1
            inner.wait_event(outer.record())
        with inner:
            y += 5  # <-- here
        outer.wait_event(inner.record())  # + <-- instead
        cap.join(outer)
    return cap, y


@case('https://github.com/NVIDIA/TransformerEngine/pull/811', ck.UnjoinedError, 'cap.stream.wait_event(stream.record()',
      lambda x: x * 6, goes_on=False)  # fmt: skip
def joined_to_each_other(cp: Any, x: Any) -> Any:
    """Two side streams wait for one another, and nobody joins the last to the origin."""
    first, second = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    with ck.capture() as cap:
        for stream in (first, second):
            stream.wait_event(cap.stream.record())
        with first:
            y = x * 2
        second.wait_event(first.record())
        with second:
            y *= 3  # <-- here
        cap.stream.wait_event(second.record())  # + <-- instead
    return cap, y


@case('https://github.com/pytorch/pytorch/pull/191351', ck.UnmatchedError, 'stream.wait_event(cap.stream.record())',
      lambda x: x + 1)  # fmt: skip
def join_without_fork(cp: Any, x: Any) -> Any:
    """Joins a stream that was never forked."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y = x + 1
        side.wait_event(cap.stream.record())  # + <-- instead
        cap.join(side)  # <-- here
    return cap, y


@case('https://github.com/NVIDIA/cccl/pull/8674', ck.EscapedWorkError, 'stream.wait_event(cap.stream.record())',
      lambda x: x * 5 + 1, rest=lambda x: x + 1)  # fmt: skip
def fork_by_an_unrecorded_event(cp: Any, x: Any) -> Any:
    """Forks by an event that nobody has recorded: that orders nothing, and the stream stays outside."""
    side, ready = cp.cuda.Stream(non_blocking=True), cp.cuda.Event()
    with ck.capture() as cap:
        y = x + 1
        ready.record(cap.stream)  # + <-- instead
        side.wait_event(ready)
        with side:
            y = x * 5 + 1  # <-- here
        cap.join(side)  # +
    return cap, y


@case('https://github.com/ROCm/rocm-systems/pull/11589', ck.UnsupportedCallError, 'after the capture', lambda x: x * 3)
def stream_destroyed(cp: Any, x: Any) -> Any:
    """Destroys a side stream as soon as its work is joined."""
    side = cp.cuda.Stream.from_external(Raw(cp))
    with ck.capture() as cap:
        side.wait_event(cap.stream.record())
        with side:
            y = x * 3
        cap.join(side)
        cp.cuda.runtime.streamDestroy(side.ptr)  # - <-- here
    cp.cuda.runtime.streamDestroy(side.ptr)  # + <-- instead: after the block
    return cap, y


class Raw:
    """A stream made by hand, which nobody destroys by himself."""

    def __init__(self, cp: Any) -> None:
        self.ptr = cp.cuda.runtime.streamCreateWithFlags(cp.cuda.runtime.streamNonBlocking)

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)


@case('https://github.com/NVIDIA/cccl/pull/8674', ck.IsolationError, 's.wait_event(event)', lambda x: x * 2)
def event_from_outside(cp: Any, x: Any) -> Any:
    """The captured stream waits for the loader, whose event was recorded before the capture."""
    loader = cp.cuda.Stream(non_blocking=True)  # -
    loader, stream = (cp.cuda.Stream(non_blocking=True) for _ in range(2))  # +
    loaded = loader.record()
    with ck.capture() as cap:
        cap.stream.wait_event(loaded)  # - <-- here
        y = x * 2
    stream.wait_event(loaded)  # + <-- instead: before the launch
    cap.graph.launch(stream)  # +
    stream.synchronize()  # +
    return cap, y


@case('https://github.com/pytorch/pytorch/pull/180090', ck.IsolationError, 'Record it again', lambda x: x + 8)
def event_of_the_last_capture(cp: Any, x: Any) -> Any:
    """Waits for an event that was recorded in the capture of the step before."""
    with ck.capture() as first:
        y = x + 1
        stale = first.stream.record()  # -
        event = first.stream.record()  # +
    with ck.capture() as cap:
        cap.stream.wait_event(stale)  # - <-- here
        event.record(cap.stream)  # + <-- instead
        cap.stream.wait_event(event)  # +
        y = x + 8
    return cap, y


@case('https://github.com/pytorch/pytorch/pull/191827', ck.MergeError, 'launching them on one stream',
      lambda x: x * 2 + 1, goes_on=False)  # fmt: skip
def merged_captures(cp: Any, x: Any) -> Any:
    """Two captures are open, and one waits for an event of the other."""
    with ck.capture() as first:
        y = x * 2
        doubled = first.stream.record()
        with ck.capture() as cap:
            cap.stream.wait_event(doubled)  # <-- here
            y += 1
    return cap, y


@merged_captures.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:  # <-- instead
        y = x * 2
        doubled = cap.stream.record()
        cap.stream.wait_event(doubled)
        y += 1
    return cap, y
