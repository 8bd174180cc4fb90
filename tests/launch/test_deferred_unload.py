"""What CuPy unloads while a graph may need it is put off: until the last one lets go, and no longer."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import capturekit as ck
from capturekit.launch import deferred_unload
from capturekit.launch.deferred_unload import Unloading
from capturekit.model.lease import Lease
from capturekit.recorder import capture as blocks
from tests.compiled import compiled

SIMULATED: Any = SimpleNamespace(cupy=ModuleType('cupy'), simulated=True)
DRIVER, CUFFT = 'cupy_backends.cuda.api.driver', 'cupy.cuda.cufft'

LIBRARIES = """
int unloaded = 0, destroyed = 0;
void* modules[64];
int plans[64];
int cuModuleUnload(void* module) { modules[__sync_fetch_and_add(&unloaded, 1)] = module; return 4; }
int cufftDestroy(int plan) { plans[__sync_fetch_and_add(&destroyed, 1)] = plan; return 5; }
"""
DRIVER_MODULE = """
typedef int (*unload_t)(void*);
unload_t unload = 0;
int call(void* module) { return unload(module); }
"""
CUFFT_MODULE = """
int cufftDestroy(int plan);
int call(int plan) { return cufftDestroy(plan); }
"""


class World:
    """A CuPy whose driver module keeps a pointer, and whose cuFFT module is linked."""

    def __init__(self, folder: Path) -> None:
        libraries = compiled(folder / 'twin_of_libcuda.so', LIBRARIES)
        driver = compiled(folder / 'driver.so', DRIVER_MODULE)
        cufft = compiled(
            folder / 'cufft.so', CUFFT_MODULE, f'-L{folder}', '-l:twin_of_libcuda.so', f'-Wl,-rpath,{folder}'
        )
        self.library, self.driver, self.cufft = (ctypes.CDLL(path) for path in (libraries, driver, cufft))
        self.pointer = ctypes.c_uint64.in_dll(self.driver, 'unload')
        self.pointer.value = self.address = ctypes.cast(self.library.cuModuleUnload, ctypes.c_void_p).value or 0
        self.calls = 0
        self.platform: Any = SimpleNamespace(cupy=ModuleType('cupy'), simulated=False)

    def first_call(self) -> None:
        """CuPy looks its pointers up when it first needs one, and the first answer may well be an error."""
        self.calls += 1
        if self.pointer.value == 1:
            self.pointer.value = self.address
            raise KeyError('no context yet')

    def clear(self) -> None:
        for name in ('unloaded', 'destroyed'):
            ctypes.c_int.in_dll(self.library, name).value = 0

    def unload(self, *modules: int) -> None:
        for module in modules:
            assert self.driver.call(ctypes.c_void_p(module)) in (0, 4)

    @property
    def unloaded(self) -> list[int]:
        count = ctypes.c_int.in_dll(self.library, 'unloaded').value
        return list((ctypes.c_void_p * 64).in_dll(self.library, 'modules')[:count])

    @property
    def destroyed(self) -> list[int]:
        count = ctypes.c_int.in_dll(self.library, 'destroyed').value
        return list((ctypes.c_int * 64).in_dll(self.library, 'plans')[:count])


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp('libs'))


@pytest.fixture
def world(made: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name, library in ((DRIVER, made.driver), (CUFFT, made.cufft)):
        module: Any = ModuleType(name)
        module.__file__ = library._name
        module.CUDADriverError, module.ctxGetCurrent = KeyError, made.first_call
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(
        deferred_unload,
        'loaded',
        lambda part: {'libcuda.so': made.library._name, 'libcufft.so': made.library._name}[part],
    )
    made.clear()
    yield made
    assert made.pointer.value == made.address


def test_modules_and_plans_go_when_the_last_one_lets_go(world: World) -> None:
    put_off = Unloading()
    leases: list[Lease] = []
    world.unload(1)
    assert world.unloaded == [1]
    for _ in range(2):
        world.clear()
        leases.append(put_off.hold(world.platform))
        assert world.driver.call(ctypes.c_void_p(11)) == 0
        leases.append(put_off.hold(world.platform))
        strangers = [deferred_unload.CallOnHandle(lambda handle: 9) for _ in range(100)]
        world.unload(1 << 40, 13)
        assert [world.cufft.call(plan) for plan in (3, 4)] == [0, 0]
        leases.pop().release()
        world.unload(14)
        assert (world.unloaded, world.destroyed) == ([], [])
        leases.pop().release()
        assert (world.unloaded, world.destroyed) == ([11, 1 << 40, 13, 14], [3, 4])
        assert strangers and world.pointer.value == world.address
        assert world.driver.call(ctypes.c_void_p(15)) == 4
        assert world.cufft.call(5) == 5
        assert (world.unloaded[4:], world.destroyed[2:]) == ([15], [5])
    assert put_off.unable == {}


@pytest.mark.parametrize('kind', [RuntimeError, KeyboardInterrupt])
def test_a_call_that_fails_does_not_lose_the_rest(kind: type[BaseException]) -> None:
    put_off = Unloading()
    made: list[int] = []

    def call(handle: int) -> int:
        made.append(handle)
        if handle in (2, 3):
            raise kind(f'call {handle}')
        return 0

    lease = put_off.hold(SIMULATED)
    for handle in (1, 2, 3, 4):
        put_off.put_off(call, handle)
    with pytest.raises(kind, match='call 2'):
        lease.release()
    assert made == [1, 2, 3, 4]
    lease = put_off.hold(SIMULATED)
    lease.release()
    assert made == [1, 2, 3, 4]


def test_a_call_that_comes_when_nobody_holds_is_made(world: World) -> None:
    """Another thread's that has passed the pointer before it was put back: there is nobody left to make it later."""
    put_off = Unloading()
    lease = put_off.hold(world.platform)
    mine = world.pointer.value
    lease.release()
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(mine)(31) == 4
    assert world.unloaded == [31]


# -- what can't be found ------------------------------------------------------------------------------------------


def test_each_part_that_is_missing_is_told_and_the_other_works(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, CUFFT, None)
    put_off = Unloading()
    lease = put_off.hold(world.platform)
    assert list(put_off.unable) == ['plans'] and 'cufft' in put_off.unable['plans']
    world.unload(1)
    assert world.cufft.call(1) == 5
    assert world.unloaded == []
    lease.release()
    assert world.unloaded == [1]


def test_pointers_that_nobody_has_needed_yet(world: World) -> None:
    """A capture may well come before the first kernel of a process is loaded."""
    world.pointer.value = 1
    put_off = Unloading()
    lease = put_off.hold(world.platform)
    assert put_off.unable == {}
    world.unload(7)
    assert world.unloaded == []
    lease.release()
    assert world.unloaded == [7] and world.calls


def test_a_driver_without_a_pointer(world: World) -> None:
    put_off = Unloading()
    world.pointer.value = 0
    lease = put_off.hold(world.platform)
    assert put_off.unable == {'modules': 'CuPy keeps no pointer to cuModuleUnload'}
    assert world.cufft.call(1) == 0
    lease.release()
    assert (world.pointer.value, world.destroyed) == (0, [1])
    world.pointer.value = world.address


def test_python_may_end_while_somebody_holds(world: World) -> None:
    put_off = Unloading()
    leases: list[Lease] = []
    leases.append(put_off.hold(world.platform))
    world.unload(1)
    put_off.leave()
    assert world.pointer.value == world.address
    world.unload(2)
    leases.append(put_off.hold(world.platform))
    world.unload(3)
    leases.pop().release()
    leases.pop().release()
    assert world.unloaded == [2, 3], 'what was put off is left to the end of the process'


ENDS = """
import atexit, ctypes, sys
from types import ModuleType, SimpleNamespace
from capturekit.launch import deferred_unload
library, driver = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
pointer = ctypes.c_uint64.in_dll(driver, 'unload')
pointer.value = address = ctypes.cast(library.cuModuleUnload, ctypes.c_void_p).value
atexit.register(lambda: print(pointer.value == address))
module = sys.modules['cupy_backends.cuda.api.driver'] = ModuleType('driver')
module.__file__, module.CUDADriverError, module.ctxGetCurrent = sys.argv[2], KeyError, lambda: None
for name in ('cupy', 'cupy.cuda', 'cupy.cuda.cufft'):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__file__ = sys.argv[2]
deferred_unload.loaded = lambda part: sys.argv[1]
deferred_unload.UNLOADING.hold(SimpleNamespace(cupy=ModuleType('cupy'), simulated=False))
print(pointer.value == address)
"""


def test_at_the_end_of_python_the_pointers_are_cupys(made: World) -> None:
    """Modules are torn down last, when no Python can be called any more."""
    done = subprocess.run(
        [sys.executable, '-c', ENDS, made.library._name, made.driver._name], capture_output=True, text=True, check=True
    )
    assert (done.stdout.split(), done.stderr) == (['False', 'True'], '')


# -- who holds ----------------------------------------------------------------------------------------------------


def test_captures_and_graphs_hold(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put_off = Unloading()  # which no graph of another test holds
    monkeypatch.setattr(blocks, 'UNLOADING', put_off)
    holders = lambda: put_off.holders  # noqa: E731
    x = sim.arange(4.0)
    made: list[str] = []
    with ck.capture(lines=False) as cap:
        assert holders() == 1
        put_off.put_off(lambda name: made.append(name), 'kernel')
        y = x * 2
    assert holders() == 1
    with ck.capture(lines=False) as other:  # before Python 3.12 tracing keeps a function's variables alive
        x * 3
    assert holders() == 2
    for _ in range(2):
        cap.graph.close()
        assert holders() == 1
    assert made == []
    del other
    gc.collect()
    assert holders() == 0
    assert made == ['kernel']
    assert y is not None
