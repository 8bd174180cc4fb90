"""What the cases name: modules, arrays, streams, generators and functions that use CuPy as people write it.

An array is made when it is first asked for, by uploading what NumPy made; importing this module makes none and touches
no GPU. Functions leave their arguments as they found them, so that a case can be run again.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import cupy as cp
import cupyx
import cupyx.linalg
import cupyx.scipy.fft as sf
import cupyx.scipy.interpolate as itp
import cupyx.scipy.sparse as sp
import numpy as np
from cupyx import jit
from cupyx.scipy.spatial.distance import cdist

from tests.gpu.coverage.cases import MODULES

#: Names that stand for themselves.
PLAIN: dict[str, Any] = {**{short: importlib.import_module(name) for short, name in MODULES.items()}, 'cdist': cdist}
#: Names whose object is made on first use.
MADE: dict[str, Callable[[], Any]] = {}


def has(name: str) -> bool:
    """Whether a name is one of the cases', and no built-in."""
    return name in PLAIN or name in MADE


def get(name: str) -> Any:
    """The object of a name."""
    return PLAIN[name] if name in PLAIN else MADE[name]()


def made(maker: Callable[[], Any]) -> Callable[[], Any]:
    """An object of the cases, made once, when it is first asked for."""
    once = functools.cache(maker)
    MADE[maker.__name__] = once
    return once


def plain(function: Any) -> Any:
    """A function of the cases."""
    PLAIN[function.__name__] = function
    return function


# -- arrays -------------------------------------------------------------------------------------------------------


@functools.cache
def host() -> dict[str, Any]:
    """The given cases' numbers, drawn in the order in which they were given."""
    rs = np.random.RandomState(0)
    a, b, m = rs.rand(256, 256), rs.rand(256, 256), rs.rand(256, 256)
    return {'A': a, 'B': b, 'S': m @ m.T + 256 * np.eye(256), 'v': rs.rand(256), 'hostv': rs.rand(256)}


def drawn(seed: int) -> Any:
    return np.random.RandomState(seed)


def batch(dtype: str = 'f8') -> Any:
    return drawn(3).rand(8, 16, 16).astype(dtype)


def complexes() -> Any:
    rs = drawn(4)
    return rs.rand(64, 64) + 1j * rs.rand(64, 64)


def compressed(dense: Any, kind: Any, dtype: str = 'f8') -> Any:
    """A CSR or CSC matrix of what is not zero in a host array, uploaded part by part."""
    lines = dense if kind is sp.csr_matrix else dense.T
    _, indices = np.nonzero(lines)
    starts = np.concatenate([[0], np.cumsum((lines != 0).sum(axis=1))])
    parts = (
        cp.asarray(lines[lines != 0].astype(dtype)),
        cp.asarray(indices.astype('i4')),
        cp.asarray(starts.astype('i4')),
    )
    matrix = kind(parts, shape=dense.shape)
    matrix.has_canonical_format = True
    return matrix


def thin() -> Any:
    """A dense host array with a tenth of its elements not zero."""
    return np.where(host()['A'] > 0.9, host()['A'], 0)


@made
def A() -> Any:
    return cp.asarray(host()['A'])


@made
def B() -> Any:
    return cp.asarray(host()['B'])


@made
def Af() -> Any:
    return cp.asarray(host()['A'].astype('f4'))


@made
def S() -> Any:
    return cp.asarray(host()['S'])


@made
def v() -> Any:
    return cp.asarray(host()['v'])


@made
def vf() -> Any:
    return cp.asarray(host()['v'].astype('f4'))


@made
def w() -> Any:
    return cp.asarray(drawn(1).rand(256))


@made
def hostv() -> Any:
    return host()['hostv']


@made
def idx() -> Any:
    return cp.asarray([1, 2, 3])


@made
def C() -> Any:
    return cp.asarray(complexes())


@made
def Cf() -> Any:
    return cp.asarray(complexes().astype('c8'))


@made
def z() -> Any:
    return cp.asarray(complexes()[:4].ravel())


@made
def hermitian() -> Any:
    c = complexes()
    return cp.asarray(c @ c.conj().T + 64 * np.eye(64))


@made
def ints() -> Any:
    return cp.asarray(drawn(5).randint(1, 100, (64, 64)))


@made
def keys() -> Any:
    return cp.asarray(drawn(6).randint(0, 64, 256))


@made
def half() -> Any:
    return cp.asarray(host()['v'].astype('f2'))


@made
def flags() -> Any:
    return cp.asarray(drawn(8).rand(256) > 0.5)


@made
def gaps() -> Any:
    values = host()['A'].copy()
    values[::7, ::5] = np.nan
    return cp.asarray(values)


@made
def cube() -> Any:
    return cp.asarray(batch())


@made
def cubef() -> Any:
    return cp.asarray(batch('f4'))


@made
def pds() -> Any:
    c = batch()
    return cp.asarray(c @ c.transpose(0, 2, 1) + 16 * np.eye(16))


@made
def ramp() -> Any:
    return cp.asarray(np.linspace(0, 1, 256))


@made
def knots() -> Any:
    return cp.asarray(np.concatenate([np.zeros(3), np.linspace(0, 1, 10), np.ones(3)]))


@made
def points() -> Any:
    return cp.asarray(drawn(9).rand(256, 2))


@made
def image() -> Any:
    return cp.asarray(host()['B'][:64, :64].copy())


@made
def black() -> Any:
    return cp.asarray(host()['B'][:64, :64] > 0.4)


@made
def labels() -> Any:
    i, j = np.indices((64, 64)) // 16
    return cp.asarray((4 * i + j).astype('i4'))


@made
def taps() -> Any:
    return cp.asarray([1.0, 0.5])


@made
def sos() -> Any:
    return cp.asarray([[1.0, 0.2, 0.1, 1.0, -0.3, 0.1]])


@made
def sparse_dense() -> Any:
    return cp.asarray(thin())


@made
def csr() -> Any:
    return compressed(thin(), sp.csr_matrix)


@made
def csc() -> Any:
    return compressed(thin(), sp.csc_matrix)


@made
def csrc() -> Any:
    return compressed(thin(), sp.csr_matrix, 'c16')


@made
def csrS() -> Any:
    return compressed(host()['S'], sp.csr_matrix)


@made
def lower() -> Any:
    return compressed(np.tril(thin()) + 8 * np.eye(256), sp.csr_matrix)


@made
def coo() -> Any:
    rows, columns = np.nonzero(thin())
    parts = cp.asarray(thin()[rows, columns]), (cp.asarray(rows.astype('i4')), cp.asarray(columns.astype('i4')))
    return sp.coo_matrix(parts, shape=(256, 256))


@made
def laplacian() -> Any:
    bands = np.stack([np.full(256, -1.0), np.full(256, 2.0), np.full(256, -1.0)])
    return sp.dia_matrix((cp.asarray(bands), cp.asarray([-1, 0, 1])), shape=(256, 256))


@made
def rgi() -> Any:
    return itp.RegularGridInterpolator((ramp(), ramp()), A())


@made
def cs() -> Any:
    return itp.CubicSpline(ramp(), v())


@made
def gen() -> Any:
    return cp.random.default_rng(7)


@made
def philox() -> Any:
    return cp.random.Generator(cp.random.Philox4x3210(7))


@made
def mrg() -> Any:
    return cp.random.Generator(cp.random.MRG32k3a(7))


@made
def state() -> Any:
    return cp.random.RandomState(7)


@made
def side() -> Any:
    return cp.cuda.Stream(non_blocking=True)


@made
def side2() -> Any:
    return cp.cuda.Stream(non_blocking=True)


# -- the given cases' functions -----------------------------------------------------------------------------------


@plain
def cpx_scatter(a: Any, i: Any) -> Any:
    c = a.copy()
    c[i] = 0
    return c


@plain
def setmask(a: Any) -> Any:
    c = a.copy()
    c[c > 0.5] = 0
    return c


@plain
def mxat(x: Any) -> Any:
    c = x.copy()
    cupyx.scatter_add(c, cp.arange(10), 1.0)
    return c


times_three = cp.RawKernel(
    'extern "C" __global__ void k(const double* a, double* b, int n)'
    '{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) b[i] = a[i] * 3; }',
    'k',
)
square_plus_one = cp.ElementwiseKernel('float64 x', 'float64 y', 'y = x * x + 1', 'ek')


@plain
def rk(x: Any) -> Any:
    out = cp.empty_like(x)
    times_three((1,), (256,), (x, out, np.int32(x.size)))
    return out


@plain
def ek(x: Any) -> Any:
    return square_plus_one(x)


@plain
@cp.fuse()
def fz(x: Any) -> Any:
    return cp.sin(x) * 2 + x


@jit.rawkernel()
def double_it(x, y, n):
    i = jit.grid(1)
    if i < n:
        y[i] = x[i] * 2


@plain
def jk(x: Any) -> Any:
    out = cp.empty_like(x)
    double_it[1, 256](x, out, np.int32(x.size))
    return out


# -- writing into arrays ------------------------------------------------------------------------------------------


@plain
def sort_in_place(x: Any) -> Any:
    c = x.copy()
    c.sort()
    return c


@plain
def mask_write(x: Any, y: Any) -> Any:
    c = x.copy()
    big = c > 0.5
    c[big] = y[big]
    return c


@plain
def mask_write_rows(a: Any) -> Any:
    c = a.copy()
    c[c.sum(axis=1) > 128] = 0
    return c


@plain
def mask_add(x: Any) -> Any:
    c = x.copy()
    c[c < 0.5] += 1
    return c


@plain
def where_write(x: Any) -> Any:
    c = x.copy()
    c[cp.where(c > 0.5)] = -1
    return c


@plain
def slice_write(a: Any) -> Any:
    c = a.copy()
    c[1:-1, 1:-1] = 0.25 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
    c[0] = 1
    c *= 2
    c -= a
    return c


@plain
def row_swap(a: Any) -> Any:
    c = a.copy()
    c[[0, 1]] = c[[1, 0]]
    return c


@plain
def scalar_write(x: Any) -> Any:
    c = x.copy()
    c[3] = 7.5
    c[4] = c[5]
    return c


@plain
def host_write(x: Any, values: Any) -> Any:
    c = x.copy()
    c[:128] = cp.asarray(values[:128])
    return c


@plain
def put(x: Any, i: Any) -> Any:
    c = x.copy()
    c.put(i, 7.0)
    return c


@plain
def put_along(a: Any) -> Any:
    c = a.copy()
    cp.put_along_axis(c, c.argmax(axis=1)[:, None], 0.0, axis=1)
    return c


@plain
def place(x: Any) -> Any:
    c = x.copy()
    cp.place(c, c > 0.5, cp.asarray([1.0, 2.0]))
    return c


@plain
def put_mask(x: Any) -> Any:
    c = x.copy()
    cp.putmask(c, c > 0.5, x * 10)
    return c


@plain
def fill_diag(a: Any) -> Any:
    c = a.copy()
    cp.fill_diagonal(c, 9.0)
    return c


@plain
def flat_write(a: Any) -> Any:
    c = a.copy()
    c.flat[::7] = 0
    return c


@plain
def scatter_add(i: Any, x: Any) -> Any:
    c = cp.zeros(64)
    cupyx.scatter_add(c, i, x)
    return c


@plain
def add_at(i: Any, x: Any) -> Any:
    c = cp.zeros(64)
    cp.add.at(c, i, x)
    return c


@plain
def filled(n: int) -> Any:
    c = cp.empty((n, n))
    c.fill(2.5)
    return c


@plain
def shuffled(x: Any) -> Any:
    c = x.copy()
    cp.random.shuffle(c)
    return c


# -- host reads, branches and loops ---------------------------------------------------------------------------------


@plain
def looped(x: Any, n: int) -> Any:
    for _ in range(n):
        x = cp.sqrt(x + 1)
    return x


@plain
def newton(x: Any) -> Any:
    root = cp.ones_like(x)
    while float(abs(root * root - x - 1).max()) > 1e-10:
        root = root - (root * root - x - 1) / (2 * root)
    return root


@plain
def power_iteration(a: Any) -> Any:
    x = cp.ones(a.shape[0])
    for _ in range(5):
        x = a @ x
        x /= float(cp.linalg.norm(x))
    return x


@plain
def jacobi(a: Any, b: Any) -> Any:
    d = cp.diag(a)
    x, steps = cp.zeros_like(b), 0
    while steps < 10 and cp.linalg.norm(b - a @ x) > 1e-3:
        x = x + 0.01 * (b - a @ x) / d
        steps += 1
    return x, steps


@plain
def bisect(x: Any) -> float:
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        if int((x < middle).sum()) < 100:
            low = middle
        else:
            high = middle
    return low


@plain
def k_means(p: Any) -> Any:
    centres = p[:4].copy()
    for _ in range(3):
        nearest = ((p[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        for k in range(4):
            mine = nearest == k
            if mine.any():
                centres[k] = p[mine].mean(axis=0)
    return centres


@plain
def descend(a: Any, b: Any) -> Any:
    x, losses = cp.zeros_like(b), []
    for _ in range(3):
        rest = a @ x - b
        losses.append(float(rest @ rest))
        x -= 1e-5 * (a @ rest)
    return x, losses


@plain
def standardise(a: Any) -> Any:
    spread = a.std(axis=0)
    if (spread == 0).any():
        raise ValueError('a column is constant')
    return (a - a.mean(axis=0)) / spread


@plain
def halve(x: Any) -> Any:
    steps = 0
    while x.sum() > 1:
        x = x / 2
        steps += 1
    return x, steps


@plain
def tried(x: Any) -> Any:
    try:
        return x / x[300]
    except IndexError:
        return x * 2


@plain
def finite(x: Any) -> Any:
    assert cp.isfinite(x).all()
    return x * 2


@plain
def pinned_copy(x: Any) -> Any:
    out = cupyx.empty_like_pinned(x)
    (x * 2).get(out=out, blocking=False)
    cp.cuda.get_current_stream().synchronize()
    return out


@plain
def set_from(values: Any) -> Any:
    c = cp.empty(values.shape)
    c.set(values)
    return c * 2


@plain
def upload_loop(x: Any) -> Any:
    for k in range(4):
        x = x + cp.asarray([float(k)])
    return x


@plain
def running(a: Any) -> Any:
    total = 0.0
    for row in a[:4]:
        total += float(row.max())
    return total


# -- kernels --------------------------------------------------------------------------------------------------------

shared_sum = cp.RawKernel(
    r"""
    extern "C" __global__ void shared_sum(const double* a, double* total) {
        extern __shared__ double part[];
        part[threadIdx.x] = a[threadIdx.x];
        for (int n = blockDim.x / 2; n > 0; n /= 2) {
            __syncthreads();
            if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
        }
        if (threadIdx.x == 0) *total = part[0];
    }
    """,
    'shared_sum',
)
module = cp.RawModule(
    code='template<typename T> __global__ void plus(const T* a, T* b) { b[threadIdx.x] = a[threadIdx.x] + 1; }',
    name_expressions=['plus<double>'],
)
scalars = cp.RawKernel(
    'extern "C" __global__ void axpb(const double* x, double* y, double a, float b, long long n)'
    '{ long long i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = a * x[i] + b; }',
    'axpb',
)
neighbours = cp.ElementwiseKernel(
    'raw float64 x, int32 n', 'float64 y', 'y = x[i] + x[(i + 1) % n]', 'neighbours', reduce_dims=False
)
two_out = cp.ElementwiseKernel('float64 x', 'float64 s, float64 c', 'sincos(x, &s, &c)', 'two_out')
sized_kernel = cp.ElementwiseKernel('', 'int64 y', 'y = i * i', 'sized_kernel')
l2 = cp.ReductionKernel('float64 x', 'float64 y', 'x * x', 'a + b', 'y = sqrt(a)', '0', 'l2')
PLAIN |= {'two_out': two_out, 'l2': l2}


@plain
def raw_shared(x: Any) -> Any:
    total = cp.empty(1)
    shared_sum((1,), (256,), (x, total), shared_mem=256 * 8)
    return total


@plain
def raw_module(x: Any) -> Any:
    out = cp.empty_like(x)
    module.get_function('plus<double>')((1,), (256,), (x, out))
    return out


@plain
def raw_scalars(x: Any) -> Any:
    out = cp.empty_like(x)
    scalars((2,), (128,), (x, out, 2.5, np.float32(1.5), x.size))
    return out


@plain
def raw_elementwise(x: Any) -> Any:
    return neighbours(x, np.int32(x.size), size=x.size)


@plain
def sized(n: int) -> Any:
    return sized_kernel(cp.empty(n, 'i8'))


@plain
@cp.fuse(kernel_name='fused_two')
def fused_two(x: Any, y: Any) -> Any:
    return cp.where(x > y, x * y, cp.exp(-x)), x + y


@plain
@cp.fuse()
def fused_sum(a: Any) -> Any:
    return cp.sum(a * a, axis=1)


@jit.rawkernel()
def saxpy(x, y, out, n):
    start = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
    for i in range(start, n, jit.gridDim.x * jit.blockDim.x):
        out[i] = x[i] * 2.0 + y[i]


@jit.rawkernel()
def reversed_kernel(x, out):
    part = jit.shared_memory(np.float64, 256)
    i = jit.threadIdx.x
    part[i] = x[i]
    jit.syncthreads()
    out[i] = part[255 - i]


@jit.rawkernel()
def counting(x, counts):
    jit.atomic_add(counts, x[jit.threadIdx.x], 1)


@plain
def jit_saxpy(x: Any, y: Any) -> Any:
    out = cp.empty_like(x)
    saxpy[2, 64](x, y, out, np.uint32(x.size))
    return out


@plain
def jit_shared(x: Any) -> Any:
    out = cp.empty_like(x)
    reversed_kernel[1, 256](x, out)
    return out


@plain
def jit_atomic(k: Any) -> Any:
    counts = cp.zeros(64, 'i4')
    counting[1, 256](k, counts)
    return counts


@cp.vectorize
def vectorized(x):
    if x > 0.5:
        return x * 2
    return x - 1


PLAIN['vectorized'] = vectorized


def row_products(a: Any, b: Any) -> Any:
    return (a * b).sum(axis=-1)


gufunc = cupyx.GeneralizedUFunc(row_products, '(i),(i)->()')
PLAIN['gufunc'] = gufunc


# -- streams --------------------------------------------------------------------------------------------------------


@plain
def fork_join(x: Any, y: Any, side: Any) -> Any:
    main = cp.cuda.get_current_stream()
    side.wait_event(main.record())
    with side:
        b = cp.sin(y) * 2
    a = cp.cos(x) * 3
    main.wait_event(side.record())
    return a + b


@plain
def event_chain(x: Any, side: Any) -> Any:
    main, ready, done = cp.cuda.get_current_stream(), cp.cuda.Event(), cp.cuda.Event(disable_timing=True)
    for _ in range(3):
        x = x + 1
        ready.record()
        side.wait_event(ready)
        with side:
            x = x * 2
            done.record()
        main.wait_event(done)
    return x


@plain
def diamond(x: Any, side: Any, side2: Any) -> Any:
    main = cp.cuda.get_current_stream()
    start = main.record()
    parts = []
    for stream in (side, side2):
        stream.wait_event(start)
        with stream:
            parts.append(x * (len(parts) + 2))
    side2.wait_event(side.record())
    with side2:
        parts.append(parts[0] + parts[1])
    main.wait_event(side2.record())
    return parts[2] * 2


@plain
def two_sides(x: Any, y: Any, side: Any, side2: Any) -> Any:
    main = cp.cuda.get_current_stream()
    start = main.record()
    side.wait_event(start)
    side2.wait_event(start)
    with side:
        a = cp.sort(x)
    with side2:
        b = cp.cumsum(y)
    main.wait_event(side.record())
    main.wait_event(side2.record())
    return a * b


@plain
def side_synchronised(x: Any, side: Any) -> Any:
    side.wait_event(cp.cuda.get_current_stream().record())
    with side:
        y = x * 2
    side.synchronize()
    return y + 1


@plain
def event_synchronised(x: Any, side: Any) -> Any:
    side.wait_event(cp.cuda.get_current_stream().record())
    with side:
        y = x * 2
    side.record().synchronize()
    return y + 1


@plain
def device_synchronised(x: Any) -> Any:
    y = x * 2
    cp.cuda.Device().synchronize()
    return y + 1


@plain
def side_without_events(x: Any, side: Any) -> Any:
    with side:
        y = x * 2
    side.synchronize()
    return y + 1


@plain
def on_null(x: Any) -> Any:
    with cp.cuda.Stream.null:
        y = x * 2
    cp.cuda.Stream.null.synchronize()
    return y + 1


@plain
def timed(x: Any) -> Any:
    start, stop = cp.cuda.Event(), cp.cuda.Event()
    start.record()
    y = x * 2
    stop.record()
    stop.synchronize()
    assert cp.cuda.get_elapsed_time(start, stop) >= 0
    return y


@plain
def polled(x: Any) -> Any:
    y = x * 2
    event = cp.cuda.get_current_stream().record()
    while not event.done:
        pass
    return y


@plain
def copied_async(x: Any) -> Any:
    out = cp.empty_like(x)
    out.data.copy_from_device_async((x * 2).data, x.nbytes)
    return out


@plain
def memcpy_async(x: Any) -> Any:
    y, out = x * 2, cp.empty_like(x)
    stream = cp.cuda.get_current_stream()
    cp.cuda.runtime.memcpyAsync(out.data.ptr, y.data.ptr, y.nbytes, cp.cuda.runtime.memcpyDeviceToDevice, stream.ptr)
    return out


@plain
def memcpy_sync(x: Any) -> Any:
    out = cp.empty_like(x)
    out.data.copy_from_device((x * 2).data, x.nbytes)
    return out


@plain
def own_pool(x: Any) -> Any:
    with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc):
        y = x * 2
    return y + 1


@plain
def freed(x: Any) -> Any:
    y = x * 2
    y = y + 1
    cp.get_default_memory_pool().free_all_blocks()
    return y * 3


@plain
def host_func(x: Any) -> Any:
    y = x * 2
    cp.cuda.get_current_stream().launch_host_func(lambda _: None, None)
    return y + 1


# -- sparse matrices ------------------------------------------------------------------------------------------------


@plain
def set_diag(matrix: Any) -> Any:
    c = matrix.copy()
    c.setdiag(3.0)
    return c


@plain
def without_zeros(matrix: Any) -> Any:
    c = matrix.copy()
    c.data = cp.where(c.data > 0.95, c.data, 0)
    c.eliminate_zeros()
    return c


@plain
def no_duplicates(i: Any, x: Any) -> Any:
    c = sp.coo_matrix((x, (i, i[::-1])), shape=(64, 64))
    c.sum_duplicates()
    return c


@plain
def with_plan(c: Any) -> Any:
    with sf.get_fft_plan(c):
        return sf.fft2(c)
