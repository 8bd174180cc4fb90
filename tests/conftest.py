"""Every test leaves the world clean, and proves it; ``sim`` is the simulated CuPy, ``cp`` that and the real one.

``gpu`` tests need a GPU.
"""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from capturekit.guard import GUARD
from capturekit.simulated import SimulatedDevice, install, uninstall


def cupy_modules() -> dict[str, ModuleType]:
    """What ``sys.modules`` holds of CuPy, real or simulated."""
    roots = ('cupy', 'cupyx', 'cupy_backends')
    return {name: module for name, module in sys.modules.items() if name.partition('.')[0] in roots}


def standin_installed() -> bool:
    return hasattr(sys.modules.get('cupy'), '__capturekit_simulated__')


def traces() -> list[str]:
    """What a capture or the guard has left behind in this process."""
    found = []
    if GUARD.installation.installed:
        found.append('wrappers are installed')
    if GUARD.lives:
        found.append(f'{len(GUARD.lives)} captures are open')
    if GUARD.allocators:
        found.append(f'allocators of {len(GUARD.allocators)} threads are kept for later')
    if not gc.isenabled():
        found.append('garbage collection is off')
    if standin_installed():
        cupy: Any = sys.modules['cupy']
        if cupy.cuda.get_current_stream() != cupy.cuda.Stream.null:
            found.append(f'{cupy.cuda.get_current_stream()} is current')
        if cupy.cuda.memory._get_thread_local_allocator() is not None:
            found.append('this thread has an allocator of its own')
    return found


def sweep() -> None:
    """Take away what a failed test has left, so that the next ones are judged by their own deeds."""
    GUARD.lives.clear()
    GUARD.allocators.clear()
    while GUARD.installation.installed:
        GUARD.uninstall()
    gc.enable()


@pytest.fixture(autouse=True)
def clean_world() -> Iterator[None]:
    """Nothing is left behind: not before the test, and not after it."""
    assert traces() == []
    assert not standin_installed()
    yield
    left = traces()
    sweep()
    while standin_installed():
        left.append('the simulated CuPy is installed')
        uninstall()
    assert left == []


@pytest.fixture
def sim(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The simulated CuPy on a device of its own, seed 0 or the test's parameter; afterwards what was there before."""
    before = cupy_modules()
    install(SimulatedDevice(getattr(request, 'param', 0)))
    try:
        yield sys.modules['cupy']
        left = traces()
    finally:
        uninstall()
    after = cupy_modules()
    assert left == []
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)


@pytest.fixture(params=['simulated', pytest.param('gpu', marks=pytest.mark.gpu)])
def cp(request: pytest.FixtureRequest) -> Any:
    """The simulated CuPy, and, where there is a GPU, the real one."""
    if request.param == 'simulated':
        return request.getfixturevalue('sim')
    pytest.importorskip('cuda.bindings')
    return pytest.importorskip('cupy')


@functools.cache
def why_no_gpu() -> str | None:
    """None where CuPy finds a GPU, else the reason; asked in a process of its own, which leaves none of it here."""
    ask = 'import cupy, cuda.bindings.runtime; assert cupy.cuda.runtime.getDeviceCount() > 0, "no device"'
    asked = subprocess.run([sys.executable, '-c', ask], capture_output=True, text=True, timeout=120)
    return None if asked.returncode == 0 else asked.stderr.strip().rpartition('\n')[2]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker('gpu') and (reason := why_no_gpu()):
        pytest.skip(f'needs a GPU: {reason}')
