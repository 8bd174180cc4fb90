"""The simulated device: CUDA's answers and CuPy's surface on a machine without a GPU.

``install(SimulatedDevice(seed))`` makes ``import cupy`` find the stand-in, ``uninstall()`` puts back what was there;
``body(name)`` gives a kernel of CUDA source the Python body that runs here, and ``memory_at(address, nbytes)`` gives
that body the bytes behind a pointer. Loaded when first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capturekit.simulated.bodies import body, memory_at
    from capturekit.simulated.cupy import install, uninstall
    from capturekit.simulated.device import SimulatedDevice

__all__ = ['SimulatedDevice', 'body', 'install', 'memory_at', 'uninstall']

_HOMES = {
    'SimulatedDevice': 'device', 'body': 'bodies', 'install': 'cupy', 'memory_at': 'bodies', 'uninstall': 'cupy',
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
