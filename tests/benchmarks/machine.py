"""On what numbers were taken: the device and the versions."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

#: Whose versions are told.
PACKAGES = ('cupy-cuda13x', 'cupy-cuda12x', 'cuda-bindings', 'torch', 'jax', 'numpy')


def machine(cp: Any, *packages: str) -> dict[str, str]:
    """The device, if there is one, and the versions that numbers hold for, also those of more packages."""
    import capturekit

    found = {'python': platform.python_version(), 'capturekit': capturekit.__version__}
    if hasattr(cp, '__capturekit_simulated__'):
        found['device'] = 'the simulated device'
    elif hasattr(cp, 'cuda'):
        runtime = cp.cuda.runtime
        found['device'] = runtime.getDeviceProperties(cp.cuda.Device().id)['name'].decode()
        found['driver'] = f'CUDA {runtime.driverGetVersion()}'
        found['runtime'] = f'CUDA {runtime.runtimeGetVersion()}'
    for package in (*PACKAGES, *packages):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = 'absent'
    return found
