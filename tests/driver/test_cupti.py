"""Timing by CUPTI, against a small one that calls back, counts what is open, and can refuse at any call.

It lies on the small driver of ``test_timing``. Records are laid out as CUPTI's headers have it, offsets and all; what
nodes take, and what watching them adds, is known.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capturekit.driver import cupti
from capturekit.driver.cupti import Profiler, Timing, Untraceable, traced
from capturekit.driver.event_timing import Exit, Marker, Times, plain
from capturekit.graph.measure import timeline
from capturekit.model.errors import CudaCallError
from capturekit.model.recording import Timeline
from capturekit.model.rules import Code
from tests.driver.test_event_timing import COPY, DIAMOND, EDGES, KERNEL, RAN, STREAM, Device, close
from tests.driver.test_event_timing import DRIVER as DRIVER  # of this module, too: the fixture compiles it

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
        self.shape, self.g = (costs, edges, handles), g
        return g, handles

    def diamond(self) -> None:
        self.graph(DIAMOND, EDGES)

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

    def traced(self, launches: int = 3, off: tuple[int, ...] = ()) -> Times:
        """Of the graph that was made last."""
        g = self.g
        with Exit() as exit:
            launched = plain(self, Marker(self.reader, exit), exit, g, STREAM, launches, 1)
        return traced(self, self.reader, self.watcher, g, STREAM, launches, 1, off, False, launched)

    def line(self, **options: Any) -> Timeline:
        _costs, edges, handles = self.shape
        numbers = {handle: number for number, handle in enumerate(handles)}
        return timeline(self.traced(**options), numbers, [(a, b) for a, b, *_ in edges], len(handles))


@pytest.fixture
def device(libcuda: str) -> Iterator[Watched]:
    device = Watched(libcuda)
    device.diamond()
    yield device
    assert device.left() == [0, 0, 0, 0]
    assert device.cupti.open() == [False, False, False, set()]
    assert device.watcher._lock.acquire(blocking=False), 'the next one may watch'


# -- what is told -------------------------------------------------------------------------------------------------


def test_start_and_end_of_each_node(device: Watched) -> None:
    line = device.line()
    assert close(line.nodes, RAN)
    assert (line.source, line.by, line.note, line.launches) == ('measured', 'profiler', '', 3)
    assert line.mark_us == pytest.approx(0, abs=0.01)
    assert line.marked_us == line.span_us == 40
    assert line.plain_us == pytest.approx(40, abs=0.1)
    assert device.number('launches') == 2 * 4 and device.number('graphs') == 0, 'nothing is cloned'


def test_what_watching_adds_between_nodes_is_taken_off(device: Watched) -> None:
    device.delay = 0.7
    device.graph([(KERNEL, 2.0)] * 60, [(n, n + 1) for n in range(59)])
    line = device.line()
    assert line.marked_us == pytest.approx(120 + 59 * 0.7)
    assert line.mark_us == pytest.approx(0.7 * 59 / 60, abs=0.01)
    assert close(line.nodes, [(2.0 * n, 2.0 * n + 2) for n in range(60)])
    assert 'by a profiler' in str(line) and 'a node on the average, taken off' in str(line)


def test_what_watching_adds_to_nodes_is_taken_off(device: Watched) -> None:
    device.inside, device.gap = 0.2, 0.05
    device.graph([(KERNEL, 5.0)] * 20, [(n, n + 1) for n in range(19)])
    line = device.line()
    assert line.span_us <= 100.1
    assert all(one is not None and one[1] - one[0] == pytest.approx(5.0, abs=0.06) for one in line.nodes)


def test_disabled_nodes_have_no_times(device: Watched) -> None:
    line = device.line(off=(device.shape[2][1],))
    assert line.nodes[1] is None and line.nodes[5] == pytest.approx((25, 30), abs=0.02)


def test_copies_and_host_functions_are_told(device: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    device.graph([(COPY, 4.0), (HOST, 8.0), (KERNEL, 2.0)], [(0, 1), (1, 2)])
    assert close(device.line().nodes, [(0, 4), (4, 12), (12, 14)])


def test_a_launch_that_was_not_seen_whole_is_left_out(device: Watched) -> None:
    device.blind = 3  # the second launch after the first, which is not told
    times = device.traced(4)
    assert {len(pairs) for pairs in times.nodes.values()} == {3} and len(times.plain) == 4


def test_beside_graphs_of_another_thread_cupti_stays(device: Watched) -> None:
    """A graph that it recorded may not be launched once it is gone."""
    device.other = 1
    times = device.traced()
    assert device.watcher.strangers and close(next(iter(times.nodes.values()))[0:1], [(0, 10)])
    assert device.cupti.open() == [True, False, False, set()]
    device.other = 0
    device.traced()
    assert not device.watcher.strangers


def test_beside_a_graph_that_another_thread_made_cupti_stays(device: Watched) -> None:
    copy = device.graph_upload

    def instantiated(x: int, s: int) -> None:
        cloned = cupti.GraphCopy(0, 0, 77, 78)
        device.cupti.note(None, 3, 20, ctypes.pointer(cupti.ResourceData(0, 0, ctypes.pointer(cloned))))
        copy(x, s)

    device.graph_upload = instantiated  # type: ignore[method-assign]
    device.traced()
    assert device.watcher.strangers and device.cupti.open() == [True, False, False, set()]
    del device.graph_upload  # type: ignore[method-assign]
    device.traced()


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
    device.traced()
    total, shape, refused = device.cupti.calls, device.shape, 0
    assert total > 15
    for call in range(1, total + 1):
        device.begin()
        device.shape, device.cupti.refuse = shape, call
        try:
            times = device.traced()
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
    shape = device.shape
    device.traced(1)
    total = device.number('calls')
    for call in range(1, total + 1):
        device.begin()
        device.shape = shape
        device.fail_at(call)
        with pytest.raises(CudaCallError) as info:
            device.traced(1)
        assert info.value.code is Code.cudaErrorMemoryAllocation
        assert device.left() == [0, 0, 0, 0], f'call {call} of {total}'
        assert device.cupti.open() == [False, False, False, set()], f'call {call} of {total}'
    device.begin()


@pytest.mark.parametrize('launch', [1, 2, 3, 4])
def test_an_interrupt_stops_watching(device: Watched, launch: int) -> None:
    device.interrupt_at = launch
    with pytest.raises(KeyboardInterrupt):
        device.traced(1)


class Both(Watched, Timing):
    """Which way it goes."""

    def by(self, way: str | None = None, several: bool = False) -> Times:
        return self.graph_measure(self.g, self.g, STREAM, 1, 0, (), way, False, several)


@pytest.fixture
def both(libcuda: str, monkeypatch: pytest.MonkeyPatch) -> Both:
    device = Both(libcuda)
    device.diamond()
    monkeypatch.setattr(cupti, 'profiler', lambda: device.watcher)
    real, others = threading.active_count, threading.active_count() - 1  # as those of pytest-xdist, which do not count
    monkeypatch.setattr(threading, 'active_count', lambda: real() - others)
    return device


@contextmanager
def another_thread() -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_the_profiler_is_taken_where_it_can_be_had(both: Both) -> None:
    assert [both.by(by).by for by in (None, 'profiler')] == ['profiler'] * 2
    assert both.by('events').by == 'events'


def test_beside_another_thread_the_profiler_has_to_be_asked_for(both: Both) -> None:
    with another_thread():
        times = both.by()
        assert times.by == 'events' and times.note.startswith('By events: there are other threads')
        assert both.cupti.calls == 0
        assert both.by('profiler').by == 'profiler'


def test_events_do_not_stand_in_on_several_devices(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:

    assert both.by(several=True).by == both.by('profiler', True).by == 'profiler'
    both.blind = 1
    with pytest.raises(Untraceable, match='no launch of this graph'):
        both.by(several=True)
    with another_thread():
        with pytest.raises(Untraceable, match='there are other threads'):
            both.by(several=True)
        assert both.by('profiler', True).by == 'profiler'
    monkeypatch.setattr(cupti, 'profiler', lambda: 'CUPTI is not installed')
    with pytest.raises(Untraceable, match='CUPTI is not installed'):
        both.by(several=True)


def test_that_cupti_stays_is_said(both: Both) -> None:
    both.other = 1
    assert both.by().note == cupti.STAYS
    both.blind = 1  # no launch is seen whole: by events, and another one was seen all the same
    times = both.by()
    assert times.by == 'events' and times.note.endswith(f'every node. {cupti.STAYS}')
    both.blind = 1
    with pytest.raises(Untraceable, match='CUPTI stays attached'):
        both.by('profiler')


def test_where_calls_were_watched_cupti_stays(both: Both) -> None:
    """Detached after a watch, it would end the process at the next call of a new thread."""
    assert both.by().note == '' and both.cupti.open() == [False, False, False, set()]
    both.watcher.watched = True
    assert both.by().note == cupti.WATCHED
    assert both.cupti.open() == [True, False, False, set()]


def test_beside_another_profiler_events_are_taken(both: Both) -> None:
    both.cupti.others = True
    times = both.by()
    assert (times.by, times.note) == ('events', 'By events: another profiler uses CUPTI in this process.')
    with pytest.raises(Untraceable, match='another profiler'):
        both.by('profiler')
    assert both.left() == [0, 0, 0, 0]


def test_an_older_cupti_and_host_functions(both: Both) -> None:
    _g, handles = both.graph([(KERNEL, 4.0), (KERNEL, 8.0)], [(0, 1)])
    both.cupti.knows_host = False
    assert both.by().by == 'profiler', 'not asked for where there are none'
    real = cupti.Reader.kind
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupti.Reader, 'kind', lambda self, n: 'host' if n == handles[1] else real(self, n))
        times = both.by()
    assert times.by == 'events' and 'does not record host functions' in times.note
    assert both.cupti.open() == [False, False, False, set()]


def test_without_cupti_the_note_says_what_to_install(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti, 'profiler', lambda: 'CUPTI is not installed (pip install nvidia-cuda-cupti)')
    assert both.by().note.endswith('(pip install nvidia-cuda-cupti).')
