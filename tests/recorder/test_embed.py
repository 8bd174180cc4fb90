"""Graphs in captures, and captures into graphs that exist."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import capturekit as ck
from capturekit import render
from capturekit.driver.cuda import current
from tests.captured import flag, graph_at, launched, recorded, values


def test_a_graph_in_a_capture(cp: Any) -> None:
    x = cp.ones(4)
    graph, y = recorded(lambda: x * 2 + 1)
    with ck.capture() as cap:
        x += 1
        cap.embed(graph)
        z = y * 10
        cap.embed(graph)
    assert [node.kind for node in cap.graph.nodes].count('graph') == 2
    (first, *_rest) = (node for node in cap.graph.nodes if node.kind == 'graph')
    assert len(first.inner) == 2 and first.at is not None
    for n in (2.0, 3.0):
        assert launched(cap, y, z) == [[2 * n + 1] * 4, [20 * n + 10] * 4]


def test_an_embedded_graph_lives_on(cp: Any) -> None:
    """It is closed, and nobody holds it: what it reads and writes is there for the graph around it."""
    x = cp.ones(1 << 16)
    called: list[int] = []

    def fn() -> Any:
        cp.cuda.get_current_stream().launch_host_func(called.append, 5)
        return x * 2 + 1

    graph, y = recorded(fn)
    with ck.capture() as cap:
        cap.embed(graph)
        z = y + 1
    graph.close()
    del graph, fn
    gc.collect()
    fill = cp.full(1 << 17, 99.0)
    assert launched(cap, z[:2]) == [[4.0, 4.0]] and called == [5]
    assert values(fill[:1]) == [99.0]
    cap.graph.close()
    assert cap.graph.memory_bytes == 0


def test_a_closed_one_gives_its_memory_back_with_the_last(sim: Any) -> None:
    graph, _y = recorded(lambda: sim.ones(1 << 16) + 1)
    memory = graph._state.memory
    with ck.capture() as cap:
        cap.embed(graph)
    cap.graph.close()
    assert memory.used_bytes() > 0
    del cap
    gc.collect()
    graph.launch()
    graph.close()
    assert memory.used_bytes() == 0


def test_on_lanes(cp: Any) -> None:
    x = cp.ones(4)
    one, a = recorded(lambda: x * 2)
    two, b = recorded(lambda: x * 3)
    with ck.capture() as cap:
        with cap.fork(2) as (left, right):
            with left:
                cap.embed(one)
            with right:
                cap.embed(two)
                with pytest.raises(ck.UnsupportedCallError, match='already on a lane that may run beside this one'):
                    cap.embed(one)
        cap.embed(one)
        c = a + b
    assert launched(cap, c) == [[5.0] * 4]
    assert [node.lane for node in cap.graph.nodes if node.kind == 'graph'] == [1, 2, 0]


def test_in_the_body_of_a_loop(cp: Any) -> None:
    x, left = cp.ones(4), cp.zeros((), 'i4')

    def double() -> None:
        cp.multiply(x, 2, out=x)

    graph, _none = recorded(double)
    with ck.capture() as cap:
        left.fill(3)
        with cap.while_(left):
            cap.embed(graph)
            left -= 1
    assert launched(cap, x) == [[8.0] * 4]


def test_what_can_not_be_embedded(cp: Any) -> None:
    x = cp.ones(4)

    def reads() -> Any:
        return x + 1 if float(x.sum()) > 0 else x

    with ck.capture() as deciding, deciding.if_(flag(cp)):
        x += 1
    with ck.capture(rehearsal=ck.rehearse(reads)) as checked:
        reads()
    closed, _y = recorded(lambda: x + 1)
    closed.close()
    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match='conditional'):
            cap.embed(deciding.graph)
        with pytest.raises(ck.UnsupportedCallError, match='in several parts'):
            cap.embed(checked.graph)
        with pytest.raises(ck.ClosedError):
            cap.embed(closed)
        with pytest.raises(TypeError, match=r'a capturekit\.Graph'):
            cap.embed(deciding)  # type: ignore[arg-type]
        y = x * 3
    assert launched(cap, y) == [[3.0] * 4]
    with pytest.raises(ck.ClosedError):
        cap.embed(cap.graph)


class Handmade:
    """A definition that capturekit did not make: CUDA's handle, nothing else."""

    def __init__(self) -> None:
        self.device = current().device
        self.handle = self.device.graph_create()

    def launch(self, cp: Any) -> None:
        executable = self.device.graph_instantiate(self.handle)
        stream = cp.cuda.Stream(non_blocking=True)
        cp.cuda.Device().synchronize()  # this stream does not wait for what CuPy does on the null stream
        self.device.graph_launch(executable, stream.ptr)
        stream.synchronize()
        self.device.graph_exec_destroy(executable)

    def close(self, *caps: Any) -> None:
        self.device.graph_destroy(self.handle)
        for cap in caps:
            cap.close()
            cap.close()


@pytest.fixture
def made(cp: Any) -> Handmade:
    return Handmade()


def test_a_diamond_of_four_captures(cp: Any, made: Handmade) -> None:
    x = cp.ones(4)
    with ck.capture(into=graph_at(made.handle)) as a:
        y = x * 2
    with ck.capture(into=graph_at(made.handle), after=a.ends) as b:
        left = y + 1
    with ck.capture(into=graph_at(made.handle), after=a.ends) as c:
        right = y + 2
        right *= 2
    with ck.capture(into=graph_at(made.handle), after=[*b.ends, *c.ends]) as d:
        z = left * right
    nodes = made.device.graph_nodes(made.handle)
    assert len(nodes) == 5
    assert set(made.device.graph_edges(made.handle)) == {
        (nodes[0], nodes[1]), (nodes[0], nodes[2]), (nodes[2], nodes[3]), (nodes[1], nodes[4]), (nodes[3], nodes[4]),
    }  # fmt: skip
    assert [cap.recording.node_count for cap in (a, b, c, d)] == [1, 1, 2, 1]
    assert [sum(span.count for span in cap.recording.spans) for cap in (a, b, c, d)] == [1, 1, 2, 1]
    made.launch(cp)
    assert values(z) == [3.0 * 8] * 4
    x.fill(2)
    made.launch(cp)
    assert values(z) == [5.0 * 12] * 4
    made.close(a, b, c, d)


def test_memory_is_held_until_close(cp: Any, made: Handmade) -> None:
    x, out = cp.ones(1 << 16), cp.zeros(1 << 16)
    with ck.capture(into=graph_at(made.handle)) as cap:
        out[...] = x * 2 + 1
    with pytest.raises(ck.ClosedError, match='graph of yours'):
        cap.graph  # noqa: B018
    memory = cap._live.memory  # type: ignore[union-attr]
    del cap
    gc.collect()
    junk = cp.full(1 << 17, 7.0)
    made.launch(cp)
    assert values(out[:2]) == [3.0, 3.0] and values(junk[:1]) == [7.0]
    assert memory is not None and memory.used_bytes() > 0
    made.close()


def test_decisions_and_lanes_go_into_a_graph_too(cp: Any, made: Handmade) -> None:
    x, left = cp.ones(4), cp.zeros((), 'i4')
    with ck.capture(into=graph_at(made.handle)) as cap:
        left.fill(4)
        with cap.while_(left):
            x *= 2
            left -= 1
        with cap.fork(2) as (one, two):
            with one:
                a = x + 1
            with two:
                b = x + 2
    assert len(cap.ends) == 2
    with ck.capture(into=graph_at(made.handle), after=cap.ends) as last:
        c = a + b
    made.launch(cp)
    assert values(c) == [35.0] * 4
    made.close(cap, last)


@pytest.mark.parametrize('how', ['an exception', 'unjoined', 'a read', 'numbers'])
def test_a_capture_that_fails_leaves_the_graph_as_it_was(cp: Any, made: Handmade, how: str) -> None:
    x = cp.ones(4)
    with ck.capture(into=graph_at(made.handle)) as first:
        y = x * 2
    before = made.device.graph_nodes(made.handle)
    wanted = {'an exception': KeyError, 'unjoined': ck.UnjoinedError, 'a read': ck.HostReadError}
    with (
        pytest.raises(wanted.get(how, ck.UnsupportedCallError)),
        ck.capture(into=graph_at(made.handle)) as cap,
    ):
        x + 3
        with cap.if_(flag(cp)):
            x += 1
        if how == 'an exception':
            raise KeyError
        if how == 'a read':
            float(x.sum())
        if how == 'numbers':
            cp.random.RandomState(1).random_sample(3)
        side = cp.cuda.Stream(non_blocking=True)
        side.wait_event(cap.stream.record())
        with side:
            x + 1
    after = made.device.graph_nodes(made.handle)
    left = [node for node in after if made.device.node_kind(made.handle, node)[0] == 'conditional']
    assert [node for node in after if node not in left] == before
    assert len(left) == 1 and not made.device.graph_edges(made.handle)
    with pytest.raises(ck.ClosedError):
        cap.ends  # noqa: B018
    cap.close()
    made.launch(cp)
    assert values(y) == [2.0] * 4 and values(x) == [1.0] * 4
    made.close(first)


def test_bad_targets(sim: Any) -> None:
    made = Handmade()
    graph, _y = recorded(lambda: sim.ones(3) + 1)
    for into in ('graph', 1.5, True, graph, object(), 3, made, made.handle):
        with pytest.raises(TypeError, match='into must be'):
            ck.capture(into=into)
    with pytest.raises(TypeError, match='after= names nodes'):
        ck.capture(after=[1])
    with pytest.raises(TypeError, match='after must be nodes'):
        ck.capture(into=graph_at(made.handle), after=['a'])
    with pytest.raises(ValueError, match='a rehearsal is checked'):
        ck.capture(rehearsal=ck.rehearse(lambda: None), into=graph_at(made.handle))
    with (
        pytest.raises(ValueError, match='1 of the nodes are not in the graph'),
        ck.capture(into=graph_at(made.handle), after=7),
    ):
        pass
    with ck.capture() as cap:
        with pytest.raises(ck.ClosedError):
            cap.close()
        sim.ones(3) + 1
    with pytest.raises(ck.ClosedError):
        cap.ends  # noqa: B018
    cap.close()
    assert cap.graph.closed
    made.close()


def test_any_graph_is_looked_into(cp: Any, made: Handmade) -> None:
    x = cp.ones(4)
    with ck.capture(into=graph_at(made.handle)) as cap:
        y = x * 2
        y.fill(3)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        cp.multiply(x, 2, out=y)
        plain = stream.end_capture()
    ours, _y = recorded(lambda: x * 2 + 1)
    kinds = [[node.kind for node in ck.look(graph).graph] for graph in (graph_at(made.handle), plain, ours)]
    assert kinds[0][0] == 'kernel' and len(kinds[0]) == 2
    assert kinds[1] == ['kernel'] and kinds[2] == ['kernel', 'kernel']
    assert ck.look(graph_at(made.handle)).arrows == [(0, 1)]
    for wrong in ('graph', True, None, made.handle, made):
        with pytest.raises(TypeError, match=r'look\(\) takes a graph'):
            ck.look(wrong)
    made.close(cap)


@pytest.mark.gpu
def test_every_kind_of_node_is_made_read_and_drawn() -> None:
    """All but semaphores, which nothing here exports."""
    cp = pytest.importorskip('cupy')
    core, graphs = pytest.importorskip('cuda.core'), pytest.importorskip('cuda.core.graph')
    device = core.Device()
    device.set_current()
    definition, child = graphs.GraphDefinition(), graphs.GraphDefinition()
    child.empty()
    x, y = cp.ones(64), cp.ones(64)
    event = device.create_event()
    node = definition.allocate(256)
    node.deallocate(node.dptr)
    definition.memcpy(x.data.ptr, y.data.ptr, x.nbytes).memset(x.data.ptr, 0, x.nbytes)
    definition.callback(lambda: None)
    definition.record(event).wait(event)
    definition.embed(child)
    definition.empty()
    definition.if_then(definition.create_condition(0))
    with ck.capture(into=definition) as cap:
        cp.add(x, 1, out=y)
    recording = ck.look(definition)
    kinds = {node.kind for node in recording.graph}
    assert kinds == {
        'kernel', 'memcpy', 'memset', 'host', 'empty', 'event record', 'wait event', 'graph', 'mem alloc', 'mem free',
        'conditional',
    }  # fmt: skip
    for draw in (render.to_text, render.to_dot, render.to_svg):
        drawn = draw(recording)
        assert all(kind in drawn for kind in ('memcpy', 'memset', 'conditional', 'mem alloc'))
    cap.close()


# -- beside cuda.core -----------------------------------------------------------------------------------------------

ADD = """
extern "C" __global__ void add(const double* a, const double* b, double* c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
"""


@pytest.mark.gpu
def test_a_diamond_half_built_and_half_recorded() -> None:
    """A -> B, C -> D: B is recorded, the others are kernel nodes of cuda.core's."""
    cp = pytest.importorskip('cupy')
    core = pytest.importorskip('cuda.core')
    graphs = pytest.importorskip('cuda.core.graph')
    core.Device().set_current()
    options = core.ProgramOptions(arch=f'sm_{core.Device().arch}')
    code = core.Program(ADD, code_type='c++', options=options).compile('cubin')
    kernel, config = code.get_kernel('add'), core.LaunchConfig(grid=1, block=32)
    x, y = cp.arange(8.0), cp.arange(8.0)
    a, b, c, d = (cp.zeros(8) for _ in range(4))

    def add(one: Any, two: Any, out: Any) -> tuple[Any, ...]:
        return (config, kernel, one.data.ptr, two.data.ptr, out.data.ptr, cp.int32(8))

    definition = graphs.GraphDefinition()
    first = definition.launch(*add(x, y, a))
    with ck.capture(into=definition, after=[first]) as left:
        cp.add(a, x, out=b)
    right = first.launch(*add(a, y, c))
    definition.join(*left.ends, right).launch(*add(b, c, d))
    cp.cuda.get_current_stream().synchronize()  # the graph is launched on a stream that does not wait for it
    stream = core.Device().create_stream()
    executable = definition.instantiate()
    executable.launch(stream)
    stream.sync()
    assert values(d) == [6.0 * i for i in range(8)]
    left.close()


@pytest.mark.parametrize('copied', [False, True])
def test_a_graph_in_a_graph_in_a_graph_is_its_own(cp: Any, copied: bool) -> None:
    """Whatever becomes of those that it is a copy of."""
    x = cp.zeros(4)
    graph, _ = recorded(lambda: x.__iadd__(1))
    around = graph
    for _ in range(2):
        with ck.capture() as cap:
            cap.embed(around)
        around, before = cap.graph, around
    last = around.clone() if copied else around
    before.close()
    graph.close()
    if copied:
        around.close()
    assert [node.kind for node in last.nodes] == ['graph'] and last.edges == []
    last.launch()
    assert x.get().tolist() == [1.0] * 4
