"""``cupy.random._generator``: ``RandomState``, which draws as CuPy's does.

Either by the functions of ``cupy_backends.cuda.libs.curand``, looked up there at every call, or by a kernel that gets
a seed as an argument: the host keeps count of those (``_get_seed``), and a graph would repeat the same one. The kernels
are in ``cupy.random._kernels``. What CuPy looks at on the host in between (bounds, rejected integers), this does too.
"""

from __future__ import annotations

import binascii
import functools
import hashlib
import math
import operator
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from capturekit.simulated import random_bodies

from . import curand, devices, kernels, launches, layout
from .random_continuous import ContinuousDraws
from .random_parameters import check_and_get_dtype, common_shape, cupy, is_scalar, shape_of
from .random_seeded import SeededDraws

_UINT32_MAX = 0xFFFFFFFF
_UINT64_MAX = 0xFFFFFFFFFFFFFFFF
_FEISTEL_ROUNDS = 24

_kernels: Any = ModuleType('cupy.random._kernels')
for _name, (_parameters, _) in random_bodies.SEEDED.items():
    _inputs = ', '.join(filter(None, (_parameters, 'uint64 seed')))
    setattr(_kernels, f'{_name}_kernel', kernels.ElementwiseKernel(_inputs, 'Y y', '', f'cupy_{_name}_kernel'))


class RandomState(ContinuousDraws, SeededDraws):
    """Random numbers by cuRAND, and by kernels with a seed."""

    def __init__(self, seed: Any = None, method: Any = None) -> None:
        if method is None:
            method = curand.CURAND_RNG_PSEUDO_DEFAULT
        self._lock = threading.Lock()
        self._generator = curand.createGenerator(method)
        self.method = method
        self.seed(seed)

    def __del__(self) -> None:
        # no weakref.finalize, as CuPy has it: that would keep this stand-in, and so this object, to the end of Python
        if hasattr(self, '_generator'):
            curand.destroyGenerator(self._generator)

    def seed(self, seed: Any = None) -> None:
        """Start anew from ``seed``."""
        if seed is None:
            seed = int(binascii.hexlify(os.urandom(8)), 16)
        elif isinstance(seed, np.ndarray):
            seed = int(hashlib.md5(seed.tobytes(), usedforsecurity=False).hexdigest()[:16], 16)
        else:
            given = np.asarray(seed)
            if given.dtype.kind not in 'biu':
                raise TypeError('Seed must be an integer.')
            seed = int(given)
            if seed < 0 or seed >= 2**64:
                raise ValueError('Seed must be an integer between 0 and 2**64 - 1')
        with self._lock:
            curand.setPseudoRandomGeneratorSeed(self._generator, seed)
            if self.method not in (curand.CURAND_RNG_PSEUDO_MT19937, curand.CURAND_RNG_PSEUDO_MTGP32):
                curand.setGeneratorOffset(self._generator, 0)
            self._rk_seed = seed

    # -- how numbers are drawn --------------------------------------------------------------------------------

    def _get_seed(self, size: int) -> Any:
        with self._lock:
            rk_seed = self._rk_seed
            self._rk_seed = (rk_seed + size) % _UINT64_MAX
        return rk_seed

    def _by_kernel(self, name: str, parameters: tuple[Any, ...], size: Any, dtype: Any) -> Any:
        parameters = tuple(cupy.asarray(p) for p in parameters)
        y = cupy.empty(shape=common_shape(*parameters) if size is None else size, dtype=dtype)
        rk_seed = self._get_seed(y.size)
        getattr(_kernels, f'{name}_kernel')(*parameters, rk_seed, y)
        return y

    def _random_sample_raw(self, size: Any, dtype: Any) -> Any:
        dtype = check_and_get_dtype(dtype)
        out = cupy.empty(size, dtype=dtype)
        func = curand.generateUniform if dtype.char == 'f' else curand.generateUniformDouble
        with self._lock:
            func(self._generator, out.data.ptr, out.size)
        return out

    def _generate_normal(self, func: Callable[..., Any], size: Any, dtype: Any, *args: Any) -> Any:
        # cuRAND draws even numbers of normal ones only.
        shape = shape_of(size)
        n = math.prod(shape)
        out = cupy.empty(shape if n % 2 == 0 else (n + 1,), dtype=dtype)
        with self._lock:
            func(self._generator, out.data.ptr, out.size, *args)
        return out if n % 2 == 0 else out[:n].reshape(shape)

    def _curand_generate(self, num: int, dtype: Any) -> Any:
        sample = cupy.empty((num,), dtype=dtype)
        size32 = sample.view(dtype=np.uint32).size
        with self._lock:
            curand.generate(self._generator, sample.data.ptr, size32)
        return sample

    _interval_upper_limit = kernels.ElementwiseKernel('T max, T mx', 'T out', '', 'cupy_random_interval_upper_limit')
    _interval_sample_modulo = kernels.ElementwiseKernel(
        'T max, T mx', 'T sample', '', 'cupy_random_interval_sample_modulo'
    )
    _kernel_get_indices = kernels.ElementwiseKernel('raw U csum', 'raw U indices', '', 'cupy_get_indices')

    # -- integers ---------------------------------------------------------------------------------------------

    def tomaxint(self, size: Any = None) -> Any:
        sample = cupy.empty(() if size is None else size, dtype=np.int64)
        with self._lock:
            curand.generate(self._generator, sample.data.ptr, sample.size * (sample.dtype.itemsize // 4))
        sample &= np.iinfo(np.int64).max
        return sample

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        """Return integers in ``[low, high)``."""
        if not is_scalar(low):
            return self._randint_of_arrays(cupy.asarray(low), high, size, dtype)
        lo, hi1 = (0, int(low) - 1) if high is None else (int(low), int(high) - 1)
        if lo > hi1:
            raise ValueError('low >= high')
        for value, name, outside in ((lo, 'low', operator.lt), (hi1, 'high', operator.gt)):
            limits = np.iinfo(dtype)
            if outside(value, limits.min if name == 'low' else limits.max):
                raise ValueError(f'{name} is out of bounds for {np.dtype(dtype).name}')
        x = self._interval(hi1 - lo, size).astype(dtype, copy=False)
        cupy.add(x, lo, out=x)
        return x

    def _randint_of_arrays(self, low: Any, high: Any, size: Any, dtype: Any) -> Any:
        lo, hi = (cupy.zeros_like(low), low - 1) if high is None else (low, cupy.asarray(high) - 1)
        size = common_shape(lo, hi) if size is None else size
        diff = hi - lo
        total = functools.reduce(operator.mul, size, 1)
        out = cupy.reshape(self._interval(diff.flatten(), total).astype(dtype), size)
        cupy.add(out, lo.astype(dtype, copy=False), out=out)
        return out

    def _limit(self, mx: Any) -> tuple[Any, Any, Any]:
        """The largest value that is drawn without rejecting it; also the dtype to draw in, and ``mx`` in it."""
        if is_scalar(mx):
            if mx < 0:
                raise ValueError(f'mx must be non-negative (actual: {mx})')
            if mx > _UINT64_MAX:
                raise ValueError(f'mx must be within uint64 range (actual: {mx})')
            dtype, largest = (np.uint32, _UINT32_MAX) if mx <= _UINT32_MAX else (np.uint64, _UINT64_MAX)
            return dtype(largest - (largest + 1) % (mx + 1)), dtype, mx
        if mx.dtype.kind not in 'iu' or mx.dtype.itemsize < 4:
            raise ValueError(f'dtype must be integer, got: {mx.dtype}')
        dtype, largest = (np.uint32, _UINT32_MAX) if mx.dtype.itemsize == 4 else (np.uint64, _UINT64_MAX)
        mx = mx.astype(dtype, copy=False)
        return self._interval_upper_limit(largest, mx), dtype, mx

    def _interval(self, mx: Any, size: Any) -> Any:
        size = shape_of(size)
        scalar = is_scalar(mx)
        if scalar and mx == 0:
            return cupy.zeros(size, dtype=np.uint32)
        limit, dtype, mx = self._limit(mx)
        n = math.prod(size)
        if n == 0:
            return cupy.empty(size, dtype=dtype)
        sample = self._curand_generate(n, dtype)
        if scalar and not mx & (mx + 1):
            sample &= mx
            return sample.reshape(size)
        self._replace_rejected(sample, limit, scalar)
        if scalar:
            sample %= mx + 1
        else:
            largest = _UINT32_MAX if dtype is np.uint32 else _UINT64_MAX
            sample = self._interval_sample_modulo(largest, mx, sample)
        return sample.reshape(size)

    def _replace_rejected(self, sample: Any, limit: Any, scalar: bool) -> None:
        # The host reads how many there are.
        wrong = self._get_indices(sample, limit, False)
        n = wrong.size
        if n > 0 and not scalar:
            limit = limit[wrong]
        while n > 0:
            more = self._curand_generate(max(n * 2, 1024) if scalar else limit.size, sample.dtype)
            right = self._get_indices(more, limit, True)
            if right.size >= n:
                sample[wrong] = more[right[:n]]
                return
            sample[wrong[: right.size]] = more[right]
            wrong = wrong[right.size :]
            limit = limit if scalar else limit[right.size :]
            n -= right.size

    def _get_indices(self, sample: Any, upper_limit: Any, cond: bool) -> Any:
        flags = (sample <= upper_limit) if cond else (sample > upper_limit)
        csum = cupy.cumsum(flags, dtype=np.uint32)
        indices = cupy.empty((int(csum[-1]),), dtype=np.uint32)
        self._kernel_get_indices(csum, indices, size=csum.size)
        return indices

    # -- choice and order -------------------------------------------------------------------------------------

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        """Return random elements of an array, or integers below ``a``."""
        if a is None:
            raise ValueError('a must be 1-dimensional or an integer')
        if isinstance(a, layout.Layout) and a.ndim == 0:
            raise NotImplementedError
        if isinstance(a, int):
            length = a
            if length < 0:
                raise ValueError('a must be greater than or equal to 0')
        else:
            a = cupy.array(a, copy=False)
            if a.ndim != 1:
                raise ValueError('a must be 1-dimensional or an integer')
            length = len(a)
        if p is not None:
            p = _probabilities(p, length)
        if size is None:
            raise NotImplementedError('choice() without specifying size is not supported yet')
        n = math.prod(shape_of(size))
        if length == 0 and n > 0:
            raise ValueError('a cannot be empty unless no samples are taken')
        if not replace:
            if p is not None:
                raise NotImplementedError
            return self._without_replacement(a, length, n).reshape(size)
        if p is not None:
            cdf = p.cumsum()
            cdf /= cdf[-1]
            index = cdf.searchsorted(self.random_sample(size), side='right')
        else:
            index = self.randint(0, max(length, 1), size=size).astype(np.int64, copy=False)
        if isinstance(a, int):
            return index
        return cupy.array(a[index], dtype=a.dtype) if index.ndim == 0 else a[index]

    def _without_replacement(self, a: Any, length: int, n: int) -> Any:
        if length < n:
            raise ValueError("Cannot take a larger sample than population when 'replace=False'")
        if not isinstance(a, int):
            order = a.copy()
            self.shuffle(order)
            return order[:n]
        # The host makes keys of the seed, and a kernel a permutation of the keys.
        rng = np.random.default_rng(self._get_seed(_FEISTEL_ROUNDS))
        keys = rng.integers(0, _UINT32_MAX + 1, size=_FEISTEL_ROUNDS, dtype=np.uint32).tolist()
        return launches.launch('cupy_feistel_bijection', random_bodies.some_of, (keys, length, n))

    def shuffle(self, a: Any) -> None:
        """Shuffle in place along the first axis."""
        if not isinstance(a, layout.Layout):
            raise TypeError('The array must be cupy.ndarray')
        if a.ndim == 0:
            raise TypeError('An array whose ndim is 0 is not supported')
        array: Any = a
        array[:] = array[self._permutation(len(array))]

    def permutation(self, a: Any) -> Any:
        """Return a random order of an array, or of the integers below ``a``."""
        return self._permutation(a) if isinstance(a, int) else a[self._permutation(len(a))]

    def _permutation(self, num: int) -> Any:
        sample = cupy.empty((num,), dtype=np.int32)
        with self._lock:
            curand.generate(self._generator, sample.data.ptr, num)
        return cupy.argsort(sample)


def _probabilities(p: Any, length: int) -> Any:
    p = cupy.array(p)
    if p.ndim != 1:
        raise ValueError('p must be 1-dimensional')
    if len(p) != length:
        raise ValueError('a and p must have same size')
    if not (p >= 0).all():
        raise ValueError('probabilities are not non-negative')
    if not np.allclose(cupy.sum(p).get(), 1):
        raise ValueError('probabilities do not sum to 1')
    return p


_multinomial_kernel = kernels.ElementwiseKernel('int64 x, int32 p, int32 n', 'raw U ys', '', 'cupy_random_multinomial')


def multinomial(n: int, pvals: Any, size: Any = None) -> Any:
    """Return numbers of a multinomial distribution: the function has no method."""
    shape = (*shape_of(size), len(pvals))
    ys = cupy.zeros(shape, 'l')
    if ys.size > 0:
        xs = get_random_state().choice(len(pvals), p=pvals, size=n * math.prod(shape_of(size)))
        _multinomial_kernel(xs, len(pvals), n, ys)
    return ys


_random_states: dict[int, RandomState] = {}


def seed(seed: Any = None) -> None:
    get_random_state().seed(seed)


def get_random_state() -> RandomState:
    device = devices.get_device_id()
    found = _random_states.get(device)
    if found is None:
        given = os.getenv('CUPY_SEED')
        found = _random_states.setdefault(device, RandomState(None if given is None else np.uint64(int(given))))
    return found


def set_random_state(rs: RandomState) -> None:
    if not isinstance(rs, RandomState):
        raise TypeError(f'Random state must be an instance of RandomState. Actual: {type(rs)}')
    _random_states[devices.get_device_id()] = rs


def reset_states() -> None:
    global _random_states
    _random_states = {}
