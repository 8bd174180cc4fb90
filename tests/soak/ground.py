"""What the parts stand on: CuPy or its stand-in, and what is measured of the process."""

from __future__ import annotations

import gc
import os
from typing import Any

from capturekit.guard import GUARD


def cupy() -> tuple[Any, bool]:
    """CuPy where it has a device, else the stand-in; and whether it is the stand-in."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError):
        from capturekit.simulated import SimulatedDevice, install

        install(SimulatedDevice())
        import cupy

        return cupy, True
    return cupy, hasattr(cupy, '__capturekit_simulated__')


def resident() -> int:
    """Bytes of host memory that the process holds."""
    with open('/proc/self/statm', encoding='ascii') as f:
        return int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


def held(cp: Any) -> dict[str, int]:
    """What may grow, in bytes and numbers."""
    gc.collect()
    cp.cuda.Device().synchronize()
    free, total = cp.cuda.runtime.memGetInfo()
    kinds = [type(one) for one in gc.get_objects()]
    return {
        'device memory': total - free,
        'host memory': resident(),
        'file handles': len(os.listdir('/proc/self/fd')),
        'streams': sum(issubclass(kind, cp.cuda.Stream) for kind in kinds),
        'events': sum(issubclass(kind, cp.cuda.Event) for kind in kinds),
        'objects': len(kinds),
    }


def left_open() -> list[str]:
    """What a capture has left behind in this process."""
    signs = {
        'wrappers': GUARD.installation.installed,
        'captures': GUARD.lives or GUARD.ledger.captures,
        'streams that stand in': GUARD.state.placeholders,
        'allocators': GUARD.allocators.kept,
        'garbage collection held off': not gc.isenabled(),
    }
    return [name for name, sign in signs.items() if sign]
