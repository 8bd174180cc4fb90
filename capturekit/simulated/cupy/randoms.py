"""``cupy.random``: ``RandomState``, which draws by the same calls as CuPy's, ``Generator``, and the functions.

Numbers come from the functions of ``cupy_backends.cuda.libs.curand``, looked up there at every call, or from a kernel
that gets a seed as an argument: the host keeps count of those (``_get_seed``), and a graph would repeat the same one.
A ``Generator`` keeps its state on the device: each launch draws new numbers. What CuPy reads on the host in between
(bounds, rejected integers), this does too. The numbers themselves are NumPy's.
"""

from __future__ import annotations

import binascii
import hashlib
import inspect
import math
import operator
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capturekit.model.skipped_exits import Lock
from capturekit.simulated.cupy.surface import declared, named, signature

from . import arrays, curand, devices, launches, runtime_calls
from .runtime_calls import cupy

_UINT64_MAX = 0xFFFFFFFFFFFFFFFF
_FEISTEL_ROUNDS = 24

#: Distributions of ``RandomState``: the parameters before ``size, dtype``, whether they are drawn from uniform numbers
#: of cuRAND or by a kernel that gets a seed, whether ``Generator`` has them, too, and the default dtype if no float.
#: Behind a semicolon: conditions of parameters that CuPy refuses: the host reads if one holds for any element.
_DISTRIBUTIONS = """
    beta(a, b) seed | binomial(n, p) seed generator int | chisquare(df) seed generator |
    dirichlet(alpha) seed generator | exponential(scale=1.0) uniform generator; scale < 0 |
    f(dfnum, dfden) seed generator | gamma(shape, scale=1.0) seed generator | geometric(p) seed generator "l" |
    gumbel(loc=0.0, scale=1.0) uniform | hypergeometric(ngood, nbad, nsample) seed generator "l" |
    laplace(loc=0.0, scale=1.0) uniform | logistic(loc=0.0, scale=1.0) seed |
    logseries(p) seed generator "l"; p <= 0.0, p >= 1.0 |
    noncentral_chisquare(df, nonc) seed; df <= 0, nonc < 0 |
    noncentral_f(dfnum, dfden, nonc) seed; dfnum <= 0, dfden <= 0, nonc < 0 | pareto(a) uniform |
    poisson(lam=1.0) seed generator "l" | power(a) uniform generator; a < 0 | random_sample() uniform |
    rayleigh(scale=1.0) uniform; scale < 0 | standard_cauchy() uniform | standard_exponential() uniform |
    standard_gamma(shape) seed | standard_t(df) seed |
    triangular(left, mode, right) uniform; left > mode, mode > right, left == right |
    uniform(low=0.0, high=1.0) uniform | vonmises(mu, kappa) seed | weibull(a) uniform; a < 0 |
    zipf(a) seed int; a <= 1.0
"""
#: Methods of ``Generator`` that take more than ``size``.
_OF_GENERATORS = {
    'beta': 'a, b, size=None, dtype=float64', 'integers': 'low, high=None, size=None, dtype=int64, endpoint=False',
    'standard_exponential': "size=None, dtype=float64, method='inv', out=None",
    'standard_gamma': 'shape, size=None, dtype=float64, out=None',
    **dict.fromkeys(('random', 'standard_normal'), 'size=None, dtype=float64, out=None'),
    'uniform': 'low=0.0, high=1.0, size=None, dtype=float64',
}  # fmt: skip
_COMPARED = {'<': operator.lt, '<=': operator.le, '>': operator.gt, '>=': operator.ge, '==': operator.eq}


class _Distribution(NamedTuple):
    """A row of :data:`_DISTRIBUTIONS`."""

    name: str
    parameters: str
    drawn_by: str
    in_generators: str
    dtype: str
    refused: str

    def refuse(self, given: dict[str, Any]) -> None:
        """Raise ValueError for parameters that CuPy's host refuses, which are arrays by now."""
        for condition in filter(None, self.refused.split(', ')):
            one, compared, other = condition.split()
            if _COMPARED[compared](given[one], given[other] if other in given else float(other)).any():
                raise ValueError("'a' must be a valid float > 1.0" if self.name == 'zipf' else condition)


_ROWS = re.findall(r'(\w+)\(([^)]*)\) (\w+)( generator)?( int| "l")?(?:; ([^|]*[^| \n]))?\s*(?:\||$)', _DISTRIBUTIONS)
DISTRIBUTIONS = {row[0]: _Distribution(*row) for row in _ROWS}


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


def _drawn(key: int, counter: int, name: str, parameters: tuple[Any, ...], shape: Any, **options: Any) -> Any:
    """What NumPy's generator of a key draws. A kernel refuses no values: of those out of range it makes NaN or -1."""
    bits = np.random.Philox(key=key | 1 << 64, counter=counter)  # not as cuRAND's from a seed
    generator: Any = np.random.Generator(bits)
    try:
        if name == 'dirichlet':
            found = generator.standard_gamma(*parameters, shape)
            return found / found.sum(axis=-1, keepdims=True)
        return getattr(generator, name)(*parameters, size=shape, **options)
    except ValueError:
        given = (*parameters, *options.values())
        if name == 'integers' and not any(isinstance(one, np.ndarray) for one in given):
            raise  # CuPy's host knows these
        wrong = -1 if name == 'integers' or DISTRIBUTIONS[name].dtype else np.nan
        return np.full(np.broadcast_shapes(*(np.shape(one) for one in given)) if shape is None else shape, wrong)


class RandomState:
    """Random numbers by cuRAND, and by kernels with a seed."""

    def __init__(self, seed: Any = None, method: Any = None) -> None:
        if method is None:
            method = curand.CURAND_RNG_PSEUDO_DEFAULT
        self._lock = Lock()
        self._born = runtime_calls.state.number
        self._generator = curand.createGenerator(method)
        self.method = method
        self.seed(seed)

    def __del__(self) -> None:
        if hasattr(self, '_generator') and self._born == runtime_calls.state.number:
            curand.destroyGenerator(self._generator)

    def seed(self, seed: Any = None) -> None:
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

    def _draw(self, of: _Distribution, parameters: tuple[Any, ...], size: Any, dtype: Any) -> Any:
        by_seed = of.drawn_by == 'seed'
        plain = of.name in ('random_sample', 'uniform')
        dtype = dtype if by_seed else _real(dtype)
        out = cupy.empty(_common_shape(*parameters) if size is None else size, dtype=dtype)
        source = self._get_seed(out.size) if by_seed else self._filled('generateUniform', out)

        def make(*operands: Any, out: NDArray[Any]) -> None:
            *given, source = operands
            if plain:
                low, high = given or (0.0, 1.0)
                found = low + np.where(source == 1, 0, source) * (high - low)
            else:
                key = int(source) if by_seed else int.from_bytes(source.tobytes()[:8], 'little')
                found = _drawn(key, 0, of.name, tuple(given), out.shape)
            np.copyto(out, found, casting='unsafe')

        return launches.launch(f'cupy_{of.name}', make, (*parameters, source), out=out, elementwise=plain)

    def _filled(self, function: str, out: Any, *args: Any) -> Any:
        """Let cuRAND draw into an array, and return it."""
        func = getattr(curand, function if out.dtype.char == 'f' else f'{function}Double')
        with self._lock:
            func(self._generator, out.data.ptr, out.size, *args)
        return out

    def _generate(self, function: str, size: Any, dtype: Any, *args: Any) -> Any:
        """Normal or lognormal numbers of cuRAND, which draws even numbers of them only."""
        dtype, shape = _real(dtype), _shape_of(size)
        n = math.prod(shape)
        out = self._filled(function, cupy.empty(shape if n % 2 == 0 else (n + 1,), dtype=dtype), *args)
        return out if n % 2 == 0 else out[:n].reshape(shape)

    def _bits(self, num: int, dtype: Any) -> Any:
        sample = cupy.empty((num,), dtype=dtype)
        with self._lock:
            curand.generate(self._generator, sample.data.ptr, num * (sample.itemsize // 4))
        return sample

    # -- real numbers -------------------------------------------------------------------------------------------

    def rand(self, *size: int, **kwarg: Any) -> Any:
        return self.random_sample(size=size, **kwarg)  # type: ignore[attr-defined]

    def randn(self, *size: int, **kwarg: Any) -> Any:
        return self.normal(size=size, **kwarg)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        size = _common_shape(loc, scale) if size is None else size
        moved, scaled = isinstance(loc, launches.Layout), isinstance(scale, launches.Layout)
        mean, width = 0.0 if moved or scaled else loc, 1.0 if scaled else scale
        x = self._generate('generateNormal', size, dtype, mean, width)
        if scaled:
            cupy.multiply(x, scale, out=x)
        if moved or scaled:
            cupy.add(x, loc, out=x)
        return x

    def standard_normal(self, size: Any = None, dtype: Any = float) -> Any:
        return self.normal(size=size, dtype=dtype)

    def lognormal(self, mean: Any = 0.0, sigma: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        if any(isinstance(arg, launches.Layout) for arg in (mean, sigma)):
            x = self.normal(mean, sigma, size, dtype)
            cupy.exp(x, out=x)
            return x
        return self._generate('generateLogNormal', size, dtype, mean, sigma)

    # -- integers -----------------------------------------------------------------------------------------------

    def tomaxint(self, size: Any = None) -> Any:
        sample = self._bits(math.prod(_shape_of(size)), np.int64)
        sample &= np.iinfo(np.int64).max
        return sample.reshape(_shape_of(size))

    def randint(self, low: Any, high: Any = None, size: Any = None, dtype: Any = int) -> Any:
        one: bool = np.isscalar(low)
        if not one:
            lo = cupy.asarray(low)
            lo, hi = (cupy.zeros_like(lo), lo - 1) if high is None else (lo, cupy.asarray(high) - 1)
            shape = _common_shape(lo, hi) if size is None else _shape_of(size)
            diff = hi - lo
            if diff.dtype.kind not in 'iu' or diff.itemsize < 4:
                raise ValueError(f'dtype must be integer, got: {diff.dtype}')
            return self._interval(diff, shape).astype(dtype) + lo.astype(dtype, copy=False)
        first, last = (0, int(low) - 1) if high is None else (int(low), int(high) - 1)
        if first > last:
            raise ValueError('low >= high')
        limits = np.iinfo(dtype)
        if first < limits.min or last > limits.max:
            raise ValueError(f'{"low" if first < limits.min else "high"} is out of bounds for {np.dtype(dtype).name}')
        x = self._interval(last - first, _shape_of(size)).astype(dtype, copy=False)
        cupy.add(x, first, out=x)
        return x

    def _interval(self, mx: Any, shape: tuple[int, ...]) -> Any:
        """Integers from 0 to ``mx``, a number or an array."""
        number = isinstance(mx, int)
        if number and mx == 0:
            return cupy.zeros(shape, dtype=np.uint32)
        wide: bool = mx > np.iinfo(np.uint32).max if number else mx.itemsize > 4
        dtype: Any = np.uint64 if wide else np.uint32
        sample = self._bits(math.prod(shape), dtype)
        top = dtype(mx) if number else mx.astype(dtype, copy=False)
        if not number or mx & (mx + 1):  # CuPy's host reads how many are to be drawn again: here, none
            arrays.nonzero(launches.launch('cupy_rejected', lambda x: np.zeros(x.shape, bool), (sample,)))

        def below(x: Any, top: Any) -> Any:
            return np.where(top == np.iinfo(dtype).max, x, x % np.maximum(top + dtype(1), dtype(1)))

        return launches.launch('cupy_random_interval_sample_modulo', below, (sample.reshape(shape), top))

    # -- choice and order ---------------------------------------------------------------------------------------

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
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
        key = int(self._get_seed(_FEISTEL_ROUNDS))
        some = lambda key: np.random.default_rng(key).permutation(length)[:n].astype(np.int64)  # noqa: E731
        return launches.launch('cupy_feistel_bijection', some, (key,))

    def shuffle(self, a: Any) -> None:
        a[:] = a[self._permutation(len(a))]

    def permutation(self, a: Any) -> Any:
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


def _method(of: _Distribution, signature: inspect.Signature) -> Callable[..., Any]:
    def draw(self: RandomState, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _self, *parameters, size, dtype = bound.arguments
        given = {key: cupy.asarray(bound.arguments[key]) for key in parameters}
        of.refuse(given)
        wanted = bound.arguments[size]
        if of.name == 'dirichlet':
            wanted = (*_shape_of(wanted), *given['alpha'].shape)
        return self._draw(of, tuple(given.values()), wanted, bound.arguments[dtype])

    return named(draw, of.name, signature, 'cupy.random._generator')


for _of in DISTRIBUTIONS.values():
    _all = ('self', _of.parameters, f'size=None, dtype={_of.dtype or "float"}')
    setattr(RandomState, _of.name, _method(_of, signature(', '.join(filter(None, _all)))))


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


def random_integers(low: Any, high: Any = None, size: Any = None) -> Any:
    low, high = (1, low) if high is None else (low, high)
    return get_random_state().randint(low, high + 1, size)


def default_rng(seed: Any = None) -> Generator:
    if isinstance(seed, BitGenerator):
        return Generator(seed)
    return seed if isinstance(seed, Generator) else Generator(XORWOW(seed))


#: Functions by their methods of ``RandomState``.
_METHODS = {
    **{name: name for name in DISTRIBUTIONS},
    **dict.fromkeys(('random', 'ranf', 'sample'), 'random_sample'),
    **{name: name for name in
       'choice lognormal normal permutation rand randint randn shuffle standard_normal'.split()},
}  # fmt: skip


def _function(name: str, method: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(get_random_state(), method)(*args, **kwargs)

    whole = inspect.signature(getattr(RandomState, method))
    own = whole.replace(parameters=list(whole.parameters.values())[1:])
    return named(
        call, name, signature('scale, size=None, dtype=float') if name == 'exponential' else own, 'cupy.random'
    )


def names() -> dict[str, Any]:
    own = (Generator, BitGenerator, XORWOW, MRG32k3a, Philox4x3210, RandomState, default_rng, random_integers,
           get_random_state, set_random_state, reset_states, seed)  # fmt: skip
    functions = {name: _function(name, method) for name, method in _METHODS.items()}
    return {**{one.__name__: one for one in own}, **functions}


# -- generators -------------------------------------------------------------------------------------------------


class BitGenerator:
    """A source of bits."""

    def __init__(self, seed: Any = None) -> None:
        self.lock = Lock()


class _cuRANDGenerator(BitGenerator):
    """A source of bits whose state, a key and a count, lies on the device: what draws asks for it first."""

    def __init__(self, seed: Any = None, *, size: int = -1) -> None:
        super().__init__(seed)
        words = np.array([np.random.SeedSequence(seed).generate_state(1, np.uint64)[0], 0], np.uint64)
        self._state = launches.launch('cupy_random_seeded', lambda: words.copy(), (), {})

    def state(self) -> int:
        return int(self._state.data.ptr)


XORWOW, MRG32k3a, Philox4x3210 = (
    type(name, (_cuRANDGenerator,), {'__doc__': f"cuRAND's {name} by name.", '__module__': __name__})
    for name in ('XORWOW', 'MRG32k3a', 'Philox4x3210')
)


class Generator:
    """Random numbers with the state on the device: each launch of a graph draws new ones."""

    def __init__(self, bit_generator: BitGenerator) -> None:
        self.bit_generator = bit_generator

    def _draw(self, name: str, parameters: tuple[Any, ...], options: dict[str, Any]) -> Any:
        bits: Any = self.bit_generator
        bits.state()
        out, dtype = options.pop('out', None), options.pop('dtype', None)
        size = options.pop('size', None) if out is None else out.shape
        dtype = dtype if out is None else out.dtype
        if name == 'dirichlet' and size is not None:
            size = (*_shape_of(size), *parameters[0].shape)
        own = {'dtype': dtype} if dtype is not None and name not in ('beta', 'uniform') else {}

        def drawn(words: NDArray[np.uint64], *given: Any, **told: Any) -> Any:
            found = _drawn(int(words[0]), int(words[1]) << 64, name, given, size, **told, **own)
            return found if dtype is None else np.asarray(found).astype(dtype)

        def step(words: NDArray[np.uint64]) -> None:
            words[1] += np.uint64(1)

        found = launches.launch(f'cupy_random_{name}', drawn, (bits._state, *parameters), options)
        launches.mutate(f'cupy_random_{name}_state', step, bits._state)
        if out is None:
            return found
        out[...] = found
        return out


def _generator_method(name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    return lambda args, kwargs: args[0]._draw(name, args[1:], kwargs)


_OF_GENERATORS.update((of.name, f'{of.parameters}, size=None') for of in DISTRIBUTIONS.values() if of.in_generators)
for _name, _parameters in _OF_GENERATORS.items():
    _call = declared(_name, signature(f'self, {_parameters}'), _generator_method(_name), 'cupy.random')
    setattr(Generator, _name, _call)
