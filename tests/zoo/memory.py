"""The second launch is wrong: values of the host became constants, memory used by somebody else, inputs gone."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

import capturekit as ck
from tests.zoo.cases import case

#: Buffers that broken programs would let go of too early: here they live on.
KEPT: list[Any] = []


@case('https://github.com/pytorch/pytorch/pull/170590', 'constant', 'the same at every launch', lambda x: x + 2)
def list_uploaded(cp: Any, x: Any) -> Any:
    """Makes an array of a list that changes later: every launch has the values of the recording."""
    offsets = [1.0] * 8
    with ck.capture() as cap:
        y = x + cp.array(offsets)  # <-- here
    offsets[:] = [2.0] * 8
    return cap, y


@list_uploaded.repaired
def _(cp: Any, x: Any) -> Any:
    offsets = cp.array([1.0] * 8)
    with ck.capture() as cap:
        y = x + offsets
    offsets[...] = cp.array([2.0] * 8)  # <-- instead: in place
    return cap, y


@case('https://github.com/huggingface/candle/pull/3352', 'constant', 'the same at every launch', lambda x: x[[4, 5, 6]])
def indices_of_the_host(cp: Any, x: Any) -> Any:
    """Selects by a list of indices, and expects the next launch to take others."""
    rows = [0, 1, 2]  # -
    rows = cp.array([0, 1, 2])  # +
    with ck.capture() as cap:
        y = x[rows] * 1  # <-- here
    rows[:] = [4, 5, 6]  # -
    rows[...] = cp.array([4, 5, 6])  # + <-- instead: in place
    return cap, y


@case('https://github.com/tracel-ai/burn/issues/5779', 'scalar', '2.5', lambda x: x * 0.5,
      needs='the simulated device keeps no arguments of kernels')  # fmt: skip
def scalar_baked(cp: Any, x: Any) -> Any:
    """Multiplies by a number of the host, a learning rate that is lowered later."""
    rate = 2.5  # -
    rate = cp.full((), 2.5)  # +
    with ck.capture() as cap:
        y = x * rate  # <-- here
    rate = 0.5  # -
    assert rate  # -
    rate[...] = 0.5  # + <-- instead: in place
    return cap, y


@case('https://github.com/cupy/cupy/issues/9655', '', '', lambda x: np.zeros(8))
def temporary_given_away(cp: Any, x: Any) -> Any:
    """On bare CuPy: a temporary of the capture goes back to the pool, and launches write into its next owner."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        doubled = x * 2
        result = doubled + 1
        del doubled  # <-- here
        graph = stream.end_capture()
        somebody_elses = cp.zeros(8)
    assert result.size == 8
    return Recorded(graph, stream), somebody_elses


@temporary_given_away.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:  # <-- instead
        doubled = x * 2
        result = doubled + 1
        del doubled
    with cap.stream:
        somebody_elses = cp.zeros(8)
    cap.graph.launch()
    assert np.array_equal(result.get(), x.get() * 2 + 1)
    return cap, somebody_elses


class Recorded:
    """A graph of CuPy's own, launched on its stream and waited for."""

    def __init__(self, graph: Any, stream: Any) -> None:
        self.graph, self._made, self._stream = self, graph, stream

    def launch(self) -> None:
        self._made.launch(self._stream)
        self._stream.synchronize()


@case('https://github.com/microsoft/onnxruntime/pull/32121', 'note', 'as long as the graph', lambda x: x + 4)
def host_buffer_recycled(cp: Any, x: Any) -> Any:
    """Records a copy from a host buffer by its address, and lets somebody else have the buffer."""
    host = cp.cuda.alloc_pinned_memory(64)  # -
    KEPT.append(host)  # -
    values = np.frombuffer(host, 'f8', 8)  # -
    values[...] = 4  # -
    fours = cp.full(8, 4.0)  # + <-- instead
    y = cp.zeros(8)
    with ck.capture() as cap:
        cp.cuda.runtime.memcpyAsync(y.data.ptr, host.ptr, 64, 1, cap.stream.ptr)  # - <-- here
        y.data.copy_from_device_async(fours.data, 64)  # +
        y += x
    values[...] = 7  # -
    return cap, y


@case('https://github.com/cupy/cupy/issues/8318', ck.FreedMemoryError, 'Keep a name', lambda x: x * 2 + 1,
      goes_on=False, needs='the simulated device keeps no arguments of kernels')  # fmt: skip
def input_freed(cp: Any, x: Any) -> Any:
    """Takes its input from a queue: the array is gone when the block ends."""
    loaded = deque([deque([x * 2])])
    with ck.capture() as cap:  # <-- here
        y = loaded.popleft().popleft() + 1
    return cap, y


@input_freed.repaired
def _(cp: Any, x: Any) -> Any:
    loaded = deque([deque([cp.empty(8)])])
    first = loaded.popleft().popleft()  # <-- instead: before the block
    with ck.capture() as cap:
        first[...] = x * 2
        y = first + 1
    return cap, y


@case('https://github.com/beehive-lab/TornadoVM/issues/1006', '', '', lambda x: x * 2)
def input_replaced(cp: Any, x: Any) -> Any:
    """Binds the input's name to a new array, where the graph goes on reading the old one."""
    data = x.copy()  # -
    data = x  # + <-- instead: before the block
    with ck.capture() as cap:
        y = data * 2
    data = x  # - <-- here
    assert data.size == 8  # -
    return cap, y
