"""``cupyx.scipy``: SciPy's functions of the same names, by a table of those that CuPy has; SciPy is imported late.

Most become one launch each. What CuPy's host reads before it knows what to do (:data:`READING`) is computed from arrays
that are read to the host, so that a capture refuses it as it refuses CuPy's.

A sparse matrix is one by its rows, which is multiplied by numbers and arrays, and summed: one launch each.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.cupy.surface import FFT, READING, READING_AN_ARGUMENT, named

from . import arrays, launches, vendor
from .functions import on_host, without_warnings
from .launches import Layout
from .runtime_calls import cupy
from .ufuncs import ufunc

#: How SciPy's and CuPy's functions call the array that they write into.
_OUTPUTS = ('output', 'out')


def scipys(module: str, name: str) -> Any:
    """Return SciPy's function; raises ImportError without SciPy."""
    try:
        return getattr(importlib.import_module(f'scipy.{module}'), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"the simulated CuPy makes cupyx.scipy.{module}.{name} of SciPy's function, and SciPy has none here "
            f'({error}). Write: pip install scipy'
        ) from error


def found(module: str, name: str) -> Any:
    """Return CuPy's function ``cupyx.scipy.{module}.{name}``."""
    function = scipys(module, name)
    if isinstance(function, np.ufunc):
        return ufunc(name, function.nin, function.nout, function)
    if module == 'fft' and name in FFT and not name.endswith(('freq', 'shift')):
        call: Callable[..., Any] = functools.partial(_transform, name)
    elif name in READING.get(module, ()):
        call = functools.partial(_read, function)
    else:
        call = functools.partial(_launch, f'cupyx_scipy_{module}_{name}', function)
    if name in READING_AN_ARGUMENT:
        call = functools.partial(_read_if_given, READING_AN_ARGUMENT[name], function, call)
    return _named(call, name, function, f'cupyx.scipy.{module}')


def _named(call: Callable[..., Any], name: str, function: Any, module: str) -> Callable[..., Any]:
    def of_scipy(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    of_scipy.__doc__ = f'See SciPy: {function.__module__}.{name}.'
    return named(of_scipy, name, inspect.signature(function), module)


def _launch(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    target = next((kwargs.pop(key) for key in _OUTPUTS if isinstance(kwargs.get(key), Layout)), None)
    if 'check_finite' in inspect.signature(function).parameters:
        kwargs.setdefault('check_finite', False)  # as in CuPy
    made = launches.launch(name, without_warnings(function), args, kwargs)
    if target is None:
        return made
    target[...] = made
    return target


def _read_if_given(name: str, function: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if inspect.signature(function).bind(*args, **kwargs).arguments.get(name) is None:
        return call(*args, **kwargs)
    return _read(function, *args, **kwargs)


def reads(*args: Any) -> None:
    """Read on the host, if nothing that is given is on the device: CuPy reads there what it has made itself."""
    if not any(launches.as_array(one) is not None for one in args):
        arrays.array(np.zeros(1)).get()


def _read(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    reads(*args, *kwargs.values())
    return uploaded(without_warnings(function)(*on_host(args), **on_host(kwargs)))


def uploaded(value: Any) -> Any:
    """Return a value with the arrays in it on the device."""
    return launches.mapped(value, lambda one: arrays.array(one) if isinstance(one, np.ndarray) else one)


def _transform(name: str, x: Any, *args: Any, plan: Any = None, **kwargs: Any) -> Any:
    """The transform of ``cupy.fft``, which has the plans; nothing is overwritten."""
    kwargs.pop('overwrite_x', None)
    return getattr(cupy.fft, name)(x, *args[:3], **kwargs)


class csr_matrix:
    """A matrix by its rows: ``csr_matrix(dense)`` or ``csr_matrix((data, indices, indptr), shape=...)``."""

    __array_priority__ = 101
    __array_ufunc__ = None
    format = 'csr'

    def __init__(self, given: Any, shape: tuple[int, int] | None = None) -> None:
        if isinstance(given, tuple) and shape is not None:
            parts = tuple(arrays.array(one, None, None) for one in given)
        else:
            host = on_host(given)
            rows, columns = np.nonzero(host)
            pointers = np.searchsorted(rows, np.arange(host.shape[0] + 1))
            parts = tuple(
                map(arrays.array, (host[rows, columns], *(one.astype(np.int32) for one in (columns, pointers))))
            )
            shape = host.shape
        self.data, self.indices, self.indptr = parts
        self.shape = (int(shape[0]), int(shape[1]))

    dtype = property(lambda self: self.data.dtype)
    nnz = property(lambda self: int(self.data.size))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated CuPy has no 'csr_matrix.{name}'")

    def get(self, stream: Any = None) -> Any:
        parts = tuple(one.get() for one in (self.data, self.indices, self.indptr))
        return scipys('sparse', 'csr_matrix')(parts, shape=self.shape)

    def toarray(self) -> Any:
        """Return the matrix with its zeros. CuPy sums duplicates first, and reads how many are left."""
        int(self.indptr[-1])
        return self._launch('toarray', lambda a: a)

    def _launch(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Launch a function of NumPy's matrix of the same elements: the host reads nothing."""
        made = lambda *given: function(_dense(self.shape, *given[:3]), *given[3:])  # noqa: E731
        return launches.launch(f'cupyx_sparse_{name}', made, (self.data, self.indices, self.indptr, *args))

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._launch('sum', lambda a: a.sum(axis, dtype, keepdims=axis is not None))

    def diagonal(self, k: int = 0) -> Any:
        return self._launch('diagonal', lambda a: a.diagonal(k))

    def __mul__(self, other: Any) -> Any:
        if not np.isscalar(other):
            return self @ other
        return csr_matrix((self.data * other, self.indices, self.indptr), self.shape)

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, Layout):
            raise NotImplementedError('the simulated CuPy multiplies a sparse matrix by an array alone')
        vendor.use(vendor.cusparse)
        return self._launch('product', np.matmul, other)

    dot = __mul__


def _is_csr(x: Any) -> bool:
    return isinstance(x, csr_matrix)


issparse = isspmatrix = isspmatrix_csr = _is_csr


def _dense(shape: tuple[int, int], data: Any, columns: Any, pointers: Any) -> NDArray[Any]:
    """NumPy's matrix, whatever the places of elements are: inside of the matrix."""
    rows = np.repeat(np.arange(shape[0]), np.clip(np.diff(pointers), 0, shape[1])[: shape[0]])[: columns.size]
    found = np.zeros(shape, data.dtype)
    np.add.at(found, (rows, columns[: rows.size] % max(shape[1], 1)), data[: rows.size])
    return found


#: Steps of :func:`eigsh` at most, where nothing is said.
_STEPS = 500


def eigsh(a: Any, k: int = 6, *, which: str = 'LM', v0: Any = None, maxiter: int | None = None, tol: float = 0,
          return_eigenvectors: bool = True) -> Any:  # fmt: skip
    """Find the ``k`` eigenvalues that are largest in magnitude, with vectors, by iteration from a drawn vector."""
    size, at_most = int(a.shape[0]), _STEPS if maxiter is None else maxiter
    if not 0 < k < size:
        raise ValueError(f'k must be between 0 and {size} (actual: {k})')
    begun = cupy.random.random((size,)).astype(a.dtype) if v0 is None else v0
    vectors = arrays.array(np.linalg.qr(np.vander(begun.get() + 2, k))[0])
    for _ in range(at_most):
        products = a @ vectors
        values = (vectors * products).sum(axis=0)
        if float(abs(products - vectors * values).max()) <= (tol or 1e-10):
            break
        vectors = arrays.array(np.linalg.qr(products.get())[0])
    order = np.argsort(values.get())
    return (values[order], vectors[:, order]) if return_eigenvectors else values[order]
