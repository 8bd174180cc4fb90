"""Graphs with conditions on the simulated device, and kernels that follow pointers, as recorded host reads need them.

What a driver can be asked as well is in ``test_contract.py``; here kernels set conditions while a launch runs.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from capturekit.driver.cuda import CudaDevice
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import CaptureStatus, Code
from capturekit.simulated import SimulatedDevice, body, memory_at


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice()


def record(device: SimulatedDevice, s: int, *pieces: Callable[[], Any]) -> None:
    for piece in pieces:
        device.submit(s, piece, 'work')


def refused(code: Code, call: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(CudaCallError) as info:
        call(*args)
    assert info.value.code is code


class Chain:
    """Two checks, each in front of a body: the second one's kernel lies in the first one's body."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = d = device
        self.values = [1, 1]
        self.log: list[str] = []
        s = d.stream_create(True)
        d.begin_capture(s)
        self.top = top = d.capture_info(s).graph
        first = d.condition_create(top)
        record(d, s, self.says('work'), lambda: d.condition_set(first, self.values[0]))
        assert d.end_capture(s) == top
        last = d.graph_nodes(top)[-1:]
        node, self.body = d.add_if(top, last, first)
        d.begin_capture_to(s, self.body)
        second = d.condition_create(top)
        record(d, s, self.says('first body'), lambda: d.condition_set(second, self.values[1]))
        assert d.end_capture(s) == self.body
        _, inner = d.add_if(top, [node], second)
        d.begin_capture_to(s, inner)
        record(d, s, self.says('second body'))
        d.end_capture(s)
        self.s, self.x = s, d.graph_instantiate(top)

    def says(self, what: str) -> Callable[[], Any]:
        return lambda: self.log.append(what)

    def launch(self, *values: int) -> list[str]:
        self.values, self.log[:] = list(values), []
        self.device.graph_launch(self.x, self.s)
        return list(self.log)


def test_a_failed_check_skips_all_that_follows(device: SimulatedDevice) -> None:
    chain = Chain(device)
    whole = ['work', 'first body', 'second body']
    assert chain.launch(1, 1) == whole
    assert chain.launch(0, 1) == whole[:1]
    assert chain.launch(1, 0) == whole[:2]
    assert chain.launch(7, 1 << 31) == whole
    assert chain.launch(1, 1 << 32) == whole[:2]  # a condition has 32 bits
    device.graph_destroy(chain.top)
    assert chain.launch(1, 1) == whole
    device.graph_exec_destroy(chain.x)
    refused(Code.cudaErrorInvalidValue, device.graph_launch, chain.x, chain.s)


def test_launches_in_several_threads_have_their_own_conditions(device: SimulatedDevice) -> None:
    chains = [Chain(device) for _ in range(4)]
    wrong: list[Any] = []

    def run(chain: Chain, first: int) -> None:
        for i in range(200):
            found = chain.launch(first, i % 2)
            if found != ['work', 'first body', 'second body'][: 1 + (first and 1 + i % 2)]:
                wrong.append(found)

    threads = [threading.Thread(target=run, args=(chain, i % 2)) for i, chain in enumerate(chains)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_conditions_begin_each_launch_with_their_default(device: SimulatedDevice) -> None:
    s = device.stream_create(True)
    log: list[str] = []
    g = device.graph_create()
    on, off = device.condition_create(g, 1), device.condition_create(g)
    device.begin_capture_to(s, g)
    record(device, s, lambda: log.append('check'))
    device.end_capture(s)
    check = device.graph_nodes(g)
    for condition, name in ((on, 'on'), (off, 'off')):
        node, inner = device.add_if(g, check, condition)
        device.begin_capture_to(s, inner)
        record(device, s, lambda name=name: log.append(name), lambda: device.condition_set(on, 0))
        device.end_capture(s)
        assert device.node_kind(g, node) == ('conditional', 'if')
    x = device.graph_instantiate(g)
    for _ in range(3):
        device.graph_launch(x, s)
    assert log == ['check', 'on'] * 3


def test_bodies_nest_and_run_in_any_allowed_order() -> None:
    seen = set()
    for seed in range(20):
        device = SimulatedDevice(seed)
        s, lane = device.stream_create(True), device.stream_create(True)
        log: list[str] = []
        g = device.graph_create()
        condition = device.condition_create(g, 1)
        _, outer = device.add_if(g, [], condition)
        _, inner = device.add_if(outer, [], condition)
        device.begin_capture_to(s, inner)
        record(device, s, lambda log=log: log.append('a'))
        fork, join = device.event_create(), device.event_create()
        device.event_record(fork, s)
        device.stream_wait_event(lane, fork)
        assert device.capture_info(lane).graph == inner
        record(device, s, lambda log=log: log.append('b'))
        record(device, lane, lambda log=log: log.append('c'))
        device.event_record(join, lane)
        device.stream_wait_event(s, join)
        record(device, s, lambda log=log: log.append('d'))
        device.end_capture(s)
        assert device.graph_edge_count(inner) == 4
        text = device.graph_dot(g)
        assert text.count('subgraph') == 2
        assert text.count('->') == 4
        device.graph_launch(device.graph_instantiate(g), s)
        seen.add(''.join(log))
    assert seen == {'abcd', 'acbd'}


def test_bodies_are_their_nodes(device: SimulatedDevice) -> None:
    chain = Chain(device)
    refused(Code.cudaErrorInvalidValue, device.graph_instantiate, chain.body)
    refused(Code.cudaErrorInvalidValue, device.graph_destroy, chain.body)
    assert device.graph_node_count(chain.body) == 2
    device.graph_destroy(chain.top)
    for g in (chain.top, chain.body):
        refused(Code.cudaErrorInvalidValue, device.graph_nodes, g)
        refused(Code.cudaErrorInvalidValue, device.begin_capture_to, chain.s, g)
        refused(Code.cudaErrorInvalidValue, device.condition_create, g)
        refused(Code.cudaErrorInvalidValue, device.add_if, g, [], 1)
    assert device.stream_status(chain.s) is CaptureStatus.NONE


def test_what_is_added_later_is_not_in_an_executable_graph(device: SimulatedDevice) -> None:
    chain = Chain(device)
    device.begin_capture_to(chain.s, chain.body)
    record(device, chain.s, chain.says('late'))
    device.end_capture(chain.s)
    assert chain.launch(1, 0) == ['work', 'first body']
    assert device.graph_node_count(chain.body) == 3


def test_what_belongs_to_no_launch_or_no_graph_is_refused(device: SimulatedDevice) -> None:
    g, other = device.graph_create(), device.graph_create()
    condition = device.condition_create(g)
    refused(Code.cudaErrorInvalidValue, device.condition_set, condition, 1)
    node, _ = device.add_if(g, [], condition)
    for after in ([1], [node, node]):
        refused(Code.cudaErrorInvalidValue, device.add_if, g, after, condition)
    refused(Code.cudaErrorInvalidValue, device.add_child, other, [node], device.graph_create())
    refused(Code.cudaErrorNotSupported, device.add_child, other, [], g)
    device.add_if(other, [], condition)
    refused(Code.cudaErrorInvalidValue, device.graph_instantiate, other)


def test_a_lost_capture_takes_its_graph_also_one_that_was_there(device: SimulatedDevice) -> None:
    s = device.stream_create(True)
    for make in (device.graph_create, lambda: 0):
        g = make()
        if g:
            device.begin_capture_to(s, g)
        else:
            device.begin_capture(s)
        found = device.capture_info(s).graph
        _, inner = device.add_if(found, [], device.condition_create(found))
        refused(Code.cudaErrorStreamCaptureUnsupported, device.stream_synchronize, s)
        refused(Code.cudaErrorStreamCaptureInvalidated, device.end_capture, s)
        for lost in (found, inner):
            refused(Code.cudaErrorInvalidValue, device.graph_nodes, lost)


def test_cuda_bindings_without_conditions_say_so() -> None:
    class Old:
        def __init__(self) -> None:
            self.rt = self

        cudaGraph_t = int

    d: Any = CudaDevice.__new__(CudaDevice)
    d.rt = Old()
    for call in (
        lambda: d.begin_capture_to(1, 2),
        lambda: d.condition_create(1),
        lambda: d.add_if(1, [], 2),
    ):
        with pytest.raises(CudaCallError, match='which this cuda-bindings does not have') as info:
            call()
        assert info.value.code is Code.cudaErrorNotSupported


# -- kernels that follow pointers ---------------------------------------------------------------------------------


def add_at(cp: Any, name: str) -> Any:
    """A kernel that adds what it reads at one address to what lies at another, as doubles."""

    @body(name)
    def run(grid: Any, block: Any, args: Any) -> None:
        target, source, n = (int(a) for a in args)
        memory_at(target, 8 * n).view(np.float64)[:] += memory_at(source, 8 * n).view(np.float64)

    return cp.RawKernel('source', name)


def pinned(cp: Any, n: int) -> Any:
    return np.frombuffer(cp.cuda.alloc_pinned_memory(8 * n), np.float64, n)


def test_kernels_reach_device_and_pinned_memory_by_address(sim: Any) -> None:
    kernel = add_at(sim, 'conditions_add')
    x, host = sim.arange(4.0), pinned(sim, 2)
    host[:] = 10, 20
    # Addresses may point into an array.
    kernel((1,), (1,), (np.uint64(x.data.ptr + 8), np.uint64(host.ctypes.data), 2))
    assert x.tolist() == [0, 11, 22, 3]
    kernel((1,), (1,), (host.ctypes.data, x[1:].data.ptr, 2))
    assert host.tolist() == [21, 42]
    memory_at(x.data.ptr, 8).view(np.float64)[0] = 5
    assert float(x[0]) == 5


def test_kernels_in_a_graph_read_at_the_launch(sim: Any) -> None:
    kernel, side = add_at(sim, 'conditions_add_later'), sim.cuda.Stream(non_blocking=True)
    x, y, host = sim.zeros(2), sim.ones(2), pinned(sim, 2)
    with side:
        side.begin_capture()
        kernel((1,), (1,), (np.uint64(x.data.ptr), np.uint64(y.data.ptr), np.int32(2)))
        kernel((1,), (1,), (np.uint64(host.ctypes.data), np.uint64(x.data.ptr), np.int32(2)))
        graph = side.end_capture()
    host[:] = 100
    assert x.tolist() == [0, 0]
    graph.launch(side)
    assert (x.tolist(), host.tolist()) == ([1, 1], [101, 101])
    y *= 2
    graph.launch(side)
    assert (x.tolist(), host.tolist()) == ([3, 3], [104, 104])


def test_memory_at_refuses_what_is_not_allocated(sim: Any) -> None:
    x = sim.zeros(4)
    ptr = sim.cuda.runtime.malloc(64)
    assert memory_at(ptr, 64).nbytes == memory_at(np.uint64(ptr), np.int32(64)).nbytes == 64
    for address, nbytes in ((ptr, 65), (ptr + 64, 1), (0, 1), (x.data.ptr, 1 << 20)):
        with pytest.raises(ValueError, match=rf'holds {nbytes} bytes at address {address:#x}'):
            memory_at(address, nbytes)
    sim.cuda.runtime.free(ptr)
    with pytest.raises(ValueError, match='no allocation of the simulated device'):
        memory_at(ptr, 1)


def test_memory_at_needs_a_simulated_device() -> None:
    with pytest.raises(RuntimeError, match='none is installed'):
        memory_at(0, 1)


def test_asking_for_memory_at_imports_no_stand_in() -> None:
    code = (
        'import sys; from capturekit.simulated import memory_at, body; '
        "print([m for m in sys.modules if m.startswith(('cupy', 'capturekit.simulated.'))])"
    )
    ran = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "['capturekit.simulated.kernel_bodies']", ran.stderr


def test_a_check_kernel_guards_the_rest_of_a_graph(sim: Any) -> None:
    """A value that the host read is compared at each launch; work built on another value is skipped."""
    d = sim.__capturekit_simulated__

    @body('conditions_check')
    def check(grid: Any, block: Any, args: Any) -> None:
        condition, seen, expected = args
        same = memory_at(int(seen), 8).tobytes() == memory_at(int(expected), 8).tobytes()
        sim.__capturekit_simulated__.condition_set(int(condition), int(same))

    kernel, side = sim.RawKernel('source', 'conditions_check'), sim.cuda.Stream(non_blocking=True)
    x, total, host = sim.ones(3), sim.zeros(()), pinned(sim, 1)
    host[0] = 3
    with side:
        side.begin_capture()
        top = d.capture_info(side.ptr).graph
        handle = d.condition_create(top)
        read = x.sum()
        kernel((1,), (1,), (np.uint64(handle), np.uint64(read.data.ptr), np.uint64(host.ctypes.data)))
        assert sim.cuda.runtime.streamEndCapture(side.ptr) == top
        _, inner = d.add_if(top, d.graph_nodes(top)[-1:], handle)
        d.begin_capture_to(side.ptr, inner)
        assert side.is_capturing()
        total += read
        sim.cuda.runtime.streamEndCapture(side.ptr)
    executable = sim.cuda.runtime.graphInstantiate(top)
    for factor, expected in ((1, 3), (2, 3), (0.5, 6), (1, 9)):
        x *= factor
        sim.cuda.runtime.graphLaunch(executable, side.ptr)
        assert float(total) == expected
    sim.cuda.runtime.graphDestroy(top)
    sim.cuda.runtime.graphExecDestroy(executable)
