"""Ways to lose a capture of ``torch.cuda.graph``, each after a public thread. As a script it loses one after another.

The guilty line ends in ``# <-- here``. ``FAILURES`` has what a watch is to say of it.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FAILURES: dict[str, Failure] = {}


@dataclass(frozen=True)
class Failure:
    """A program, the thread that it follows, and what names it: exception, CUDA's function, a part of the remedy."""

    program: Callable[[Any, Any], None]
    thread: str
    name: str
    function: str
    remedy: str

    @property
    def line(self) -> int:
        """The number of the guilty line."""
        lines, start = inspect.getsourcelines(self.program)
        return start + next(number for number, line in enumerate(lines) if '# <-- here' in line)


def failure(*facts: str) -> Callable[[Callable[[Any, Any], None]], Callable[[Any, Any], None]]:
    def note(program: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        FAILURES[program.__name__] = Failure(program, *facts)
        return program

    return note


def elsewhere(call: Callable[[], Any]) -> None:
    """Make a call in another thread, and wait for it without CUDA."""

    def made() -> None:
        with contextlib.suppress(RuntimeError):
            call()

    thread = threading.Thread(target=made)
    thread.start()
    thread.join()


def graph(torch: Any) -> Any:
    return torch.cuda.graph(torch.cuda.CUDAGraph())


@failure('Lightning-AI/lightning-thunder#727', 'HostReadError', 'cudaStreamSynchronize', 'torch.where')
def a_value_is_read(torch: Any, x: Any) -> None:
    with graph(torch):
        total = x.sum()
        if total.item() > 0:  # <-- here
            x /= total


@failure('pytorch/pytorch#78549', 'HostReadError', 'cudaStreamSynchronize', 'read it after `graph.replay()`')
def a_mask_picks_elements(torch: Any, x: Any) -> None:
    with graph(torch):
        positive = x > 0
        picked = x[positive]  # <-- here
        picked += 1


@failure('microsoft/onnxruntime#15002', 'SynchronizationError', 'cudaStreamSynchronize', '`side.wait_stream(stream)`')
def the_stream_is_waited_for(torch: Any, x: Any) -> None:
    with graph(torch):
        x += 1
        torch.cuda.current_stream().synchronize()  # <-- here


@failure('NVIDIA/TensorRT#2888', 'SynchronizationError', 'cudaDeviceSynchronize', 'Let the other thread wait')
def another_thread_waits_for_the_device(torch: Any, x: Any) -> None:
    def synchronize() -> None:
        torch.cuda.synchronize()  # <-- here

    with graph(torch):
        x += 1
        elsewhere(synchronize)


@failure('vllm-project/vllm#48053', 'UnsupportedCallError', 'cudaMalloc', "capture_error_mode='thread_local'")
def another_thread_loads_a_batch(torch: Any, x: Any) -> None:
    def load() -> None:
        torch.empty(1 << 26, device='cuda')  # <-- here

    with graph(torch):
        x += 1
        elsewhere(load)


@failure('pytorch/pytorch#104487', 'SynchronizationError', 'cudaEventQuery', "capture_error_mode='thread_local'")
def a_watchdog_asks_an_event(torch: Any, x: Any) -> None:
    event = torch.cuda.Event()
    event.record()

    def watchdog() -> None:
        event.query()  # <-- here

    with graph(torch):
        x += 1
        elsewhere(watchdog)


@failure('pytorch/pytorch#180090', 'IsolationError', 'StreamWaitEvent', 'Wait before `torch.cuda.graph(...)`')
def an_event_from_before_is_waited_for(torch: Any, x: Any) -> None:
    event = torch.cuda.Event()
    event.record()
    with graph(torch):
        x += 1
        torch.cuda.current_stream().wait_event(event)  # <-- here


@failure('NVIDIA/warp#556', 'SynchronizationError', 'cudaEventSynchronize', 'or wait after `graph.replay()`')
def a_piece_is_timed(torch: Any, x: Any) -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with graph(torch):
        start.record()
        x += 1
        end.record()
        end.synchronize()  # <-- here


@failure('aws/aws-ofi-nccl#1342', 'UnsupportedCallError', 'cudaMalloc', "`capture_error_mode='relaxed'` allows it")
def a_plugin_allocates(torch: Any, x: Any) -> None:
    from cuda.bindings import runtime

    with graph(torch):
        x += 1
        runtime.cudaMalloc(1 << 20)  # <-- here
        x += 1


@failure(
    'google-deepmind/mujoco_warp#425', 'UnsupportedCallError', 'cuModuleUnload', 'Make the call before the capture'
)
def a_module_is_unloaded(torch: Any, x: Any) -> None:
    from cuda.bindings import driver

    code = b'.version 7.0\n.target sm_52\n.address_size 64\n.visible .entry nothing() { ret; }\n'
    module = driver.cuModuleLoadData(code)[1]
    with graph(torch):
        x += 1
        driver.cuModuleUnload(module)  # <-- here
        x += 1


@failure(
    'deepseek-ai/DeepEP#62', 'UnjoinedError', 'cudaStreamEndCapture', 'torch.cuda.current_stream().wait_stream(side)'
)
def a_side_stream_is_not_joined(torch: Any, x: Any) -> None:
    side = torch.cuda.Stream()
    with graph(torch):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x += 1  # <-- here


@failure('NVIDIA/TransformerEngine#808', 'LegacyStreamError', 'cuLaunchKernel', 'torch.cuda.current_stream()')
def work_goes_to_the_default_stream(torch: Any, x: Any) -> None:
    with graph(torch):
        x += 1
        with torch.cuda.stream(torch.cuda.default_stream()):
            x *= 2  # <-- here


@failure(
    'pytorch/pytorch#15623', 'EscapedWorkError', 'cuLaunchKernel', '`side.wait_stream(torch.cuda.current_stream())`'
)
def work_goes_to_a_stream_outside(torch: Any, x: Any) -> None:
    side = torch.cuda.Stream()
    with graph(torch):
        x += 1
        with torch.cuda.stream(side):
            x *= 2  # <-- here


def main() -> None:
    """Lose a capture in each way, and go on; at last, make one that is good."""
    import torch

    x = torch.ones(64, device='cuda')
    x[x > 0], x.sum().item(), x / 1, x * 1  # loaded beforehand
    torch.cuda.synchronize()
    for name, one in FAILURES.items():
        try:
            one.program(torch, x)
        except RuntimeError as error:
            print(name, type(error).__name__)
        else:
            print(name, 'no error')
        torch.cuda.synchronize()
    good = torch.cuda.CUDAGraph()
    with torch.cuda.graph(good):
        x += 1
    x.zero_()
    good.replay()
    print('good', float(x.sum()))


if __name__ == '__main__':
    main()
