"""Code for the array API standard: by array-api-compat, and by the functions of array-api-extra."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, program


@program('array-api-compat')
def standardize(cp: Any, draw: Draw, compat: Any) -> Case:
    """Samples are standardized by the namespace of their array."""

    def step(x: Any) -> Any:
        xp = compat.array_namespace(x)
        return (x - xp.mean(x, axis=0)) / xp.std(x, axis=0, correction=1)

    return Case(step, lambda draw: (draw.normal(40, 6),))


@program('array-api-compat')
def linear_algebra(cp: Any, draw: Draw, compat: Any) -> Case:
    """Norms, products, a solution and a decomposition are made as the standard names them."""

    def step(matrix: Any, x: Any) -> Any:
        xp = compat.array_namespace(matrix, x)
        solved = xp.linalg.solve(matrix, x[:, None])
        return (
            xp.linalg.vector_norm(x),
            xp.linalg.matrix_norm(matrix),
            xp.vecdot(x, solved[:, 0]),
            xp.matrix_transpose(matrix),
        )

    return Case(step, lambda draw: (draw.definite(12), draw.normal(12)))


@program('array-api-compat')
def joining(cp: Any, draw: Draw, compat: Any) -> Case:
    """Arrays are joined, permuted, rolled and broadcast."""

    def step(a: Any, b: Any) -> Any:
        xp = compat.array_namespace(a, b)
        joined = xp.concat([a, b], axis=0)
        return xp.permute_dims(joined, (1, 0)), xp.roll(joined, 3, axis=0), xp.broadcast_to(a[:1], (4, a.shape[1]))

    return Case(step, lambda draw: (draw.normal(6, 5), draw.normal(3, 5)))


@program('array-api-compat')
def sorting(cp: Any, draw: Draw, compat: Any) -> Case:
    """Values are sorted, taken and searched."""

    def step(x: Any) -> Any:
        xp = compat.array_namespace(x)
        order = xp.argsort(x, descending=True)
        return xp.take(x, order), xp.searchsorted(xp.sort(x), x), xp.argmax(x)

    return Case(step, lambda draw: (draw.normal(60),))


@program('array-api-compat')
def unique(cp: Any, draw: Draw, compat: Any) -> Case:
    """Unique values and their counts are found, whose number is not known before."""

    def step(x: Any) -> Any:
        xp = compat.array_namespace(x)
        found = xp.unique_counts(x)
        return xp.unique_values(x), tuple(found)

    return Case(step, lambda draw: (draw.integers(9, 80),))


@program('array-api-compat')
def spectrum(cp: Any, draw: Draw, compat: Any) -> Case:
    """A power spectrum is computed by the namespace's transforms."""

    def step(x: Any) -> Any:
        xp = compat.array_namespace(x)
        power = xp.abs(xp.fft.rfft(x)) ** 2
        return power, xp.fft.rfftfreq(x.shape[0], device=compat.device(x)), xp.fft.fftshift(power)

    return Case(step, lambda draw: (draw.normal(128),))


@program('array-api-compat')
def creation(cp: Any, draw: Draw, compat: Any) -> Case:
    """Arrays are made on the device of another one, and converted."""

    def step(x: Any) -> Any:
        xp, device = compat.array_namespace(x), compat.device(x)
        ramp = xp.arange(x.shape[0], dtype=xp.float32, device=device)
        grid = xp.linspace(0, 1, 5, device=device)
        return xp.astype(x, xp.float32) * ramp, xp.cumulative_sum(x), xp.tril(grid[:, None] * grid), compat.size(x)

    return Case(step, lambda draw: (draw.normal(30),))


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


@program('array-api-compat')
def conversions(cp: Any, draw: Draw, compat: Any) -> Case:
    """Code asks what kind of array it has, and converts it to the device where it lies."""

    def step(x: Any) -> Any:
        if not (compat.is_array_api_obj(x) and compat.is_cupy_array(x) == (cp.__name__ == 'cupy')):
            raise TypeError('the array is of another kind')
        return compat.to_device(x, compat.device(x)) * 2

    return Case(step, lambda draw: (draw.normal(20),))


@program('array-api-extra')
def updates(cp: Any, draw: Draw, extra: Any) -> Case:
    """Elements are set and added by array-api-extra's at, with a slice and a mask."""

    def step(x: Any) -> Any:
        changed = extra.at(x)[2:5].set(0.0, copy=True)
        changed = extra.at(changed)[::2].add(1.0)
        return extra.at(changed)[changed > 1].multiply(0.5)

    return Case(step, lambda draw: (draw.normal(30),))


@program('array-api-extra')
def covariance(cp: Any, draw: Draw, extra: Any) -> Case:
    """A covariance matrix and a Kronecker product are made."""
    return Case(lambda x: (extra.cov(x), extra.kron(x[:2, :3], x[1:3, :2])), lambda draw: (draw.normal(4, 30),))


@program('array-api-extra')
def lazy_where(cp: Any, draw: Draw, extra: Any) -> Case:
    """A function is applied where a condition holds, and another one elsewhere."""

    def step(x: Any) -> Any:
        return extra.apply_where(x > 0, x, lambda part: cp.sqrt(part), lambda part: part * part)

    return Case(step, lambda draw: (draw.normal(40),))


@program('array-api-extra')
def shapes_and_padding(cp: Any, draw: Draw, extra: Any) -> Case:
    """An array is padded, given more dimensions and put on a diagonal."""

    def step(x: Any) -> Any:
        return extra.pad(x, 2, constant_values=1.0), extra.create_diagonal(x), extra.expand_dims(x, axis=(0, 2))

    return Case(step, lambda draw: (draw.normal(9),))


@program('array-api-extra')
def closeness(cp: Any, draw: Draw, extra: Any) -> Case:
    """Numbers are compared within a tolerance, and functions of signal theory are evaluated."""
    return Case(
        lambda x, y: (extra.isclose(x, y, atol=0.5), extra.sinc(x), extra.nunique(cp.round(x))),
        lambda draw: (draw.normal(30), draw.normal(30)),
    )
