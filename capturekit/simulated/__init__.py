"""The simulated device: CUDA's answers and CuPy's surface on a machine without a GPU.

``install()`` makes ``import cupy`` find the stand-in (``install(SimulatedDevice(seed))`` with another seed than 0),
``uninstall()`` puts back what was there;
``body(name)`` gives a kernel of CUDA source the Python body that runs here, and ``memory_at(address, nbytes)`` gives
that body the bytes behind a pointer. Loaded when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capturekit.model.lazy_names import lazy_names

if TYPE_CHECKING:
    from capturekit.simulated.cupy.assembly import install, uninstall
    from capturekit.simulated.device.machine import SimulatedDevice
    from capturekit.simulated.kernel_bodies import body, memory_at

__all__ = ['SimulatedDevice', 'body', 'install', 'memory_at', 'uninstall']

_LATER = {
    'SimulatedDevice': 'capturekit.simulated.device.machine',
    'body': 'capturekit.simulated.kernel_bodies',
    'install': 'capturekit.simulated.cupy.assembly',
    'memory_at': 'capturekit.simulated.kernel_bodies',
    'uninstall': 'capturekit.simulated.cupy.assembly',
}

__getattr__, __dir__ = lazy_names(globals(), _LATER)
