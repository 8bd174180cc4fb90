"""Work on a stream that the call names; calls that the mode of a capture keeps away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from capturekit.guard.by_hand import ByHand
from capturekit.guard.caller_streams import _Handle
from capturekit.guard.open_capture import Live
from capturekit.model import errors
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import RULES, Code, Operation
from capturekit.model.source_line import here

_O = Operation
#: ``cudaMemcpyKind`` of copies between host and device: what is recorded of them is the host's address.
_WITH_THE_HOST = {1: 'what lies at its address of the host by then', 2: 'to its address of the host'}


class Work(ByHand):
    """Work on a stream that the call names; calls that the mode of a capture keeps away."""

    def _on_stream(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        with self.lock:
            ptr = self.meant(ptr)
            mine = self._start()
            self.spring(ptr)
            if self.is_callers(mine, ptr, call):
                raise self.not_recorded(call, ptr, 'The recording has another stream in its place')
            if mine is not None and not mine.strict and self._outside(ptr):
                self._adapt_fork(mine, self._wrapped(ptr), here())
            verdict = self.judge(operation, stream=ptr)
            lane = self.topology.lane(ptr)
            if lane is not None and lane.capture in self.lives and verdict.allowed:
                live = self.live_of(lane)
                self.in_order(live, lane)
                lane.used = True
                lane.last_use = here()
                if live.memory is not None:
                    live.memory.active(lane)
                self.refresh()
        try:
            answer = self._pass(verdict, call, ptr, go)
        finally:
            self._trap_again()
        if mine is not None:
            self.in_order(mine)
        return answer

    def work_on(self, ptr: int, call: str, go: Callable[[], Any]) -> Any:
        """Work that capturekit itself puts on a stream for the user."""
        return self._on_stream(_O.WORK, call, ptr, go)

    def _runtime_work(self, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        return self._on_stream(_O.WORK, call, ptr, go)

    def stream_handed_out(self, stream: Any, ptr: int) -> int | None:
        """A stream's handle was read: by CuPy for a call that names the stream, or by a person. Work may follow.

        Returns the handle that is given out instead, if another one is.
        """
        mine = self.mine()
        if mine is None or _is_ours(sys._getframe(2).f_globals.get('__name__', '')):
            return None
        if mine.caller is not None and (ptr == mine.origin.ptr or self.is_callers(mine, ptr, 'Reading `Stream.ptr`')):
            if self.mine_is_current(mine):
                return _Handle(mine.origin.ptr)
            raise self.not_recorded('Reading `Stream.ptr`', ptr, 'The recording has another stream in its place')
        with self.lock:
            lane = self.topology.lane(ptr)
            if mine.caller is not None and (lane is None or not lane.current):
                lane = self._handed_to(mine, stream, ptr)
            if lane is None:
                self._note_outside(mine, ptr)
            elif not lane.current and lane.capture is mine.capture:
                if mine.trace is not None:
                    mine.trace.touch(ptr)
                if not lane.suspect:
                    lane.suspect = True
                    if mine.memory is not None:
                        mine.memory.active(lane)
                    self.refresh()
        return None

    def _handed_to(self, live: Live, stream: Any, ptr: int) -> Lane | None:
        """A graphed function reads the handle of a stream that is not current: work that is given to it is recorded."""
        if ptr in LEGACY_HANDLES:
            raise self.not_recorded('Reading `Stream.ptr`', ptr, 'The recording has another stream in its place')
        if self.topology.lane(ptr) is None:
            self._adapt_fork(live, stream, here())
        lane = self.topology.lane(ptr)
        if lane is not None and lane.capture is live.capture and self.unordered(live, lane):
            raise self.not_recorded('Reading `Stream.ptr`', ptr, 'CUDA orders this stream with the null stream')
        return lane

    def stream_deleted(self, original: Callable[..., Any], stream: Any, *args: Any) -> None:
        """A destructor reads the handle as well: nobody is given it."""
        with self.inside():
            original(stream, *args)

    def _note_outside(self, live: Live, ptr: int) -> None:
        if ptr in live.trapped:
            return
        what = 'the legacy default stream' if ptr in LEGACY_HANDLES else f'stream {ptr:#x}, outside of the capture,'
        text = f'the handle of {what} was read: work given to it directly is not recorded'
        if not any(step.text == text for step in live.recording.notes):
            live.note('note', None, text, here())

    def stream_is_capturing(self, original: Callable[..., Any], stream: Any) -> Any:
        if any(stream.ptr in live.trapped for live in self.lives.values()):
            return False
        return original(stream)

    def stream_is_non_blocking(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        """Asking a captured stream for its flags would lose the capture; they were read when it entered.

        Nor is the legacy stream asked, which loses every capture with a blocking stream: its flags are known.
        """
        if stream.ptr in LEGACY_HANDLES:
            return False
        lane = self.topology.lane(stream.ptr)
        return getter(stream) if lane is None or lane.capture not in self.lives else not lane.blocking

    def runtime_stream_flags(self, original: Callable[..., Any], stream: int) -> Any:
        if stream in LEGACY_HANDLES:
            return 0
        lane = self.topology.lane(stream)
        return original(stream) if lane is None else int(not lane.blocking)

    def stream_priority(self, getter: Callable[[Any], Any], stream: Any) -> Any:
        """As with its flags, the legacy stream is not asked: its priority is the default."""
        return 0 if stream.ptr in LEGACY_HANDLES else getter(stream)

    def runtime_stream_priority(self, original: Callable[..., Any], stream: int) -> Any:
        return 0 if stream in LEGACY_HANDLES else original(stream)

    def stream_add_callback(self, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        go = lambda: original(stream, callback, arg)  # noqa: E731
        return self._on_stream(_O.STREAM_ADD_CALLBACK, 'Stream.add_callback()', stream.ptr, go)

    def runtime_add_callback(self, original: Callable[..., Any], stream: int, *args: Any) -> Any:
        go = lambda: original(stream, *args)  # noqa: E731
        return self._on_stream(_O.STREAM_ADD_CALLBACK, 'cupy.cuda.runtime.streamAddCallback()', stream, go)

    def stream_launch_host_func(self, original: Callable[..., Any], stream: Any, callback: Any, arg: Any) -> Any:
        mine = self.mine()
        if mine is not None and self.is_callers(mine, stream.ptr, 'Stream.launch_host_func()'):
            stream = mine.origin

        def go() -> Any:
            if self.topology.lane(stream.ptr) is not None and stream._graph_host_funcargs is None:
                stream._graph_host_funcargs = []  # another object for the lane's stream: CuPy must find a list
            return original(stream, callback, arg)

        self._out_of_body(stream.ptr)
        answer = self._on_stream(_O.LAUNCH_HOST_FUNC, 'Stream.launch_host_func()', stream.ptr, go)
        lane = self.topology.lane(stream.ptr)
        if lane is not None and lane.capture in self.lives:
            live = self.live_of(lane)
            if stream is not live.origin:  # CuPy's graph keeps what the origin lists
                live.origin._graph_host_funcargs.extend(stream._graph_host_funcargs)
                stream._graph_host_funcargs.clear()
            live.note('host', lane, f'host function {getattr(callback, "__name__", callback)!s}', here())
        return answer

    def _out_of_body(self, ptr: int) -> None:
        """Before work that the body of a conditional node can't hold: go on in a part of its own."""
        mine = self.mine()
        self.not_in_body(mine, 'A host function', 'Launch it before the decision, or behind it.')
        if mine is not None and mine.node and (not mine.strict or self.topology.lane(ptr) is not None):
            with self.lock:
                self.cut_on_host(mine, here())

    def runtime_host_func(self, original: Callable[..., Any], stream: int, *args: Any) -> Any:
        call = 'cupy.cuda.runtime.launchHostFunc()'
        lane = self.topology.lane(stream)
        if lane is not None and lane.capture in self.lives:
            raise errors.UnsupportedCallError(
                call,
                stream=stream,
                lane=lane.number,
                subject=self.subject(stream),
                location=here(),
                rule='CuPy frees what this call is given after it ran once: a second launch would use freed memory.',
                remedy='Use `stream.launch_host_func(fn, arg)`, which keeps both as long as the graph.',
            )
        return self._on_stream(_O.LAUNCH_HOST_FUNC, call, stream, lambda: original(stream, *args))

    def runtime_work_last(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        """Copies and memsets of ``cupy.cuda.runtime``, whose last argument is the stream."""
        answer = self._runtime_work(f'cupy.cuda.{call}', args[-1], lambda: original(*args))
        lane = self.topology.lane(args[-1])
        if lane is not None and lane.capture in self.lives and 'memcpy' in call and args[-2] in _WITH_THE_HOST:
            text = (
                f'cupy.cuda.{call}: each launch copies {_WITH_THE_HOST[args[-2]]}, which must stay as long as the graph'
            )
            self.live_of(lane).note('note', lane, text, here())
        return answer

    def runtime_peer_copy(self, original: Callable[..., Any], *args: Any) -> Any:
        call = 'cupy.cuda.runtime.memcpyPeerAsync()'
        return self._captured_only(_O.PEER_COPY, call, args[-1], lambda: original(*args))

    def runtime_prefetch(self, original: Callable[..., Any], *args: Any) -> Any:
        call = 'cupy.cuda.runtime.memPrefetchAsync()'
        return self._captured_only(_O.PREFETCH, call, args[-1], lambda: original(*args))

    def _captured_only(self, operation: Operation, call: str, ptr: int, go: Callable[[], Any]) -> Any:
        inside = self.topology.lane(ptr) is not None
        return self._on_stream(operation if inside else _O.WORK, call, ptr, go)

    def runtime_malloc_async(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        """``mallocAsync`` and ``mallocFromPoolAsync``, whose last argument is the stream."""
        if self.topology.lane(args[-1]) is None:
            return self.unsafe(call, original, *args)
        self._out_of_body(args[-1])
        return self._on_stream(_O.MALLOC_ASYNC, f'cupy.cuda.{call}', args[-1], lambda: original(*args))

    def runtime_free_async(self, original: Callable[..., Any], ptr: int, stream: int) -> Any:
        if self.topology.lane(stream) is None:
            return self.unsafe('runtime.freeAsync()', original, ptr, stream)
        return original(ptr, stream)  # memory of the graph is freed by a node; CUDA refuses the rest without harm

    def runtime_legacy(self, call: str, original: Callable[..., Any], *args: Any) -> Any:
        return self._legacy_work(f'cupy.cuda.{call}', lambda: original(*args))

    def _legacy_work(self, call: str, go: Callable[[], Any]) -> Any:
        with self.lock:
            self._start()
            verdict = self.judge(_O.LEGACY_WORK, stream=LEGACY_HANDLES[0])
            if verdict.rule is not None:
                verdict = replace(verdict, rule=replace(verdict.rule, remedy=_with_a_stream(call)))
        return self._pass(verdict, call, LEGACY_HANDLES[0], go)

    def runtime_stream_destroy(self, original: Callable[..., Any], stream: int) -> Any:
        with self.lock:
            lane = self.topology.lane(stream)
            if lane is not None:
                raise errors.UnsupportedCallError(
                    'cupy.cuda.runtime.streamDestroy()',
                    stream=stream,
                    lane=lane.number,
                    subject=self.subject(stream),
                    location=here(),
                    rule='A stream destroyed in a capture leaves its work behind, unjoined '
                    f'({Code.cudaErrorStreamCaptureUnjoined.name} would follow at the end).',
                    remedy='Destroy it after the capture.',
                    cuda_error=Code.cudaErrorStreamCaptureUnjoined.name,
                )
        return original(stream)

    def graph_launch(self, original: Callable[..., Any], graph: Any, stream: Any = None) -> Any:
        ptr = self.platform.cupy.cuda.get_current_stream().ptr if stream is None else stream.ptr
        return self._on_stream(_O.GRAPH_LAUNCH, 'Graph.launch()', ptr, lambda: original(graph, stream))

    def graph_upload(self, original: Callable[..., Any], graph: Any, stream: Any = None) -> Any:
        ptr = self.platform.cupy.cuda.get_current_stream().ptr if stream is None else stream.ptr
        return self._on_stream(_O.GRAPH_UPLOAD, 'Graph.upload()', ptr, lambda: original(graph, stream))

    def launching(self, upload: bool, ptr: int) -> None:
        """A graph of capturekit's own is about to be launched or uploaded on a stream."""
        shadow = self.installation.inside.shadow
        if shadow is not None and self.mine() is None:
            shadow.launching(upload, ptr)
            return
        operation, call = (_O.GRAPH_UPLOAD, 'Graph.upload()') if upload else (_O.GRAPH_LAUNCH, 'Graph.launch()')
        self._on_stream(operation, call, ptr, lambda: None)

    def plain_launch(self, graph: Any) -> Callable[[], None]:
        """CuPy's own launch of a graph, past the wrappers, bound."""
        bound: Callable[[], None] = self.installation.originals['cupy.cuda.graph.Graph.launch'].__get__(graph)
        return bound

    def runtime_launch(self, original: Callable[..., Any], graph: int, stream: int) -> Any:
        go = lambda: original(graph, stream)  # noqa: E731
        return self._on_stream(_O.GRAPH_LAUNCH, 'cupy.cuda.runtime.graphLaunch()', stream, go)

    def runtime_upload(self, original: Callable[..., Any], graph: int, stream: int) -> Any:
        go = lambda: original(graph, stream)  # noqa: E731
        return self._on_stream(_O.GRAPH_UPLOAD, 'cupy.cuda.runtime.graphUpload()', stream, go)

    def pool_free(self, call: str, original: Callable[..., Any], pool: Any, *args: Any, **kwargs: Any) -> Any:
        """Freeing a pool's blocks: refused for the capture's own pool, whose blocks recorded work still uses."""
        with self.lock:
            self._start()
            if any(live.memory is not None and live.memory.pool is pool for live in self.lives.values()):
                raise errors.UnsupportedCallError(
                    call,
                    location=here(),
                    rule='This pool holds the memory of an open capture: recorded work still uses its free blocks.',
                    remedy='Free it after the graph is closed.',
                )
            verdict = self.judge(_O.UNSAFE)
        return self._pass(verdict, call, None, lambda: original(pool, *args, **kwargs))

    def pointer_copy(self, call: str, original: Callable[..., Any], pointer: Any, *args: Any, **kwargs: Any) -> Any:
        """Asynchronous copies and memsets of a MemoryPointer, whose stream may be given."""
        stream = kwargs.get('stream', args[2] if len(args) > 2 else None)
        mine = self.mine()
        if mine is not None and stream is not None and self.is_callers(mine, stream.ptr, call):
            args = tuple(mine.origin if one is stream else one for one in args)
            kwargs = {name: mine.origin if one is stream else one for name, one in kwargs.items()}
            stream = mine.origin
        if self.mine() is not None:
            where = stream if stream is not None else self.platform.cupy.cuda.get_current_stream()
            source = args[0] if args else kwargs.get('mem')
            if self.topology.lane(where.ptr) is not None and not hasattr(source, 'device_id'):
                self._refuse_host_copy(call, where.ptr)
        if stream is None:
            return original(pointer, *args, **kwargs)
        return self._runtime_work(call, stream.ptr, lambda: original(pointer, *args, **kwargs))

    def _refuse_host_copy(self, call: str, ptr: int) -> None:
        """CuPy refuses host copies on a captured stream, in words that name no line: say which and why."""
        rules = {
            'copy_to_host_async': 'host-read',
            'copy_from_host_async': 'host-write',
            'copy_from_async': 'host-write',
        }
        rule = next((RULES[name] for part, name in rules.items() if part in call), None)
        if rule is not None:
            with self.lock:
                self._start()
                self.refuse(self.judge(_O.STREAM_SYNCHRONIZE, stream=ptr), call, ptr, rule)

    def pointer_sync(self, call: str, original: Callable[..., Any], pointer: Any, *args: Any, **kwargs: Any) -> Any:
        """Synchronous copies and memsets of a MemoryPointer: they use the legacy stream."""
        return self._legacy_work(call, lambda: original(pointer, *args, **kwargs))


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


def _is_ours(module: str) -> bool:
    """True for modules whose own reading of a handle means nothing: capturekit's, and the simulated stream class."""
    if module.startswith('_capturekit_simulated'):
        return module.endswith('.streams')
    return module.startswith('capturekit.')
