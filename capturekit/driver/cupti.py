"""The durations of a graph's nodes, measured by NVIDIA's profiling library CUPTI: no node is added to the graph.

The device stamps start and end of every kernel, copy and memset itself; CUPTI hands the stamps out with the number of
the graph's node. The lanes stay unchanged, and a kernel's time is within about one microsecond of what its own
code measures. It is not free either: launches take longer while it watches, and more so with more lanes. This file
corrects nothing; that is done where the edges are known (:mod:`capturekit.graph.measure`).

CUPTI is a separate wheel (``nvidia-cuda-cupti``), which PyTorch also installs. It serves one profiler at a time; if it
is not available, :mod:`capturekit.driver.event_timing` puts events around the nodes. Only fields of its records are
read that have had the same offsets since CUDA 11.6.

As long as it is attached, all launches of the process take longer, even when nothing is recorded: on an H100, a graph
of 320 nodes on 32 lanes took 5 times as long. So it is attached for one measurement and detached after it. This must
not happen while another thread uses the device: in a test, measuring hung while another thread launched. And an
executable graph that was made or launched while CUPTI recorded must be destroyed before: one that was launched later
ended in ``cudaErrorLaunchFailure``. So if Python has other threads, CUPTI is used only on request; if another graph was
launched, it stays attached, and the times say so. Each time it is attached it takes about half a megabyte of device
memory, which is not given back.

It must not be detached, either, once calls were watched in this process (:mod:`capturekit.driver.cupti_calls`): after
``cuptiFinalize``, calls of new threads ended the process in 27 of 45 runs, in CUPTI or by corrupted memory; without it
none of 18 ended (driver 580.159.04, CUPTI 13).
CUPTI User's Guide: "CUPTI Activity API", "CUPTI Callback API", ``cuptiFinalize``.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from capturekit.driver.event_timing import TIMED, Exit, Launched, Marker, Times, measured, plain, timed_nodes
from capturekit.driver.node_reader import Reader
from capturekit.driver.node_writer import NodeVerbs
from capturekit.model.counted import counted
from capturekit.model.errors import CudaCallError
from capturekit.model.progress import progress
from capturekit.model.rules import Code

#: ``CUpti_ActivityKind`` of each kind of record, and the offsets of start, end and node in it: kernels, copies,
#: memsets, copies between devices, host functions.
_RECORDS = {10: (16, 24, 144), 1: (16, 24, 64), 2: (16, 24, 64), 22: (16, 24, 72), 56: (40, 48, 24)}
#: ``CUPTI_ACTIVITY_KIND_KERNEL``: the kind of record of kernels that were requested to run one after the other.
_ALONE = 3
#: Host functions are recorded by newer versions only.
_HOST, _INVALID_KIND = 56, 14
#: ``CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED``.
_OTHERS = 39
_RESOURCE, _CLONED = 3, 20
_BUFFER = 1 << 20
STAYS = 'Other graphs were launched during it, so CUPTI stays attached, and launches take longer from now on.'
WATCHED = 'Calls were watched in this process, so CUPTI stays attached, and launches take longer from now on.'


class Untraceable(CudaCallError):
    """CUPTI can't measure this graph, or is not available. ``reason`` is one sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(Code.cudaErrorNotSupported, 'CUPTI')
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class GraphCopy(ctypes.Structure):
    """``CUpti_GraphData``, as far as it is read."""

    _fields_ = [(name, ctypes.c_void_p) for name in ('graph', 'original_graph', 'node', 'original')]


class ResourceData(ctypes.Structure):
    """``CUpti_ResourceData``."""

    _fields_ = [('context', ctypes.c_void_p), ('stream', ctypes.c_void_p), ('cloned', ctypes.POINTER(GraphCopy))]


_POINTER = ctypes.POINTER(ctypes.c_void_p)
_SIZE = ctypes.POINTER(ctypes.c_size_t)
_Requested = ctypes.CFUNCTYPE(None, _POINTER, _SIZE, _SIZE)
_Completed = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Called = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ResourceData))


@dataclass(frozen=True)
class Record:
    """One node's run: nanoseconds of the device's clock, 0 where CUPTI could not take them, and the node's number."""

    start: int
    end: int
    node: int


class Profiler:
    """CUPTI in this process. One measurement at a time uses it: :meth:`begin` waits for others of this process.

    CUPTI calls back on its own threads and keeps the callbacks, so this object lives as long as the process.
    """

    def __init__(self, library: Any) -> None:
        self._cupti = library
        self._lock = threading.Lock()
        self._buffers: dict[int, Any] = {}
        self._records: list[Record] = []
        self._numbers: dict[int, int] = {}
        self._expected: frozenset[int] = frozenset()
        self._known: set[int] = set()
        #: Whether another graph was made or launched since :meth:`begin`; CUPTI then stays attached.
        self.strangers = False
        #: Whether calls were watched in this process, by another subscriber: CUPTI then stays attached.
        self.watched = False
        #: Called before CUPTI is attached: another part of capturekit may be attached, and not need it any more.
        self.make_room: Callable[[], object] = bool
        self._callbacks = _Requested(self._give), _Completed(self._take), _Called(self._note)

    @property
    def library(self) -> Any:
        """CUPTI's library."""
        return self._cupti

    # -- called by CUPTI ----------------------------------------------------------------------------------------

    def _give(self, buffer: Any, size: Any, most: Any) -> None:
        raw = ctypes.create_string_buffer(_BUFFER + 8)
        address = ctypes.addressof(raw) + -ctypes.addressof(raw) % 8
        self._buffers[address] = raw
        buffer[0], size[0], most[0] = address, _BUFFER, 0

    def _take(self, _context: Any, _stream: int, buffer: int, _size: int, valid: int) -> None:
        record, number = ctypes.c_void_p(), ctypes.c_uint64.from_address
        kind_at, following = ctypes.c_uint32.from_address, self._cupti.cuptiActivityGetNextRecord
        where, length = ctypes.c_void_p(buffer), ctypes.c_size_t(valid)
        while following(where, length, ctypes.byref(record)) == 0:
            at = record.value or 0
            kind = kind_at(at).value
            if offsets := _RECORDS.get(10 if kind == _ALONE else kind):
                self._records.append(Record(*(number(at + offset).value for offset in offsets)))
                self.strangers |= bool(self._records[-1].node) and self._records[-1].node not in self._known
        self._buffers.pop(buffer, None)

    def _note(self, _user: Any, domain: int, what: int, data: Any) -> None:
        if (domain, what) == (_RESOURCE, _CLONED):
            cloned, found = data[0].cloned[0], ctypes.c_uint64()
            if not self._cupti.cuptiGetGraphNodeId(ctypes.c_void_p(cloned.node), ctypes.byref(found)):
                original = cloned.original or 0
                self._numbers[original] = found.value
                self._known.add(found.value)
                self.strangers |= original not in self._expected

    # -- called by us -------------------------------------------------------------------------------------------

    def _call(self, name: str, *args: Any) -> None:
        code = int(getattr(self._cupti, name)(*args))
        if code == _OTHERS:
            raise Untraceable('another profiler uses CUPTI in this process')
        if code:
            raise Untraceable(f'CUPTI refuses: error {code} from {name}')

    def begin(self, exit: Exit, nodes: Iterable[int] = ()) -> None:
        """Attach CUPTI until ``exit``, and note copies of nodes.

        Meanwhile only the graph of ``nodes`` may be copied, and only its copies may run.

        Raises Untraceable: another profiler is at work, or CUPTI does not fit the driver.
        """
        self._lock.acquire()
        exit.add(self._lock.release)
        given, taken, noted = self._callbacks
        self.make_room()
        subscriber = ctypes.c_void_p()
        self._call('cuptiSubscribe', ctypes.byref(subscriber), noted, None)
        self._numbers.clear()
        self._known.clear()
        self._expected, self.strangers = frozenset(nodes), False
        exit.add(partial(self._end, subscriber))
        self._call('cuptiActivityRegisterCallbacks', given, taken)
        self._call('cuptiEnableCallback', 1, subscriber, _RESOURCE, _CLONED)

    def _end(self, subscriber: Any) -> None:
        """Detach CUPTI, unless a graph that it recorded may be launched again, or calls were watched."""
        try:
            self._call('cuptiUnsubscribe', subscriber)
        finally:
            if not self.strangers and not self.watched:
                self._call('cuptiFinalize')
                self._buffers.clear()

    def numbers(self, nodes: Iterable[int]) -> dict[int, int]:
        """CUPTI's number of the copy that was made last of each node, by the node's handle."""
        return {node: self._numbers[node] for node in nodes if node in self._numbers}

    def watch(self, exit: Exit, host: bool) -> None:
        """Record what runs, until ``exit``. ``host``: host functions, too."""
        for kind in _RECORDS:
            if kind != _HOST or host:
                self._watch(kind)
                exit.add(partial(self._call, 'cuptiActivityDisable', kind))

    def _watch(self, kind: int) -> None:
        code = int(self._cupti.cuptiActivityEnable(kind))
        if kind == _HOST and code == _INVALID_KIND:
            raise Untraceable('this CUPTI does not record host functions, and the graph has some')
        if code:
            raise Untraceable(f'CUPTI refuses: error {code} from cuptiActivityEnable({kind})')

    def taken(self) -> list[Record]:
        """The runs since the last call of this function. All of them must have been waited for."""
        self._call('cuptiActivityFlushAll', 0)
        found, self._records = self._records, []
        return found


@functools.lru_cache(maxsize=1)
def profiler() -> Profiler | str:
    """CUPTI, or the reason why it is not available, in one sentence."""
    try:
        from cuda import pathfinder
    except ImportError:
        return "CUPTI can't be found: cuda-pathfinder is not installed (cuda-bindings of 12.9 and newer bring it)"
    try:
        return Profiler(ctypes.CDLL(str(pathfinder.load_nvidia_dynamic_lib('cupti').abs_path)))
    except (RuntimeError, OSError):  # which all errors of cuda-pathfinder are, those of older ones, too
        return 'CUPTI is not installed (pip install nvidia-cuda-cupti)'


def traced(
    device: Any,
    reader: Reader,
    watcher: Profiler,
    g: int,
    s: int,
    launches: int,
    warmup: int,
    off: Sequence[int],
    by_node_priority: bool,
    launched: Launched,
) -> Times:
    """Measure by CUPTI, for :meth:`Timing.graph_measure`. Raises Untraceable."""
    times = Times('measured', *launched[:1], mark=launched[1], by='profiler')
    timed, kind = timed_nodes(reader, g, off), reader.kind
    with Exit() as exit:
        watcher.begin(exit, [one for node in reader.handles(g) for one in _inside(reader, node, kind(node), True)])
        copy = device.graph_instantiate(g, by_node_priority)
        exit.add(partial(device.graph_exec_destroy, copy))
        owners = _owners(reader, watcher, timed)
        for node in off:
            device.node_enable(copy, node, False)
        device.graph_upload(copy, s)
        watcher.watch(exit, 'host' in timed.values())
        # a graph must not be destroyed while it runs, and its memory may be given back right after an interrupt
        exit.add(partial(device.stream_synchronize, s))
        watcher.taken()
        ran = []
        with progress('measuring launches', warmup + launches) as step:
            for number in range(warmup + launches):
                device.graph_launch(copy, s)
                device.stream_synchronize(s)
                stamps = watcher.taken()
                if number >= warmup:
                    ran.append(_spans(stamps, owners))
                step()
    _gather(times, ran, timed)
    return times


def _owners(reader: Reader, watcher: Profiler, timed: Mapping[int, str]) -> dict[int, int]:
    """The node of the graph by the number in CUPTI's records. A child graph's nodes count as the child's node."""
    found: dict[int, int] = {}
    for node, kind in timed.items():
        inside = _inside(reader, node, kind)
        numbers = watcher.numbers(inside)
        if len(numbers) < len(inside):
            raise Untraceable('CUPTI does not show which records belong to this graph')
        found.update(dict.fromkeys(numbers.values(), node))
    return found


def _inside(reader: Reader, node: int, kind: str, all_kinds: bool = False) -> list[int]:
    """A node's handle, or those of all nodes of a child graph that take time, or of all of any kind."""
    if kind != 'graph':
        return [node]
    infos = [info for info in reader.infos(reader.info(node).inner) if all_kinds or info.kind in TIMED]
    within = [handle for info in infos for handle in _inside(reader, info.handle, info.kind, all_kinds)]
    return [node, *within] if all_kinds else within


def _spans(records: Iterable[Record], owners: Mapping[int, int]) -> dict[int, tuple[int, int]] | None:
    """First start and last end of each node in one launch; None if CUPTI could not take one of them."""
    found: dict[int, tuple[int, int]] = {}
    for record in records:
        node = owners.get(record.node)
        if node is None:
            continue
        if not 0 < record.start <= record.end:
            return None
        start, end = found.get(node, (record.start, record.end))
        found[node] = min(start, record.start), max(end, record.end)
    return found


def _gather(times: Times, ran: Sequence[dict[int, tuple[int, int]] | None], timed: Mapping[int, str]) -> None:
    """Combine the launches in which all nodes were recorded, in microseconds from the first start."""
    seen = set().union(*(one for one in ran if one))
    whole = [one for one in ran if one is not None and len(one) == len(seen)]
    if timed and not (seen and whole):
        raise Untraceable('CUPTI has no launch of this graph of which it saw every node')
    for one in whole:
        first = min((start for start, _end in one.values()), default=0)
        for node, (start, end) in one.items():
            times.nodes.setdefault(node, []).append(((start - first) / 1e3, (end - first) / 1e3))
        times.marked.append((max((end for _start, end in one.values()), default=first) - first) / 1e3)
    if len(seen) < len(timed):
        times.note = f'{counted(len(timed) - len(seen), "node")} have no times: CUPTI recorded nothing of them.'


class Timing(NodeVerbs):
    """The verbs of :class:`capturekit.driver.cuda.CudaDevice` that measure. They need the driver's library, too."""

    def graph_measure(
        self,
        g: int,
        x: int,
        s: int,
        launches: int,
        warmup: int,
        off: Sequence[int] = (),
        by: str | None = None,
        by_node_priority: bool = False,
        several: bool = False,
    ) -> Times:
        """Launch ``x``, made of the definition ``g``, and another graph made of it, of which times are taken.

        On the stream ``s``, each ``warmup + launches`` times, and wait for both; the first ``warmup`` do not count. The
        nodes ``off``, which are disabled in ``x``, are disabled in the other graph and get no times.
        ``by_node_priority``: as ``x`` was instantiated. ``by``: 'profiler', 'events', or None for the profiler where it
        can be had and this is the only thread. ``several``: its nodes are on several devices, and events won't do.
        Raises Untraceable where the profiler is asked for, or needed, and can't be had. By events it is refused where
        ``cudaGraphClone`` is: graphs with conditional or memory nodes.
        """
        reader = self._needed('measuring a graph')
        given = g, s, launches, warmup, off, by_node_priority
        watcher = _watcher(by)
        if isinstance(watcher, Profiler) and 'host' in timed_nodes(reader, g, off).values():
            watcher = _records_host(watcher)
        needed = by is not None or several
        if isinstance(watcher, str) and needed:
            raise Untraceable(watcher)
        with Exit() as exit:
            launched = plain(self, Marker(reader, exit), exit, x, s, launches, warmup)
        why, stays = watcher if isinstance(watcher, str) else '', ''
        if isinstance(watcher, Profiler):
            try:
                times = traced(self, reader, watcher, *given, launched)
                return replace(times, note=_sentences(times.note, _stays(watcher)))
            except Untraceable as refusal:
                why, stays = refusal.reason, _stays(watcher)
                if needed:
                    raise Untraceable(f'{why}. {stays}'.rstrip('. ')) from None
        times = measured(self, reader, g, x, *given[1:], launched)
        return replace(times, note=_sentences(f'By events: {why}.' if why else '', stays))

    def graph_time(self, x: int, s: int, in_a_row: int = 1) -> float:
        """Launch an executable graph on a stream and wait; the time between an event before it and one after it, in
        microseconds. Of several launches ``in_a_row`` it is the median, without the first."""
        reader = self._needed('timing a launch')
        with Exit() as exit:
            first = 1 if in_a_row > 1 else 0
            return float(np.median(plain(self, Marker(reader, exit), exit, x, s, in_a_row - first, first)[0]))


def _stays(watcher: Profiler) -> str:
    return STAYS if watcher.strangers else WATCHED if watcher.watched else ''


def _sentences(*parts: str) -> str:
    return ' '.join(part for part in parts if part)


def _watcher(by: str | None) -> Profiler | str | None:
    """The profiler; the reason why it is not used; None if it was not asked for."""
    if by == 'events':
        return None
    if by is None and threading.active_count() > 1:
        return "there are other threads, and CUPTI may be detached only while none uses the device (by='profiler')"
    return profiler()


def _records_host(watcher: Profiler) -> Profiler | str:
    """The profiler, if it records host functions and is free, or why not. Nothing has been launched yet."""
    try:
        with Exit() as exit:
            watcher.begin(exit)
            watcher.watch(exit, host=True)
    except Untraceable as refusal:
        return refusal.reason
    return watcher
