"""Draws of ``cupy.random.RandomState`` by kernels that get a seed as an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .random_parameters import common_shape, cupy, refuse_where, shape_of


class SeededDraws:
    """Methods of ``RandomState``, which gives each kernel a seed of its own."""

    _by_kernel: Callable[..., Any]

    def beta(self, a: Any, b: Any, size: Any = None, dtype: Any = float) -> Any:
        return self._by_kernel('beta', (a, b), size, dtype)

    def binomial(self, n: Any, p: Any, size: Any = None, dtype: Any = int) -> Any:
        return self._by_kernel('binomial', (n, p), size, dtype)

    def chisquare(self, df: Any, size: Any = None, dtype: Any = float) -> Any:
        return self._by_kernel('chisquare', (df,), size, dtype)

    def dirichlet(self, alpha: Any, size: Any = None, dtype: Any = float) -> Any:
        alpha = cupy.asarray(alpha)
        y = self._by_kernel('standard_gamma', (alpha,), (*shape_of(size), *alpha.shape), dtype)
        y /= y.sum(axis=-1, keepdims=True)
        return y

    def f(self, dfnum: Any, dfden: Any, size: Any = None, dtype: Any = float) -> Any:
        return self._by_kernel('f', (dfnum, dfden), size, dtype)

    def gamma(self, shape: Any, scale: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        shape, scale = cupy.asarray(shape), cupy.asarray(scale)
        y = self._by_kernel('standard_gamma', (shape,), common_shape(shape, scale) if size is None else size, dtype)
        y *= scale
        return y

    def standard_gamma(self, shape: Any, size: Any = None, dtype: Any = float) -> Any:
        """Return numbers of a standard gamma distribution."""
        return self._by_kernel('standard_gamma', (shape,), size, dtype)

    def geometric(self, p: Any, size: Any = None, dtype: Any = 'l') -> Any:
        return self._by_kernel('geometric', (p,), size, dtype)

    def hypergeometric(self, ngood: Any, nbad: Any, nsample: Any, size: Any = None, dtype: Any = 'l') -> Any:
        for value, name, least in ((ngood, 'ngood', 0), (nbad, 'nbad', 0), (nsample, 'nsample', 1)):
            if isinstance(value, (int, float)) and value < least:
                raise ValueError(f'{name} < {least}')
        return self._by_kernel('hypergeometric', (ngood, nbad, nsample), size, dtype)

    def logseries(self, p: Any, size: Any = None, dtype: Any = 'l') -> Any:
        p = cupy.asarray(p)
        refuse_where(p <= 0, 'p <= 0.0')
        refuse_where(p >= 1, 'p >= 1.0')
        return self._by_kernel('logseries', (p,), size, dtype)

    def negative_binomial(self, n: Any, p: Any, size: Any = None, dtype: Any = int) -> Any:
        n, p = cupy.asarray(n), cupy.asarray(p)
        refuse_where(n <= 0, 'n <= 0')
        refuse_where(p < 0, 'p < 0')
        refuse_where(p > 1, 'p > 1')
        return self.poisson(self.gamma(n, (1 - p) / p, size), dtype=dtype)

    def noncentral_chisquare(self, df: Any, nonc: Any, size: Any = None, dtype: Any = float) -> Any:
        df, nonc = cupy.asarray(df), cupy.asarray(nonc)
        refuse_where(df <= 0, 'df <= 0')
        refuse_where(nonc < 0, 'nonc < 0')
        return self._by_kernel('noncentral_chisquare', (df, nonc), size, dtype)

    def noncentral_f(self, dfnum: Any, dfden: Any, nonc: Any, size: Any = None, dtype: Any = float) -> Any:
        dfnum, dfden, nonc = cupy.asarray(dfnum), cupy.asarray(dfden), cupy.asarray(nonc)
        refuse_where(dfnum <= 0, 'dfnum <= 0')
        refuse_where(dfden <= 0, 'dfden <= 0')
        refuse_where(nonc < 0, 'nonc < 0')
        return self._by_kernel('noncentral_f', (dfnum, dfden, nonc), size, dtype)

    def poisson(self, lam: Any = 1.0, size: Any = None, dtype: Any = 'l') -> Any:
        return self._by_kernel('poisson', (lam,), size, dtype)

    def standard_t(self, df: Any, size: Any = None, dtype: Any = float) -> Any:
        return self._by_kernel('standard_t', (df,), size, dtype)

    def vonmises(self, mu: Any, kappa: Any, size: Any = None, dtype: Any = float) -> Any:
        return self._by_kernel('vonmises', (mu, kappa), size, dtype)

    def zipf(self, a: Any, size: Any = None, dtype: Any = int) -> Any:
        a = cupy.asarray(a)
        refuse_where(a <= 1.0, "'a' must be a valid float > 1.0")
        return self._by_kernel('zipf', (a,), size, dtype)
