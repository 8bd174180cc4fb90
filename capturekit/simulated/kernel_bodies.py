"""Python bodies for kernels whose CUDA source the simulated device can't run, and what they read pointers with."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from capturekit.simulated.device.address_space import Bytes

Function = TypeVar('Function', bound=Callable[..., Any])

_bodies: dict[str, Callable[..., Any]] = {}
#: The last kernel of each name: an object with ``name``, ``body_calls`` and ``body_keywords``.
_kernels: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


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
        kernel = _kernels.get(kernel_name)
        if kernel is not None:
            _call_of(fn, kernel)
        _bodies[kernel_name] = fn
        return fn

    return register


def kernel_made(kernel: Any) -> None:
    """Be told of a new kernel, so that a body which can't be called as this kernel calls it is refused."""
    _kernels[kernel.name] = kernel


def body_of(kernel: Any) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Return the body of a kernel, and by which of ``kernel.body_calls`` it is called.

    Raises:
        NotImplementedError: it has none; the text says how to give it one.
        TypeError: it can't be called so.
    """
    fn = _bodies.get(kernel.name)
    if fn is None:
        raise NotImplementedError(
            f'the simulated device cannot run the CUDA source of {type(kernel).__name__} {kernel.name!r}: '
            f'give it a Python body with @capturekit.simulated.body({kernel.name!r})'
        )
    return fn, _call_of(fn, kernel)


def _call_of(fn: Callable[..., Any], kernel: Any) -> tuple[str, ...]:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a function of C that does not tell
        return tuple(kernel.body_calls[-1])
    for names in kernel.body_calls:
        try:
            signature.bind(*names, **dict.fromkeys(kernel.body_keywords))
        except TypeError:
            continue
        return tuple(names)
    name, takes = getattr(fn, '__name__', 'body'), ', '.join(signature.parameters)
    shown = [', '.join((*names, *kernel.body_keywords)) for names in kernel.body_calls]
    raise TypeError(
        f'the simulated device calls the body of {type(kernel).__name__} {kernel.name!r} with '
        f'({") or (".join(shown)}), and {name}({takes}) does not take that. Write: def {name}({shown[-1]}): ...'
    )


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
