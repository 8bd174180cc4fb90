"""What tests of several devices share: their arrays, what those hold, a stream of each."""

from __future__ import annotations

from typing import Any

import numpy as np


def count(cp: Any) -> int:
    return int(cp.cuda.runtime.getDeviceCount())


def arrays(cp: Any, n: int = 1000) -> list[Any]:
    """An array of each device: arange + 10 * device."""
    found = []
    for device in range(count(cp)):
        with cp.cuda.Device(device):
            found.append(cp.arange(n, dtype='f8') + 10 * device)
            cp.cuda.Device().synchronize()
    return found


def value(cp: Any, array: Any) -> Any:
    """An array on the host, when all that was launched is done: CuPy reads on the null stream of the array's device,
    which does not come after a launch on another one's."""
    for device in range(count(cp)):
        cp.cuda.Device(device).synchronize()
    return cp.asnumpy(array)


def of(cp: Any, device: int, n: int = 1000) -> Any:
    return np.arange(n) + 10.0 * device


def side_of(cp: Any, device: int) -> Any:
    with cp.cuda.Device(device):
        return cp.cuda.Stream(non_blocking=True)
