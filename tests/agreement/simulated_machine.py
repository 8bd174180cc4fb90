"""Runs programs on the simulated device, in the form of ``tests.gpu.driver_machine``."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable
from typing import Any

from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus, Code, Mode
from capturekit.simulated.device.machine import SimulatedDevice
from tests.agreement.programs import LEGACY, Program, Step

MODE = {'global': Mode.GLOBAL, 'thread_local': Mode.THREAD_LOCAL, 'relaxed': Mode.RELAXED}


class Worker:
    """A second thread that runs what it is given and hands back the result."""

    def __init__(self) -> None:
        self._in: queue.Queue[Callable[[], Any]] = queue.Queue()
        self._out: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._out.put(self._in.get()())

    def __call__(self, fn: Callable[[], Any]) -> Any:
        self._in.put(fn)
        return self._out.get()


#: The second thread of all programs.
other_thread = functools.cache(Worker)


class SimulatedMachine:
    """The simulated device, addressed by the small integers of a program."""

    def __init__(self, blocking: list[bool], events: int) -> None:
        self.device = SimulatedDevice()
        self.streams = [self.device.stream_create(non_blocking=not b) for b in blocking]
        self.events = [self.device.event_create() for _ in range(events)]
        spare = self.device.stream_create(non_blocking=True)
        self.device.begin_capture(spare)
        self.device.submit(spare, lambda: None, 'spare')
        self.exec = self.device.graph_instantiate(self.device.end_capture(spare))
        self.ids: dict[int, int] = {}

    def do(self, step: Step) -> str:
        """Make the call in its thread; return the name of the answer."""

        def call() -> str:
            try:
                answer = self._call(step)
            except CudaCallError as error:
                return Code(error.code).name
            if isinstance(answer, CaptureStatus):
                return f'cudaSuccess:{answer.name.title()}'
            return 'cudaSuccess'

        return str(other_thread()(call)) if step.t else call()

    def _call(self, step: Step) -> Any:
        d = self.device
        s = (0 if step.s == LEGACY else self.streams[step.s]) if step.s is not None else 0
        e = self.events[step.e] if step.e is not None else 0
        nothing = lambda: None  # noqa: E731
        calls: dict[str, Callable[[], Any]] = {
            'begin': lambda: d.begin_capture(s, MODE[step.mode or 'relaxed']),
            'end': lambda: d.end_capture(s),
            'work': lambda: d.submit(s, nothing, 'work'),
            'copy_pinned': lambda: d.submit(s, nothing, 'copy', 'memcpy'),
            'host_func': lambda: d.launch_host_func(s, nothing),
            'record': lambda: d.event_record(e, s),
            'record_external': lambda: d.event_record(e, s, external=True),
            'wait': lambda: d.stream_wait_event(s, e),
            'wait_external': lambda: d.stream_wait_event(s, e, external=True),
            'sync': lambda: d.stream_synchronize(s),
            'query': lambda: d.stream_query(s),
            'event_sync': lambda: d.event_synchronize(e),
            'event_query': lambda: d.event_query(e),
            'elapsed': lambda: d.event_elapsed_time(e, self.events[step.e2 or 0]),
            'device_sync': d.device_synchronize,
            'is_capturing': lambda: d.stream_status(s),
            'get_flags': lambda: d.stream_flags(s),
            'get_priority': lambda: d.stream_priority(s),
            'add_callback': lambda: d.add_callback(s, nothing),
            'graph_launch': lambda: d.graph_launch(self.exec, s),
            'malloc': lambda: d.malloc(64),
            'memset_sync': lambda: d.legacy_call('memset'),
        }
        return calls[step.op]()

    def state(self) -> list[Any]:
        """Per stream: None, or [status, capture, sorted dependencies as node numbers in order of creation]."""
        answer: list[Any] = []
        for s in self.streams:
            info = self.device.capture_info(s)
            if info.status is CaptureStatus.NONE:
                answer.append(None)
            elif info.status is CaptureStatus.INVALIDATED:
                answer.append(['Invalidated', None, None])
            else:
                order = {h: i for i, h in enumerate(self.device.graph_nodes(info.graph))}
                number = self.ids.setdefault(info.number, len(self.ids))
                answer.append(['Active', number, sorted(order[h] for h in info.dependencies)])
        return answer


def run(program: Program) -> list[tuple[str, list[Any]]]:
    """Run a program; return for each step the answer and the state after it."""
    machine = SimulatedMachine(program.blocking, program.events)
    return [(machine.do(step), machine.state()) for step in program.steps]
