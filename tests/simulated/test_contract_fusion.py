"""The verbs that read elementwise nodes and make one of several: the simulated device and CUDA, asked the same."""

from __future__ import annotations

from typing import Any

import numpy as np

import capturekit as ck
from capturekit.analysis.fusion_kernels import kernel_of
from capturekit.analysis.fusion_runs import Item, runs_of
from capturekit.driver.cuda import current
from capturekit.driver.elementwise import Elementwise


def test_nodes_tell_what_they_do_to_each_element(cp: Any) -> None:
    x = cp.zeros((3, 4), 'f4')
    with ck.capture() as cap:
        y = x[:, ::2] * np.float32(2)
        z = y.sum()
        w = cp.zeros(8)
    device, g = current().device, cap.graph.graph
    found = device.graph_elementwise(g)
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
    does = device.graph_elementwise(g)
    line = [Item(n, does[handle], ()) for n, handle in enumerate(device.graph_nodes(g))]
    (run,) = runs_of(line).runs
    assert run.members == [0, 1]
    kernel = kernel_of(run, line, {key: key.address == z.data.ptr for key in run.used})
    before = device.fusing[0]
    name, function = device.fused_function(kernel, ('cupy_multiply', 'cupy_add'))
    assert name.startswith('cupy_fused_multiply_add_') and device.fusing[0] == before + 1
    copy = device.graph_clone(g)
    first, second = device.graph_nodes(copy)
    device.fuse_node(copy, second, kernel, name, function)
    device.node_destroy(first)
    assert [info.name for info in device.node_infos(copy)] == [name] and device.graph_edges(copy) == []
    made = device.graph_instantiate(copy)
    y.fill(7)
    device.graph_launch(made, cp.cuda.get_current_stream().ptr)
    assert z.get().tolist() == [3.0 * n for n in range(8)] and y.get().tolist() == [7.0] * 8
    device.graph_exec_destroy(made)
    device.graph_destroy(copy)
