"""The arguments of ``capture()``, checked where it is called: TypeError and ValueError come before anything begins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from capturekit.graph.executable import Graph
from capturekit.graph.update import check_update
from capturekit.guard import GUARD
from capturekit.guard.entry_points import OWN
from capturekit.launch.memory_group import MemoryGroup, Temporaries
from capturekit.model import errors
from capturekit.model.counters import refused
from capturekit.model.host_reads import Rehearsal
from capturekit.model.ledger import LEGACY_HANDLES, PER_THREAD_HANDLE
from capturekit.model.rules import Mode
from capturekit.recorder.embed import target

_P = ParamSpec('_P')
_R = TypeVar('_R')

MODES = {mode.name.lower(): mode for mode in Mode}
ModeName = Literal['relaxed', 'thread_local', 'global']


class CaptureOptions(TypedDict, total=False):
    """The keywords of :func:`capture` that few captures need: ``ck.capture(check_races=False)``.

    Attributes:
        mode: 'relaxed', 'thread_local' or 'global': CUDA's capture mode, which says from which threads unsafe calls
            (allocations, synchronising streams that are not captured) are refused.
        lines: whether to note which line makes which nodes (``cap.recording.spans``). Recording then takes about 1.3
            times as long. Before Python 3.12 it uses ``sys.settrace``, which keeps the values of the variables of the
            surrounding functions until the next line or the block's end.
        check_races: whether a race raises RaceError at the end of the block: two nodes touch the same memory, one of
            them writing, and no path of edges orders them. See :meth:`Graph.races`. None means yes, except with
            ``into``. A capture with one lane has none and is not searched.
        pool: a ``cupy.cuda.MemoryPool`` for the graph's arrays, instead of a new pool. What the capture takes from it,
            temporaries too, stays taken while the graph lives: graphs of one pool share no memory.
        memory: a :class:`MemoryGroup`: the graph shares the workspaces of cuBLAS with the other graphs of the group,
            and their launches take turns. It can't be combined with ``pool``, ``into``, ``update`` or ``pieces``.
        memory_limit: with ``lanes='auto'``: up to so many bytes the block takes new memory, and above it uses memory
            again. At most half of them are for workspaces of cuBLAS; there is always one workspace. None: 256 MiB, or
            twice what the block has needed at once so far, whichever is more, and up to 128 workspaces of 32 MiB.
        update: a graph that is to run, from the end of the block on, what the block has recorded: its executable graph
            is updated in place, and instantiated anew only where CUDA refuses that. ``cap.graph`` is this graph, and
            ``cap.update`` says which was done. See :meth:`Graph.update`. If the block fails the graph stays as it was.
        into: a ``cuda.core.graph.GraphDefinition`` or a ``cudaGraph_t`` of cuda-bindings that the nodes are added to,
            after its nodes ``after``. Then there is no ``cap.graph``: ``cap.ends`` are the nodes to continue from, and
            the owner of the definition instantiates it. The capture's memory is held until ``cap.close()``. A capture
            that fails takes its nodes out again. It can't be combined with ``rehearsal``.
        after: nodes of ``into``.
    """

    mode: ModeName | Mode
    lines: bool
    check_races: bool | None
    pool: Any
    memory: MemoryGroup | None
    memory_limit: int | None
    update: Graph | None
    into: Any
    after: Any


@dataclass(frozen=True, kw_only=True)
class CheckedOptions:
    """All arguments of a capture but its stream, checked; and where its graph has the arrays of the block."""

    strict: bool = True
    rehearsal: Rehearsal | None = None
    pieces: bool = False
    fuse: bool | Literal['fast'] = False
    lanes: Literal['auto'] | None = None
    watch: bool = False
    mode: ModeName | Mode = 'relaxed'
    lines: bool = True
    check_races: bool | None = None
    pool: Any = None
    memory: MemoryGroup | None = None
    memory_limit: int | None = None
    update: Graph | None = None
    into: Any = None
    after: Any = None
    temporaries: Temporaries = 'alone'

    def __post_init__(self) -> None:
        """Check the types of the arguments, and what does not go together.

        Raises:
            TypeError, ValueError: an argument is not as described. UpdateError, ClosedError: the graph that is to be
                updated is launched in several parts, or closed.
        """
        for name in ('strict', 'pieces', 'watch', 'lines'):
            check_flag(name, getattr(self, name))
        if not isinstance(self.mode, (str, Mode)):
            raise TypeError(f"mode must be 'relaxed', 'thread_local' or 'global', got {self.mode!r}")
        if isinstance(self.mode, str) and self.mode not in MODES:
            raise ValueError(f"mode must be 'relaxed', 'thread_local' or 'global', got {self.mode!r}")
        if self.check_races is not None and not isinstance(self.check_races, bool):
            raise TypeError(f'check_races must be True, False or None, got {self.check_races!r}')
        check_memory(self.pool, self.memory, self.memory_limit)
        if self.update is not None:
            if not isinstance(self.update, Graph):
                raise TypeError(f'update must be a capturekit.Graph or None, got {type(self.update).__name__}')
            if self.into is not None:
                raise ValueError('update= goes neither with into= nor with a rehearsal')
            check_update(self.update._state, 'ck.capture(update=...)')
        if self.into is not None and self.check_races:
            raise ValueError('with into= capturekit does not see all of the graph: races are not looked for')
        target(self.into, self.after)
        if self.rehearsal is not None and not isinstance(self.rehearsal, Rehearsal):
            raise TypeError(f'rehearsal must come from ck.rehearse(), got {type(self.rehearsal).__name__}')
        check_fuse(self.fuse)
        check_lanes(self.lanes, self.memory_limit)
        self._check_together()

    def _check_together(self) -> None:
        """Raise TypeError or ValueError for arguments of which one excludes the other."""
        others = self.into is not None or self.update is not None
        if self.memory is not None and others:
            raise TypeError(f'memory= can not be combined with {"update" if self.into is None else "into"}=')
        if self.memory is not None and self.pieces:
            raise TypeError('memory= can not be combined with pieces=')
        if self.into is not None and self.rehearsal is not None:
            raise ValueError('a rehearsal is checked by launches of capturekit, and with into= your code launches')
        if self.update is not None and self.rehearsal is not None:
            raise ValueError('update= goes neither with into= nor with a rehearsal')
        if others and self.pieces:
            raise ValueError(
                'pieces=True makes several graphs with calls between them: it goes with neither into= nor update='
            )
        if others and self.lanes is not None:
            raise ValueError("lanes='auto' goes neither with into= nor with update=")
        if others and self.fuse:  # the nodes of those graphs are others'
            raise ValueError('fuse= goes neither with into= nor with update=')


def check_capture(stream: Any, given: CaptureOptions, **arguments: Any) -> CheckedOptions:
    """Check the arguments of ``capture()``: their types, and what does not go together."""
    for name in given:
        if name not in CaptureOptions.__annotations__:
            raise TypeError(f'capture() got an unexpected keyword argument {name!r}')
    options = CheckedOptions(**arguments, **given)
    _check_stream(stream)
    return options


def _check_stream(stream: Any) -> None:
    if stream is None:
        return
    if not (hasattr(stream, 'ptr') and hasattr(stream, 'wait_event')):
        raise TypeError(f'stream must be a CuPy stream or None, got {type(stream).__name__}')
    if stream.ptr in LEGACY_HANDLES:
        raise ValueError('the legacy default stream (Stream.null) can not be captured: leave `stream` out')
    if stream.ptr == PER_THREAD_HANDLE:
        raise ValueError('the per-thread default stream is another one in each thread: capture on a stream of your own')


def check_flag(name: str, value: Any) -> None:
    """Raise TypeError unless an argument is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f'{name} must be True or False, got {value!r}')


def check_fuse(fuse: Any) -> None:
    """Raise TypeError unless ``fuse=`` is what fusion knows."""
    if not isinstance(fuse, bool) and fuse != 'fast':
        raise TypeError(f"fuse must be True, False or 'fast', got {fuse!r}")


def check_lanes(lanes: Any, memory_limit: int | None) -> None:
    """Raise ValueError unless ``lanes=`` is 'auto' or None, or if only the limit is given."""
    if lanes not in (None, 'auto'):
        raise ValueError(f"lanes is 'auto' or None, got {lanes!r}")
    if lanes is None and memory_limit is not None:
        raise ValueError("memory_limit= goes with lanes='auto' only")


def check_memory(pool: Any, memory: Any, memory_limit: Any) -> None:
    """Raise TypeError or ValueError unless the memory of a graph is described as it can be."""
    if pool is not None and not callable(getattr(pool, 'malloc', None)):
        raise TypeError(f'pool must be a cupy.cuda.MemoryPool or None, got {type(pool).__name__}')
    if memory is not None and not isinstance(memory, MemoryGroup):
        raise TypeError(f'memory must be a capturekit.MemoryGroup or None, got {type(memory).__name__}')
    if memory is not None and pool is not None:
        raise TypeError('memory= can not be combined with pool=')
    if memory_limit is not None:
        if isinstance(memory_limit, bool) or not isinstance(memory_limit, int):
            raise TypeError(f'memory_limit is a number of bytes, got {memory_limit!r}')
        if memory_limit < 1:
            raise ValueError(f'memory_limit must be 1 or more, got {memory_limit}')


def reports_refusal(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Tell the guard what a method of a capture refuses, because the block may catch it and go on."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except errors.CaptureError as error:
            GUARD.has_refused(error, OWN)
            refused(error)
            raise

    return call
