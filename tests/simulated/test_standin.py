"""The stand-in for CuPy on the simulated device: eager results, captures, memory, refusals, transfers."""

from __future__ import annotations

import gc
import importlib
import operator
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capturekit.model.cleanup import GARBAGE
from capturekit.simulated import SimulatedDevice, install, uninstall
from capturekit.simulated.kernel_bodies import body
from tests.captured import simulated
from tests.examples import examples
from tests.simulated.standin import D2H, H2D, SYNCHRONOUS, capture


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


# -- eager, against NumPy -------------------------------------------------------------------------------------

DTYPES = ['?', 'i1', 'i4', 'i8', 'u1', 'u4', 'f4', 'f8', 'c8', 'c16']
BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.matmul]
BINARY += [divmod, operator.lt, operator.ge, operator.eq, operator.ne, operator.and_, operator.or_, operator.xor]


def same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            same(a, b)
        return
    found = ours.get()
    assert (found.shape, found.dtype) == (np.shape(theirs), np.asarray(theirs).dtype)
    np.testing.assert_array_equal(found, theirs)


def outcome(fn: Callable[[], Any]) -> Any:
    with np.errstate(all='ignore'), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            return fn()
        except TypeError:
            return TypeError


@given(st.sampled_from(BINARY), st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 9), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_operators_do_what_numpys_do(op: Any, d1: str, d2: str, seed: int, data: Any) -> None:
    a, b = (np.random.RandomState(seed + n).randint(0, 5, (3, 3)).astype(d) for n, d in enumerate((d1, d2)))
    kind = data.draw(st.sampled_from(['arrays', 'row', 'scalar', 'reflected', 'transposed']))
    b = {'row': b[:1], 'transposed': b.T}.get(kind, b)
    scalar = data.draw(st.sampled_from([True, 2, 1.5, 2j]))
    pairs = {'scalar': (a, scalar), 'reflected': (scalar, a)}
    x, y = pairs.get(kind, (a, b))
    if op is operator.matmul and kind in ('scalar', 'reflected', 'row'):
        return
    wanted = outcome(lambda: op(x, y))
    with simulated() as cp:
        dev = [cp.asarray(v) if isinstance(v, np.ndarray) else v for v in (x, y)]
        found = outcome(lambda: op(*dev))
        if wanted is TypeError:
            assert found is TypeError
        else:
            same(found, wanted)


LISTS = st.lists(st.integers(-1, 0), min_size=1, max_size=3)
INDICES = st.one_of(st.integers(-1, 0), st.slices(3), st.none(), st.just(...), LISTS)


@given(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 3)), st.lists(INDICES, max_size=4))
@settings(max_examples=examples(300), deadline=None)
def test_indexing_with_one_array_at_most_does_what_numpys_does(shape: tuple[int, ...], key: list[Any]) -> None:
    arrays = [k for k in key if isinstance(k, list)]
    if len(arrays) > 1 or key.count(Ellipsis) > 1 or (arrays and any(isinstance(k, int) for k in key)):
        # Several arrays are tested below; NumPy counts scalars beside arrays as arrays, CuPy does not.
        return
    a = np.arange(np.prod(shape)).reshape(shape)
    with simulated() as cp:
        x = cp.asarray(a)
        try:
            wanted = a[tuple(key)]
        except IndexError as e:
            if 'out of bounds' not in str(e):
                with pytest.raises(IndexError):
                    x[tuple(key)]
            return
        same(x[tuple(key)], wanted)
        if wanted.size:
            a[tuple(key)] = 7
            x[tuple(key)] = 7
            same(x, a)


#: Calls of a function, or of an array of 3 x 4 numbers.
FUNCTIONS = [
    'a.sum(axis=1, keepdims=True)', "a.mean(axis=0, dtype='f4')", 'a.std(ddof=1)', 'a.argmax(axis=1)',
    'a.cumsum(axis=1)', 'a.clip(2, 5)', "a.astype('i4').T.copy()", "a.reshape(2, -1).ravel(order='F')",
    'a[::-1, ::2].flatten()', 'a[[0, 2], [1, 1]]', 'a[xp.asarray([[0], [2]]), xp.asarray([1, 3])]',
    'a[:, xp.asarray([True, False, True, False])]', 'a[a > 5]', 'xp.nonzero(a > 5)', 'xp.where(a > 5, a, -1.0)',
    'xp.concatenate([a, a[:1]], axis=0)', 'xp.split(a, 2, axis=1)', 'xp.bincount(a.ravel().astype(int), minlength=20)',
    'xp.unique(xp.asarray([3, 1, 3]), return_inverse=True, return_counts=True)', 'xp.fft.rfft(a, axis=0)',
    'xp.linalg.solve(a[:3, :3] + xp.eye(3) * 9, a[:3, 0])', "xp.einsum('ij,kj->ik', a, a)", 'xp.histogram(a, bins=4)',
    'xp.meshgrid(a[0], a[:, 0])[1]', 'xp.percentile(a, [10, 50], axis=1)', 'xp.linspace(0, 1, 7)',
    "xp.full_like(a, 3, dtype='i2')", 'xp.tril(a, -1)', 'xp.modf(a / 3)', 'xp.r_[a[0], 1.0]', 'xp.mgrid[0:2, 0:3]',
    'xp.add.outer(a[0], a[1])', 'xp.maximum.accumulate(a, axis=1)', "a.view('f4')[:, :2]",
    '(a + 1j).imag + (a + 1j).real', 'xp.delete(a, 1, axis=0)', 'xp.sort(a[::-1], axis=0)',
    'xp.apply_along_axis(lambda row: row.sum(), 0, a)',
    'xp.apply_along_axis(lambda row: row[:2].reshape(2, 1) * row[:2], -1, a)',
]  # fmt: skip


@pytest.mark.parametrize('call', FUNCTIONS)
def test_functions_do_what_numpys_do(cp: Any, call: str) -> None:
    a = np.arange(12.0).reshape(3, 4)
    same(eval(call, {'xp': cp, 'a': cp.asarray(a)}), eval(call, {'xp': np, 'a': a}))


def test_indices_out_of_bounds_wrap_around_an_axis(cp: Any, side: Any) -> None:
    x = cp.arange(3)
    assert x[cp.asarray([4, -4])].tolist() == cp.take(x, cp.asarray([4, -4])).tolist() == [1, 2]
    x[cp.asarray([5])] = 9
    assert x.tolist() == [0, 1, 9]
    y, graph = capture(side, lambda: x[cp.arange(2) + 1])
    graph.launch()
    assert y.tolist() == [1, 9]
    empty = cp.zeros((0, 3))
    for wrong in (lambda: empty.__setitem__([0, 1], 3.0), lambda: empty[[0, 1]], lambda: x[0, 0]):
        with pytest.raises(IndexError):
            wrong()
    empty[cp.zeros(0, int)] = 3.0
    cp.zeros((2, 0))[[0, 1]] = 3.0


def test_numpys_functions_on_an_array_are_cupys(cp: Any) -> None:
    x = cp.arange(4.0)
    numpys: Any = np
    for result in (np.sin(x), np.sum(x), np.concatenate([x, x]), numpys.add.reduce(x), np.linalg.norm(x)):
        assert isinstance(result, cp.ndarray)


def test_host_arrays_are_no_operands(cp: Any) -> None:
    names = {'cp': cp, 'np': np, 'x': cp.arange(3.0), 'a': np.arange(3.0)}
    for call in ('x + a', 'a + x', 'cp.add(x, a)', 'cp.concatenate([x, a])'):
        with pytest.raises(TypeError, match='Unsupported type'):
            eval(call, names)
    # CuPy joins arrays of one shape, and NumPy makes all else
    for call in ('np.asarray(x)', 'cp.array([x.sum(), 1.0])', 'cp.array([x, a])', 'cp.array([x, x[1:]])'):
        with pytest.raises(TypeError, match='Implicit conversion to a NumPy array is not allowed'):
            eval(call, names)
    for call in ('cp.add(x, [1, 2, 3])', 'cp.sum(x, where=True)'):
        with pytest.raises(TypeError):
            eval(call, names)
    with pytest.raises(ValueError, match='non-scalar'):
        names['x'][:] = names['a']


def test_attributes_on_the_class_shadow_inherited_ones(cp: Any) -> None:
    assert 'get' not in vars(cp.ndarray)
    assert 'sum' not in vars(cp.ndarray)
    x = cp.arange(3)
    cp.ndarray.get = lambda self, *args, **kwargs: np.full(self.shape, 42)
    try:
        assert int(x[0]) == float(x[0]) == x[0].item() == cp.asnumpy(x)[0] == len(cp.nonzero(x)[0]) == 42
        assert x.tolist() == [42] * 3 and bool(x[0]) and '42' in repr(x)
    finally:
        del cp.ndarray.get
    assert x.tolist() == [0, 1, 2]


def test_pickle_and_copies(cp: Any) -> None:
    x = cp.arange(6).reshape(2, 3)
    assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist()
    error = pickle.loads(pickle.dumps(cp.cuda.runtime.CUDARuntimeError(900)))
    assert error.status == 900


# -- captures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('dtype', 'value'), [('f4', np.nan), ('c16', np.nan), ('i4', -(2**31)), ('u1', 255), ('?', True)]
)
def test_new_arrays_hold_poison_until_the_launch(cp: Any, side: Any, dtype: str, value: Any) -> None:
    x = cp.asarray(np.array([0, 1, 1]), dtype=dtype)
    square = cp.logical_and if dtype == '?' else cp.multiply
    made, graph = capture(side, lambda: [square(x, x), cp.zeros_like(x), x.copy(), cp.empty_like(x)])
    for array in made:
        np.testing.assert_array_equal(array.get().real, np.full(3, value))
    graph.launch()
    assert made[0].get().real.tolist() == made[2].get().real.tolist() == [0, 1, 1]
    assert made[1].get().real.tolist() == [0, 0, 0]


def test_writes_in_place_wait_for_the_launch(cp: Any, side: Any) -> None:
    x, out = cp.arange(4.0), cp.zeros(4)

    def steps() -> None:
        x.__iadd__(1)
        x[1:3] = 0
        x[cp.arange(1)] = 9
        cp.add(x, x, out=out)
        x.sort()
        cp.copyto(x[:1], 5)
        cp.add.at(out, cp.arange(2), 1.0)

    _, graph = capture(side, steps)
    assert (x.tolist(), out.tolist()) == ([0, 1, 2, 3], [0] * 4)
    graph.launch()
    assert (x.tolist(), out.tolist()) == ([5, 0, 4, 9], [19, 1, 0, 8])


def test_shapes_are_checked_while_recording(cp: Any, side: Any) -> None:
    x = cp.arange(4.0)

    def steps() -> None:
        for wrong in (lambda: x + cp.zeros(3), lambda: x.reshape(3), lambda: cp.add(x, x, out=cp.empty(3))):
            with pytest.raises(ValueError, match=r'shape|operands'):
                wrong()

    capture(side, steps)


def test_graphs_and_streams_go_with_their_objects(cp: Any, side: Any) -> None:
    _, graph = capture(side, lambda: cp.zeros(3))
    assert 'memset' in graph.debug_dot_str()
    graph.upload()
    with pytest.raises(NotImplementedError):
        cp.cuda.Graph()
    assert len(cp.__capturekit_simulated__.graphs) == len(cp.__capturekit_simulated__.executables) == 1
    stream = cp.cuda.Stream()
    ptr = stream.ptr
    del graph, stream
    gc.collect()
    device = cp.__capturekit_simulated__
    assert not device.graphs and not device.executables and ptr not in device.streams


# -- put in place of CuPy -------------------------------------------------------------------------------------


def test_install_and_uninstall_leave_what_was_there() -> None:
    marker = type(sys)('cupy')
    had = {k: sys.modules.pop(k) for k in [k for k in sys.modules if k.partition('.')[0] == 'cupy']}
    sys.modules['cupy'] = sys.modules['cupy.something'] = marker
    before = dict(sys.modules)
    try:
        device = SimulatedDevice()
        install(device)
        import cupy
        from cupy.cuda import runtime

        assert cupy.__capturekit_simulated__ is device
        assert cupy.__version__.endswith('+simulated')
        assert 'cupy.something' not in sys.modules
        assert runtime is sys.modules['cupy_backends.cuda.api.runtime']
        with pytest.raises(ModuleNotFoundError):
            import cupy.something_else
        uninstall()
        assert {k: v for k, v in sys.modules.items() if k in before or k.startswith(('cupy', '_capturekit'))} == before
        with pytest.raises(RuntimeError, match='not installed'):
            uninstall()
    finally:
        for k in ('cupy', 'cupy.something'):
            sys.modules.pop(k, None)
        sys.modules.update(had)


def test_what_is_missing_says_so(cp: Any) -> None:
    with pytest.raises(AttributeError, match="the simulated CuPy has no 'nonsense'"):
        _ = cp.nonsense
    with pytest.raises(AttributeError, match=r'real CuPy has cupy\.poly1d'):
        _ = cp.poly1d
    with pytest.raises(AttributeError, match="the simulated CuPy has no 'ipcGetMemHandle'"):
        cp.cuda.runtime.ipcGetMemHandle(0)
    assert not hasattr(cp.cuda, 'texture')


def test_what_of_cupyx_is_there(cp: Any) -> None:
    import cupyx
    from cupyx.profiler import benchmark, time_range

    a = cp.zeros(3)
    cupyx.scatter_add(a, cp.asarray([0, 0]), 1)
    assert a.tolist() == [2, 0, 0]
    with time_range('here'):
        assert len(benchmark(lambda: None, n_repeat=3).gpu_times[0]) == 3


# -- memory ---------------------------------------------------------------------------------------------------


def test_a_replay_overwrites_blocks_that_others_took_over(cp: Any, side: Any) -> None:
    x = cp.ones(1024)
    y, graph = capture(side, lambda: (x * 2) + 1)
    with side:
        taken = cp.zeros(1024)
    graph.launch()
    assert float(y[0]) == 3
    assert float(taken[0]) == 2, 'the temporary of the graph is the block that zeros() got'


def test_two_lanes_can_be_given_one_block() -> None:
    found = set()
    for seed in range(12):
        with simulated(seed) as cp:
            one, two = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
            x = cp.ones(256)
            with one:
                one.begin_capture()
                temporary = x * 2
                two.wait_event(one.record())
                with two:
                    read = temporary + 0
                del temporary
                again = x * 100
                one.wait_event(two.record())
                graph = one.end_capture()
            graph.launch()
            assert float(again[0]) == 100
            found.add(float(read[0]))
            del read, again, x, graph, one, two
    assert found == {2.0, 100.0}


def test_the_pool_gives_a_stream_its_own_blocks_back(cp: Any, side: Any) -> None:
    pool = cp.cuda.MemoryPool()
    first = pool.malloc(1000)
    assert (pool.used_bytes(), pool.total_bytes(), first.mem.size) == (1024, 1024, 1024)
    ptr = first.ptr
    del first
    assert (pool.used_bytes(), pool.free_bytes(), pool.n_free_blocks()) == (0, 1024, 1)
    with side:
        assert pool.malloc(1000).ptr != ptr
    assert sorted(p.ptr for p in [pool.malloc(512), pool.malloc(512)]) == [ptr, ptr + 512], 'a block is split'
    assert pool.malloc(1024).ptr == ptr, 'and merged again'
    pool.free_all_blocks(stream=side)
    assert pool.total_bytes() == 1024
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    with pytest.raises(cp.cuda.runtime.CUDARuntimeError, match='cudaErrorIllegalAddress'):
        cp.ndarray((2,), 'f8', cp.cuda.MemoryPointer(cp.cuda.UnownedMemory(ptr, 16, None, 0), 0)) + 1


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000), st.integers(0, 1)), max_size=60))
@settings(max_examples=examples(100), deadline=None)
def test_blocks_in_use_never_overlap(steps: list[tuple[bool, int, int]]) -> None:
    with simulated() as cp:
        pool = cp.cuda.MemoryPool()
        held: list[Any] = []
        streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
        for allocate, size, which in steps:
            if allocate or not held:
                with streams[which]:
                    held.append(pool.malloc(size))
            else:
                del held[size % len(held)]
            spans = sorted((p.ptr, p.ptr + p.mem.size) for p in held)
            assert all(spans[i][1] <= spans[i + 1][0] for i in range(len(spans) - 1))
            assert pool.used_bytes() == sum(p.mem.size for p in held) <= pool.total_bytes()
        held.clear()
        pool.free_all_blocks()
        assert pool.total_bytes() == pool.used_bytes() == pool.n_free_blocks() == 0


def test_limits(cp: Any) -> None:
    pool = cp.cuda.MemoryPool()
    pool.set_limit(size=1024)
    held = pool.malloc(1024)
    with pytest.raises(cp.cuda.memory.OutOfMemoryError, match=r'limit set to: 1,024 bytes'):
        pool.malloc(1)
    assert held.ptr
    assert pool.get_limit() == 1024
    with pytest.raises(MemoryError):
        cp.cuda.MemoryPool().malloc(1 << 40)


def test_allocators(cp: Any) -> None:
    log, pool = [], cp.cuda.MemoryPool()

    def ours(size: int) -> Any:
        log.append(size)
        return pool.malloc(size)

    with cp.cuda.using_allocator(ours), ThreadPoolExecutor(1) as threads:
        assert cp.cuda.get_allocator() == ours
        x = cp.arange(3.0)
        with pytest.raises(ValueError, match="Can't change the global allocator"):
            cp.cuda.set_allocator()
        assert threads.submit(cp.cuda.get_allocator).result() == cp.get_default_memory_pool().malloc
    assert x.tolist() == [0, 1, 2] and log == [24]


def test_unowned_memory_finds_its_bytes(cp: Any) -> None:
    x = cp.arange(8.0)
    mem = cp.cuda.UnownedMemory(x.data.ptr + 16, 16, x)
    part = cp.ndarray((2,), 'f8', cp.cuda.MemoryPointer(mem, 0))
    part += 10
    assert x.tolist() == [0, 1, 12, 13, 4, 5, 6, 7]
    again = cp.asarray(type('Other', (), {'__cuda_array_interface__': x[::2].__cuda_array_interface__})())
    again[0] = -1
    assert float(x[0]) == -1


def test_pinned_arrays_have_memory_of_their_own(cp: Any) -> None:
    cupyx = importlib.import_module('cupyx')
    arrays = [make(4) for make in (cupyx.empty_pinned, cupyx.zeros_pinned) for _ in range(3)]
    arrays += [np.frombuffer(cp.cuda.alloc_pinned_memory(32), 'f8', 4) for _ in range(3)]
    view = cupyx.zeros_pinned((2, 4))[1:, ::2]
    arrays += [cupyx.zeros_pinned(4) for _ in range(3)]
    for number, one in enumerate(arrays):
        one[...] = number
    assert [one.tolist() for one in arrays] == [[number] * 4 for number in range(len(arrays))]
    assert view.tolist() == [[0, 0]]


def test_pinned_memory(cp: Any, side: Any) -> None:
    mem, runtime = cp.cuda.alloc_pinned_memory(64), cp.cuda.runtime
    staged, address = np.frombuffer(mem, 'f8', 8), mem.ptr
    assert cp.cuda.pinned_memory.is_memory_pinned(staged.ctypes.data)
    assert not cp.cuda.pinned_memory.is_memory_pinned(np.zeros(8).ctypes.data)
    x = cp.arange(8.0)
    x.get(out=staged, blocking=False)
    assert staged.tolist() == x.tolist()
    _, graph = capture(side, lambda: runtime.memcpyAsync(x.data.ptr, address, 64, runtime.memcpyHostToDevice, side.ptr))
    mem += 16
    assert np.frombuffer(mem, 'f8', 2).tolist() == [2, 3]
    mem -= 8
    assert np.frombuffer(mem, 'f8', 2).tolist() == [1, 2]
    assert int(mem) == staged.ctypes.data + 8
    staged[:] = 5
    assert float(x[1]) == 1
    graph.launch()
    assert x.tolist() == [5] * 8


def test_a_finalizer_does_not_wait_for_the_pool(sim: Any) -> None:
    """Its thread may hold the device, for which whoever has the pool waits: the two would wait for each other."""
    held, done = threading.Event(), threading.Event()
    other = sim.cuda.MemoryPool()

    def allocate(size: int) -> Any:
        if size > 512:  # the other thread has the pool
            held.set()
            done.wait(30)
        return other.malloc(size)

    pool = sim.cuda.MemoryPool(allocate)
    memory = pool.malloc(512)
    address = memory.ptr
    with ThreadPoolExecutor(1) as threads:
        kept = threads.submit(pool.malloc, 1024)
        assert held.wait(30)
        del memory  # would not return
        done.set()
        assert kept.result(30).mem.size == 1024
    assert (pool.used_bytes(), pool.n_free_blocks()) == (1024, 1)
    assert pool.malloc(512).ptr == address


def test_the_drivers_pool(sim: Any) -> None:
    pool = sim.cuda.MemoryAsyncPool()
    with sim.cuda.using_allocator(pool.malloc):
        x = sim.arange(100.0)
    assert x.get()[99] == 99
    del x
    pool.free_all_blocks()
    with pytest.raises(NotImplementedError, match='no sizes and limits'):
        pool.used_bytes()
    with pytest.raises(ValueError, match='handle must be'):
        sim.cuda.MemoryAsyncPool('none')


def test_an_array_is_assigned_by_memcpy_from_another_device() -> None:
    """CuPy does so where shapes, strides and dtypes are alike: no kernel has to reach the other device."""
    with simulated(devices=2) as cp:
        here = cp.arange(6.0).reshape(2, 3)
        with cp.cuda.Device(1):
            there = cp.zeros((2, 3))
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            there[...] = here
            assert there.get().tolist() == here.get().tolist()
            there[1:] = here[:1]
            assert there[1].get().tolist() == here[0].get().tolist()
        for work in (lambda: there.__setitem__(Ellipsis, here[0]), lambda: there.T.__setitem__(Ellipsis, here.T)):
            with pytest.warns(cp._util.PerformanceWarning, match='different from the current device'):
                work()


# -- refusals -------------------------------------------------------------------------------------------------


#: Calls that CuPy refuses on a captured stream, by what it says.
TRANSFERS = {
    D2H: [
        'x.get()', 'float(x[0])', 'bool(x[0] > 0)', 'repr(x)', 'cp.asnumpy(x)', 'x[x > 1]', 'cp.nonzero(x)',
        'cp.unique(x)', 'cp.bincount(x.astype(int))', 'cp.histogram(x)', 'x.__setitem__(x > 1, 0)',
    ],
    H2D: [
        'x.set(a)', 'cp.asarray([1, 2])', 'x[[0, 1]]', 'cp.percentile(x, [10, 20])', 'cp.append(x, [1, 2])',
        'x.__setitem__([0, 1], 5)',
    ],
    SYNCHRONOUS: [
        'x.data.copy_from_device(x.data, 8)', 'x.data.memset(0, 8)', 'x.data.copy_to_host(a.ctypes.data, 8)',
    ],
}  # fmt: skip


def test_host_transfers_are_refused_in_cupys_words(cp: Any, side: Any) -> None:
    x, a = cp.arange(4.0), np.arange(4.0)

    def steps() -> None:
        for message, calls in TRANSFERS.items():
            for call in calls:
                with pytest.raises(RuntimeError, match=message):
                    eval(call, {'cp': cp, 'x': x, 'a': a})
                assert side.is_capturing(), call
        cp.array(3.0)
        x[1] = 7

    _, graph = capture(side, steps)
    graph.launch()
    assert float(x[1]) == 7


def test_the_vendors_libraries_refuse_and_can_be_let_record(cp: Any, side: Any) -> None:
    x = cp.asarray(np.eye(3) * 2)
    cases = {
        'cuBLAS': ['x @ x', 'cp.dot(x, x)', "cp.einsum('ij,jk->ik', x, x)", 'cp.cov(x)'],
        'cuSOLVER': ['cp.linalg.inv(x)', 'cp.linalg.svd(x)', 'cp.linalg.norm(x, 2)'],
        'cuRAND': ['cp.random.rand(3)', 'cp.random.RandomState(0).randn(2)', 'cp.random.shuffle(x)'],
    }
    cp.random.seed(0)

    def refused() -> None:
        for library, calls in cases.items():
            for call in calls:
                with pytest.raises(NotImplementedError, match=f'calling {library} API during stream capture'):
                    eval(call, {'cp': cp, 'x': x})
        assert (x[0] @ x[0]).shape == ()
        assert (x.astype(int) @ x.astype(int)).shape == (3, 3)

    capture(side, refused)
    for library in ('cublas', 'cusolver'):
        vars(sys.modules[f'cupy_backends.cuda.libs.{library}'])['streamIsCapturing'] = lambda stream: False
    (product, inverse), graph = capture(side, lambda: (x @ x, cp.linalg.inv(x)))
    graph.launch()
    assert product.tolist() == (np.eye(3) * 4).tolist()
    assert inverse.tolist() == (np.eye(3) / 2).tolist()


def test_what_cuda_refuses_is_a_cuda_runtime_error(cp: Any, side: Any) -> None:
    error = cp.cuda.runtime.CUDARuntimeError
    with side:
        side.begin_capture()
        with pytest.raises(error, match='cudaErrorStreamCaptureUnsupported: operation not permitted') as caught:
            side.synchronize()
        assert caught.value.status == 900
        with pytest.raises(RuntimeError, match='an error has invalidated the capture sequence'):
            side.is_capturing()
        with pytest.raises(error, match='cudaErrorStreamCaptureInvalidated'):
            side.end_capture()
    with pytest.raises(RuntimeError, match=r'cannot capture on the default \(legacy\) stream'):
        cp.cuda.Stream.null.begin_capture()
    with pytest.raises(error, match='cudaErrorInvalidDevice'):
        cp.cuda.Device(3).use()
    timed, untimed = cp.cuda.Event(), cp.cuda.Event(disable_timing=True)
    for event in (timed, untimed):
        event.record()
    assert cp.cuda.get_elapsed_time(timed, timed) == 0
    with pytest.raises(error, match='cudaErrorInvalidResourceHandle'):
        cp.cuda.get_elapsed_time(timed, untimed)


# -- streams --------------------------------------------------------------------------------------------------


def test_with_and_use_rewind_as_cupys_do(cp: Any) -> None:
    current, (a, b, c) = cp.cuda.get_current_stream, (cp.cuda.Stream() for _ in range(3))
    with a:
        b.use()
        assert current() is b
        with c:
            assert current() is c
        assert current() is a, 'leaving goes back to what was entered, not to what was used'
        b.use()
    assert current() is cp.cuda.Stream.null
    a.use()
    with b:
        pass
    assert current() is cp.cuda.Stream.null
    with a, a:
        assert current() is a
    cp.cuda.Stream.null.use()


def test_stream_identity(cp: Any, side: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        external = cp.cuda.ExternalStream(side.ptr)
    assert external == side == cp.cuda.Stream.from_external(side) and external != cp.cuda.Stream()
    assert hash(external) == hash(side) == side.ptr and side.__cuda_stream__() == (0, side.ptr)
    assert cp.cuda.Stream(null=True) == cp.cuda.Stream.null
    assert side.is_non_blocking and not cp.cuda.Stream().is_non_blocking
    assert cp.cuda.Stream(priority=-1).priority == -1
    with pytest.raises(TypeError, match='does not implement'):
        cp.cuda.Stream.from_external(3)
    assert issubclass(cp.cuda.Stream, cp.cuda.stream._BaseStream)


# -- exchange -------------------------------------------------------------------------------------------------


def test_exchanged_arrays_are_ordered_after_the_current_stream(cp: Any, side: Any) -> None:
    x = cp.arange(4.0)
    assert x.__dlpack_device__() == (2, 0)
    shared = cp.from_dlpack(x)
    shared[0] = 9
    assert float(x[0]) == 9
    assert np.from_dlpack(type('Host', (), {
        '__dlpack__': lambda self, **kw: x.__dlpack__(dl_device=(1, 0)), '__dlpack_device__': lambda self: (1, 0),
    })()).tolist() == x.tolist()  # fmt: skip
    with side:
        side.begin_capture()
        x.__dlpack__(stream=side.ptr)
        with pytest.raises(RuntimeError, match='D2H'):
            x.__dlpack__(dl_device=(1, 0))
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError):
            x.__dlpack__()
        with pytest.raises(cp.cuda.runtime.CUDARuntimeError):
            side.end_capture()
    with pytest.raises(BufferError):
        x.__dlpack__(copy=True)
    y = cp.zeros((2, 3))
    assert (y.__cuda_array_interface__['stream'], y.__cuda_array_interface__['strides']) == (1, None)
    with side:
        assert y.T.__cuda_array_interface__['stream'] == side.ptr
    assert y.T.__cuda_array_interface__['strides'] == (8, 24)


# -- kernels --------------------------------------------------------------------------------------------------


def test_elementwise_kernels(cp: Any, side: Any) -> None:
    body('standin_square')(lambda x: x * x)

    @body('standin_both')
    def both(x: Any, k: Any, total: Any, difference: Any) -> None:
        total[...] = x + k
        difference[...] = x - k

    square = cp.ElementwiseKernel('T x', 'T y', 'y = x * x', 'standin_square')
    x = cp.arange(3, dtype='f4')
    y = square(x)
    assert (y.dtype, y.tolist()) == ('f4', [0, 1, 4])
    two = cp.ElementwiseKernel('T x, S k', 'T total, float64 difference', '', 'standin_both')
    total, difference = two(x, 2.5)
    assert (total.dtype, difference.tolist()) == ('f4', [-2.5, -1.5, -0.5])
    out = cp.zeros(3, 'f4')
    _, graph = capture(side, lambda: square(x, out))
    assert out.tolist() == [0, 0, 0]
    graph.launch()
    assert out.tolist() == [0, 1, 4]
    body('standin_sum_of_squares')(lambda x, axis, keepdims: (x * x).sum(axis=axis, keepdims=keepdims))
    reduce = cp.ReductionKernel('T x', 'T y', 'x * x', 'a + b', 'y = a', '0', 'standin_sum_of_squares')
    assert float(reduce(x)) == 5
    assert reduce(x.reshape(1, 3), axis=1).shape == (1,)


def test_a_kernel_needs_a_body_that_it_can_call(cp: Any) -> None:
    kernel, raw = cp.ElementwiseKernel('T x', 'T y', 'y = x', 'no_body_here'), cp.RawKernel('source', 'axpy')
    with pytest.raises(NotImplementedError, match=r"@capturekit\.simulated\.body\('no_body_here'\)"):
        kernel(cp.zeros(3))
    with pytest.raises(TypeError, match=r"of RawKernel 'axpy' with \(grid, block, args\), and wrong\(a, x, y, n\)"):

        @body('axpy')
        def wrong(a: Any, x: Any, y: Any, n: Any) -> None: ...

    with pytest.raises(NotImplementedError, match='axpy'):
        raw((1,), (1,), ())
    body('early')(lambda x: x)  # before its kernel: refused when that calls it
    reduce = cp.ReductionKernel('T x', 'T y', 'x', 'a + b', 'y = a', '0', 'early')
    with pytest.raises(TypeError, match=r'with \(x, axis, keepdims\)'):
        reduce(cp.ones(3))
    two = cp.ElementwiseKernel('T x, T y', 'T z', 'z = x + y', 'early')
    with pytest.raises(TypeError, match=r'\(x, y, z\) or \(x, y\)'):
        two(cp.ones(3), cp.ones(3))


def test_raw_kernels_write_at_the_launch(cp: Any, side: Any) -> None:
    @body('standin_triple')
    def triple(grid: Any, block: Any, args: Any) -> None:
        source, target, n = args
        target[:n] = source[:n] * 3 * grid[0]

    x, y, kernel = cp.arange(4.0), cp.zeros(4), cp.RawModule(code='...').get_function('standin_triple')
    _, graph = capture(side, lambda: kernel((2,), (4,), (x, y, np.int32(3))))
    assert y.tolist() == [0] * 4
    graph.launch()
    assert y.tolist() == [0, 6, 12, 0]


def test_fuse_vectorize_and_scatter(cp: Any) -> None:
    x = cp.arange(3.0)
    assert cp.fuse(lambda a: cp.sqrt(a) + 1)(x * x).tolist() == [1, 2, 3]
    assert cp.fuse(kernel_name='named')(lambda a: a + 1)(x).tolist() == [1, 2, 3]
    assert cp.vectorize(lambda a: a if a > 1 else 0.0)(x).tolist() == [0, 0, 2]


def test_garbage_waits_for_a_capture_begun_in_a_host_function(sim: Any) -> None:
    """Whoever ends last lets the collector go on."""
    sim.cuda.get_current_stream().launch_host_func(lambda _: GARBAGE.hold(), None)
    try:
        assert not gc.isenabled()
    finally:
        GARBAGE.release()
    assert gc.isenabled()
