"""Marks around the nodes of a driver's graph. The driver is a small one, compiled here: its graphs have edges, its
launches a clock, and any of its calls can be made to fail."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from capturekit.driver.event_timing import Times, measured
from capturekit.driver.graph_edges import EdgeWriter
from capturekit.driver.node_reader import Reader
from capturekit.graph.measure import timeline
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

DRIVER = 'event_timing.c'
KERNEL, COPY, EMPTY = 0, 1, 5
STREAM = 0x1100
#: Data of an edge that lets a kernel begin before the one before it has ended: from_port 1, type programmatic.
EARLY = 1 | 1 << 16


class Device:
    """The verbs that measuring needs, of the small driver."""

    def __init__(self, library: str) -> None:
        self.lib = ctypes.CDLL(library)
        for name in ('make', 'node'):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.reader = Reader()
        self.interrupt_at = 0
        self.heeding: list[bool] = []
        self.begin()

    def begin(self, mark: float = 1.5, launch: float = 6.0) -> None:
        self.lib.begin(ctypes.c_double(mark), ctypes.c_double(launch))

    def number(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.lib, name).value

    def fail_at(self, call: int) -> None:
        ctypes.c_int.in_dll(self.lib, 'fail_at').value = call

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self.lib, name)(*args)
        if code:
            raise CudaCallError(Code(code), name)

    def _made(self, name: str, of: int) -> int:
        made = ctypes.c_void_p()
        self._call(name, ctypes.c_void_p(of), ctypes.byref(made))
        return made.value or 0

    def graph_clone(self, g: int) -> int:
        return self._made('clone', g)

    def graph_instantiate(self, g: int, by_node_priority: bool = False) -> int:
        self.heeding.append(by_node_priority)
        return self._made('instantiate', g)

    def graph_destroy(self, g: int) -> None:
        self._call('destroy', ctypes.c_void_p(g))

    def graph_exec_destroy(self, x: int) -> None:
        self._call('destroy_executable', ctypes.c_void_p(x))

    def graph_upload(self, x: int, s: int) -> None:
        self._call('upload', ctypes.c_void_p(x))

    def graph_launch(self, x: int, s: int) -> None:
        self._call('launch', ctypes.c_void_p(x))
        if self.interrupt_at and self.number('launches') == self.interrupt_at:
            raise KeyboardInterrupt

    def stream_synchronize(self, s: int) -> None:
        self._call('synchronize')

    def node_enable(self, x: int, node: int, on: bool) -> None:
        self._call('enable', ctypes.c_void_p(x), ctypes.c_void_p(node), int(on))

    # -- graphs -------------------------------------------------------------------------------------------------

    def graph(self, costs: list[tuple[int, float]], edges: list[tuple[int, ...]]) -> tuple[int, list[int]]:
        """A graph of nodes of a kind and a cost, and their handles; edges are (from, to) or (from, to, data)."""
        g = self.lib.make()
        made = [self.lib.node(ctypes.c_void_p(g), kind, ctypes.c_double(cost)) for kind, cost in costs]
        for a, b, *data in edges:
            how = ctypes.c_ulonglong(data[0] if data else 0)
            self.lib.edge(ctypes.c_void_p(g), ctypes.c_void_p(made[a]), ctypes.c_void_p(made[b]), how)
        return g, made

    def measured(self, g: int, launches: int = 3, warmup: int = 1, off: tuple[int, ...] = ()) -> Times:
        return measured(self, self.reader, g, g, STREAM, launches, warmup, off)

    def left(self) -> list[int]:
        """What was made and not destroyed."""
        return [self.number(name) for name in ('events', 'graphs', 'executables', 'running')]


@pytest.fixture
def device(libcuda: str) -> Device:
    return Device(libcuda)


#: A root, two lanes of which one has an empty node in it, a join; and a node that nothing orders.
DIAMOND = [(KERNEL, 10.0), (KERNEL, 20.0), (COPY, 7.0), (EMPTY, 0.0), (KERNEL, 8.0), (KERNEL, 5.0), (KERNEL, 40.0)]
EDGES: list[tuple[int, ...]] = [(0, 1), (0, 2), (2, 3), (3, 4, 0), (1, 5), (4, 5)]
RAN = [(0, 10), (10, 30), (10, 17), None, (17, 25), (30, 35), (0, 40)]


def found(times: Times, handles: list[int], edges: list[tuple[int, ...]]) -> Any:
    numbers = {handle: number for number, handle in enumerate(handles)}
    return timeline(times, numbers, [(a, b) for a, b, *_ in edges], len(handles))


def close(got: list[Any], want: list[Any]) -> bool:
    return [None if one is None else pytest.approx(one, abs=0.02) for one in want] == got


def test_start_and_end_of_each_node(device: Device) -> None:
    g, handles = device.graph(DIAMOND, EDGES)
    line = found(device.measured(g), handles, EDGES)
    assert close(line.nodes, RAN)
    assert (line.source, line.launches) == ('measured', 3)
    assert line.mark_us == pytest.approx(1.5, abs=0.01)
    assert line.span_us == pytest.approx(40, abs=0.02)
    assert line.plain_us == pytest.approx(40 + 6, abs=0.1)
    assert line.marked_us > 40 + 2
    assert line.spread_us == pytest.approx([0] * 7, abs=0.02)
    assert device.number('launches') == 2 * 4
    assert device.left() == [0, 0, 0, 0]


def test_the_clone_heeds_priorities_where_the_graph_does(device: Device) -> None:
    g, _handles = device.graph(DIAMOND, EDGES)
    for by_node_priority in (False, True):
        measured(device, device.reader, g, g, STREAM, 1, 0, (), by_node_priority)
    assert device.heeding == [False, True]


def test_early_start_edges_are_removed_with_their_data(device: Device) -> None:
    g, handles = device.graph([(KERNEL, 3.0), (KERNEL, 4.0)], [(0, 1, EARLY)])
    assert close(found(device.measured(g), handles, [(0, 1)]).nodes, [(0, 3), (3, 7)])
    assert edges_of(g) == [(handles[0], handles[1])], 'the graph itself stays as it is'


def test_what_is_disabled_is_so_in_the_clone_and_has_no_time(device: Device) -> None:
    g, handles = device.graph([(KERNEL, 3.0), (KERNEL, 50.0), (KERNEL, 4.0)], [(0, 1), (1, 2)])
    line = found(device.measured(g, off=(handles[1],)), handles, [(0, 1), (1, 2)])
    assert close(line.nodes, [(0, 3), None, (3, 7)])
    assert device.number('enabled') == 1


def test_drivers_without_data_at_edges(device: Device) -> None:
    """Before CUDA 12.3: the same functions, without the data."""

    class Old:
        def __init__(self, new: Any) -> None:
            self._new = new
            self.asked: list[str] = []

        def __getattr__(self, name: str) -> Any:
            if name.endswith('Dependencies_v2') or name == 'cuGraphGetEdges_v2':
                raise AttributeError(name)
            if name.endswith('Dependencies') or name == 'cuGraphGetEdges':
                self.asked.append(name)
                return lambda g, a, b, count: getattr(self._new, f'{name}_v2')(g, a, b, self._data(count), count)
            return getattr(self._new, name)

        def _data(self, count: Any) -> Any:
            size = count.value if isinstance(count, ctypes.c_size_t) else 64
            return (ctypes.c_ulonglong * size)()

    old = device.reader.library = Old(device.reader.library)
    g, handles = device.graph(DIAMOND, EDGES)
    assert close(found(device.measured(g), handles, EDGES).nodes, RAN)
    assert set(old.asked) == {'cuGraphGetEdges', 'cuGraphRemoveDependencies', 'cuGraphAddDependencies'}


def edges_of(g: int) -> list[tuple[int, int]]:
    return [(a, b) for a, b, _data in EdgeWriter(Reader()).edges(g)]


def test_edges_are_moved_all_or_none(device: Device) -> None:
    """Where the second of the two calls fails, the first one is undone, early starts included."""
    g, handles = device.graph([(KERNEL, 3.0)] * 4, [(0, 1, EARLY), (1, 2, EARLY), (2, 3, EARLY)])
    first, second, third, last = handles
    edges = EdgeWriter(device.reader)
    edges.rewire(g, [(first, second)], [])
    assert set(edges.edges(g)) == {(second, third, EARLY), (third, last, EARLY)}
    edges.rewire(g, [], [(first, third)])
    assert set(edges.edges(g)) == {(second, third, 0), (first, third, 0), (third, last, EARLY)}, (
        'a join starts none early'
    )
    with pytest.raises(CudaCallError):
        edges.rewire(g, [(third, last)], [(first, third)])
    assert set(edges.edges(g)) == {(second, third, 0), (first, third, 0), (third, last, EARLY)}


# -- the way out ------------------------------------------------------------------------------------------------


def test_whatever_fails_all_is_destroyed(device: Device) -> None:
    g, handles = device.graph(DIAMOND[:3], EDGES[:2])
    device.begin()
    device.measured(g, 1, 1, (handles[2],))
    total = device.number('calls')
    assert total > 100
    for call in range(1, total + 1):
        device.begin()
        device.fail_at(call)
        with pytest.raises(CudaCallError) as info:
            device.measured(g, 1, 1, (handles[2],))
        assert info.value.code is Code.cudaErrorMemoryAllocation
        assert device.left() == [0, 0, 0, 0], f'call {call} of {total}'
    assert edges_of(g) == [(handles[0], handles[1]), (handles[0], handles[2])]


@pytest.mark.parametrize('launch', [1, 2, 3, 4])
def test_an_interrupt_waits_for_what_runs_and_destroys_all(device: Device, launch: int) -> None:
    g, _handles = device.graph(DIAMOND, EDGES)
    device.interrupt_at = launch
    with pytest.raises(KeyboardInterrupt):
        device.measured(g, 1, 1)
    assert device.left() == [0, 0, 0, 0]


def test_a_refusal_on_the_way_out_does_not_hide_the_first_one(device: Device) -> None:
    g, _handles = device.graph(DIAMOND, EDGES)
    device.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        device.measured(g, 1, 1)
    last = device.number('calls')
    device.begin()
    device.fail_at(last)  # the last of the destructions
    with pytest.raises(KeyboardInterrupt):
        device.measured(g, 1, 1)
    assert device.left() == [0, 0, 0, 0]
