"""What the GPU's tests ask the driver and the process about, past capturekit: who captures, what is patched.

Where the stand-in is installed, the simulated device answers for the driver.
"""

from __future__ import annotations

import gc
import inspect
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capturekit.model.rules import Mode
from tests.command import python

#: A kernel that waits on the device's own nanosecond clock and leaves when it began and ended.
SPIN = """
extern "C" __global__ void spin(unsigned long long us, unsigned long long* stamps)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < us * 1000);
    if (stamps && !threadIdx.x) { stamps[0] = start; atomicMax(stamps + 1, now); }
}
"""


def simulated() -> Any:
    """The simulated device, where the stand-in is installed."""
    return getattr(sys.modules.get('cupy'), '__capturekit_simulated__', None)


def status(stream: Any) -> str:
    """The driver's own word on a stream (CuPy's, or a handle): None, Active or Invalidated."""
    if (device := simulated()) is not None:
        return str(device.capture_info(getattr(stream, 'ptr', stream)).status.name).capitalize()
    from cuda.bindings import runtime

    code, answer = runtime.cudaStreamIsCapturing(getattr(stream, 'ptr', stream))
    if int(code):
        runtime.cudaGetLastError()
        return str(code.name)
    return ('None', 'Active', 'Invalidated')[int(answer)]


def node_count(graph: int) -> int:
    """How many nodes a ``cudaGraph_t`` has."""
    from cuda.bindings import runtime

    answer = runtime.cudaGraphGetNodes(runtime.cudaGraph_t(graph))
    assert int(answer[0]) == 0, answer
    return int(answer[2])


def captured_nodes(stream: Any) -> int:
    """How many nodes the graph has that is being captured on a stream."""
    from capturekit.driver.cuda import current

    device = current().device
    return device.graph_node_count(device.capture_info(stream.ptr).graph)


def thread_mode() -> int:
    """This thread's capture mode (0 global, 1 thread-local, 2 relaxed), asked for by exchanging it both ways."""
    if (device := simulated()) is not None:
        old = device.exchange_thread_mode(Mode.GLOBAL)
        device.exchange_thread_mode(old)
        return int(old)
    from cuda.bindings import runtime

    mode = runtime.cudaStreamCaptureMode
    code, old = runtime.cudaThreadExchangeStreamCaptureMode(mode.cudaStreamCaptureModeGlobal)
    assert int(code) == 0, code
    code, _ = runtime.cudaThreadExchangeStreamCaptureMode(mode(int(old)))
    assert int(code) == 0, code
    return int(old)


def set_thread_mode(number: int) -> int:
    """Set this thread's capture mode, return the old one."""
    from cuda.bindings import runtime

    code, old = runtime.cudaThreadExchangeStreamCaptureMode(runtime.cudaStreamCaptureMode(number))
    assert int(code) == 0, code
    return int(old)


@dataclass(frozen=True)
class World:
    """All that a capture changes for its block, by identity: two that are equal are the same world."""

    patches: tuple[tuple[str, int], ...]
    allocator: int
    stream: int
    collecting: bool
    thread_mode: int
    captures: int


def world() -> World:
    """The process as it stands."""
    import cupy as cp

    from capturekit.guard import GUARD
    from capturekit.guard.entry_points import ENTRIES
    from capturekit.guard.patching import resolve

    def there(holder: str, name: str) -> int:
        try:
            return id(resolve(holder).__dict__.get(name))
        except (AttributeError, ImportError):
            return 0

    return World(
        patches=tuple((str(entry), there(entry.holder, entry.name)) for entry in ENTRIES),
        allocator=id(cp.cuda.memory._get_thread_local_allocator()),
        stream=cp.cuda.get_current_stream().ptr,
        collecting=gc.isenabled(),
        thread_mode=thread_mode(),
        captures=len(GUARD.lives) + len(GUARD.ledger.captures),
    )


class Started:
    """A call running in another thread: ``waiting`` until it comes back, ``result()`` gives or raises what it did."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._box: list[Any] = []
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._box.append((self._call(), None))
        except BaseException as error:
            self._box.append((None, error))

    @property
    def waiting(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout: float = 30) -> Any:
        self._thread.join(timeout)
        assert not self.waiting, f'the other thread did not come back in {timeout:g} s'
        value, error = self._box[0]
        if error is not None:
            raise error
        return value


def in_thread(call: Callable[[], Any], *, timeout: float = 30) -> Any:
    """Run a call in another thread; hand back what it returns or raises."""
    return Started(call).result(timeout)


def in_process(code: str, *, timeout: float = 120) -> str:
    """Run Python code in a process of its own, from the repository's root; return its output, fail if it fails."""
    done = python('-c', textwrap.dedent(code), timeout=timeout)
    assert done.returncode == 0, f'exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}'
    return done.stdout


def guilty(fn: Callable[..., Any]) -> int:
    """The number of the function's line that ends in ``# <-- here``."""
    lines, start = inspect.getsourcelines(fn)
    return start + next(number for number, line in enumerate(lines) if '# <-- here' in line)


@dataclass
class Text:
    """A program of a text: what its first line says behind ``==``, its own lines, and the number of the first."""

    head: list[str]
    lines: list[str]
    first: int
    file: Path

    @property
    def line(self) -> int:
        """The number of the line that ends in ``# <-- here``."""
        (found,) = (number for number, line in enumerate(self.lines, self.first + 1) if line.endswith('# <-- here'))
        return found

    def compiled(self, parameters: str, names: dict[str, Any]) -> Callable[..., Any]:
        """The program as a function, on the lines that it has in its file."""
        source = '\n'.join(['\n' * (self.first - 1) + f'def {self.head[0]}({parameters}):', *self.lines, ''])
        space = dict(names)
        exec(compile(source, str(self.file), 'exec'), space)
        made: Callable[..., Any] = space[self.head[0]]
        return made


def programs_of(file: Path) -> dict[str, Text]:
    """The programs of a text, by name; a line that begins with ``==`` is the first of one."""
    lines = file.read_text().split('\n')
    heads = [number for number, line in enumerate(lines) if line.startswith('== ')]
    ends = zip(heads, [*heads[1:], len(lines)])
    found = [Text(lines[head][3:].split(' | '), lines[head + 1 : end], head + 1, file) for head, end in ends]
    return {one.head[0]: one for one in found}
