"""``cupy_backends.cuda.libs.curand``: generators, and the functions that draw from them into device memory.

A generator keeps its place in a sequence on the host, so that what a seed gives is the same each time. Work that runs
at once moves it on at the call, work in a graph at each launch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capturekit.model.skipped_exits import Lock
from capturekit.simulated.cupy.surface import named
from capturekit.simulated.device.machine import reaches

from . import runtime, runtime_calls
from .runtime_calls import get_current_stream_ptr

_CONSTANTS = """
    CURAND_RNG_PSEUDO_DEFAULT=100 CURAND_RNG_PSEUDO_XORWOW=101 CURAND_RNG_PSEUDO_MRG32K3A=121
    CURAND_RNG_PSEUDO_MTGP32=141 CURAND_RNG_PSEUDO_MT19937=142 CURAND_RNG_PSEUDO_PHILOX4_32_10=161
"""
_NUMBERS = {name: int(number) for name, number in (pair.split('=') for pair in _CONSTANTS.split())}
globals().update(_NUMBERS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


STATUS = {101: 'CURAND_STATUS_NOT_INITIALIZED', 103: 'CURAND_STATUS_TYPE_ERROR', 201: 'CURAND_STATUS_LAUNCH_FAILURE'}
_NOT_INITIALIZED, _TYPE_ERROR, _LAUNCH_FAILURE = STATUS

#: Each library has its own, as CuPy's modules bind one at import; where it answers False, draws are recorded.
streamIsCapturing = runtime.streamIsCapturing


class CURANDError(RuntimeError):
    """An error code of cuRAND, in ``status``."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(STATUS[status])

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.status,))


class _Generator:
    def __init__(self) -> None:
        self.seed = self.offset = self.stream = 0
        self.device = runtime.getDevice()
        self.numbers: Any = None
        self.lock = Lock()

    def restart(self) -> None:
        """Begin the sequence at the seed and the offset."""
        with self.lock:
            bits = np.random.Philox(key=self.seed)
            bits.advance(self.offset)
            self.numbers = np.random.Generator(bits)


_handles = itertools.count(1)


def _find(generator: int) -> Any:
    try:
        return runtime_calls.state.generators[generator]
    except KeyError:
        raise CURANDError(_NOT_INITIALIZED) from None


def createGenerator(rng_type: int) -> int:
    if rng_type not in _NUMBERS.values():
        raise CURANDError(_TYPE_ERROR)
    handle = 16 * next(_handles)
    runtime_calls.state.generators[handle] = made = _Generator()
    made.restart()
    return handle


def destroyGenerator(generator: int) -> None:
    _find(generator)
    del runtime_calls.state.generators[generator]


def setStream(generator: int, stream: int) -> None:
    if streamIsCapturing(stream):
        raise NotImplementedError('calling cuRAND API during stream capture is currently unsupported')
    _find(generator).stream = stream


_set_stream = setStream  # CuPy's functions that draw are C: a replaced setStream is not asked


def setPseudoRandomGeneratorSeed(generator: int, seed: int) -> None:
    found = _find(generator)
    found.seed = int(seed)
    found.restart()


def setGeneratorOffset(generator: int, offset: int) -> None:
    found = _find(generator)
    found.offset = int(offset)
    found.restart()


def _draw(generator: int, ptr: int, n: int, dtype: Any, draw: Callable[[Any], NDArray[Any]]) -> None:
    _set_stream(generator, get_current_stream_ptr())
    found = _find(generator)
    if not n:
        return
    if not reaches(runtime_calls.device(), found.device):
        # on a GPU (H100, driver 580.159.04, 2026-11-26) the kernel reads the generator's state at an illegal address
        raise CURANDError(_LAUNCH_FAILURE)

    # Who seeds it again means what is drawn from then on; what is recorded draws from what it finds.
    now = found.numbers if runtime_calls.is_late() and not runtime_calls.is_captured(found.stream) else None

    def work() -> None:
        target = runtime.device_bytes(ptr, n * np.dtype(dtype).itemsize).view(dtype)
        with found.lock:
            target[:] = draw(found.numbers if now is None else now)

    runtime_calls.submit(found.stream, work, 'curand')


def _normal(g: Any, dtype: Any, n: int, mean: float, stddev: float) -> Any:
    # CuPy hands both on as C floats, to the functions for doubles as well.
    centre, width = (dtype(np.float32(float(v))) for v in (mean, stddev))
    return g.standard_normal(n, dtype) * width + centre


#: Functions that draw: what of, and how from NumPy's generator.
_DRAWING: dict[str, tuple[Any, Callable[..., Any]]] = {
    'generate': (np.uint32, lambda g, n: g.integers(0, 1 << 32, n, np.uint32)),
    'generateLongLong': (np.uint64, lambda g, n: g.integers(0, 1 << 64, n, np.uint64)),
    'generateUniform': (np.float32, lambda g, n: 1 - g.random(n, np.float32)),
    'generateUniformDouble': (np.float64, lambda g, n: 1 - g.random(n)),
    'generateNormal': (np.float32, lambda g, n, *of: _normal(g, np.float32, n, *of)),
    'generateNormalDouble': (np.float64, lambda g, n, *of: _normal(g, np.float64, n, *of)),
    'generateLogNormal': (np.float32, lambda g, n, *of: np.exp(_normal(g, np.float32, n, *of))),
    'generateLogNormalDouble': (np.float64, lambda g, n, *of: np.exp(_normal(g, np.float64, n, *of))),
    'generatePoisson': (np.uint32, lambda g, n, lam: g.poisson(lam, n)),
}


def _drawing(name: str, dtype: Any, draw: Callable[..., Any]) -> Any:
    def generate(generator: int, ptr: int, n: int, *of: float) -> None:
        if 'Normal' in name and n % 2 == 1:
            raise ValueError(
                f'curandG{name[1:]} can only generate even number of random variables simultaneously. '
                'See issue #390 for detail.'
            )
        _draw(generator, ptr, n, dtype, lambda g: draw(g, n, *of))

    return named(generate, name, module=__name__)


for _name, (_dtype, _drawn) in _DRAWING.items():
    globals()[_name] = _drawing(_name, _dtype, _drawn)
