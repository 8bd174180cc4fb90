"""Things about CuPy's inside that capturekit rests on, each tried, as far as it can be without a GPU."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

_SIGNATURE = b'int (intptr_t, int __pyx_skip_dispatch)'


def seams(loaded_early: list[str]) -> dict[str, str]:
    """What each seam is, in words -> '' where it holds, or why not. ``loaded_early``: what ``import cupy`` loaded."""
    found = {}
    for seam in SEAMS:
        try:
            seam()
            why = ''
        except Exception as error:
            why = f'{type(error).__name__}: {error}'
        found[str(seam.__doc__)] = why
    found['`import cupy` loads none of the four library modules'] = ', '.join(loaded_early)
    return found


class Heard(Exception):
    """What was replaced has been called."""


@contextmanager
def replacing(holder: Any, name: str, new: Any) -> Iterator[None]:
    inherited = name not in vars(holder)
    before = getattr(holder, name)
    setattr(holder, name, new)
    try:
        yield
    finally:
        if inherited:
            delattr(holder, name)
        else:
            setattr(holder, name, before)


def hear(*_args: Any, **_kwargs: Any) -> Any:
    raise Heard


def is_heard(call: Callable[[], Any]) -> None:
    try:
        call()
    except Heard:
        return
    raise AssertionError('what was replaced is not called')


def array(shape: tuple[int, ...] = ()) -> Any:
    """An array over memory of the host's: never touched, and made without a GPU."""
    import cupy

    buffer = ctypes.create_string_buffer(64)
    memory = cupy.cuda.UnownedMemory(ctypes.addressof(buffer), 64, buffer, 0)
    return cupy.ndarray(shape, 'd', cupy.cuda.MemoryPointer(memory, 0))


def exported() -> None:
    """`streamIsCapturing` is exported to Cython as `int (intptr_t, int)`"""
    from capturekit.driver.elf import name_of

    runtime = importlib.import_module('cupy_backends.cuda.api.runtime')
    signature = name_of(runtime.__pyx_capi__['streamIsCapturing'])
    assert signature == _SIGNATURE, signature


def pointed_at() -> None:
    """an extension module keeps one pointer to it, which is found in memory"""
    from capturekit.driver.elf import Object, address_of

    runtime = importlib.import_module('cupy_backends.cuda.api.runtime')
    importlib.import_module('cupy.cuda.stream')
    address = address_of(runtime.__pyx_capi__['streamIsCapturing'])
    places = Object(str(sys.modules['cupy.cuda.stream'].__file__)).holding(address)
    assert len(places) == 1, places


def asked_by_libraries() -> None:
    """the files of cuBLAS's, cuSOLVER's, cuRAND's and cuSPARSE's modules name `streamIsCapturing`"""
    from capturekit.driver.vendor_libraries import NAMES

    without = [name for name in NAMES if b'streamIsCapturing' not in _file(f'cupy_backends.cuda.libs.{name}')]
    assert not without, without


def given_workspaces() -> None:
    """cuBLAS's module calls `cublasSetStream_v2`, cuFFT's `cufftDestroy`, the driver's `cuModuleUnload`"""
    wanted = {
        'cupy_backends.cuda.libs.cublas': b'cublasSetStream_v2',
        'cupy.cuda.cufft': b'cufftDestroy',
        'cupy_backends.cuda.api.driver': b'cuModuleUnload',
    }
    without = [module for module, word in wanted.items() if word not in _file(module)]
    assert not without, without


def _file(module: str) -> bytes:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, f'{module} is not to be found'
    return Path(spec.origin).read_bytes()


def read_through_get() -> None:
    """`float`, `int`, `bool`, `complex`, `item`, `tolist`, `repr`, `str`, `format`, `tobytes`, `asnumpy` call `get`"""
    import cupy

    assert 'get' not in vars(cupy.ndarray), 'restoring means deleting'
    one = array()
    reads: dict[str, tuple[Callable[[], Any], Any]] = {
        'float': (lambda: float(one), 3.0),
        'int': (lambda: int(one), 3),
        'bool': (lambda: bool(one), True),
        'complex': (lambda: complex(one), 3 + 0j),
        'item': (one.item, 3.0),
        'tolist': (one.tolist, 3.0),
        'repr': (lambda: repr(one), 'array(3.)'),
        'str': (lambda: str(one), '3.0'),
        'format': (lambda: format(one), '3.0'),
        'tobytes': (one.tobytes, np.array(3.0).tobytes()),
        'asnumpy': (lambda: cupy.asnumpy(one), 3.0),
    }
    with replacing(cupy.ndarray, 'get', lambda self, *args, **kwargs: np.array(3.0)):
        wrong = {name: read() for name, (read, wanted) in reads.items() if read() != wanted}
    assert not wrong, wrong


def waits_declared() -> None:
    """`Device.synchronize()` calls `cupy._core.syncdetect._declare_synchronize`, looked up each time"""
    import cupy

    syncdetect = importlib.import_module('cupy._core.syncdetect')
    with replacing(syncdetect, '_declare_synchronize', hear):
        is_heard(cupy.cuda.Device(0).synchronize)


def made_by_core() -> None:
    """`cupy.array`, `asarray` and `asanyarray` go through `cupy._core.array`"""
    import cupy

    core = importlib.import_module('cupy._core')
    with replacing(core, 'array', hear):
        is_heard(lambda: cupy.array([1, 2]))
        is_heard(lambda: cupy.asarray([1, 2]))
        is_heard(lambda: cupy.asanyarray([1, 2]))


def allocators() -> None:
    """`using_allocator` sets this thread's by `_set_thread_local_allocator`, and `alloc` takes memory from it"""
    import cupy

    with cupy.cuda.using_allocator(hear):
        assert cupy.cuda.memory._get_thread_local_allocator() is hear
        is_heard(lambda: cupy.cuda.alloc(8))
    assert cupy.cuda.memory._get_thread_local_allocator() is None
    with replacing(cupy.cuda.memory, '_set_thread_local_allocator', hear):
        is_heard(lambda: cupy.cuda.using_allocator(None).__enter__())


def in_the_instance() -> None:
    """streams keep `ptr` and `_graph_host_funcargs` in their own dictionaries"""
    import cupy

    missing = {'ptr', '_graph_host_funcargs'} - vars(cupy.cuda.Stream.null).keys()
    assert not missing, missing


def handed_on() -> None:
    """`Stream.from_external` takes any object with `__cuda_stream__`"""
    import cupy

    class Other:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 0x123

    assert cupy.cuda.Stream.from_external(Other()).ptr == 0x123


SEAMS: tuple[Callable[[], None], ...] = (
    exported, pointed_at, asked_by_libraries, given_workspaces, read_through_get, waits_declared, made_by_core,
    allocators, in_the_instance, handed_on,
)  # fmt: skip
