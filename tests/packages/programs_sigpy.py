"""Operators, thresholds, algorithms and apps of sigpy. Each finds its device by the arrays that it gets."""

from __future__ import annotations

from typing import Any

from tests.packages.registry import Case, Draw, calls, operators, program


def both_ways(op: Any, shape: tuple[int, ...]) -> Case:
    """An operator is applied, and its adjoint to what comes out."""

    def step(x: Any) -> Any:
        y = op * x
        return y, op.H * y

    return Case(step, lambda draw: (draw.complexes(*shape),))


operators('sigpy', both_ways, {
    'fourier': ('A centered Fourier transform is applied forward and adjoint.', (32, 24),
        lambda cp, draw, sigpy: sigpy.linop.FFT((32, 24), axes=(0, 1))),
    'wavelet': ('A wavelet transform, which sigpy makes on the host, is applied forward and adjoint.', (32, 32),
        lambda cp, draw, sigpy: sigpy.linop.Wavelet((32, 32), wave_name='db4', level=2)),
    'finite_differences': ('Finite differences along two axes are applied forward and adjoint.', (32, 24),
        lambda cp, draw, sigpy: sigpy.linop.FiniteDifference((32, 24))),
    'blocks': ('An image is cut into overlapping blocks by a kernel, and put together by the adjoint.', (32, 32),
        lambda cp, draw, sigpy: sigpy.linop.ArrayToBlocks((32, 32), (8, 8), (4, 4))),
})  # fmt: skip


@program('sigpy')
def nonuniform_fourier(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """A nonuniform Fourier transform with coordinates on the device is applied forward and adjoint."""
    coordinates = draw.uniform(60, 2, low=-8.0, high=8.0)
    return both_ways(sigpy.linop.NUFFT((16, 16), coordinates), (16, 16))


@program('sigpy')
def coils(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """A magnetic resonance model is composed of coil maps, a Fourier transform and a mask."""
    linop = sigpy.linop
    mask = (draw.uniform(32, 24) < 0.4).astype('c16')
    maps = linop.Multiply((32, 24), draw.complexes(4, 32, 24))
    transform = linop.FFT((4, 32, 24), axes=(-2, -1))
    return both_ways(linop.Multiply(transform.oshape, mask) * transform * maps, (32, 24))


@program('sigpy')
def sums_and_stacks(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """Operators are added and stacked: a multiple, a flip, a shift and a resize."""
    linop = sigpy.linop
    identity = linop.Identity((32, 24))
    moved = linop.Circshift((32, 24), (3, 5)) + 0.5 * identity
    return both_ways(linop.Vstack([moved, linop.Flip((32, 24)), 2.0 * identity], axis=0), (32, 24))


@program('sigpy')
def resampling(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """An image is taken down by slices, padded and summed."""
    linop = sigpy.linop
    down = linop.Downsample((32, 32), (2, 2))
    return both_ways(linop.Sum((20, 20), (0,)) * linop.Resize((20, 20), down.oshape) * down, (32, 32))


@program('sigpy')
def interpolation(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """Values between the points of a grid are interpolated, and gridded back by atomic additions."""
    places = draw.uniform(50, 2, low=2.0, high=13.0)

    def step(x: Any) -> Any:
        values = sigpy.interpolate(x, places, kernel='kaiser_bessel', width=3, param=4.0)
        return values, sigpy.gridding(values, places, (16, 16), kernel='kaiser_bessel', width=3, param=4.0)

    return Case(step, lambda draw: (draw.complexes(16, 16),))


@calls(program('sigpy'), lambda draw: (draw.complexes(200, dtype='c8'),))
def soft_thresholds(cp: Any, sigpy: Any, x: Any) -> Any:
    """Numbers are shrunk by sigpy's elementwise kernels, softly and hard."""
    return (sigpy.soft_thresh(0.4, x), sigpy.hard_thresh(0.4, x))


@calls(program('sigpy'), lambda draw: (draw.normal(100),))
def projections(cp: Any, sigpy: Any, x: Any) -> Any:
    """A vector is projected on the balls of the three norms."""
    thresh = sigpy.thresh
    return (thresh.l1_proj(3.0, x), thresh.l2_proj(2.0, x), thresh.linf_proj(0.7, x))


@program('sigpy')
def proximal_operators(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """Proximal operators of a norm, a distance, a box and a stack of these are applied."""
    prox = sigpy.prox
    near = prox.L2Reg((40,), 0.5, y=draw.normal(40))
    both = prox.Stack([prox.L1Reg((40,), 0.2), prox.BoxConstraint((40,), -1, 1)])
    return Case(lambda x: (near(0.3, x[:40]), both(0.3, x)), lambda draw: (draw.normal(80),))


@program('sigpy')
def largest_eigenvalue(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """The app MaxEig finds the largest eigenvalue from a random vector."""
    matrix = draw.definite(30)
    device = sigpy.get_device(matrix)

    def step(scale: Any) -> Any:
        operator = sigpy.linop.MatMul((30, 1), matrix * scale)
        return sigpy.app.MaxEig(operator, dtype='f8', device=device, max_iter=8, show_pbar=False).run()

    return Case(step, lambda draw: (draw.uniform(1, low=0.5, high=2.0),))


@program('sigpy')
def least_squares_app(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """The app LinearLeastSquares solves a damped system by conjugate gradients."""
    operator = sigpy.linop.MatMul((20, 1), draw.normal(40, 20))

    def step(y: Any) -> Any:
        return sigpy.app.LinearLeastSquares(operator, y, lamda=0.1, max_iter=6, show_pbar=False).run()

    return Case(step, lambda draw: (draw.normal(40, 1),))


@program('sigpy')
def compressed_sensing_app(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """The app LinearLeastSquares finds a sparse image by proximal gradients with a given step."""
    mask = (draw.uniform(24, 24) < 0.5).astype('c16')
    transform = sigpy.linop.FFT((24, 24))
    operator = sigpy.linop.Multiply((24, 24), mask) * transform
    sparse = sigpy.prox.L1Reg((24, 24), 0.05)

    def step(y: Any) -> Any:
        return sigpy.app.LinearLeastSquares(operator, y, proxg=sparse, alpha=0.9, max_iter=6, show_pbar=False).run()

    return Case(step, lambda draw: (draw.complexes(24, 24),))


@program('sigpy')
def constrained_app(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """The app L2ConstrainedMinimization runs a primal-dual method within a bound on the error."""
    operator = sigpy.linop.MatMul((30, 1), draw.normal(20, 30) / 8)
    sparse = sigpy.prox.L1Reg((30, 1), 1.0)

    def step(y: Any) -> Any:
        app = sigpy.app.L2ConstrainedMinimization(
            operator, y, sparse, 0.1, tau=0.5, sigma=0.5, max_iter=6, show_pbar=False
        )
        return app.run()

    return Case(step, lambda draw: (draw.normal(20, 1),))


@program('sigpy')
def stepped_conjugate_gradients(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """An object of the class ConjugateGradient is updated once at each call and keeps its vectors."""
    matrix = draw.definite(30)
    solution = cp.zeros(30)
    solver = sigpy.alg.ConjugateGradient(lambda x: matrix @ x, draw.normal(30), solution, max_iter=60)

    def step(scale: Any) -> Any:
        solver.update()
        return solution * scale

    return Case(step, lambda draw: (draw.normal(30),), lambda: (solver.iter, solver.resid, solver.p, solution))


@program('sigpy')
def stepped_gradients(cp: Any, draw: Draw, sigpy: Any) -> Case:
    """An object of the class GradientMethod with acceleration goes on from call to call."""
    matrix, solution = draw.definite(30), cp.zeros(30)
    aim = {'y': draw.normal(30)}
    solver = sigpy.alg.GradientMethod(
        lambda x: matrix @ x - aim['y'], solution, 0.1, proxg=sigpy.prox.L1Reg((30,), 0.01), accelerate=True
    )

    def step(y: Any) -> Any:
        aim['y'] = y
        solver.update()
        return solution.copy()

    return Case(step, lambda draw: (draw.normal(30),), lambda: (solver.iter, solution, aim))


@calls(program('sigpy'), lambda draw: (draw.definite(20), draw.normal(20)))
def power_method(cp: Any, sigpy: Any, matrix: Any, x: Any) -> Any:
    """A user's loop runs the class PowerMethod on a vector that is an argument."""
    method = sigpy.alg.PowerMethod(lambda v: matrix @ v, x, max_iter=5)
    while not method.done():
        method.update()
    return method.max_eig, x


@calls(program('sigpy'), lambda draw: (draw.normal(40), draw.normal(7)))
def convolution(cp: Any, sigpy: Any, data: Any, taps: Any) -> Any:
    """Data is convolved with a filter along one axis; sigpy leaves that to cuDNN where it can."""
    return sigpy.convolve(data, taps, mode='full')


@calls(program('sigpy'), lambda draw: (draw.complexes(4, 16, 16), draw.normal(16, 16)))
def root_sum_of_squares(cp: Any, sigpy: Any, images: Any, total: Any) -> Any:
    """Images of several coils are combined, and updated in place by axpy."""
    combined = sigpy.rss(images, axes=(0,))
    sigpy.util.axpy(total, 0.5, combined)
    return combined
