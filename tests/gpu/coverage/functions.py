"""What the expressions call: functions that use CuPy as people write it, kernels, and what arrays are made of.

Importing this touches no GPU. Functions leave their arguments as they found them, so that a case can be run again.
"""

from __future__ import annotations

import functools
from typing import Any

import cupy as cp
import cupyx
import cupyx.scipy.fft as sf
import cupyx.scipy.sparse as sp
import numpy as np
from cupyx import jit
from cupyx.scipy.spatial.distance import cdist as cdist


@functools.cache
def host() -> dict[str, Any]:
    """The numbers of the first 106 expressions, drawn in the order in which these were given."""
    rs = np.random.RandomState(0)
    a, b, m = rs.rand(256, 256), rs.rand(256, 256), rs.rand(256, 256)
    return {'A': a, 'B': b, 'S': m @ m.T + 256 * np.eye(256), 'v': rs.rand(256), 'hostv': rs.rand(256)}


def drawn(seed: int) -> Any:
    return np.random.RandomState(seed)


def batch() -> Any:
    return drawn(3).rand(8, 16, 16)


@functools.cache
def complexes() -> Any:
    rs = drawn(4)
    return rs.rand(64, 64) + 1j * rs.rand(64, 64)


def thin() -> Any:
    """A dense host array with a tenth of its elements not zero."""
    return np.where(host()['A'] > 0.9, host()['A'], 0)


def with_gaps(values: Any) -> Any:
    values = values.copy()
    values[::7, ::5] = np.nan
    return values


def compressed(dense: Any, kind: Any, dtype: str = 'f8') -> Any:
    """A CSR or CSC matrix of what is not zero in a host array, uploaded part by part."""
    lines = dense if kind is sp.csr_matrix else dense.T
    _, indices = np.nonzero(lines)
    starts = np.concatenate([[0], np.cumsum((lines != 0).sum(axis=1))])
    parts = lines[lines != 0].astype(dtype), indices.astype('i4'), starts.astype('i4')
    matrix = kind(tuple(map(cp.asarray, parts)), shape=dense.shape)
    matrix.has_canonical_format = True
    return matrix


def coordinates(dense: Any) -> Any:
    rows, columns = np.nonzero(dense)
    parts = cp.asarray(dense[rows, columns]), (cp.asarray(rows.astype('i4')), cp.asarray(columns.astype('i4')))
    return sp.coo_matrix(parts, shape=dense.shape)


def cpx_scatter(a: Any, i: Any) -> Any:
    c = a.copy()
    c[i] = 0
    return c


def setmask(a: Any) -> Any:
    c = a.copy()
    c[c > 0.5] = 0
    return c


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


def rk(x: Any) -> Any:
    out = cp.empty_like(x)
    times_three((1,), (256,), (x, out, np.int32(x.size)))
    return out


def ek(x: Any) -> Any:
    return square_plus_one(x)


@cp.fuse()
def fz(x: Any) -> Any:
    return cp.sin(x) * 2 + x


@jit.rawkernel()
def double_it(x, y, n):
    i = jit.grid(1)
    if i < n:
        y[i] = x[i] * 2


def jk(x: Any) -> Any:
    out = cp.empty_like(x)
    double_it[1, 256](x, out, np.int32(x.size))
    return out


def sort_in_place(x: Any) -> Any:
    c = x.copy()
    c.sort()
    return c


def mask_write(x: Any, y: Any) -> Any:
    c = x.copy()
    big = c > 0.5
    c[big] = y[big]
    return c


def mask_write_rows(a: Any) -> Any:
    c = a.copy()
    c[c.sum(axis=1) > 128] = 0
    return c


def mask_add(x: Any) -> Any:
    c = x.copy()
    c[c < 0.5] += 1
    return c


def where_write(x: Any) -> Any:
    c = x.copy()
    c[cp.where(c > 0.5)] = -1
    return c


def slice_write(a: Any) -> Any:
    c = a.copy()
    c[1:-1, 1:-1] = 0.25 * (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
    c[0] = 1
    c *= 2
    c -= a
    return c


def row_swap(a: Any) -> Any:
    c = a.copy()
    c[[0, 1]] = c[[1, 0]]
    return c


def scalar_write(x: Any) -> Any:
    c = x.copy()
    c[3] = 7.5
    c[4] = c[5]
    return c


def host_write(x: Any, values: Any) -> Any:
    c = x.copy()
    c[:128] = cp.asarray(values[:128])
    return c


def put(x: Any, i: Any) -> Any:
    c = x.copy()
    c.put(i, 7.0)
    return c


def put_along(a: Any) -> Any:
    c = a.copy()
    cp.put_along_axis(c, c.argmax(axis=1)[:, None], 0.0, axis=1)
    return c


def place(x: Any) -> Any:
    c = x.copy()
    cp.place(c, c > 0.5, cp.asarray([1.0, 2.0]))
    return c


def put_mask(x: Any) -> Any:
    c = x.copy()
    cp.putmask(c, c > 0.5, x * 10)
    return c


def fill_diag(a: Any) -> Any:
    c = a.copy()
    cp.fill_diagonal(c, 9.0)
    return c


def flat_write(a: Any) -> Any:
    c = a.copy()
    c.flat[::7] = 0
    return c


def scatter_add(i: Any, x: Any) -> Any:
    c = cp.zeros(64)
    cupyx.scatter_add(c, i, x)
    return c


def add_at(i: Any, x: Any) -> Any:
    c = cp.zeros(64)
    cp.add.at(c, i, x)
    return c


def filled(n: int) -> Any:
    c = cp.empty((n, n))
    c.fill(2.5)
    return c


def shuffled(x: Any) -> Any:
    c = x.copy()
    cp.random.shuffle(c)
    return c


def looped(x: Any, n: int) -> Any:
    for _ in range(n):
        x = cp.sqrt(x + 1)
    return x


def newton(x: Any) -> Any:
    root = cp.ones_like(x)
    while float(abs(root * root - x - 1).max()) > 1e-10:
        root = root - (root * root - x - 1) / (2 * root)
    return root


def power_iteration(a: Any) -> Any:
    x = cp.ones(a.shape[0])
    for _ in range(5):
        x = a @ x
        x /= float(cp.linalg.norm(x))
    return x


def jacobi(a: Any, b: Any) -> Any:
    d = cp.diag(a)
    x, steps = cp.zeros_like(b), 0
    while steps < 10 and cp.linalg.norm(b - a @ x) > 1e-3:
        x = x + 0.01 * (b - a @ x) / d
        steps += 1
    return x, steps


def bisect(x: Any) -> float:
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        if int((x < middle).sum()) < 100:
            low = middle
        else:
            high = middle
    return low


def k_means(p: Any) -> Any:
    centres = p[:4].copy()
    for _ in range(3):
        nearest = ((p[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        for k in range(4):
            mine = nearest == k
            if mine.any():
                centres[k] = p[mine].mean(axis=0)
    return centres


def descend(a: Any, b: Any) -> Any:
    x, losses = cp.zeros_like(b), []
    for _ in range(3):
        rest = a @ x - b
        losses.append(float(rest @ rest))
        x -= 1e-5 * (a @ rest)
    return x, losses


def standardise(a: Any) -> Any:
    spread = a.std(axis=0)
    if (spread == 0).any():
        raise ValueError('a column is constant')
    return (a - a.mean(axis=0)) / spread


def halve(x: Any) -> Any:
    steps = 0
    while x.sum() > 1:
        x = x / 2
        steps += 1
    return x, steps


def tried(x: Any) -> Any:
    try:
        return x / x[300]
    except IndexError:
        return x * 2


def finite(x: Any) -> Any:
    assert cp.isfinite(x).all()
    return x * 2


def pinned_copy(x: Any) -> Any:
    out = cupyx.empty_like_pinned(x)
    (x * 2).get(out=out, blocking=False)
    cp.cuda.get_current_stream().synchronize()
    return out


def set_from(values: Any) -> Any:
    c = cp.empty(values.shape)
    c.set(values)
    return c * 2


def upload_loop(x: Any) -> Any:
    for k in range(4):
        x = x + cp.asarray([float(k)])
    return x


def running(a: Any) -> Any:
    total = 0.0
    for row in a[:4]:
        total += float(row.max())
    return total


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


def raw_shared(x: Any) -> Any:
    total = cp.empty(1)
    shared_sum((1,), (256,), (x, total), shared_mem=256 * 8)
    return total


def raw_module(x: Any) -> Any:
    out = cp.empty_like(x)
    module.get_function('plus<double>')((1,), (256,), (x, out))
    return out


def raw_scalars(x: Any) -> Any:
    out = cp.empty_like(x)
    scalars((2,), (128,), (x, out, 2.5, np.float32(1.5), x.size))
    return out


def raw_elementwise(x: Any) -> Any:
    return neighbours(x, np.int32(x.size), size=x.size)


def sized(n: int) -> Any:
    return sized_kernel(cp.empty(n, 'i8'))


@cp.fuse(kernel_name='fused_two')
def fused_two(x: Any, y: Any) -> Any:
    return cp.where(x > y, x * y, cp.exp(-x)), x + y


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


def jit_saxpy(x: Any, y: Any) -> Any:
    out = cp.empty_like(x)
    saxpy[2, 64](x, y, out, np.uint32(x.size))
    return out


def jit_shared(x: Any) -> Any:
    out = cp.empty_like(x)
    reversed_kernel[1, 256](x, out)
    return out


def jit_atomic(k: Any) -> Any:
    counts = cp.zeros(64, 'i4')
    counting[1, 256](k, counts)
    return counts


@cp.vectorize
def vectorized(x):
    if x > 0.5:
        return x * 2
    return x - 1


def row_products(a: Any, b: Any) -> Any:
    return (a * b).sum(axis=-1)


gufunc = cupyx.GeneralizedUFunc(row_products, '(i),(i)->()')


def fork_join(x: Any, y: Any, side: Any) -> Any:
    main = cp.cuda.get_current_stream()
    side.wait_event(main.record())
    with side:
        b = cp.sin(y) * 2
    a = cp.cos(x) * 3
    main.wait_event(side.record())
    return a + b


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


def side_synchronised(x: Any, side: Any) -> Any:
    side.wait_event(cp.cuda.get_current_stream().record())
    with side:
        y = x * 2
    side.synchronize()
    return y + 1


def event_synchronised(x: Any, side: Any) -> Any:
    side.wait_event(cp.cuda.get_current_stream().record())
    with side:
        y = x * 2
    side.record().synchronize()
    return y + 1


def device_synchronised(x: Any) -> Any:
    y = x * 2
    cp.cuda.Device().synchronize()
    return y + 1


def side_without_events(x: Any, side: Any) -> Any:
    with side:
        y = x * 2
    side.synchronize()
    return y + 1


def on_null(x: Any) -> Any:
    with cp.cuda.Stream.null:
        y = x * 2
    cp.cuda.Stream.null.synchronize()
    return y + 1


def timed(x: Any) -> Any:
    start, stop = cp.cuda.Event(), cp.cuda.Event()
    start.record()
    y = x * 2
    stop.record()
    stop.synchronize()
    assert cp.cuda.get_elapsed_time(start, stop) >= 0
    return y


def polled(x: Any) -> Any:
    y = x * 2
    event = cp.cuda.get_current_stream().record()
    while not event.done:
        pass
    return y


def copied_async(x: Any) -> Any:
    out = cp.empty_like(x)
    out.data.copy_from_device_async((x * 2).data, x.nbytes)
    return out


def memcpy_async(x: Any) -> Any:
    y, out = x * 2, cp.empty_like(x)
    stream = cp.cuda.get_current_stream()
    cp.cuda.runtime.memcpyAsync(out.data.ptr, y.data.ptr, y.nbytes, cp.cuda.runtime.memcpyDeviceToDevice, stream.ptr)
    return out


def memcpy_sync(x: Any) -> Any:
    out = cp.empty_like(x)
    out.data.copy_from_device((x * 2).data, x.nbytes)
    return out


def own_pool(x: Any) -> Any:
    with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc):
        y = x * 2
    return y + 1


def freed(x: Any) -> Any:
    y = x * 2
    y = y + 1
    cp.get_default_memory_pool().free_all_blocks()
    return y * 3


def host_func(x: Any) -> Any:
    y = x * 2
    cp.cuda.get_current_stream().launch_host_func(lambda _: None, None)
    return y + 1


def set_diag(matrix: Any) -> Any:
    c = matrix.copy()
    c.setdiag(3.0)
    return c


def without_zeros(matrix: Any) -> Any:
    c = matrix.copy()
    c.data = cp.where(c.data > 0.95, c.data, 0)
    c.eliminate_zeros()
    return c


def no_duplicates(i: Any, x: Any) -> Any:
    c = sp.coo_matrix((x, (i, i[::-1])), shape=(64, 64))
    c.sum_duplicates()
    return c


def with_plan(c: Any) -> Any:
    with sf.get_fft_plan(c):
        return sf.fft2(c)
