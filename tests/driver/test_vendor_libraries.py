"""The vendor's libraries are let into captures for as long as one is open, and see the truth before and after."""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver import vendor_libraries
from capturekit.driver.vendor_libraries import NAMES, Libraries
from capturekit.guard import GUARD
from tests.compiled import compiled

ROOT = Path(__file__).parents[2]
RUNTIME = 'cupy_backends.cuda.api.runtime'
Asked = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ssize_t, ctypes.c_int)
OWN, FOREIGN, BROKEN = 0x100, 0x200, 0x300

#: As Cython makes a module: a pointer to another module's function, and calls of a library it is linked to.
MODULE = """
typedef int (*asked_t)(long, int);
asked_t asked = 0;
int ask(long stream) { return asked(stream, 0); }
"""
CUBLAS_MODULE = (
    MODULE
    + """
int cublasSetStream_v2(void*, void*);
int set_stream(void* handle, void* stream) { return cublasSetStream_v2(handle, stream); }
"""
)
CUBLAS = """
#include <stddef.h>
int answer = 0, answer_to_workspace = 0, spaces = 0;
void *handle, *stream, *space;
size_t size;
int cublasSetStream_v2(void* h, void* s) { handle = h; stream = s; return answer; }
int cublasSetWorkspace_v2(void* h, void* at, size_t n) { spaces++; space = at; size = n; return answer_to_workspace; }
"""


def nothing_but_a_device() -> Any:
    cupy: Any = ModuleType('cupy')
    cupy.cuda = SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0))
    return cupy


class World:
    """A CuPy that only has its four library modules, and the function of its runtime that they ask."""

    def __init__(self, files: dict[str, str], cublas: Any) -> None:
        self.platform = SimpleNamespace(cupy=nothing_but_a_device(), simulated=False)
        self.cublas = cublas
        self.truth: list[int] = []
        self.objects = {name: ctypes.PyDLL(file) for name, file in files.items()}
        self.function = Asked(lambda stream, _skip: self.is_capturing(stream))
        self.runtime: Any = ModuleType(RUNTIME)
        self.runtime.streamIsCapturing = self.is_capturing
        self.runtime.__pyx_capi__ = {'streamIsCapturing': capsule(self.address)}
        self.modules: dict[str, Any] = {}
        for name, file in files.items():
            module = self.modules[name] = ModuleType(f'cupy_backends.cuda.libs.{name}')
            module.__file__ = file
            self.pointer(name).value = self.address

    @property
    def address(self) -> int:
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def pointer(self, name: str) -> Any:
        return ctypes.c_uint64.in_dll(self.objects[name], 'asked')

    def is_capturing(self, stream: int) -> bool:
        self.truth.append(stream)
        if stream == BROKEN:
            raise RuntimeError('an error has invalidated the capture sequence')
        return True

    def ask(self, name: str, stream: int) -> int:
        return int(self.objects[name].ask(ctypes.c_long(stream)))

    def set_stream(self, stream: int | None, handle: int | None = None) -> int:
        """What CuPy's module answers that sets the stream of cuBLAS."""
        module = ctypes.CDLL(self.modules['cublas'].__file__)
        return int(module.set_stream(ctypes.c_void_p(handle), ctypes.c_void_p(stream)))

    def untouched(self) -> bool:
        return all(self.pointer(name).value == self.address for name in self.objects)


def capsule(address: int) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(address, SIGNATURE, None)


SIGNATURE = b'int (intptr_t, int __pyx_skip_dispatch)'


def cublas_is_loaded() -> bool:
    try:
        vendor_libraries.loaded('libcublas.so')
    except LookupError:
        return False
    return True


@pytest.fixture(scope='module')
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp('libs')
    plain = compiled(folder / 'cusolver.so', MODULE)
    found = {'cusolver': plain, 'cublas library': compiled(folder / 'twin_of_libcublas.so', CUBLAS)}
    for name in ('curand', 'cusparse'):
        found[name] = shutil.copy(plain, folder / f'{name}.so')
    linked = (f'-L{folder}', '-l:twin_of_libcublas.so', f'-Wl,-rpath,{folder}')
    found['cublas'] = compiled(folder / 'cublas.so', CUBLAS_MODULE, *linked)
    return found


@pytest.fixture
def world(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    if cublas_is_loaded():
        pytest.skip('cuBLAS is loaded in this process, and its functions answer in the place of those of the test')
    library = ctypes.CDLL(files['cublas library'])
    for name in ('answer', 'answer_to_workspace', 'spaces'):
        ctypes.c_int.in_dll(library, name).value = 0
    monkeypatch.setattr(vendor_libraries, 'loaded', lambda part: {'libcublas.so': library._name}[part])
    found = World({name: files[name] for name in NAMES}, library)
    monkeypatch.setitem(sys.modules, RUNTIME, found.runtime)
    for module in found.modules.values():
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield found
    assert found.untouched()


@contextmanager
def opened(world: World, workspace: Callable[[int], Any] = lambda stream: None) -> Iterator[Libraries]:
    library = Libraries(lambda stream: stream == OWN, workspace)
    library.open(world.platform)
    try:
        yield library
    finally:
        library.close()


def test_own_streams_are_hidden_and_others_are_not(world: World) -> None:
    library = Libraries(lambda stream: stream == OWN, lambda stream: None)
    for _ in range(2):
        library.open(world.platform)
        strangers = [Asked(lambda _stream, _skip: 9) for _ in range(100)]  # would take the place of one that was let go
        for name in NAMES:
            assert world.ask(name, OWN) == 0
            assert world.truth == []
            assert world.ask(name, FOREIGN) == 1
            assert world.truth == [FOREIGN]
            world.truth.clear()
        library.close()
        assert strangers and world.untouched()
        for name in NAMES:
            assert world.ask(name, OWN) == 1
        world.truth.clear()
    assert library.late == {}
    library.close()
    assert world.untouched(), 'closing again changes nothing'


def test_libraries_that_can_not_be_let_in_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its reason, and each without harm to the rest."""
    world.pointer('cusolver').value = 0
    world.modules['cusparse'].__file__ = None
    monkeypatch.setitem(sys.modules, world.modules['curand'].__name__, None)
    with opened(world) as library:
        assert library.late.keys() == {'cusolver', 'cusparse', 'curand'}
        assert 'keeps no pointer to streamIsCapturing' in library.late['cusolver']
        assert 'can not be read' in library.late['cusparse']
        assert 'curand can not be loaded here (' in library.late['curand']
        assert world.ask('cublas', OWN) == 0
        assert world.ask('curand', OWN) == 1
    world.pointer('cusolver').value = world.address


def test_a_stream_that_can_not_be_asked_counts_as_captured(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """CuPy then refuses it. Taken for not captured, work would go to a capture that is lost."""
    with opened(world):
        assert world.ask('cusolver', BROKEN) == 1
    assert world.truth == [BROKEN]
    assert capfd.readouterr().err == ''


# -- workspaces ---------------------------------------------------------------------------------------------------


def said(world: World, name: str, kind: Any = ctypes.c_int) -> Any:
    return kind.in_dll(world.cublas, name).value


def test_cublas_gets_a_workspace_of_the_graphs_own(world: World) -> None:
    spaces = {OWN: (0x7000000, 1 << 20), OWN + 1: (0x8000000, 1 << 21)}
    with opened(world, lambda stream: spaces.get(stream + 0)) as library:
        for stream, (address, size) in spaces.items():
            assert world.set_stream(stream, handle=5) == 0
            assert [said(world, name, ctypes.c_void_p) for name in ('handle', 'stream')] == [5, stream]
            assert (said(world, 'space', ctypes.c_void_p), said(world, 'size', ctypes.c_size_t)) == (address, size)
        assert said(world, 'spaces') == 2
        for other in (FOREIGN, 0):
            assert world.set_stream(other) == 0
        assert said(world, 'spaces') == 2
    assert world.set_stream(OWN) == 0
    assert said(world, 'spaces') == 2
    assert library.late == {}


def test_what_cublas_answers_comes_through(world: World) -> None:
    with opened(world, lambda stream: (1, 2)):
        ctypes.c_int.in_dll(world.cublas, 'answer_to_workspace').value = 7
        assert (world.set_stream(None), said(world, 'spaces')) == (7, 1)
        ctypes.c_int.in_dll(world.cublas, 'answer').value = 1
        assert (world.set_stream(None), said(world, 'spaces')) == (1, 1), 'no workspace for a refused stream'


def test_no_memory_for_a_workspace_is_an_error_of_cublas(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    def none_left(stream: int) -> Any:
        raise MemoryError(stream)

    with opened(world, none_left):
        assert world.set_stream(OWN) == 3  # CUBLAS_STATUS_ALLOC_FAILED
    assert said(world, 'spaces') == 0
    assert capfd.readouterr().err == ''


@pytest.mark.parametrize('error', [LookupError('no object named libcublas'), OSError('it is not what it was')])
def test_without_a_workspace_the_rest_is_let_in(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_part: str) -> str:
        raise error

    monkeypatch.setattr(vendor_libraries, 'loaded', fails)
    with opened(world, lambda stream: (1, 2)) as library:
        assert library.late == {'cublas workspace': str(error)}
        assert (world.ask('cublas', OWN), world.set_stream(OWN)) == (0, 0)
    assert said(world, 'spaces') == 0


def test_a_module_that_can_not_be_loaded_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'cupy_backends.cuda.libs.cusparse', None)
    with opened(world) as library:
        assert library.late['cusparse'].startswith('cusparse can not be loaded here (')
        assert world.ask('cusolver', OWN) == 0


# -- captures -----------------------------------------------------------------------------------------------------


def bound(name: str) -> Any:
    return sys.modules[f'cupy_backends.cuda.libs.{name}'].streamIsCapturing


def test_captures_let_libraries_in_and_leave_them_as_they_were(sim: Any) -> None:
    before = [bound(name) for name in NAMES]
    a = sim.arange(9.0).reshape(3, 3)
    with ck.capture() as outer:
        with ck.capture() as inner:
            b = a @ a
        assert bound('cublas') is not before[0], 'one is still open'
        c = a @ a.T
    assert [bound(name) for name in NAMES] == before
    a *= 2
    for cap in (inner, outer):
        cap.graph.launch()
    host = np.arange(9.0).reshape(3, 3) * 2
    assert np.array_equal(b.get(), host @ host)
    assert np.array_equal(c.get(), host @ host.T)
    with pytest.raises(ZeroDivisionError), ck.capture():
        1 / 0  # noqa: B018
    assert [bound(name) for name in NAMES] == before


def test_workspaces_are_the_lanes_own(sim: Any) -> None:
    a = sim.arange(9.0).reshape(3, 3)
    outside = sim.cuda.Stream(non_blocking=True)
    with ck.capture() as cap:
        memory = cap._live.memory
        memory.workspaces.nbytes = 4096
        assert GUARD.libraries.workspace_on(outside.ptr) is None
        first = GUARD.libraries.workspace_on(cap.stream.ptr)
        assert first == GUARD.libraries.workspace_on(cap.stream.ptr) and first[1] == 4096 and memory.holds(first[0])
        with cap.fork(2) as lanes:
            spaces = [GUARD.libraries.workspace_on(lane.stream.ptr) for lane in lanes]
            for lane in lanes:
                with lane:
                    a * 2
        assert len({first, *spaces}) == 3
    assert GUARD.libraries.workspace_on(cap.stream.ptr) is None
    assert cap.graph.memory_bytes >= 3 * 4096


# -- CuPy ---------------------------------------------------------------------------------------------------------

CUPY = """
import sys
from types import ModuleType, SimpleNamespace
import cupy
from capturekit.driver.vendor_libraries import NAMES, Libraries

for name in NAMES:  # a module of CuPy's that asks like a library and loads without one
    posing = sys.modules['cupy_backends.cuda.libs.' + name] = ModuleType(name)
    posing.__file__ = sys.modules['cupy.cuda.stream'].__file__
null = cupy.cuda.Stream.null

def ask():
    try:
        return null.is_capturing()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)

before = ask()
hidden = [True]
libraries = Libraries(lambda stream: hidden[0] and stream == null.ptr, lambda stream: None)
for _ in range(2):
    libraries.open(SimpleNamespace(cupy=cupy, simulated=False))
    assert list(libraries.late) == ['cublas workspace'], libraries.late
    assert 'does not call cublasSetStream_v2' in libraries.late['cublas workspace']
    assert ask() is False
    hidden[0] = False
    assert ask() is (True if isinstance(before, str) else before)
    hidden[0] = True
    libraries.close()
    assert ask() == before
print('whole')
"""


@pytest.mark.skipif(importlib.util.find_spec('cupy') is None, reason='needs CuPy, without a GPU')
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='pointers can only be found on Linux')
def test_cupys_own_modules() -> None:
    ran = subprocess.run([sys.executable, '-c', CUPY], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ran.stdout.strip(), ran.stderr) == ('whole', '')
