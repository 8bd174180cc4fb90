"""The launches of a graph: what ``graph.launch`` does, and what is launched in its place for a while.

All that the function behind ``graph.launch`` needs is bound to it, because it is called very often. It holds neither
the graph nor its state: who keeps only that function does not keep the graph.
"""

from __future__ import annotations

import _thread
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from capturekit.driver.cuda import stream_handle
from capturekit.graph.refused import closed
from capturekit.graph.state import GraphState, Owner
from capturekit.model.errors import AssumptionError

LAUNCH = """Launch on ``stream`` (a CuPy stream or any object with ``__cuda_stream__``), or CuPy's current one.

Asynchronous: the call returns at once; but a graph recorded with a rehearsal waits for its checks, and one with seams
for what they wait for.

Raises:
    ClosedError: the graph was closed.
    AssumptionError: a value that was assumed while recording is different now; nothing after it has run.
    TypeError: ``stream`` is not a stream. ValueError: it belongs to another device.
    UnsupportedCallError: the stream is being captured (900).
    EscapedWorkError, LegacyStreamError: this thread has a capture open, and the stream is not in it.
"""
_CALL = 'Graph.launch()'


def refuse_launch() -> None:
    """The launch of a closed graph."""
    raise closed(_CALL)


# -- the function behind graph.launch -----------------------------------------------------------------------------


def launch_of(owner: Owner, launch: Callable[[], None]) -> Callable[..., None]:
    """Return the function behind ``graph.launch``, and let ``state.bind`` change what it does: at first ``launch``.

    It keeps the owner of the state, so that it may be kept alone.
    """
    plan = owner.state.plan
    made = _in_one(owner, launch) if plan is None or plan.plain else lambda stream=None: _follow_plan(owner, stream)
    made.__name__, made.__qualname__, made.__doc__ = 'launch', 'Graph.launch', LAUNCH
    return made


def _in_one(owner: Owner, launch: Callable[[], None]) -> Callable[..., None]:
    """It takes a lock only if there is another thread, because a lock would cost an eighth of a launch."""
    state = owner.state
    captures, threads = state.gate.ledger.captures, _thread._count
    held = weakref.ref(state)
    launches, current, turns = 0, state.current, _turns_of(state)

    def fast(stream: Any = None) -> None:
        nonlocal launches
        if stream is not None or captures or threads() or (turns is not None and turns.last is not current()):
            on_stream(stream)
            return
        launch()
        launches += 1

    def on_stream(stream: Any) -> None:
        launch_on(owner.state, stream)

    def bind(to: Callable[[], None] = refuse_launch) -> None:
        nonlocal launch, turns
        found = held()
        launch, turns = to, None if to is refuse_launch or found is None else _turns_of(found)

    state.quick, state.bind = lambda: launches, bind
    return fast


def _turns_of(state: GraphState) -> Any:
    """The turns of a graph's launches, whose ``last`` is the stream on which they need not be taken; None for none."""
    turns = state.memory.turns
    return turns[0] if len(turns) == 1 else _SEVERAL if turns else None


#: Several turns: no stream is the last one of all of them.
_SEVERAL = SimpleNamespace(last=None)


def _follow_plan(owner: Owner, stream: Any) -> None:
    """Launch a graph step by step."""
    state = owner.state
    ptr = _told(state, stream, _CALL)
    with state.lock:
        state.must_be_open(_CALL)
        assert state.plan is not None
        with state.inside():
            try:
                if ptr == state.current().ptr:
                    state.plan.run()
                else:
                    state.plan.run_on(ptr, int(getattr(stream, 'device_id', -1)))
            except AssumptionError as error:
                error.recording = state.recording
                raise


def _told(state: GraphState, stream: Any, call: str) -> int:
    """The handle of the stream to launch or upload on, None being the current one. The guard is told of it."""
    ptr = state.current().ptr if stream is None else handle_of(state, stream)
    state.must_be_open(call)
    if state.gate.ledger.captures:
        state.gate.launching(call != _CALL, ptr)
    return int(ptr)


def handle_of(state: GraphState, stream: Any) -> int:
    """The handle of a stream that the graph can be launched on. Raises TypeError and ValueError."""
    device_id = getattr(stream, 'device_id', -1)
    if isinstance(device_id, int) and device_id not in (-1, state.device_id, *state.recording.devices):
        raise ValueError(f'the graph lives on device {state.device_id}, the stream on device {device_id}')
    return stream_handle(stream)


# -- one launch ---------------------------------------------------------------------------------------------------


def launch_on(state: GraphState, stream: Any = None, following: Callable[[], None] | None = None) -> None:
    """Launch after other graphs that use the same memory, and then do what is ``following`` on that stream."""
    ptr = _told(state, stream, _CALL)
    with state.lock:
        if state.made is None:
            raise closed(_CALL)
        if following is None and not state.memory.turns:
            _start(state, ptr)
            state.by_name += 1
            return
        with state.memory.turn(ptr):
            _start(state, ptr)
            state.by_name += 1
            if following is not None:
                following()


def _start(state: GraphState, stream: int) -> None:
    """The first time, with the comparison."""
    altered = state.trial
    if altered is not None:
        altered.launch(state, stream)
    else:
        state.device.graph_launch(state.made.graphExec, stream)


def upload(state: GraphState, stream: Any) -> None:
    """Put the graph on the device before its first launch."""
    ptr = _told(state, stream, 'Graph.upload()')
    with state.lock:
        state.must_be_open('Graph.upload()')
        plan = state.plan
        parts = [state.made.graphExec] if plan is None or plan.plain else [p.executable for p in plan.parts]
        for executable in parts:
            state.device.graph_upload(executable, ptr)


# -- what is bound ------------------------------------------------------------------------------------------------


def plain_launch(state: GraphState) -> Callable[[], None]:
    """The launch of the present executable graph."""
    launch, x, now = state.device.graph_launch, state.made.graphExec, state.current
    return lambda: launch(x, now().ptr)


def aim(state: GraphState) -> None:
    """Bind ``graph.launch`` to the present executable graph, or to the first launch if that is to be compared."""
    altered = state.trial
    state.bind(plain_launch(state) if altered is None else _compared_first(state, altered.call))


def _compared_first(state: GraphState, call: str) -> Callable[[], None]:
    """The launch of a graph that ``call`` has changed, whose first launch is compared; the state is not held by it."""
    held = weakref.ref(state)

    def first() -> None:
        found = held()
        if found is None:
            raise closed(call)
        with found.lock:
            if found.made is None:
                raise closed(call)
            stream = found.current().ptr
            with found.memory.turn(stream):
                _start(found, stream)

    return first
