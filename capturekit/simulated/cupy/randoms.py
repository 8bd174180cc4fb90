"""``cupy.random``: the functions, which draw from a ``RandomState``, and ``Generator``.

A ``Generator`` keeps its state on the device: its work can be recorded, and each launch draws new numbers. Numbers are
NumPy's, not cuRAND's.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.cupy.signatures import declarations, declared, named, signature

from . import launches, random_state
from .random_state import BY_SEED, BY_UNIFORM, RandomState

# -- functions --------------------------------------------------------------------------------------------------

#: Functions by their methods of ``RandomState``, where the names differ.
_METHODS = {'random': 'random_sample', 'ranf': 'random_sample', 'sample': 'random_sample'}
#: Functions named as their methods, which are not in the tables of these.
_OTHERS = """
    choice lognormal multivariate_normal negative_binomial normal permutation rand randint randn shuffle standard_normal
    wald
""".split()
#: Parameters of functions, where the method's are others.
_PARAMETERS = {'exponential': 'scale, size=None, dtype=float'}


def _function(name: str) -> Callable[..., Any]:
    method = getattr(RandomState, _METHODS.get(name, name))

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(random_state.get_random_state(), _METHODS.get(name, name))(*args, **kwargs)

    whole = inspect.signature(method)
    own = whole.replace(parameters=list(whole.parameters.values())[1:])
    return named(call, name, signature(_PARAMETERS[name]) if name in _PARAMETERS else own, 'cupy.random')


def random_integers(low: Any, high: Any = None, size: Any = None) -> Any:
    """Return integers from ``low`` to ``high``, that included; from 1 to ``low`` where there is one bound."""
    low, high = (1, low) if high is None else (low, high)
    return random_state.get_random_state().randint(low, high + 1, size)


def default_rng(seed: Any = None) -> Generator:
    if isinstance(seed, BitGenerator):
        return Generator(seed)
    return seed if isinstance(seed, Generator) else Generator(XORWOW(seed))


def bytes(length: int) -> Any:
    """Return random bytes, NumPy's."""
    return np.random.bytes(length)


def names() -> dict[str, Any]:
    """Return what ``cupy.random`` exports."""
    of_state = 'RandomState get_random_state set_random_state reset_states seed multinomial'.split()
    own = (Generator, BitGenerator, XORWOW, MRG32k3a, Philox4x3210, default_rng, bytes, random_integers)
    return {
        **{one.__name__: one for one in own},
        **{name: getattr(random_state, name) for name in of_state},
        **{name: _function(name) for name in (*BY_UNIFORM, *BY_SEED, *_METHODS, *_OTHERS)},
    }


# -- generators -------------------------------------------------------------------------------------------------


class BitGenerator:
    """A source of bits."""

    def __init__(self, seed: Any = None) -> None:
        self.lock = threading.Lock()


class _cuRANDGenerator(BitGenerator):
    """A source of bits whose state lies on the device: what draws asks for it first, and writes it back."""

    def __init__(self, seed: Any = None, *, size: int = -1) -> None:
        super().__init__(seed)
        words = _words(np.random.PCG64(seed))
        self._state = launches.launch('cupy_random_seeded', lambda: words.copy(), (), {})

    def state(self) -> int:
        return int(self._state.data.ptr)


class XORWOW(_cuRANDGenerator):
    """cuRAND's XORWOW by name."""


class MRG32k3a(XORWOW):
    """cuRAND's MRG32k3a by name."""


class Philox4x3210(XORWOW):
    """cuRAND's Philox4x32-10 by name."""


_HALF = (1 << 64) - 1


def _words(bits: np.random.PCG64) -> NDArray[np.uint64]:
    now: Any = bits.state
    inner = now['state']
    wide = [inner['state'] >> 64, inner['state'] & _HALF, inner['inc'] >> 64, inner['inc'] & _HALF]
    return np.array([*wide, now['has_uint32'], now['uinteger']], np.uint64)


def _generator(words: NDArray[np.uint64]) -> tuple[np.random.Generator, np.random.PCG64]:
    """Return NumPy's generator in a state."""
    bits = np.random.PCG64(0)
    w = [int(word) for word in words]
    bits.state = {
        'bit_generator': 'PCG64', 'state': {'state': w[0] << 64 | w[1], 'inc': w[2] << 64 | w[3]},
        'has_uint32': w[4] & 1, 'uinteger': w[5] & 0xFFFFFFFF,
    }  # fmt: skip
    return np.random.Generator(bits), bits


def _drawn_from(generator: np.random.Generator, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Draw; what NumPy refuses gives NaN or -1: a kernel refuses nothing, and CuPy looks at two functions' numbers."""
    draw = getattr(generator, name)
    try:
        return draw(*args, **kwargs)
    except ValueError:
        if name in ('integers', 'hypergeometric') and not any(isinstance(one, np.ndarray) for one in args):
            raise
        given = {key: np.full_like(one, 0.5) if isinstance(one, (float, np.ndarray)) else one
                 for key, one in kwargs.items()}  # fmt: skip
        like = np.asarray(draw(*(np.full_like(one, 0.5) for one in args), **given))
        return np.full_like(like, np.nan if like.dtype.kind == 'f' else -1)


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
        bits: Any = self.bit_generator
        bits.state()
        out = kwargs.pop('out', None)
        dtype = kwargs.pop('dtype', None) if name in ('beta', 'uniform') else None
        if out is not None:
            kwargs |= {'size': out.shape, 'dtype': out.dtype}

        def drawn(words: NDArray[np.uint64], *a: Any, **k: Any) -> Any:
            found = _drawn_from(_generator(words)[0], name, a, k)
            return found if dtype is None else np.asarray(found).astype(dtype)

        def moved_on(words: NDArray[np.uint64], *a: Any, **k: Any) -> Any:
            generator, state = _generator(words)
            _drawn_from(generator, name, a, k)
            return _words(state)

        args = (bits._state, *args)
        found = launches.launch(f'cupy_random_{name}', drawn, args, kwargs)
        bits._state[...] = launches.launch(f'cupy_random_{name}_state', moved_on, args, kwargs)
        if out is None:
            return found
        out[...] = found
        return out


def _generator_method(name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    return lambda args, kwargs: args[0]._draw(name, args[1:], kwargs)


for _name, _signature in declarations(_GENERATOR):
    setattr(Generator, _name, declared(_name, _signature, _generator_method(_name), 'cupy.random'))
