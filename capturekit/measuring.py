"""``graph.measure()``: when each node of a graph runs, on the device, and how long.

The device tells when marks before and behind each node were passed (:mod:`capturekit.timing`). Marks take time
themselves, and delay what comes behind them. Here that is taken off, from the first node to the last along the edges:

- a node took what lies between its two marks, less what one mark costs: the end mark's own;
- between the last end among the nodes that it comes after and its start lies what lay there on the device, less the
  mark that had to be passed on the way: its start mark's own.

What is left beside these, a wait for a queue of the device, say, stays where it was. So a row of nodes of which each
waits for the one before is put together without its marks, and the span can be held against a launch without any: that
is measured, too, and told. The time of a node has the device's own in it, for starting and ending a kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.changing import _NOT_COPIED, Changeable, _failure, _positive
from capturekit.errors import CudaCallError, UnmatchedError
from capturekit.guard import GUARD
from capturekit.looking import Look, fill
from capturekit.places import here
from capturekit.recording import Timeline
from capturekit.rules import Code
from capturekit.timing import Times

_CALL = 'Graph.measure()'
#: Digits behind the point of a microsecond. The device's clock has steps of about half of one.
_DIGITS = 3


class Measurable(Changeable):
    """``graph.measure``."""

    __slots__ = ()

    _by_name: int
    launch: Any

    def measure(self, launches: int = 20, warmup: int = 3) -> Timeline:
        """Launch the graph, and a copy of it with an event before and behind each node; return when each node ran.

        The answer is also ``recording.timeline``, and all nodes and edges are written into the recording, as by
        :meth:`describe`, so that the recording can be drawn and saved with it. Start and end of each node are medians,
        with what the events cost taken off; the device's clock has steps of about half a microsecond, and a kernel's
        time has in it what the device needs to start and end it, one or two more. Edges that let a kernel begin before
        the end of another one are followed as ordinary ones. On the simulated device times come from a model, which the
        timeline says.

        The graph runs ``2 * (launches + warmup) + 1`` times: once as by :meth:`launch`, then by itself, then as the
        copy. So arrays that it changes in place are changed as often.

        Args:
            launches: how many launches the medians are of, of each kind. warmup: how many go before them.

        Raises:
            TypeError, ValueError: ``launches`` is no whole number of 1 or more, ``warmup`` none of 0 or more.
            UnmatchedError: this thread has a capture open.
            UpdateError: the graph can't be copied: it has conditional or memory nodes, is launched in several parts, or
                CUDA refuses. ClosedError: it is closed. What :meth:`launch` raises, as the graph of a ``@graphed``
                function does. Then nothing has been measured, and the recording is as it was.

        On CuPy's current stream, for which it waits. Takes some microseconds for each node and launch, besides the
        launches. Threads: other calls on the graph wait meanwhile; what else runs on the device makes times longer.
        CUDA Driver API, "Graph Management".
        """
        counts = _positive('launches', launches, 1), _positive('warmup', warmup, 0)
        if GUARD.occupied():
            rule = 'It launches the graph and waits for it, and this thread has a capture or a rehearsal open.'
            raise UnmatchedError(_CALL, location=here(), rule=rule, remedy='Measure outside of it.')
        with self._lock:
            self._must_be_whole(_CALL)
            with self._relaxed():
                self._must_be_copied(self._look_in())
        self.launch()
        with self._lock:
            self._must_be_whole(_CALL)
            stream = self._current().ptr
            with self._relaxed():
                look = self._look_in()
                times = self._times(stream, *counts)
            self._by_name += sum(counts)
            found = timeline(times, look.numbers, look.edges, len(look.nodes))
            fill(self.recording, look)
            self.recording.timeline = found
            return found

    @staticmethod
    def _must_be_copied(look: Look) -> None:
        """Refuse what CUDA does not copy."""
        for node in look.nodes:
            if node.kind in _NOT_COPIED:
                rule = f'It copies the graph, and CUDA copies none with conditional or memory nodes: {node}.'
                raise _failure(_CALL, rule, 'Measure a graph of what its bodies do, or put events around a launch.')

    def _times(self, stream: int, launches: int, warmup: int) -> Times:
        off = [self._names.handles[number] for number in sorted(self._names.off)]
        graph, executable, heeds = int(self._made.graph), int(self._made.graphExec), self.recording.by_priority
        try:
            found: Times = self._device.graph_measure(graph, executable, stream, launches, warmup, off, heeds)
        except CudaCallError as error:
            if error.code != Code.cudaErrorNotSupported:
                raise
            remedy = 'Put events around a launch, or a newer driver under it.'
            raise _failure(_CALL, f'CUDA can not copy or mark this graph: {error}.', remedy, error) from None
        return found


def timeline(times: Times, numbers: Mapping[int, int], edges: Iterable[tuple[int, int]], count: int) -> Timeline:
    """What the device told, by the nodes' numbers, with what the marks cost taken off."""
    mark = float(np.median(times.mark)) if times.mark else 0.0
    raw = {numbers[handle]: np.array(pairs) for handle, pairs in times.nodes.items()}
    without = _without_marks(raw, edges, count, mark, mark * times.between)
    zero = min((float(np.median(start)) for start, _end in without.values()), default=0.0)
    found = Timeline(
        times.source,
        len(times.plain),
        round(float(np.median(times.plain)), _DIGITS),
        0.0,
        round(float(np.median(times.marked)), _DIGITS),
        round(mark, _DIGITS),
        [None] * count,
        [0.0] * count,
    )
    for number, (start, end) in without.items():
        first, last = (round(float(np.median(one)) - zero, _DIGITS) for one in (start, end))
        found.nodes[number] = (first, last)
        low, high = np.percentile(end - start, [25, 75])
        found.spread_us[number] = round(float(high - low), _DIGITS)
    found.span_us = max((node[1] for node in found.nodes if node is not None), default=0.0)
    return found


_Stamps = NDArray[np.float64]


def _without_marks(
    raw: Mapping[int, _Stamps], edges: Iterable[tuple[int, int]], count: int, inside: float, between: float
) -> dict[int, tuple[_Stamps, _Stamps]]:
    """Start and end of each node in each launch. ``inside``: what marks add to one; ``between``: on the way to it."""
    before: dict[int, set[int]] = {number: set() for number in range(count)}
    for a, b in edges:
        before[b].add(a)
    ends: dict[int, tuple[_Stamps, _Stamps]] = {}
    found: dict[int, tuple[_Stamps, _Stamps]] = {}
    zeros = np.zeros(len(next(iter(raw.values()), ())))
    for number in TopologicalSorter(before).static_order():
        told = [ends[a] for a in before[number]]
        # the start mark of a first node comes behind a mark, too, wherever those of the others come
        ended = _last([raw_end for raw_end, _end in told]) if told else zeros + (inside - between)
        start = _last([end for _raw_end, end in told]) if told else zeros
        if number in raw:
            starts, stops = raw[number].T
            start = start + np.maximum(starts - ended - between, 0)
            found[number] = start, start + np.maximum(stops - starts - inside, 0)
            ends[number] = stops, found[number][1]
        else:
            ends[number] = ended, start
    return found


def _last(ends: list[_Stamps]) -> _Stamps:
    found: _Stamps = np.max(ends, axis=0)
    return found
