"""The end of a capture that is still good: it is checked and ended, and its graph is instantiated."""

from __future__ import annotations

from contextlib import suppress

from capturekit.guard import GUARD, OpenCapture
from capturekit.guard.captures import end_driver_capture
from capturekit.guard.conditional_bodies import without_a_body
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.launch.outside_arrays import keep, keep_named, keep_touched
from capturekit.model import errors
from capturekit.model.rules import CaptureStatus
from capturekit.model.source_line import Place
from capturekit.recorder.embed import EmbedTarget

_WHOEVER = (
    'lanes have different priorities: they count where the definition is instantiated with '
    'cudaGraphInstantiateFlagUseNodePriority'
)


def check(live: OpenCapture) -> None:
    """Raise if the capture can't become a graph. With ``strict=False`` open lanes are joined instead."""
    GUARD.verdicts.check(live)
    if live.lost:
        raise GUARD.verdicts.invalidated(live)
    escaped = live.outside.escaped or GUARD.collectives.open_group(live) or live.swallowed
    live.outside.escaped = live.swallowed = None
    try:
        if escaped is not None:
            raise escaped
    finally:
        del escaped  # its traceback holds this frame
    GUARD.joins.find_work(live)
    if live.decisions.broken is not None:
        raise _half_a_body(*live.decisions.broken)
    if live.decisions.unentered:
        raise without_a_body(live.decisions.unentered[0])
    GUARD.left.check(live)
    if live.capture.unjoined():
        if live.strict:
            raise GUARD.joins.unjoined(live)
        GUARD.joins.join_all(live)
    GUARD.joins.idle(live)


def end(live: OpenCapture, into: EmbedTarget | None) -> ExecutableGraph | EmbedTarget | None:
    """End the capture; return its graph, or None if :func:`instantiate` has to end it.

    The caller holds the guard's lock, so only the steps are done here that other threads must not interrupt.
    """
    if live.parts.plan is not None:
        made = _end_parts(live)
        keep_outside(live, [graph for part in live.parts.plan.parts for graph in part.graphs])
        return made
    if into is not None:
        return _end_into(live, into)
    device = live.platform.device
    with GUARD.inside:
        info = device.capture_info(live.origin.ptr)
        live.recording.node_count = device.graph_node_count(info.graph)
        live.recording.edge_count = device.graph_edge_count(info.graph)
    live.capture.status = CaptureStatus.NONE
    return None


def instantiate(live: OpenCapture, definition_only: bool) -> ExecutableGraph:
    """End a capture that has made a single graph, and instantiate it unless only the definition is needed."""
    by_priority = live.recording.by_priority = live.by_priority
    if definition_only:
        made = _defined(live)
    elif by_priority:  # CuPy would instantiate without priorities
        made = _defined(live)
        with GUARD.inside:
            made = made.instantiated(live.platform.device, True)
    else:
        made = ExecutableGraph.of_cupy(GUARD.own('cupy.cuda.stream._BaseStream.end_capture', live.origin))
    keep_outside(live, [made.graph])
    return made


def _defined(live: OpenCapture) -> ExecutableGraph:
    """End the capture as CuPy does, without instantiating."""
    with GUARD.inside:
        graph = end_driver_capture(live)
    called, live.origin._graph_host_funcargs = live.origin._graph_host_funcargs, None
    return ExecutableGraph.of_definition(live.platform.device, graph, called)


def _end_into(live: OpenCapture, into: EmbedTarget) -> EmbedTarget:
    """End a capture whose nodes stay in the graph that they were added to."""
    device = live.platform.device
    with GUARD.inside:
        fresh = set(device.graph_nodes(into.handle)[into.count :])
        followed = {a for a, b in device.graph_edges(into.handle) if b in fresh}  # by others, which are ends or before
        ends = device.capture_info(live.origin.ptr).dependencies
        into.ends = tuple(node for node in ends if node not in followed)
        live.recording.node_count += device.graph_node_count(into.handle) - into.count
        live.recording.edge_count += device.graph_edge_count(into.handle)
    if live.by_priority:
        live.note('note', None, _WHOEVER, live.at)
    live.capture.status = CaptureStatus.INVALIDATED  # until it has ended well: the graph is gone otherwise
    with GUARD.inside:
        end_driver_capture(live)
    live.capture.status = CaptureStatus.NONE
    keep_outside(live, [into.handle], into.count)
    return into


def _end_parts(live: OpenCapture) -> ExecutableGraph:
    """End the last part, and instantiate every part."""
    GUARD.parts.end_part(live)
    assert live.parts.plan is not None
    if live.parts.plan.checks is not None:
        live.parts.plan.checks.complete()
    with GUARD.inside:
        for part in live.parts.plan.parts:
            live.parts.plan.complete(part, live.by_priority)
    live.recording.by_priority = live.by_priority
    return ExecutableGraph.of_plan(live.parts.plan, live.origin._graph_host_funcargs)


def keep_outside(live: OpenCapture, graphs: list[int], first: int = 0) -> None:
    """Keep the outside arrays that the graph uses; in a strict capture, raise if one of them is already gone."""
    if live.collectives.addresses and live.memory is not None:
        keep_named(live.collectives.addresses, live.memory, live.platform.cupy.ndarray)
    if live.memory is None:
        return
    if live.platform.simulated:
        held, live.recorder.arrays = live.recorder.arrays, []
        with GUARD.inside, suppress(errors.CudaCallError):
            keep_touched(live.platform.device, graphs, live.memory, held, live.platform.cupy.ndarray)
        return
    reader = live.platform.device.reader
    if reader is None:
        return
    held, live.recorder.arrays = live.recorder.arrays, []
    lost = keep(reader, graphs, live.memory, held, live.platform.cupy.ndarray, first)
    for kernel, address in lost:
        text = f'{kernel} uses memory at {address:#x} whose array is gone already'
        live.note('note', None, text, live.at)
    if lost and live.strict:
        raise errors.FreedMemoryError(
            f'{lost[0][0]} uses memory at {lost[0][1]:#x}',
            location=live.at,
            rule='The array that was there is gone already: other arrays may get its memory before a launch.',
            remedy='Keep a name for every array that the block reads, outside of the block.',
        )


def _half_a_body(at: Place | None, what: str) -> errors.UnsupportedCallError:
    return errors.UnsupportedCallError(
        'A body that an exception has left',
        location=at,
        rule=f'The exception was caught inside the capture: {what}. What was recorded around it '
        'would be launched as it was left there.',
        remedy='Let the exception end the capture, or catch it inside the body.',
    )
