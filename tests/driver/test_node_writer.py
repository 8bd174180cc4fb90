"""Nodes of the driver's given something else. The driver is a small one with the structures of CUDA's header, compiled
here; what an executable graph does is kept beside what its definition has, so that both can be looked at."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from capturekit.driver.cuda import CudaDevice
from capturekit.driver.kernel_args import Argument
from capturekit.driver.node_reader import Reader
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

DRIVER = 'node_writer.c'

KERNEL, COPY, SET, HOST, WAIT, RECORD, CHILD, INNER = range(8)
EXEC = 0x55


class _Node(ctypes.Structure):
    _fields_ = [('kind', ctypes.c_int), ('child', ctypes.c_void_p)]


class Driver:
    """The small driver, as it is at first."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        self.library.begin()
        self.reader, self.device = Reader(), object.__new__(CudaDevice)
        self.device._reader = self.reader
        self.size = ctypes.c_int.in_dll(self.library, 'last_exec')
        self._base = ctypes.addressof(_Node.in_dll(self.library, 'made'))

    def int(self, name: str) -> Any:
        return ctypes.c_int.in_dll(self.library, name)

    def node(self, number: int) -> int:
        """A node's handle. A node is as large as a graph's first inner node says."""
        graph = self.graph(1)
        return self._base + number * ((self.reader.handles(graph)[0] - self._base) // INNER)

    def graph(self, number: int) -> int:
        return ctypes.addressof(ctypes.c_byte.in_dll(self.library, 'graphs')) + number * 40


@pytest.fixture
def driver(libcuda: str) -> Driver:
    return Driver(libcuda)


def took(driver: Driver, number: int) -> Any:
    """What an executable graph's node does after it took over what the definition has."""
    node = driver.node(number)
    driver.device.node_take(EXEC, node, 0, node)
    assert driver.int('last_exec').value == EXEC
    driver.library.exchange(ctypes.c_void_p(node))
    if number == KERNEL:
        args = [one.data for one in driver.device.node_arguments(0, node)]
    told = driver.reader.info(node).detail
    driver.library.exchange(ctypes.c_void_p(node))
    if number == KERNEL:
        assert args == [one.data for one in driver.device.node_arguments(0, node)]
    return told


def test_arguments_of_a_kernel_of_cupy_s(driver: Driver) -> None:
    array = Argument(bytes(32), 'float64', True)
    scalar = Argument(struct.pack('d', 2), 'float64', False)
    assert driver.device.node_arguments(0, driver.node(KERNEL)) == [array, scalar, array]


def test_a_kernel(driver: Driver) -> None:
    node = driver.node(KERNEL)
    new = [b'a' * 32, struct.pack('d', 7), b'b' * 32]
    change = driver.device.set_kernel(0, node, (3, 2, 1), (64, 2, 1), 512, new)
    assert [one.data for one in driver.device.node_arguments(0, node)] == new
    assert took(driver, KERNEL) == {'grid': (3, 2, 1), 'block': (64, 2, 1), 'shared': 512}
    change.undo()
    assert [one.data for one in driver.device.node_arguments(0, node)] == [bytes(32), struct.pack('d', 2), bytes(32)]
    assert took(driver, KERNEL) == {'grid': (1, 1, 1), 'block': (128, 1, 1), 'shared': 0}


def test_a_copy(driver: Driver) -> None:
    node = driver.node(COPY)
    change = driver.device.set_memcpy(0, node, 0x7F0000000800, 0x20000, 32)
    assert took(driver, COPY) == {'dst': 0x7F0000000800, 'src': 0x20000, 'bytes': 32}
    for ends in ((0x20000, 0x20000), (0x7F0000000800, 0x7F0000000800), (0x1000, 0x1000)):
        with pytest.raises(CudaCallError) as info:
            driver.device.set_memcpy(0, node, *ends, 32)
        assert info.value.code == Code.cudaErrorInvalidValue
    assert took(driver, COPY) == {'dst': 0x7F0000000800, 'src': 0x20000, 'bytes': 32}
    change.undo()
    assert took(driver, COPY) == {'dst': 0x7F0000000000, 'src': 0x1000, 'bytes': 64}


def test_a_memset(driver: Driver) -> None:
    node = driver.node(SET)
    change = driver.device.set_memset(0, node, 0x7F0000000900, 9, 32)
    assert took(driver, SET) == {'dst': 0x7F0000000900, 'value': 9, 'bytes': 32}
    with pytest.raises(CudaCallError):
        driver.device.set_memset(0, node, 0x7F0000000900, 9, 33)
    change.undo()
    assert took(driver, SET) == {'dst': 0x7F0000000100, 'value': 5, 'bytes': 64}


def test_a_host_function(driver: Driver) -> None:
    called: list[int] = []
    change = driver.device.set_host(0, driver.node(HOST), lambda: called.append(1))
    took(driver, HOST)
    change.keep(None)
    assert called == [1]
    change.undo()


def test_events(driver: Driver) -> None:
    for number in (WAIT, RECORD):
        change = driver.device.set_event(0, driver.node(number), 0x99)
        took(driver, number)
        change.undo()
    with pytest.raises(CudaCallError):
        driver.device.set_event(0, driver.node(KERNEL), 0x99)


def test_a_child_graph(driver: Driver) -> None:
    driver.device.set_kernel(0, driver.node(KERNEL), (9, 1, 1), (1, 1, 1), 0, [bytes(32), bytes(8), bytes(32)])
    other = driver.graph(2)
    ctypes.c_void_p.from_address(other + 8).value = driver.node(KERNEL)
    driver.device.set_child(0, driver.node(CHILD), other)
    assert driver.reader.info(driver.node(INNER)).detail['grid'] == (9, 1, 1)
    driver.device.child_take(EXEC, driver.node(CHILD), other)
    ctypes.c_void_p.from_address(other + 8).value = driver.node(SET)
    with pytest.raises(CudaCallError) as info:
        driver.device.set_child(0, driver.node(CHILD), other)
    assert info.value.code == Code.cudaErrorGraphExecUpdateFailure
    took(driver, CHILD)


def test_a_refusal_of_the_driver_s_has_its_code(driver: Driver) -> None:
    driver.int('refuse').value = 1
    with pytest.raises(CudaCallError) as info:
        driver.device.node_take(EXEC, driver.node(KERNEL), 0, driver.node(KERNEL))
    assert info.value.code is Code.cudaErrorInvalidValue and 'cuGraphExecKernelNodeSetParams' in str(info.value)
    driver.int('refuse').value = 31337
    with pytest.raises(CudaCallError) as info:
        driver.device.node_take(EXEC, driver.node(COPY), 0, driver.node(COPY))
    assert info.value.code == 31337


def test_nodes_are_disabled(driver: Driver) -> None:
    node = driver.node(SET)
    driver.device.node_enable(EXEC, node, False)
    assert not driver.device.node_enabled(EXEC, node)
    driver.device.node_enable(EXEC, node, True)
    assert driver.device.node_enabled(EXEC, node)
    with pytest.raises(CudaCallError):
        driver.device.node_enable(EXEC, driver.node(HOST), False)


@pytest.mark.parametrize(
    ('result', 'reason'),
    [(2, 'topology changed'), (5, 'parameters changed'), (8, 'attributes changed'), (99, 'result 99')],
)
def test_a_refused_update_says_why_and_where(driver: Driver, result: int, reason: str) -> None:
    graph = driver.graph(1)
    assert driver.device.graph_exec_update(EXEC, graph) == ('', 0)
    assert driver.int('last_exec').value == EXEC
    driver.int('answer').value, driver.int('result').value = 910, result
    assert driver.device.graph_exec_update(EXEC, graph) == (reason, driver.node(INNER))
    driver.int('answer').value = 1
    with pytest.raises(CudaCallError):
        driver.device.graph_exec_update(EXEC, graph)
