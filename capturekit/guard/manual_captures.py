"""Captures begun and ended *by hand*, by the script's own ``begin_capture`` and ``end_capture``.

``stream.begin_capture()`` makes nothing current. ``y = x + 1`` on the next line, without ``with stream:`` around it,
goes to the stream that was current before: it runs at once and is missing from the graph, or loses the capture if the
captured stream is a blocking one. So the current stream is *kept out*: it is held, like other streams from outside, or
replaced by a placeholder if it is the legacy one. Calls that name the placeholder mean the legacy stream.

A mode that forbids allocations loses the capture when CuPy's pool asks the device for more memory: a hook of the pool's
refuses it before.

CuPy's graph holds addresses, and no array. So a launch is refused where no array is left at an address from outside of
the capture, unless something else than arrays holds that memory. What the capture allocated itself CuPy's pool gives
to work of the same stream only. Before the first launch of a graph its results hold what lay in their memory before: a
read of one is worth a warning, where the wrappers stay in place, as under ``capturekit run``."""

from __future__ import annotations

import sys
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from capturekit.guard.allocators import ALLOCATE_ONLY, NOT_CURRENT, memory_hook
from capturekit.guard.captures import Captures, driver_mode
from capturekit.guard.current_streams import CurrentStreams
from capturekit.guard.entry_points import Entry
from capturekit.guard.lanes import Lanes
from capturekit.guard.line_trace import TRACING, Trace
from capturekit.guard.open_capture import OpenCapture, close_recording, new_recording, tell_listeners
from capturekit.guard.remedies import without_cap
from capturekit.guard.state import State, handle
from capturekit.guard.verdicts import Verdicts, begun_in
from capturekit.model import errors
from capturekit.model.cleanup import Uncollected, instances, others_of
from capturekit.model.counters import LOG, refused
from capturekit.model.errors import CaptureError, CudaCallError
from capturekit.model.ledger import LEGACY_HANDLES, Lane
from capturekit.model.rules import RULES, VARIANTS, CaptureStatus, Code, Mode, Operation
from capturekit.model.source_line import Place, called, here, is_foreign_frame


@dataclass
class InputBlock:
    """Memory from outside that nodes touch. ``arrays``: those that it belongs to; views hold their array as a base."""

    start: int
    words: str
    arrays: list[weakref.ref[Any]] = field(default_factory=list)


@dataclass(eq=False)
class Unlaunched:
    """A graph that was not launched when its capture had ended.

    ``fills`` says whether it fills an array, ``over`` whether it was launched meanwhile, or is gone.
    """

    at: Place | None
    launch: str
    fills: Callable[[Any], bool]
    over: Callable[[], bool]


def _held_by_arrays(pointers: dict[int, list[Any]]) -> bool:
    """Whether nothing but arrays refers to their pointers, and nothing but these to their memory.

    The pointers come by their ids, each as often as there are arrays with it.
    """
    memory = [next(iter(pointers.values()))[0].mem]
    return others_of(memory) == len(pointers) and all(others_of(one) == 2 * len(one) - 1 for one in pointers.values())


class GraphInputs:
    """Refuses launches of graphs that were captured by hand and whose arrays from outside are gone."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: By handle of the executable graph, of which the newest graph counts: where its capture ended, and the blocks.
        self._graphs: dict[int, tuple[Place | None, list[InputBlock]]] = {}
        #: Graphs that were not launched when this was asked last, and the handles of those that were.
        self._unlaunched: list[Unlaunched] = []
        self._launched: set[int] = set()

    def found(self, live: OpenCapture) -> tuple[list[InputBlock], list[weakref.ref[Any]]]:
        """What the nodes of a capture touch, just before it ends: memory from outside, and arrays that it has made."""
        kind, device = self.state.platform.cupy.ndarray, self.state.platform.device
        with self.state.inside:
            graph = device.capture_info(live.origin.ptr).graph
            touched = sorted({one.address for node in device.graph_accesses(graph).values() for one in node.accesses})
        blocks: dict[int, InputBlock] = {}
        pointers: dict[int, dict[int, list[Any]]] = {}
        own = []
        for array in instances(kind) if touched else ():
            data = array.data
            if data is None or not array.size:  # without data it was never made
                continue
            start = int(data.mem.ptr)
            first = bisect_left(touched, start)
            if first == len(touched) or touched[first] >= start + data.mem.size:
                continue
            if live.records(data.mem):
                own.append(weakref.ref(_root(array)))
                continue
            block = blocks.setdefault(start, InputBlock(start, f'{array.dtype}{list(array.shape)}'))
            block.arrays.append(weakref.ref(_root(array)))
            pointers.setdefault(start, {}).setdefault(id(data), []).append(data)
        array = data = None  # neither is a holder
        return [block for start, block in blocks.items() if _held_by_arrays(pointers[start])], own

    def made(self, graph: Any, blocks: list[InputBlock], own: list[weakref.ref[Any]], at: Place | None) -> None:
        """Note what a graph of CuPy's touches. Another kind of graph is instantiated elsewhere."""
        if not hasattr(graph, 'graphExec'):
            return
        handle = int(graph.graphExec)
        self._graphs[handle] = here(), blocks
        self._unlaunched = [one for one in self._unlaunched if not one.over()]
        self._launched.discard(handle)  # it was an earlier graph's
        if own:
            fills = lambda array: any(one() is _root(array) for one in own)  # noqa: E731
            over = lambda: handle in self._launched or all(one() is None for one in own)  # noqa: E731
            self._unlaunched.append(Unlaunched(at, '`graph.launch()`', fills, over))

    def recorded(self, graph: Unlaunched) -> None:
        """Note a graph that has just been made."""
        self._unlaunched = [one for one in self._unlaunched if not one.over()] + [graph]

    def reads(self, array: Any) -> None:
        """Warn that the host reads a result of a graph which has not been launched; once for each graph."""
        if not self._unlaunched:
            return
        with self.state.lock, self.state.inside:
            self._unlaunched = [one for one in self._unlaunched if not one.over()]
            found = next((one for one in self._unlaunched if one.fills(array)), None)
            if found is not None:
                self._unlaunched.remove(found)
        if found is not None:
            LOG.warning(
                '%s: this reads an array of the capture begun at %s, and its graph has not been launched: the array '
                'holds what lay in its memory before. Call %s first.',
                here(), found.at, found.launch,
            )  # fmt: skip

    def launched(self, graph: Any) -> None:
        """Hear of a launch of a graph of CuPy's, or of its handle; refuse that of a graph whose arrays are gone."""
        handle = graph if isinstance(graph, int) else int(graph.graphExec)
        at, blocks = (None, []) if handle is graph else self._graphs.get(handle, (None, []))
        gone = next((one for one in blocks if all(array() is None for array in one.arrays)), None)
        if gone is not None:
            raise errors.FreedMemoryError(
                'Graph.launch()',
                location=here(),
                rule=f'The graph whose capture ended at {at} uses memory at {gone.start:#x}, and the array that was '
                f'there ({gone.words}) is gone: the launch would read or write what others have there by now.',
                remedy='Keep a name for every array that the capture uses as long as the graph is launched.',
            )
        if self._unlaunched:
            self._launched.add(handle)

    def forget(self) -> None:
        """Forget all graphs: the wrappers are gone, so that it is not seen what is captured from now on."""
        self._graphs.clear()
        self._unlaunched.clear()
        self._launched.clear()


def _root(array: Any) -> Any:
    """The array that a view belongs to; any other array itself."""
    return array if array.base is None else array.base


_O = Operation
_WITHOUT_PRIORITIES = (
    'lanes have different priorities, and CuPy instantiates graphs without them: `with ck.capture()` uses them'
)


def _where_it_waits(task: Any) -> Place | None:
    """The innermost line of the user's at which a task waits."""
    found, coroutine = None, task.get_coro()
    while coroutine is not None:
        frame = getattr(coroutine, 'cr_frame', None)
        if frame is not None and not is_foreign_frame(frame):
            found = here(frame)
        coroutine = getattr(coroutine, 'cr_await', None)
    return found


@dataclass(eq=False)
class ManualCaptures:
    """Follows captures that the script begins and ends by hand."""

    state: State
    verdicts: Verdicts
    captures: Captures
    lanes: Lanes
    streams: CurrentStreams
    inputs: GraphInputs

    def begin(self, entry: Entry, original: Callable[..., Any], stream: Any, mode: Any = None) -> Any:
        call, ptr = entry.call, handle(stream)
        if mode is None and stream is ptr:
            mode = int(Mode.RELAXED)  # the default of the runtime's function
        given = mode  # the script's own mode, where it is only observed or linted
        if mode is not None and self.state.inside.policy is None:
            given = int(driver_mode(Mode(int(mode))))
        with ExitStack() as undo, self.state.lock:
            self.verdicts.give_way()
            self.verdicts.start()
            self.streams.release(ptr)
            verdict = self.verdicts.judge(_O.BEGIN_CAPTURE, stream=ptr)
            if verdict.answer.refused:
                legacy = verdict.rule is RULES['legacy-stream']
                raise self.verdicts.refusal(verdict, call, ptr, VARIANTS['begin-on-legacy-stream'] if legacy else None)
            with self.state.inside:
                blocking = not self.state.platform.device.stream_flags(ptr) & 1
                priority = self.state.platform.device.stream_priority(ptr)
            by_handle, stream = stream, self.lanes.wrapped(ptr) if stream is ptr else stream
            device = self.lanes.device_of(stream)
            uncollected = Uncollected()  # the destructor of a garbage object may make a call that loses the capture
            uncollected.__enter__()
            undo.callback(uncollected.let_go)
            answer = original(by_handle, given)
            at = here()
            real = Mode.RELAXED if mode is None else Mode(int(mode))
            me = threading.get_ident()
            capture = self.state.ledger.begin(ptr, real, me, blocking=blocking, at=at, device=device)
            capture.origin.priority = priority
            recording = new_recording(self.state.platform, real, strict=True)
            live = OpenCapture(self.state.platform, capture, True, stream, None, recording, me, at)
            live.active_at, live.uncollected, live.begun_in = at, uncollected, begun_in()
            live.trace = Trace(self.state.platform.device.last_nodes(), ptr, self.lanes.lane_number, at)
            if getattr(stream, '_graph_host_funcargs', None) is None:
                stream._graph_host_funcargs = []
            self.captures.opened(live)
            live.begun_current = self.state.current_stream(device).ptr == ptr
            if live.begun_current:
                self.lanes.make_current(live, ptr)
            self.keep_out(live)
            TRACING.open(live.trace, sys._getframe(1))
            undo.pop_all()
        return answer

    def end(self, entry: Entry, original: Callable[[Any], Any], stream: Any) -> Any:
        call, ptr = entry.call, handle(stream)
        with ExitStack() as afterwards, self.state.lock:
            self.verdicts.start(check=False)
            self.streams.release(ptr)
            lane = self.state.ledger.lane(ptr)
            live = None if lane is None else self.state.lives.get(lane.capture)
            self._may_end(call, ptr, lane, live)
            if live is None:
                return original(stream)
            outcome, handled = 'failed', sys.exception()
            try:
                blocks, own = list[InputBlock](), list[weakref.ref[Any]]()
                with suppress(CudaCallError):  # what can't be read stays unknown: the capture must still be ended
                    self._count(live)
                    blocks, own = self.inputs.found(live)
                self.lanes.idle(live)
                answer = self._ended(live, lambda: original(stream))
                self.inputs.made(answer, blocks, own, live.at)
                outcome = 'good'
                return answer
            finally:
                self.captures.gone(live)
                live.ends_in_cleanup(handled)
                if live.by_priority:
                    live.note('note', None, _WITHOUT_PRIORITIES, live.at)
                notes = live.recording.steps if outcome == 'good' else ()
                for step in notes:  # its script has no recording to read them in
                    if step.kind == 'note':
                        LOG.warning('%s: %s', Place.from_json(step.at) or live.at, step.text)
                close_recording(live, outcome)
                # after the lock: listeners may wait for threads that wait for it
                afterwards.callback(tell_listeners, live, None)

    def never_ended(self, live: OpenCapture, error: BaseException | None) -> None:
        """Forget a capture that the program, which ``error`` may have ended, has left open; tell the listeners that it
        failed."""
        with self.state.lock:
            if live.memory is None:
                with suppress(CudaCallError):
                    self._count(live)
            self.captures.gone(live)
        if live.memory is not None:
            return  # a block's own end tells of it
        if error is not None:
            live.note_end(error)
        else:
            live.note('finding', None, 'the program ended before end_capture was called', live.at)
        close_recording(live, 'failed')
        tell_listeners(live, None)

    def _may_end(self, call: str, ptr: int, lane: Lane | None, live: OpenCapture | None) -> None:
        """Raise an error if this call can not end the capture."""
        if live is not None and lane is not None and lane.number == 0:
            if live.memory is not None:
                verdict = self.verdicts.judge(_O.END_CAPTURE, stream=ptr)
                raise self.verdicts.refusal(verdict, call, ptr, VARIANTS['end-by-block'])
            with self.state.inside:
                status = self.state.platform.device.stream_status(ptr)
            if live.lost or status is CaptureStatus.INVALIDATED:
                return  # what was kept out was lost with it, and the end says where
            self.lanes.find_work(live)
            escaped = self.kept_out(live) if threading.get_ident() == live.thread else None
            if escaped is not None:
                raise escaped
        verdict = self.verdicts.judge(_O.END_CAPTURE, stream=ptr)
        if verdict.answer.code is Code.cudaErrorStreamCaptureUnjoined and live is not None:
            raise self.lanes.unjoined(live, call)
        if verdict.answer.refused and verdict.answer.code is not Code.cudaErrorStreamCaptureInvalidated:
            raise self.verdicts.refusal(verdict, call, ptr)

    def _ended(self, live: OpenCapture, go: Callable[[], Any]) -> Any:
        """End the capture; if the driver reports that it was lost, raise an error that says where."""
        try:
            return go()
        except RuntimeError as error:
            if getattr(error, 'code', getattr(error, 'status', -1)) == Code.cudaErrorStreamCaptureInvalidated:
                lost = self.verdicts.invalidated(live)
                lost.remedy = without_cap(lost.remedy)  # when the wrapper hears of it, the capture is forgotten
                raise lost from error
            raise

    def _count(self, live: OpenCapture) -> None:
        """Count the nodes and edges of a capture before it ends."""
        self.captures.settle(live)
        device = self.state.platform.device
        with self.state.inside:
            info = device.capture_info(live.origin.ptr)
            if info.status is CaptureStatus.ACTIVE:
                live.recording.node_count = device.graph_node_count(info.graph)
                live.recording.edge_count = device.graph_edge_count(info.graph)

    def keep_out(self, live: OpenCapture) -> None:
        """Keep out this thread's current stream, after a capture was begun by hand on another stream."""
        live.pool_hook = memory_hook(
            self.state.platform.cupy,
            f'capturekit.by_hand {id(live)}',
            malloc_preprocess=lambda **_facts: self.pool_asked(live),
            alloc_preprocess=lambda **_facts: self.pool_grows(live),
            malloc_postprocess=lambda mem_ptr, pmem_id, **_facts: self.pool_gave(live, (mem_ptr, pmem_id)),
            free_postprocess=lambda mem_ptr, pmem_id, **_facts: live.pooled.discard((mem_ptr, pmem_id)),
        )
        live.pool_hook.__enter__()
        if not self.state.policy.holds:
            return
        stream = self.state.current_stream()
        if int(stream.ptr) in LEGACY_HANDLES:  # its handle has another name in a linted run
            self.streams.put_placeholder(live, live.capture.origin)
        elif self.state.ledger.lane(stream.ptr) is None and stream.ptr not in self.state.placeholders:
            self.streams.hold(live, stream)
        self._hear_of_waiting(live)

    def _hear_of_waiting(self, live: OpenCapture) -> None:
        """Note it if the task of asyncio that begins a capture waits (``await``) while it is open: what other tasks
        give to the stream meanwhile is recorded, too. The loop calls back before the task goes on."""
        asyncio: Any = sys.modules.get('asyncio')
        loop: Any = None if asyncio is None else asyncio._get_running_loop()
        task = None if loop is None else asyncio.current_task()
        if task is None:
            return

        def waits() -> None:
            if live.capture in self.state.lives:
                live.note('note', None, _SUSPENDED, _where_it_waits(task))

        loop.call_soon(waits)

    def kept_out(self, live: OpenCapture) -> CaptureError | None:
        """At the end, return the error for work on the streams that were kept out. A refusal that was swallowed comes
        first."""
        found = live.swallowed or live.outside.escaped
        live.swallowed = live.outside.escaped = None
        for ptr in list(live.outside.held):
            error = self.streams.release(ptr, silent=True)
            found = found or error
        if found is not None:
            self.streams.hold_again()
        return found

    def let_go(self, live: OpenCapture) -> None:
        """Release the streams that a capture begun by hand has kept out, just before it ends."""
        if live.memory is not None:
            return
        mine = live.thread == threading.get_ident()
        if live.pool_hook is not None and mine:
            hook, live.pool_hook = live.pool_hook, None
            hook.__exit__(None, None, None)
        for ptr in list(live.outside.held):
            self.streams.release(ptr, silent=True)
        for device, (stream, legacy) in live.devices.placeholders.items():
            self.state.placeholders.pop(stream.ptr, None)
            if mine and self.state.current_stream(device).ptr == stream.ptr:
                with self.state.on(device):
                    self.state.use(legacy)
            self.streams.spare(device).append(stream)

    def keep_out_again(self, live: OpenCapture) -> None:
        """Keep the legacy stream out for an outer capture of this thread, after one begun by hand has ended."""
        if live.memory is not None:
            return
        mine, had_placeholder = self.state.mine(), bool(live.devices.placeholders)
        live.devices.placeholders.clear()
        if mine is None or mine.memory is not None or not had_placeholder:
            return
        if self.state.current_stream().ptr in LEGACY_HANDLES:
            self.streams.put_placeholder(mine, mine.capture.origin)

    def pool_asked(self, live: OpenCapture) -> None:
        """Note an allocation from the pool. Work will follow, unless the caller only makes an empty array."""
        stream, holds = self.state.current_stream(), self.state.policy.holds
        if self.state.inside.active() or (holds and stream.ptr not in live.outside.held) or called() in ALLOCATE_ONLY:
            return
        with self.state.lock:
            if not holds and (live is not self.state.mine() or self.state.ledger.lane(stream.ptr) is not None):
                return
            verdict = self.verdicts.judge(Operation.WORK, stream=stream.ptr)
            if holds:
                rule, of = self.streams.allocators.rule_for(live, stream.ptr)
            else:
                legacy = RULES['legacy-stream'] if verdict.answer.refused else NOT_CURRENT
                rule, of = legacy if stream.ptr in LEGACY_HANDLES else RULES['escaped-work'], stream.ptr
            self._refused_to_pool(live, self.verdicts.refusal(verdict, 'Work', of, rule))

    def pool_grows(self, live: OpenCapture) -> None:
        """Judge the pool's request for device memory, before it is made."""
        if self.state.inside.active() or live.capture.mode is Mode.RELAXED or live.capture not in self.state.lives:
            return
        with self.state.lock:
            verdict = self.verdicts.judge(Operation.UNSAFE)
            if verdict.answer.refused:
                rule = replace(RULES['unsafe-in-mode'], remedy=_ALLOCATED)
                error = self.verdicts.refusal(verdict, "An allocation of CuPy's memory pool", None, rule)
                self._refused_to_pool(live, error)

    def pool_gave(self, live: OpenCapture, key: tuple[int, int]) -> None:
        """Hear that the pool has given memory, which is the capture's where the current stream is a lane of it."""
        lane = self.state.ledger.lane(self.state.current_stream().ptr)
        if lane is not None and lane.capture is live.capture and not self.state.inside.active():
            live.pooled.add(key)

    def _refused_to_pool(self, live: OpenCapture, error: CaptureError) -> None:
        if self.state.policy.holds:
            self.verdicts.has_refused(error)
            refused(error)
        self.state.policy.met(error, live=live)


_ALLOCATED = 'Begin the capture with `stream.begin_capture()`, which is relaxed, or make the arrays before it.'
_SUSPENDED = (
    'the capture was open while its task waited here: what other tasks gave to its stream meanwhile is in the graph'
)
