"""``graph.measure()``: when each node of a graph runs, on the device, and how long.

A profiler (:mod:`capturekit.driver.cupti`) stamps start and end of each node, and delays each. The whole delay is
known, because the graph is launched without it as well: all gaps between nodes are shortened by one factor, and if that
is not enough, the rest is taken off the nodes. Without a profiler, events before and after each node (*marks*) are
timed (:mod:`capturekit.driver.event_timing`). What a mark costs is taken off the duration of each node, and off the gap
between the last end of the nodes that it waits for and its start. All other gaps stay: a wait for a queue of the
device, say. So a row of nodes is put together without its marks, and its span can be compared with a launch without
them. :meth:`Graph.measure` tells how far off either is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from capturekit.analysis.node_view import fill
from capturekit.driver.cupti import Untraceable
from capturekit.driver.event_timing import Times
from capturekit.graph.edit import NOT_COPIED
from capturekit.graph.refused import refused
from capturekit.graph.state import GraphState, must_be_whole, positive
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError, UnmatchedError
from capturekit.model.recording import Timeline
from capturekit.model.rules import Code
from capturekit.model.source_line import here

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CALL = 'Graph.measure()'
#: Decimal places of a microsecond. The device's clock has steps of about half of one.
_DIGITS = 3
#: Two events can not be distinguished below this time, in microseconds: half a step of their clock.
_STEP = 0.25
_WAYS = ('profiler', 'events')


def measure(state: GraphState, launch: Callable[[], None], launches: int, warmup: int, by: str | None) -> Timeline:
    """Launch the graph, and again while its nodes are timed; return when each node ran. ``launch`` is the graph's."""
    counts = positive('launches', launches, 1), positive('warmup', warmup, 0)
    several = len(state.recording.devices) > 1
    _must_be_measurable(state, by)
    with state.lock:
        must_be_whole(state, _CALL)
        with state.relaxed():
            for node in state.look().nodes:
                if node.kind in NOT_COPIED:
                    rule = f'It copies the graph, and CUDA copies none with conditional or memory nodes: {node}.'
                    raise refused(_CALL, rule, 'Measure a graph of what its bodies do, or put events around a launch.')
    launch()
    with state.lock:
        must_be_whole(state, _CALL)
        stream = state.current().ptr
        with state.relaxed():
            look = state.look()
            with state.memory.turn(stream):
                times = _times(state, stream, *counts, by, several)
        state.by_name += sum(counts)
        found = timeline(times, look.numbers, look.edges, len(look.nodes))
        fill(state.recording, look)
        state.recording.timeline = found
        return found


def _must_be_measurable(state: GraphState, by: str | None) -> None:
    """Refuse an unknown way of measuring, an open capture, and events of several devices."""
    if by is not None and not isinstance(by, str):
        raise TypeError(f"by: 'profiler', 'events' or None, not {by!r}")
    if by not in (None, *_WAYS):
        raise ValueError(f"by: 'profiler', 'events' or None, not {by!r}")
    if state.gate.occupied():
        rule = 'It launches the graph and waits for it, and this thread has a capture or a rehearsal open.'
        raise UnmatchedError(_CALL, location=here(), rule=rule, remedy='Measure outside of it.')
    devices = state.recording.devices
    if len(devices) > 1 and by == 'events':
        rule = f'The graph is of devices {devices}, and their events have no common clock.'
        raise refused(_CALL, rule, "Measure it by='profiler', whose clock is one for all.")


def _times(state: GraphState, stream: int, launches: int, warmup: int, by: str | None, several: bool) -> Times:
    off = [state.names.handles[number] for number in sorted(state.names.off)]
    graph, executable, heeds = state.made.graph, state.made.graphExec, state.recording.by_priority
    try:
        ask = state.device.graph_measure
        found: Times = ask(graph, executable, stream, launches, warmup, off, by, heeds, several)
    except Untraceable as error:
        remedy = "Leave `by` out, or write `by='events'`."
        if several:
            remedy = "Events can't do it: measure a graph of each device's part, or put events around a launch."
        raise refused(_CALL, f"The profiler can't be used: {error}.", remedy, error) from None
    except CudaCallError as error:
        if error.code != Code.cudaErrorNotSupported:
            raise
        remedy = 'Put events around a launch, or a newer driver under it.'
        raise refused(_CALL, f'CUDA can not copy or mark this graph: {error}.', remedy, error) from None
    return found


def timeline(times: Times, numbers: Mapping[int, int], edges: Iterable[tuple[int, int]], count: int) -> Timeline:
    """Make a timeline of the measured times, by the nodes' numbers, with the cost of measuring taken off."""
    mark = float(np.median(times.mark)) if times.mark else 0.0
    raw = {numbers[handle]: np.array(pairs) for handle, pairs in times.nodes.items()}
    order = Order(count, edges)
    before = {number: order.before_each[number] for number in order.sequence}
    if times.by == 'profiler':
        without, taken = _as_launched(raw, before, float(np.median(times.plain)) - mark)
    else:
        without, taken = _without_marks(raw, before, mark), mark
    zero = min((start for start, _end in without.values()), default=0.0)
    found = Timeline(
        times.source,
        len(times.plain),
        round(float(np.median(times.plain)), _DIGITS),
        0.0,
        round(float(np.median(times.marked)), _DIGITS) if times.marked else 0.0,
        round(taken, _DIGITS),
        [None] * count,
        [0.0] * count,
        times.by,
        times.note,
    )
    for number, (start, end) in without.items():
        found.nodes[number] = (round(start - zero, _DIGITS), round(end - zero, _DIGITS))
        low, high = np.percentile(raw[number][:, 1] - raw[number][:, 0], [25, 75])
        found.spread_us[number] = round(float(high - low), _DIGITS)
    found.span_us = max((node[1] for node in found.nodes if node is not None), default=0.0)
    return found


_Stamps: TypeAlias = 'NDArray[np.float64]'
_Spans = dict[int, tuple[float, float]]


# -- by the profiler ----------------------------------------------------------------------------------------------


def _as_launched(raw: Mapping[int, _Stamps], before: Mapping[int, list[int]], span: float) -> tuple[_Spans, float]:
    """Start and end of each node, so that all of them take ``span`` or less; and how much was taken off on average.

    The profiler's delay comes from writing one stamp after the other, so it lies between nodes: all gaps are shortened
    by one factor. In a row no gap may be left; then the rest is taken off the nodes.
    """
    medians = {number: np.median(stamps, axis=0).tolist() for number, stamps in raw.items()}
    seen = {number: (float(start), float(end)) for number, (start, end) in medians.items()}

    def between(part: float) -> _Spans:
        return _held_up_less(seen, before, 1 - part, 0.0)

    def inside(off: float) -> _Spans:
        return _held_up_less(seen, before, 0.0, off)

    if _last(seen) <= span + _STEP:
        return seen, 0.0
    if _last(between(1.0)) <= span + _STEP:
        found = between(_least(between, span, 1.0))
    else:
        found = inside(_least(inside, span, _last(seen)))
    was, now = _waits(seen, before), _waits(found, before)
    shorter = sum((was[n][1] - was[n][0] + was[n][2]) - (now[n][1] - now[n][0] + now[n][2]) for n in seen)
    return found, shorter / len(seen)


def _held_up_less(seen: _Spans, before: Mapping[int, list[int]], part: float, off: float) -> _Spans:
    """Shorten the gaps before nodes to ``part`` of their length, and the nodes by ``off``."""
    found: _Spans = {}
    ready: dict[int, float] = {}
    for number, (first, last, waited) in _waits(seen, before).items():
        start = max((ready[a] for a in before[number]), default=0.0)
        if number in seen:
            start = max(start + (part * waited if waited > 0 else waited), 0.0)
            found[number] = start, start + max(last - first - off, 0.0)
            start = found[number][1]
        ready[number] = start
    return found


def _waits(spans: _Spans, before: Mapping[int, list[int]]) -> dict[int, tuple[float, float, float]]:
    """Start and end of each node, and the gap between the last end of its predecessors and its start."""
    found: dict[int, tuple[float, float, float]] = {}
    for number, earlier in before.items():
        ended = max((found[a][1] for a in earlier), default=0.0)
        start, end = spans.get(number, (ended, ended))
        found[number] = start, end, start - ended
    return found


def _last(spans: _Spans) -> float:
    return max((end for _start, end in spans.values()), default=0.0)


def _least(of: Callable[[float], _Spans], span: float, most: float) -> float:
    """The least value for which all nodes together take ``span``, or as long as they take for ``most``."""
    low, high, span = 0.0, most, max(span, _last(of(most)))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _last(of(middle)) <= span else (middle, high)
    return high


# -- by events ----------------------------------------------------------------------------------------------------


def _without_marks(raw: Mapping[int, _Stamps], before: Mapping[int, list[int]], mark: float) -> _Spans:
    """Start and end of each node. A mark is added to each node, and one on the way to it."""
    ends: dict[int, tuple[_Stamps, _Stamps]] = {}
    found: _Spans = {}
    zeros = np.zeros(len(next(iter(raw.values()), ())))
    for number, earlier in before.items():
        ended: Any = np.max([ends[a][0] for a in earlier] or [zeros], axis=0)
        start: Any = np.max([ends[a][1] for a in earlier] or [zeros], axis=0)
        if number in raw:
            starts, stops = raw[number].T
            start = start + np.maximum(starts - ended - mark, 0)
            end = start + np.maximum(stops - starts - mark, 0)
            found[number] = float(np.median(start)), float(np.median(end))
            ends[number] = stops, end
        else:
            ends[number] = ended, start
    return found
