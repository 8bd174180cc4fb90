"""``cupyx``: pinned arrays, scattering, errors, the profiler; what CuPy is told of libraries; and ``cupy.testing``."""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.cupy.surface import declared, named, signature

from . import arrays, functions, pinned, runtime_calls, streams, vendor


def empty_pinned(shape: Any, dtype: Any = float, order: str = 'C') -> NDArray[Any]:
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    mem = pinned.alloc_pinned_memory(math.prod(wanted) * np.dtype(dtype).itemsize)
    found: NDArray[Any] = np.ndarray(wanted, dtype=dtype, buffer=mem, order=order)  # type: ignore[arg-type]
    return found


def empty_like_pinned(
    a: Any, dtype: Any = None, order: str = 'K', subok: None = None, shape: Any = None
) -> NDArray[Any]:
    if subok is not None:
        raise TypeError('subok is not supported yet')
    laid_out = order if order in ('C', 'F') else 'F' if a.flags.fnc else 'C'
    return empty_pinned(a.shape if shape is None else shape, a.dtype if dtype is None else dtype, laid_out)


def _zeroing(name: str, empty: Callable[..., NDArray[Any]]) -> Any:
    def zeros(*args: Any, **kwargs: Any) -> NDArray[Any]:
        found = empty(*args, **kwargs)
        found[...] = 0
        return found

    return named(zeros, name, inspect.signature(empty), __name__)


zeros_pinned = _zeroing('zeros_pinned', empty_pinned)
zeros_like_pinned = _zeroing('zeros_like_pinned', empty_like_pinned)


def _scattering(op: str) -> Any:
    return named(lambda a, slices, value: arrays.scatter(a, slices, value, op), f'scatter_{op}', module=__name__)


scatter_add, scatter_max, scatter_min = map(_scattering, ('add', 'max', 'min'))


# -- cupyx.errstate: whether CuPy reads on the host if a factorization has failed ---------------------------------


def geterr() -> dict[str, Any]:
    return {'divide': None, 'over': None, 'under': None, 'invalid': None, 'linalg': vendor.get_config_linalg()}


def seterr(
    *, divide: Any = None, over: Any = None, under: Any = None, invalid: Any = None, linalg: Any = None
) -> dict[str, Any]:
    """Set how errors are treated: ``linalg`` is 'ignore' or 'raise'; CuPy has nothing else."""
    if not (divide is over is under is invalid is None) or linalg not in (None, 'ignore', 'raise'):
        raise NotImplementedError
    old = geterr()
    runtime_calls.state.thread.linalg = linalg or old['linalg']
    return old


@contextlib.contextmanager
def errstate(**wanted: Any) -> Iterator[None]:
    old = seterr(**wanted)
    try:
        yield
    finally:
        seterr(**old)


named(errstate, 'errstate', inspect.signature(seterr), __name__)


# -- what CuPy is told of libraries, which is kept and without effect here ----------------------------------------

_NAMES = {'cub': 1, 'cutensor': 2, 'cutensornet': 3}
#: Complex numbers go with their parts.
_INDEX = {'e': 0, 'f': 1, 'F': 1, 'd': 2, 'D': 2}


def set_compute_type(dtype: Any, compute_type: int) -> None:
    runtime_calls.state.compute_types[_INDEX[np.dtype(dtype).char]] = int(compute_type)


def get_compute_type(dtype: Any) -> int:
    return runtime_calls.state.compute_types[_INDEX[np.dtype(dtype).char]]


def accelerators() -> dict[str, Any]:
    """Return the functions of ``cupy._core`` that choose libraries, and the type of products."""
    found: dict[str, Any] = {'set_compute_type': set_compute_type, 'get_compute_type': get_compute_type}
    for kind in runtime_calls.state.accelerators:
        for function in _choosing(kind):
            found[function.__name__] = function
    return found


def _choosing(kind: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def choose(accelerators: Any) -> None:
        numbers = [_NAMES[one] if isinstance(one, str) else int(one) for one in accelerators]
        runtime_calls.state.accelerators[kind] = numbers

    chosen = lambda: list(runtime_calls.state.accelerators[kind])  # noqa: E731
    return named(choose, f'set_{kind}_accelerators'), named(chosen, f'get_{kind}_accelerators')


# -- cupyx.profiler ---------------------------------------------------------------------------------------------


class _Times:
    """Times of each repetition in seconds: of the host, and a row for each device."""

    def __init__(self, name: str, ts: NDArray[Any]) -> None:
        self.name, self.cpu_times, self.gpu_times = name, ts[0], ts[1:]

    def __repr__(self) -> str:
        return f'{self.name}: {self.cpu_times.mean() * 1e6:.03f} us of the host'


def benchmark(
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] = {},  # noqa: B006 - CuPy's signature
    n_repeat: int = 10000,
    *,
    name: str | None = None,
    n_warmup: int = 10,
    max_duration: float = math.inf,
    devices: tuple[int, ...] | None = None,
) -> _Times:
    """Time a function; the simulated device's times are the host's."""
    for _ in range(n_warmup):
        func(*args, **kwargs)
    first, second = streams.Event(), streams.Event()
    times: list[tuple[float, float]] = []
    begun = time.perf_counter()
    while len(times) < n_repeat and time.perf_counter() - begun <= max_duration:
        first.record()
        start = time.perf_counter()
        func(*args, **kwargs)
        cpu = time.perf_counter() - start
        second.record()
        second.synchronize()
        times.append((cpu, streams.get_elapsed_time(first, second) * 1e-3))
    return _Times(name or func.__name__, np.asarray(times, np.float64).T)


def nvtx() -> dict[str, Any]:
    """``cupy.cuda.nvtx``: marks and ranges for a profiler, which nothing shows here."""
    calls = {
        'Mark': 'message, id_color=-1', 'MarkC': 'message, color=0', 'RangePush': 'message, id_color=-1',
        'RangePushC': 'message, color=0', 'RangePop': '', 'RangeStart': 'message, color', 'RangeEnd': 'range_id',
    }  # fmt: skip
    return {'available': True, **{
        name: declared(name, signature(told), lambda _args, _kwargs: None) for name, told in calls.items()
    }}  # fmt: skip


class time_range(contextlib.ContextDecorator):
    """A named range of time, as a context manager or decorator; shown nowhere here."""

    def __init__(
        self, message: str | None = None, color_id: int | None = None, argb_color: int | None = None, sync: bool = False
    ) -> None:
        self._sync = sync

    def __enter__(self) -> time_range:
        if self._sync:
            runtime_calls.public['cupy.cuda.runtime'].deviceSynchronize()  # by its public name, as CuPy does
        return self

    def __exit__(self, *args: object) -> None:
        self.__enter__()


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Profile nothing. As in CuPy, the calls are looked up in the public module."""
    calls = runtime_calls.public['cupy.cuda.runtime']
    calls.profilerStart()
    try:
        yield
    finally:
        calls.profilerStop()


# -- cupy.testing -------------------------------------------------------------------------------------------------


def _comparison(name: str) -> Callable[..., None]:
    compare = getattr(np.testing, name)

    def check(actual: Any, desired: Any, *args: Any, **kwargs: Any) -> None:
        compare(functions.asnumpy(actual), functions.asnumpy(desired), *args, **kwargs)

    return named(check, name, module=__name__)


assert_allclose, assert_array_equal, assert_array_almost_equal, assert_array_less = (
    _comparison(name)
    for name in ('assert_allclose', 'assert_array_equal', 'assert_array_almost_equal', 'assert_array_less')
)
