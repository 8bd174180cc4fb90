"""Solvers of pylops, as functions and as objects that are stepped."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, program


@program('pylops')
def conjugate_gradients(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A positive system is solved with a fixed number of iterations."""
    operator = pylops.MatrixMult(draw.definite(40))

    def solve(y: Any) -> Any:
        return pylops.cg(operator, y, cp.zeros(40), niter=8, tol=0)[0]

    return Case(solve, lambda draw: (draw.normal(40),))


@program('pylops')
def conjugate_gradients_to_a_tolerance(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A positive system is solved until the residual is small, and the costs are returned."""
    operator = pylops.MatrixMult(draw.definite(40))
    return Case(lambda y: pylops.cg(operator, y, niter=30, tol=1e-3), lambda draw: (draw.normal(40),))


@program('pylops')
def least_squares(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A system with more rows than columns is solved by CGLS with damping."""
    operator = pylops.MatrixMult(draw.normal(50, 30))
    return Case(lambda y: pylops.cgls(operator, y, niter=6, damp=0.1, tol=0)[0], lambda draw: (draw.normal(50),))


@program('pylops')
def lsqr(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A system is solved by LSQR with few iterations."""
    operator = pylops.MatrixMult(draw.normal(50, 30))
    return Case(lambda y: pylops.lsqr(operator, y, niter=6)[0], lambda draw: (draw.normal(50),))


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
def ista(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A sparse model is found by iterated thresholds with a given step."""
    operator = pylops.MatrixMult(draw.normal(30, 50))
    options = {'niter': 8, 'eps': 0.5, 'alpha': 0.005, 'tol': 0}
    return Case(lambda y: pylops.ista(operator, y, cp.zeros(50), **options)[0], lambda draw: (draw.normal(30),))


@program('pylops')
def fista(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A sparse model is found by accelerated thresholds with a given step."""
    operator = pylops.MatrixMult(draw.normal(30, 50))
    options = {'niter': 8, 'eps': 0.5, 'alpha': 0.005, 'tol': 0}
    return Case(lambda y: pylops.fista(operator, y, cp.zeros(50), **options)[0], lambda draw: (draw.normal(30),))


@program('pylops')
def matching_pursuit(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A sparse model is found by orthogonal matching pursuit, which reads an index at each step."""
    operator = pylops.MatrixMult(draw.normal(30, 50))
    options = {'niter_outer': 3, 'niter_inner': 5, 'engine': 'pylops'}
    return Case(lambda y: pylops.omp(operator, y, **options)[0], lambda draw: (draw.normal(30),))


@program('pylops')
def reweighted(cp: Any, draw: Draw, pylops: Any) -> Case:
    """A system with outliers is solved by reweighted least squares."""
    operator = pylops.MatrixMult(draw.normal(50, 20))
    options = {'nouter': 3, 'epsR': 1e-2, 'epsI': 0, 'engine': 'pylops', 'niter': 5}
    return Case(lambda y: pylops.irls(operator, y, **options)[0], lambda draw: (draw.normal(50),))


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
