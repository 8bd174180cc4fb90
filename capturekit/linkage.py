"""Pointers inside loaded shared objects: where an extension module keeps the address of a function it calls.

A Cython module that calls a function of another one copies its address at import into a variable of its own; a module
linked to a library keeps the library's addresses in its jump table. Both lie in the module's writable segments and can
be read, replaced and put back at any time, so that it doesn't matter when the module was imported. ELF only (Linux,
64 bit); elsewhere :class:`LookupError` says so. System V ABI, "Program Loading and Dynamic Linking".
"""

from __future__ import annotations

import ctypes
import struct
import sys

_LOAD, _DYNAMIC, _WRITABLE = 1, 2, 2
_END, _PLT_SIZE, _STRINGS, _SYMBOLS, _JUMPS = 0, 2, 5, 6, 23


class Object:
    """A shared object of this process, by its path.

    Raises:
        LookupError: it is not loaded, or the platform is another.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if not sys.platform.startswith('linux') or struct.calcsize('P') != 8:
            raise LookupError(f'pointers of {path} can only be found on 64-bit Linux')
        with open(path, 'rb') as f:
            head = f.read(64)
            if head[:5] != b'\x7fELF\x02':
                raise LookupError(f'{path} is no 64-bit ELF object')
            offset = struct.unpack_from('<Q', head, 32)[0]
            size, count = struct.unpack_from('<HH', head, 54)
            f.seek(offset)
            table = f.read(size * count)
        rows = [struct.unpack_from('<IIQQQQQQ', table, i * size) for i in range(count)]
        lowest = min(row[3] - row[2] for row in rows if row[0] == _LOAD)
        self.base = self._mapped() - lowest
        self._writable = [(self.base + row[3], row[6]) for row in rows if row[0] == _LOAD and row[1] & _WRITABLE]
        self._dynamic = next(self.base + row[3] for row in rows if row[0] == _DYNAMIC)

    def _mapped(self) -> int:
        with open('/proc/self/maps', encoding='utf-8', errors='surrogateescape') as f:
            starts = [int(line.split('-')[0], 16) for line in f if line.rstrip('\n').endswith(f' {self.path}')]
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
            table, size = self._absolute(entries[_JUMPS]), entries[_PLT_SIZE]
            symbols, strings = self._absolute(entries[_SYMBOLS]), self._absolute(entries[_STRINGS])
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

    def _absolute(self, value: int) -> int:
        return value if value >= self.base else self.base + value


class Pointer:
    """One pointer in memory: replaced and put back."""

    def __init__(self, address: int) -> None:
        self._cell = ctypes.c_uint64.from_address(address)
        self._before: int | None = None

    def replace(self, value: int) -> None:
        """Write ``value``; remember what was there."""
        before = self._cell.value
        self._cell.value = value
        self._before = before

    def restore(self) -> None:
        """Put back what was there before :meth:`replace`."""
        if self._before is not None:
            self._cell.value, self._before = self._before, None


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
    try:
        with open('/proc/self/maps', encoding='utf-8', errors='surrogateescape') as f:
            for line in f:
                path = line.rstrip('\n')[73:].strip()
                if path.rpartition('/')[2].startswith(part):
                    return path
    except OSError as error:
        raise LookupError(f'no list of loaded objects on this platform ({error})') from None
    raise LookupError(f'no object named {part}... is loaded')
