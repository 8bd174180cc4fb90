"""``graph.fuse()``, ``ck.capture(fuse=True)``, ``@ck.graphed(fuse=True)``: what they do, and what goes on to work."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.fusion.cuda_nodes import FusingError, nodes_of
from capturekit.fusion.elementwise import Elementwise
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, FusedStep
from capturekit.fusion.lines import Liveness
from capturekit.model.errors import ClosedError, CudaCallError, UpdateError
from capturekit.model.rules import Code
from tests.benchmarks import peers
from tests.fusion.compared import SAME, fused


def gelu(cp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + cp.tanh(0.8 * (x + 0.05 * x * x * x)))


def record(cp: Any, x: Any, **options: Any) -> tuple[ck.Graph, Any, Any]:
    """A graph of eight elementwise kernels, a sum, and three more; and its two results."""
    with ck.capture(**options) as cap:
        y = gelu(cp, x)
        total = y.sum()
        z = cp.sqrt(cp.abs(y)) * total
    return cap.graph, y, z


@pytest.fixture
def x(cp: Any) -> Any:
    return cp.linspace(-3, 3, 1000).astype('f4')


def launched(graph: ck.Graph, *arrays: Any) -> list[bytes]:
    for one in arrays:
        one.fill(0)
    graph.launch()
    return [one.get().tobytes() for one in arrays]


def test_a_graph_is_fused_and_gives_the_same(cp: Any, x: Any) -> None:
    graph, y, z = record(cp, x)
    before = launched(graph, y, z)
    only = graph.fuse(report=True)
    assert not only and only.kept == 'only a report was asked for' and len(graph.nodes) == 13 - (len(only.kernels) < 0)
    report = graph.fuse()
    assert report and report.compared == 'not yet' and graph.fuse() is report
    assert launched(graph, y, z) == before and report.compared == SAME
    assert launched(graph, y, z) == before
    first, last = report.kernels[0], report.kernels[-1]
    assert (len(first.nodes), first.elements, first.loads, len(last.nodes)) == (9, 1000, 1, 3)
    assert len(graph.nodes) == report.nodes - 8 - 2 == graph.recording.node_count


def test_a_fused_node_has_the_lines_of_all(cp: Any, x: Any) -> None:
    graph, _y, _z = record(cp, x, fuse=True)
    node = graph.nodes[0]
    assert [one.at.function for one in node.inner if one.at is not None] == ['gelu'] * 9
    assert len(node.detail['fused']) == 9 and 'test_fuse.py' in node.detail['fused'][0]
    assert node.at is not None and node.at.function == 'gelu' and graph.nodes[-1].at.function == 'record'
    assert 'cupy_multiply' in graph.describe().graph[0].detail['fused'][0]
    assert ck.Recording.from_json(graph.recording.to_json()).graph[0].detail == graph.recording.graph[0].detail
    assert 'fused' in graph.svg()


def test_the_report_tells_what_and_why(cp: Any, x: Any) -> None:
    with ck.capture(fuse=True) as cap:
        y = gelu(cp, x)
        z = y[1:] + y[:-1]
    text = str(cap.fused)
    assert text.startswith('10 nodes, 9 of them in 1 fused kernel\ncupy_fused_multiply_')
    assert '9 nodes over 1,000 elements, reads 1 array, writes ' in text
    assert 'not fused: node 9 (cupy_add' in text and 'no elementwise kernel of the same elements is next to it' in text
    assert text.endswith('the graph has these kernels now\nfirst launch: not yet')
    assert repr(cap.fused) == '<Fused: 10 nodes, 9 of them in 1 fused kernel>'
    del z


def test_where_nothing_can_be_fused_the_graph_stays(cp: Any, x: Any) -> None:
    with ck.capture(fuse=True) as cap:
        y = x.sum() if cp is not None else None
    assert not cap.fused and cap.fused.kept == 'no two elementwise kernels of the same elements follow each other'
    cap.graph.launch()
    assert float(y) == float(x.sum())


def test_what_fuse_refuses(cp: Any, x: Any) -> None:
    graph, _y, _z = record(cp, x)
    with pytest.raises(TypeError, match='fuse must be True, False or'):
        ck.graphed(fuse='yes')(gelu)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match='neither with into= nor with update='):
        ck.capture(fuse=True, update=graph)
    graph.disable(0)
    assert graph.fuse().kept == 'some of its nodes are switched off'
    graph.close()
    with pytest.raises(ClosedError):
        graph.fuse()
    with ck.capture() as cap:
        with pytest.raises(ClosedError):
            _ = cap.fused
        gelu(cp, x)
    cap.graph.relane()


def test_lanes_keep_their_order(cp: Any, x: Any) -> None:
    def work() -> list[Any]:
        out = [cp.zeros_like(x) for _ in range(2)]
        with ck.fork(2) as lanes:
            for lane, one in zip(lanes, out):
                with lane:
                    one += gelu(cp, x)
                    one *= 2
        return [*out, out[0] + out[1] * x]

    cap = fused(work)
    assert cap.fused.compared == SAME and len(cap.fused.kernels) == 3
    assert not cap.graph.races()


# -- the comparison ---------------------------------------------------------------------------------------------


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """Let fused kernels leave out what somebody sees."""
    known = Liveness.stores

    def stores(self: Any, run: Any, numbers: Any) -> Any:
        found = known(self, run, numbers)
        return {key: False if n == 1 else needed for n, (key, needed) in enumerate(found.items())}

    patch.setattr(Liveness, 'stores', stores)


def test_a_graph_that_differs_is_as_recorded_again(cp: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with ck.capture() as cap:
        y = x * 2
        z = y + 1
    expected = launched(cap.graph, y, z)
    forgetful(monkeypatch)
    report = cap.graph.fuse()
    with pytest.warns(RuntimeWarning, match='the first launch gave something else') as caught:
        assert launched(cap.graph, y, z) == expected
    assert caught[0].filename == __file__
    assert not report and 'differ' in report.compared and len(cap.graph.nodes) == 2
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert launched(cap.graph, y, z) == expected


def test_a_variant_that_differs_is_not_fused(
    cp: Any, x: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forgetful(monkeypatch)

    @ck.graphed(fuse=True)
    def double(x: Any) -> Any:
        y = x * 2
        return y, y + 1

    with caplog.at_level(logging.WARNING, 'capturekit'):
        for n in range(4):
            y, z = double(x + n)
            assert (y == (x + n) * 2).all() and (z == (x + n) * 2 + 1).all()
    assert 'the first launch gave something else than without it' in caplog.text


def test_what_the_compiler_refuses_stays_as_it_is(cp: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, why = type(nodes_of(current().device)), 'the compiler refuses the kernel: no'
    compiled: Any = kind.fused_function

    def refuse(nodes: Any, kernel: Any, names: tuple[str, ...]) -> Any:
        if any('tanh' in name for name in names):
            raise FusingError(why)
        return compiled(nodes, kernel, names)

    graph, y, z = record(cp, x)
    before = launched(graph, y, z)
    monkeypatch.setattr(kind, 'fused_function', refuse)
    report = graph.fuse()
    assert [len(one.nodes) for one in report.kernels] == [3]
    assert [reason for _node, reason in report.alone].count(why) == 9
    assert launched(graph, y, z) == before and report.compared == SAME


def test_where_cuda_refuses_nothing_changes(cp: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any) -> Any:
        raise CudaCallError(Code.cudaErrorInvalidValue, 'graphKernelNodeSetParams')

    monkeypatch.setattr(type(nodes_of(current().device)), 'fuse_node', refuse)
    graph, y, z = record(cp, x)
    before = launched(graph, y, z)
    report = graph.fuse()
    assert report.kept.startswith('CUDA refuses') and report.compared == ''
    assert launched(graph, y, z) == before


# -- afterwards -------------------------------------------------------------------------------------------------


def test_a_copy_is_fused_as_well(cp: Any, x: Any) -> None:
    graph, y, z = record(cp, x, fuse=True)
    copy = graph.clone()
    expected = launched(graph, y, z)
    assert launched(copy, y, z) == expected
    assert len(copy.nodes[0].inner) == 9 and copy.fuse().compared == 'not compared: the graph is a copy'
    copy.close()
    assert launched(graph, y, z) == expected


@pytest.mark.parametrize('mine', [False, True])
@pytest.mark.parametrize('theirs', [False, True])
def test_a_graph_takes_over_another(cp: Any, x: Any, mine: bool, theirs: bool) -> None:
    one, _y, _z = record(cp, x, fuse=mine)
    other, y, z = record(cp, x + 1, fuse=theirs)
    assert one.update(other).how == 'updated'
    found = launched(one, y, z)
    plain, y, z = record(cp, x + 1)
    assert launched(plain, y, z) == found
    assert (len(one.nodes) < len(plain.nodes)) is mine
    one.close()


def test_an_array_is_replaced(cp: Any, x: Any) -> None:
    graph, y, z = record(cp, x, fuse=True)
    other = x + 1
    graph.rebind((x, other))
    found = launched(graph, y, z)
    plain, y, z = record(cp, other)
    assert launched(plain, y, z) == found
    assert graph.fuse().compared == 'not compared: an array was replaced before the first launch'


def test_a_fused_node_is_not_changed_by_itself(cp: Any, x: Any) -> None:
    graph, y, z = record(cp, x, fuse=True)
    with pytest.raises(UpdateError, match='made of 9 recorded nodes'):
        graph.set_kernel(0, args={0: x})
    expected = launched(graph, y, z)
    graph.disable(0)
    graph.enable(0)
    assert launched(graph, y, z) == expected


def test_fused_graphs_are_examined(cp: Any, x: Any) -> None:
    graph, y, z = record(cp, x, fuse=True)
    expected = launched(graph, y, z)
    assert not graph.races() and not graph.races(observe=True)
    assert len(graph.measure().nodes) == len(graph.nodes)
    assert 'fused' in str(graph.concurrency())
    assert graph.verify(lambda x: cp.sqrt(cp.abs(gelu(cp, x))) * gelu(cp, x).sum(), x, outputs=z)
    graph.relane()
    assert launched(graph, y, z) == expected


def test_fused_graphs_get_the_edges_that_they_need(cp: Any, x: Any) -> None:
    graph, y, z = record(cp, x)
    expected = launched(graph, y, z)
    graph, y, z = record(cp, x, fuse=True, lanes='auto')
    assert launched(graph, y, z) == expected and graph.fuse().compared == SAME
    relaned, _y, _z = record(cp, x, lanes='auto')
    if relaned.relane():
        assert relaned.fuse().kept == 'it was relaned before: fuse it first'


# -- graphed functions ------------------------------------------------------------------------------------------


def test_a_graphed_function_is_fused(cp: Any, x: Any) -> None:
    def work(x: Any, k: float) -> Any:
        x += 1
        return gelu(cp, x) + k, x > 0

    graphed = ck.graphed(fuse=True)(work)
    for n in range(5):
        mine, other = x + n, x + n
        found, expected = graphed(mine, 2.0), work(other, 2.0)
        for a, b in zip((*found, mine), (*expected, other)):
            assert a.get().tobytes() == b.get().tobytes()
    reports = [one.fused for one in graphed.variants if one.fused is not None]
    assert reports and all(one and one.compared == SAME for one in reports)


def test_fuse_on_a_graphed_functions_graph_says_what_to_write(cp: Any, x: Any) -> None:
    graphed = ck.graphed(lambda x: gelu(cp, x))
    for _ in range(3):
        graphed(x)
    graph = next(one.graph for one in graphed.variants if one.graph is not None)
    with pytest.raises(UpdateError, match='graphed\\(fuse=True\\)'):
        graph.fuse()


def test_black_scholes_is_one_kernel(cp: Any) -> None:
    """Its temporaries take each other's memory in turns, masks and numbers."""
    values = np.random.default_rng(0)
    given = [cp.asarray(values.random(1000, dtype='f4') + np.float32(0.5)) for _ in range(3)]
    price = peers.black_scholes(peers.like_numpy(cp))
    cap = fused(lambda: [price(*given)])
    (kernel,) = cap.fused.kernels
    assert (len(kernel.nodes), kernel.loads, kernel.stores) == (60, 3, 1) and cap.fused.compared == SAME


# -- the verbs that make one node of several -----------------------------------------------------------------------


def test_threads_that_come_later_see_what_earlier_ones_wrote(sim: Any) -> None:
    """A kernel in which one thread reads what another one writes is wrong, on a GPU now and then, and here always."""
    x, y = sim.arange(64, dtype='f4'), sim.zeros(64, 'f4')
    with ck.capture() as cap:
        y += x
    device, g = current().device, cap.graph.graph
    (node,) = device.graph_nodes(g)
    first = FusedPlace('float32', x.data.ptr, (64,), (0,), True, False)
    every = FusedPlace('float32', x.data.ptr, (64,), (4,), False, True)
    register = FusedPlace('float32', 0, (), (), False, False)
    does = nodes_of(device).graph_work(g)[node]
    assert isinstance(does, Elementwise)
    steps = FusedStep(nodes_of(device).copy_operation('float32'), (0, 1)), FusedStep(does.operation, (1, 0, 2))
    kernel = FusedKernel((64,), (first, register, every), (), steps)
    name, function = nodes_of(device).fused_function(kernel, ('cupy_add',))
    copy = device.graph_clone(g)
    nodes_of(device).fuse_node(copy, device.graph_nodes(copy)[0], kernel, name, function)
    made = device.graph_instantiate(copy)
    x.fill(1)
    device.graph_launch(made, sim.cuda.get_current_stream().ptr)
    assert x[0] == 2 and sorted({*x.get().tolist()}) == [2.0, 4.0]
    device.graph_exec_destroy(made)
    device.graph_destroy(copy)
