"""The shared objects on the C stack, and which of them are said to have made a call."""

from __future__ import annotations

import itertools
import os
import sys

import pytest

from capturekit.driver.shared_objects import callers, files, module_name

SITE = '/opt/venv/lib/python3.12/site-packages'
WITHIN = (
    '/usr/lib/libffi.so.8',
    '/usr/lib/python3.12/lib-dynload/_ctypes.cpython-312-x86_64-linux-gnu.so',
    '/usr/bin/python3',
    '/usr/lib/python3.12/lib-dynload/_ctypes.cpython-312-x86_64-linux-gnu.so',
    '/usr/lib/libffi.so.8',
    f'{SITE}/nvidia/cu13/lib/libcupti.so.13',
    '/usr/lib/libcuda.so.1',
)


@pytest.mark.parametrize(
    ('above', 'said'),
    [
        ('nvidia/cu13/lib/libcudart.so.13 torch/lib/libtorch_cuda.so /usr/bin/python3', 'libtorch_cuda.so'),
        (
            'cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so /usr/bin/python3.12 /x.so',
            'cupy_backends.cuda.api.runtime',
        ),
        (
            'nvidia/cublas/lib/libcublas.so.13 torch/lib/libtorch_cuda.so /lib/libpython3.12.so.1.0',
            'libcublas.so.13 libtorch_cuda.so',
        ),
        (f'{WITHIN[0]} {WITHIN[1]} /usr/bin/python3', 'ctypes'),
        (
            'cuda/bindings/_bindings/cydriver.cpython-312-x86_64-linux-gnu.so '
            'cuda/core/_stream.cpython-312-x86_64-linux-gnu.so /usr/bin/python3',
            'cuda.core._stream',
        ),
        ('/usr/lib/libcudart.so.13 /home/me/a.out', 'a.out'),
        ('/usr/lib/libcudart.so.13', 'libcudart.so.13'),
    ],
)
def test_the_nearest_library_comes_first(above: str, said: str) -> None:
    stack = [*WITHIN, *(os.path.join(SITE, file) for file in above.split())]
    assert callers(stack) == tuple(said.split())


def test_without_the_driver_nobody_is_named() -> None:
    assert callers(WITHIN[:3]) == ()


def test_extension_modules_are_called_as_python_does() -> None:
    assert module_name(f'{SITE}/cuda/bindings/cydriver.cpython-312-x86_64-linux-gnu.so') == 'cuda.bindings.cydriver'
    assert module_name(f'{SITE}/package/part.abi3.so') == 'package.part'
    assert module_name(f'{SITE}/torch/lib/libtorch.so') == 'libtorch.so'
    assert module_name('/home/me/.triton/cache/launcher.cpython-312-x86_64-linux-gnu.so') == 'launcher'
    assert module_name('/home/me/a.so') == 'a.so'


@pytest.mark.skipif(sys.platform != 'linux', reason="backtrace() is glibc's")
def test_this_process_s_own_stack_is_read() -> None:
    names = [os.path.basename(file) for file in files()]
    assert any('_ctypes' in name for name in names) and any(name.startswith(('python', 'libpython')) for name in names)
    assert all(one != other for one, other in itertools.pairwise(names))
