"""Answers of the cases: brought to the host, and compared.

On the host an answer is made of numbers, strings, NumPy arrays, tuples, dicts and :class:`Sparse`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import cupy as cp
import cupyx.scipy.sparse as sp
import numpy as np


class Sparse(NamedTuple):
    """A sparse matrix: its format, and its elements in a dense array."""

    format: str
    dense: Any


def arrays(answer: Any) -> Iterator[Any]:
    """The device arrays that an answer is made of."""
    if isinstance(answer, cp.ndarray):
        yield answer
    elif isinstance(answer, cp.poly1d):
        yield answer.coeffs
    elif sp.issparse(answer):
        yield from arrays(list(vars(answer).values()))
    elif isinstance(answer, (tuple, list, dict)):
        for part in answer.values() if isinstance(answer, dict) else answer:
            yield from arrays(part)


def to_host(answer: Any) -> Any:
    """A copy of an answer on the host, taken now."""
    if isinstance(answer, cp.ndarray):
        return answer.get()
    if sp.issparse(answer):
        return Sparse(answer.format, _dense(answer))
    if isinstance(answer, np.ndarray):
        return np.array(answer)
    if isinstance(answer, (tuple, list)):
        return tuple(to_host(part) for part in answer)
    if isinstance(answer, dict):
        return {to_host(key): to_host(part) for key, part in answer.items()}
    if isinstance(answer, slice):
        return ('slice', answer.start, answer.stop, answer.step)
    if isinstance(answer, cp.poly1d):
        return ('poly1d', to_host(answer.coeffs))
    if answer is None or isinstance(answer, (bool, int, float, complex, str, bytes, np.generic)):
        return answer
    raise TypeError(f'an answer of type {type(answer).__name__} can not be compared')


def _dense(matrix: Any) -> Any:
    """A sparse matrix's elements, put together on the host from its parts: no library of CUDA's is asked."""
    data = matrix.data.get()
    rows, columns = matrix.shape
    out = np.zeros((rows, columns), data.dtype)
    if matrix.format == 'dia':
        for band, offset in zip(data, matrix.offsets.get()):
            j = np.arange(max(0, offset), min(columns, rows + offset, band.size))
            out[j - offset, j] += band[j]
        return out
    if matrix.format == 'coo':
        i, j = matrix.row.get(), matrix.col.get()
    else:
        starts, j = matrix.indptr.get(), matrix.indices.get()
        i = np.repeat(np.arange(starts.size - 1), np.diff(starts))
        data, j = data[: i.size], j[: i.size]
        if matrix.format == 'csc':
            i, j = j, i
    np.add.at(out, (i, j), data)
    return out


def kind_of(answer: Any) -> str:
    """What an answer is, as far as its comparison goes."""
    kinds = ((np.ndarray, 'ndarray'), ((bool, np.bool_), 'bool'), ((int, float, complex, np.number), 'number'))
    return next((name for kind, name in kinds if isinstance(answer, kind)), type(answer).__name__)


def difference(want: Any, got: Any, values: bool = True) -> str:
    """How an answer on the host differs from the one that is wanted, '' if it doesn't.

    ``values=False``: compare structure, shapes and dtypes only. Floating point numbers may differ as much as another
    order of summation explains.
    """
    if kind_of(want) != kind_of(got):
        return f'{kind_of(got)} and not {kind_of(want)}'
    if isinstance(want, dict):
        want, got = tuple(want.items()), tuple(got.items())
    if isinstance(want, tuple):
        if len(want) != len(got):
            return f'{len(got)} parts and not {len(want)}'
        found = ((i, difference(a, b, values)) for i, (a, b) in enumerate(zip(want, got)))
        return next((f'part {i}: {text}' for i, text in found if text), '')
    if isinstance(want, (np.ndarray, int, float, complex, np.generic)):
        return _numbers(np.asarray(want), np.asarray(got), values)
    return '' if want == got or not values else f'{str(got)[:60]!r} and not {str(want)[:60]!r}'


def _numbers(want: Any, got: Any, values: bool) -> str:
    if (want.shape, want.dtype) != (got.shape, got.dtype):
        return f'{got.dtype} {got.shape} and not {want.dtype} {want.shape}'
    if not values or want.size == 0:
        return ''
    if want.dtype.kind not in 'fc':
        wrong = want != got
        return f'{int(wrong.sum())} of {want.size} elements differ' if wrong.any() else ''
    rtol = {16: 1e-2, 32: 1e-4}.get(np.finfo(want.dtype).bits, 1e-6)
    finite = np.abs(want[np.isfinite(want)])
    atol = rtol * 1e-3 * float(finite.max()) if finite.size else 0.0
    try:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        telling = [line.strip() for line in str(error).splitlines() if line.strip().startswith(('Mismatched', 'Max'))]
        return '; '.join(telling)[:200] or 'values differ'
    return ''
