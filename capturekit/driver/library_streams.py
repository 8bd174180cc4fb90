"""The streams that CuPy's handles of cuBLAS, cuSOLVER and cuSPARSE work on.

A handle works on the stream that it was given last. CuPy gives it the current stream in nearly every function, but not
in all (:data:`SILENT`): a product of two sparse matrices runs wherever the call before it ran. After a capture that is
the capture's stream, which is not ordered with the caller's work: the product reads arrays that are not written yet,
and writes into memory that has been handed out again since.

So two things are done. While the guard is installed, and in calls that the host makes between two graphs, those
functions are given the current stream. And when a capture ends, every handle that it has used is given the stream that
is current then. (cuSPARSE documentation, ``cusparseSetStream``; cuBLAS documentation, ``cublasSetStream``.)
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from capturekit.model.skipped_exits import Lock, contextmanager

#: CuPy's package of modules of vendor libraries.
PACKAGE = 'cupy_backends.cuda.libs'
#: CuPy's functions that start work without setting the handle's stream (CuPy 14.0 to 14.2, `cupy_backends/cuda/libs`).
SILENT = {
    'cublas': ('zdotc',),
    'cusolver': ('cormqr', 'zormqr'),
    'cusparse': ('spGEMM_workEstimation', 'spGEMM_compute', 'spGEMM_copy', 'gather'),
}
#: The attribute of ``cupy.cuda.Device`` that is this thread's handle.
_HANDLES = {'cublas': 'cublas_handle', 'cusolver': 'cusolver_handle', 'cusparse': 'cusparse_handle'}


class LibraryStreams:
    """Gives CuPy's library handles their streams. Each thread has its own handles; any thread may call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._holders = 0
        self._undo: list[Callable[[], Any]] = []
        #: The handles that captures of a thread have used: library and device, by thread.
        self._used: dict[int, set[tuple[str, int]]] = {}

    def install(self, cupy: Any) -> None:
        """Give the functions in :data:`SILENT` the current stream from now on. Calls are counted."""
        with self._lock:
            self._holders += 1
            for name, functions in SILENT.items() if self._holders == 1 else ():
                module = sys.modules.get(f'{PACKAGE}.{name}')
                for function in functions:
                    if hasattr(module, function):
                        self._replace(cupy, module, function)

    def _replace(self, cupy: Any, module: Any, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def on_current_stream(handle: Any, *args: Any, **kwargs: Any) -> Any:
            module.setStream(handle, cupy.cuda.get_current_stream().ptr)
            return original(handle, *args, **kwargs)

        setattr(module, name, on_current_stream)
        self._undo.append(lambda: setattr(module, name, original))

    def uninstall(self) -> None:
        """Release once; the last time restores every function."""
        with self._lock:
            self._holders -= 1
            while self._undo and not self._holders:
                self._undo.pop()()

    @contextmanager
    def following(self, cupy: Any) -> Iterator[None]:
        """In the block the silent functions work on the current stream."""
        self.install(cupy)
        try:
            yield
        finally:
            self.uninstall()

    def note(self, cupy: Any, name: str) -> None:
        """Note that this thread's handle of a library is about to get a stream of a capture."""
        if name not in _HANDLES:
            return
        try:
            device = int(cupy.cuda.runtime.getDevice())
        except cupy.cuda.runtime.CUDARuntimeError:  # there is no device, and so no handle that could have been used
            return
        self._used.setdefault(threading.get_ident(), set()).add((name, device))

    def give_back(self, cupy: Any) -> None:
        """Give the handles that an ended capture of this thread has used the stream that is current now."""
        for name, device in sorted(self._used.pop(threading.get_ident(), ())):
            module = sys.modules[f'{PACKAGE}.{name}']
            handle = getattr(cupy.cuda.Device(device), _HANDLES[name])
            module.setStream(handle, cupy.cuda.get_current_stream(device).ptr)
