"""Work on a stream outside of the capture: it would run at once, and be missing from every launch."""

from __future__ import annotations

from typing import Any

import numpy as np

import capturekit as ck
from tests.zoo.cases import case

FORK = 'stream.wait_event(cap.stream.record())'


@case('https://github.com/pytorch/pytorch/issues/87894', ck.EscapedWorkError, FORK, lambda x: x * 5,
      rest=lambda x: x * 2)  # fmt: skip
def another_stream(cp: Any, x: Any) -> Any:
    """Computes on a side stream that nobody has forked from the capture."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y = x * 2
        side.wait_event(cap.stream.record())  # + <-- instead
        with side:
            y = x * 5  # <-- here
        cap.join(side)  # + <-- instead
    return cap, y


@case('https://github.com/chelsea0x3b/cudarc/issues/501', ck.EscapedWorkError, 'cap.fork(1)', lambda x: x * 2 + 1,
      rest=lambda x: x * 2)  # fmt: skip
def in_place(cp: Any, x: Any) -> Any:
    """Works in place on a stream of a pool: there is no allocation to stumble over."""
    side = cp.cuda.Stream(non_blocking=True)  # -
    with ck.capture() as cap:
        y = x * 2
        with side: y += 1  # noqa: E701  # - <-- here  # fmt: skip
        with cap.fork(1) as (lane,), lane:  # + <-- instead
            y += 1  # +
    return cap, y


@case('https://github.com/NVIDIA/TransformerEngine/pull/808', ck.EscapedWorkError, FORK, lambda x: np.zeros(8),
      rest=lambda x: x + 1)  # fmt: skip
def stream_argument(cp: Any, x: Any) -> Any:
    """Names another stream in the call."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y = x + 1
        side.wait_event(cap.stream.record())  # + <-- instead
        y.data.memset_async(0, y.nbytes, side)  # <-- here
        cap.join(side)  # + <-- instead
    return cap, y


@case('https://github.com/PaddlePaddle/Paddle/pull/77421', ck.EscapedWorkError, FORK, lambda x: x + 3, goes_on=False)
def stream_made_current(cp: Any, x: Any) -> Any:
    """Makes a side stream current with `use()`, to the end of the block."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        y = x + 2
        side.wait_event(cap.stream.record())  # + <-- instead
        side.use()
        y += 1  # <-- here
        cap.stream.wait_event(side.record())  # + <-- instead
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/1827', ck.EscapedWorkError, FORK, lambda x: x * 2 + 1,
      rest=lambda x: x + 1)  # fmt: skip
def graph_on_another_stream(cp: Any, x: Any) -> Any:
    """Launches a graph beside the capture, on another stream, so that it is not refused as a launch."""
    side = cp.cuda.Stream(non_blocking=True)
    with ck.capture() as inner:
        doubled = x * 2
    with ck.capture() as cap:
        y = x + 1
        inner.graph.launch(side)  # <-- here
    assert doubled.size == 8
    return cap, y


@graph_on_another_stream.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:
        doubled = x * 2  # <-- instead
        y = doubled + 1
    return cap, y


@case('https://github.com/NVIDIA/cuda-python/issues/790', ck.EscapedWorkError, FORK, lambda x: x * 4)
def host_function_elsewhere(cp: Any, x: Any) -> Any:
    """Sends a host function to a stream that is not in the capture."""
    side, told = cp.cuda.Stream(non_blocking=True), []
    with ck.capture() as cap:
        y = x * 4
        side.launch_host_func(told.append, 1)  # <-- here
    return cap, y


@host_function_elsewhere.repaired
def _(cp: Any, x: Any) -> Any:
    told: list[int] = []
    with ck.capture() as cap:
        y = x * 4
        cap.stream.launch_host_func(told.append, 1)  # <-- instead
    cap.graph.launch()
    cap.graph.launch()
    cp.cuda.get_current_stream().synchronize()
    assert told == [1, 1]
    return cap, y
