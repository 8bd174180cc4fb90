"""``cupy_backends.cuda.libs``: the vendor's libraries, as far as they refuse to be captured, and their streams.

Each has its own ``streamIsCapturing``, as CuPy's modules bind one at import; where that answers False, the library's
work is recorded like any other. Each call gives the handle the current stream first. What draws random numbers is in
:mod:`curand`. cuFFT's plans CuPy keeps by lengths and dtypes; some wait for the device while they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from capturekit.driver.fft_plans import lengths_of, waits_for_the_device
from capturekit.simulated.cupy.surface import WAITING, Call

from . import devices, runtime, runtime_calls
from .launches import Layout
from .runtime_calls import get_current_stream_ptr


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


#: ``cudaDataType``.
_CODES = {'e': 2, 'f': 0, 'd': 1, 'F': 4, 'D': 5}


def _gemmEx(handle: int, *args: int) -> None:
    use(cublas)
    make, runtime_calls.state.thread.product = runtime_calls.state.thread.product, None
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


def handle_of(library: Any) -> int:
    """The handle that this thread has for a library on its device."""
    return int(getattr(devices.Device(), f'{library.__name__.rpartition(".")[2]}_handle'))


def use(library: Any) -> None:
    """Set the library's stream to the current one."""
    library.setStream(handle_of(library), get_current_stream_ptr())


def use_cusolver(name: str) -> None:
    """Ask for cuSOLVER's handle as CuPy's Python code does; some routines synchronise the stream inside."""
    runtime_calls.public['cupy.cuda.device'].get_cusolver_handle()
    use(cusolver)
    stream = get_current_stream_ptr()
    if name in WAITING and (runtime_calls.is_late() or runtime.streamIsCapturing(stream)):
        runtime.streamSynchronize(stream)


def get_config_linalg() -> str:
    """Return whether CuPy reads on the host if a factorization has failed: 'raise' or 'ignore'."""
    return runtime_calls.state.thread.linalg


def allocate_inside(name: str) -> None:
    """Allocate memory on the stream, as cuSOLVER does for what solves or inverts, once CuPy has made its arrays."""
    stream = get_current_stream_ptr()
    if name in _ALLOCATING and runtime.streamIsCapturing(stream):
        runtime.freeAsync(runtime.mallocAsync(_WORK, stream), stream)


#: Functions for which cuSOLVER allocates memory on the stream, in arrays of any size.
_ALLOCATING = frozenset('inv qr solve tensorinv tensorsolve'.split())
_WORK = 64


#: How many plans a thread keeps.
_KEPT = 16


class CuFFTError(RuntimeError):
    """An error of cuFFT."""


class _Plan:
    """A plan: the lengths that it is for."""

    work_area = gpus = None

    def __init__(self, lengths: Any, fft_type: int, batch: int) -> None:
        self.lengths, self.fft_type, self.batch = lengths_of(lengths), int(fft_type), int(batch)
        if waits_for_the_device(self.lengths):
            try:
                runtime.deviceSynchronize()
            except runtime.CUDARuntimeError as error:
                raise CuFFTError('CUFFT_INTERNAL_ERROR') from error

    def fft(self, a: Any, out: Callable[[], Any], direction: int) -> Any:
        """Make the transform: ``out`` is what makes it here."""
        return out()


class Plan1d(_Plan):
    """A plan for transforms along one axis."""

    def __init__(
        self, nx: int, fft_type: int, batch: int, *, devices: Any = None, out: Any = None, prealloc_plan: int = 0
    ) -> None:
        super().__init__(nx, fft_type, batch)
        self.nx = nx

    fft = _Plan.fft  # the guard replaces it in each class


class PlanNd(_Plan):
    """A plan for transforms along several axes."""

    def __init__(
        self, shape: Any, inembed: Any, istride: int, idist: int, onembed: Any, ostride: int, odist: int,
        fft_type: int, batch: int, order: str, last_axis: int, last_size: Any, *, prealloc_plan: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(shape, fft_type, batch)
        self.shape, self.order = tuple(shape), order

    fft = _Plan.fft


class PlanCache:
    """The plans of a thread."""

    def __init__(self) -> None:
        self._plans: dict[Any, _Plan] = {}

    def get_curr_size(self) -> int:
        return len(self._plans)

    def clear(self) -> None:
        self._plans.clear()

    def plan(self, key: Any, make: Callable[[], _Plan]) -> _Plan:
        """The plan for this key, which is made if it is not there."""
        found = self._plans.pop(key, None) or make()
        self._plans[key] = found
        while len(self._plans) > _KEPT:
            del self._plans[next(iter(self._plans))]
        return found


def get_plan_cache() -> Any:
    return runtime_calls.of_thread('plans', PlanCache)


def transforming(name: str, call: Call) -> Call:
    """The same function of ``cupy.fft``, with the plan that it needs."""
    if name.endswith(('freq', 'shift')):
        return call

    def with_plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(args[0], Layout) or not args[0].ndim:
            return call(args, kwargs)
        array: Any = args[0]
        several = {key: tuple(map(int, kwargs[key])) for key in ('s', 'axes') if kwargs.get(key) is not None}
        kwargs = {**kwargs, **several}  # NumPy's arrays among them
        lengths = _lengths(name, array.shape, kwargs)
        key = lengths, array.dtype.char, array.size, name.removeprefix('i')
        plan = get_plan_cache().plan(key, lambda: _planned(lengths))
        return plan.fft(array, lambda: call(args, kwargs), -1)

    return with_plan


def _planned(lengths: tuple[int, ...]) -> _Plan:
    of = runtime_calls.public['cupy.cuda.cufft']  # asked for by its name: the guard replaces the classes there
    several = len(lengths) > 1
    made: _Plan = (
        of.PlanNd(lengths, None, 1, 1, None, 1, 1, 0, 1, 'C', -1, None) if several else of.Plan1d(lengths[0], 0, 1)
    )
    return made


def _lengths(name: str, shape: tuple[int, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    several = name.endswith(('2', 'n'))
    asked = kwargs.get('s' if several else 'n')
    axes = kwargs.get('axes', (-2, -1) if name.endswith('2') else None) if several else (kwargs.get('axis', -1),)
    if axes is None:
        axes = range(len(shape)) if asked is None else range(-len(asked), 0)
    lengths = [shape[axis] for axis in axes]
    if asked is not None:
        lengths = list(asked) if several else [asked]
    elif name.startswith(('irfft', 'hfft')):
        lengths[-1] = 2 * (lengths[-1] - 1)
    return tuple(int(length) for length in lengths)
