"""Captures begun twice, left open, ended elsewhere, or used when they are over."""

from __future__ import annotations

from typing import Any

import capturekit as ck
from capturekit.guard import watch
from tests.zoo.cases import case


@case('https://github.com/microsoft/onnxruntime/pull/32081', ck.UnmatchedError, 'Use the open capture', lambda x: x * x)
def begin_twice(cp: Any, x: Any) -> Any:
    """Calls code that records by itself, on the stream that is being captured already."""
    with ck.capture() as cap:
        y = x * x  # -
        cap.stream.begin_capture()  # - <-- here
        y = x * x  # + <-- instead: nothing but
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/1787', ck.UnmatchedError, 'fork a lane from it', lambda x: x * 2 + 1,
      rest=lambda x: x * 2)  # fmt: skip
def nested_on_one_stream(cp: Any, x: Any) -> Any:
    """Opens a second capture on the stream of the first."""
    with ck.capture() as cap:
        y = x * 2
        with ck.capture(cap.stream):  # <-- here
            y += 1
    return cap, y


@nested_on_one_stream.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:
        y = x * 2
        with cap.fork(1) as (lane,), lane:  # <-- instead
            y += 1
    return cap, y


@case('https://github.com/NVIDIA/cuda-python/pull/1235', ck.UnmatchedError, 'Leave the block', lambda x: x + 1)
def end_by_hand(cp: Any, x: Any) -> Any:
    """Ends the capture by hand, inside of its block."""
    with ck.capture() as cap:
        y = x + 1
        cap.stream.end_capture()  # - <-- here
    cap.graph.launch()  # + <-- instead: after the block
    return cap, y


@case('https://github.com/NVIDIA/cccl/pull/8914', ck.UnmatchedError, 'End it on its origin', lambda x: x + 2,
      goes_on=False)  # fmt: skip
def end_on_another_stream(cp: Any, x: Any) -> Any:
    """Ends a capture on the stream that happens to be current, a lane, instead of the one that began it."""
    side = cp.cuda.Stream(non_blocking=True)
    with watch(), ByHand(cp) as stream:
        y = x + 2
        side.wait_event(stream.record())
        side.end_capture()  # <-- here
    return None, y


@end_on_another_stream.repaired
def _(cp: Any, x: Any) -> Any:
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y = x + 2
        side.wait_event(cap.stream.record())
        cap.join(side)  # <-- instead
    return cap, y


@case('https://github.com/NVIDIA/cuopt/pull/1753', ck.UnmatchedError, 'Begin a capture on it first', lambda x: x * 4)
def end_without_begin(cp: Any, x: Any) -> Any:
    """Ends a capture on a stream where none was begun, because the error of the beginning was not looked at."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y = x * 4
        side.begin_capture()  # + <-- instead: before it
        side.end_capture()  # <-- here
    return cap, y


@case('https://github.com/PaddlePaddle/Paddle/pull/78194', ck.UnmatchedError, 'stream.end_capture()', lambda x: x - 3,
      goes_on=False)  # fmt: skip
def left_open(cp: Any, x: Any) -> Any:
    """Begins a capture by hand and never ends it: an early return, or an exception, came between."""
    stream = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y = x - 3
        stream.begin_capture()  # <-- here
        stream.end_capture()  # + <-- instead
    return cap, y


@case('https://github.com/cupy/cupy/pull/4567', ck.ClosedError, 'after the block', lambda x: x * 2)
def launched_in_its_block(cp: Any, x: Any) -> Any:
    """Launches the graph inside of the block that records it."""
    with ck.capture() as cap:
        y = x * 2
        cap.graph.launch()  # - <-- here
    cap.graph.launch()  # + <-- instead: after the block
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/1014', ck.ClosedError, 'Open a new one', lambda x: x + 6)
def entered_twice(cp: Any, x: Any) -> Any:
    """Keeps a capture and enters it once more, to record anew."""
    with ck.capture() as cap:
        y = x + 6
    with cap:  # <-- here
        y = x + 6
    return cap, y


@entered_twice.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:
        y = x + 6
    with ck.capture() as cap:  # <-- instead
        y = x + 6
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/992', ck.ClosedError, 'or record again', lambda x: x * 9, goes_on=False)
def launched_after_close(cp: Any, x: Any) -> Any:
    """Closes a graph and launches it all the same."""
    with ck.capture() as cap:
        y = x * 9
    cap.graph.close()
    cap.graph.launch()  # - <-- here
    with ck.capture() as cap:  # + <-- instead
        y = x * 9  # +
    return cap, y


class ByHand:
    """A capture by hand that is ended whatever happens, as a careful program would."""

    def __init__(self, cp: Any) -> None:
        self.stream = cp.cuda.Stream(non_blocking=True)

    def __enter__(self) -> Any:
        self.stream.__enter__()
        self.stream.begin_capture()
        return self.stream

    def __exit__(self, *exc: Any) -> None:
        if self.stream.is_capturing():
            self.stream.end_capture()
        self.stream.__exit__(*exc)
