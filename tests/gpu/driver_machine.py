"""Runs programs on the CUDA driver and notes what it answers, step by step."""

from __future__ import annotations

import queue
import threading
from typing import Any

from cuda.bindings import runtime as rt

from tests.agreement.programs import LEGACY, Program, Step

_MODE = {
    'global': rt.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal,
    'thread_local': rt.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal,
    'relaxed': rt.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed,
}
_EXTERNAL = 1


def ok(answer: tuple[Any, ...]) -> Any:
    """Return the values of a cuda.bindings call that must succeed."""
    if answer[0] != rt.cudaError_t.cudaSuccess:
        raise RuntimeError(f'{answer[0]!r}')
    return answer[1] if len(answer) == 2 else answer[1:]


class Worker:
    """A second thread that runs what it is given and hands back the result."""

    def __init__(self) -> None:
        self._in: queue.Queue[Any] = queue.Queue()
        self._out: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._out.put(self._in.get()())

    def __call__(self, fn: Any) -> Any:
        self._in.put(fn)
        return self._out.get()


class DriverMachine:
    """The driver, addressed by the small integers of a program."""

    worker: Worker | None = None
    buffer: int | None = None

    def __init__(self, blocking: list[bool], events: int) -> None:
        cls = type(self)
        if cls.worker is None:
            cls.worker = Worker()
            cls.buffer = int(ok(rt.cudaMalloc(4096)))
            cls.buffer2 = int(ok(rt.cudaMalloc(4096)))
            cls.pinned = int(ok(rt.cudaMallocHost(4096)))
            stream = ok(rt.cudaStreamCreateWithFlags(rt.cudaStreamNonBlocking))
            ok(rt.cudaStreamBeginCapture(stream, _MODE['relaxed']))
            ok(rt.cudaMemsetAsync(cls.buffer, 0, 64, stream))
            cls.graph = ok(rt.cudaStreamEndCapture(stream))
            cls.exec = ok(rt.cudaGraphInstantiate(cls.graph, 0))
            cls.spare = stream
        assert cls.worker is not None
        flags = [rt.cudaStreamDefault if b else rt.cudaStreamNonBlocking for b in blocking]
        self.streams = [ok(rt.cudaStreamCreateWithFlags(f)) for f in flags]
        self.events = [ok(rt.cudaEventCreateWithFlags(rt.cudaEventDisableTiming * 0)) for _ in range(events)]
        self.ids: dict[int, int] = {}
        self.nodes: dict[int, dict[int, int]] = {}
        self.opened: dict[int, tuple[int, int]] = {}  # origin -> (thread, capture)
        self.malloced: list[int] = []

    def stream(self, s: int) -> Any:
        return rt.cudaStream_t(0) if s == LEGACY else self.streams[s]

    def do(self, step: Step) -> str:
        """Make the call in its thread; return the name of CUDA's answer."""
        call = lambda: self._call(step)  # noqa: E731
        answer = self.worker(call) if step.t else call()
        name = answer[0].name
        if step.op == 'is_capturing' and name == 'cudaSuccess':
            name += ':' + answer[1].name.replace('cudaStreamCaptureStatus', '')
        return name

    def _call(self, step: Step) -> tuple[Any, ...]:
        s = self.stream(step.s) if step.s is not None else None
        e = self.events[step.e] if step.e is not None else None
        op = step.op
        if op == 'begin':
            return rt.cudaStreamBeginCapture(s, _MODE[step.mode or 'relaxed'])
        if op == 'end':
            answer = rt.cudaStreamEndCapture(s)
            if answer[0] == rt.cudaError_t.cudaSuccess and answer[1]:
                rt.cudaGraphDestroy(answer[1])
            return answer
        if op == 'work':
            return rt.cudaMemsetAsync(self.buffer, 0, 64, s)
        if op == 'record':
            return rt.cudaEventRecord(e, s)
        if op == 'record_external':
            return rt.cudaEventRecordWithFlags(e, s, _EXTERNAL)
        if op == 'wait':
            return rt.cudaStreamWaitEvent(s, e, 0)
        if op == 'wait_external':
            return rt.cudaStreamWaitEvent(s, e, _EXTERNAL)
        if op == 'sync':
            return rt.cudaStreamSynchronize(s)
        if op == 'query':
            return rt.cudaStreamQuery(s)
        if op == 'event_sync':
            return rt.cudaEventSynchronize(e)
        if op == 'event_query':
            return rt.cudaEventQuery(e)
        if op == 'elapsed':
            return rt.cudaEventElapsedTime(e, self.events[step.e2])
        if op == 'device_sync':
            return rt.cudaDeviceSynchronize()
        if op == 'is_capturing':
            return rt.cudaStreamIsCapturing(s)
        if op == 'get_flags':
            return rt.cudaStreamGetFlags(s)
        if op == 'get_priority':
            return rt.cudaStreamGetPriority(s)
        if op == 'add_callback':
            return rt.cudaStreamAddCallback(s, rt.cudaStreamCallback_t(_host_function_pointer()), 0, 0)
        if op == 'host_func':
            return rt.cudaLaunchHostFunc(s, rt.cudaHostFn_t(_host_function_pointer()), 0)
        if op == 'graph_launch':
            return rt.cudaGraphLaunch(self.exec, s)
        if op == 'malloc':
            answer = rt.cudaMalloc(1 << 20)
            if answer[0] == rt.cudaError_t.cudaSuccess:
                self.malloced.append(int(answer[1]))
            return answer
        if op == 'memset_sync':
            return rt.cudaMemset(self.buffer, 0, 64)
        if op == 'copy_pinned':
            kind = rt.cudaMemcpyKind.cudaMemcpyDeviceToHost
            return rt.cudaMemcpyAsync(self.pinned, self.buffer, 64, kind, s)
        raise ValueError(op)

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
                    for place in (lambda f: f(), self.worker):
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


_pointer: int | None = None


def _host_function_pointer() -> int:
    """Return the address of a C function that does nothing, for callbacks (libc's sync-free ``getpid``)."""
    global _pointer
    if _pointer is None:
        import ctypes

        _pointer = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert _pointer is not None
    return _pointer


def run(program: Program) -> list[tuple[str, list[Any]]]:
    """Run a program; return for each step the answer and the state after it."""
    machine = DriverMachine(program.blocking, program.events)
    try:
        return [(machine.do(step), machine.state()) for step in program.steps]
    finally:
        machine.close()
