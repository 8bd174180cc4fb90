"""Puts the stand-in for CuPy together and into ``sys.modules``.

The other files of this package are written as CuPy's own are: modules with classes and functions. They are imported
once in a process, under the name of a package of their own: what tells capturekit's code from CuPy's takes it for
CuPy's.
What is published are module objects of their own, so that a replaced ``cupy.cuda.runtime.streamSynchronize`` is seen by
those who call it from there and not by ``Stream.synchronize``, as in CuPy; three that CuPy itself looks names up on at
every call (``cupy._core``, ``cupy._core.syncdetect`` and the vendor's libraries) are the very objects.

A device that is installed finds the stand-in as it was put together: with a new :class:`runtime_calls.State`, and with
all modules, classes and kernels of it holding what they held then (:class:`_Holders`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import operator
import os
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.simulated.cupy.surface import ABSENT, SCIPY
from capturekit.simulated.device.machine import SimulatedDevice

VERSION = '14.2.0+simulated'

_ROOTS = ('cupy', 'cupyx', 'cupy_backends')
#: For each device that is installed: what ``sys.modules`` held before, and the state of the device that was there.
_replaced: list[tuple[dict[str, ModuleType], Any]] = []

_SCALARS = """
    bool_ byte cdouble complex128 complex64 complexfloating csingle double float16 float32 float64 floating
    generic half inexact int16 int32 int64 int8 int_ intc integer intp long longlong number short signedinteger single
    ubyte uint uint16 uint32 uint64 uint8 uintc uintp ulong ulonglong unsignedinteger ushort
""".split()
_EXCEPTIONS = """
    AxisError ComplexWarning ModuleDeprecationWarning RankWarning TooHardError VisibleDeprecationWarning
""".split()
_LIBRARIES = ('cublas', 'cusolver', 'cusparse')
_FROM_NUMPY = """
    dtype e euler_gamma finfo get_printoptions iinfo inf index_exp min_scalar_type nan ndindex newaxis pi printoptions
    promote_types s_ set_printoptions
""".split()


_PACKAGE = '_capturekit_simulated_cupy'
#: The modules, each after those that it imports.
_ORDER = """
    runtime_calls runtime syncdetect devices streams memory pinned launches
    ufuncs arrays vendor
    functions extras kernels curand randoms scipy_functions nccl
""".split()


def _imported() -> Any:
    """Import the package's modules, and return the package."""
    parts = sys.modules[_PACKAGE] = ModuleType(_PACKAGE)
    parts.__path__ = [os.path.dirname(__file__)]
    for name in _ORDER:
        importlib.import_module(f'{_PACKAGE}.{name}')
    # Python empties at its end what it finds in sys.modules, and what is finalized after that would find nothing.
    for name in [name for name in sys.modules if name.startswith(_PACKAGE)]:
        del sys.modules[name]
    return parts


class _Holders:
    """The modules, classes and kernels of the stand-in, and what they held when it was put together."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        found: dict[int, Any] = {id(module): module for module in modules}
        for module in list(found.values()):
            for value in vars(module).values():
                home = value if isinstance(value, (type, FunctionType)) else type(value)
                if hasattr(value, '__dict__') and str(home.__module__).startswith((*_ROOTS, _PACKAGE)):
                    found[id(value)] = value
        self._held = [(holder, dict(vars(holder))) for holder in found.values()]

    def put_back(self) -> None:
        """Let all hold again what they held, and nothing else."""
        for holder, held in self._held:
            now = vars(holder)
            if len(now) == len(held) and all(map(operator.is_, now.values(), held.values())):
                continue
            for name in [name for name in now if name not in held and name not in _PYTHONS]:
                delattr(holder, name)
            for name, value in held.items():
                if now.get(name, _replaced) is not value:
                    setattr(holder, name, value)


#: What Python itself puts on classes when it is asked for.
_PYTHONS = ('__annotations__', '__annotations_cache__')


def _publish(
    name: str,
    contents: dict[str, Any],
    module: ModuleType | None = None,
    late: tuple[list[str], Callable[[str], Any]] | None = None,
) -> Any:
    """Return a module of this name with these contents, which says by name what it has not.

    ``late``: names of what is made when it is first asked for, and what makes it.
    """
    found: Any = ModuleType(name) if module is None else module
    found.__name__ = name
    found.__path__ = []
    found.__package__ = name
    found.__spec__ = ModuleSpec(name, None, is_package=True)
    found.__loader__ = None
    found.__doc__ = f"The simulated device's {name}."
    vars(found).update(contents)
    names, make = late or ([], None)

    def __getattr__(key: str) -> Any:
        if make is not None and key in names:
            made = vars(found)[key] = make(key)
            return made
        known = ''
        if name == 'cupy':
            known = f'; real CuPy has {name}.{key}' if key in ABSENT else f', and CuPy 14 has no {name}.{key}, either'
        raise AttributeError(f"the simulated CuPy has no '{key}' in module '{name}'{known}")

    found.__getattr__ = __getattr__
    if late is not None:
        found.__all__, found.__dir__ = names, lambda: names
    return found


def _public(module: Any) -> dict[str, Any]:
    """Return what a part defines itself."""
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith('__')
        and not isinstance(value, ModuleType)
        and (getattr(value, '__module__', None) == module.__name__ or isinstance(value, (int, float, str)))
    }


@functools.cache
def _standin() -> tuple[Any, dict[str, ModuleType], _Holders]:
    """Return the package, the modules by the names that programs import, and all that can be changed in them."""
    parts = _imported()
    found: dict[str, ModuleType] = {}

    objects = {f'cupy_backends.cuda.libs.{name}': getattr(parts.vendor, name) for name in _LIBRARIES}
    objects |= {f'cupy_backends.cuda.libs.{name}': getattr(parts, name) for name in ('curand', 'nccl')}
    objects |= {'cupy._core': parts.functions._core, 'cupy._core.syncdetect': parts.syncdetect}
    objects['cupy.random._generator'] = parts.randoms
    contents, of_scipy = _contents(parts), parts.scipy_functions
    for name in dict.fromkeys((*objects, *contents)):
        found[name] = _publish(name, contents.get(name, {}), objects.get(name))
    for name, names in SCIPY.items():
        late = (names.split(), functools.partial(of_scipy.found, name))
        found[f'cupyx.scipy.{name}'] = _publish(f'cupyx.scipy.{name}', {}, None, late)
    for name, module in found.items():
        parent, _, child = name.rpartition('.')
        if parent:
            setattr(found[parent], child, module)
    first = [n for n in found if n.startswith('cupy.cuda.')]
    for name in ('cupy_backends.cuda.api.runtime', *first, 'cupy', *(n for n in found if n not in first)):
        for value in vars(found[name]).values():
            _name_home(value, name)
    # Two names for one module, as in CuPy.
    found['cupy.cuda.runtime'] = found['cupy_backends.cuda.api.runtime']
    vars(found['cupy.cuda'])['runtime'] = found['cupy.cuda.runtime']
    parts.runtime_calls.public.update(found)
    return parts, found, _Holders([*found.values(), *(getattr(parts, name) for name in _ORDER)])


def _name_home(value: Any, module: str) -> None:
    """Let a class or function say the public module that it is found in, so that it pickles."""
    if str(getattr(value, '__module__', '')).startswith(_PACKAGE):
        with contextlib.suppress(AttributeError, TypeError):
            value.__module__ = module


#: What each public module has of the parts: all that a part defines itself (``*``), or names. There is more below.
_PUBLISHED = """
    cupy_backends cupy_backends.cuda cupy_backends.cuda.api cupy_backends.cuda.libs cupyx.scipy
    cupy_backends.cuda.api.runtime = runtime: * CUDARuntimeError
    cupy_backends.cuda.stream = runtime_calls: get_default_stream_ptr
    cupy.cuda
        = memory: BaseMemory ManagedMemory Memory MemoryAsync MemoryAsyncPool MemoryHook MemoryPointer MemoryPool
          UnownedMemory alloc get_allocator malloc_async malloc_managed set_allocator using_allocator
        = streams: Event ExternalStream Graph Stream get_current_stream get_elapsed_time
        = devices: Device get_cublas_handle get_device_id is_available get_local_runtime_version
        = pinned: PinnedMemory PinnedMemoryPointer PinnedMemoryPool alloc_pinned_memory set_pinned_memory_allocator
        = extras: profile
    cupy.cuda.stream = streams: *
    cupy.cuda.memory = memory: * = runtime: CUDARuntimeError
    cupy.cuda.memory_hook = memory: MemoryHook get_memory_hooks
    cupy.cuda.pinned_memory = pinned: *
    cupy.cuda.device = devices: *
    cupy.cuda.graph = streams: Graph
    cupy.cuda.cufft = vendor: CuFFTError Plan1d PlanNd PlanCache get_plan_cache
    cupy.fft.config = vendor: get_plan_cache
    cupy.cuda.nccl = nccl: * available
    cupy._core
        = arrays: ndarray from_dlpack = functions: ascontiguousarray = ufuncs: ufunc
        = kernels: ElementwiseKernel ReductionKernel RawKernel RawModule
    cupy._core.core = arrays: ndarray _ndarray_base array = functions: ascontiguousarray
    cupy._core.flags = launches: Flags
    cupy._util = launches: PerformanceWarning
    cupy = arrays: ndarray from_dlpack = functions: * mgrid ogrid r_ c_ = ufuncs: ufunc
        = kernels: ElementwiseKernel RawKernel RawModule ReductionKernel clear_memo fuse memoize vectorize
        = devices: is_available
    cupy.random._bit_generator = randoms: BitGenerator _cuRANDGenerator XORWOW MRG32k3a Philox4x3210
    cupyx._ufunc_config = extras: seterr geterr errstate = vendor: get_config_linalg
    cupyx = extras: empty_pinned zeros_pinned scatter_add scatter_max scatter_min seterr geterr errstate
        = syncdetect: DeviceSynchronized allow_synchronize
    cupyx.profiler = extras: benchmark time_range profile
    cupyx.cusparse
    cupyx.scipy.sparse = scipy_functions: csr_matrix issparse isspmatrix isspmatrix_csr
    cupyx.scipy.sparse.linalg = scipy_functions: eigsh
    cupyx.jit = kernels: rawkernel
"""
#: What the parts define for each other.
_HIDDEN = frozenset(
    """
    GARBAGE ILLEGAL_ADDRESS MEMORY_ALLOCATION SHORT TYPE_CHECKING check_device device_block device_bytes
    first_recorded host_bytes on_host spoil without_warnings
    """.split()
)


def _of_parts(parts: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for word in _PUBLISHED.replace('=', ' ').split():
        if '.' in word or word in _ROOTS:
            contents = found[word] = {}
        elif word.endswith(':'):
            part = getattr(parts, word[:-1])
        elif word == '*':
            contents.update({name: value for name, value in _public(part).items() if name not in _HIDDEN})
        else:
            contents[word] = getattr(part, word)
    return found


def _contents(parts: Any) -> dict[str, dict[str, Any]]:
    found, functions, runtime, cupy = _of_parts(parts), parts.functions, parts.runtime, parts.runtime_calls.cupy
    wait = bool(int(os.environ.get('CUPY_CUDA_ARRAY_INTERFACE_SYNC', '1')))
    found['cupy._util']['CUDA_ARRAY_INTERFACE_SYNC'] = wait
    found['cupy._core'].update({**parts.ufuncs.TABLE, **parts.extras.accelerators()})
    found['cupy.cuda'].update(get_cuda_path=lambda: None, get_nvcc_path=lambda: None, curand=parts.curand)
    found['cupy.cuda.profiler'] = {'start': runtime.profilerStart, 'stop': runtime.profilerStop}
    found['cupy.cuda.nvtx'] = parts.extras.nvtx()
    found['cupy.exceptions'] = _of_numpy(_EXCEPTIONS, getattr(np, 'exceptions', np))
    found['cupy.linalg'], found['cupy.fft'] = functions._linalg(), functions._fft()
    found['cupy.random'] = parts.randoms.names()
    found['cupy'] = {
        '__version__': VERSION, 'disable_experimental_feature_warning': False,
        'get_default_memory_pool': lambda: cupy._default_memory_pool,
        'get_default_pinned_memory_pool': lambda: cupy._default_pinned_memory_pool,
        **_of_numpy((*_SCALARS, *_FROM_NUMPY)), 'bool': np.bool_, **found['cupy.exceptions'],
        **functions._top_level(), **parts.ufuncs.TABLE, **functions.SHORT,
        **{name: value for name, value in found['cupy'].items() if not name.startswith('_')},
    }  # fmt: skip
    return found


def _of_numpy(names: Iterable[str], module: Any = np) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names if hasattr(module, name)}


def _installed_names() -> list[str]:
    return [name for name in sys.modules if name.startswith('cupy') and name.partition('.')[0] in _ROOTS]


def install(device: SimulatedDevice | None = None, late: bool | None = None) -> None:
    """Make ``import cupy`` find the stand-in, bound to ``device``, until :func:`uninstall`.

    ``device``: None: a new one, of seed 0.
    ``late``: True: work of streams waits until the host asks for a result; None: as the device was made.
    """
    device = SimulatedDevice() if device is None else device
    if late is not None:
        device.be_late(late)
    parts, modules, _ = _standin()
    there = {name: sys.modules.pop(name) for name in _installed_names()}
    before = parts.runtime_calls.state if there.get('cupy') is modules['cupy'] else None
    _replaced.append((there, before))
    last = parts.runtime_calls.state.device
    if last is not None and last.device_count > device.device_count:
        gc.collect()  # graphs that only garbage holds are destroyed on their device, which this one may not have
    state = parts.runtime_calls.State(device)
    state.pools = parts.memory.MemoryPool(), parts.pinned.PinnedMemoryPool()
    state.allocator, state.pinned_allocator = (pool.malloc for pool in state.pools)
    device.address_spaces += [state.device_memory, state.pinned_memory]
    _begin(state)
    sys.modules.update(modules)


def _begin(state: Any) -> None:
    """Let the stand-in be as it was put together, and of this state's device."""
    parts, modules, holders = _standin()
    holders.put_back()
    parts.runtime_calls.begin(state)
    parts.randoms._random_states = state.random_states
    parts.kernels.clear_memo()
    top: Any = modules['cupy']
    top.__capturekit_simulated__ = state.device
    top._default_memory_pool, top._default_pinned_memory_pool = state.pools


def uninstall() -> None:
    """Put back what ``sys.modules`` held before the last :func:`install`."""
    if not _replaced:
        raise RuntimeError('the stand-in for CuPy is not installed')
    standin: Any = sys.modules['cupy']
    queue = standin.__capturekit_simulated__.queue
    if queue is not None:
        queue.drop()
    for name in _installed_names():
        del sys.modules[name]
    there, state = _replaced.pop()
    sys.modules.update(there)
    if state is not None:
        _begin(state)
