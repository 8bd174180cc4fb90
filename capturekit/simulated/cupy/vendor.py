"""``cupy_backends.cuda.libs``: the vendor's libraries, as far as they refuse to be captured, and their streams.

Each has its own ``streamIsCapturing``, as CuPy's modules bind one at import; where that answers False, the library's
work is recorded like any other. Nearly all functions give the handle the current stream before each call; what does
not works on the stream that the handle was given last. What draws random numbers is in :mod:`curand`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from capturekit.simulated.cupy.surface import CUBLAS, CUSOLVER, WAITING

from . import devices, runtime, runtime_calls
from .runtime_calls import get_current_stream_ptr


def _library(name: str, spoken: str) -> Any:
    module: Any = ModuleType(f'cupy_backends.cuda.libs.{name}')
    module.streamIsCapturing = runtime.streamIsCapturing

    def setStream(handle: int, stream: int) -> None:
        if module.streamIsCapturing(stream):
            raise NotImplementedError(f'calling {spoken} API during stream capture is currently unsupported')
        runtime_calls.state.library_streams.setdefault(name, {})[handle] = stream

    def getStream(handle: int) -> int:
        return runtime_calls.state.library_streams.get(name, {}).get(handle, 0)

    module.setStream, module.getStream = setStream, getStream
    return module


cublas = _library('cublas', 'cuBLAS')
cusolver = _library('cusolver', 'cuSOLVER')
cusparse = _library('cusparse', 'cuSPARSE')


#: ``cudaDataType``.
_CODES = {'e': 2, 'f': 0, 'd': 1, 'F': 4, 'D': 5}


def _gemmEx(handle: int, *args: int) -> None:
    use(cublas)
    make, runtime_calls.state.thread.product = getattr(runtime_calls.state.thread, 'product', None), None
    if make is not None:
        make()


cublas.gemmEx = _gemmEx


def multiplied(x1: Any, x2: Any, out: Any, make: Callable[[], Any]) -> None:
    """Call cuBLAS as CuPy does for the product of two matrices, which ``make`` makes: C' = B' A', column by column."""
    (m, k), n = x1.shape, x2.shape[1]
    code = _CODES[out.dtype.char]
    runtime_calls.state.thread.product = make  # what calls cuBLAS knows the arrays, and the call has addresses
    (a, ta, lda), (b, tb, ldb) = _as_cublas_has_it(x1), _as_cublas_has_it(x2)
    # looked up where programs find it: what is replaced there is honoured, as in CuPy
    of = runtime_calls.public['cupy_backends.cuda.libs.cublas']
    of.gemmEx(handle_of(cublas), tb, ta, n, m, k, 0, b, code, ldb, a, code, lda, 0, out.data.ptr, code, n, 68, 99)


def _as_cublas_has_it(x: Any) -> tuple[int, int, int]:
    """A matrix of one piece: its address, whether it is transposed, and its leading dimension."""
    turned = not x.flags.c_contiguous
    return x.data.ptr, int(turned), max(x.shape[0 if turned else 1], 1)


def can_multiply(x1: Any, x2: Any) -> bool:
    """Whether two operands are matrices of one dtype of cuBLAS's, each in one piece."""
    both = (x1, x2)
    return all(
        getattr(x, 'ndim', 0) == 2 and x.size and (x.flags.c_contiguous or x.flags.f_contiguous) for x in both
    ) and (x1.dtype == x2.dtype and x1.dtype.char in _CODES and x1.shape[1] == x2.shape[0])


def _on_the_stream_it_has(handle: int, *args: Any) -> None:
    """One step of a product of sparse matrices, whose work :mod:`sparse` does: the handle's stream stays what it is."""


cusparse.spGEMM_workEstimation = cusparse.spGEMM_compute = cusparse.spGEMM_copy = _on_the_stream_it_has


def handle_of(library: Any) -> int:
    """The handle that this thread has for a library on its device."""
    name = next(name for name in ('cublas', 'cusolver', 'cusparse') if library is globals()[name])
    return int(getattr(devices.Device(), f'{name}_handle'))


def use(library: Any, waits: bool = False) -> None:
    """Set the library's stream to the current one; ``waits``: the routine synchronises it inside."""
    stream = get_current_stream_ptr()
    library.setStream(handle_of(library), stream)
    if waits and (runtime_calls.is_late() or runtime.streamIsCapturing(stream)):
        runtime.streamSynchronize(stream)


def _use_cusolver(name: str) -> None:
    """Ask for cuSOLVER's handle as CuPy's Python code does."""
    runtime_calls.public['cupy.cuda.device'].get_cusolver_handle()
    use(cusolver, name in WAITING)


def get_config_linalg() -> str:
    """Return whether CuPy reads on the host if a factorization has failed: 'raise' or 'ignore'."""
    found: str = getattr(runtime_calls.state.thread, 'linalg', 'ignore')
    return found


def allocate_inside(name: str) -> None:
    """Allocate memory on the stream, as cuSOLVER does for what solves or inverts, once CuPy has made its arrays."""
    stream = get_current_stream_ptr()
    if name in _ALLOCATING and runtime.streamIsCapturing(stream):
        runtime.freeAsync(runtime.mallocAsync(_WORK, stream), stream)


#: Functions for which cuSOLVER allocates memory on the stream, in arrays of any size.
_ALLOCATING = frozenset('inv qr solve tensorinv tensorsolve'.split())
_WORK = 64


@contextmanager
def stream_of(library: Any) -> Iterator[int]:
    """For a while work goes to the stream that the handle was given last, as that of CuPy's few functions does that
    give it none; memory is the current stream's, as there."""
    device = runtime.getDevice()
    before, stream = get_current_stream_ptr(), library.getStream(handle_of(library))
    runtime_calls.set_current_stream_ptr(stream, device)
    try:
        yield stream
    finally:
        runtime_calls.set_current_stream_ptr(before, device)


def needed_by(name: str) -> Callable[[], None] | None:
    """Return what a function by this name does to its library before it launches."""
    if name in CUSOLVER:
        return lambda: _use_cusolver(name)
    if name in CUBLAS:
        return lambda: use(cublas)
    return None
