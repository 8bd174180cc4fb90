"""Draws of ``cupy.random.RandomState`` that begin with uniform or normal numbers of cuRAND."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import curand, kernels, layout
from .random_parameters import check_and_get_dtype, common_shape, cupy, dtype_of, is_scalar, refuse_where, shape_of


class ContinuousDraws:
    """Methods of ``RandomState``, which says how uniform and normal numbers are drawn."""

    _random_sample_raw: Callable[..., Any]
    _generate_normal: Callable[..., Any]
    _by_kernel: Callable[..., Any]

    _mod1_kernel = kernels.ElementwiseKernel('', 'T x', '', 'cupy_random_x_mod_1')
    _scale_kernel = kernels.ElementwiseKernel('T low, T high', 'T x', '', 'cupy_scale')
    _laplace_kernel = kernels.ElementwiseKernel('T x, T loc, T scale', 'T y', '', 'cupy_laplace_kernel')
    _gumbel_kernel = kernels.ElementwiseKernel('T x, T loc, T scale', 'T y', '', 'cupy_gumbel_kernel')
    _triangular_kernel = kernels.ElementwiseKernel('L left, M mode, R right', 'T x', '', 'cupy_triangular_kernel')
    _wald_kernel = kernels.ElementwiseKernel('T mean, T scale, T U', 'T X', '', 'cupy_wald_scale')

    # -- uniform ----------------------------------------------------------------------------------------------

    def random_sample(self, size: Any = None, dtype: Any = float) -> Any:
        """Return uniform numbers in ``[0, 1)``."""
        out = self._random_sample_raw(() if size is None else size, dtype)
        self._mod1_kernel(out)
        return out

    def rand(self, *size: int, **kwarg: Any) -> Any:
        """Return uniform numbers in ``[0, 1)``."""
        return self.random_sample(size=size, dtype=dtype_of('rand', kwarg))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        """Return uniform numbers in ``[low, high)``."""
        low, high = (v if is_scalar(v) else cupy.asarray(v, dtype) for v in (low, high))
        size = common_shape(low, high) if size is None else size
        return self._scale_kernel(low, high, self.random_sample(size=size, dtype=np.dtype(dtype)))

    def triangular(self, left: Any, mode: Any, right: Any, size: Any = None, dtype: Any = float) -> Any:
        left, mode, right = cupy.asarray(left), cupy.asarray(mode), cupy.asarray(right)
        refuse_where(left > mode, 'left > mode')
        refuse_where(mode > right, 'mode > right')
        refuse_where(left == right, 'left == right')
        size = common_shape(left, mode, right) if size is None else size
        return self._triangular_kernel(left, mode, right, self.random_sample(size=size, dtype=dtype))

    def laplace(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        loc, scale = cupy.asarray(loc, dtype), cupy.asarray(scale, dtype)
        x = self._random_sample_raw(common_shape(loc, scale) if size is None else size, dtype)
        self._laplace_kernel(x, loc, scale, x)
        return x

    def gumbel(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        loc, scale = (v if is_scalar(v) else cupy.asarray(v, dtype) for v in (loc, scale))
        x = self._random_sample_raw(common_shape(loc, scale) if size is None else size, dtype)
        self._gumbel_kernel(x, loc, scale, x)
        return x

    def logistic(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        loc, scale = cupy.asarray(loc), cupy.asarray(scale)
        size = common_shape(loc, scale) if size is None else size
        x = self._by_kernel('open_uniform', (), size, dtype)
        x = (1.0 - x) / x
        cupy.log(x, out=x)
        cupy.multiply(x, scale, out=x)
        cupy.add(x, loc, out=x)
        return x

    def pareto(self, a: Any, size: Any = None, dtype: Any = float) -> Any:
        a = cupy.asarray(a)
        x = self._random_sample_raw(a.shape if size is None else size, dtype)
        cupy.log(x, out=x)
        cupy.exp(-x / a, out=x)
        return x - 1

    def rayleigh(self, scale: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        scale = cupy.asarray(scale)
        refuse_where(scale < 0, 'scale < 0')
        x = self._random_sample_raw(scale.shape if size is None else size, dtype)
        cupy.log(x, out=x)
        cupy.multiply(x, -2.0, out=x)
        cupy.sqrt(x, out=x)
        cupy.multiply(x, scale, out=x)
        return x

    def standard_cauchy(self, size: Any = None, dtype: Any = float) -> Any:
        """Return numbers of the standard Cauchy distribution."""
        return cupy.tan(cupy.pi * (self.uniform(size=size, dtype=dtype) - 0.5))

    def standard_exponential(self, size: Any = None, dtype: Any = float) -> Any:
        """Return numbers of the standard exponential distribution."""
        x = self._random_sample_raw(() if size is None else size, dtype)
        return -cupy.log(x, out=x)

    def exponential(self, scale: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        scale = cupy.asarray(scale, dtype)
        refuse_where(scale < 0, 'scale < 0')
        x = self.standard_exponential(scale.shape if size is None else size, dtype)
        x *= scale
        return x

    def power(self, a: Any, size: Any = None, dtype: Any = float) -> Any:
        a = cupy.asarray(a)
        refuse_where(a < 0, 'a < 0')
        x = self.standard_exponential(a.shape if size is None else size, dtype)
        cupy.exp(-x, out=x)
        cupy.add(1, -x, out=x)
        cupy.power(x, 1.0 / a, out=x)
        return x

    def weibull(self, a: Any, size: Any = None, dtype: Any = float) -> Any:
        a = cupy.asarray(a)
        refuse_where(a < 0, 'a < 0')
        x = self.standard_exponential(a.shape if size is None else size, dtype)
        cupy.power(x, 1.0 / a, out=x)
        return x

    # -- normal -----------------------------------------------------------------------------------------------

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        dtype = check_and_get_dtype(dtype)
        size = common_shape(loc, scale) if size is None else size
        func = curand.generateNormal if dtype.char == 'f' else curand.generateNormalDouble
        if isinstance(scale, layout.Layout):
            x = self._generate_normal(func, size, dtype, 0.0, 1.0)
            cupy.multiply(x, scale, out=x)
            cupy.add(x, loc, out=x)
        elif isinstance(loc, layout.Layout):
            x = self._generate_normal(func, size, dtype, 0.0, scale)
            cupy.add(x, loc, out=x)
        else:
            x = self._generate_normal(func, size, dtype, loc, scale)
        return x

    def standard_normal(self, size: Any = None, dtype: Any = float) -> Any:
        """Return standard normal numbers."""
        return self.normal(size=size, dtype=dtype)

    def randn(self, *size: int, **kwarg: Any) -> Any:
        """Return standard normal numbers."""
        return self.normal(size=size, dtype=dtype_of('randn', kwarg))

    def lognormal(self, mean: Any = 0.0, sigma: Any = 1.0, size: Any = None, dtype: Any = float) -> Any:
        if any(isinstance(arg, layout.Layout) for arg in (mean, sigma)):
            x = self.normal(mean, sigma, size, dtype)
            cupy.exp(x, out=x)
            return x
        dtype = check_and_get_dtype(dtype)
        func = curand.generateLogNormal if dtype.char == 'f' else curand.generateLogNormalDouble
        return self._generate_normal(func, () if size is None else size, dtype, mean, sigma)

    def wald(self, mean: Any, scale: Any, size: Any = None, dtype: Any = float) -> Any:
        mean, scale = cupy.asarray(mean, dtype=dtype), cupy.asarray(scale, dtype=dtype)
        size = common_shape(mean, scale) if size is None else size
        x = self.normal(size=size, dtype=dtype)
        u = self.random_sample(size=size, dtype=dtype)
        return self._wald_kernel(mean, scale, u, x)

    def multivariate_normal(
        self,
        mean: Any,
        cov: Any,
        size: Any = None,
        check_valid: str = 'ignore',
        tol: float = 1e-08,
        method: str = 'cholesky',
        dtype: Any = float,
    ) -> Any:
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
        shape = (*shape_of(size), mean.shape[0])
        x = self.standard_normal(shape, dtype=dtype).reshape(-1, mean.shape[0])
        x = cupy.dot(decomposed, x.T).T
        x += mean
        return x.reshape(shape)
