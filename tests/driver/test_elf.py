"""Pointers inside loaded modules: found where they are, replaced, and put back to the last byte."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from capturekit.driver import vendor_libraries
from capturekit.driver.vendor_libraries import LinkedPointer, Object, loaded
from tests.compiled import compiled

linux = pytest.mark.skipif(
    not sys.platform.startswith('linux') or ctypes.sizeof(ctypes.c_void_p) != 8,
    reason='64-bit Linux alone is looked into',
)
NEEDLE = 0x1122334455667788
SOURCE = """
#include <stdint.h>
#include <math.h>

uint64_t first = 0x1122334455667788;
struct __attribute__((packed, aligned(8))) { char c; uint64_t odd; char rest[7]; } askew = {1, 0x1122334455667788};
uint64_t other = 0x1122334455667789;
uint64_t late;
const uint64_t constants[4] = {0x1122334455667788, 0x1122334455667788};
double erf_of(double x) { return erf(x); }
"""
#: How objects come: bound when first called; bound and sealed when loaded; not beginning at address 0.
LAYOUTS = {
    'lazy': ('-Wl,-z,lazy', '-Wl,-z,norelro'),
    'partly sealed': ('-Wl,-z,lazy', '-Wl,-z,relro'),
    'sealed': ('-Wl,-z,now', '-Wl,-z,relro'),
    'not at 0': ('-Wl,-z,lazy', '-Wl,-Ttext-segment=0x340000'),
}
Double = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def around(at: int) -> bytes:
    return ctypes.string_at(at - 32, 72)


def rights(at: int) -> str:
    found = ''
    for line in Path('/proc/self/maps').read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split('-'))
        if start <= at < end:
            found = line.split()[1]
    return found


@pytest.fixture(params=LAYOUTS)
def library(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    path = compiled(tmp_path / 'looked_into.so', SOURCE, *LAYOUTS[request.param])
    found: Any = ctypes.CDLL(path)
    found.erf_of.restype, found.erf_of.argtypes = ctypes.c_double, [ctypes.c_double]
    return found


@linux
def test_pointers_are_found_wherever_they_lie(library: Any) -> None:
    """In initialised data and in zeroed memory; neither askew ones, nor other values, nor constants."""
    variables = {name: ctypes.c_uint64.in_dll(library, name) for name in ('first', 'other', 'late')}
    places = {name: ctypes.addressof(cell) for name, cell in variables.items()}
    found = Object(library._name)
    assert found.holding(NEEDLE) == [places['first']]
    assert found.holding(NEEDLE + 1) == [places['other']]
    variables['late'].value = NEEDLE
    assert sorted(found.holding(NEEDLE)) == sorted([places['first'], places['late']])
    variables['first'].value = 0
    assert found.holding(NEEDLE) == [places['late']]
    assert found.holding(0x6B6E6F776E206E6F) == []


@linux
def test_a_call_into_another_object_is_led_elsewhere_and_back(library: Any) -> None:
    wanted = math.erf(0.25)
    assert library.erf_of(0.25) == wanted
    jump = Object(library._name).jump('erf')
    before, allowed = around(jump), rights(jump)
    pointer = LinkedPointer(jump)
    mine = Double(lambda x: x * 100)
    for _ in range(3):
        pointer.replace(address(mine))
        assert library.erf_of(0.25) == 25
        assert math.erf(0.25) == wanted, 'other callers of the same function are not concerned'
        pointer.restore()
        assert library.erf_of(0.25) == wanted
        assert around(jump) == before
        assert rights(jump) == allowed


@linux
def test_calls_that_are_not_there(library: Any, tmp_path: Path) -> None:
    found = Object(library._name)
    for name in ('cos', 'er', 'erff', 'erf_of', ''):
        with pytest.raises(LookupError, match=f'looked_into.so does not call {name}'):
            found.jump(name)
    alone = ctypes.CDLL(compiled(tmp_path / 'alone.so', 'int one(void) { return 1; }', '-nostdlib', '-nodefaultlibs'))
    with pytest.raises(LookupError, match=r'alone\.so has no jump table'):
        Object(alone._name).jump('erf')


# -- what is not there --------------------------------------------------------------------------------------------


@linux
def test_objects_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r'nowhere\.so can not be read'):
        Object(str(tmp_path / 'nowhere.so'))
    with pytest.raises(LookupError, match='can not be read'):
        Object('None')
    text = tmp_path / 'text.so'
    for content in (b'', b'\x7fELF', b'\x7fELF\x01' + bytes(100), b'print()\n' * 20):
        text.write_bytes(content)
        with pytest.raises(LookupError, match=r'text\.so is not a 64-bit ELF object'):
            Object(str(text))


@linux
def test_an_object_that_is_not_loaded(tmp_path: Path) -> None:
    path = compiled(tmp_path / 'idle.so', SOURCE)
    with pytest.raises(LookupError, match=r'idle\.so is not loaded'):
        Object(path)
    os.rename(path, tmp_path / 'idle.so.1')
    os.rename(compiled(tmp_path / 'my idle.so', SOURCE), path)  # a name that ends with the other's
    ctypes.CDLL(compiled(tmp_path / 'not idle.so', SOURCE))
    with pytest.raises(LookupError, match=r'idle\.so is not loaded'):
        Object(path)


def test_where_the_system_keeps_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_list(path: str, *_args: Any, **_kwargs: Any) -> Any:
        raise FileNotFoundError(2, 'No such file or directory', path)

    monkeypatch.setattr(vendor_libraries, 'open', no_list, raising=False)
    with pytest.raises(LookupError, match='no list of loaded objects on this platform'):
        loaded('libc')
    cell = ctypes.c_uint64(5)
    pointer = LinkedPointer(ctypes.addressof(cell))  # without a list, memory counts as one's own
    pointer.replace(6)
    assert cell.value == 6
