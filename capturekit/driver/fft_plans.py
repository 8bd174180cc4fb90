"""Plans of cuFFT: which of them wait for the device while they are made, and the memory that they work in.

cuFFT makes a plan without touching the device if no length has a prime factor above 127. Otherwise (Bluestein's
algorithm) it computes tables on the device and waits for them by ``cuCtxSynchronize``, which loses every capture of the
context, in every mode and also from another thread (seen with CUPTI: cuFFT 12, driver 580).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable
from typing import Any

from capturekit.driver.vendor_libraries import loaded

#: The highest prime factor for which cuFFT has kernels of its own.
DIRECT = 127


def waits_for_the_device(lengths: Iterable[int]) -> bool:
    """Whether cuFFT waits for the device while it makes a plan for a transform of these lengths."""
    return any(_has_high_prime(int(length)) for length in lengths)


def _has_high_prime(length: int) -> bool:
    rest = max(length, 1)
    for factor in range(2, DIRECT + 1):
        while rest % factor == 0:
            rest //= factor
    return rest > 1


def lengths_of(given: Any) -> tuple[int, ...]:
    """The lengths in the first argument of CuPy's plans: a number, or the shape of a transform of several axes."""
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


def work_bytes(plan: Any) -> int:
    """How much memory a plan of CuPy's works in."""
    area: Any = getattr(plan, 'work_area', None)
    return int(area.mem.size) if hasattr(area, 'mem') else 0


@functools.cache
def _library() -> Any:
    return ctypes.CDLL(loaded('libcufft.so'))


def set_work_area(plan: Any, address: int) -> bool:
    """``cufftSetWorkArea``: the plan works in this memory from now on. False where cuFFT can't be called."""
    try:
        library = _library()
    except (LookupError, OSError):
        return False
    return int(library.cufftSetWorkArea(ctypes.c_int(int(plan.handle)), ctypes.c_void_p(address))) == 0
