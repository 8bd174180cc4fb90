"""Single nodes given something else, disabled and enabled; graphs copied. Simulated anywhere, and on a GPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.analysis.node_view import Node
from capturekit.driver.cuda import current
from capturekit.launch.deferred_unload import UNLOADING
from capturekit.model.errors import CudaCallError
from capturekit.simulated import kernel_bodies
from tests.captured import recorded, values_after
from tests.examples import examples

SOURCE = """
extern "C" __global__ void changing_fma(const double* x, double* y, double a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""


@pytest.fixture
def fma(cp: Any) -> Iterator[Any]:
    """``y[:n] = a * x[:n]`` as a kernel of CUDA source: (x, y, a, n)."""

    @kernel_bodies.body('changing_fma')
    def fma(grid: tuple[int, ...], block: tuple[int, ...], args: Any) -> None:
        x, y, a, n = args
        n = min(int(n), grid[0] * block[0])
        y[:n] = a * x[:n]

    yield cp.RawKernel(SOURCE, 'changing_fma')
    kernel_bodies._bodies.pop('changing_fma')


# -- kernels --------------------------------------------------------------------------------------------------------


def test_a_kernel_gets_other_arguments_and_another_grid(cp: Any, fma: Any) -> None:
    x, y, z = cp.arange(8.0), cp.zeros(8), cp.zeros(8)
    graph, _ = recorded(lambda: fma((1,), (4,), (x, y, np.float64(2), np.int32(8))))
    (node,) = graph.nodes
    assert (node.detail['grid'], node.detail['block'], node.detail['shared']) == ((1, 1, 1), (4, 1, 1), 0)
    assert values_after(graph, y) == [0, 2, 4, 6, 0, 0, 0, 0]
    graph.set_kernel(node, grid=2)
    assert values_after(graph, y) == [2.0 * n for n in range(8)]
    graph.set_kernel(0, grid=(1, 1), block=(8, 1, 1), shared=64, args={1: z, 2: 3.0, 3: np.int32(5)})
    assert values_after(graph, z) == [0, 3, 6, 9, 12, 0, 0, 0]
    (node,) = graph.nodes
    assert (node.detail['grid'], node.detail['block'], node.detail['shared']) == ((1, 1, 1), (8, 1, 1), 64)
    assert int(z.data.ptr) in [pointer.address for pointer in node.pointers]
    assert y.get().tolist() == [2.0 * n for n in range(8)], 'which the node does not write any more'


def test_arguments_of_cupy_s_own_kernels(cp: Any) -> None:
    x, other = cp.arange(4.0), cp.arange(4.0) + 10
    graph, y = recorded(lambda: x * 2.0)
    graph.set_kernel(0, args={1: 5})
    assert values_after(graph, y) == [0, 5, 10, 15]
    graph.set_kernel(0, args={0: other, 1: np.float64(0.5)})
    assert values_after(graph, y) == [5, 5.5, 6, 6.5]
    wrong: list[tuple[int, Any, type[Exception]]] = [
        (1, np.float32(1), ValueError),
        (1, 1j, ValueError),
        (1, '1', TypeError),
        (1, x, TypeError),
        (0, cp.arange(4, dtype='f4'), ValueError),
        (0, np.float64(1), TypeError),
    ]
    for number, value, error in wrong:
        with pytest.raises(error, match=f'argument {number}: '):
            graph.set_kernel(0, args={number: value})
    assert values_after(graph, y) == [5, 5.5, 6, 6.5]


def test_arrays_that_a_node_was_pointed_at_live_with_the_graph(cp: Any) -> None:
    x = cp.arange(4.0)
    graph, y = recorded(lambda: x * 2.0)
    other = cp.arange(4.0) + 10
    used = cp.get_default_memory_pool().used_bytes
    gc.collect()
    before = used()
    graph.set_kernel(0, args={0: other})
    del other
    gc.collect()
    assert used() == before
    filler = [cp.full(4, 77.0) for _ in range(8)]
    assert values_after(graph, y) == [20, 22, 24, 26] and len(filler) == 8
    before = used()
    graph.close()
    gc.collect()
    assert used() < before


def test_what_does_not_fit_is_refused_before_anything_is_done(cp: Any, fma: Any) -> None:
    x, y = cp.arange(8.0), cp.zeros(8)
    graph, _ = recorded(lambda: (fma((1,), (8,), (x, y, np.float64(2), np.int32(8))), y.data.memset_async(0, 8)))
    before = [node.detail for node in graph.nodes]
    refusals: list[tuple[type[Exception], Callable[[], Any]]] = [
        (IndexError, lambda: graph.set_kernel(0, grid=2, args={4: 1.0})),
        (IndexError, lambda: graph.set_kernel(0, args={-1: 1.0})),
        (IndexError, lambda: graph.set_kernel(2, grid=1)),
        (IndexError, lambda: graph.disable(-1)),
        (ValueError, lambda: graph.set_kernel(0, grid=2, args={3: 1})),
        (ValueError, lambda: graph.set_kernel(0, grid=2, args={2: np.float32(1)})),
        (TypeError, lambda: graph.set_kernel(0, grid=2, args={2: object()})),
        (TypeError, lambda: graph.set_kernel(0, args={3: x})),
        (ValueError, lambda: graph.set_kernel(0, grid=0)),
        (ValueError, lambda: graph.set_kernel(0, block=(1, 2, 3, 4))),
        (TypeError, lambda: graph.set_kernel(0, block=1.5)),  # type: ignore[arg-type]
        (ValueError, lambda: graph.set_kernel(0, shared=-1)),
        (TypeError, lambda: graph.set_kernel(1, grid=1)),
        (TypeError, lambda: graph.set_kernel('0', grid=1)),  # type: ignore[arg-type]
        (TypeError, lambda: graph.set_kernel(True, grid=1)),
        (TypeError, lambda: graph.set_memset(0, value=1)),
        (ValueError, lambda: graph.set_memset(1, value=-1)),
        (ValueError, lambda: graph.set_memset(1, value=1 << 32)),
        (ValueError, lambda: graph.set_memset(1, nbytes=0)),
        (ValueError, lambda: graph.set_memset(1, nbytes=65, dst=y)),
        (TypeError, lambda: graph.set_memset(1, dst=np.zeros(8))),
        (TypeError, lambda: graph.set_memcpy(1, dst=y)),
        (TypeError, lambda: graph.set_host(1, print)),
        (TypeError, lambda: graph.set_event(1, cp.cuda.Event())),
        (TypeError, lambda: graph.set_event(1, 'event')),
        (TypeError, lambda: graph.set_host(1, 'print')),  # type: ignore[arg-type]
        (TypeError, lambda: graph.set_child(1, 'graph')),  # type: ignore[arg-type]
        (ValueError, lambda: graph.set_child(1, graph)),
    ]
    for number, (error, call) in enumerate(refusals):
        with pytest.raises(error):
            call()
        assert [node.detail for node in graph.nodes] == before, number
    assert values_after(graph, y) == [0, *(2.0 * n for n in range(1, 8))]


def test_what_cuda_refuses_is_taken_back(cp: Any, fma: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = cp.arange(8.0), cp.zeros(8)
    graph, _ = recorded(lambda: fma((1,), (8,), (x, y, np.float64(2), np.int32(8))))

    def refuse(*_args: Any) -> None:
        raise CudaCallError(1, 'cuGraphExecKernelNodeSetParams')

    with monkeypatch.context() as patch:
        patch.setattr(type(current().device), 'node_take', refuse)
        with pytest.raises(ck.UpdateError, match=r'node 0 \(kernel changing_fma\)') as info:
            graph.set_kernel(0, block=4, args={2: 9.0})
    assert info.value.cuda_error
    assert graph.nodes[0].detail['block'] == (8, 1, 1)
    assert values_after(graph, y) == [2.0 * n for n in range(8)]


# -- the other kinds ------------------------------------------------------------------------------------------------


def test_copies_and_memsets(cp: Any) -> None:
    x, y, z = cp.arange(8.0), cp.zeros(8), cp.zeros(8)

    def record() -> None:
        stream = cp.cuda.get_current_stream()
        y.data.memset_async(0, 64, stream)
        y.data.copy_from_device_async(x.data, 32, stream)

    graph, _ = recorded(record)
    fill, copy = graph.nodes
    assert copy.detail == {'dst': int(y.data.ptr), 'src': int(x.data.ptr), 'bytes': 32}
    assert values_after(graph, y) == [0, 1, 2, 3, 0, 0, 0, 0]
    graph.set_memcpy(copy, src=x[4:])
    assert values_after(graph, y) == [4, 5, 6, 7, 0, 0, 0, 0]
    graph.set_memcpy(copy, dst=z, nbytes=16)
    graph.set_memset(fill, dst=int(z.data.ptr) + 16, value=0xFF, nbytes=16)
    assert graph.nodes[0].detail == {'dst': int(z.data.ptr) + 16, 'value': 255, 'bytes': 16}
    graph.launch()
    assert z.get()[:2].tolist() == [4, 5] and np.isnan(z.get()[2:4]).all() and z.get()[4:].tolist() == [0] * 4
    with pytest.raises(ValueError, match='bytes'):
        graph.set_memcpy(copy, src=x[6:], nbytes=64)
    with pytest.raises(ValueError, match='one after the other'):
        graph.set_memcpy(copy, src=x[::2])
    with pytest.raises(ck.UpdateError, match=r'node 1 \(memcpy'):
        graph.set_memcpy(copy, src=np.zeros(8))
    graph.launch()
    assert z.get()[:2].tolist() == [4, 5]


def test_host_functions(cp: Any) -> None:
    told: list[Any] = []
    graph, _ = recorded(lambda: cp.cuda.get_current_stream().launch_host_func(told.append, 'recorded'))

    class Argument:
        pass

    argument = Argument()
    alive = weakref.ref(argument)
    graph.set_host(0, told.append, argument)
    del argument
    gc.collect()
    graph.launch()
    cp.cuda.get_current_stream().synchronize()
    assert told == [alive()] and told[0] is not None
    graph.set_host(graph.nodes[0], told.append, 3)
    graph.launch()
    cp.cuda.get_current_stream().synchronize()
    assert told[1:] == [3]
    with pytest.raises(TypeError, match='of kind host'):
        graph.disable(0)
    told.clear()
    graph.close()
    gc.collect()
    assert alive() is None


def test_child_graphs(cp: Any) -> None:
    x = cp.arange(4.0)
    inner, y = recorded(lambda: cp.sin(x) * 2.0)
    with ck.capture() as cap:
        cp.add(x, 1, x)
        cap.embed(inner)
    graph = cap.graph
    child = next(node.number for node in graph.nodes if node.kind == 'graph')
    other, z = recorded(lambda: cp.cos(x) * 3.0)
    graph.set_child(child, other)
    other.close()
    x[...] = 0
    z[...] = 0
    y[...] = 0
    assert values_after(graph, z) == pytest.approx(list(3 * np.cos([1.0] * 4)))
    assert y.get().tolist() == [0] * 4
    assert [node.name.partition('__')[0] for node in graph.nodes[child].inner] == ['cupy_cos', 'cupy_multiply']
    longer, _ = recorded(lambda: cp.cos(x) * 3.0 + 1)
    with pytest.raises(ck.UpdateError):
        graph.set_child(child, longer)
    halved, _ = recorded(lambda: cp.cos(x) * 3.0)
    halved.disable(1)
    with pytest.raises(ck.UpdateError, match='disabled'):
        graph.set_child(child, halved)
    with ck.capture() as cap, pytest.raises(ck.UnsupportedCallError, match='disabled'):
        cap.embed(halved)
    x[...] = 0
    assert values_after(graph, z) == pytest.approx(list(3 * np.cos([1.0] * 4)))


# -- after an update ------------------------------------------------------------------------------------------------


def test_nodes_are_found_after_an_update_paired_them_anew(cp: Any) -> None:
    """Two lanes recorded the other way round: wherever CUDA pairs them, what is changed is the node that is meant."""
    x = cp.arange(4.0)

    def work(swapped: bool) -> Any:
        origin, side = cp.cuda.get_current_stream(), cp.cuda.Stream(non_blocking=True)
        y = x * 1.0
        a, b = cp.empty_like(x), cp.empty_like(x)
        side.wait_event(origin.record())

        def right() -> None:
            with side:
                cp.add(y, 100.0, b)

        if swapped:
            right()
        cp.multiply(y, 10.0, a)
        if not swapped:
            right()
        origin.wait_event(side.record())
        return a + b

    graph, _ = recorded(lambda: work(False))
    other, y = recorded(lambda: work(True))
    graph.update(other, instantiate=True)
    assert values_after(graph, y) == [100, 111, 122, 133]
    names = [node.name.partition('__')[0] for node in graph.nodes]
    assert names == ['cupy_multiply', 'cupy_add', 'cupy_multiply', 'cupy_add']
    graph.set_kernel(1, args={1: 500.0})
    assert values_after(graph, y) == [500, 511, 522, 533]
    graph.disable(2)
    graph.enable(2)
    graph.set_kernel(2, args={1: 1.0})
    assert values_after(graph, y) == [500, 502, 504, 506]


# -- life -----------------------------------------------------------------------------------------------------------


def test_nothing_can_be_changed_after_the_end(cp: Any) -> None:
    x = cp.arange(4.0)
    graph, _ = recorded(lambda: x * 2.0)
    live, _ = recorded(lambda: x * 2.0)
    graph.close()
    node = Node(0, 'kernel')
    for call in (
        graph.clone,
        graph.measure,
        graph.relane,
        lambda: graph.set_kernel(0, grid=1),
        lambda: graph.set_memcpy(node, dst=x),
        lambda: graph.set_memset(node, dst=x),
        lambda: graph.set_host(node, print),
        lambda: graph.set_event(node, cp.cuda.Event()),
        lambda: graph.set_child(node, live),
        lambda: graph.enable(0),
        lambda: graph.disable(0),
        lambda: graph.enabled(0),
    ):
        with pytest.raises(ck.ClosedError):
            call()


def test_nodes_in_bodies_are_not_changed(cp: Any) -> None:
    x, flag = cp.ones(4), cp.ones((), 'i4')
    with ck.capture() as cap:
        cp.multiply(x, 2.0, x)
        with cap.if_(flag):
            cp.multiply(x, 3.0, x)
    graph = cap.graph
    inside = [node.number for node in graph.nodes if node.kind == 'conditional' for node in node.inner]
    outside = next(n.number for n in graph.nodes if n.kind == 'kernel' and n.number not in inside)
    with pytest.raises(ck.UpdateError, match='body'):
        graph.set_kernel(inside[0], args={1: 1.0})
    graph.set_kernel(outside, args={1: 5.0})
    assert values_after(graph, x) == [15] * 4


def test_changes_while_a_capture_is_open_do_not_hurt_it(cp: Any) -> None:
    x = cp.arange(4.0)
    graph, _ = recorded(lambda: x * 2.0)
    other, y = recorded(lambda: x * 3.0)
    with ck.capture(mode='global') as cap:
        z = x + 1
        graph.update(other)
        graph.set_kernel(0, args={1: 4.0})
        graph.disable(0)
        graph.enable(0)
        copy = graph.clone()
        z += 1
    assert values_after(cap.graph, z) == [2, 3, 4, 5]
    assert values_after(copy, y) == values_after(graph, y) == [0, 4, 8, 12]


def test_nothing_is_left_of_graphs_that_were_changed(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs, executable graphs, memory, and what is put off while graphs live: all as before."""
    x = sim.arange(512.0)
    device = sim.__capturekit_simulated__
    holders = UNLOADING.holders

    def left() -> tuple[int, int, int, int]:
        gc.collect()
        sim.get_default_memory_pool().free_all_blocks()
        return len(device.graphs), len(device.executables), device.mem_get_info()[0], UNLOADING.holders - holders

    before = left()

    def through() -> None:
        graph, _ = recorded(lambda: x * 2.0)
        for n in range(3):
            with ck.capture(update=graph):
                y = x * 3.0 if n else x * 3.0 + 1.0
                del y
        other, _ = recorded(lambda: x + 1)
        graph.update(other)
        copy = graph.clone()
        copy.set_kernel(0, args={0: sim.arange(512.0)})
        graph.update(recorded(lambda: x * 2.0 + 1.0)[0], instantiate=True)
        inner, _ = recorded(lambda: x * 2.0 + 1.0)
        with ck.capture() as cap:
            cap.embed(inner)
        cap.graph.set_child(0, copy.clone() if len(copy.nodes) == 2 else graph)

    def fails(_g: int, _by_node_priority: bool) -> int:
        raise CudaCallError(2, 'graphInstantiate')

    def refused() -> None:
        graph, y = recorded(lambda: x * 2.0)
        held = left()
        with monkeypatch.context() as patch:
            patch.setattr(device, 'graph_instantiate', fails)
            with pytest.raises(CudaCallError), ck.capture(update=graph):
                x * 2.0 + 1.0
        assert left() == held
        assert values_after(graph, y) == [2.0 * n for n in range(512)]
        graph.close()

    for call in (through, refused):
        call()
        assert left() == before


# -- any changes ----------------------------------------------------------------------------------------------------

#: What is done to a graph: a kernel's scalar, a node off or on, another recording of this many nodes, a copy.
changes = st.lists(
    st.one_of(
        st.tuples(st.just('scalar'), st.integers(0, 5), st.integers(-3, 3)),
        st.tuples(st.sampled_from(('disable', 'enable')), st.integers(0, 5), st.just(0)),
        st.tuples(st.sampled_from(('update', 'again')), st.integers(1, 6), st.integers(-3, 3)),
        st.tuples(st.sampled_from(('clone', 'clone, and go on with it')), st.just(0), st.just(0)),
    ),
    max_size=10,
)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 6), changes)
def test_a_changed_graph_does_what_it_was_told(cp: Any, count: int, todo: list[tuple[str, int, int]]) -> None:
    """Sums on one array: what each node adds is known, whatever was changed, and copies are not touched by it."""
    x = cp.zeros(2)

    def row(values: list[float]) -> ck.Graph:
        return recorded(lambda: [cp.add(x, value, x) for value in values])[0]

    def summed(graph: ck.Graph) -> float:
        x[...] = 0
        graph.launch()
        return float(x[1])

    def total(model: tuple[list[float], set[int]]) -> float:
        return sum(value for number, value in enumerate(model[0]) if number not in model[1])

    values = [float(10**n) for n in range(count)]
    graph, model = row(values), (values, set[int]())
    others: list[tuple[ck.Graph, tuple[list[float], set[int]]]] = []
    for what, number, value in todo:
        at = number % len(model[0])
        if what == 'scalar':
            graph.set_kernel(at, args={1: float(value)})
            model[0][at] = float(value)
        elif what == 'disable':
            graph.disable(at)
            model[1].add(at)
        elif what == 'enable':
            graph.enable(at)
            model[1].discard(at)
        elif what == 'update':
            new = [float(value)] * number
            assert graph.update(row(new), instantiate=True).how == (
                'updated' if number == len(model[0]) else 'instantiated'
            )
            model = (new, set())
        elif what == 'again':
            new = [float(value)] * number
            with ck.capture(update=graph):
                for each in new:
                    cp.add(x, each, x)
            model = (new, set())
        else:
            copy = graph.clone()
            others.append((copy, (list(model[0]), set(model[1]))))
            if what != 'clone':
                others[-1] = (graph, model)
                graph, model = copy, (list(model[0]), set(model[1]))
        assert summed(graph) == total(model)
        assert [graph.enabled(n) for n in range(len(model[0]))] == [n not in model[1] for n in range(len(model[0]))]
    for one, told in (*others, (graph, model)):
        assert summed(one) == total(told)
        one.close()
