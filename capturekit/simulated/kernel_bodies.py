"""Python bodies for kernels whose CUDA source the simulated device can't run, and what they read pointers with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from capturekit.simulated.device.address_space import Bytes

Function = TypeVar('Function', bound=Callable[..., Any])

_bodies: dict[str, Callable[..., Any]] = {}


def body(kernel_name: str) -> Callable[[Function], Function]:
    """Decorate the Python function that the simulated device runs for the kernel of this name.

    For an ``ElementwiseKernel`` it gets the inputs as NumPy arrays or scalars in the order of the parameters, and
    returns the output or a tuple of them; if it takes as many arguments as the kernel has parameters, it gets the
    outputs as well and may fill them instead. For a ``ReductionKernel`` it gets the inputs, ``axis=`` and
    ``keepdims=``, and returns the output. For a ``RawKernel``, a function of a ``RawModule`` or a
    ``cupyx.jit.rawkernel`` it gets ``(grid, block, args)``, arrays as NumPy views, and writes into them; addresses
    among the arguments stay integers, for :func:`memory_at`.
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


def memory_at(address: int, nbytes: int) -> Bytes:
    """Return ``nbytes`` bytes of device or pinned memory at an address, as a view: what a kernel gets by a pointer.

    For kernel bodies, each time they run; the address may lie anywhere in an allocation. As on a GPU, what is
    allocated is what CUDA gave out: memory that went back to CuPy's pool is still there, with whatever it now holds.

    Raises:
        RuntimeError: no simulated device is installed.
        ValueError: no allocation of the installed device holds all these bytes.
    """
    device = getattr(sys.modules.get('cupy'), '__capturekit_simulated__', None)
    if device is None:
        raise RuntimeError('memory_at reads the memory of the simulated device, and none is installed')
    start, size = int(address), int(nbytes)
    for space in device.address_spaces:
        found = space.find(start, size)
        if found is not None:
            block, offset = found
            view: Bytes = block[offset : offset + size]
            return view
    raise ValueError(f'no allocation of the simulated device holds {size} bytes at address {start:#x}')
