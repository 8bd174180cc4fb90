"""What nodes were given, read back from a driver: names, arguments wherever they lie, scalars with their types.

The driver is a small one, compiled here with the structures of CUDA's header; a GPU is not needed.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.driver import node_reader
from capturekit.driver.cuda import CudaDevice
from capturekit.driver.node_reader import Kernel, Reader, shortened
from capturekit.model.errors import CudaCallError
from capturekit.model.rules import Code

DRIVER = 'node_reader.c'


class _Function(ctypes.Structure):
    _fields_ = [
        ('name', ctypes.c_char_p),
        ('count', ctypes.c_size_t),
        ('offsets', ctypes.POINTER(ctypes.c_size_t)),
        ('sizes', ctypes.POINTER(ctypes.c_size_t)),
        ('of_library', ctypes.c_int),
    ]


class _Node(ctypes.Structure):
    _fields_ = [
        ('kind', ctypes.c_int),
        ('func', ctypes.c_void_p),
        ('kern', ctypes.c_void_p),
        ('args', ctypes.c_void_p),
    ]


class _Graph(ctypes.Structure):
    _fields_ = [('count', ctypes.c_size_t), ('nodes', ctypes.c_void_p)]


class Driver:
    """Makes graphs of the small driver's, and keeps them."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self._kept: list[Any] = []

    @property
    def asked(self) -> int:
        return ctypes.c_int.in_dll(self.library, 'asked').value

    def _keep(self, thing: Any) -> int:
        self._kept.append(thing)
        return ctypes.addressof(thing)

    def function(self, name: str, *layout: tuple[int, int], of_library: bool = False) -> int:
        offsets, sizes = ((ctypes.c_size_t * (len(layout) + 1))(*part, 0) for part in zip(*layout)) if layout else (
            (ctypes.c_size_t * 1)(), (ctypes.c_size_t * 1)(),
        )  # fmt: skip
        self._kept += [offsets, sizes]
        return self._keep(_Function(name.encode(), len(layout), offsets, sizes, of_library))

    def node(self, func: int, args: Sequence[bytes] = (), offsets: Sequence[int] | None = None, kern: int = 0) -> int:
        """A kernel's node; its arguments in one piece at ``offsets``, or each in a place of its own."""
        if offsets is None:
            buffers = [ctypes.create_string_buffer(arg, len(arg) + 16) for arg in args]
            places = [self._keep(buffer) for buffer in buffers]
        else:
            data = bytearray(b'\xee' * (offsets[-1] + len(args[-1])))
            for arg, offset in zip(args, offsets):
                data[offset : offset + len(arg)] = arg
            start = self._keep((ctypes.c_char * len(data)).from_buffer(data))
            places = [start + offset for offset in offsets]
        pointers = self._keep((ctypes.c_void_p * len(places))(*places)) if places else 0
        return self._keep(_Node(0, func, kern, pointers))

    def other(self, kind: int = 2, inner: int = 0) -> int:
        """A node that is no kernel's."""
        return self._keep(_Node(kind, 0, 0, inner))

    def graph(self, *handles: int) -> int:
        return self._keep(_Graph(len(handles), self._keep((ctypes.c_void_p * max(len(handles), 1))(*handles))))


@pytest.fixture
def driver(libcuda: str) -> Driver:
    return Driver(ctypes.CDLL(libcuda))


def words(*values: int) -> bytes:
    return struct.pack(f'<{len(values)}Q', *values)


def test_kernels_and_others(driver: Driver) -> None:
    """Kernels come in the order of their first nodes, each with all its nodes; the others by their handles."""
    copy, fill = driver.function('copy', (0, 8), (8, 8)), driver.function('fill', (0, 8))
    empty = driver.function('empty')
    first, last = driver.other(), driver.other()
    graph = driver.graph(
        first,
        driver.node(copy, [words(1), words(2)], [0, 8]),
        driver.node(fill, [words(3)], [0]),
        driver.node(copy, [words(4), words(5)]),
        driver.node(empty),
        last,
    )
    kernels, others = Reader().kernels(graph)
    assert others == [first, last]
    assert [(k.name, k.layout) for k in kernels] == [('copy', [(0, 8), (8, 8)]), ('fill', [(0, 8)])]
    assert [k.nodes for k in kernels] == [[words(1, 2), words(4, 5)], [words(3)]]
    assert [k.words().tolist() for k in kernels] == [[1, 2, 4, 5], [3]]
    later, others = Reader().kernels(graph, 2)
    assert ([k.nodes for k in later], others) == ([[words(3)], [words(4, 5)]], [last]), 'from node number 2 on'


def test_arguments_wherever_they_lie(driver: Driver) -> None:
    """In one piece, as the driver keeps them, with gaps between them; or each by itself, where gaps are zeros."""
    layout = ((16, 8), (24, 1), (32, 20), (52, 2))
    args = [words(0x7F0000000010), b'\x01', words(5, 6) + b'tail', b'ab']
    kernel = driver.function('odd', *layout)
    offsets = [offset for offset, _size in layout]
    together = driver.node(kernel, args, offsets)
    apart = driver.node(kernel, args)
    (found,), _ = Reader().kernels(driver.graph(together, apart))
    gap = b'\xee' * 7
    assert found.nodes[0] == args[0] + args[1] + gap + args[2] + args[3]
    assert found.nodes[1] == args[0] + args[1] + bytes(7) + args[2] + args[3]
    assert found.words().tolist() == [5, 6, 0x7F0000000010], 'nothing from the gaps, nor across them'


def test_words_are_aligned_whole_and_once_each() -> None:
    kernel = Kernel('k', [(0, 8), (8, 4)], [words(7) + b'abcd', words(7) + b'efgh', words(3) + b'abcd'])
    assert kernel.words().tolist() == [3, 7]
    shifted = Kernel('k', [(0, 4), (4, 12), (16, 20)], [b'abcd' + words(1) + b'efgh' + words(2, 3) + b'ijkl'])
    assert shifted.words().tolist() == [2, 3, int.from_bytes(words(1)[4:] + b'efgh', 'little')]
    assert Kernel('k', [(0, 4)], [b'abcd']).words().tolist() == []


def test_functions_and_kernels_of_libraries(driver: Driver) -> None:
    """A node names a function of a module, or a kernel of a library: each is asked for its name once in each look."""
    function = driver.function('of a module', (0, 8))
    kernel = driver.function('of a library', (0, 8), of_library=True)
    graph = driver.graph(
        *(driver.node(function, [words(i)], [0]) for i in range(3)),
        *(driver.node(0, [words(i)], [0], kern=kernel) for i in range(3)),
    )
    reader, before = Reader(), driver.asked
    for _ in range(2):
        assert [(k.name, len(k.nodes)) for k in reader.kernels(graph)[0]] == [('of a module', 3), ('of a library', 3)]
    assert driver.asked == before + 4


def test_another_function_may_get_the_handle_of_an_unloaded_one(driver: Driver) -> None:
    function, other = driver.function('unloaded', (0, 8), (8, 8)), driver.function('loaded since', (0, 8), (8, 4))
    reader = Reader()
    first = driver.graph(driver.node(function, [words(1), words(2)], [0, 8]))
    assert [info.name for info in reader.infos(first)] == ['unloaded']
    ctypes.memmove(function, other, 5 * 8)  # the whole of a `Function`
    graph = driver.graph(driver.node(function, [words(1), words(2)], [0, 8]))
    assert [(one.name, one.layout) for one in reader.kernels(graph)[0]] == [('loaded since', [(0, 8), (8, 4)])]
    (info,) = reader.infos(graph)
    assert (info.name, reader.info(info.handle).name) == ('loaded since', 'loaded since')
    assert reader.described((function, 0)) == ('loaded since', [(0, 8), (8, 4)])


def test_nodes_of_every_kind(driver: Driver) -> None:
    function = driver.function('_ZN3cub6DeviceILi7EfEEvPKT0_i', (0, 8), (8, 24), (32, 4))
    kernel = driver.node(function, [words(0x7F0000000100), words(1, 2, 3), struct.pack('<i', 6)])
    inner = driver.graph(driver.node(driver.function('inside')))
    others = [driver.other(kind) for kind in (1, 2, 3)] + [driver.other(4, inner)]
    others += [driver.other(kind) for kind in (5, 6, 7, 10, 11, 13, 99)]
    found = Reader().infos(driver.graph(kernel, *others))
    assert [info.kind for info in found] == [
        'kernel', 'memcpy', 'memset', 'host', 'graph', 'empty', 'wait event', 'event record', 'mem alloc', 'mem free',
        'conditional', '99',
    ]  # fmt: skip
    assert found[0].name == 'void cub::Device<7, float>(float const*, int)'
    assert found[0].words == (0x7F0000000100, 1, 2, 3)
    most = 0xFFFFFFFF
    assert found[0].detail['grid'][0] == found[0].detail['block'][2] == found[0].detail['shared'] == most
    assert found[1].detail == {'dst': 0x7F0000000800, 'src': 0x1234500000, 'bytes': 128}
    assert found[2].detail == {'dst': 0x7F0000000400, 'value': 5, 'bytes': 64}
    assert [info.name for info in Reader().infos(found[4].inner)] == ['inside']
    assert [info.handle for info in found] == [kernel, *others]


@pytest.mark.parametrize(
    ('name', 'people'),
    [('cupy_add__float64_float64_float64', 'cupy_add__float64_float64_float64'), ('_Z3fooi', 'foo(int)'), ('_Z', '_Z')],
)
def test_names_as_people_write_them(name: str, people: str) -> None:
    assert node_reader.demangled(name) == people


def test_edges_are_pairs_of_handles(driver: Driver) -> None:
    handles = [driver.node(driver.function('k', (0, 8)), [words(n)]) for n in range(3)]
    device: Any = object.__new__(CudaDevice)
    device._reader = None
    assert device.graph_edges(driver.graph(*handles)) == [(handles[0], handles[1]), (handles[1], handles[2])]
    assert device.graph_edges(driver.graph()) == []


def test_the_last_node_of_a_stream(driver: Driver) -> None:
    status = ctypes.c_int.in_dll(driver.library, 'captured')
    into = ctypes.c_void_p.in_dll(driver.library, 'into')
    last = Reader().last_nodes()
    assert (last(0x1100), last(0x2200)) == (-2, -1)
    status.value = 1
    made = [driver.node(driver.function('k', (0, 8)), [words(n)]) for n in range(2)]
    for many in range(3):
        into.value = driver.graph(*made[:many])
        assert last(0x1100) == (made[many - 1] if many else 0)
        assert Reader().handles(into.value) == made[:many]
    assert last(0x2200) == -1
    status.value = 2
    assert last(0x1100) == -1


def test_several_threads_ask_for_the_nodes_before(driver: Driver) -> None:
    """Each gets the answer for its own stream, although another one is answered meanwhile."""
    ctypes.c_int.in_dll(driver.library, 'captured').value = 1
    node = driver.node(driver.function('k', (0, 8)), [words(1)])
    ctypes.c_void_p.in_dll(driver.library, 'into').value = driver.graph(node)
    after, interval = Reader().next_after(), sys.getswitchinterval()
    expected = {0x1100: (node,), 0x3300: (-2,)}

    def wrong(stream: int) -> int:
        return sum(after(stream) != expected[stream] for _ in range(20_000))

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(wrong, [0x1100, 0x3300] * 2)) == [0] * 4
    finally:
        sys.setswitchinterval(interval)


def test_device_memory(driver: Driver) -> None:
    reader = Reader()
    assert reader.is_device_memory(0x7F0000000000)
    assert reader.is_device_memory(0x7F0000000FFF)
    assert not reader.is_device_memory(0x7F0000001000)
    assert not reader.is_device_memory(0)


# -- scalars ------------------------------------------------------------------------------------------------------

#: CuPy's names: arrays by their dtype, scalars by its kind alone. (name, sizes, arguments, what is a scalar)
ARRAY, POINTER = 24, 0x7F0000000100
SCALARS: dict[str, tuple[str, list[int], list[bytes], list[tuple[int, str, Any]]]] = {
    'integers': (
        'cupy_clip__int32_int_uint_int32',
        [ARRAY, 4, 8, ARRAY], [words(POINTER, 4, 8), struct.pack('<i', -3), words(1 << 63), words(POINTER, 4, 8)],
        [(1, 'int32', -3), (2, 'uint64', 1 << 63)],
    ),
    'small ones': (
        'cupy_where__bool_int_float_float16',
        [ARRAY, 1, 2, ARRAY], [words(POINTER, 4, 8), b'\xff', np.float16(1.5).tobytes(), words(POINTER, 4, 8)],
        [(1, 'int8', -1), (2, 'float16', 1.5)],
    ),
    'others of four and eight bytes': (
        'cupy_where__bool_bool_float_complex_float32',
        [ARRAY, 1, 4, 8, ARRAY],
        [words(POINTER, 4, 8), b'\x01', struct.pack('<f', 2.5), np.complex64(1 - 2j).tobytes(), words(POINTER, 4, 8)],
        [(1, 'bool', True), (2, 'float32', 2.5), (3, 'complex64', 1 - 2j)],
    ),
    'of eight and sixteen bytes': (
        'cupy_add__complex128_float_complex_complex128',
        [16, 8, 16, 16],
        [words(POINTER, 1), struct.pack('<d', 2.5), np.complex128(1 - 2j).tobytes(), words(POINTER, 1)],
        [(1, 'float64', 2.5), (2, 'complex128', 1 - 2j)],
    ),
    'arrays without dimensions': (
        'cupy_add__complex128_complex128_complex128', [16, 16, 16], [words(POINTER, 1)] * 3, [],
    ),
    'not by its types': ('cupy_copy', [ARRAY, 8], [words(POINTER, 4, 8), words(3)], []),
    'types alone': ('cupy_float_int', [8, 8], [words(POINTER), words(3)], []),
    'more arguments than types': (
        'cupy_sin__float_float64',
        [8, ARRAY, 8], [struct.pack('<d', 0.5), words(POINTER, 4, 8), words(4)],
        [(0, 'float64', 0.5)],
    ),
    "somebody's own": ('my__float_int', [8, 8], [words(POINTER), words(3)], []),
}  # fmt: skip


@pytest.mark.parametrize('case', SCALARS)
@pytest.mark.parametrize('apart', [False, True])
def test_scalars(driver: Driver, case: str, apart: bool) -> None:
    name, sizes, args, wanted = SCALARS[case]
    offsets, end = [], 0
    for size in sizes:
        align = min(size, 8)
        offsets.append(-(-end // align) * align)
        end = offsets[-1] + size
    kernel = driver.function(name, *zip(offsets, sizes))
    node = driver.node(kernel, args, None if apart else offsets)
    (found,), _ = Reader().kernels(driver.graph(node, node))
    assert list(found.scalars()) == wanted
    assert [type(value) for _number, _dtype, value in found.scalars()] == [type(value) for *_more, value in wanted]


# -- devices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('error', [LookupError('not loaded'), OSError('no such file')])
def test_a_device_whose_driver_can_not_be_reached(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails(_part: str) -> str:
        raise error

    monkeypatch.setattr(node_reader, 'loaded', fails)
    device = object.__new__(CudaDevice)  # nothing was asked of it yet: there may be no CUDA here
    device._reader = None
    assert device.reader is None
    assert device.graph_scalars([1, 2]) == []
    calls: list[tuple[Callable[..., Any], int, str]] = [
        (device.graph_exec_update, 2, 'changing a graph'),
        (device.node_info, 2, 'reading a graph'),
        (device.graph_measure, 5, 'measuring a graph'),
        (device.graph_time, 2, 'timing a launch'),
    ]
    for call, count, said in calls:
        with pytest.raises(CudaCallError, match=said) as info:
            call(*range(1, count + 1))
        assert info.value.code is Code.cudaErrorNotSupported


def test_constants_of_a_graph(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was uploaded, with its line; and what the device reads in all its graphs."""
    device = sim.__capturekit_simulated__
    asked: list[list[int]] = []

    def scalars(graphs: list[int]) -> list[tuple[str, int, str, Any]]:
        asked.append(graphs)
        return [('cupy_multiply__float64_float_float64', 1, 'float64', 2.0)]

    x = sim.arange(4.0)

    def fn() -> Any:
        y = x * 2 + sim.array([1.0, 2.0, 3.0, 4.0])
        return y[y > float(y[0])]

    with ck.capture() as plain:
        x * 2 + sim.array([1.0, 2.0, 3.0, 4.0])
    with ck.capture(rehearsal=ck.rehearse(fn)) as parts:
        fn()
    assert [c['kind'] for c in plain.graph.constants()] == ['upload'], 'the simulated device can not be read'
    monkeypatch.setattr(device, 'graph_scalars', scalars)
    for cap in (plain, parts):
        upload, scalar = cap.graph.constants()
        assert (upload['kind'], upload['nbytes'], upload['at'][0]) == ('upload', 32, __file__)
        assert (scalar['kind'], scalar['argument'], scalar['dtype'], scalar['value']) == ('scalar', 1, 'float64', 2.0)
    assert asked[0] == [plain.graph.graph]
    assert asked[1][0] == parts.graph.graph and len(set(asked[1])) == len(asked[1]) > 1
    plain.graph.close()
    with pytest.raises(ck.ClosedError, match=r'Graph\.constants\(\)'):
        plain.graph.constants()


@pytest.mark.parametrize(
    ('name', 'short'),
    [
        ('cupy_add__float32_float_float32', 'cupy_add__float32_float_float32'),
        (
            'void cub::C_1::detail::reduce::Kernel<cub::C_1::hub<float, X<int> >::P, float*>(float*, int)',
            'cub::Kernel',
        ),
        ('void gemm<float, (int)3>(int)', 'gemm'),
        ('void (anonymous namespace)::k<int>(int)', 'k'),
        ('f(float*)', 'f'),
    ],
)
def test_a_name_in_a_report_is_short(name, short):
    assert shortened(name) == short
