"""Runs programs on the CUDA driver and notes what it answers, step by step.

``python -m tests.gpu.driver_machine OUT.json.gz COUNT`` writes random programs and the answers to them.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import sys
from collections.abc import Callable
from typing import Any

from cuda.bindings import runtime as rt

from tests.agreement.programs import LEGACY, Program, Step, random_program
from tests.agreement.simulated_machine import other_thread

_MODE = {
    'global': rt.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal,
    'thread_local': rt.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal,
    'relaxed': rt.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed,
}
_EXTERNAL = 1
_TO_HOST = rt.cudaMemcpyKind.cudaMemcpyDeviceToHost


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the values of a cuda.bindings call that must succeed."""
    if answer[0] != rt.cudaError_t.cudaSuccess:
        raise RuntimeError(f'{answer[0]!r}')
    return answer[1] if len(answer) == 2 else answer[1:]


class DriverMachine:
    """The driver, addressed by the small integers of a program."""

    buffer: int | None = None

    def __init__(self, blocking: list[bool], events: int) -> None:
        cls = type(self)
        if cls.buffer is None:
            cls.buffer = int(ok(rt.cudaMalloc(4096)))
            cls.pinned = int(ok(rt.cudaMallocHost(4096)))
            stream = ok(rt.cudaStreamCreateWithFlags(rt.cudaStreamNonBlocking))
            ok(rt.cudaStreamBeginCapture(stream, _MODE['relaxed']))
            ok(rt.cudaMemsetAsync(cls.buffer, 0, 64, stream))
            cls.exec = ok(rt.cudaGraphInstantiate(ok(rt.cudaStreamEndCapture(stream)), 0))
        flags = [rt.cudaStreamDefault if b else rt.cudaStreamNonBlocking for b in blocking]
        self.streams = [ok(rt.cudaStreamCreateWithFlags(f)) for f in flags]
        self.events = [ok(rt.cudaEventCreateWithFlags(0)) for _ in range(events)]
        self.ids: dict[int, int] = {}
        self.nodes: dict[int, dict[int, int]] = {}
        self.malloced: list[int] = []

    def stream(self, s: int) -> Any:
        return rt.cudaStream_t(0) if s == LEGACY else self.streams[s]

    def do(self, step: Step) -> str:
        """Make the call in its thread; return the name of CUDA's answer."""
        call = lambda: self._call(step)  # noqa: E731
        answer = other_thread()(call) if step.t else call()
        name = answer[0].name
        if step.op == 'is_capturing' and name == 'cudaSuccess':
            name += ':' + answer[1].name.replace('cudaStreamCaptureStatus', '')
        return name

    def _call(self, step: Step) -> tuple[Any, ...]:
        s = self.stream(step.s) if step.s is not None else None
        e = self.events[step.e] if step.e is not None else None
        host = _host_function_pointer()
        calls: dict[str, Callable[[], tuple[Any, ...]]] = {
            'begin': lambda: rt.cudaStreamBeginCapture(s, _MODE[step.mode or 'relaxed']),
            'end': lambda: rt.cudaStreamEndCapture(s),
            'work': lambda: rt.cudaMemsetAsync(self.buffer, 0, 64, s),
            'record': lambda: rt.cudaEventRecord(e, s),
            'record_external': lambda: rt.cudaEventRecordWithFlags(e, s, _EXTERNAL),
            'wait': lambda: rt.cudaStreamWaitEvent(s, e, 0),
            'wait_external': lambda: rt.cudaStreamWaitEvent(s, e, _EXTERNAL),
            'sync': lambda: rt.cudaStreamSynchronize(s),
            'query': lambda: rt.cudaStreamQuery(s),
            'event_sync': lambda: rt.cudaEventSynchronize(e),
            'event_query': lambda: rt.cudaEventQuery(e),
            'elapsed': lambda: rt.cudaEventElapsedTime(e, self.events[step.e2]),
            'device_sync': lambda: rt.cudaDeviceSynchronize(),
            'is_capturing': lambda: rt.cudaStreamIsCapturing(s),
            'get_flags': lambda: rt.cudaStreamGetFlags(s),
            'get_priority': lambda: rt.cudaStreamGetPriority(s),
            'add_callback': lambda: rt.cudaStreamAddCallback(s, rt.cudaStreamCallback_t(host), 0, 0),
            'host_func': lambda: rt.cudaLaunchHostFunc(s, rt.cudaHostFn_t(host), 0),
            'graph_launch': lambda: rt.cudaGraphLaunch(self.exec, s),
            'malloc': lambda: rt.cudaMalloc(1 << 20),
            'memset_sync': lambda: rt.cudaMemset(self.buffer, 0, 64),
            'copy_pinned': lambda: rt.cudaMemcpyAsync(self.pinned, self.buffer, 64, _TO_HOST, s),
        }
        answer = calls[step.op]()
        if answer[0] == rt.cudaError_t.cudaSuccess:
            if step.op == 'end' and answer[1]:
                rt.cudaGraphDestroy(answer[1])
            elif step.op == 'malloc':
                self.malloced.append(int(answer[1]))
        return answer

    def state(self) -> list[Any]:
        """Per stream: None, or [status, capture, sorted dependencies as node numbers in order of creation]."""
        answer: list[Any] = []
        for s in self.streams:
            info = rt.cudaStreamGetCaptureInfo(s)
            status = info[1].name.replace('cudaStreamCaptureStatus', '') if info[0].value == 0 else info[0].name
            if status == 'Active':
                capture = self.ids.setdefault(int(info[2]), len(self.ids))
                count = int(info[6]) if len(info) > 6 else len(info[4] or [])
                answer.append([status, capture, self._numbers(info[3], (info[4] or [])[:count])])
            elif status == 'None':
                answer.append(None)
            else:
                answer.append([status, None, None])
        return answer

    def _numbers(self, graph: Any, dependencies: Any) -> list[int]:
        count = ok(rt.cudaGraphGetNodes(graph))[1]
        known = self.nodes.setdefault(int(graph), {})
        if count:
            for i, node in enumerate(ok(rt.cudaGraphGetNodes(graph, count))[0]):
                known[int(node)] = i
        return sorted(known[int(d)] for d in dependencies)

    def close(self) -> None:
        """End whatever still captures, in either thread, and destroy the program's streams and events."""
        for _ in range(2):
            for s in self.streams:
                if rt.cudaStreamIsCapturing(s)[1] != rt.cudaStreamCaptureStatus.cudaStreamCaptureStatusNone:
                    for place in (lambda f: f(), other_thread()):
                        answer = place(lambda s=s: rt.cudaStreamEndCapture(s))
                        if answer[0] == rt.cudaError_t.cudaSuccess and answer[1]:
                            rt.cudaGraphDestroy(answer[1])
        for s in self.streams:
            left = rt.cudaStreamIsCapturing(s)
            if left[1] != rt.cudaStreamCaptureStatus.cudaStreamCaptureStatusNone:
                raise RuntimeError(f'a stream is still capturing after close: {left}')
            rt.cudaStreamDestroy(s)
        for e in self.events:
            rt.cudaEventDestroy(e)
        for p in self.malloced:
            rt.cudaFree(p)
        rt.cudaGetLastError()


def _host_function_pointer() -> int:
    """Return the address of a C function that does nothing, for callbacks (libc's sync-free ``getpid``)."""
    return ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value or 0


def run(program: Program) -> list[tuple[str, list[Any]]]:
    """Run a program; return for each step the answer and the state after it."""
    machine = DriverMachine(program.blocking, program.events)
    try:
        return [(machine.do(step), machine.state()) for step in program.steps]
    finally:
        machine.close()


def main() -> None:
    traces = []
    for seed in range(int(sys.argv[2])):
        program = random_program(seed, length=40, illegal=(0.05, 0.2, 0.5, 1.0)[seed % 4])
        traces.append({'seed': seed, **program.to_json(), 'answers': run(program)})
    with gzip.open(sys.argv[1], 'wt') as f:
        json.dump(traces, f, separators=(',', ':'))


if __name__ == '__main__':
    main()
