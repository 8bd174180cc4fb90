"""What the rows are made of: a world around the capture, the scene inside of it.

The rows name CuPy by ``cp``, which is looked up at each call: the same rows are called on a GPU and on the stand-in.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from capturekit.guard.patching import resolve

N = 1024
BYTES = 64
#: How many random numbers are drawn at a time: an even number, as cuRAND wants it, and BYTES are enough for them.
COUNT = 8


class Installed:
    """A module of the CuPy that is installed at the moment of the call."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        head, *rest = self._name.split('.')
        return getattr(sys.modules.get(self._name) or functools.reduce(getattr, rest, sys.modules[head]), name)


cp: Any = Installed('cupy')
rt: Any = Installed('cupy.cuda.runtime')
curand: Any = Installed('cupy_backends.cuda.libs.curand')
CURAND = 'cupy_backends.cuda.libs.curand'


def loaded(module: str) -> bool:
    """True for a module that can be imported."""
    try:
        resolve(module)
    except (AttributeError, ImportError):
        return False
    return True


class Around:
    """What lies around the captures: made once, outside of any."""

    def __init__(self) -> None:
        self.x = cp.arange(N, dtype='f8')
        self.w = cp.ones(N)
        self.scratch = cp.zeros(N)
        for warm in (self.x + 1, self.x * 2, self.w - 1, self.x.sum(), self.x > 3, self.x[cp.array([1, 2])]):
            del warm
        self.scratch[cp.array([1])] = 0
        self.scratch.fill(0)
        self.null, self.ptds = cp.cuda.Stream.null, cp.cuda.Stream.ptds
        self.side = cp.cuda.Stream(non_blocking=True)
        self.outside = cp.cuda.Stream(non_blocking=True)
        self.other = cp.cuda.Stream(non_blocking=True)
        self.before = self.outside.record()
        self.before2 = self.outside.record()
        self.never = cp.cuda.Event()
        self.spare = cp.cuda.Event()
        self.cupy_graph = self._graph()
        self.host = np.zeros(N)
        self.pinned = cp.cuda.alloc_pinned_memory(4096)
        self.async_pool: Any = None
        with suppress(RuntimeError):
            self.async_pool = cp.cuda.MemoryAsyncPool()
        self.managed = cp.cuda.malloc_managed(4096)
        self.foreign_ptr = cp.cuda.runtime.mallocAsync(4096, self.outside.ptr)
        self.matrix = cp.arange(16, dtype='f8').reshape(4, 4) + cp.eye(4) * 20
        #: What was bound before a capture is patched by nobody: libraries call CUDA so.
        self.svd_of_before = cp.linalg.svd
        self.memset_of_before = rt.memsetAsync
        self._sources()
        cp.cuda.Device().synchronize()

    def _sources(self) -> None:
        """What random numbers come from: for the captures, and a twin of each for eager calls."""
        self.state: Any = None
        self.twin: Any = None
        self.quasi = self.quasi_twin = 0
        if loaded(CURAND):
            self.state, self.twin = (cp.random.RandomState(7) for _ in range(2))
            if hasattr(curand, 'CURAND_RNG_QUASI_SOBOL64'):  # the stand-in has no quasi-random generators
                self.quasi, self.quasi_twin = (
                    curand.createGenerator(curand.CURAND_RNG_QUASI_SOBOL64) for _ in range(2)
                )
        self.bits, self.bits_twin = (cp.random.Philox4x3210(7, size=256) for _ in range(2))
        self.generator, self.generator_twin = cp.random.Generator(self.bits), cp.random.Generator(self.bits_twin)
        self.generator_twin.random(COUNT)

    def _graph(self) -> Any:
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            self.scratch.fill(0)
            return stream.end_capture()


class Scene:
    """One open capture: ``a`` on the origin, ``b`` on the lane ``side``, ``e`` the event that forked it."""

    def __init__(self, around: Around, cap: Any) -> None:
        self.__dict__.update(around.__dict__)
        self.cap = cap
        self.origin = cap.stream
        self.a = self.x + 1
        self.e = self.origin.record()
        self.side.wait_event(self.e)
        with self.side:
            self.b = self.a * 2
        self.seen: list[Any] = []
        self.kept: list[Any] = []


Call = Callable[[Scene], Any]
Check = Callable[[Scene], bool]


@dataclass(frozen=True)
class Case:
    """A row: ``expect`` is the exception, or None; ``check``: what else must hold after two launches.

    ``needs``: an optional module without which the call can't be made.
    """

    entry: str
    call: str
    run: Call
    expect: type[BaseException] | None = None
    mode: str = 'relaxed'
    check: Check | None = None
    needs: str = ''

    def __str__(self) -> str:
        return f'{self.entry}-{self.call}' + ('' if self.mode == 'relaxed' else f'-{self.mode}')


def external(stream: Any) -> Any:
    """A second object for the same stream, as other libraries hand them over."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)
        return cp.cuda.ExternalStream(stream.ptr)


class OfOtherLibrary:
    """An array of another library: memory of ``array``, and a stream that its work is on."""

    def __init__(self, array: Any, stream: int | None) -> None:
        self.owner = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, 'stream': stream, 'version': 3}
