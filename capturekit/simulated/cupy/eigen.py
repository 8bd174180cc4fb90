"""``cupyx.scipy.sparse.linalg.eigsh``: the host reads a number at each step, and decides by it whether to go on."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import conversions
from .csr import csr_matrix

#: The module that random numbers are drawn from: ``cupy.random``.
random: Any = None
_STEPS = 500


def eigsh(a: Any, k: int = 6, *, which: str = 'LM', v0: Any = None, maxiter: int | None = None, tol: float = 0,
          return_eigenvectors: bool = True) -> Any:  # fmt: skip
    """Find the ``k`` eigenvalues that are largest in magnitude, with vectors, by iteration from a drawn vector."""
    size, at_most = int(a.shape[0]), _STEPS if maxiter is None else maxiter
    if not 0 < k < size:
        raise ValueError(f'k must be between 0 and {size} (actual: {k})')
    begun = random.random((size,)).astype(a.dtype) if v0 is None else v0
    vectors = conversions.array(np.linalg.qr(np.vander(begun.get() + 2, k))[0])
    for _ in range(at_most):
        products = _product(a, vectors)
        values = (vectors * products).sum(axis=0)
        if float(abs(products - vectors * values).max()) <= (tol or 1e-10):
            break
        vectors = conversions.array(np.linalg.qr(products.get())[0])
    order = np.argsort(values.get())
    return (values[order], vectors[:, order]) if return_eigenvectors else values[order]


def _product(a: Any, vectors: Any) -> Any:
    return a @ vectors if isinstance(a, csr_matrix) else a.dot(vectors)
