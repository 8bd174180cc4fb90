"""One contract, two devices: changes of nodes, of the simulated device and of CUDA's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code, Mode
from capturekit.simulated.device.machine import SimulatedDevice
from tests.simulated.bench import Bench, refused


def launched(b: Bench, x: int, *cells: int) -> list[int]:
    """What cells hold after a launch before which the first eight were 0."""
    s = b.stream()
    for number in range(8):
        b.fill(s, number, 0)
    b.device.graph_launch(x, s)
    b.device.stream_synchronize(s)
    return [b.read(number) for number in cells]


def fills(b: Bench, *cells: tuple[int, int]) -> int:
    """A graph that fills cells one after the other."""
    return b.recorded(lambda s: [b.fill(s, *cell) for cell in cells])


def parted(b: Bench, left: Callable[[int], None], right: Callable[[int], None], swapped: bool = False) -> int:
    """A graph of a fork behind a fill; its lanes are recorded in this order or the other, and nothing comes after."""

    def record(s: int) -> None:
        d, lane, e = b.device, b.stream(), b.device.event_create()
        b.fill(s, 0, 1)
        d.event_record(e, s)
        d.stream_wait_event(lane, e)
        for work, on in ((right, lane), (left, s)) if swapped else ((left, s), (right, lane)):
            work(on)
        d.event_record(e, lane)
        d.stream_wait_event(s, e)

    return b.recorded(record)


def test_a_kernels_node_has_a_priority_of_its_own(bench: Bench) -> None:
    d = bench.device
    least, greatest = d.priorities()
    assert greatest < least == 0
    g = parted(bench, lambda s: bench.put(s, 1, 2), lambda s: bench.put(s, 2, 3))
    kernels = [info.handle for info in d.node_infos(g) if info.kind == 'kernel']
    assert len(kernels) == 2 and [d.node_priority(g, node) for node in kernels] == [0, 0]
    d.set_node_priority(g, kernels[1], greatest)
    assert [d.node_priority(g, node) for node in kernels] == [0, greatest]
    aim = d.kernel_aim(g, kernels[1])
    aim.define()
    assert d.node_priority(g, kernels[1]) == greatest, 'other parameters leave it'
    for by_priority in (False, True):
        x = d.graph_instantiate(g, by_priority)
        assert launched(bench, x, 0, 1, 2) == [1, 2, 3]
        d.graph_exec_destroy(x)
    d.graph_destroy(g)


def test_an_executable_graph_takes_over_another(bench: Bench) -> None:
    d = bench.device
    old, new = fills(bench, (0, 1), (1, 2)), fills(bench, (0, 7), (2, 9))
    x = d.graph_instantiate(old)
    assert launched(bench, x, 0, 1, 2) == [1, 2, 0]
    assert d.graph_exec_update(x, new) == ('', 0)
    assert launched(bench, x, 0, 1, 2) == [7, 0, 9]
    d.graph_destroy(new)
    assert launched(bench, x, 0, 1, 2) == [7, 0, 9]
    assert d.graph_exec_update(x, old) == ('', 0)
    assert launched(bench, x, 0, 1, 2) == [1, 2, 0]
    d.graph_exec_destroy(x)
    d.graph_destroy(old)


def kernels(b: Bench, priority: int) -> int:
    """A graph of a kernel on the origin, and one beside it on a lane of this priority."""

    def record(s: int) -> None:
        d, lane, e = b.device, b.device.stream_create(True, priority), b.device.event_create()
        b.streams.append(lane)
        d.event_record(e, s)
        d.stream_wait_event(lane, e)
        b.put(lane, 1, 2)
        b.put(s, 0, 1)
        d.event_record(e, lane)
        d.stream_wait_event(s, e)

    return b.recorded(record)


def test_heeded_node_priorities_can_not_change(bench: Bench) -> None:
    d = bench.device
    plain, quick, again = kernels(bench, 0), kernels(bench, -1), kernels(bench, -1)
    heeding, other = d.graph_instantiate(quick, by_node_priority=True), d.graph_instantiate(quick)
    for x in (heeding, other):
        assert d.graph_exec_update(x, again) == ('', 0)
        assert launched(bench, x, 0, 1) == [1, 2]
    said, node = d.graph_exec_update(heeding, plain)
    assert said == 'attributes changed'
    assert node in d.graph_nodes(plain)
    assert launched(bench, heeding, 0, 1) == [1, 2]
    assert d.graph_exec_update(other, plain) == ('', 0)
    for x in (heeding, other):
        d.graph_exec_destroy(x)


#: Graphs that can not take the place of two fills in a row, with CUDA's reason; and whether it names a node.
OTHERS: dict[str, tuple[Callable[[Bench], int], str, bool]] = {
    'fewer nodes': (lambda b: fills(b, (0, 7)), 'topology changed', False),
    'more nodes': (lambda b: fills(b, (0, 7), (1, 7), (2, 7)), 'topology changed', False),
    'another kind': (
        lambda b: b.recorded(lambda s: (b.fill(s, 0, 7), b.copy(s, b.cell(1), b.cell(0)))), 'node type changed', True,
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', OTHERS)
def test_updates_that_are_refused_change_nothing(bench: Bench, name: str) -> None:
    d = bench.device
    make, reason, named = OTHERS[name]
    old, new = fills(bench, (0, 1), (1, 2)), make(bench)
    x = d.graph_instantiate(old)
    said, node = d.graph_exec_update(x, new)
    assert said == reason
    assert (node in d.graph_nodes(new)) == named
    assert launched(bench, x, 0, 1) == [1, 2]
    assert d.graph_exec_update(x, old) == ('', 0)
    d.graph_exec_destroy(x)


def test_edges_must_be_the_same(bench: Bench) -> None:
    d = bench.device
    fork = parted(bench, lambda s: bench.fill(s, 1, 2), lambda s: bench.fill(s, 2, 3))
    row = fills(bench, (0, 1), (1, 2), (2, 3))
    for of, other in ((fork, row), (row, fork)):
        x = d.graph_instantiate(of)
        assert d.graph_exec_update(x, other)[0] == 'topology changed'
        assert launched(bench, x, 0, 1, 2) == [1, 2, 3]
        d.graph_exec_destroy(x)


def test_nodes_pair_once(bench: Bench) -> None:
    """As many nodes, last nodes and edges to each; but where one root has two behind it the other one has."""
    d, s = bench.device, bench.stream()

    def made(*roots: int) -> int:
        g, known = d.graph_create(), []
        for number, root in enumerate((None, None, *roots)):
            d.begin_capture_to(s, g, Mode.RELAXED, [] if root is None else [known[root]])
            bench.fill(s, number, number + 1)
            d.end_capture(s)
            known += [node for node in d.graph_nodes(g) if node not in known]
        return int(g)

    x = d.graph_instantiate(made(0, 0, 1))
    assert d.graph_exec_update(x, made(0, 0, 1)) == ('', 0)
    assert d.graph_exec_update(x, made(0, 1, 1))[0] == 'topology changed'
    assert launched(bench, x, *range(5)) == [1, 2, 3, 4, 5]
    d.graph_exec_destroy(x)


def test_the_order_of_different_last_nodes_does_not_matter(bench: Bench) -> None:
    """CUDA's guide says that it does; this is what drivers do (580.159.04, CUDA 13.0, 2026-11-21)."""
    d = bench.device

    def made(swapped: bool) -> int:
        copy = lambda s: bench.copy(s, bench.cell(1), bench.cell(0))  # noqa: E731
        return parted(bench, copy, lambda s: bench.fill(s, 2, 3), swapped)

    x = d.graph_instantiate(made(False))
    assert d.graph_exec_update(x, made(False)) == ('', 0)
    assert d.graph_exec_update(x, made(True)) == ('', 0)
    assert launched(bench, x, 0, 1, 2) == [1, 1, 3]
    d.graph_exec_destroy(x)


def test_an_update_may_change_the_memory_type_of_a_copy(bench: Bench) -> None:
    """CUDA's guide says that they may not; this is what drivers do (580.159.04, CUDA 13.0, 2026-11-21)."""
    d = bench.device
    device, other = (bench.recorded(lambda s, to=to: bench.copy(s, bench.cell(to), bench.cell(0))) for to in (1, 2))
    host = bench.recorded(lambda s: bench.copy(s, bench.cell(1), bench.pinned()))
    x = d.graph_instantiate(device)
    assert d.graph_exec_update(x, other) == ('', 0)
    assert d.graph_exec_update(x, host) == ('', 0)
    d.graph_exec_destroy(x)


def with_child(b: Bench, *cells: tuple[int, int]) -> int:
    d = b.device
    child, g = fills(b, *cells), d.graph_create()
    d.add_child(g, [], child)
    d.graph_destroy(child)
    return g


def test_child_graphs_are_updated_too(bench: Bench) -> None:
    d = bench.device
    g = with_child(bench, (0, 1), (1, 2))
    x = d.graph_instantiate(g)
    assert d.graph_exec_update(x, with_child(bench, (0, 5), (1, 6))) == ('', 0)
    assert launched(bench, x, 0, 1) == [5, 6]
    assert d.graph_exec_update(x, with_child(bench, (0, 7)))[0] != ''
    assert launched(bench, x, 0, 1) == [5, 6]
    (node,) = d.graph_nodes(g)
    child = fills(bench, (2, 8), (3, 9))
    d.child_take(x, node, child)
    assert launched(bench, x, 0, 1, 2, 3) == [0, 0, 8, 9]
    with pytest.raises(CudaCallError):
        d.child_take(x, node, fills(bench, (0, 7)))
    d.set_child(g, node, child)
    second = d.graph_instantiate(g)
    assert launched(bench, second, 0, 1, 2, 3) == [0, 0, 8, 9]
    refused(Code.cudaErrorGraphExecUpdateFailure, d.set_child, g, node, fills(bench, (0, 7)))
    for one in (x, second):
        d.graph_exec_destroy(one)


def test_conditions_and_bodies_are_updated_too(bench: Bench) -> None:
    d = bench.device

    def made(default: int, *cells: tuple[int, int]) -> int:
        g, s = d.graph_create(), bench.stream()
        _, body = d.add_if(g, [], d.condition_create(g, default))
        d.begin_capture_to(s, body)
        for cell in cells:
            bench.fill(s, *cell)
        d.end_capture(s)
        return int(g)

    x = d.graph_instantiate(made(0, (0, 1)))
    assert launched(bench, x, 0) == [0]
    assert d.graph_exec_update(x, made(1, (0, 5))) == ('', 0)
    assert launched(bench, x, 0) == [5]
    assert d.graph_exec_update(x, made(1, (0, 5), (1, 5)))[0] != ''
    assert launched(bench, x, 0) == [5]
    d.graph_exec_destroy(x)


def test_copies_of_graphs(bench: Bench) -> None:
    d = bench.device
    g = parted(bench, lambda s: bench.fill(s, 1, 2), lambda s: bench.fill(s, 2, 3))
    copy = d.graph_clone(g)
    mine, theirs = d.graph_nodes(g), d.graph_nodes(copy)
    assert len(theirs) == 3 and not set(mine) & set(theirs)
    of = dict(zip(mine, theirs))
    assert sorted(d.graph_edges(copy)) == sorted((of[a], of[b]) for a, b in d.graph_edges(g))
    assert [d.node_kind(copy, n) for n in theirs] == [d.node_kind(g, n) for n in mine]
    d.graph_destroy(g)
    x = d.graph_instantiate(copy)
    assert launched(bench, x, 0, 1, 2) == [1, 2, 3]
    d.graph_exec_destroy(x)
    d.graph_destroy(copy)
    conditional = d.graph_create()
    d.add_if(conditional, [], d.condition_create(conditional))
    with pytest.raises(CudaCallError):
        d.graph_clone(conditional)


def test_nodes_are_disabled_and_enabled(bench: Bench) -> None:
    d = bench.device
    g = fills(bench, (0, 1), (1, 2))
    first, second = d.graph_nodes(g)
    x, other = d.graph_instantiate(g), d.graph_instantiate(g)
    d.node_enable(x, first, False)
    assert [d.node_enabled(x, n) for n in (first, second)] == [False, True]
    assert d.node_enabled(other, first)
    assert (launched(bench, x, 0, 1), launched(bench, other, 0, 1)) == ([0, 2], [1, 2])
    assert d.graph_exec_update(x, fills(bench, (0, 5), (1, 6))) == ('', 0)
    assert launched(bench, x, 0, 1) == [0, 6], 'an update leaves it as it is'
    d.node_enable(x, first, True)
    assert launched(bench, x, 0, 1) == [5, 6]
    for one in (x, other):
        d.graph_exec_destroy(one)


def test_some_kinds_can_not_be_disabled(bench: Bench) -> None:
    d, e = bench.device, bench.device.event_create()
    g = bench.recorded(lambda s: d.event_record(e, s, True))
    x = d.graph_instantiate(g)
    for call in (lambda n: d.node_enable(x, n, False), lambda n: d.node_enabled(x, n)):
        with pytest.raises(CudaCallError):
            call(d.graph_nodes(g)[0])
    d.graph_exec_destroy(x)


def test_memsets_and_copies_are_given_something_else(bench: Bench) -> None:
    """The definition first, which changes no executable graph; then the executable graph takes it over."""
    d = bench.device
    g = bench.recorded(lambda s: (bench.fill(s, 0, 1), bench.copy(s, bench.cell(1), bench.cell(0))))
    fill, copy = d.graph_nodes(g)
    x = d.graph_instantiate(g)
    changes = [
        d.set_memset(g, fill, bench.cell(2), 5, 64),
        d.set_memcpy(g, copy, bench.cell(3), bench.cell(2), 32),
    ]
    assert [info.detail for info in d.node_infos(g)] == [
        {'dst': bench.cell(2), 'value': 5, 'bytes': 64}, {'dst': bench.cell(3), 'src': bench.cell(2), 'bytes': 32},
    ]  # fmt: skip
    filled, copied = (d.graph_accesses(g)[node] for node in (fill, copy))
    assert [(*one.extent, one.writes) for one in filled.accesses] == [(bench.cell(2), bench.cell(2) + 64, True)]
    assert {(*one.extent, one.writes) for one in copied.accesses} == {
        (bench.cell(3), bench.cell(3) + 32, True), (bench.cell(2), bench.cell(2) + 32, False),
    }  # fmt: skip
    assert filled.complete and copied.complete
    assert launched(bench, x, 0, 1, 2, 3) == [1, 1, 0, 0]
    assert [d.node_info(g, node) for node in (fill, copy)] == d.node_infos(g)
    for node in (fill, copy):
        d.node_take(x, node, g, node)
    assert launched(bench, x, 0, 1, 2, 3) == [0, 0, 5, 5]
    for change in changes:
        change.undo()
    for node in (fill, copy):
        d.node_take(x, node, g, node)
    assert launched(bench, x, 0, 1, 2, 3) == [1, 1, 0, 0]

    def to_host() -> None:
        d.set_memcpy(g, copy, bench.cell(1), bench.pinned(), 64)
        d.node_take(x, copy, g, copy)

    with pytest.raises(CudaCallError):
        to_host()
    assert launched(bench, x, 0, 1) == [1, 1]
    d.graph_exec_destroy(x)


def test_kernels_are_given_something_else(bench: Bench) -> None:
    d = bench.device
    g = bench.recorded(lambda s: bench.put(s, 0, 1))
    (node,) = d.graph_nodes(g)
    x = d.graph_instantiate(g)
    pointer, value = d.node_arguments(g, node)
    assert (pointer.data, value.data) == (np.uint64(bench.cell(0)).tobytes(), np.int32(1).tobytes())
    args = [np.uint64(bench.cell(1)).tobytes(), np.int32(9).tobytes()]
    change = d.set_kernel(g, node, (1, 1, 1), (2, 1, 1), 128, args)
    assert [one.data for one in d.node_arguments(g, node)] == args
    assert d.node_infos(g)[0].detail == {'grid': (1, 1, 1), 'block': (2, 1, 1), 'shared': 128}
    assert launched(bench, x, 0, 1) == [1, 0]
    d.node_take(x, node, g, node)
    assert launched(bench, x, 0, 1) == [0, 9]
    change.undo()
    d.node_take(x, node, g, node)
    assert launched(bench, x, 0, 1) == [1, 0]
    d.graph_exec_destroy(x)


def test_addresses_in_kernels_are_changed_again_and_again(bench: Bench) -> None:
    d = bench.device
    g = bench.recorded(lambda s: bench.put(s, 0, 1))
    (node,) = d.graph_nodes(g)
    x = d.graph_instantiate(g)
    aim = d.kernel_aim(g, node)
    assert [one.data for one in aim.arguments] == [one.data for one in d.node_arguments(g, node)]
    for cell in (1, 0, 2):
        aim.write(0, 0, bench.cell(cell))
        aim.put(x, node)
        assert launched(bench, x, 0, 1, 2) == [int(cell == n) for n in range(3)]
        assert d.node_arguments(g, node)[0].data == np.uint64(bench.cell(cell)).tobytes()
    d.graph_exec_destroy(x)


def test_an_executable_graph_takes_over_a_foreign_node(bench: Bench) -> None:
    """After an update the definition is another, and the executable graph's nodes have the handles of the first."""
    d = bench.device
    old, new = fills(bench, (0, 1), (1, 2)), fills(bench, (0, 5), (1, 6))
    x = d.graph_instantiate(old)
    assert d.graph_exec_update(x, new) == ('', 0)
    d.set_memset(new, d.graph_nodes(new)[1], bench.cell(2), 7, 64)
    d.node_take(x, d.graph_nodes(old)[1], new, d.graph_nodes(new)[1])
    assert launched(bench, x, 0, 1, 2) == [5, 0, 7]
    d.graph_exec_destroy(x)


def test_host_functions_are_exchanged(bench: Bench) -> None:
    d, called = bench.device, []
    g = bench.recorded(lambda s: bench.call(s, lambda: called.append('old')))
    (node,) = d.graph_nodes(g)
    assert d.node_kind(g, node)[0] == 'host'
    x = d.graph_instantiate(g)
    change = d.set_host(g, node, lambda: called.append('new'))
    launched(bench, x)
    assert called == ['old']
    d.node_take(x, node, g, node)
    launched(bench, x)
    assert called == ['old', 'new']
    change.undo()
    d.node_take(x, node, g, node)
    launched(bench, x)
    assert called == ['old', 'new', 'old']
    d.graph_exec_destroy(x)


def test_events_of_nodes_are_exchanged(bench: Bench) -> None:
    d, (one, two) = bench.device, bench.events()
    g = bench.recorded(lambda s: (bench.fill(s, 0, 1), d.event_record(one, s, True), d.stream_wait_event(s, one, True)))
    fill, record, wait = d.graph_nodes(g)
    assert [d.node_kind(g, n)[0] for n in (record, wait)] == ['event record', 'wait event']
    x = d.graph_instantiate(g)
    for node in (record, wait):
        d.set_event(g, node, two)
        d.node_take(x, node, g, node)
    assert launched(bench, x, 0) == [1]
    with pytest.raises(CudaCallError):
        d.set_event(g, fill, two)
    d.graph_exec_destroy(x)


@pytest.mark.serial
def test_nodes_are_timed(bench: Bench) -> None:
    """A row, a lane beside it, and a node that is disabled; launched as often as it is said."""
    d, s, called = bench.device, bench.stream(), []

    def lanes(s: int) -> None:
        lane, e = bench.stream(), d.event_create()
        bench.fill(s, 0, 1)
        d.event_record(e, s)
        d.stream_wait_event(lane, e)
        bench.copy(s, bench.cell(1), bench.cell(0))
        bench.put(lane, 2, 3)
        bench.fill(lane, 3, 4)
        d.event_record(e, lane)
        d.stream_wait_event(s, e)
        bench.call(s, lambda: called.append(1))

    g = bench.recorded(lanes)
    fill, copy, put, off, host = d.graph_nodes(g)
    x = d.graph_instantiate(g)
    d.node_enable(x, off, False)
    for number in range(8):
        bench.fill(s, number, 0)
    times = d.graph_measure(g, x, s, 3, 2, [off])
    assert [bench.read(number) for number in range(4)] == [1, 1, 3, 0]
    assert len(called) == 2 * (3 + 2)
    assert times.source == ('modelled' if isinstance(d, SimulatedDevice) else 'measured')
    assert times.nodes.keys() == {fill, copy, put, host}
    assert len(times.plain) == len(times.marked) == 3 and min(times.mark) >= 0
    for number in range(3):
        ran = {node: pairs[number] for node, pairs in times.nodes.items()}
        assert len(times.nodes[fill]) == 3
        assert all(0 <= start <= end <= times.marked[number] for start, end in ran.values())
        for before, after in ((fill, copy), (fill, put), (copy, host), (put, host)):
            # by events, marks on two queues of the device are stamped some microseconds apart: up to 3 were seen
            assert ran[before][1] <= ran[after][0] + 5
    assert sorted(d.graph_nodes(g)) == sorted((fill, copy, put, off, host)), 'the graph itself stays as it is'
    assert d.graph_time(x, s) > 0 and len(called) == 2 * (3 + 2) + 1
    d.graph_exec_destroy(x)
    conditional = d.graph_create()
    d.add_if(conditional, [], d.condition_create(conditional))
    x = d.graph_instantiate(conditional)
    with pytest.raises(CudaCallError):
        d.graph_measure(conditional, x, s, 1, 0, (), 'events')
    d.graph_exec_destroy(x)


# -- edges ------------------------------------------------------------------------------------------------------


def test_edges_are_removed_and_added(bench: Bench) -> None:
    d = bench.device
    g = fills(bench, (0, 1), (1, 2), (2, 3))
    first, second, third = d.graph_nodes(g)
    old = d.graph_instantiate(g)
    d.graph_rewire(g, [(first, second)], [(first, third)])
    assert d.graph_nodes(g) == [first, second, third]
    assert sorted(d.graph_edges(g)) == sorted([(first, third), (second, third)])
    for removed, added in (([(first, second)], []), ([], [(first, third)])):
        with pytest.raises(CudaCallError):
            d.graph_rewire(g, removed, added)
        assert sorted(d.graph_edges(g)) == sorted([(first, third), (second, third)])
    new = d.graph_instantiate(g)
    for x in (old, new):
        assert launched(bench, x, 0, 1, 2) == [1, 2, 3]
        d.graph_exec_destroy(x)


def decided(bench: Bench, *cells: tuple[int, int]) -> tuple[int, int]:
    """A graph of one conditional node, whose body fills cells one after the other; and the body."""
    d = bench.device
    g = d.graph_create()
    _node, body = d.add_if(g, [], d.condition_create(g, 1))
    s = bench.stream()
    d.begin_capture_to(s, body)
    for cell in cells:
        bench.fill(s, *cell)
    d.end_capture(s)
    return g, body


def test_edges_of_a_conditional_nodes_body_are_removed(bench: Bench) -> None:
    d = bench.device
    g, body = decided(bench, (0, 1), (1, 2))
    for rewired in (False, True):
        if rewired:
            d.graph_rewire(body, d.graph_edges(body), [])
            assert d.graph_edges(body) == []
        x = d.graph_instantiate(g)
        assert launched(bench, x, 0, 1) == [1, 2]
        d.graph_exec_destroy(x)
    d.graph_destroy(g)


def test_with_conditional_nodes_one_executable_at_a_time(bench: Bench) -> None:
    d = bench.device
    g, _body = decided(bench, (0, 1))
    first = d.graph_instantiate(g)
    with pytest.raises(CudaCallError, match='cudaErrorNotSupported'):
        d.graph_instantiate(g)
    assert launched(bench, first, 0) == [1]
    d.graph_exec_destroy(first)
    second = d.graph_instantiate(g)
    assert launched(bench, second, 0) == [1]
    d.graph_exec_destroy(second)
    d.graph_destroy(g)
