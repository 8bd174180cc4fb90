"""Other threads: what they may not do, and what waits until the capture is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import capturekit as ck
from capturekit.guard import watch
from tests.zoo.cases import case


def in_thread(call: Callable[[], Any]) -> None:
    """Run a call in another thread, wait for it, and raise what it raised."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    if failed:
        raise failed[0]


@case('https://github.com/NVIDIA/TensorRT/issues/2888', ck.SynchronizationError, 'one stream instead of the device',
      lambda x: x * 2)  # fmt: skip
def device_synchronize_elsewhere(cp: Any, x: Any) -> Any:
    """Another thread synchronises the device, and this one waits for it in the block: each waits for the other."""
    stream = cp.cuda.Stream(non_blocking=True)  # +

    def preprocess() -> None:
        cp.cuda.Device().synchronize()  # - <-- here
        stream.synchronize()  # + <-- instead

    with ck.capture() as cap:
        y = x * 2
        in_thread(preprocess)
    return cap, y


@case('https://github.com/ggml-org/llama.cpp/issues/13990', ck.WrongThreadError, 'in the thread that entered',
      lambda x: x + 1)  # fmt: skip
def forks_elsewhere(cp: Any, x: Any) -> Any:
    """A worker forks the capture of the thread that made it."""

    def work() -> None:
        cap.fork(2)  # <-- here

    with ck.capture() as cap:
        y = x + 1
        in_thread(work)
    return cap, y


@forks_elsewhere.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:
        y = x + 1
        with cap.fork(2):  # <-- instead
            pass
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/91970', ck.WrongThreadError, 'in the thread that began it',
      lambda x: x * 3, goes_on=False)  # fmt: skip
def ended_elsewhere(cp: Any, x: Any) -> Any:
    """Begins a capture in one thread and ends it in another."""
    stream, y = cp.cuda.Stream(non_blocking=True), x * 3

    def end() -> None:
        stream.end_capture()  # <-- here

    with watch(), stream:
        stream.begin_capture(cp.cuda.runtime.streamCaptureModeGlobal)
        cp.multiply(x, 3, out=y)
        try:
            in_thread(end)
        finally:
            stream.end_capture()
    return None, y


@ended_elsewhere.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture(options=ck.CaptureOptions(mode='global')) as cap:  # <-- instead
        y = x * 3
    in_thread(cap.graph.launch)
    return cap, y


@case('https://github.com/pytorch/pytorch/pull/140979', ck.UnmatchedError, 'another stream', lambda x: x - 1)
def captures_the_same_stream(cp: Any, x: Any) -> Any:
    """Two threads capture on one and the same stream."""

    def record() -> None:
        with ck.capture(cap.stream):  # <-- here
            x.sum()

    with ck.capture() as cap:
        y = x - 1
        in_thread(record)
    return cap, y


@captures_the_same_stream.repaired
def _(cp: Any, x: Any) -> Any:
    def record() -> None:
        with ck.capture():  # <-- instead
            x.sum()

    with ck.capture() as cap:
        y = x - 1
        in_thread(record)
    return cap, y


@case('https://github.com/roboflow/inference/pull/2866', ck.LegacyStreamError, 'memset_async',
      lambda x: x + 2)  # fmt: skip
def legacy_work_elsewhere(cp: Any, x: Any) -> Any:
    """While a blocking stream is captured, another thread clears a buffer on the legacy stream."""
    buffer = cp.zeros(8)

    stream = cp.cuda.Stream(non_blocking=True)  # +

    def clear() -> None:
        buffer.data.memset(0, buffer.nbytes)  # - <-- here
        buffer.data.memset_async(0, buffer.nbytes, stream)  # + <-- instead

    with ck.capture(cp.cuda.Stream()) as cap:
        y = x + 2
        in_thread(clear)
    return cap, y


@case('https://github.com/ggml-org/llama.cpp/issues/11804', '', '', lambda x: x * 2 + 1)
def worked_elsewhere(cp: Any, x: Any) -> Any:
    """Leaves a part of the work to another thread: it runs at once, and no launch repeats it."""
    parts = []

    def work() -> None:
        parts.append(x * 2)  # - <-- here
        with cap.stream:  # + <-- instead: in the other thread
            parts.append(x * 2)  # +

    with ck.capture() as cap:
        in_thread(work)
        y = parts[0] + 1
    return cap, y
