"""``cupyx.cusparse`` and the class of its matrices, as far as products go: whose stream each runs on is the point.

``spmv`` and ``spmm`` give cuSPARSE's handle the current stream, as nearly all of CuPy's functions do. ``spgemm`` does
not (CuPy 14): it works on the stream that the handle was given last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capturekit.simulated.device.constants import CONSTANTS

from . import arrays, conversions, launches, runtime, vendor
from .layout import Layout

#: The module that products are looked up in, as CuPy does at each: ``cupyx.cusparse``.
namespace: Any = None


class csr_matrix:
    """A matrix by its rows: ``csr_matrix(dense)`` or ``csr_matrix((data, indices, indptr), shape=...)``."""

    __array_priority__ = 101
    __array_ufunc__ = None

    def __init__(self, given: Any, shape: tuple[int, int] | None = None) -> None:
        if isinstance(given, Layout):
            host = given.get()  # type: ignore[attr-defined]
            rows, columns = np.nonzero(host)
            pointers = np.searchsorted(rows, np.arange(host.shape[0] + 1)).astype(np.int32)
            given = tuple(conversions.array(one) for one in (host[rows, columns], columns.astype(np.int32), pointers))
            shape = host.shape
        self.data, self.indices, self.indptr = given
        assert shape is not None
        self._shape = (int(shape[0]), int(shape[1]))

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def nnz(self) -> int:
        return int(self.data.size)

    def toarray(self) -> Any:
        """Return the matrix with its zeros. CuPy sums duplicates first, and reads how many are left."""
        int(self.indptr[-1])
        found = arrays.ndarray(self.shape, self.dtype)
        launches.mutate('cusparseSparseToDense', _fill, found, (self.data, self.indices, self.indptr), rehearse=False)
        return found

    def __matmul__(self, other: Any) -> Any:
        return namespace.spgemm(self, other) if isinstance(other, csr_matrix) else namespace.spmv(self, other)

    dot = __mul__ = __matmul__


def _fill(out: NDArray[Any], data: Any, indices: Any, indptr: Any) -> None:
    rows = np.repeat(np.arange(out.shape[0]), np.clip(np.diff(indptr), 0, out.shape[1])[: out.shape[0]])
    count = min(rows.size, data.size)
    out[...] = 0
    np.add.at(out, (rows[:count], indices[:count] % max(out.shape[1], 1)), data[:count])


def _dense(shape: tuple[int, int], data: Any, indices: Any, indptr: Any) -> NDArray[Any]:
    found = np.zeros(shape, data.dtype)
    _fill(found, data, indices, indptr)
    return found


def spmv(a: csr_matrix, x: Any, y: Any = None, alpha: float = 1, beta: float = 0, transa: bool = False) -> Any:
    """Return the product of a matrix and a vector, or an array of them, on the current stream."""
    vendor.use(vendor.cusparse)
    shape = a.shape

    def product(data: Any, indices: Any, indptr: Any, v: Any) -> Any:
        return alpha * (_dense(shape, data, indices, indptr) @ v)

    return launches.launch('cusparseSpMV', product, (a.data, a.indices, a.indptr, x))


spmm = spmv


def spgemm(a: csr_matrix, b: csr_matrix, alpha: float = 1) -> csr_matrix:
    """Return the product of two sparse matrices, on the stream that the handle was given last.

    How many elements it has the host learns from that stream.
    """
    shape = (a.shape[0], b.shape[1])
    count = arrays.ndarray((1,), np.int64)
    given = (a.data, a.indices, a.indptr, b.data, b.indices, b.indptr)

    def product(*parts: Any) -> NDArray[Any]:
        found: NDArray[Any] = alpha * (_dense(a.shape, *parts[:3]) @ _dense(b.shape, *parts[3:]))
        return found

    def counted(out: NDArray[Any], *parts: Any) -> None:
        out[0] = np.count_nonzero(product(*parts))

    def filled(number: int, out: NDArray[Any], *parts: Any) -> None:
        found = product(*parts)
        rows, columns = np.nonzero(found)
        pointers = np.searchsorted(rows, np.arange(shape[0] + 1))
        values = (found[rows, columns], columns, pointers)[number]
        out[...] = np.resize(values, out.shape)

    handle = vendor.handle_of(vendor.cusparse)
    vendor.cusparse.spGEMM_workEstimation(handle)
    vendor.cusparse.spGEMM_compute(handle)
    with vendor.stream_of(vendor.cusparse) as stream:
        launches.mutate('cusparseSpGEMM_compute', counted, count, given, rehearse=False)
    told = np.empty(1, np.int64)
    runtime.memcpyAsync(told.ctypes.data, count.data.ptr, told.nbytes, CONSTANTS['memcpyDeviceToHost'], stream)
    nnz = int(told[0])
    made = (
        arrays.ndarray((nnz,), np.result_type(a.dtype, b.dtype)),
        arrays.ndarray((nnz,), np.int32),
        arrays.ndarray((shape[0] + 1,), np.int32),
    )
    vendor.cusparse.spGEMM_copy(handle)
    with vendor.stream_of(vendor.cusparse):
        for number, array in enumerate(made):
            launches.mutate('cusparseSpGEMM_copy', lambda *all, n=number: filled(n, *all), array, given, rehearse=False)
    return csr_matrix(made, shape)
