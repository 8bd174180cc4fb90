"""Pointers inside loaded shared objects: where an extension module keeps the address of a function it calls.

A Cython module that calls a function of another one copies its address at import into one of its variables; a module
linked to a library keeps the library's addresses in its jump table. Both lie in the module's writable segments and can
be read, replaced and put back at any time, so that it doesn't matter when the module was imported. ELF only (Linux,
64 bit); other systems raise :class:`LookupError`. System V ABI, "Program Loading and Dynamic Linking".
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Iterator

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
