"""The stand-in for CuPy on the simulated device: eager results, captures, memory, refusals, transfers."""

from __future__ import annotations

import gc
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.examples import examples
from tests.simulated.standin import capture, installed


@pytest.fixture
def cp(sim: Any) -> Any:
    return sim


# -- eager, against NumPy -------------------------------------------------------------------------------------

DTYPES = ['?', 'i1', 'i4', 'i8', 'u1', 'u4', 'f4', 'f8', 'c8', 'c16']
BINARY = {
    '+': lambda a, b: a + b, '-': lambda a, b: a - b, '*': lambda a, b: a * b, '/': lambda a, b: a / b,
    '//': lambda a, b: a // b, '%': lambda a, b: a % b, '<': lambda a, b: a < b, '==': lambda a, b: a == b,
    '!=': lambda a, b: a != b, '&': lambda a, b: a & b, '|': lambda a, b: a | b, '@': lambda a, b: a @ b,
    'divmod': divmod, '>=': lambda a, b: a >= b, '^': lambda a, b: a ^ b,
}  # fmt: skip


def host(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [host(v) for v in value]
    return value.get() if hasattr(value, 'get') else value


def same(ours: Any, theirs: Any) -> None:
    ours, theirs = host(ours), host(theirs)
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            same(a, b)
        return
    assert (ours.shape, ours.dtype) == (np.shape(theirs), np.asarray(theirs).dtype)
    np.testing.assert_array_equal(ours, theirs)


def outcome(fn: Callable[[], Any]) -> Any:
    with np.errstate(all='ignore'), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            return fn()
        except TypeError:
            return TypeError


def host_arrays(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    values = np.random.RandomState(seed).randint(0, 5, shape)
    return values.astype(dtype)


@given(st.sampled_from(sorted(BINARY)), st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 9), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_operators_do_what_numpys_do(op: str, d1: str, d2: str, seed: int, data: Any) -> None:
    a, b = host_arrays(d1, (3, 3), seed), host_arrays(d2, (3, 3), seed + 1)
    kind = data.draw(st.sampled_from(['arrays', 'row', 'scalar', 'reflected', 'transposed']))
    b = {'row': b[:1], 'transposed': b.T}.get(kind, b)
    scalar = data.draw(st.sampled_from([True, 2, 1.5, 2j]))
    pairs = {'scalar': (a, scalar), 'reflected': (scalar, a)}
    x, y = pairs.get(kind, (a, b))
    if op == '@' and kind in ('scalar', 'reflected', 'row'):
        return
    wanted = outcome(lambda: BINARY[op](x, y))
    with installed() as cp:
        dev = [cp.asarray(v) if isinstance(v, np.ndarray) else v for v in (x, y)]
        found = outcome(lambda: BINARY[op](*dev))
        if wanted is TypeError:
            assert found is TypeError
        else:
            same(found, wanted)


@given(
    st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 3)),
    st.lists(
        st.one_of(
            st.integers(-1, 0),
            st.slices(3),
            st.just(None),
            st.just(Ellipsis),
            st.lists(st.integers(-1, 0), min_size=1, max_size=3),
        ),
        max_size=4,
    ),
)
@settings(max_examples=examples(300), deadline=None)
def test_indexing_with_one_array_at_most_does_what_numpys_does(shape: tuple[int, ...], key: list[Any]) -> None:
    arrays = [k for k in key if isinstance(k, list)]
    if len(arrays) > 1 or key.count(Ellipsis) > 1 or (arrays and any(isinstance(k, int) for k in key)):
        # Several arrays are tested below; NumPy counts scalars beside arrays as arrays, CuPy does not.
        return
    with installed() as cp:
        check_indexing(cp, np.arange(np.prod(shape)).reshape(shape), key)


def check_indexing(cp: Any, a: Any, key: list[Any]) -> None:
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


@pytest.mark.parametrize(
    'fn',
    [
        lambda xp, a: a.sum(axis=1, keepdims=True),
        lambda xp, a: a.mean(axis=0, dtype='f4'),
        lambda xp, a: a.std(ddof=1),
        lambda xp, a: a.argmax(axis=1),
        lambda xp, a: a.cumsum(axis=1),
        lambda xp, a: a.clip(2, 5),
        lambda xp, a: a.astype('i4').T.copy(),
        lambda xp, a: a.reshape(2, -1).ravel(order='F'),
        lambda xp, a: a[::-1, ::2].flatten(),
        lambda xp, a: a[[0, 2], [1, 1]],
        lambda xp, a: a[xp.asarray([[0], [2]]), xp.asarray([1, 3])],
        lambda xp, a: a[:, xp.asarray([True, False, True, False])],
        lambda xp, a: a[a > 5],
        lambda xp, a: xp.nonzero(a > 5),
        lambda xp, a: xp.where(a > 5, a, -1.0),
        lambda xp, a: xp.concatenate([a, a[:1]], axis=0),
        lambda xp, a: xp.split(a, 2, axis=1),
        lambda xp, a: xp.unique(xp.asarray([3, 1, 3]), return_inverse=True, return_counts=True),
        lambda xp, a: xp.linalg.solve(a[:3, :3] + xp.eye(3) * 9, a[:3, 0]),
        lambda xp, a: xp.fft.rfft(a, axis=0),
        lambda xp, a: xp.einsum('ij,kj->ik', a, a),
        lambda xp, a: xp.histogram(a, bins=4),
        lambda xp, a: xp.bincount(a.ravel().astype(int), minlength=20),
        lambda xp, a: xp.meshgrid(a[0], a[:, 0])[1],
        lambda xp, a: xp.percentile(a, [10, 50], axis=1),
        lambda xp, a: xp.linspace(0, 1, 7),
        lambda xp, a: xp.full_like(a, 3, dtype='i2'),
        lambda xp, a: xp.tril(a, -1),
        lambda xp, a: xp.modf(a / 3),
        lambda xp, a: xp.r_[a[0], 1.0],
        lambda xp, a: xp.mgrid[0:2, 0:3],
        lambda xp, a: xp.add.outer(a[0], a[1]),
        lambda xp, a: xp.maximum.accumulate(a, axis=1),
        lambda xp, a: a.view('f4')[:, :2],
        lambda xp, a: (a + 1j).imag + (a + 1j).real,
        lambda xp, a: xp.delete(a, 1, axis=0),
        lambda xp, a: xp.sort(a[::-1], axis=0),
        lambda xp, a: xp.trim_zeros(xp.asarray([0, 1, 0, 2, 0])),
        lambda xp, a: xp.apply_along_axis(lambda row: row.sum(), 0, a),
        lambda xp, a: xp.apply_along_axis(lambda row: row[:2].reshape(2, 1) * row[:2], -1, a),
    ],
)
def test_functions_do_what_numpys_do(cp: Any, fn: Callable[[Any, Any], Any]) -> None:
    a = np.arange(12.0).reshape(3, 4)
    ours, theirs = host(fn(cp, cp.asarray(a))), fn(np, a)
    for x, y in zip(*(v if isinstance(v, (list, tuple)) else [v] for v in (ours, theirs))):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_allclose(x, y)


def test_indices_out_of_bounds_wrap_around(cp: Any, side: Any) -> None:
    x = cp.arange(3)
    assert x[cp.asarray([4, -4])].tolist() == cp.take(x, cp.asarray([4, -4])).tolist() == [1, 2]
    x[cp.asarray([5])] = 9
    assert x.tolist() == [0, 1, 9]
    y, graph = capture(side, lambda: x[cp.arange(2) + 1])
    graph.launch()
    assert y.tolist() == [1, 9]


def test_numpys_functions_on_an_array_are_cupys(cp: Any) -> None:
    x = cp.arange(4.0)
    numpys: Any = np
    for result in (np.sin(x), np.sum(x), np.concatenate([x, x]), numpys.add.reduce(x), np.linalg.norm(x)):
        assert isinstance(result, cp.ndarray)


def test_host_arrays_are_no_operands(cp: Any) -> None:
    x, a = cp.arange(3.0), np.arange(3.0)
    operations: list[Callable[[], Any]] = [
        lambda: x + a, lambda: a + x, lambda: cp.add(x, a), lambda: cp.concatenate([x, a]),
    ]  # fmt: skip
    for operation in operations:
        with pytest.raises(TypeError, match='Unsupported type'):
            operation()
    with pytest.raises(TypeError, match='Implicit conversion to a NumPy array is not allowed'):
        np.asarray(x)
    for parts in ([x.sum(), 1.0], [x, a], [x, x[1:]]):  # CuPy joins arrays of one shape, and NumPy makes all else
        with pytest.raises(TypeError, match='Implicit conversion to a NumPy array is not allowed'):
            cp.array(parts)
    with pytest.raises(TypeError):
        cp.add(x, [1, 2, 3])
    with pytest.raises(ValueError, match='non-scalar'):
        x[:] = a
    with pytest.raises(TypeError):
        cp.sum(x, where=True)


def test_views_share_memory(cp: Any) -> None:
    x = cp.zeros((3, 4))
    for view in (x[1], x.T, x.reshape(4, 3), x[::-1], x.ravel(), cp.diagonal(x), x.view('i8'), cp.expand_dims(x, 0)):
        view[...] = 1
        assert view.base is x
        assert not view.flags.owndata
        assert float(x.sum()) > 0
        x.fill(0)
    copy = x[::2].reshape(-1)
    copy[...] = 1
    assert float(x.sum()) == 0
    part = x[1:, 1:]
    assert part.data.ptr == x.data.ptr + x.strides[0] + x.strides[1]


def test_attributes_on_the_class_shadow_inherited_ones(cp: Any) -> None:
    assert 'get' not in vars(cp.ndarray)
    assert 'sum' not in vars(cp.ndarray)
    x = cp.arange(3)
    cp.ndarray.get = lambda self, *args, **kwargs: np.full(self.shape, 42)
    try:
        assert int(x[0]) == float(x[0]) == x[0].item() == 42
        assert x.tolist() == [42] * 3
        assert bool(x[0])
        assert '42' in repr(x)
        assert cp.asnumpy(x)[0] == 42
        assert len(cp.nonzero(x)[0]) == 42
    finally:
        del cp.ndarray.get
    assert x.tolist() == [0, 1, 2]


def test_the_places_that_cupy_looks_up_are_looked_up(cp: Any) -> None:
    told: list[str] = []
    cp._core.syncdetect._declare_synchronize = lambda: told.append('sync')
    original = cp._core.array

    def array(*args: Any, **kwargs: Any) -> Any:
        told.append('array')
        return original(*args, **kwargs)

    cp._core.array = array
    x = cp.asarray([1, 2])
    assert told == ['array']
    x.get()
    cp.cuda.Device().synchronize()
    assert told == ['array', 'sync', 'sync']
    cp.array([1])
    assert told[-1] == 'array'
    memory = cp.cuda.memory
    original_set = memory._set_thread_local_allocator

    def set_allocator(allocator: Any) -> None:
        told.append('allocator')
        original_set(allocator)

    memory._set_thread_local_allocator = set_allocator
    with cp.cuda.using_allocator(memory._malloc):
        assert told[-1] == 'allocator'


def test_a_replaced_runtime_function_is_seen_by_its_callers(cp: Any) -> None:
    def refuse(stream: int) -> None:
        raise AssertionError

    cp.cuda.runtime.streamSynchronize = refuse
    cp.cuda.Stream.null.synchronize()
    with pytest.raises(AssertionError):
        cp.cuda.runtime.streamSynchronize(0)


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


def test_a_launch_reads_what_the_operands_hold_then(cp: Any, side: Any) -> None:
    x, i, k = cp.arange(4.0), cp.asarray([3, 0]), 2

    def steps() -> Any:
        nonlocal k
        y = x * k + x[i].sum()
        k = 99
        return y, cp.sort(-x), cp.fft.fft(x), cp.take(x, i)

    (y, ordered, spectrum, taken), graph = capture(side, steps)
    for values, index in (([1.0, 2, 3, 4], [0, 0]), ([5.0, 5, 5, 6], [3, 2])):
        x.set(np.array(values))
        i.set(np.array(index))
        graph.launch(side)
        a = np.array(values)
        np.testing.assert_array_equal(y.get(), a * 2 + a[index].sum())
        np.testing.assert_array_equal(ordered.get(), np.sort(-a))
        np.testing.assert_allclose(spectrum.get(), np.fft.fft(a))
        np.testing.assert_array_equal(taken.get(), a[index])


def test_writes_in_place_wait_for_the_launch(cp: Any, side: Any) -> None:
    x, out = cp.arange(4.0), cp.zeros(4)

    def steps() -> None:
        nonlocal x
        x += 1
        x[1:3] = 0
        x[cp.arange(1)] = 9
        cp.add(x, x, out=out)
        x.sort()
        cp.copyto(x[:1], 5)
        cp.add.at(out, cp.arange(2), 1.0)

    _, graph = capture(side, steps)
    assert x.tolist() == [0, 1, 2, 3]
    assert out.tolist() == [0] * 4
    graph.launch()
    assert out.tolist() == [19, 1, 0, 8]
    assert x.tolist() == [5, 0, 4, 9]


def test_shapes_are_checked_while_recording(cp: Any, side: Any) -> None:
    x = cp.arange(4.0)

    def steps() -> None:
        wrongs: list[Callable[[], Any]] = [
            lambda: x + cp.zeros(3), lambda: x.reshape(3), lambda: cp.add(x, x, out=cp.empty(3)),
        ]  # fmt: skip
        for wrong in wrongs:
            with pytest.raises(ValueError, match=r'shape|operands'):
                wrong()

    capture(side, steps)


def test_a_missing_edge_gives_wrong_numbers_for_some_order() -> None:
    def run(seed: int, joined: bool) -> float:
        with installed(SimulatedDevice(seed)) as cp:
            one, two = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
            x, y = cp.zeros(1), cp.zeros(1)
            fork, done, end = (cp.cuda.Event() for _ in range(3))
            with one:
                one.begin_capture()
                fork.record(one)
                two.wait_event(fork)
                with two:
                    x += 1
                done.record(two)
                if joined:
                    one.wait_event(done)
                y += x
                end.record(two)
                one.wait_event(end)
                graph = one.end_capture()
            graph.launch()
            return float(y[0])

    assert {run(seed, True) for seed in range(10)} == {1.0}
    assert {run(seed, False) for seed in range(10)} == {0.0, 1.0}


def test_graph_objects(cp: Any, side: Any) -> None:
    _, graph = capture(side, lambda: cp.zeros(3))
    assert 'memset' in graph.debug_dot_str()
    graph.upload()
    with pytest.raises(NotImplementedError):
        cp.cuda.Graph()
    assert len(cp.__capturekit_simulated__.graphs) == len(cp.__capturekit_simulated__.executables) == 1
    del graph
    gc.collect()
    assert not cp.__capturekit_simulated__.graphs
    assert not cp.__capturekit_simulated__.executables


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
        import cupy.cuda.stream
        import cupyx
        from cupy.cuda import runtime
        from cupyx.profiler import benchmark, time_range

        assert cupy.__capturekit_simulated__ is device
        assert cupy.__version__.endswith('+simulated')
        assert 'cupy.something' not in sys.modules
        assert runtime is sys.modules['cupy_backends.cuda.api.runtime']
        with pytest.raises(ModuleNotFoundError):
            import cupy.something_else
        x = cupyx.zeros_pinned(3)
        assert x.tolist() == [0, 0, 0]
        a = cupy.zeros(3)
        cupyx.scatter_add(a, cupy.asarray([0, 0]), 1)
        assert a.tolist() == [2, 0, 0]
        with time_range('here'):
            assert len(benchmark(lambda: None, n_repeat=3).gpu_times[0]) == 3
        uninstall()
        assert {k: v for k, v in sys.modules.items() if k in before} == before
        assert [k for k in sys.modules if k.startswith(('cupy', '_capturekit'))] == [
            k for k in before if k.startswith(('cupy', '_capturekit'))
        ]
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
    assert not hasattr(cp.cuda, 'texture')


def test_indices_into_an_axis_of_length_0_write_outside(cp: Any) -> None:
    illegal = cp.cuda.runtime.CUDARuntimeError
    x = cp.zeros((0, 3))
    with pytest.raises(illegal, match='cudaErrorIllegalAddress'):
        x[[0, 1]] = 3.0
    with pytest.raises(IndexError):
        x[[0, 1]]
    x[cp.zeros(0, int)] = 3.0
    cp.zeros((0, 0))[[0, 1]] = 3.0
    cp.zeros((2, 0))[[0, 1]] = 3.0
    assert x.shape == (0, 3)
