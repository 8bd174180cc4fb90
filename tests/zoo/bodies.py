"""What the block itself does: exceptions, swallowed ones, suspension, destructors."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import capturekit as ck
from tests.zoo.cases import case

#: Before this Python nobody tells of a `yield`, and the capture is refused where it is opened.
YIELDS = (3, 12)


@case('https://github.com/pytorch/pytorch/issues/92684', ZeroDivisionError, 'division by zero', lambda x: x / 2,
      goes_on=False)  # fmt: skip
def exception_in_the_body(cp: Any, x: Any) -> Any:
    """The block raises. Elsewhere the end of the capture then raises 901, which hides it."""
    rounds = 0  # -
    rounds = 1  # + <-- instead
    with ck.capture() as cap:
        y = x / 2
        y *= 1 / rounds  # <-- here
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/99397', ZeroDivisionError, 'cap.join(stream)', lambda x: x + 1,
      goes_on=False)  # fmt: skip
def exception_with_an_escape(cp: Any, x: Any) -> Any:
    """Two faults at once: the block raises, and work has escaped before. Both are told."""
    side, rounds = cp.cuda.Stream(non_blocking=True), 0  # -
    side, rounds = cp.cuda.Stream(non_blocking=True), 1  # +
    with ck.capture() as cap:
        y = x + 1
        side.wait_event(cap.stream.record())  # + <-- instead
        with side:
            y += 1 / 2
            y *= 1 / rounds  # <-- here
            y -= 1 / 2  # +
        cap.join(side)  # + <-- instead
    return cap, y


@case('https://github.com/csarofeen/pytorch/issues/2098', ck.InvalidatedError, 'Move that call out of the block',
      lambda x: x * 2, goes_on=False)  # fmt: skip
def swallowed_below(cp: Any, x: Any) -> Any:
    """A library past CuPy synchronises, and swallows the error: CUDA tells only later, and not where."""
    from capturekit.driver.cuda import current

    with ck.capture() as cap:
        y = x * 2
        try:  # noqa: SIM105 (swallowing it is the fault)
            current().device.device_synchronize()  # <-- here
        except Exception:
            pass
    return cap, y


@swallowed_below.repaired
def _(cp: Any, x: Any) -> Any:
    from capturekit.driver.cuda import current

    with ck.capture() as cap:
        y = x * 2
    cap.graph.launch()
    current().device.device_synchronize()  # <-- instead: after the launch
    return cap, y


@case('https://github.com/vllm-project/vllm/issues/12438', RuntimeError, 'Move that call out of the block',
      lambda x: x * 2 + 1, goes_on=False)  # fmt: skip
def told_too_late(cp: Any, x: Any) -> Any:
    """The same, and the next operation fails with CUDA's 901, "due to a previous error". A note on it says which."""
    from capturekit.driver.cuda import current

    with ck.capture() as cap:
        y = x * 2
        try:  # noqa: SIM105 (swallowing it is the fault)
            current().device.device_synchronize()  # <-- here
        except Exception:
            pass
        y += 1
    return cap, y


@told_too_late.repaired
def _(cp: Any, x: Any) -> Any:
    from capturekit.driver.cuda import current

    with ck.capture() as cap:
        y = x * 2
        y += 1
    cap.graph.launch()
    current().device.device_synchronize()  # <-- instead: after the launch
    return cap, y


@case('https://github.com/NVIDIA/cuopt/pull/1253', 'note', 's.synchronize()', lambda x: x * 3,
      rest=lambda x: x * 2)  # fmt: skip
def swallowed_refusal(cp: Any, x: Any) -> Any:
    """A helper falls back to something else when a call fails, and so the fallback is what is recorded."""
    with ck.capture() as cap:
        y = x * 2
        try:
            cap.stream.synchronize()  # <-- here
            y = x * 3
        except Exception:  # swallowing it is the fault
            pass
    return cap, y


@swallowed_refusal.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:
        y = x * 2
        y = x * 3  # <-- instead: without the call
    cap.graph.launch()
    return cap, y


@case('https://github.com/NVIDIA/cuda-python/pull/1235', ck.GeneratorError, 'before `yield`', lambda x: x * 2,
      goes_on=False, since=YIELDS)  # fmt: skip
def suspended_generator(cp: Any, x: Any) -> Any:
    """A generator yields from inside the block: whoever goes on meanwhile is recorded."""

    def steps() -> Iterator[Any]:
        with ck.capture() as cap:
            y = x * 2
            yield cap, y  # <-- here

    return next(steps())


@suspended_generator.repaired
def _(cp: Any, x: Any) -> Any:
    def steps() -> Iterator[Any]:
        cap, y = step()
        yield cap, y

    def step() -> Any:
        with ck.capture() as cap:  # <-- instead
            y = x * 2
        return cap, y

    return next(steps())


@case('https://github.com/NVIDIA/cuda-python/pull/2008', ck.GeneratorError, '`await`', lambda x: x + 7,
      goes_on=False, since=YIELDS)  # fmt: skip
def suspended_coroutine(cp: Any, x: Any) -> Any:
    """A coroutine awaits in the block: the loop runs others, on the captured stream."""
    import asyncio

    async def step() -> Any:
        with ck.capture() as cap:
            y = x + 7
            await asyncio.sleep(0)  # <-- here
        return cap, y

    return asyncio.run(step())


@suspended_coroutine.repaired
def _(cp: Any, x: Any) -> Any:
    import asyncio

    async def step() -> Any:
        await asyncio.sleep(0)  # <-- instead: before the block
        return record()

    def record() -> Any:
        with ck.capture() as cap:
            y = x + 7
        return cap, y

    return asyncio.run(step())


class Reader:
    """Something with a destructor that tidies up after its stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.itself: Any = None

    def __del__(self) -> None:
        self.stream.synchronize()


@case('https://github.com/NVIDIA/TransformerEngine/issues/2092', ck.SynchronizationError, 's.synchronize()',
      lambda x: x + 1)  # fmt: skip
def destructor(cp: Any, x: Any) -> Any:
    """The last name of an object goes, and its destructor synchronises. Python prints that, and goes on."""

    class Buffer:
        def __del__(self) -> None:
            cap.stream.synchronize()  # <-- here

    buffer = Buffer()
    with ck.capture() as cap:
        y = x + 1
        del buffer
    return cap, y


@destructor.repaired
def _(cp: Any, x: Any) -> Any:
    stream = cp.cuda.Stream(non_blocking=True)
    buffer = Reader(stream)
    with ck.capture(stream) as cap:
        y = x + 1
    del buffer  # <-- instead: after the block
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/1714', ck.SynchronizationError, 's.synchronize()', lambda x: x * 6)
def garbage_collector(cp: Any, x: Any) -> Any:
    """Collects garbage in the block: what is found there has a destructor that synchronises."""

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            cap.stream.synchronize()  # <-- here

    with ck.capture() as cap:
        y = x * 6
        Cycle()
        gc.collect()
    return cap, y


@garbage_collector.repaired
def _(cp: Any, x: Any) -> Any:
    stream = cp.cuda.Stream(non_blocking=True)
    reader = Reader(stream)
    reader.itself = reader
    with ck.capture(stream) as cap:
        y = x * 6
        del reader
    gc.collect()  # <-- instead: after the block
    return cap, y


@case(
    'https://github.com/pytorch/pytorch/pull/190308', ck.ClosedError, 'open a new one', lambda x: x - 5, goes_on=False
)
def failed_and_used(cp: Any, x: Any) -> Any:
    """The capture fails, the error is logged, and the graph is launched all the same."""
    cap = ck.capture()
    with contextlib.suppress(RuntimeError), cap:
        y = x - 5
        cap.stream.synchronize()
    cap.graph.launch()  # - <-- here
    with ck.capture() as cap:  # + <-- instead
        y = x - 5  # +
    return cap, y
