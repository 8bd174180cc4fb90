"""Everybody is late: on a GPU, kernels that only spin stand before the work of each stream.

``CAPTUREKIT_LATE=7 python -m pytest -m gpu tests`` runs the tests so; the number is the seed. A spin of up to half a
millisecond is put, now and then, on a stream that is entered, recorded on or made to wait, before values are copied to
the device, between the parts of a plan, before a launch and behind it. What was only right because the work before it
had ended in time is wrong then. Streams that are being captured are left alone: their nodes are counted by tests.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import sys
from collections.abc import Callable
from typing import Any

from capturekit.graphed import ownership
from capturekit.guard import GUARD
from capturekit.launch.graph_memory import GraphMemory

#: The guard tells by this name who reads a stream's handle: what stands between it and CuPy counts as the guard's own.
__name__ = 'capturekit.late'

#: Microseconds that a spin takes at most, and one in how many places has none.
_LONGEST, _WITHOUT = 500, 3
_SOURCE = r"""
extern "C" __global__ void late(unsigned long long nanoseconds)
{
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begun < nanoseconds);
}
"""


def wanted() -> int | None:
    """The seed, where the tests are to run late; else None."""
    seed = os.environ.get('CAPTUREKIT_LATE')
    return None if not seed else int(seed)


class Spins:
    """Keeps streams of a GPU busy. It calls the driver itself, so that neither CuPy nor the guard knows of it."""

    def __init__(self, cupy: Any, seed: int) -> None:
        from cuda.bindings import driver, runtime

        self._driver, self._runtime = driver, runtime
        self._random = random.Random(seed)
        self._module = cupy.RawModule(code=_SOURCE)
        self._kernel = self._module.get_function('late').kernel  # kept: `cupy.clear_memo()` drops CuPy's own
        self._function = self._kernel.ptr
        self.count = 0

    def __call__(self, stream: int) -> None:
        """Keep a stream busy for a while, unless it is being captured or beside a capture that it would lose."""
        if self._random.randrange(_WITHOUT) == 0 or self._runtime.cudaGetDevice()[1] != 0:
            return
        code, status = self._runtime.cudaStreamIsCapturing(stream)
        if int(code) or int(status):
            self._runtime.cudaGetLastError()
            return
        # a capture is lost by this question, and the kernel is of the first device
        elsewhere, device = self._runtime.cudaStreamGetDevice(stream)
        if int(elsewhere) or device != 0:
            self._runtime.cudaGetLastError()
            return
        nanoseconds = 1000 * self._random.randrange(_LONGEST)
        arguments = ((nanoseconds,), (ctypes.c_uint64,))
        (code,) = self._driver.cuLaunchKernel(self._function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)
        assert int(code) == 0, code
        self.count += 1


class Late:
    """Calls ``spin`` with a stream at each place where work may be late."""

    def __init__(self, spin: Callable[[int], None]) -> None:
        self.spin = spin
        self._undo: list[Callable[[], None]] = []

    def around(self, owner: Any, name: str, stream_of: Callable[..., int], behind: bool = False) -> None:
        """Spin before every call of ``owner.name`` (and behind it) on the stream that its arguments tell.

        Streams by which a graph's memory names its parts may be gone, and no work is put on them.
        """
        original = owner.__dict__[name]

        @functools.wraps(original)
        def late(*args: Any, **kwargs: Any) -> Any:
            with GUARD.inside:  # asking a stream for its handle is nothing that the code under test does
                stream = stream_of(*args, **kwargs)
            if sys._getframe(1).f_code is GraphMemory.spare.__code__:
                return original(*args, **kwargs)
            self.spin(stream)
            answer = original(*args, **kwargs)
            if behind:
                self.spin(stream)
            return answer

        setattr(owner, name, late)
        self._undo.append(lambda: setattr(owner, name, original))

    def install(self, cupy: Any) -> None:
        """Be late from now on."""
        from capturekit.driver.cuda import current as platform
        from capturekit.launch.plan import Plan
        from capturekit.model import source_line

        # What runs in this file is no part of the functions that `graphed` watches, and none of the user's lines.
        for files in (source_line._foreign, ownership._skipped):
            self._undo.append(functools.partial(files.pop, __file__, None))
            files[__file__] = True
        current = cupy.cuda.get_current_stream
        streams = cupy.cuda.stream._BaseStream
        for name in ('__enter__', 'record', 'wait_event'):
            self.around(streams, name, lambda stream, *_args, **_kwargs: stream.ptr)
        self.around(cupy._core, 'array', lambda *_args, **_kwargs: current().ptr)
        self.around(cupy.cuda.runtime, 'graphLaunch', lambda _executable, stream: stream, behind=True)
        self._around_plain_launches(current)
        self._around_own_launches(platform().device)
        self.around(Plan, 'go', lambda _plan, _step, stream: stream.ptr, behind=True)

    def _around_own_launches(self, device: Any) -> None:
        """What capturekit launches with is an attribute of its door to the device, or a method."""
        original, own = device.graph_launch, 'graph_launch' in vars(device)

        def late(executable: int, stream: int) -> None:
            self.spin(stream)
            original(executable, stream)
            self.spin(stream)

        device.graph_launch = late
        self._undo.append(lambda: setattr(device, 'graph_launch', original) if own else delattr(device, 'graph_launch'))

    def _around_plain_launches(self, current: Callable[[], Any]) -> None:
        """CuPy's own launch can't be replaced on its type: what capturekit binds of it is wrapped."""
        from capturekit.guard.stream_calls import StreamWork

        original = StreamWork.plain_launch

        def plain_launch(guard: Any, graph: Any) -> Callable[[], None]:
            launch = original(guard, graph)

            def late() -> None:
                self.spin(current().ptr)
                launch()
                self.spin(current().ptr)

            return late

        StreamWork.plain_launch = plain_launch  # type: ignore[method-assign]
        self._undo.append(lambda: setattr(StreamWork, 'plain_launch', original))

    def uninstall(self) -> None:
        """Take every place back."""
        while self._undo:
            self._undo.pop()()
