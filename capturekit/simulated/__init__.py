"""The simulated device: CUDA's answers and CuPy's surface on a machine without a GPU.

``install()`` makes ``import cupy`` find the stand-in (``install(SimulatedDevice(seed))`` with another seed than 0),
``uninstall()`` puts back what was there;
``body(name)`` gives a kernel of CUDA source the Python body that runs here, and ``memory_at(address, nbytes)`` gives
that body the bytes behind a pointer. Loaded when first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capturekit.simulated.cupy.assembly import install, uninstall
    from capturekit.simulated.device.machine import SimulatedDevice
    from capturekit.simulated.kernel_bodies import body, memory_at

__all__ = ['SimulatedDevice', 'body', 'install', 'memory_at', 'uninstall']

_HOMES = {
    'SimulatedDevice': 'device.machine', 'body': 'kernel_bodies', 'install': 'cupy.assembly',
    'memory_at': 'kernel_bodies', 'uninstall': 'cupy.assembly',
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
