"""``cupy_backends.cuda.libs``: the vendor's libraries, as far as they refuse to be captured.

Each has its own ``streamIsCapturing``, as CuPy's modules bind one at import; where that answers False, the library's
work is recorded like any other. What draws random numbers is in :mod:`curand`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import runtime
from .current import get_current_stream_ptr
from .surface import CUBLAS, CUSOLVER, WAITING


def _library(name: str, spoken: str) -> Any:
    module: Any = ModuleType(f'cupy_backends.cuda.libs.{name}')
    module.streamIsCapturing = runtime.streamIsCapturing

    def setStream(handle: int, stream: int) -> None:
        if module.streamIsCapturing(stream):
            raise NotImplementedError(f'calling {spoken} API during stream capture is currently unsupported')

    module.setStream = setStream
    return module


cublas = _library('cublas', 'cuBLAS')
cusolver = _library('cusolver', 'cuSOLVER')
cusparse = _library('cusparse', 'cuSPARSE')


def use(library: Any, waits: bool = False) -> None:
    """Set the library's stream to the current one; ``waits``: the routine synchronises it inside."""
    stream = get_current_stream_ptr()
    library.setStream(0, stream)
    if waits and runtime.streamIsCapturing(stream):
        runtime.streamSynchronize(stream)


def needed_by(name: str) -> Callable[[], None] | None:
    """Return what a function by this name does to its library before it launches."""
    if name in CUSOLVER:
        return lambda: use(cusolver, name in WAITING)
    if name in CUBLAS:
        return lambda: use(cublas)
    return None
