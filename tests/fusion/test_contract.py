"""The verbs that read elementwise nodes and make one of several: the simulated device and CUDA, asked the same."""

from __future__ import annotations

from typing import Any

import numpy as np

import capturekit as ck
from capturekit.analysis.node_memory import FreeMemory
from capturekit.driver.cuda import current
from capturekit.fusion.cuda_nodes import nodes_of
from capturekit.fusion.division import runs_of
from capturekit.fusion.elementwise import Elementwise
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, FusedStep
from capturekit.fusion.fused_reduction import FusedReduction
from capturekit.fusion.fusible import whole_fusion
from capturekit.fusion.lines import Definition
from capturekit.fusion.reduction import Reduction
from capturekit.fusion.runs import Item, kernel_of
from capturekit.model.dag import Order


def test_nodes_tell_what_they_do_to_each_element(cp: Any) -> None:
    x = cp.zeros((3, 4), 'f4')
    with ck.capture() as cap:
        y = x[:, ::2] * np.float32(2)
        z = y.sum()
        w = cp.zeros(8)
    device, g = current().device, cap.graph.graph
    found = nodes_of(device).graph_elementwise(g)
    kinds = {info.handle: info.kind for info in device.node_infos(g)}
    assert all(kinds[handle] == 'kernel' for handle in found) and len(found) < len(kinds)
    first, *others = (found[handle] for handle in device.graph_nodes(g) if handle in found)
    assert isinstance(first, Elementwise) and first.size == 6 and not first.copies
    assert [one.dtype for one in first.operands if one.number is None] == ['float32', 'float32']
    read, written = (one for one in first.operands if one.number is None)
    assert (read.address, read.strides, read.reads, read.writes) == (x.data.ptr, (16, 8), True, False)
    assert (written.address, written.reads, written.writes, written.sure) == (y.data.ptr, False, True, True)
    assert others and all(isinstance(one, str) for one in others)
    del z, w


def test_a_node_takes_over_what_others_do(cp: Any) -> None:
    x = cp.arange(8, dtype='f4')
    with ck.capture() as cap:
        y = x * 2
        z = y + x
    device, g = current().device, cap.graph.graph
    does = nodes_of(device).graph_elementwise(g)
    line = [Item(n, does[handle], ()) for n, handle in enumerate(device.graph_nodes(g))]
    (run,) = runs_of(line).runs
    assert run.members == [0, 1]
    kernel = kernel_of(run, {key: key.address == z.data.ptr for key in run.used})
    name, function = nodes_of(device).fused_function(kernel, ('cupy_multiply', 'cupy_add'))
    assert name.startswith('cupy_fused_multiply_add_')
    copy = device.graph_clone(g)
    first, second = device.graph_nodes(copy)
    nodes_of(device).fuse_node(copy, second, kernel, name, function)
    device.node_destroy(first)
    assert [info.name for info in device.node_infos(copy)] == [name] and device.graph_edges(copy) == []
    made = device.graph_instantiate(copy)
    y.fill(7)
    device.graph_launch(made, cp.cuda.get_current_stream().ptr)
    assert z.get().tolist() == [3.0 * n for n in range(8)] and y.get().tolist() == [7.0] * 8
    device.graph_exec_destroy(made)
    device.graph_destroy(copy)


def test_a_reduction_takes_over_what_is_in_front_of_it(cp: Any) -> None:
    x = cp.arange(24, dtype='f4').reshape(6, 4)
    with ck.capture() as cap:
        y = x * 2
        z = y.sum(axis=0)
    device, g = current().device, cap.graph.graph
    first, second = device.graph_nodes(g)
    reduction = nodes_of(device).graph_reductions(g)[second]
    assert isinstance(reduction, Reduction) and list(nodes_of(device).graph_reductions(g)) == [second]
    assert (reduction.size, reduction.inputs[0].address) == (24, y.data.ptr)
    assert (reduction.output.address, reduction.output.shape, reduction.output.sure) == (z.data.ptr, (4,), True)
    does = [nodes_of(device).graph_elementwise(g)[first], reduction]
    memory = [[end.access for end in one.operands if end.number is None] for one in does]
    fusion = whole_fusion(Definition(Order(2, [(0, 1)]), does, memory, FreeMemory([(y.data.ptr, y.data.ptr + 96)])))
    (made,) = fusion.kernels
    assert isinstance(made.kernel, FusedReduction) and made.nodes == (0, 1) and fusion.gone == [0]
    name, function = nodes_of(device).fused_function(made.kernel, made.names)
    copy = device.graph_clone(g)
    gone, node = device.graph_nodes(copy)
    nodes_of(device).fuse_node(copy, node, made.kernel, name, function)
    device.node_destroy(gone)
    executable = device.graph_instantiate(copy)
    y.fill(7)
    device.graph_launch(executable, cp.cuda.get_current_stream().ptr)
    assert z.get().tolist() == [120.0, 132.0, 144.0, 156.0] and (y == 7).all()
    device.graph_exec_destroy(executable)
    device.graph_destroy(copy)


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
    does = nodes_of(device).graph_elementwise(g)[node]
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
