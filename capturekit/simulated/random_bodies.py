"""The bodies of the kernels behind ``cupy.random``. The numbers are NumPy's, and follow from a kernel's operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.kernel_bodies import body

#: Kernels that draw from a seed, by CuPy's names: the parameters before the seed, and NumPy's drawing function.
SEEDED: dict[str, tuple[str, Callable[..., Any]]] = {
    'beta': ('S a, T b', np.random.Generator.beta),
    'binomial': ('S n, T p', np.random.Generator.binomial),
    'chisquare': ('T df', np.random.Generator.chisquare),
    'f': ('S dfnum, T dfden', np.random.Generator.f),
    'geometric': ('T p', np.random.Generator.geometric),
    'hypergeometric': ('S good, T bad, U sample', np.random.Generator.hypergeometric),
    'logseries': ('T p', np.random.Generator.logseries),
    'noncentral_chisquare': ('S df, T nonc', np.random.Generator.noncentral_chisquare),
    'noncentral_f': ('S dfnum, T dfden, U nonc', np.random.Generator.noncentral_f),
    'open_uniform': ('', lambda generator, size: 1 - generator.random(size)),
    'poisson': ('T lam', np.random.Generator.poisson),
    'standard_gamma': ('T shape', np.random.Generator.standard_gamma),
    'standard_t': ('S df', np.random.Generator.standard_t),
    'vonmises': ('S mu, T kappa', np.random.Generator.vonmises),
    'zipf': ('T a', np.random.Generator.zipf),
}


def numbers(seed: int) -> np.random.Generator:
    """Return NumPy's generator for a seed."""
    return np.random.Generator(np.random.Philox(key=seed))


def _seeded(draw: Callable[..., Any]) -> Callable[..., None]:
    def fill(*operands: Any) -> None:
        *parameters, seed, y = operands
        try:
            # Other numbers than those that a cuRAND generator draws from the same seed.
            found = draw(numbers(int(seed) | 1 << 64), *parameters, size=y.shape)
        except ValueError:
            # Parameters out of range: a kernel refuses nothing, and what it makes of them is nobody's business.
            found = np.nan if y.dtype.kind == 'f' else -1
        np.copyto(y, found, casting='unsafe')

    return fill


for _name, (_, _draw) in SEEDED.items():
    body(f'cupy_{_name}_kernel')(_seeded(_draw))


@body('cupy_random_x_mod_1')
def _mod_1(x: NDArray[Any]) -> None:
    x[x == 1] = 0


@body('cupy_scale')
def _scale(low: Any, high: Any, x: NDArray[Any]) -> None:
    x[...] = low + x * (high - low)


@body('cupy_laplace_kernel')
def _laplace(x: Any, loc: Any, scale: Any, y: NDArray[Any]) -> None:
    y[...] = loc + scale * np.where(x <= 0.5, np.log(x + x), -np.log(x + x - 1))


@body('cupy_gumbel_kernel')
def _gumbel(x: Any, loc: Any, scale: Any, y: NDArray[Any]) -> None:
    y[...] = loc - np.log(-np.log(x)) * scale


@body('cupy_triangular_kernel')
def _triangular(left: Any, mode: Any, right: Any, x: NDArray[Any]) -> None:
    base, leftbase = right - left, mode - left
    rising = left + np.sqrt(x * leftbase * base)
    x[...] = np.where(x <= leftbase / base, rising, right - np.sqrt((1 - x) * (right - mode) * base))


@body('cupy_wald_scale')
def _wald(mean: Any, scale: Any, u: Any, x: NDArray[Any]) -> None:
    y = mean * x * x
    found = mean + mean / (2 * scale) * (y - np.sqrt(4 * scale * y + y * y))
    x[...] = np.where(u > mean / (mean + found), mean * mean / found, found)


@body('cupy_random_interval_upper_limit')
def _upper_limit(largest: Any, mx: NDArray[Any]) -> Any:
    one, largest = mx.dtype.type(1), mx.dtype.type(largest)
    return np.where(mx != largest, largest - (largest - mx) % np.maximum(mx + one, one), largest)


@body('cupy_random_interval_sample_modulo')
def _sample_modulo(largest: Any, mx: NDArray[Any], sample: NDArray[Any]) -> None:
    one = mx.dtype.type(1)
    sample[...] = np.where(mx != mx.dtype.type(largest), sample % np.maximum(mx + one, one), sample)


@body('cupy_get_indices')
def _get_indices(csum: NDArray[Any], indices: NDArray[Any]) -> None:
    found = np.flatnonzero(np.diff(csum, prepend=csum.dtype.type(0)))
    indices[: found.size] = found[: indices.size]


@body('cupy_random_multinomial')
def _multinomial(x: NDArray[Any], p: Any, n: Any, ys: NDArray[Any]) -> None:
    rows = ys.reshape(-1, int(p))
    np.add.at(rows, (np.arange(x.size) // int(n), x), 1)


def some_of(keys: list[int], n: int, size: int) -> NDArray[np.int64]:
    """Return ``size`` different integers below ``n``, in an order that follows from the keys."""
    return np.random.default_rng(keys).permutation(n)[:size].astype(np.int64)
