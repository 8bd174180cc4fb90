"""``cupy.random``: NumPy's generators behind cuRAND's rules.

The functions and ``RandomState`` use cuRAND, which CuPy refuses in a capture. A ``Generator`` keeps its state on the
device: its work can be recorded, and each launch draws new numbers. Numbers are NumPy's, not cuRAND's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from . import launches, vendor
from .functions import declarations, declared
from .surface import RANDOM

_NO_DTYPE = object()


def _drawn(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dtype: Any, name: str) -> Any:
    def draw(*a: Any, **k: Any) -> Any:
        found = fn(*a, **k)
        return found if dtype is None else np.asarray(found).astype(dtype)

    return launches.launch(f'cupy_random_{name}', draw, args, kwargs)


class RandomState:
    """Random numbers by cuRAND: refused in a capture."""

    def __init__(self, seed: Any = None, method: Any = None) -> None:
        vendor.use(vendor.curand)
        self._state = np.random.RandomState(_seed(seed))

    def seed(self, seed: Any = None) -> None:
        """Start anew from ``seed``."""
        vendor.use(vendor.curand)
        self._state = np.random.RandomState(_seed(seed))

    def _draw(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        vendor.use(vendor.curand)
        dtype = kwargs.pop('dtype', None)
        kwargs = {k: v for k, v in kwargs.items() if k not in ('check_valid', 'tol', 'method')}
        if name == 'randint' and dtype is not None:
            kwargs['dtype'], dtype = dtype, None
        return _drawn(getattr(self._state, name), args, kwargs, dtype, name)

    def shuffle(self, a: Any) -> None:
        """Shuffle in place along the first axis."""
        vendor.use(vendor.curand)
        launches.mutate('cupy_random_shuffle', self._state.shuffle, a)

    def rand(self, *size: int, **kwarg: Any) -> Any:
        """Return uniform numbers."""
        return self._draw('random_sample', (size or None,), kwarg)

    def randn(self, *size: int, **kwarg: Any) -> Any:
        """Return normal numbers."""
        return self._draw('standard_normal', (size or None,), kwarg)


def _seed(seed: Any) -> Any:
    found = launches.as_array(seed)
    return seed if found is None else int(found.ravel()[0])


_HERE = ('seed', 'shuffle', 'rand', 'randn')
_OF_MODULE = ('default_rng', 'get_random_state', 'set_random_state', 'reset_states', 'bytes')
_SAME = {'random': 'random_sample', 'ranf': 'random_sample', 'sample': 'random_sample', 'random_integers': 'randint'}

#: Methods of ``RandomState`` that are no functions, or have other parameters than the function.
_METHODS = """
    exponential(scale=1.0, size=None, dtype=float)
    tomaxint(size=None)
"""


def _method(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    first = inspect.Parameter('self', inspect.Parameter.POSITIONAL_OR_KEYWORD)
    whole = signature.replace(parameters=[first, *signature.parameters.values()])

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0]._draw(name, args[1:], kwargs)

    return declared(name, whole, call, 'cupy.random')


_state: RandomState | None = None


def get_random_state() -> RandomState:
    """Return the state that the functions draw from."""
    global _state
    if _state is None:
        _state = RandomState()
    return _state


def set_random_state(rs: RandomState) -> None:
    """Set the state that the functions draw from."""
    global _state
    if not isinstance(rs, RandomState):
        raise TypeError(f'Random state must be an instance of RandomState. Actual: {type(rs)}')
    _state = rs


def reset_states() -> None:
    """Forget the state that the functions draw from."""
    global _state
    _state = None


def _function(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    method = _SAME.get(name, name)

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == 'random_integers':
            high = kwargs.pop('high', None)
            args, kwargs['high'] = ((1,), args[0] + 1) if high is None else (args, high + 1)
        return getattr(get_random_state(), method)(*args, **kwargs)

    return declared(name, signature, call, 'cupy.random')


class BitGenerator:
    """A source of bits on the device."""

    def __init__(self, seed: Any = None) -> None:
        self._numpy = np.random.Generator(np.random.PCG64(seed))


class XORWOW(BitGenerator):
    """cuRAND's XORWOW by name."""

    def __init__(self, seed: Any = None, *, size: int = -1) -> None:
        super().__init__(seed)


class MRG32k3a(XORWOW):
    """cuRAND's MRG32k3a by name."""


class Philox4x3210(XORWOW):
    """cuRAND's Philox4x32-10 by name."""


_GENERATOR = """
    beta(self, a, b, size=None, dtype=float64)
    binomial(self, n, p, size=None)
    chisquare(self, df, size=None)
    dirichlet(self, alpha, size=None)
    exponential(self, scale=1.0, size=None)
    f(self, dfnum, dfden, size=None)
    gamma(self, shape, scale=1.0, size=None)
    geometric(self, p, size=None)
    hypergeometric(self, ngood, nbad, nsample, size=None)
    integers(self, low, high=None, size=None, dtype=int64, endpoint=False)
    logseries(self, p, size=None)
    poisson(self, lam=1.0, size=None)
    power(self, a, size=None)
    random(self, size=None, dtype=float64, out=None)
    standard_exponential(self, size=None, dtype=float64, method='inv', out=None)
    standard_gamma(self, shape, size=None, dtype=float64, out=None)
    standard_normal(self, size=None, dtype=float64, out=None)
    uniform(self, low=0.0, high=1.0, size=None, dtype=float64)
"""


class Generator:
    """Random numbers with the state on the device: each launch of a graph draws new ones."""

    def __init__(self, bit_generator: BitGenerator) -> None:
        self.bit_generator = bit_generator

    def _draw(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        fn = getattr(self.bit_generator._numpy, name)
        out = kwargs.pop('out', None)
        dtype = kwargs.pop('dtype', None) if name in ('beta', 'uniform') else None
        if out is None:
            return _drawn(fn, args, kwargs, dtype, name)
        kwargs['size'] = out.shape
        kwargs['dtype'] = out.dtype
        out[...] = _drawn(fn, args, kwargs, None, name)
        return out


def _generator_method(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    return declared(name, signature, lambda args, kwargs: args[0]._draw(name, args[1:], kwargs), 'cupy.random')


def default_rng(seed: Any = None) -> Generator:
    """Return a new generator."""
    if isinstance(seed, BitGenerator):
        return Generator(seed)
    return seed if isinstance(seed, Generator) else Generator(XORWOW(seed))


def bytes(length: int) -> Any:
    """Return random bytes."""
    return get_random_state()._draw('randint', (0, 256, length), {'dtype': np.uint8}).tobytes()


def names() -> dict[str, Any]:
    """Return what ``cupy.random`` exports."""
    found: dict[str, Any] = {
        'RandomState': RandomState, 'Generator': Generator, 'BitGenerator': BitGenerator, 'XORWOW': XORWOW,
        'MRG32k3a': MRG32k3a, 'Philox4x3210': Philox4x3210, 'default_rng': default_rng, 'bytes': bytes,
        'get_random_state': get_random_state, 'set_random_state': set_random_state, 'reset_states': reset_states,
    }  # fmt: skip
    for name, signature in declarations(RANDOM):
        if name not in _OF_MODULE:
            found[name] = _function(name, signature)
    return found


def _complete() -> None:
    for name, signature in declarations(RANDOM):
        if name not in (*_HERE, *_OF_MODULE, *_SAME, 'exponential') and hasattr(np.random.RandomState, name):
            setattr(RandomState, name, _method(name, signature))
    for name, signature in declarations(_METHODS):
        setattr(RandomState, name, _method(name, signature))
    for name, signature in declarations(_GENERATOR):
        setattr(Generator, name, _generator_method(name, signature))


_complete()
