"""Python bodies for kernels whose CUDA source the simulated device can't run. Needs nothing, imports nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar('Function', bound=Callable[..., Any])

_bodies: dict[str, Callable[..., Any]] = {}


def body(kernel_name: str) -> Callable[[Function], Function]:
    """Decorate the Python function that the simulated device runs for the kernel of this name.

    For an ``ElementwiseKernel`` it gets the inputs as NumPy arrays or scalars in the order of the parameters, and
    returns the output or a tuple of them; if it takes as many arguments as the kernel has parameters, it gets the
    outputs as well and may fill them instead. For a ``ReductionKernel`` it gets the inputs, ``axis=`` and
    ``keepdims=``, and returns the output. For a ``RawKernel``, a function of a ``RawModule`` or a
    ``cupyx.jit.rawkernel`` it gets ``(grid, block, args)``, arrays as NumPy views, and writes into them.
    """

    def register(fn: Function) -> Function:
        _bodies[kernel_name] = fn
        return fn

    return register


def body_of(kernel_name: str, kind: str) -> Callable[..., Any]:
    """Return the body of a kernel; raises NotImplementedError that says how to give it one."""
    try:
        return _bodies[kernel_name]
    except KeyError:
        raise NotImplementedError(
            f'the simulated device cannot run the CUDA source of {kind} {kernel_name!r}: '
            f'give it a Python body with @capturekit.simulated.body({kernel_name!r})'
        ) from None
