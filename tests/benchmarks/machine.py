"""On what numbers were taken: the device and the versions."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress
from typing import Any

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
        found |= {name: f'CUDA {getattr(runtime, name + "GetVersion")()}' for name in ('driver', 'runtime')}
    for package in (*PACKAGES, *packages):
        found[package] = 'absent'
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
