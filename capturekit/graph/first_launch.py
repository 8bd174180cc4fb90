"""The first launch of a graph with other edges: it runs with the old ones as well, and the results are compared.

The memory that the graph may write is copied, the graph runs as it was recorded, the memory is put back, and the graph
runs as it is now. Both start from the same bytes, so that every byte has to be the same afterwards; but for numbers
that may be rounded otherwise (:class:`capturekit.fusion.rounded_memory.RoundedNumbers`), which have a tolerance.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from capturekit.analysis.node_memory import ON_DEVICE, FreeMemory
from capturekit.analysis.races import MemoryBlocks
from capturekit.driver.cuda import Platform, StreamHandle
from capturekit.launch.current_stream import current_for_now
from capturekit.launch.executable_graph import ExecutableGraph
from capturekit.model.counted import counted
from capturekit.model.counters import LOG
from capturekit.model.source_line import here

#: What memory is filled with that nobody should read: a number that is not one, in floating point.
_FILLED = 0xFF


@dataclass(eq=False)
class FirstLaunch:
    """One launch that is compared. ``recorded`` is the graph as it was; ``ranges`` hold all that a launch may write.

    ``again``: a launch also writes arrays that are not known, so that where they differ the graph as it was runs again.
    ``unseen``: bytes in the ranges that nobody can read, in order; they may differ.
    ``rounded``: numbers that may be rounded otherwise, in the order in which they are written. ``besides``: what the
    launch has shown of them, in words to be added where all else was the same.
    ``gone``: memory of the recorded graph that the other one does not use: before it runs, this is filled with
    something else, which must be there afterwards. A node that still used it would show.
    ``passing``: memory that the graph writes before it reads it, and nobody else reads. It is filled as well, because
    an earlier launch may have left there what a node that runs too early should find.
    """

    platform: Platform
    recorded: ExecutableGraph
    ranges: Sequence[tuple[int, int]]
    blocks: MemoryBlocks
    again: bool = False
    unseen: Sequence[tuple[int, int]] = ()
    rounded: Sequence[Any] = ()
    besides: str = ''
    gone: Sequence[tuple[int, int]] = ()
    passing: Sequence[tuple[int, int]] = ()

    def run(self, executable: int, stream: int) -> str:
        """Launch both on a stream, and wait for it.

        Return '' where they wrote the same. Else return where they differ; then the memory is as the old edges left it.
        Raises MemoryError where there is no room for the copies: then nothing has been launched.
        """
        cuda = self.platform.cupy.cuda
        other = cuda.Stream.from_external(StreamHandle(stream))
        with nullcontext() if stream == cuda.get_current_stream().ptr else current_for_now(cuda, other):
            return self._run(executable, stream)

    def _run(self, executable: int, stream: int) -> str:
        gone, passing = ([bytes_at(self.platform, *one) for one in several] for several in (self.gone, self.passing))
        free = FreeMemory([*self.gone, *self.passing])
        ranges = [rest for one in self.ranges for rest in free.rest(*one)]
        views = [bytes_at(self.platform, low, high) for low, high in ranges]
        before, results = [view.copy() for view in views], [view.copy() for view in views]

        def launch(executable: int) -> None:
            self.platform.device.graph_launch(executable, stream)
            if any(isinstance(view, np.ndarray) for view in views):
                self.platform.device.stream_synchronize(stream)

        launch(self.recorded.graphExec)
        for view, old, result in zip(views, before, results):
            result[...] = view
            view[...] = old
        self._fill(passing)
        filled = self._fill(gone)
        launch(executable)
        apart = [int(self._differ(low, *two).sum()) for (low, _high), *two in zip(ranges, views, results)]
        if any(apart) and self.rounded:
            apart = self._excused(apart, ranges, views, results)
        used = any(int((view != filled[: len(view)]).sum()) for view in gone)
        if not any(apart) and not used:
            self.platform.device.stream_synchronize(stream)  # the old executable graph may go now
            return ''
        for view, old, result in zip(views, before, results):
            view[...] = old if self.again else result
        if self.again:
            launch(self.recorded.graphExec)
            self.platform.device.stream_synchronize(stream)
        if not any(apart):
            return 'memory was written that no node should use any more'
        low, high = next(one for one, count in zip(ranges, apart) if count)
        how = ' by more than rounding' if self.rounded else ''
        return f'{counted(sum(apart), "byte")} differ{how}, the first in {self.blocks.words(low, high - low)}'

    def _fill(self, gone: Sequence[Any]) -> Any:
        """Fill memory with bytes that nobody should read; return as many of them as the largest piece has."""
        filled = self.platform.cupy.empty(max(map(len, gone), default=0), np.uint8)
        if gone:
            filled.data.memset_async(_FILLED, len(filled))
        for view in gone:
            view[...] = filled[: len(view)]
        return filled

    def _differ(self, low: int, view: Any, result: Any) -> Any:
        """Which bytes differ that somebody can read, of a range that begins at an address."""
        differ = view != result
        for begin, end in self.unseen if self.unseen and differ.any() else ():
            if begin < low + len(view) and end > low:
                differ[max(begin - low, 0) : end - low] = False
        return differ

    def _excused(
        self, apart: Sequence[int], ranges: Sequence[tuple[int, int]], views: Sequence[Any], results: Sequence[Any]
    ) -> list[int]:
        """How many bytes differ that have to be the same."""
        found = []
        for count, view, result, (low, high) in zip(apart, views, results, ranges):
            pieces = [one for one in self.rounded if low <= one.low and one.high <= high] if count else []
            if pieces:
                now, then = (np.frombuffer(one.tobytes(), np.uint8) for one in (view, result))
                differ = self._differ(low, now, then)
                every = differ.copy()
                for piece in pieces:
                    part = slice(piece.low - low, piece.high - low)
                    piece.keep(differ[part], every[part], then[part], now[part])
                count = int(differ.sum())
            found.append(count)
        if rounded := sum(apart) - sum(found):
            self.besides = f', but for {counted(rounded, "byte")} of numbers that are rounded otherwise'
        return found


def bytes_at(platform: Platform, low: int, high: int) -> Any:
    """Memory as an array of bytes: of CuPy's, or of NumPy's where it is the host's."""
    cuda = platform.cupy.cuda
    if cuda.runtime.pointerGetAttributes(low).type not in ON_DEVICE:
        return np.frombuffer((ctypes.c_ubyte * (high - low)).from_address(low), np.uint8)
    memory = cuda.UnownedMemory(low, high - low, None, cuda.Device().id)
    return platform.cupy.ndarray((high - low,), np.uint8, cuda.MemoryPointer(memory, 0))


def warn_of(words: str, by_calls: bool) -> None:
    """Warn at the user's line; of a graph that calls of a graphed function launch, tell the log instead."""
    if by_calls:
        LOG.warning('%s', words)
    elif (at := here()) is None:
        warnings.warn(words, RuntimeWarning, stacklevel=3)
    else:
        warnings.warn_explicit(words, RuntimeWarning, at.file, at.line)
