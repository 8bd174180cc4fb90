"""Copies and memsets, on a stream that the call names or on the legacy one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from capturekit.guard.caller_streams import CallerStreams
from capturekit.guard.state import State
from capturekit.guard.stream_work import StreamWork
from capturekit.guard.verdicts import Verdicts
from capturekit.model.ledger import LEGACY_HANDLES
from capturekit.model.rules import RULES, Operation
from capturekit.model.source_line import here

_O = Operation
#: ``cudaMemcpyKind`` of copies between host and device: such a copy records the address of the host memory.
_WITH_THE_HOST = {
    1: 'what lies at its address of the host by then, which must stay as long as the graph',
    2: 'to its address of the host, which must stay as long as the graph; nothing is copied before the first launch',
}


class Copies:
    """Copies and memsets, on a stream that the call names or on the legacy one."""

    def __init__(self, state: State, verdicts: Verdicts, callers: CallerStreams, work: StreamWork) -> None:
        self.state = state
        self.verdicts = verdicts
        self.callers = callers
        self.work = work

    def runtime_work_last(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        """Copies and memsets of ``cupy.cuda.runtime``, whose last argument is the stream."""
        answer = self.work.on_stream(_O.WORK, f'cupy.cuda.{call}', args[-1], lambda: original(*args))
        lane = self.state.ledger.lane(args[-1])
        if lane is not None and lane.capture in self.state.lives and 'memcpy' in call and args[-2] in _WITH_THE_HOST:
            text = f'cupy.cuda.{call}: each launch copies {_WITH_THE_HOST[args[-2]]}'
            self.state.live_of(lane).note('note', lane, text, here())
        return answer

    def runtime_legacy(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        return self._legacy_work(f'cupy.cuda.{call}', lambda: original(*args))

    def _legacy_work(self, call: str, go: Callable[[], Any]) -> Any:
        with self.state.lock:
            self.verdicts.start()
            verdict = self.verdicts.judge(_O.LEGACY_WORK, stream=LEGACY_HANDLES[0])
            if verdict.rule is not None:
                verdict = replace(verdict, rule=replace(verdict.rule, remedy=_with_a_stream(call)))
        return self.verdicts.carry_out(verdict, call, LEGACY_HANDLES[0], go)

    def pointer_copy(self, call: str, original: Callable[..., Any], pointer: Any, *args: Any, **kwargs: Any) -> Any:
        """Asynchronous copies and memsets of a MemoryPointer, whose stream may be given."""
        self._read_elsewhere(call, pointer)
        stream = kwargs.get('stream', args[2] if len(args) > 2 else None)
        mine = self.state.mine()
        if mine is not None and stream is not None and self.callers.is_callers(mine, stream.ptr, call):
            args = tuple(mine.origin if one is stream else one for one in args)
            kwargs = {name: mine.origin if one is stream else one for name, one in kwargs.items()}
            stream = mine.origin
        if self.state.mine() is not None:
            where = stream if stream is not None else self.state.platform.cupy.cuda.get_current_stream()
            source = args[0] if args else kwargs.get('mem')
            if self.state.ledger.lane(where.ptr) is not None and not hasattr(source, 'device_id'):
                self._refuse_host_copy(call, where.ptr)
        if stream is None:
            return original(pointer, *args, **kwargs)
        return self.work.on_stream(_O.WORK, call, stream.ptr, lambda: original(pointer, *args, **kwargs))

    def texture_copy(self, call: str, original: Callable[..., Any], array: Any, other: Any, stream: Any = None) -> Any:
        """``CUDAarray.copy_from`` and ``copy_to``: copies on the current stream, or on the one that is given.

        CUDA crashes when it instantiates a graph that copies from or to a CUDA array which is gone: the graph keeps it.
        """
        mine = self.state.mine()
        if mine is not None:
            where = stream if stream is not None else self.state.platform.cupy.cuda.get_current_stream()
            if isinstance(other, np.ndarray) and self.state.ledger.lane(where.ptr) is not None:
                self._refuse_host_copy(call, where.ptr)
            if mine.memory is not None:
                mine.memory.keep((array, other))
        if stream is None:
            return original(array, other)
        return self.work.on_stream(_O.WORK, call, stream.ptr, lambda: original(array, other, stream))

    def _refuse_host_copy(self, call: str, ptr: int) -> None:
        """Refuse a copy between host and device, with the line and the reason, which CuPy's error lacks."""
        rules = {
            'copy_to_host_async': 'host-read',
            'copy_from_host_async': 'host-write',
            'copy_from_async': 'host-write',
            'CUDAarray.copy_to': 'host-read',
            'CUDAarray.copy_from': 'host-write',
        }
        rule = next((RULES[name] for part, name in rules.items() if part in call), None)
        if rule is not None:
            with self.state.lock:
                self.verdicts.start()
                self.verdicts.refuse(self.verdicts.judge(_O.STREAM_SYNCHRONIZE, stream=ptr), call, ptr, rule)

    def pointer_sync(self, call: str, original: Callable[..., Any], pointer: Any, *args: Any, **kwargs: Any) -> Any:
        """Synchronous copies and memsets of a MemoryPointer: they use the legacy stream."""
        self._read_elsewhere(call, pointer)
        return self._legacy_work(call, lambda: original(pointer, *args, **kwargs))

    def _read_elsewhere(self, call: str, pointer: Any) -> None:
        if 'copy_to_host' in call:
            with self.state.lock:
                self.verdicts.refuse_read_elsewhere(call, pointer.mem)


def _with_a_stream(call: str) -> str:
    """What to write instead of a copy or memset that takes no stream."""
    name = call.rpartition('.')[2].rstrip('()')
    if name in ('copy_from_host', 'copy_to_host'):
        return RULES['host-write' if 'from' in name else 'host-read'].remedy
    if name == 'memcpyPeer':
        return RULES['peer-copy'].remedy
    if 'runtime.' in call:
        return f'Use `{name}Async`, whose last argument is a stream: `cap.stream.ptr`.'
    return f'Use `{name}_async`, which goes to the current stream, or to the one that it is given.'
