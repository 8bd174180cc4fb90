"""The verbs that read elementwise nodes and make one of several: the simulated device and CUDA, asked the same."""

from __future__ import annotations

from typing import Any

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.fusion.cuda_nodes import nodes_of
from capturekit.fusion.elementwise import Elementwise
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, FusedStep


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
