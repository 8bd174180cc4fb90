"""What the guard rests on inside of CuPy, held against the installed one; no GPU is needed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.guard.patching import in_order, places_of

ROOT = Path(__file__).parents[2]
CODE = """
import ctypes
from unittest.mock import patch

import numpy as np
import cupy
import cupy._core.syncdetect

class Heard(Exception):
    pass

def hear(*args, **kwargs):
    raise Heard

def hears(name, *calls):
    'The calls look up the function of this name each time.'
    with patch(name, hear):
        for call in calls:
            try:
                call()
            except Heard:
                continue
            raise AssertionError(f'{name} is not called')

buffer = ctypes.create_string_buffer(64)  # an array over the host's memory, which is never touched
memory = cupy.cuda.UnownedMemory(ctypes.addressof(buffer), 64, buffer, 0)
one = cupy.ndarray((), 'd', cupy.cuda.MemoryPointer(memory, 0))

assert 'get' not in vars(cupy.ndarray)
with patch.object(cupy.ndarray, 'get', lambda self, *args, **kwargs: np.array(3.0), create=True):
    read = [float(one), int(one), bool(one), complex(one), one.item(), one.tolist(), cupy.asnumpy(one)]
    assert read == [3, 3, True, 3, 3, 3, 3], read
    assert (repr(one), str(one), f'{one}', one.tobytes()) == ('array(3.)', '3.0', '3.0', np.array(3.0).tobytes())

hears('cupy._core.syncdetect._declare_synchronize', cupy.cuda.Device(0).synchronize)
hears('cupy._core.array', *(lambda f=f: f([1, 2]) for f in (cupy.array, cupy.asarray, cupy.asanyarray)))
hears('cupy.cuda.memory._set_thread_local_allocator', lambda: cupy.cuda.using_allocator(None).__enter__())
def allocate(size):
    return one.data

with cupy.cuda.using_allocator(allocate):
    assert cupy.cuda.memory._get_thread_local_allocator() is allocate
    assert cupy.cuda.alloc(8) is one.data
assert cupy.cuda.memory._get_thread_local_allocator() is None

assert {'ptr', '_graph_host_funcargs'} <= vars(cupy.cuda.Stream.null).keys()

class Other:
    def __cuda_stream__(self):
        return 0, 0x123

assert cupy.cuda.Stream.from_external(Other()).ptr == 0x123
print('whole')
"""


@pytest.mark.skipif(importlib.util.find_spec('cupy') is None, reason='needs CuPy, without a GPU')
def test_what_the_guard_rests_on() -> None:
    ran = subprocess.run([sys.executable, '-c', CODE], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == 'whole', ran.stderr


# -- arguments by the names that CuPy has for them: the guard takes every call that CuPy takes -------------------------


def extension(text: str) -> Any:
    """A function as an extension module has it: what it takes stands in its text alone."""

    class Function:
        __doc__ = text
        __signature__ = 'none'

        def __call__(self) -> None:
            raise NotImplementedError

    return Function()


def test_arguments_by_name_count_as_by_place(sim: Any) -> None:
    x, y, runtime = sim.arange(4.0), sim.zeros(4), sim.cuda.runtime
    with ck.capture() as cap:
        event = cap.stream.record()
        for args, named in (((event, event), {}), ((), {'end_event': event, 'start_event': event})):
            with pytest.raises(ck.SynchronizationError):
                sim.cuda.get_elapsed_time(*args, **named)
        runtime.memcpyAsync(
            stream=cap.stream.ptr, kind=runtime.memcpyDeviceToDevice, size=x.nbytes, src=x.data.ptr, dst=y.data.ptr
        )
        with pytest.raises(TypeError, match='strm'):  # CuPy's own
            runtime.memsetAsync(1, 0, 8, strm=cap.stream.ptr)
    cap.graph.launch()
    assert np.array_equal(y.get(), [0, 1, 2, 3])
    assert cap.recording.node_count == 1


@pytest.mark.parametrize(
    ('text', 'told'),
    [
        ("get(self, stream=None, order=u'C', bool blocking=True) -> ndarray", 'self stream order blocking'),
        ('f(a, /, b=(1, 2), *, c=3, **rest)', 'a b'),
        ('f(a, *args)', 'a'),
        *((text, '') for text in ('done()', '', 'Waits for an event.', 'f(a[, b])')),
    ],
)
def test_what_extension_modules_tell(text: str, told: str) -> None:
    assert ' '.join(places_of(extension(f'{text}\n\nMore is said here.'))) == told


def test_only_what_follows_is_put_in_its_place() -> None:
    function = extension('f(a, b, c=1, d=2)')

    def verb(original: Any, first: Any, *others: Any) -> None: ...

    def free(original: Any, **named: Any) -> None: ...

    assert in_order(verb, function, (1,), {'c': 3, 'b': 2}) == ((1, 2, 3), {})
    assert in_order(verb, function, (1,), {'d': 4, 'b': 2}) == ((1, 2), {'d': 4})
    assert in_order(verb, function, (1,), {'z': 3}) == ((1,), {'z': 3})
    assert in_order(free, function, (1,), {'b': 2}) == ((1,), {'b': 2})
    assert in_order(verb, extension(''), (1,), {'b': 2}) == ((1,), {'b': 2})
