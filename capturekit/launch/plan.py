"""The steps of a launch that is more than launching one executable graph.

A recorded program is divided into parts if something has to happen between them at every launch: numbers are drawn
from a host-side generator before a part, the host waits for a check, or makes a call that no capture can hold (a
*seam*). Each part is an executable graph; all share the graph's memory, and run on one stream, one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from capturekit.driver.cuda import Platform, StreamHandle
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.own_kernels import Checks
from capturekit.model.errors import AssumptionError, ClosedError, CudaCallError
from capturekit.model.ledger import PER_THREAD_HANDLE
from capturekit.model.source_line import Place


@dataclass
class Feed:
    """A value that a part gets at every launch, drawn or computed by the host, on the launching stream.

    ``signature`` identifies what is drawn; ``take`` copies the value of the last launch to an address.
    """

    signature: tuple[Any, ...]
    go: Callable[[], None]
    take: Callable[[Any], Any]
    fed: bool = False


@dataclass
class Part:
    """A definition and, once it is complete, its executable graph.

    ``checks``: how many are done after it; ``launched``: the number of its last launch.
    """

    graph: int = 0
    executable: int = 0
    feeds: list[Feed] = field(default_factory=list)
    checks: int = 0
    bodies: list[int] = field(default_factory=list)
    launched: int = 0
    #: The bodies of the conditional nodes that the user's code made, by node.
    decided: dict[int, list[int]] = field(default_factory=dict)

    @property
    def graphs(self) -> list[int]:
        """The definition and all bodies."""
        return [self.graph, *self.bodies, *(body for bodies in self.decided.values() for body in bodies)]


@dataclass
class Seam:
    """A call that the host makes at every launch, between two parts. ``seconds`` is the total time of these calls."""

    name: str
    at: Place | None
    go: Callable[[], None]
    calls: int = 0
    seconds: float = 0.0

    @property
    def microseconds(self) -> float:
        """The average time of one call, including the wait for the work before it."""
        return self.seconds / self.calls * 1e6 if self.calls else 0.0

    def __str__(self) -> str:
        at = f' at {self.at}' if self.at is not None else ''
        return f'{self.name}{at}: {self.microseconds:.0f} us a call'


@dataclass
class Backup:
    """An array from outside that a launch may write, and the place where the launch keeps its former contents.

    It is copied after ``checks`` checks in ``part`` (None: the first part), so not in a launch that stops before.
    ``node`` is what copies it.
    """

    array: Any
    kept: Any
    checks: int
    part: Part | None = None
    node: int = 0


class Plan:
    """The steps of a launch, the checks among them, and the streams they ran on."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.steps: list[Part | Seam] = []
        self.checks: Checks | None = None
        self.launches = 0
        self.first: Part | None = None
        self.given: list[Feed] = []
        #: The launch's number on the device, first of these words.
        self.state: Any = None
        #: The event behind the last launch, which is one of those that streams of each device record.
        self._last: Any = None
        self._events: dict[int, Any] = {}
        self._closed = False
        #: Whether the host does something between two parts: what is raised then is raised by the function's own call.
        self.between = False
        #: For launches on a stream, by its handle: what orders them with those of graphs that use the same memory.
        self.turn: Callable[[int], AbstractContextManager[None]] = lambda _stream: nullcontext()

    @property
    def parts(self) -> list[Part]:
        return [step for step in self.steps if isinstance(step, Part)]

    @property
    def seams(self) -> list[Seam]:
        return [step for step in self.steps if isinstance(step, Seam)]

    @property
    def plain(self) -> bool:
        """True when a launch is only the launch of one graph."""
        return len(self.steps) == 1 and self.checks is None and not any(part.feeds for part in self.parts)

    @property
    def fed(self) -> bool:
        """True when the host does more than launch one graph."""
        return len(self.steps) > 1 or any(part.feeds for part in self.parts)

    def complete(self, part: Part, by_priority: bool = False) -> None:
        """Instantiate a part, if that has not been done. ``by_priority``: its nodes have their lanes' priorities."""
        if not part.executable:
            part.executable = self._platform.device.graph_instantiate(part.graph, by_priority)

    def start(self) -> int:
        """Begin a launch: return its number, counted from 1. Raises ClosedError after :meth:`close`."""
        if self._closed:
            raise ClosedError('A launch', rule='The graphs were destroyed by close().', remedy='Record again.')
        for part in self.parts:
            for feed in part.feeds:
                feed.fed = False
        self.launches += 1
        return self.launches

    def run_on(self, handle: int, device: int) -> None:
        """Launch on any stream, by its handle. ``device``: the stream's device, which becomes current; -1: ask CUDA."""
        cuda = self._platform.cupy.cuda
        if device < 0 and handle > PER_THREAD_HANDLE and cuda.runtime.getDeviceCount() > 1:
            with suppress(CudaCallError):  # this driver is too old to ask
                device = int(self._platform.device.stream_device(handle))
        with nullcontext() if device < 0 else cuda.Device(device):
            with current_for_now(cuda, cuda.Stream.from_external(StreamHandle(handle))):
                self.run()

    def run(self, wait: bool = True) -> None:
        """Make a launch on CuPy's current stream. ``wait``: wait for the checks before returning.

        Raises AssumptionError: one has failed; nothing after it ran.
        """
        stream = self._platform.cupy.cuda.get_current_stream()
        with self.turn(stream.ptr):
            launch = self.start()
            try:
                if self._last is not None:
                    stream.wait_event(self._last)
                self.follow(launch, 0, stream, wait)
            except AssumptionError:
                raise
            except BaseException:
                self.recount(stream)
                raise
            finally:
                self.ended(stream)

    def ended(self, stream: Any) -> None:
        """Note that all steps of a launch were given to ``stream``: the next launch comes after them on any stream."""
        if self.fed:
            cuda = self._platform.cupy.cuda
            device = int(cuda.runtime.getDevice())
            self._last = self._events.get(device) or cuda.Event(disable_timing=True)
            self._events[device] = self._last
            self._last.record(stream)

    def recount(self, stream: Any) -> None:
        """Continue with the device's launch number after a launch failed, perhaps before it reached the device.

        Then nothing is to be undone: the kept contents are those of the launch before.
        """
        launch = self.launches
        if self.state is not None:
            stream.synchronize()
            self.launches = int(self.state.get()[0])
        for part in self.parts if self.launches < launch else ():
            part.launched = 0
        if self.state is not None and self.first is not None and self.launches == launch:
            self.first.launched = launch

    def follow(self, launch: int, first: int, stream: Any, wait: bool = True) -> None:
        """Do the steps of a launch from the one numbered ``first`` on."""
        for number in range(first, len(self.steps)):
            step = self.steps[number]
            self.go(step, stream)
            if isinstance(step, Part) and (wait or number < len(self.steps) - 1):
                self.settle(launch, step.checks, stream)

    def go(self, step: Part | Seam, stream: Any) -> None:
        """Do one step on ``stream``, which is current."""
        self.between = True
        if isinstance(step, Seam):
            start = time.perf_counter()
            step.go()
            step.calls += 1
            step.seconds += time.perf_counter() - start
            return
        for feed in step.feeds:
            feed.go()
            feed.fed = True
        self.between = False
        self._platform.device.graph_launch(step.executable, stream.ptr)
        step.launched = self.launches

    def settle(self, launch: int, upto: int, stream: Any) -> None:
        """Wait until the first ``upto`` checks of a launch are done; raise AssumptionError if one has failed."""
        if self.checks is not None and upto:
            error = self.checks.wait(launch, upto, stream.synchronize)
            if error is not None:
                raise error

    def drawn(self) -> list[Feed]:
        """The values of the last launch, in order, as far as it came."""
        return self.given or [feed for part in self.parts for feed in part.feeds if feed.fed]

    def put_back(self, backups: list[Backup], index: int | None) -> None:
        """Undo what the last launch wrote into outside arrays; ``index`` is that of the check that stopped it, if one
        did."""
        for kept in backups:
            part = kept.part or self.first
            if part is not None and part.launched == self.launches and (index is None or index >= kept.checks):
                kept.array[...] = kept.kept

    def close(self) -> None:
        """Destroy the graphs."""
        steps, self.steps, self._closed = self.parts, [], True
        device = self._platform.device
        for part in steps:
            if part.executable:
                device.graph_exec_destroy(part.executable)
            if part.graph:
                device.graph_destroy(part.graph)
