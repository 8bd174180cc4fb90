"""Linear operators of pylops, applied forward and adjoint, and solvers: functions, and objects that are stepped."""

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


# -- solvers --------------------------------------------------------------------------------------------------------


def solver(solve: Any, matrix: Any, *start: Any, **options: Any) -> Any:
    """A function of the right side of a system, which gives the solution alone."""
    return lambda y: solve(matrix, y, *start, **options)[0]


def solved(solve: Any, size: int) -> Case:
    return Case(solve, lambda draw: (draw.normal(size),))


THRESHOLDS = {'niter': 8, 'eps': 0.5, 'alpha': 0.005, 'tol': 0}
operators('pylops', solved, {
    'conjugate_gradients': ('A positive system is solved with a fixed number of iterations.', 40,
        lambda cp, draw, pl: solver(pl.cg, pl.MatrixMult(draw.definite(40)), cp.zeros(40), niter=8, tol=0)),
    'least_squares': ('A system with more rows than columns is solved by CGLS with damping.', 50,
        lambda cp, draw, pl: solver(pl.cgls, pl.MatrixMult(draw.normal(50, 30)), niter=6, damp=0.1, tol=0)),
    'lsqr': ('A system is solved by LSQR with few iterations.', 50,
        lambda cp, draw, pl: solver(pl.lsqr, pl.MatrixMult(draw.normal(50, 30)), niter=6)),
    'ista': ('A sparse model is found by iterated thresholds with a given step.', 30,
        lambda cp, draw, pl: solver(pl.ista, pl.MatrixMult(draw.normal(30, 50)), cp.zeros(50), **THRESHOLDS)),
    'fista': ('A sparse model is found by accelerated thresholds with a given step.', 30,
        lambda cp, draw, pl: solver(pl.fista, pl.MatrixMult(draw.normal(30, 50)), cp.zeros(50), **THRESHOLDS)),
    'matching_pursuit': ('A sparse model is found by orthogonal matching pursuit, which reads an index at each step.',
        30, lambda cp, draw, pl: solver(
            pl.omp, pl.MatrixMult(draw.normal(30, 50)), niter_outer=3, niter_inner=5, engine='pylops')),
    'reweighted': ('A system with outliers is solved by reweighted least squares.', 50,
        lambda cp, draw, pl: solver(
            pl.irls, pl.MatrixMult(draw.normal(50, 20)), nouter=3, epsR=1e-2, epsI=0, engine='pylops', niter=5)),
})  # fmt: skip


@program('pylops')
def conjugate_gradients_to_a_tolerance(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A positive system is solved until the residual is small, and the costs are returned."""
    operator = pylops.MatrixMult(draw.definite(40))
    return Case(lambda y: pylops.cg(operator, y, niter=30, tol=1e-3), lambda draw: (draw.normal(40),))


@program('pylops')
def regularized(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A signal is found from some of its samples, with a smooth second derivative."""
    samples = pylops.Restriction(64, cp.arange(0, 64, 3))
    smooth = pylops.SecondDerivative(64)
    options = {'epsRs': [0.3], 'engine': 'pylops', 'niter': 6}
    invert = pylops.optimization.leastsquares.regularized_inversion
    return Case(lambda y: invert(samples, y, [smooth], **options)[0], lambda draw: (draw.normal(22),))


@program('pylops')
def normal_equations(cp: Any, draw: Draw, pylops: Any) -> Case:
    """The normal equations of a convolution are solved by conjugate gradients."""
    blur = pylops.signalprocessing.Convolve1D(64, h=draw.normal(7), offset=3)
    options = {'epsI': 0.1, 'engine': 'pylops', 'niter': 6}
    invert = pylops.optimization.leastsquares.normal_equations_inversion
    return Case(lambda y: invert(blur, y, [], **options)[0], lambda draw: (draw.normal(64),))


@program('pylops')
def split_bregman(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A blocky signal is found from a noisy one by split Bregman iterations."""
    plain, jumps = pylops.Identity(64), pylops.FirstDerivative(64, kind='backward')
    options = {'niter_outer': 3, 'niter_inner': 2, 'mu': 1.0, 'epsRL1s': [0.5], 'engine': 'pylops', 'niter': 4}
    solve = pylops.optimization.sparsity.splitbregman
    return Case(lambda y: solve(plain, y, [jumps], **options)[0], lambda draw: (draw.normal(64),))


@program('pylops')
def largest_eigenvalue(cp: Any, draw: Draw, pylops: Any) -> Case:
    """The largest eigenvalue is found by power iterations from a random vector."""
    operator = pylops.MatrixMult(draw.definite(30))
    find = pylops.optimization.eigs.power_iteration
    options = {'niter': 6, 'tol': 0, 'dtype': 'float64', 'backend': cp.__name__}
    return Case(lambda scale: find(operator * scale, **options)[:2], lambda draw: (2.0,))


@program('pylops')
def stepped_solver(cp: Any, draw: Draw, pylops: Any) -> Case:
    """An object of the class CG does one more iteration at each call, and keeps its counts and costs."""
    solver = pylops.optimization.cls_basic.CG(pylops.MatrixMult(draw.definite(40)))
    start = solver.setup(y=draw.normal(40), x0=cp.zeros(40), niter=60, tol=0)

    def step(push: Any) -> Any:
        return solver.step(start + push)

    return Case(step, lambda draw: (draw.normal(40),), lambda: (solver.iiter, solver.r, solver.c, solver.cost))


@program('pylops')
def deconvolution_by_hand(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A descent written by the user goes on from call to call with an operator's gradient."""
    blur = pylops.signalprocessing.Convolve1D(128, h=cp.asarray([0.25, 0.5, 0.25]), offset=1)
    found = {'model': cp.zeros(128), 'steps': 0}

    def step(y: Any) -> Any:
        residual = blur @ found['model'] - y
        found['model'] = found['model'] - 0.5 * (blur.H @ residual)
        found['steps'] += 1
        return cp.linalg.norm(residual)

    return Case(step, lambda draw: (draw.normal(128),), lambda: found)
