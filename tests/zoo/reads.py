"""The host reads a value that nothing has computed yet."""

from __future__ import annotations

from typing import Any

import numpy as np

import capturekit as ck
from tests.zoo.cases import case

AFTER = 'cap.graph.launch()'


@case('https://github.com/NVIDIA/warp/issues/545', ck.HostReadError, AFTER, lambda x: x * 2)
def get(cp: Any, x: Any) -> Any:
    """Copies a result to the host at the end of the recorded step."""
    seen = []
    with ck.capture() as cap:
        y = x * 2
        seen.append(y.get())  # - <-- here
    cap.graph.launch()  # +
    seen.append(y.get())  # + <-- instead: after the launch
    assert np.array_equal(seen[0], x.get() * 2)  # +
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/106802', ck.HostReadError, 'on the device', lambda x: x * x[0],
      rest=lambda x: x)  # fmt: skip
def item(cp: Any, x: Any) -> Any:
    """Takes a learning rate out of an array, to multiply by it."""
    with ck.capture() as cap:
        y = x.copy()
        y *= x[0].item()  # - <-- here
        y *= x[0]  # + <-- instead
    return cap, y


@case('https://github.com/vllm-project/vllm/issues/4502', ck.HostReadError, AFTER, lambda x: x + 1)
def printing(cp: Any, x: Any) -> Any:
    """Prints an array, to see what goes on."""
    with ck.capture() as cap:
        y = x + 1
        print(y)  # - <-- here
    cap.graph.launch()  # +
    print(y)  # + <-- instead: after the launch
    return cap, y


@case('https://github.com/pytorch/pytorch/pull/63269', ck.HostReadError, 'cp.where', lambda x: np.where(x > 4, 4, x),
      rest=lambda x: x)  # fmt: skip
def if_array(cp: Any, x: Any) -> Any:
    """Decides by a value on the device: `if array:`."""
    with ck.capture() as cap:
        y = x.copy()
        if (y > 4).any():  # - <-- here
            y = cp.minimum(y, 4)  # -
        y = cp.where((y > 4).any(), cp.minimum(y, 4), y)  # + <-- instead
    return cap, y


@case('https://github.com/lupinemachines/lupine/pull/674', ck.HostReadError, 'on the device', lambda x: x / 16,
      rest=lambda x: x)  # fmt: skip
def until_converged(cp: Any, x: Any) -> Any:
    """Iterates until the error is small, which the host reads each time."""
    with ck.capture() as cap:
        y = x.copy()
        while float(abs(y).max()) > 1:  # <-- here
            y *= 0.5
    return cap, y


@until_converged.repaired
def _(cp: Any, x: Any) -> Any:
    with ck.capture() as cap:
        y = x.copy()
        for _step in range(4):  # <-- instead
            y *= 0.5
    return cap, y


@case('https://github.com/vllm-project/vllm-omni/issues/4562', ck.HostReadError, 'cp.where',
      lambda x: np.where(x > 3, x, 0).sum()[None], rest=lambda x: x)  # fmt: skip
def boolean_mask(cp: Any, x: Any) -> Any:
    """Selects by a mask: how many there are decides the shape, so the host has to know."""
    with ck.capture() as cap:
        y = x.copy()
        y = y[y > 3].sum()[None]  # - <-- here
        y = cp.where(y > 3, y, 0).sum()[None]  # + <-- instead
    return cap, y


@case('https://github.com/NVIDIA/TensorRT/issues/4194', ck.HostReadError, 'Keep the length',
      lambda x: (x != 0).sum()[None], rest=lambda x: x)  # fmt: skip
def nonzero(cp: Any, x: Any) -> Any:
    """Asks where an array is not zero, and for how many."""
    with ck.capture() as cap:
        y = x.copy()
        y = cp.full(1, cp.nonzero(x)[0].size)  # - <-- here
        y = cp.count_nonzero(x)[None]  # + <-- instead
    return cap, y


@case('https://github.com/pytorch/pytorch/issues/196133', ck.HostReadError, 'Keep the length',
      lambda x: np.sort(x), rest=lambda x: x)  # fmt: skip
def unique(cp: Any, x: Any) -> Any:
    """Looks for the different values: again the shape is a matter of the values."""
    with ck.capture() as cap:
        y = x.copy()
        y = cp.unique(y)  # - <-- here
        y = cp.sort(y)  # + <-- instead
    return cap, y


@case('https://github.com/lix19937/tensorrt-insight/issues/22', ck.HostReadError, 'on the device',
      lambda x: np.where(np.arange(8) < x.min(), x, 0), rest=lambda x: x)  # fmt: skip
def shape_from_the_device(cp: Any, x: Any) -> Any:
    """Computes a size on the device, and slices by it on the host."""
    with ck.capture() as cap:
        y = x.copy()
        y[int(x.min()) :] = 0  # - <-- here
        y = cp.where(cp.arange(8) < x.min(), y, 0)  # + <-- instead
    return cap, y


@case('https://github.com/NVIDIA/warp/issues/653', ck.HostReadError, AFTER, lambda x: x * 5)
def copy_to_host_async(cp: Any, x: Any) -> Any:
    """Copies the result into host memory by the last operation of the capture."""
    host = np.zeros(8)
    with ck.capture() as cap:
        y = x * 5
        y.data.copy_to_host_async(host.ctypes.data, host.nbytes)  # - <-- here
    cap.graph.launch()  # +
    y.get(out=host)  # + <-- instead: after the launch
    assert np.array_equal(host, x.get() * 5)  # +
    return cap, y
