"""``cupyx.scipy``: SciPy's functions of the same names, by a table of those that CuPy has; SciPy is imported late.

Most become one launch each. What CuPy's host reads before it knows what to do (:data:`READING`) is computed from arrays
that are read to the host, so that a capture refuses it as it refuses CuPy's.

Of a sparse matrix, what keeps the places of its elements, sums or a product with an array is one launch. What makes
other formats, adds, selects or multiplies two sparse matrices is SciPy's, from matrices that are read to the host:
CuPy's host reads how many elements there will be.
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

from . import arrays, launches, runtime_calls, vendor
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


class _spbase:
    """A matrix by its parts, which lie on the device."""

    __array_priority__ = 101
    __array_ufunc__ = None
    format = ''
    _parts: tuple[str, ...] = ('data', 'indices', 'indptr')
    data: Any

    def __init__(self, given: Any, shape: tuple[int, int] | None = None, **options: Any) -> None:
        parts = given if isinstance(given, tuple) and len(given) == len(self._parts) and shape is not None else ()
        if not parts or not all(isinstance(one, Layout) for one in parts):
            made = scipys('sparse', f'{self.format}_matrix')
            host = made(on_host(given), shape, **options)
            parts, shape = tuple(arrays.array(getattr(host, name)) for name in self._parts), host.shape
        vars(self).update(zip(self._parts, parts))
        assert shape is not None
        self._shape = (int(shape[0]), int(shape[1]))

    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self.data.dtype)
    nnz = property(lambda self: int(self.data.size))
    T = property(lambda self: self.transpose())

    def _all(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._parts)

    def get(self, stream: Any = None) -> Any:
        data, *places = (one.get() for one in self._all())
        parts = (data, tuple(places)) if self.format == 'coo' else (data, *places)
        return scipys('sparse', f'{self.format}_matrix')(parts, shape=self.shape)

    def _with_data(self, data: Any) -> Any:
        return type(self)((data, *self._all()[1:]), self.shape)

    def transpose(self) -> Any:
        data, one, other = self._all()
        if self.format == 'coo':
            return coo_matrix((data, other, one), self.shape[::-1])
        kind = csc_matrix if self.format == 'csr' else csr_matrix
        return kind((data, one, other), self.shape[::-1])

    def toarray(self) -> Any:
        """Return the matrix with its zeros. CuPy sums duplicates first, and reads how many are left."""
        if not isinstance(self, csr_matrix):
            return self.tocsr().toarray()
        int(self.indptr[-1])
        return self._launch('toarray', lambda a: a)

    def _launch(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Launch a function of NumPy's matrix of the same elements: the host reads nothing."""
        dense = functools.partial(_dense, self.format, self.shape)
        made = lambda *given: function(dense(*given[:3]), *given[3:])  # noqa: E731
        return launches.launch(f'cupyx_sparse_{name}', made, (*self._all(), *args))

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return self._launch('sum', lambda a: a.sum(axis, dtype, keepdims=axis is not None))

    def diagonal(self, k: int = 0) -> Any:
        return self._launch('diagonal', lambda a: a.diagonal(k))

    def multiply(self, other: Any) -> Any:
        if isinstance(other, Layout):
            raise NotImplementedError('the simulated CuPy multiplies a sparse matrix by another sparse matrix alone')
        return _by_scipy(lambda a, b: a.multiply(b), self, other)

    def __mul__(self, other: Any) -> Any:
        return self._with_data(self.data * other) if np.isscalar(other) else self @ other

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, _spbase):
            return runtime_calls.public['cupyx.cusparse'].spgemm(self, other)
        if self.format not in ('csr', 'csc'):
            return self.tocsr() @ other
        vendor.use(vendor.cusparse)
        return self._launch('product', np.matmul, other)

    def dot(self, other: Any) -> Any:
        return self * other

    def tocsr(self) -> Any:
        return _by_scipy(lambda a: a.tocsr(), self)


class csr_matrix(_spbase):
    """A matrix by its rows: ``csr_matrix(dense)`` or ``csr_matrix((data, indices, indptr), shape=...)``."""

    format = 'csr'
    indices: Any
    indptr: Any

    def __init__(self, given: Any, shape: tuple[int, int] | None = None, **options: Any) -> None:
        if isinstance(given, Layout):
            host = given.get()  # type: ignore[attr-defined]
            rows, columns = np.nonzero(host)
            pointers = np.searchsorted(rows, np.arange(host.shape[0] + 1)).astype(np.int32)
            given = tuple(arrays.array(one) for one in (host[rows, columns], columns.astype(np.int32), pointers))
            shape = host.shape
        super().__init__(given, shape, **options)

    def tocsr(self) -> Any:
        return self


class csc_matrix(_spbase):
    """A matrix by its columns."""

    format = 'csc'


class coo_matrix(_spbase):
    """A matrix by the places of its elements."""

    format = 'coo'
    _parts = ('data', 'row', 'col')


class dia_matrix(_spbase):
    """A matrix by its diagonals: ``dia_matrix((data, offsets), shape=...)``."""

    format = 'dia'
    _parts = ('data', 'offsets')

    def transpose(self) -> Any:
        return self.tocsr().transpose()

    def _launch(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        return self.tocsr()._launch(name, function, *args)


_CLASSES = {kind.format: kind for kind in (csr_matrix, csc_matrix, coo_matrix, dia_matrix)}
#: Methods, and functions of the module, that are SciPy's.
_METHODS = """
    __add__ __eq__ __ge__ __getitem__ __gt__ __le__ __lt__ __ne__ __pow__ __radd__ __rsub__ __sub__ argmax
    argmin count_nonzero max maximum mean min minimum power reshape tocoo tocsc
""".split()
SPARSE = 'block_diag bmat diags eye find hstack identity kron kronsum rand random spdiags tril triu'.split()


def _by_scipy(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    found = function(*map(on_host, args), **kwargs)
    if getattr(found, 'format', None) in ('dia', 'bsr', 'lil', 'dok'):
        found = found.tocsr()
    kind = _CLASSES.get(getattr(found, 'format', ''))
    if kind is None:
        return uploaded(np.asarray(found) if isinstance(found, np.matrix) else found)
    return kind(tuple(arrays.array(getattr(found, name)) for name in kind._parts), found.shape)


def _method(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: _by_scipy(
        lambda matrix, *given, **options: getattr(matrix, name)(*given, **options), self, *args, **kwargs
    )


def _elements(name: str) -> Callable[..., Any]:
    """A method that is one of the array of the elements, whose places stay."""
    return lambda self, *args: self._with_data(getattr(self.data, name)(*args))


for _name in _METHODS:
    setattr(_spbase, _name, named(_method(_name), _name))
for _name in ('__abs__', '__neg__', '__truediv__', 'astype', 'conj', 'copy'):
    setattr(_spbase, _name, named(_elements(_name), _name))


def sparse_names() -> dict[str, Any]:
    """Return what ``cupyx.scipy.sparse`` exports, but for the functions that SciPy has to be there for."""
    return {
        **{kind.__name__: kind for kind in _CLASSES.values()},
        'issparse': lambda x: isinstance(x, _spbase),
        'isspmatrix': lambda x: isinstance(x, _spbase),
        **{f'isspmatrix_{name}': lambda x, kind=kind: isinstance(x, kind) for name, kind in _CLASSES.items()},
    }


def sparse_function(name: str) -> Any:
    """Return a function of ``cupyx.scipy.sparse`` that is SciPy's."""
    theirs = scipys('sparse', name)

    def call(*args: Any, **kwargs: Any) -> Any:
        reads(*args)
        return _by_scipy(theirs, *args, **kwargs)

    return named(call, name, module='cupyx.scipy.sparse')


def _places(kind: str, shape: tuple[int, int], one: Any, more: Any) -> tuple[Any, Any]:
    """The rows and columns of elements, by what a format says of them; whatever that is, inside of the matrix."""
    if kind == 'coo':
        return one % shape[0], more % shape[1]
    if kind == 'csc':
        return _places('csr', shape[::-1], one, more)[::-1]
    rows = np.repeat(np.arange(shape[0]), np.clip(np.diff(more), 0, shape[1])[: shape[0]])[: one.size]
    return rows, one[: rows.size] % max(shape[1], 1)


def _dense(kind: str, shape: tuple[int, int], data: Any, one: Any, more: Any) -> NDArray[Any]:
    rows, columns = _places(kind, shape, one, more)
    found = np.zeros(shape, data.dtype)
    np.add.at(found, (rows, columns), data[: rows.size])
    return found


def spgemm(a: Any, b: Any, alpha: float = 1) -> Any:
    """Return the product of two sparse matrices: the host reads how many elements it has."""
    return _by_scipy(lambda one, other: alpha * (one @ other), a, b)


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
