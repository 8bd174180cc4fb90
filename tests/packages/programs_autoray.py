"""Functions that autoray finds by the arrays, lazily traced and compiled."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, calls, program


@calls(program('autoray'), lambda draw: (draw.normal(40, 30), draw.normal(40, 30)))
def elementwise(cp: Any, autoray: Any, x: Any, y: Any) -> Any:
    """Functions are looked up by name for the arrays at hand."""
    do = autoray.do
    return do('tanh', x) * do('exp', -y) + do('where', x > 0, x, y)


@calls(program('autoray'), lambda draw: (draw.complexes(5, 12),))
def gram_schmidt(cp: Any, autoray: Any, x: Any) -> Any:
    """The example of the documentation: a modified Gram-Schmidt process for arrays of any kind."""
    do = autoray.do
    found: list[Any] = []
    for row in x:
        for other in found:
            row = row - do('tensordot', do('conj', other), row, axes=1) * other
        found.append(row / do('linalg.norm', row))
    return do('stack', tuple(found))


@calls(program('autoray'), lambda draw: (draw.normal(12, 8),))
def decompositions(cp: Any, autoray: Any, x: Any) -> Any:
    """A matrix is taken apart by QR and by singular values, and put together."""
    do = autoray.do
    q, r = do('linalg.qr', x)
    u, s, v = do('linalg.svd', r)
    return do('abs', q) @ do('abs', r), s, (u * s) @ v


@calls(program('autoray'), lambda draw: (draw.normal(30, 6),))
def numpy_namespace(cp: Any, autoray: Any, x: Any) -> Any:
    """The module autoray.numpy is used as if it were NumPy."""
    np = autoray.numpy
    centred = x - np.mean(x, axis=0)
    return np.einsum('ij,ik->jk', centred, centred), np.sum(np.sqrt(np.abs(centred)), axis=1), np.max(x)


@calls(program('autoray'), lambda draw: (draw.normal(8, 8),))
def made_like(cp: Any, autoray: Any, x: Any) -> Any:
    """New arrays are made like those given: zeros, a range and an identity."""
    do = autoray.do
    ramp = do('arange', 8, like=x)
    return x @ do('eye', 8, like=x) + do('zeros', (8, 8), like=x) + ramp, do('astype', ramp, 'float32')


@calls(program('autoray'), lambda draw: (draw.normal(9, 8), draw.normal(8, 7)))
def lazy(cp: Any, autoray: Any, x: Any, y: Any) -> Any:
    """A computation is traced lazily at each call and then carried out."""
    lazily, do = autoray.lazy, autoray.do
    a, b = lazily.array(x), lazily.array(y)
    return (do('tanh', a @ b) + do('sum', a)).compute()


@program('autoray')
def compiled(cp: Any, draw: Draw, autoray: Any) -> Case:
    """A function that autojit has traced and compiled to Python code is called."""

    @autoray.autojit(backend='python')  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        return autoray.do('tanh', x @ y) - autoray.do('sum', y, axis=0)

    return Case(lambda x, y: step(x, y), lambda draw: (draw.normal(9, 8), draw.normal(8, 7)))


@program('autoray')
def composed(cp: Any, draw: Draw, autoray: Any) -> Case:
    """A composite function is registered with a variant of its own for the backend."""

    @autoray.compose  # type: ignore[untyped-decorator]
    def softplus(x: Any) -> Any:
        return autoray.do('log1p', autoray.do('exp', x))

    softplus.register(cp.__name__, lambda x: cp.logaddexp(x, 0.0))
    return Case(lambda x: softplus(x) * 2, lambda draw: (draw.normal(50),))
