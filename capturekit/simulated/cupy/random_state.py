"""``cupy.random._generator``: ``RandomState``, which draws by the same calls and with the same seeds as CuPy's.

Numbers come from the functions of ``cupy_backends.cuda.libs.curand``, looked up there at every call, or from a kernel
that gets a seed as an argument: the host keeps count of those (``_get_seed``), and a graph would repeat the same one.
What CuPy reads on the host in between (bounds, rejected integers), this does too. The numbers themselves are NumPy's.
"""

from __future__ import annotations

import binascii
import hashlib
import inspect
import math
import operator
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.cupy import signatures

from . import curand, devices, indexing, launches, layout, runtime_calls
from .runtime_calls import cupy

_UINT32_MAX, _UINT64_MAX = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_FEISTEL_ROUNDS = 24


def _common_shape(*values: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(*(v.shape if hasattr(v, 'shape') else np.shape(v) for v in values))


def _shape_of(size: Any) -> tuple[int, ...]:
    if size is None:
        return ()
    return tuple(size) if isinstance(size, (tuple, list)) else (operator.index(size),)


def _real(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(dtype)
    if found.char not in ('f', 'd'):
        raise TypeError('cupy.random only supports float32 and float64')
    return found


def _dtype_of(name: str, kwarg: dict[str, Any]) -> Any:
    dtype = kwarg.pop('dtype', float)
    if kwarg:
        raise TypeError(f'{name}() got unexpected keyword arguments {", ".join(kwarg)}')
    return dtype


# -- tables -----------------------------------------------------------------------------------------------------


def _below_one(u: Any) -> Any:
    return np.where(u == 1, 0, u)


def _triangular(u: Any, left: Any, mode: Any, right: Any) -> Any:
    x, base, leftbase = _below_one(u), right - left, mode - left
    rising = left + np.sqrt(x * leftbase * base)
    return np.where(x <= leftbase / base, rising, right - np.sqrt((1 - x) * (right - mode) * base))


def _dirichlet(generator: np.random.Generator, alpha: Any, size: Any) -> Any:
    found = generator.standard_gamma(alpha, size)
    return found / found.sum(axis=-1, keepdims=True)


#: Draws from uniform numbers of cuRAND, in (0, 1]: parameters before ``size`` and ``dtype``, and what is made of them.
BY_UNIFORM: dict[str, tuple[str, Callable[..., Any]]] = {
    'exponential': ('scale=1.0', lambda u, scale: -np.log(u) * scale),
    'gumbel': ('loc=0.0, scale=1.0', lambda u, loc, scale: loc - np.log(-np.log(u)) * scale),
    'laplace': (
        'loc=0.0, scale=1.0',
        lambda u, loc, scale: loc + scale * np.where(u <= 0.5, np.log(u + u), -np.log(u + u - 1)),
    ),
    'pareto': ('a', lambda u, a: np.exp(-np.log(u) / a) - 1),
    'power': ('a', lambda u, a: (1 - u) ** (1.0 / a)),
    'random_sample': ('', _below_one),
    'rayleigh': ('scale=1.0', lambda u, scale: np.sqrt(-2.0 * np.log(u)) * scale),
    'standard_cauchy': ('', lambda u: np.tan(np.pi * (_below_one(u) - 0.5))),
    'standard_exponential': ('', lambda u: -np.log(u)),
    'triangular': ('left, mode, right', _triangular),
    'uniform': ('low=0.0, high=1.0', lambda u, low, high: low + _below_one(u) * (high - low)),
    'weibull': ('a', lambda u, a: (-np.log(u)) ** (1.0 / a)),
}

#: Draws by a kernel that gets a seed: parameters, the default dtype, and NumPy's function.
BY_SEED: dict[str, tuple[str, str, Callable[..., Any]]] = {
    'beta': ('a, b', 'float', np.random.Generator.beta),
    'binomial': ('n, p', 'int', np.random.Generator.binomial),
    'chisquare': ('df', 'float', np.random.Generator.chisquare),
    'dirichlet': ('alpha', 'float', _dirichlet),
    'f': ('dfnum, dfden', 'float', np.random.Generator.f),
    'gamma': ('shape, scale=1.0', 'float', np.random.Generator.gamma),
    'geometric': ('p', '"l"', np.random.Generator.geometric),
    'hypergeometric': ('ngood, nbad, nsample', '"l"', np.random.Generator.hypergeometric),
    'logistic': ('loc=0.0, scale=1.0', 'float', np.random.Generator.logistic),
    'logseries': ('p', '"l"', np.random.Generator.logseries),
    'noncentral_chisquare': ('df, nonc', 'float', np.random.Generator.noncentral_chisquare),
    'noncentral_f': ('dfnum, dfden, nonc', 'float', np.random.Generator.noncentral_f),
    'poisson': ('lam=1.0', '"l"', np.random.Generator.poisson),
    'standard_gamma': ('shape', 'float', np.random.Generator.standard_gamma),
    'standard_t': ('df', 'float', np.random.Generator.standard_t),
    'vonmises': ('mu, kappa', 'float', np.random.Generator.vonmises),
    'zipf': ('a', 'int', np.random.Generator.zipf),
}

#: Conditions of parameters that CuPy refuses: the host reads, for each, whether it holds for any element.
REFUSED = {
    'exponential': 'scale < 0', 'logseries': 'p <= 0.0, p >= 1.0', 'negative_binomial': 'n <= 0, p < 0, p > 1',
    'noncentral_chisquare': 'df <= 0, nonc < 0', 'noncentral_f': 'dfnum <= 0, dfden <= 0, nonc < 0', 'power': 'a < 0',
    'rayleigh': 'scale < 0', 'triangular': 'left > mode, mode > right, left == right', 'weibull': 'a < 0',
    'zipf': 'a <= 1.0',
}  # fmt: skip
_MESSAGES = {'a <= 1.0': "'a' must be a valid float > 1.0"}
_COMPARED = {'<': operator.lt, '<=': operator.le, '>': operator.gt, '>=': operator.ge, '==': operator.eq}


def _refuse(name: str, given: dict[str, Any]) -> None:
    """Raise ValueError for parameters that CuPy's host refuses, which are arrays by now."""
    for condition in filter(None, REFUSED.get(name, '').split(', ')):
        one, compared, other = condition.split()
        if _COMPARED[compared](given[one], given[other] if other in given else float(other)).any():
            raise ValueError(_MESSAGES.get(condition, condition))


def _from_seed(draw: Callable[..., Any]) -> Callable[..., None]:
    """The kernel that fills ``out`` from parameters and a seed."""

    def fill(*operands: Any, out: NDArray[Any]) -> None:
        *parameters, seed = operands
        try:
            # Other numbers than those that a cuRAND generator draws from the same seed.
            generator = np.random.Generator(np.random.Philox(key=int(seed) | 1 << 64))
            found = draw(generator, *parameters, size=out.shape)
        except ValueError:
            # Parameters out of range: a kernel refuses nothing, and what it makes of them is nobody's business.
            found = np.nan if out.dtype.kind == 'f' else -1
        np.copyto(out, found, casting='unsafe')

    return fill


# -- the class --------------------------------------------------------------------------------------------------


class RandomState:
    """Random numbers by cuRAND, and by kernels with a seed."""

    def __init__(self, seed: Any = None, method: Any = None) -> None:
        if method is None:
            method = curand.CURAND_RNG_PSEUDO_DEFAULT
        self._lock = threading.Lock()
        self._born = runtime_calls.state.number
        self._generator = curand.createGenerator(method)
        self.method = method
        self.seed(seed)

    def __del__(self) -> None:
        if hasattr(self, '_generator') and self._born == runtime_calls.state.number:
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

    def _get_seed(self, size: int) -> Any:
        with self._lock:
            rk_seed = self._rk_seed
            self._rk_seed = (rk_seed + size) % _UINT64_MAX
        return rk_seed

    def _by_seed(self, name: str, parameters: tuple[Any, ...], size: Any, dtype: Any) -> Any:
        y = cupy.empty(shape=_common_shape(*parameters) if size is None else size, dtype=dtype)
        rk_seed = self._get_seed(y.size)
        fill = _from_seed(BY_SEED[name][2])
        return launches.launch(f'cupy_{name}_kernel', fill, (*parameters, rk_seed), out=y, elementwise=True)

    def _by_uniform(self, name: str, parameters: tuple[Any, ...], size: Any, dtype: Any) -> Any:
        dtype = _real(dtype)
        out = cupy.empty(_common_shape(*parameters) if size is None else size, dtype=dtype)
        func = curand.generateUniform if dtype.char == 'f' else curand.generateUniformDouble
        with self._lock:
            func(self._generator, out.data.ptr, out.size)

        def make(u: Any, *given: Any, out: NDArray[Any]) -> None:
            np.copyto(out, BY_UNIFORM[name][1](u, *given), casting='unsafe')

        return launches.launch(f'cupy_{name}', make, (out, *parameters), out=out, elementwise=True)

    def _generate(self, function: str, size: Any, dtype: Any, *args: Any) -> Any:
        """Normal or lognormal numbers of cuRAND, which draws even numbers of them only."""
        dtype, shape = _real(dtype), _shape_of(size)
        n = math.prod(shape)
        out = cupy.empty(shape if n % 2 == 0 else (n + 1,), dtype=dtype)
        func = getattr(curand, function if dtype.char == 'f' else f'{function}Double')
        with self._lock:
            func(self._generator, out.data.ptr, out.size, *args)
        return out if n % 2 == 0 else out[:n].reshape(shape)

    def _bits(self, num: int, dtype: Any) -> Any:
        sample = cupy.empty((num,), dtype=dtype)
        with self._lock:
            curand.generate(self._generator, sample.data.ptr, num * (sample.itemsize // 4))
        return sample

    # -- real numbers -------------------------------------------------------------------------------------------

    def rand(self, *size: int, **kwarg: Any) -> Any:
        """Return uniform numbers in ``[0, 1)``."""
        return self.random_sample(size=size, dtype=_dtype_of('rand', kwarg))  # type: ignore[attr-defined]

    def randn(self, *size: int, **kwarg: Any) -> Any:
        """Return standard normal numbers."""
        return self.normal(size=size, dtype=_dtype_of('randn', kwarg))

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        size = _common_shape(loc, scale) if size is None else size
        moved, scaled = isinstance(loc, layout.Layout), isinstance(scale, layout.Layout)
        mean, width = 0.0 if moved or scaled else loc, 1.0 if scaled else scale
        x = self._generate('generateNormal', size, dtype, mean, width)
        if scaled:
            cupy.multiply(x, scale, out=x)
        if moved or scaled:
            cupy.add(x, loc, out=x)
        return x

    def standard_normal(self, size: Any = None, dtype: Any = float) -> Any:
        """Return standard normal numbers."""
        return self.normal(size=size, dtype=dtype)

    def lognormal(self, mean: Any = 0.0, sigma: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        if any(isinstance(arg, layout.Layout) for arg in (mean, sigma)):
            x = self.normal(mean, sigma, size, dtype)
            cupy.exp(x, out=x)
            return x
        return self._generate('generateLogNormal', size, dtype, mean, sigma)

    def wald(self, mean: Any, scale: Any, size: Any = None, dtype: Any = float) -> Any:
        mean, scale = cupy.asarray(mean, dtype=dtype), cupy.asarray(scale, dtype=dtype)
        size = _common_shape(mean, scale) if size is None else size
        x = self.normal(size=size, dtype=dtype)
        u = self.random_sample(size=size, dtype=dtype)  # type: ignore[attr-defined]

        def scaled(mean: Any, scale: Any, u: Any, x: Any, out: NDArray[Any]) -> None:
            y = mean * x * x
            found = mean + mean / (2 * scale) * (y - np.sqrt(4 * scale * y + y * y))
            out[...] = np.where(u > mean / (mean + found), mean * mean / found, found)

        return launches.launch('cupy_wald_scale', scaled, (mean, scale, u, x), out=x, elementwise=True)

    def multivariate_normal(
        self, mean: Any, cov: Any, size: Any = None, check_valid: str = 'ignore', tol: float = 1e-08,
        method: str = 'cholesky', dtype: Any = float,
    ) -> Any:  # fmt: skip
        mean, cov = cupy.asarray(mean, dtype=dtype), cupy.asarray(cov, dtype=dtype)
        if mean.ndim != 1:
            raise ValueError('mean must be 1 dimensional')
        if cov.ndim != 2 or cov.shape[0] != cov.shape[1]:
            raise ValueError('cov must be 2 dimensional and square')
        if mean.shape[0] != cov.shape[0]:
            raise ValueError('mean and cov must have same length')
        if method not in ('eigh', 'svd', 'cholesky'):
            raise ValueError("method must be one of {'eigh', 'svd', 'cholesky'}")
        if check_valid not in ('ignore', 'warn', 'raise'):
            raise ValueError("check_valid must equal 'warn', 'raise', or 'ignore'")
        if method == 'cholesky':
            decomposed = cupy.linalg.cholesky(cov)
        else:
            s, u = cupy.linalg.eigh(cov) if method == 'eigh' else cupy.linalg.svd(cov)[1::-1]
            decomposed = u * cupy.sqrt(cupy.abs(s))
        shape = (*_shape_of(size), mean.shape[0])
        x = self.standard_normal(shape, dtype=dtype).reshape(-1, mean.shape[0])
        x = cupy.dot(decomposed, x.T).T
        x += mean
        return x.reshape(shape)

    # -- integers -----------------------------------------------------------------------------------------------

    def negative_binomial(self, n: Any, p: Any, size: Any = None, dtype: Any = int) -> Any:
        n, p = cupy.asarray(n), cupy.asarray(p)
        _refuse('negative_binomial', {'n': n, 'p': p})
        rates = self._by_seed('gamma', (n, (1 - p) / p), size, float)
        return self._by_seed('poisson', (rates,), None, dtype)

    def tomaxint(self, size: Any = None) -> Any:
        sample = self._bits(math.prod(_shape_of(size)), np.int64)
        sample &= np.iinfo(np.int64).max
        return sample.reshape(_shape_of(size))

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        """Return integers in ``[low, high)``."""
        one: bool = np.isscalar(low)
        if not one:
            return self._randint_of_arrays(cupy.asarray(low), high, size, dtype)
        lo, hi1 = (0, int(low) - 1) if high is None else (int(low), int(high) - 1)
        if lo > hi1:
            raise ValueError('low >= high')
        limits = np.iinfo(dtype)
        if lo < limits.min or hi1 > limits.max:
            raise ValueError(f'{"low" if lo < limits.min else "high"} is out of bounds for {np.dtype(dtype).name}')
        x = self._interval(hi1 - lo, _shape_of(size)).astype(dtype, copy=False)
        cupy.add(x, lo, out=x)
        return x

    def _randint_of_arrays(self, low: Any, high: Any, size: Any, dtype: Any) -> Any:
        lo, hi = (cupy.zeros_like(low), low - 1) if high is None else (low, cupy.asarray(high) - 1)
        shape = _common_shape(lo, hi) if size is None else _shape_of(size)
        diff = (hi - lo).ravel()
        if diff.dtype.kind not in 'iu' or diff.itemsize < 4:
            raise ValueError(f'dtype must be integer, got: {diff.dtype}')
        out = self._interval(diff, (math.prod(shape),)).astype(dtype).reshape(shape)
        cupy.add(out, lo.astype(dtype, copy=False), out=out)
        return out

    def _interval(self, mx: Any, shape: tuple[int, ...]) -> Any:
        """Integers from 0 to ``mx``, a number or an array. Those above a multiple of its length are drawn again."""
        wide: bool = mx > _UINT32_MAX if isinstance(mx, int) else mx.itemsize > 4
        dtype, largest = (np.uint64, _UINT64_MAX) if wide else (np.uint32, _UINT32_MAX)
        if isinstance(mx, int) and mx == 0:
            return cupy.zeros(shape, dtype=np.uint32)
        if isinstance(mx, int) and mx > _UINT64_MAX:
            raise ValueError(f'mx must be within uint64 range (actual: {mx})')
        sample = self._bits(math.prod(shape), dtype)
        if isinstance(mx, int) and not mx & (mx + 1):
            sample &= mx
            return sample.reshape(shape)
        top = dtype(mx) if isinstance(mx, int) else mx.astype(dtype, copy=False)

        def rejected(x: Any, top: Any) -> Any:
            return x > largest - (largest - top) % np.maximum(top + dtype(1), dtype(1))

        def below(x: Any, top: Any) -> Any:
            return np.where(top == largest, x, x % np.maximum(top + dtype(1), dtype(1)))

        # The host reads how many are rejected.
        while sample.size:
            wrong = indexing.nonzero(launches.launch('cupy_rejected', rejected, (sample, top)))[0]
            if not wrong.size:
                break
            sample[wrong] = self._bits(wrong.size, dtype)
        return launches.launch('cupy_random_interval_sample_modulo', below, (sample, top)).reshape(shape)

    # -- choice and order ---------------------------------------------------------------------------------------

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
        n = math.prod(_shape_of(size))
        if length == 0 and n > 0:
            raise ValueError('a cannot be empty unless no samples are taken')
        if not replace:
            if p is not None:
                raise NotImplementedError
            return self._without_replacement(a, length, n).reshape(size)
        if p is not None:
            cdf = p.cumsum()
            cdf /= cdf[-1]
            index = cdf.searchsorted(self.random_sample(size), side='right')  # type: ignore[attr-defined]
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
        some = lambda keys: np.random.default_rng(keys).permutation(length)[:n].astype(np.int64)  # noqa: E731
        return launches.launch('cupy_feistel_bijection', some, (keys,))

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
        return cupy.argsort(self._bits(num, np.int32))


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


def _method(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    def draw(self: RandomState, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        size, dtype = given.pop('size'), given.pop('dtype')
        del given['self']
        if name == 'hypergeometric':
            for key, least in (('ngood', 0), ('nbad', 0), ('nsample', 1)):
                if isinstance(given[key], (int, float)) and given[key] < least:
                    raise ValueError(f'{key} < {least}')
        given = {key: cupy.asarray(value) for key, value in given.items()}
        _refuse(name, given)
        if name == 'dirichlet':
            size = (*_shape_of(size), *given['alpha'].shape)
        by = self._by_seed if name in BY_SEED else self._by_uniform
        return by(name, tuple(given.values()), size, dtype)

    return signatures.named(draw, name, signature, 'cupy.random._generator')


for _name, (_parameters, _) in BY_UNIFORM.items():
    _text = ', '.join(filter(None, ('self', _parameters, 'size=None, dtype=float')))
    setattr(RandomState, _name, _method(_name, signatures.signature(_text)))
for _name, (_parameters, _dtype, _) in BY_SEED.items():
    _text = f'self, {_parameters}, size=None, dtype={_dtype}'
    setattr(RandomState, _name, _method(_name, signatures.signature(_text)))


# -- the functions ------------------------------------------------------------------------------------------------


#: By device. Each device that is installed gets another one.
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


def multinomial(n: int, pvals: Any, size: Any = None) -> Any:
    """Return numbers of a multinomial distribution: the function has no method."""
    kinds = len(pvals)
    ys = cupy.zeros((*_shape_of(size), kinds), 'l')
    if ys.size > 0:
        xs = get_random_state().choice(kinds, p=pvals, size=n * math.prod(_shape_of(size)))

        def count(ys: NDArray[Any], xs: NDArray[Any]) -> None:
            np.add.at(ys.reshape(-1, kinds), (np.arange(xs.size) // n, xs), 1)

        launches.mutate('cupy_random_multinomial', count, ys, (xs,))
    return ys
