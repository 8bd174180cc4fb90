"""``cupy.random``: the functions, which draw from a ``RandomState``, and ``Generator``.

A ``Generator`` keeps its state on the device: its work can be recorded, and each launch draws new numbers. Numbers are
NumPy's, not cuRAND's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from . import launches, randomstate
from .functions import declarations, declared
from .surface import RANDOM


def _drawn(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dtype: Any, name: str) -> Any:
    def draw(*a: Any, **k: Any) -> Any:
        found = fn(*a, **k)
        return found if dtype is None else np.asarray(found).astype(dtype)

    return launches.launch(f'cupy_random_{name}', draw, args, kwargs)


_SAME = {'random': 'random_sample', 'ranf': 'random_sample', 'sample': 'random_sample', 'random_integers': 'randint'}
#: Functions that draw from no state, or have no method.
_OTHERS = ('default_rng', 'get_random_state', 'set_random_state', 'reset_states', 'bytes', 'seed', 'multinomial')


def _function(name: str, signature: inspect.Signature) -> Callable[..., Any]:
    method = _SAME.get(name, name)

    def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == 'random_integers':
            high = kwargs.pop('high', None)
            args, kwargs['high'] = ((1,), args[0] + 1) if high is None else (args, high + 1)
        return getattr(randomstate.get_random_state(), method)(*args, **kwargs)

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
    """Return random bytes, NumPy's."""
    return np.random.bytes(length)


def names() -> dict[str, Any]:
    """Return what ``cupy.random`` exports."""
    found: dict[str, Any] = {
        'Generator': Generator, 'BitGenerator': BitGenerator, 'XORWOW': XORWOW, 'MRG32k3a': MRG32k3a,
        'Philox4x3210': Philox4x3210, 'default_rng': default_rng, 'bytes': bytes,
    }  # fmt: skip
    of_state = ('RandomState', 'get_random_state', 'set_random_state', 'reset_states', 'seed', 'multinomial')
    found.update({name: getattr(randomstate, name) for name in of_state})
    for name, signature in declarations(RANDOM):
        if name not in _OTHERS:
            found[name] = _function(name, signature)
    return found


def _complete() -> None:
    for name, signature in declarations(_GENERATOR):
        setattr(Generator, name, _generator_method(name, signature))


_complete()
