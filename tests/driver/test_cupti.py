"""Timing by CUPTI, against a small one that calls back, counts what is open, and can refuse at any call.

It lies on the small driver of ``test_timing``. Records are laid out as CUPTI's headers have it, offsets and all; what
nodes take, and what watching them adds, is known.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturekit.driver import cupti, node_reader
from capturekit.driver.cupti import Profiler, Timing, Untraceable, traced
from capturekit.driver.event_timing import Exit, Marker, Times, plain
from capturekit.graph.measure import timeline
from capturekit.model.errors import CudaCallError
from capturekit.model.recording import Timeline
from capturekit.model.rules import Code
from tests.compiled import compiled
from tests.driver.test_event_timing import COPY, DIAMOND, DRIVER, EDGES, KERNEL, RAN, STREAM, Device, close

HOST = 3
#: ``CUpti_ActivityKind``, record size, and offsets of start, end and node in CUDA 13's headers, by a node's kind.
LAYOUT = {KERNEL: (10, 248, 16, 24, 144), COPY: (1, 112, 16, 24, 64), HOST: (56, 56, 40, 48, 24)}
OTHERS, INVALID_KIND, LAST = 39, 14, 12


class Cupti:
    """What of CUPTI is called. ``refuse``: the call that is answered with an error, counted from 1."""

    def __init__(self) -> None:
        self.calls, self.refuse, self.others, self.knows_host = 0, 0, False, True
        self.attached, self.subscribed, self.noting, self.kinds = False, False, False, set[int]()
        self.given: Any = None
        self.refused = ''
        self.pending: list[tuple[int, int, int, int]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            if name != 'cuptiActivityGetNextRecord':  # which is answered with an error to say that there are no more
                self.calls += 1
                if self.calls == self.refuse:
                    self.refused = name
                    return 999
            return int(getattr(self, f'on_{name}')(*args))

        return call

    def on_cuptiSubscribe(self, subscriber: Any, note: Any, _data: Any) -> int:
        if self.others or self.subscribed:
            return OTHERS
        subscriber._obj.value, self.note, self.subscribed, self.attached = 7, note, True, True
        return 0

    def on_cuptiUnsubscribe(self, subscriber: Any) -> int:
        self.subscribed = self.noting = False
        return 0 if subscriber.value == 7 else 1

    def on_cuptiFinalize(self) -> int:
        self.attached = self.subscribed = self.noting = False
        self.kinds.clear()
        return 0

    def on_cuptiActivityRegisterCallbacks(self, give: Any, take: Any) -> int:
        self.given = give, take
        return 0

    def on_cuptiEnableCallback(self, on: int, subscriber: Any, domain: int, what: int) -> int:
        assert (on, subscriber.value, domain, what) == (1, 7, 3, 20)
        self.noting = True
        return 0

    def on_cuptiActivityEnable(self, kind: int) -> int:
        if kind == LAYOUT[HOST][0] and not self.knows_host:
            return INVALID_KIND
        self.kinds.add(kind)
        return 0

    def on_cuptiActivityDisable(self, kind: int) -> int:
        self.kinds.remove(kind)
        return 0

    def on_cuptiGetGraphNodeId(self, node: Any, to: Any) -> int:
        to._obj.value = node.value + 5
        return 0

    def on_cuptiActivityFlushAll(self, forced: int) -> int:
        assert forced == 0, 'by force records come half filled'
        while self.pending:
            self._hand_over()
        return 0

    def _hand_over(self) -> None:
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
        give, take = self.given
        give(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
        assert buffer.value and buffer.value % 8 == 0 and most.value == 0
        at, self.lengths = buffer.value, []
        for kind, start, end, number in self.pending[:1000]:
            what, length, *offsets = LAYOUT[kind]
            record = bytearray(length)
            struct.pack_into('I', record, 0, what)
            for offset, value in zip(offsets, (start, end, number)):
                struct.pack_into('Q', record, offset, value)
            ctypes.memmove(at, bytes(record), length)
            at += length
            self.lengths.append(length)
        del self.pending[:1000]
        take(None, 0, buffer, size, at - buffer.value)

    def on_cuptiActivityGetNextRecord(self, buffer: Any, _valid: Any, record: Any) -> int:
        if not self.lengths:
            return LAST
        where = record._obj
        where.value = buffer.value if where.value is None else where.value + self.length
        self.length = self.lengths.pop(0)
        return 0

    def open(self) -> list[Any]:
        return [self.attached, self.subscribed, self.noting, self.kinds]


class Watched(Device):
    """The small driver with CUPTI in it. Between nodes there are ``gap`` us; watching one adds ``delay``."""

    gap, delay, inside, blind, other = 0.0, 0.0, 0.0, 0, 0

    def begin(self, mark: float = 1.5, launch: float = 0.0) -> None:
        super().begin(mark, launch)
        self.cupti = Cupti()
        self.watcher = Profiler(self.cupti)
        self.shape: tuple[list[tuple[int, float]], list[tuple[int, ...]], list[int]] = ([], [], [])
        self.off: set[int] = set()
        self.clock = 10**18

    def graph(self, costs: list[tuple[int, float]], edges: list[tuple[int, ...]]) -> tuple[int, list[int]]:
        g, handles = super().graph([(kind if kind != HOST else KERNEL, cost) for kind, cost in costs], edges)
        self.shape = costs, edges, handles
        return g, handles

    def graph_instantiate(self, g: int, by_node_priority: bool = False) -> int:
        made = super().graph_instantiate(g, by_node_priority)
        if self.cupti.noting:
            for handle in self.shape[2]:
                cloned = cupti.GraphCopy(0, 0, handle + 1000, handle)
                data = cupti.ResourceData(0, 0, ctypes.pointer(cloned))
                self.cupti.note(None, 3, 20, ctypes.pointer(data))
        return made

    def node_enable(self, x: int, node: int, on: bool) -> None:
        super().node_enable(x, node, on)
        self.off.add(node)

    def graph_launch(self, x: int, s: int) -> None:
        super().graph_launch(x, s)
        if not self.cupti.kinds:
            return
        costs, edges, handles = self.shape
        ends: list[float] = []
        self.blind -= 1
        for number, (kind, cost) in enumerate(costs):
            before = [ends[a] for a, b, *_ in edges if b == number]
            if kind not in LAYOUT or handles[number] in self.off:
                ends.append(max(before, default=0.0))
                continue
            start = max(before) + self.gap + self.delay if before else 0.0
            ends.append(start + cost + self.inside)
            stamps = [self.clock + round(one * 1000) for one in (start, ends[-1])]
            self.cupti.pending.append((kind, *(stamps if self.blind else (0, 0)), handles[number] + 1005))
        self.cupti.pending.append((KERNEL, self.clock, self.clock + 9, self.other))  # of another thread
        self.clock += 10**9

    def traced(self, g: int, launches: int = 3, off: tuple[int, ...] = ()) -> Times:
        with Exit() as exit:
            launched = plain(self, Marker(self.reader, exit), exit, g, STREAM, launches, 1)
        return traced(self, self.reader, self.watcher, g, STREAM, launches, 1, off, False, launched)

    def line(self, g: int, **options: Any) -> Timeline:
        _costs, edges, handles = self.shape
        numbers = {handle: number for number, handle in enumerate(handles)}
        return timeline(self.traced(g, **options), numbers, [(a, b) for a, b, *_ in edges], len(handles))


@pytest.fixture(scope='module')
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(tmp_path_factory.mktemp('driver') / 'twin_of_libcuda.so', DRIVER)


@pytest.fixture
def device(library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(node_reader, 'loaded', lambda part: {'libcuda.so': library}[part])
    device = Watched(library)
    yield device
    assert device.left() == [0, 0, 0, 0]
    assert device.cupti.open() == [False, False, False, set()]
    assert device.watcher._lock.acquire(blocking=False), 'the next one may watch'


# -- what is told -------------------------------------------------------------------------------------------------


def test_start_and_end_of_each_node(device: Watched) -> None:
    g, _handles = device.graph(DIAMOND, EDGES)
    line = device.line(g)
    assert close(line.nodes, RAN)
    assert (line.source, line.by, line.note, line.launches) == ('measured', 'profiler', '', 3)
    assert line.mark_us == pytest.approx(0, abs=0.01)
    assert line.marked_us == line.span_us == 40
    assert line.plain_us == pytest.approx(40, abs=0.1)
    assert device.number('launches') == 2 * 4 and device.number('graphs') == 0, 'nothing is cloned'


def test_what_watching_adds_between_nodes_is_taken_off(device: Watched) -> None:
    device.delay = 0.7
    g, _handles = device.graph([(KERNEL, 2.0)] * 60, [(n, n + 1) for n in range(59)])
    line = device.line(g)
    assert line.marked_us == pytest.approx(120 + 59 * 0.7)
    assert line.mark_us == pytest.approx(0.7 * 59 / 60, abs=0.01)
    assert close(line.nodes, [(2.0 * n, 2.0 * n + 2) for n in range(60)])
    assert 'by a profiler' in str(line) and 'a node on the average, taken off' in str(line)


def test_what_watching_adds_to_nodes_is_taken_off(device: Watched) -> None:
    device.inside, device.gap = 0.2, 0.05
    g, _handles = device.graph([(KERNEL, 5.0)] * 20, [(n, n + 1) for n in range(19)])
    line = device.line(g)
    assert line.span_us <= 100.1
    assert all(one is not None and one[1] - one[0] == pytest.approx(5.0, abs=0.06) for one in line.nodes)


def test_disabled_nodes_have_no_times(device: Watched) -> None:
    g, handles = device.graph(DIAMOND, EDGES)
    line = device.line(g, off=(handles[1],))
    assert line.nodes[1] is None and line.nodes[5] == pytest.approx((25, 30), abs=0.02)


def test_copies_and_host_functions_are_told(device: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    g, _handles = device.graph([(COPY, 4.0), (HOST, 8.0), (KERNEL, 2.0)], [(0, 1), (1, 2)])
    assert close(device.line(g).nodes, [(0, 4), (4, 12), (12, 14)])


def test_a_launch_that_was_not_seen_whole_is_left_out(device: Watched) -> None:
    device.blind = 3  # the second launch after the first, which is not told
    g, _handles = device.graph(DIAMOND, EDGES)
    times = device.traced(g, 4)
    assert {len(pairs) for pairs in times.nodes.values()} == {3} and len(times.plain) == 4


def test_no_launch_was_seen_whole(device: Watched) -> None:
    device.blind = 2
    g, _handles = device.graph(DIAMOND, EDGES)
    with pytest.raises(Untraceable, match='no launch of this graph of which it saw every node'):
        device.traced(g, 1)


def test_beside_graphs_of_another_thread_cupti_stays(device: Watched) -> None:
    """A graph that it recorded may not be launched once it is gone."""
    device.other = 1
    g, _handles = device.graph(DIAMOND, EDGES)
    times = device.traced(g)
    assert device.watcher.strangers and close(next(iter(times.nodes.values()))[0:1], [(0, 10)])
    assert device.cupti.open() == [True, False, False, set()]
    device.other = 0
    device.traced(g)
    assert not device.watcher.strangers


def test_beside_a_graph_that_another_thread_made_cupti_stays(device: Watched) -> None:
    g, _handles = device.graph(DIAMOND, EDGES)
    copy = device.graph_upload

    def instantiated(x: int, s: int) -> None:
        cloned = cupti.GraphCopy(0, 0, 77, 78)
        device.cupti.note(None, 3, 20, ctypes.pointer(cupti.ResourceData(0, 0, ctypes.pointer(cloned))))
        copy(x, s)

    device.graph_upload = instantiated  # type: ignore[method-assign]
    device.traced(g)
    assert device.watcher.strangers and device.cupti.open() == [True, False, False, set()]
    del device.graph_upload  # type: ignore[method-assign]
    device.traced(g)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 9)), min_size=1, max_size=12),
    st.data(),
    st.floats(0.1, 1.2),
)
def test_of_any_graph_the_order_stays_and_nothing_takes_longer(
    ran: list[tuple[float, float]], data: Any, part: float
) -> None:
    edges = [(a, b) for b in range(len(ran)) for a in range(b) if data.draw(st.booleans())]
    seen: list[tuple[float, float]] = []
    for number, (cost, gap) in enumerate(ran):
        start = gap + max((seen[a][1] for a, b in edges if b == number), default=0.0)
        seen.append((start, start + cost))
    first = min(start for start, _end in seen)
    seen = [(start - first, end - first) for start, end in seen]
    span = max(end for _start, end in seen)
    times = Times('measured', [part * span], [span], [0.0], {n: [one] for n, one in enumerate(seen)}, by='profiler')
    line = timeline(times, {n: n for n in range(len(ran))}, edges, len(ran))
    assert line.span_us <= part * span + 0.26 or part >= 1
    for number, (got, was) in enumerate(zip(line.nodes, seen)):
        assert got is not None and 0 <= got[0] <= got[1]
        assert got[1] - got[0] <= was[1] - was[0] + 0.01 and got[0] <= was[0] + 0.01
        if part >= 1:
            assert got == pytest.approx(was, abs=0.01)
        for a, b in edges:
            before = line.nodes[a]
            assert b != number or before is None or got[0] >= before[1] - 0.01


# -- refusals -----------------------------------------------------------------------------------------------------


def test_each_call_refused_in_turn_leaves_nothing(device: Watched) -> None:
    device.graph(DIAMOND, EDGES)
    g, _ = device.graph(DIAMOND, EDGES)
    device.traced(g)
    total, shape, refused = device.cupti.calls, device.shape, 0
    assert total > 15
    for call in range(1, total + 1):
        device.begin()
        device.shape, device.cupti.refuse = shape, call
        try:
            times = device.traced(g)
        except Untraceable as error:
            refused += 1
            assert 'error 999 from cupti' in str(error) or 'does not show which records' in str(error)
        else:  # the number of a node that takes no time was not told
            assert len(times.nodes) == 6
        assert device.left() == [0, 0, 0, 0], f'call {call} of {total}'
        assert not device.cupti.noting or device.cupti.refuse == device.cupti.calls, f'call {call} of {total}'
        assert device.cupti.attached is (device.cupti.refused == 'cuptiFinalize'), f'call {call} of {total}'
        assert device.watcher._lock.acquire(blocking=False), f'call {call} of {total}'
    assert refused == total - 1
    device.begin()


def test_the_driver_s_calls_refused_in_turn_leave_nothing(device: Watched) -> None:
    g, _ = device.graph(DIAMOND, EDGES)
    shape = device.shape
    device.traced(g, 1)
    total = device.number('calls')
    for call in range(1, total + 1):
        device.begin()
        device.shape = shape
        device.fail_at(call)
        with pytest.raises(CudaCallError) as info:
            device.traced(g, 1)
        assert info.value.code is Code.cudaErrorMemoryAllocation
        assert device.left() == [0, 0, 0, 0], f'call {call} of {total}'
        assert device.cupti.open() == [False, False, False, set()], f'call {call} of {total}'
    device.begin()


@pytest.mark.parametrize('launch', [1, 2, 3, 4])
def test_an_interrupt_stops_watching(device: Watched, launch: int) -> None:
    g, _ = device.graph(DIAMOND, EDGES)
    device.interrupt_at = launch
    with pytest.raises(KeyboardInterrupt):
        device.traced(g, 1)


class Both(Watched, Timing):
    """Which way it goes."""


@pytest.fixture
def both(library: str, monkeypatch: pytest.MonkeyPatch) -> Both:
    monkeypatch.setattr(node_reader, 'loaded', lambda part: {'libcuda.so': library}[part])
    device = Both(library)
    monkeypatch.setattr(cupti, 'profiler', lambda: device.watcher)
    alone(monkeypatch)
    return device


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that are there, as those of pytest-xdist, do not count."""
    real, others = threading.active_count, threading.active_count() - 1
    monkeypatch.setattr(threading, 'active_count', lambda: real() - others)


def test_the_profiler_is_taken_where_it_can_be_had(both: Both) -> None:
    g, _ = both.graph(DIAMOND, EDGES)
    assert [both.graph_measure(g, g, STREAM, 1, 0, (), by).by for by in (None, 'profiler')] == ['profiler'] * 2
    assert both.graph_measure(g, g, STREAM, 1, 0, (), 'events').by == 'events'


def test_beside_another_thread_the_profiler_has_to_be_asked_for(both: Both) -> None:
    g, _ = both.graph(DIAMOND, EDGES)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        times = both.graph_measure(g, g, STREAM, 1, 0)
        assert times.by == 'events' and times.note.startswith('By events: there are other threads')
        assert both.cupti.calls == 0
        assert both.graph_measure(g, g, STREAM, 1, 0, (), 'profiler').by == 'profiler'
    finally:
        ended.set()
        thread.join()


def test_events_do_not_stand_in_on_several_devices(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    g, _ = both.graph(DIAMOND, EDGES)

    def measured(by: str | None = None) -> Times:
        return both.graph_measure(g, g, STREAM, 1, 0, (), by, False, True)

    assert measured().by == measured('profiler').by == 'profiler'
    both.blind = 1
    with pytest.raises(Untraceable, match='no launch of this graph'):
        measured()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with pytest.raises(Untraceable, match='there are other threads'):
            measured()
        assert measured('profiler').by == 'profiler'
    finally:
        ended.set()
        thread.join()
    monkeypatch.setattr(cupti, 'profiler', lambda: 'CUPTI is not installed')
    with pytest.raises(Untraceable, match='CUPTI is not installed'):
        measured()


def test_that_cupti_stays_is_said(both: Both) -> None:
    g, _ = both.graph(DIAMOND, EDGES)
    both.other = 1
    assert both.graph_measure(g, g, STREAM, 1, 0).note == cupti.STAYS
    both.blind = 1  # no launch is seen whole: by events, and another one was seen all the same
    times = both.graph_measure(g, g, STREAM, 1, 0)
    assert times.by == 'events' and times.note.endswith(f'every node. {cupti.STAYS}')
    both.blind = 1
    with pytest.raises(Untraceable, match='CUPTI stays attached'):
        both.graph_measure(g, g, STREAM, 1, 0, (), 'profiler')


def test_where_calls_were_watched_cupti_stays(both: Both) -> None:
    """Detached after a watch, it would end the process at the next call of a new thread."""
    g, _ = both.graph(DIAMOND, EDGES)
    assert both.graph_measure(g, g, STREAM, 1, 0).note == '' and both.cupti.open() == [False, False, False, set()]
    both.watcher.watched = True
    assert both.graph_measure(g, g, STREAM, 1, 0).note == cupti.WATCHED
    assert both.cupti.open() == [True, False, False, set()]


def test_beside_another_profiler_events_are_taken(both: Both) -> None:
    g, _ = both.graph(DIAMOND, EDGES)
    both.cupti.others = True
    times = both.graph_measure(g, g, STREAM, 1, 0)
    assert (times.by, times.note) == ('events', 'By events: another profiler uses CUPTI in this process.')
    with pytest.raises(Untraceable, match='another profiler'):
        both.graph_measure(g, g, STREAM, 1, 0, (), 'profiler')
    assert both.left() == [0, 0, 0, 0]


def test_an_older_cupti_and_host_functions(both: Both) -> None:
    g, handles = both.graph([(KERNEL, 4.0), (KERNEL, 8.0)], [(0, 1)])
    both.cupti.knows_host = False
    assert both.graph_measure(g, g, STREAM, 1, 0).by == 'profiler', 'not asked for where there are none'
    real = cupti.Reader.kind
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupti.Reader, 'kind', lambda self, n: 'host' if n == handles[1] else real(self, n))
        times = both.graph_measure(g, g, STREAM, 1, 0)
    assert times.by == 'events' and 'does not record host functions' in times.note
    assert both.cupti.open() == [False, False, False, set()]


def test_without_cupti_the_note_says_what_to_install(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    g, _ = both.graph(DIAMOND, EDGES)
    monkeypatch.setattr(cupti, 'profiler', lambda: 'CUPTI is not installed (pip install nvidia-cuda-cupti)')
    assert both.graph_measure(g, g, STREAM, 1, 0).note.endswith('(pip install nvidia-cuda-cupti).')
