"""Linear operators of pylops, applied forward and adjoint."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, operators, program


def both_ways(op: Any, size: int) -> Case:
    """An operator is applied to a vector, and its adjoint to what comes out."""

    def step(x: Any) -> Any:
        y = op @ x
        return y, op.H @ y

    return Case(step, lambda draw: (draw.normal(size),))


operators('pylops', both_ways, {
    'first_derivative': ('A centered derivative along one axis is applied forward and adjoint.', 32 * 48,
        lambda cp, draw, pylops: pylops.FirstDerivative((32, 48), axis=0, kind='centered', edge=True)),
    'second_derivative': ('A second derivative is applied forward and adjoint.', 32 * 48,
        lambda cp, draw, pylops: pylops.SecondDerivative((32, 48), axis=1)),
    'laplacian': ('A Laplacian with weights is applied forward and adjoint.', 32 * 48,
        lambda cp, draw, pylops: pylops.Laplacian((32, 48), axes=(0, 1), weights=(1, 2))),
    'gradient': ('A gradient along two axes is applied forward and adjoint.', 32 * 48,
        lambda cp, draw, pylops: pylops.Gradient((32, 48), sampling=(1.0, 0.5))),
    'convolution': ('A convolution with a wavelet is applied forward and adjoint.', 256,
        lambda cp, draw, pylops: pylops.signalprocessing.Convolve1D(256, h=draw.normal(11), offset=5)),
    'convolution_2d': ('A convolution with a small image is applied forward and adjoint.', 32 * 48,
        lambda cp, draw, pylops: pylops.signalprocessing.Convolve2D((32, 48), h=draw.normal(5, 7), offset=(2, 3))),
    'fourier': ('A real Fourier transform is applied forward and adjoint.', 256,
        lambda cp, draw, pylops: pylops.signalprocessing.FFT(256, nfft=512, sampling=0.01, real=True)),
    'fourier_2d': ('A Fourier transform of an image is applied forward and adjoint.', 32 * 48,
        lambda cp, draw, pylops: pylops.signalprocessing.FFT2D((32, 48), nffts=(32, 64))),
    'fractional_shift': ('A shift by a part of a sample is applied forward and adjoint.', 256,
        lambda cp, draw, pylops: pylops.signalprocessing.Shift(256, 3.7, real=True)),
    'fredholm': ('A Fredholm integral of the first kind is applied forward and adjoint.', 6 * 12 * 4,
        lambda cp, draw, pylops: pylops.signalprocessing.Fredholm1(draw.normal(6, 10, 12), nz=4, usematmul=True)),
    'smoothing': ('A moving average is applied forward and adjoint.', 16 * 64,
        lambda cp, draw, pylops: pylops.Smoothing1D(nsmooth=7, dims=(16, 64), axis=1)),
    'integration': ('A running integral is applied forward and adjoint.', 16 * 64,
        lambda cp, draw, pylops: pylops.CausalIntegration((16, 64), axis=1, sampling=0.1, kind='half')),
    'restriction': ('Samples at some places are taken, and put back by the adjoint.', 256,
        lambda cp, draw, pylops: pylops.Restriction(256, cp.sort(cp.asarray([3, 9, 27, 41, 80, 120, 200])))),
})  # fmt: skip


@program('pylops')
def linear_interpolation(cp: Any, draw: Draw, pylops: Any) -> Case:
    """Values between the samples are interpolated, and spread by the adjoint."""
    between = draw.uniform(40, low=1.0, high=62.0)
    operator, _between = pylops.signalprocessing.Interp(64, cp.sort(between), kind='linear')
    return both_ways(operator, 64)


@program('pylops')
def stacked(cp: Any, draw: Draw, pylops: Any) -> Case:
    """Operators stacked in both directions and along the diagonal are applied together."""
    first = pylops.MatrixMult(draw.normal(20, 30))
    second = pylops.MatrixMult(draw.normal(20, 30))
    tall, wide = pylops.VStack([first, second]), pylops.HStack([first, second])
    return both_ways(pylops.BlockDiag([tall, wide]), 30 + 60)


@program('pylops')
def algebra(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A sum, a product, a multiple and a power of operators are applied as one."""
    derivative = pylops.FirstDerivative(128)
    scale = pylops.Diagonal(draw.uniform(128, low=0.5, high=2.0))
    return both_ways(2.0 * derivative.H @ scale @ derivative + 0.1 * pylops.Identity(128) ** 2, 128)


@program('pylops')
def kronecker(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A Kronecker product of two matrices is applied forward and adjoint."""
    return both_ways(pylops.Kronecker(pylops.MatrixMult(draw.normal(8, 9)), pylops.MatrixMult(draw.normal(10, 11))), 99)


@program('pylops')
def chain_of_moves(cp: Any, draw: Draw, pylops: Any) -> Case:
    """Operators that only move samples are chained: symmetrize, roll, flip and pad."""
    chain = pylops.Pad(127, (3, 4)) @ pylops.Flip(127) @ pylops.Roll(127, shift=5) @ pylops.Symmetrize(64)
    return both_ways(chain, 64)


@program('pylops')
def counted_products(cp: Any, draw: Draw, pylops: Any) -> Case:
    """An operator counts its products, and the counts are compared as well."""
    operator = pylops.MatrixMult(draw.normal(40, 30))

    def step(x: Any) -> Any:
        return operator.rmatvec(operator.matvec(x))

    return Case(step, lambda draw: (draw.normal(30),), lambda: (operator.matvec_count, operator.rmatvec_count))


@program('pylops')
def many_columns(cp: Any, draw: Draw, pylops: Any) -> Case:
    """An operator is applied to the columns of a matrix one by one."""
    operator = pylops.FirstDerivative(64)
    return Case(lambda x: operator @ x, lambda draw: (draw.normal(64, 6),))


@program('pylops')
def operator_of_its_own(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A class of the user's derives from LinearOperator and remembers its last input."""

    class Weighted(pylops.LinearOperator):  # type: ignore[misc,name-defined]
        def __init__(self, weights: Any) -> None:
            super().__init__(dtype=weights.dtype, dims=weights.shape, dimsd=weights.shape)
            self.weights = weights
            self.last = cp.zeros_like(weights)

        def _matvec(self, x: Any) -> Any:
            self.last = x * 1
            return self.weights * x

        def _rmatvec(self, x: Any) -> Any:
            return self.weights * x + 0.5 * self.last

    operator = Weighted(draw.uniform(64, low=0.5, high=2.0))
    return Case(lambda x: operator.H @ (operator @ x), lambda draw: (draw.normal(64),), lambda: operator.last)


@program('pylops')
def remembered_products(cp: Any, draw: Draw, pylops: Any) -> Case:
    """An operator that remembers its products is applied to the same vector twice."""
    operator = pylops.MemoizeOperator(pylops.MatrixMult(draw.normal(20, 20)), max_neval=4)
    return Case(lambda x: operator.matvec(x) + operator.matvec(x), lambda draw: (draw.normal(20),))
