"""CuPy's vendor libraries are allowed in captures.

CuPy's modules for cuBLAS, cuSOLVER, cuRAND and cuSPARSE refuse a capture: whenever such a module gets a stream, it asks
whether the stream is being captured, through a function pointer that it copied at import. While a capture of capturekit
is open, that pointer leads to a function here, which answers no for the capture's streams; the rest of CuPy still gets
the true answer. It doesn't matter when the modules were loaded, and closing the last capture puts every pointer back.

cuBLAS gets a workspace from the graph's memory, one for each lane, each time CuPy sets its stream: without one it
would record allocations, and two lanes would share a workspace. (cuBLAS documentation, "CUDA Graphs support",
``cublasSetWorkspace``.)

Where the pointer of a module can't be found (not on Linux), the module stays as it is, and :attr:`Libraries.late` says
why.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

from capturekit.driver.library_streams import PACKAGE, LibraryStreams

# -- pointers inside loaded shared objects: where an extension module keeps the address of a function it calls --------
#
# A Cython module that calls a function of another one copies its address at import into one of its variables; a module
# linked to a library keeps the library's addresses in its jump table. Both lie in the module's writable segments and
# can be read, replaced and put back at any time, so that it doesn't matter when the module was imported. ELF only
# (Linux, 64 bit); other systems raise :class:`LookupError`. System V ABI, "Program Loading and Dynamic Linking".


_LOAD, _DYNAMIC, _WRITABLE = 1, 2, 2
_END, _PLT_SIZE, _STRINGS, _SYMBOLS, _JUMPS = 0, 2, 5, 6, 23


class Object:
    """A shared object of this process, by its path.

    Raises:
        LookupError: it is not loaded, or the platform is another.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)  # as the list of loaded objects has it
        if not sys.platform.startswith('linux') or struct.calcsize('P') != 8:
            raise LookupError(f'pointers of {path} can only be found on 64-bit Linux')
        try:
            with open(path, 'rb') as f:
                head = f.read(64)
                if head[:5] != b'\x7fELF\x02':
                    raise LookupError(f'{path} is not a 64-bit ELF object')
                offset = struct.unpack_from('<Q', head, 32)[0]
                size, count = struct.unpack_from('<HH', head, 54)
                f.seek(offset)
                table = f.read(size * count)
        except OSError as error:
            raise LookupError(f'{path} can not be read ({error})') from None
        rows = [struct.unpack_from('<IIQQQQQQ', table, i * size) for i in range(count)]
        lowest = min(row[3] for row in rows if row[0] == _LOAD)
        self.base = self._mapped() - lowest // mmap.PAGESIZE * mmap.PAGESIZE
        self._writable = [(self.base + row[3], row[6]) for row in rows if row[0] == _LOAD and row[1] & _WRITABLE]
        self._dynamic = next(self.base + row[3] for row in rows if row[0] == _DYNAMIC)

    def _mapped(self) -> int:
        starts = [start for start, _end, _rights, path in _mappings() if path == self.path]
        if not starts:
            raise LookupError(f'{self.path} is not loaded')
        return min(starts)

    def holding(self, value: int) -> list[int]:
        """Addresses of the pointers in this object's data that hold ``value``."""
        found = []
        needle = struct.pack('<Q', value)
        for start, size in self._writable:
            data = ctypes.string_at(start, size)
            at = data.find(needle)
            while at >= 0:
                if (start + at) % 8 == 0:
                    found.append(start + at)
                at = data.find(needle, at + 1)
        return found

    def jump(self, symbol: str) -> int:
        """Address of the pointer through which this object calls a function of another. LookupError if it has none."""
        entries = {}
        at = self._dynamic
        while True:
            tag, value = struct.unpack('<qQ', ctypes.string_at(at, 16))
            if tag == _END:
                break
            entries[tag] = value
            at += 16
        try:
            table, size = self.absolute(entries[_JUMPS]), entries[_PLT_SIZE]
            symbols, strings = self.absolute(entries[_SYMBOLS]), self.absolute(entries[_STRINGS])
        except KeyError:
            raise LookupError(f'{self.path} has no jump table') from None
        for row in range(table, table + size, 24):
            offset, info, _addend = struct.unpack('<QQq', ctypes.string_at(row, 24))
            name = struct.unpack('<I', ctypes.string_at(symbols + 24 * (info >> 32), 4))[0]
            if ctypes.string_at(strings + name) == symbol.encode():
                where: int = self.base + offset
                if any(start <= where < start + length for start, length in self._writable):
                    return where
        raise LookupError(f'{self.path} does not call {symbol}')

    def absolute(self, value: int) -> int:
        return value if value >= self.base else self.base + value


class LinkedPointer:
    """One pointer in memory: replaced and put back.

    An object linked with ``-z now`` has its jump table sealed when it is loaded: the page is opened for each write.
    """

    def __init__(self, address: int) -> None:
        self._cell = ctypes.c_uint64.from_address(address)
        self._page = address // mmap.PAGESIZE * mmap.PAGESIZE
        self._sealed = _sealed(address)
        self._before: int | None = None

    def replace(self, value: int) -> None:
        """Write ``value``; the first time, remember the former value."""
        before = self._cell.value
        self._write(value)
        if self._before is None:
            self._before = before

    def restore(self) -> None:
        """Restore the value from before :meth:`replace`."""
        if self._before is not None:
            self._write(self._before)
            self._before = None

    def _write(self, value: int) -> None:
        if self._sealed:
            self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
        self._cell.value = value
        if self._sealed:
            self._protect(mmap.PROT_READ)

    def _protect(self, rights: int) -> None:
        call = ctypes.CDLL(None, use_errno=True).mprotect
        call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        if call(self._page, mmap.PAGESIZE, rights):
            raise OSError(ctypes.get_errno(), f'the page at {self._page:#x} can not be written')


def address_of(capsule: object) -> int:
    """The address that a capsule of Cython's export table holds."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, name_of(capsule)))


def name_of(capsule: object) -> bytes:
    """The name of a capsule, which in Cython's export table is the C signature."""
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return bytes(name(capsule))


def loaded(part: str) -> str:
    """The path of a loaded object whose file name begins with ``part``. LookupError if there is none."""
    for _start, _end, _rights, path in _mappings():
        if path.rpartition('/')[2].startswith(part):
            return path
    raise LookupError(f'no object named {part}... is loaded')


def _mappings() -> Iterator[tuple[int, int, str, str]]:
    """This process's memory: start, end, rights, path. LookupError where the system does not list it."""
    try:
        with open('/proc/self/maps', encoding='utf-8', errors='surrogateescape') as f:
            for line in f:
                span, rights, _offset, _device, _inode, *path = line.rstrip('\n').split(None, 5)
                start, _dash, end = span.partition('-')
                yield int(start, 16), int(end, 16), rights, path[0] if path else ''
    except OSError as error:
        raise LookupError(f'no list of loaded objects on this platform ({error})') from None


def _sealed(address: int) -> bool:
    """True for an address on a page that can't be written."""
    try:
        return any(start <= address < end and rights[1] != 'w' for start, end, rights, _path in _mappings())
    except LookupError:
        return False


NAMES = ('cublas', 'cusolver', 'curand', 'cusparse')
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
            self._simulated = [sys.modules[f'{PACKAGE}.{name}'] for name in NAMES]
        else:
            self._find_pointers()
        self._cupy = platform.cupy

    def _find_pointers(self) -> None:
        runtime = importlib.import_module('cupy_backends.cuda.api.runtime')
        real = address_of(runtime.__pyx_capi__['streamIsCapturing'])
        asked = runtime.streamIsCapturing
        for name in NAMES:
            mine = _Answer(lambda stream, _skip, name=name: self._answer_to_c(name, asked, stream))
            self._alive.append(mine)
            try:
                module = importlib.import_module(f'{PACKAGE}.{name}')
                found = Object(str(module.__file__)).holding(real)
                if not found:
                    raise LookupError('it keeps no pointer to streamIsCapturing')
            except ImportError as error:
                self.late[name] = f'{name} can not be loaded here ({error})'
            except LookupError as error:
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


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
