"""Code for the array API standard: by array-api-compat, and by the functions of array-api-extra."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, calls, program


@calls(program('array-api-compat'), lambda draw: (draw.normal(40, 6),))
def standardize(cp: Any, compat: Any, x: Any) -> Any:
    """Samples are standardized by the namespace of their array."""
    xp = compat.array_namespace(x)
    return (x - xp.mean(x, axis=0)) / xp.std(x, axis=0, correction=1)


@calls(program('array-api-compat'), lambda draw: (draw.definite(12), draw.normal(12)))
def linear_algebra(cp: Any, compat: Any, matrix: Any, x: Any) -> Any:
    """Norms, products, a solution and a decomposition are made as the standard names them."""
    xp = compat.array_namespace(matrix, x)
    solved = xp.linalg.solve(matrix, x[:, None])
    return (
        xp.linalg.vector_norm(x),
        xp.linalg.matrix_norm(matrix),
        xp.vecdot(x, solved[:, 0]),
        xp.matrix_transpose(matrix),
    )


@calls(program('array-api-compat'), lambda draw: (draw.normal(6, 5), draw.normal(3, 5)))
def joining(cp: Any, compat: Any, a: Any, b: Any) -> Any:
    """Arrays are joined, permuted, rolled and broadcast."""
    xp = compat.array_namespace(a, b)
    joined = xp.concat([a, b], axis=0)
    return xp.permute_dims(joined, (1, 0)), xp.roll(joined, 3, axis=0), xp.broadcast_to(a[:1], (4, a.shape[1]))


@calls(program('array-api-compat'), lambda draw: (draw.normal(60),))
def sorting(cp: Any, compat: Any, x: Any) -> Any:
    """Values are sorted, taken and searched."""
    xp = compat.array_namespace(x)
    order = xp.argsort(x, descending=True)
    return xp.take(x, order), xp.searchsorted(xp.sort(x), x), xp.argmax(x)


@calls(program('array-api-compat'), lambda draw: (draw.integers(9, 80),))
def unique(cp: Any, compat: Any, x: Any) -> Any:
    """Unique values and their counts are found, whose number is not known before."""
    xp = compat.array_namespace(x)
    found = xp.unique_counts(x)
    return xp.unique_values(x), tuple(found)


@calls(program('array-api-compat'), lambda draw: (draw.normal(128),))
def spectrum(cp: Any, compat: Any, x: Any) -> Any:
    """A power spectrum is computed by the namespace's transforms."""
    xp = compat.array_namespace(x)
    power = xp.abs(xp.fft.rfft(x)) ** 2
    return power, xp.fft.rfftfreq(x.shape[0], device=compat.device(x)), xp.fft.fftshift(power)


@calls(program('array-api-compat'), lambda draw: (draw.normal(30),))
def creation(cp: Any, compat: Any, x: Any) -> Any:
    """Arrays are made on the device of another one, and converted."""
    xp, device = compat.array_namespace(x), compat.device(x)
    ramp = xp.arange(x.shape[0], dtype=xp.float32, device=device)
    grid = xp.linspace(0, 1, 5, device=device)
    return xp.astype(x, xp.float32) * ramp, xp.cumulative_sum(x), xp.tril(grid[:, None] * grid), compat.size(x)


@program('array-api-compat')
def class_with_a_namespace(cp: Any, draw: Draw, compat: Any) -> Case:
    """A filter keeps the namespace of its arrays and a running mean, which is compared as well."""

    class Running:
        def __init__(self, start: Any) -> None:
            self.xp = compat.array_namespace(start)
            self.mean, self.count = start, 0

        def push(self, x: Any) -> Any:
            self.count += 1
            self.mean = self.mean * 0.9 + 0.1 * x
            return self.xp.clip(x - self.mean, -1.0, 1.0)

    running = Running(cp.zeros(20))
    return Case(lambda x: running.push(x), lambda draw: (draw.normal(20),), lambda: (running.mean, running.count))


@calls(program('array-api-compat'), lambda draw: (draw.normal(20),))
def conversions(cp: Any, compat: Any, x: Any) -> Any:
    """Code asks what kind of array it has, and converts it to the device where it lies."""
    if not (compat.is_array_api_obj(x) and compat.is_cupy_array(x) == (cp.__name__ == 'cupy')):
        raise TypeError('the array is of another kind')
    return compat.to_device(x, compat.device(x)) * 2


@calls(program('array-api-extra'), lambda draw: (draw.normal(30),))
def updates(cp: Any, extra: Any, x: Any) -> Any:
    """Elements are set and added by array-api-extra's at, with a slice and a mask."""
    changed = extra.at(x)[2:5].set(0.0, copy=True)
    changed = extra.at(changed)[::2].add(1.0)
    return extra.at(changed)[changed > 1].multiply(0.5)


@calls(program('array-api-extra'), lambda draw: (draw.normal(4, 30),))
def covariance(cp: Any, extra: Any, x: Any) -> Any:
    """A covariance matrix and a Kronecker product are made."""
    return (extra.cov(x), extra.kron(x[:2, :3], x[1:3, :2]))


@calls(program('array-api-extra'), lambda draw: (draw.normal(40),))
def lazy_where(cp: Any, extra: Any, x: Any) -> Any:
    """A function is applied where a condition holds, and another one elsewhere."""
    return extra.apply_where(x > 0, x, lambda part: cp.sqrt(part), lambda part: part * part)


@calls(program('array-api-extra'), lambda draw: (draw.normal(9),))
def shapes_and_padding(cp: Any, extra: Any, x: Any) -> Any:
    """An array is padded, given more dimensions and put on a diagonal."""
    return extra.pad(x, 2, constant_values=1.0), extra.create_diagonal(x), extra.expand_dims(x, axis=(0, 2))


@calls(program('array-api-extra'), lambda draw: (draw.normal(30), draw.normal(30)))
def closeness(cp: Any, extra: Any, x: Any, y: Any) -> Any:
    """Numbers are compared within a tolerance, and functions of signal theory are evaluated."""
    return (extra.isclose(x, y, atol=0.5), extra.sinc(x), extra.nunique(cp.round(x)))
