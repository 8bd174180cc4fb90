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
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

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
_NUMPY_1_NAMES = {'cfloat': 'complex128', 'complex_': 'complex128', 'float_': 'float64', 'singlecomplex': 'complex64'}
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


def _public(module: ModuleType, *also: str) -> dict[str, Any]:
    """Return what a part defines itself, and the names ``also``."""
    own = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith('__')
        and not isinstance(value, ModuleType)
        and (getattr(value, '__module__', None) == module.__name__ or isinstance(value, (int, float, str)))
    }
    own.update({key: getattr(module, key) for key in also})
    return own


@functools.cache
def _standin() -> tuple[Any, dict[str, ModuleType], _Holders]:
    """Return the package, the modules by the names that programs import, and all that can be changed in them."""
    parts = _imported()
    found: dict[str, ModuleType] = {}

    def add(name: str, contents: dict[str, Any], module: ModuleType | None = None, late: Any = None) -> None:
        found[name] = _publish(name, contents, module, late)

    _add_backends(parts, add)
    _add_cuda(parts, add, found)
    _add_core(parts, add)
    _add_top(parts, add)
    _add_cupyx(parts, add)
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


def _add_backends(parts: Any, add: Any) -> None:
    for name in ('cupy_backends', 'cupy_backends.cuda', 'cupy_backends.cuda.api', 'cupy_backends.cuda.libs'):
        add(name, {})
    names = {k: v for k, v in vars(parts.runtime).items() if _is_runtime_name(k, v)}
    add('cupy_backends.cuda.api.runtime', {**names, 'CUDARuntimeError': parts.runtime.CUDARuntimeError})
    add('cupy_backends.cuda.stream', {'get_default_stream_ptr': parts.runtime_calls.get_default_stream_ptr})
    for library in ('cublas', 'cusolver', 'curand', 'cusparse'):
        module = parts.curand if library == 'curand' else getattr(parts.vendor, library)
        add(f'cupy_backends.cuda.libs.{library}', {}, module)


def _is_runtime_name(name: str, value: Any) -> bool:
    hidden = {'annotations', 'check_device', 'device_block', 'device_bytes', 'first_recorded', 'host_bytes', 'spoil'}
    private = {'_getCUDAMajorVersion', '_getLocalRuntimeVersion', '_launchHostFuncUnmanaged'}
    if name in hidden or isinstance(value, ModuleType) or name in ('Any', 'Callable', 'Mode'):
        return False
    return name in private or (not name.startswith('_') and not name.isupper() and name[0].islower()) or name in (
        'PointerAttributes', 'MemPoolProps', 'CUDARuntimeError'
    ) or name.startswith('CUDA_')  # fmt: skip


def _add_cuda(parts: Any, add: Any, found: dict[str, ModuleType]) -> None:
    memory, streams, devices, pinned = parts.memory, parts.streams, parts.devices, parts.pinned
    of_memory = """
        BaseMemory ManagedMemory Memory MemoryAsync MemoryAsyncPool MemoryHook MemoryPointer MemoryPool
        PythonFunctionAllocator UnownedMemory alloc get_allocator malloc_async malloc_managed set_allocator
    """.split()
    contents = {name: getattr(memory, name) for name in of_memory}
    for module, names in (
        (streams, 'Event ExternalStream Stream get_current_stream get_elapsed_time'),
        (devices, 'Device get_cublas_handle get_device_id'),
        (pinned, 'PinnedMemory PinnedMemoryPointer PinnedMemoryPool alloc_pinned_memory set_pinned_memory_allocator'),
    ):
        contents.update({name: getattr(module, name) for name in names.split()})
    contents.update(
        Graph=parts.streams.Graph,
        is_available=lambda: True,
        get_local_runtime_version=lambda: parts.runtime.runtimeGetVersion(),
        profile=parts.extras.profile,
        get_cuda_path=lambda: None,
        get_nvcc_path=lambda: None,
        using_allocator=_using_allocator(found),
    )
    add('cupy.cuda', contents)
    add('cupy.cuda.stream', _public(streams))
    add('cupy.cuda.memory', {**_public(memory), 'CUDARuntimeError': parts.runtime.CUDARuntimeError})
    add('cupy.cuda.memory_hook', {'MemoryHook': memory.MemoryHook, 'get_memory_hooks': memory.get_memory_hooks})
    add('cupy.cuda.pinned_memory', _public(pinned))
    add('cupy.cuda.device', _public(devices))
    add('cupy.cuda.graph', {'Graph': streams.Graph})
    add('cupy.cuda.profiler', {'start': parts.runtime.profilerStart, 'stop': parts.runtime.profilerStop})
    add('cupy.cuda.nvtx', parts.extras.nvtx())
    of_cufft = ('CuFFTError', 'Plan1d', 'PlanNd', 'PlanCache', 'get_plan_cache')
    add('cupy.cuda.cufft', {name: getattr(parts.vendor, name) for name in of_cufft})
    add('cupy.fft.config', {'get_plan_cache': parts.vendor.get_plan_cache})
    vars(found['cupy.cuda'])['curand'] = parts.curand
    # As in CuPy the functions are in two modules, and the class is one.
    add('cupy.cuda.nccl', _public(parts.nccl, 'available'))
    add('cupy_backends.cuda.libs.nccl', {}, parts.nccl)


def _using_allocator(found: dict[str, Any]) -> Any:
    @contextlib.contextmanager
    def using_allocator(allocator: Any = None) -> Iterator[None]:
        # Looked up where programs find it: a replaced _set_thread_local_allocator is honoured, as in CuPy.
        memory = found['cupy.cuda.memory']
        if allocator is None:
            allocator = memory._malloc
        previous = memory._get_thread_local_allocator()
        memory._set_thread_local_allocator(allocator)
        try:
            yield
        finally:
            memory._set_thread_local_allocator(previous)

    return using_allocator


def _add_core(parts: Any, add: Any) -> None:
    arrays, kernels = parts.arrays, parts.kernels
    shared = {'ndarray': arrays.ndarray, 'ascontiguousarray': parts.functions.ascontiguousarray}
    contents = {
        **parts.ufuncs.TABLE,
        **shared,
        'ElementwiseKernel': kernels.ElementwiseKernel,
        'ReductionKernel': kernels.ReductionKernel,
        'RawKernel': kernels.RawKernel,
        'RawModule': kernels.RawModule,
        'ufunc': parts.ufuncs.ufunc,
        'from_dlpack': parts.arrays.from_dlpack,
        **parts.extras.accelerators(),
    }
    add('cupy._core', contents, parts.functions._core)
    add('cupy._core.core', {**shared, '_ndarray_base': arrays._ndarray_base, 'array': parts.arrays.array})
    add('cupy._core.syncdetect', {}, parts.syncdetect)
    add('cupy._core.flags', {'Flags': parts.launches.Flags})
    wait = bool(int(os.environ.get('CUPY_CUDA_ARRAY_INTERFACE_SYNC', '1')))
    add('cupy._util', {'PerformanceWarning': parts.launches.PerformanceWarning, 'CUDA_ARRAY_INTERFACE_SYNC': wait})


def _add_top(parts: Any, add: Any) -> None:
    import numpy as np

    contents: dict[str, Any] = {name: getattr(np, name) for name in (*_SCALARS, *_FROM_NUMPY) if hasattr(np, name)}
    contents.update({name: getattr(np, source) for name, source in _NUMPY_1_NAMES.items()})
    contents.update({'bool': np.bool_, 'Inf': np.inf, 'Infinity': np.inf, 'NAN': np.nan, 'NaN': np.nan})
    contents.update({'NINF': -np.inf, 'NZERO': -0.0, 'PINF': np.inf, 'PZERO': 0.0, 'infty': np.inf})
    contents.update(parts.functions._top_level())
    contents.update(parts.ufuncs.TABLE)
    contents.update({**_public(parts.functions, 'mgrid', 'ogrid', 'r_', 'c_'), **parts.functions.SHORT})
    del contents['NpzFile']
    kernels, cupy = parts.kernels, parts.runtime_calls.cupy
    contents.update({name: getattr(kernels, name) for name in kernels.__all__ if name not in ('body', 'rawkernel')})
    contents.update(_exceptions())
    contents.update(
        ndarray=parts.arrays.ndarray,
        ufunc=parts.ufuncs.ufunc,
        from_dlpack=parts.arrays.from_dlpack,
        fromDlpack=parts.arrays.fromDlpack,
        disable_experimental_feature_warning=False,
        matmul=_matmul(parts),
        is_available=lambda: True,
        get_default_memory_pool=lambda: cupy._default_memory_pool,
        get_default_pinned_memory_pool=lambda: cupy._default_pinned_memory_pool,
    )
    add('cupy', {'__version__': VERSION, **{k: v for k, v in contents.items() if not k.startswith('_')}})
    add('cupy.linalg', parts.functions._linalg())
    add('cupy.fft', parts.functions._fft())
    add('cupy.random._generator', {}, parts.randoms)
    bits = ('BitGenerator', '_cuRANDGenerator', 'XORWOW', 'MRG32k3a', 'Philox4x3210')
    add('cupy.random._bit_generator', {name: getattr(parts.randoms, name) for name in bits})
    add('cupy.random', parts.randoms.names())
    add('cupy.exceptions', _exceptions())
    add('cupy.testing', {k: v for k, v in vars(parts.extras).items() if k.startswith('assert_')})


def _matmul(parts: Any) -> Any:
    import numpy as np

    def matmul(
        x1: Any, x2: Any, /, out: Any = None, *, axes: Any = None, axis: Any = None, keepdims: bool = False,
        casting: str = 'same_kind', dtype: Any = None, signature: Any = None, order: str = 'K',
    ) -> Any:  # fmt: skip
        if parts.functions._needs_cublas((x1, x2)):
            parts.vendor.use(parts.vendor.cublas)
        options = {k: v for k, v in {'axes': axes, 'dtype': dtype}.items() if v is not None}
        if out is None and not options and parts.vendor.can_multiply(x1, x2):
            found = parts.arrays.ndarray.for_result((x1.shape[0], x2.shape[1]), x1.dtype)
            make = functools.partial(parts.launches.launch, 'cupy_matmul', np.matmul, (x1, x2), out=found, opaque=True)
            parts.vendor.multiplied(x1, x2, found, make)
            return found
        return parts.launches.launch('cupy_matmul', np.matmul, (x1, x2), options, out=out)

    return matmul


def _exceptions() -> dict[str, Any]:
    import numpy as np

    source: Any = getattr(np, 'exceptions', np)
    names = ('AxisError', 'ComplexWarning', 'ModuleDeprecationWarning', 'RankWarning', 'TooHardError',
             'VisibleDeprecationWarning')  # fmt: skip
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def _add_cupyx(parts: Any, add: Any) -> None:
    extras = parts.extras
    pinned = """
        empty_pinned zeros_pinned empty_like_pinned zeros_like_pinned scatter_add scatter_max scatter_min
    """.split()
    errors = {name: getattr(parts.extras, name) for name in ('seterr', 'geterr', 'errstate')}
    syncdetect = {name: getattr(parts.syncdetect, name) for name in ('DeviceSynchronized', 'allow_synchronize')}
    add('cupyx._ufunc_config', {**errors, 'get_config_linalg': parts.vendor.get_config_linalg})
    add('cupyx', {**{name: getattr(extras, name) for name in pinned}, **errors, **syncdetect})
    profiler = ('benchmark', 'time_range', 'profile', '_PerfCaseResult')
    add('cupyx.profiler', {name: getattr(extras, name) for name in profiler})
    add('cupyx.cusparse', {name: getattr(parts.scipy_functions, name) for name in ('spgemm', 'spmm', 'spmv')})
    add('cupyx.scipy', {})
    for module, names in SCIPY.items():
        make = functools.partial(parts.scipy_functions.found, module)
        add(f'cupyx.scipy.{module}', {}, late=(names.split(), make))
    of_scipy = parts.scipy_functions
    add('cupyx.scipy.sparse', of_scipy.sparse_names(), late=(of_scipy.SPARSE, of_scipy.sparse_function))
    add('cupyx.scipy.sparse.linalg', {'eigsh': of_scipy.eigsh})
    add('cupyx.jit', {'rawkernel': parts.kernels.rawkernel})


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
