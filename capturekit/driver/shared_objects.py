"""The shared objects that a call came through, found by the return addresses on the C stack.

``backtrace()`` of the C library lists the addresses, ``dladdr()`` says which file each lies in. That takes a fraction
of a millisecond, so it is done only for a call that is told of.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable

#: So many addresses are looked at.
_DEEPEST = 64
#: What lies between a callback and the call that it is told of, and what lies above the user's Python.
_DRIVER = re.compile(r'lib(?:cuda|cupti|cuda_debugger)\b')
#: What other libraries call CUDA through.
_DOORS = re.compile(r'libcudart\b|cuda\.bindings\._')
_PYTHON = re.compile(r'(?:lib)?python[\d.]*')
_CTYPES = re.compile(r'(?:libffi|_ctypes)\b')
_SUFFIX = re.compile(r'(?:\.cpython-[^.]*|\.abi3)?\.(?:so|pyd)$')
_TAGGED = re.compile(r'\.(?:cpython-[^.]*|abi3)\.(?:so|pyd)$')
_FOLDERS = re.compile(r'.*/(?:site-packages|dist-packages|lib-dynload)/')


class _Symbol(ctypes.Structure):
    """``Dl_info``."""

    _fields_ = [(name, ctypes.c_void_p) for name in ('name', 'base', 'symbol', 'address')]


def files() -> list[str]:
    """Return the files of the C stack of this thread, the innermost first, neighbours that are alike once."""
    libc = ctypes.CDLL(None)
    addresses = (ctypes.c_void_p * _DEEPEST)()
    found: list[str] = []
    symbol = _Symbol()
    for at in range(libc.backtrace(addresses, _DEEPEST)):
        address = ctypes.c_void_p(addresses[at])
        if not libc.dladdr(address, ctypes.byref(symbol)) or not symbol.name:
            continue
        file = os.fsdecode(ctypes.string_at(symbol.name))
        if found[-1:] != [file]:
            found.append(file)
    return found


def callers(stack: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the libraries above the driver, the nearest first, up to Python's interpreter.

    A library that was reached by ctypes is called ``ctypes``. The CUDA runtime, and the like, is left out if
    another one called it.
    """
    names = [os.path.basename(file) for file in stack]
    inner = next((at for at, name in enumerate(names) if _DRIVER.match(name)), None)
    if inner is None:
        return ()
    found: list[str] = []
    for file, name in list(zip(stack, names))[inner:]:
        if _DRIVER.match(name):
            continue
        if _PYTHON.fullmatch(re.sub(r'\.so.*', '', name)):
            break
        shown = 'ctypes' if _CTYPES.match(name) else module_name(file)
        if found[-1:] != [shown]:
            found.append(shown)
    others = [name for name in found if not _DOORS.match(name)]
    return tuple(others or found)


def module_name(file: str) -> str:
    """Return how a shared object is called: an extension module as Python does, another one by its file's name."""
    name = os.path.basename(file)
    if name.startswith('lib'):
        return name
    if not _FOLDERS.match(file):
        return _TAGGED.sub('', name)
    return _SUFFIX.sub('', _FOLDERS.sub('', file)).replace('/', '.')
