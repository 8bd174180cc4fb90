"""Kernels of capturekit's own, and the one that sets the condition of a conditional node from a number on the device.

CUDA C++ Programming Guide, "Conditional Graph Nodes": a condition has 32 bits; kernels set it while a launch runs. An
IF node runs its first body if the condition is not 0, and otherwise its second, if it has one; a WHILE node runs its
body until the condition is 0; a SWITCH node runs the body of that number, and none if there are fewer.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from capturekit.driver.cuda import Platform, current

KERNEL = 'capturekit_decide'
#: CUDA's function that sets a condition.
DECLARED = (
    'extern "C" __device__ __cudart_builtin__ void CUDARTAPI '
    'cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);\n'
)
_SOURCE = r"""
extern "C" __global__ void capturekit_decide(
    const unsigned char* value, int nbytes, int negative, int truth, unsigned long long* passes, int again,
    unsigned long long limit, unsigned long long condition)
{
    unsigned long long found = 0;
    for (int i = 0; i < nbytes; i++) found |= (unsigned long long)value[i] << (8 * i);
    if (negative && nbytes < 8 && (found >> (8 * nbytes - 1) & 1)) found |= ~0ull << (8 * nbytes);
    if (truth) found = found != 0;
    else if (found > 0xffffffffull) found = 0xffffffffull;
    passes[0] = again ? passes[0] + 1 : 0;
    if (limit && passes[0] >= limit) found = 0;
    cudaGraphSetConditional(condition, (unsigned int)found);
}
"""


def decide(platform: Platform, value: Any, truth: bool, passes: Any, again: bool, limit: int, condition: int) -> None:
    """Record, on the current stream, that ``condition`` is set from ``value``, a boolean or whole number.

    ``truth``: to 0 or 1, not to the number. ``passes``: one word that counts, from 0 where ``again`` is False;
    from ``limit`` on, unless that is 0, the condition is 0.
    """
    dtype = value.dtype
    compiled(platform, KERNEL, DECLARED + _SOURCE, _decide)(
        (1,), (1,),
        (
            value, np.int32(dtype.itemsize), np.int32(dtype.kind == 'i'), np.int32(truth), passes, np.int32(again),
            np.uint64(limit), np.uint64(condition),
        ),
    )  # fmt: skip


def compiled(platform: Platform, name: str, source: str, body: Callable[[Any, Any, Any], None]) -> Any:
    """A kernel of capturekit's own, compiled once for each CuPy. ``body``: what it does on the simulated device."""
    found = platform.device.kernels.get(name)
    if found is None:
        if platform.simulated:
            importlib.import_module('capturekit.simulated').body(name)(body)
        found = platform.device.kernels[name] = platform.cupy.RawKernel(source, name)
    return found


def _decide(_grid: Any, _block: Any, args: Any) -> None:
    """The kernel for the simulated device."""
    value, _nbytes, _negative, truth, passes, again, limit, condition = args
    number = int(value.reshape(-1)[0])
    found = int(number != 0) if truth else number if 0 <= number <= 0xFFFFFFFF else 0xFFFFFFFF
    passes[0] = int(passes[0]) + 1 if again else 0
    if limit and int(passes[0]) >= int(limit):
        found = 0
    current().device.condition_set(int(condition), found)
