"""CuPy's vendor libraries are allowed in captures.

CuPy's modules for cuBLAS, cuSOLVER, cuRAND and cuSPARSE refuse a capture: whenever such a module gets a stream, it asks
whether the stream is being captured, through a function pointer that it copied at import. While a capture of capturekit
is open, that pointer leads to a function here, which answers no for the capture's streams; the rest of CuPy still gets
the true answer. It doesn't matter when the modules were loaded, and closing the last capture puts every pointer back.

cuBLAS gets a workspace from the graph's memory, one for each lane, each time CuPy sets its stream: without one it
would record allocations, and two lanes would share a workspace. (cuBLAS documentation, "CUDA Graphs support",
``cublasSetWorkspace``.)

If pointers can't be found (not on Linux), a module that is not loaded yet is imported with another function in its
place: then the order of imports matters, and :func:`Libraries.late` says which modules were loaded too early.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from capturekit.driver.elf import LinkedPointer, Object, address_of, loaded, name_of
from capturekit.driver.library_streams import LibraryStreams

NAMES = ('cublas', 'cusolver', 'curand', 'cusparse')
_PACKAGE = 'cupy_backends.cuda.libs'
#: Whether pointers can be found in loaded objects, so that the order of imports doesn't matter.
_FINDS = sys.platform.startswith('linux')
#: ``CUBLAS_STATUS_ALLOC_FAILED``, of which CuPy makes a CUBLASError.
_ALLOC_FAILED = 3
_Answer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ssize_t, ctypes.c_int)
_SetStream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Libraries:
    """The libraries of the imported CuPy, opened for captures and closed again.

    ``hides(stream)``: whether a stream belongs to a capture in which libraries may record.
    ``workspace(stream)``: address and bytes for cuBLAS on a stream, or None.
    """

    def __init__(self, hides: Callable[[int], bool], workspace: Callable[[int], tuple[int, int] | None]) -> None:
        self._hides = hides
        self.workspace = workspace
        self._cupy: Any = None
        self._undo: list[Callable[[], Any]] = []
        self._pointers: list[tuple[LinkedPointer, int]] = []
        self._simulated: list[Any] = []
        self._alive: list[Any] = []
        self.late: dict[str, str] = {}
        self.streams = LibraryStreams()

    def open(self, platform: Any) -> None:
        """Let the libraries record, from now until :meth:`close`."""
        if self._cupy is not platform.cupy:
            self._find(platform)
        for pointer, value in self._pointers:
            pointer.replace(value)
            self._undo.append(pointer.restore)
        for name, module in zip(NAMES, self._simulated):
            before = module.streamIsCapturing
            module.streamIsCapturing = functools.partial(self._answer, name, before)
            self._undo.append(functools.partial(setattr, module, 'streamIsCapturing', before))
        self.streams.install(platform.cupy)
        self._undo.append(self.streams.uninstall)

    def _answer(self, name: str, asked: Callable[[int], Any], stream: int) -> int:
        if not self._hides(stream):
            return int(asked(stream))
        self.streams.note(self._cupy, name)
        return 0

    def _answer_to_c(self, name: str, asked: Callable[[int], Any], stream: int) -> int:
        """Answer a call from C, which can't pass exceptions on: a stream that can't be asked counts as captured."""
        try:
            return self._answer(name, asked, stream)
        except Exception:
            return 1

    def close(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()

    def _find(self, platform: Any) -> None:
        self._cupy, self._pointers, self._simulated, self.late = None, [], [], {}
        if platform.simulated:
            self._simulated = [sys.modules[f'{_PACKAGE}.{name}'] for name in NAMES]
        else:
            self._find_pointers()
        self._cupy = platform.cupy

    def _find_pointers(self) -> None:
        runtime = importlib.import_module('cupy_backends.cuda.api.runtime')
        real = address_of(runtime.__pyx_capi__['streamIsCapturing'])
        asked = runtime.streamIsCapturing
        for name in NAMES:
            mine = _answer_of(name, asked, self._answer_to_c)
            self._alive.append(mine)
            early = f'{_PACKAGE}.{name}' in sys.modules
            try:
                module = importlib.import_module(f'{_PACKAGE}.{name}') if _FINDS else _bound(runtime, name, mine)
                found = Object(str(module.__file__)).holding(real)
                if not found:
                    raise LookupError('it keeps no pointer to streamIsCapturing')
            except ImportError as error:
                self.late[name] = f'{name} can not be loaded here ({error})'
            except LookupError as error:
                if early or _FINDS:
                    self.late[name] = f'{name} was loaded before the first capture, and {error}'
            else:
                self._pointers += [(LinkedPointer(at), _address(mine)) for at in found]
                if name == 'cublas':
                    self._give_workspaces(str(module.__file__))

    def _give_workspaces(self, path: str) -> None:
        try:
            jump = Object(path).jump('cublasSetStream_v2')
            library = ctypes.CDLL(loaded('libcublas.so'))
        except (LookupError, OSError) as error:
            self.late['cublas workspace'] = str(error)
            return
        set_stream, set_workspace = library.cublasSetStream_v2, library.cublasSetWorkspace_v2
        set_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        set_workspace.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

        def set_both(handle: int, stream: int | None) -> int:
            code = int(set_stream(handle, stream))
            try:
                space = self.workspace(stream or 0) if code == 0 else None
            except Exception:
                return _ALLOC_FAILED
            return code if space is None else int(set_workspace(handle, *space))

        mine = _SetStream(set_both)
        self._alive.append(mine)
        self._pointers.append((LinkedPointer(jump), _address(mine)))


def _answer_of(name: str, asked: Callable[[int], Any], answer: Callable[..., int]) -> Any:
    """The C function that a library's module calls instead."""
    return _Answer(lambda stream, _skip: answer(name, asked, stream))


def _bound(runtime: Any, name: str, answer: Any) -> Any:
    """Import a library's module so that it copies ``answer`` as its pointer; a loaded module keeps its own."""
    exports = runtime.__pyx_capi__
    before = exports['streamIsCapturing']
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    signature = name_of(before)  # a capsule does not keep its name alive
    exports['streamIsCapturing'] = make(_address(answer), signature, None)
    try:
        return importlib.import_module(f'{_PACKAGE}.{name}')
    finally:
        exports['streamIsCapturing'] = before


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
