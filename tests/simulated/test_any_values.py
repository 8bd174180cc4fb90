"""What the stand-in's functions do with values that NumPy's refuse: CuPy's kernels take any, and its host looks at few.

Each call is made eagerly and recorded on good values, and then launched on bad ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.simulated import body
from capturekit.simulated.unchecked_functions import UNCHECKED

NAN, INF = float('nan'), float('inf')
BAD, SINGULAR, STACK = [[1.0, 2.0], [2.0, 1.0]], [[1.0, 2.0], [2.0, 4.0]], [[[2.0, 0.0], [0.0, 2.0]], [[NAN] * 2] * 2]
EYE, EYES = [[1.0, 0.0], [0.0, 1.0]], [[[1.0, 0.0], [0.0, 1.0]]] * 2
ONLY_NAN = [[NAN, NAN], [NAN, NAN]]
#: What the function is called with, good and bad; what CuPy gives for the bad ones. Of a tuple the first is compared.
CALLS: dict[str, tuple[Callable[[Any, Any], Any], Any, Any, Any]] = {
    'cholesky': (lambda cp, a: cp.linalg.cholesky(a), EYE, BAD, ONLY_NAN),
    'cholesky from a negative pivot on': (lambda cp, a: cp.linalg.cholesky(a), [[1.0]], [[-1.0]], [[NAN]]),
    'cholesky of a stack': (lambda cp, a: cp.linalg.cholesky(a), EYES, [EYE, BAD], [EYE, ONLY_NAN]),
    'solve': (lambda cp, a: cp.linalg.solve(a, cp.ones(2)), EYE, SINGULAR, [NAN, NAN]),
    'solve a stack': (lambda cp, a: cp.linalg.solve(a, cp.ones((2, 2, 1)))[0], EYES, [EYE, SINGULAR], [[1], [1]]),
    'inv': (lambda cp, a: cp.linalg.inv(a), EYE, [[0.0, 0], [0, 0]], ONLY_NAN),
    'matrix_power': (lambda cp, a: cp.linalg.matrix_power(a, -1), EYE, SINGULAR, ONLY_NAN),
    'tensorinv': (lambda cp, a: cp.linalg.tensorinv(a.reshape(2, 1, 2)), EYE, ONLY_NAN, [[[NAN], [NAN]]] * 2),
    'tensorsolve': (lambda cp, a: cp.linalg.tensorsolve(a, cp.ones(2)), EYE, SINGULAR, [NAN, NAN]),
    'eigh': (lambda cp, a: cp.linalg.eigh(a), EYES, STACK, [[2, 2], [NAN, NAN]]),
    'eig': (lambda cp, a: cp.linalg.eig(a)[0].real, EYES, STACK, [[2, 2], [NAN, NAN]]),
    'eigvals': (lambda cp, a: cp.linalg.eigvals(a).real, EYES, STACK, [[2, 2], [NAN, NAN]]),
    'eigvalsh': (lambda cp, a: cp.linalg.eigvalsh(a), EYES, STACK, [[2, 2], [NAN, NAN]]),
    'svd': (lambda cp, a: cp.linalg.svd(a, compute_uv=False), EYES, STACK, [[2, 2], [NAN, NAN]]),
    'cond': (lambda cp, a: cp.linalg.cond(a), EYES, STACK, [1, NAN]),
    'matrix_rank': (lambda cp, a: cp.linalg.matrix_rank(a), EYES, STACK, [2, 0]),
    'pinv': (lambda cp, a: cp.linalg.pinv(a), EYE, ONLY_NAN, ONLY_NAN),
    'lstsq': (lambda cp, a: cp.linalg.lstsq(a, cp.ones(2)), EYE, ONLY_NAN, [NAN, NAN]),
    'norm': (lambda cp, a: cp.linalg.norm(a, 2), EYE, ONLY_NAN, NAN),
    'polyfit': (lambda cp, a: cp.polyfit(a, cp.ones(4), 1), [0.0, 1, 2, 3], [NAN] * 4, [NAN, NAN]),
    'roots': (lambda cp, a: cp.roots(a), [1.0, 3, 2], [1.0, NAN, 1], [NAN, NAN]),
    'digitize': (lambda cp, a: cp.digitize(cp.asarray([0.5, 2.5]), a), [0.0, 1, 2], [1.0, 0, 2], [2, 3]),
    'digitize, falling': (lambda cp, a: cp.digitize(cp.asarray([0.5, 2.5]), a), [0.0, 1, 2], [2.0, 1, 0], [2, 0]),
    'ravel_multi_index': (lambda cp, a: cp.ravel_multi_index((a, a), (2, 3)), [0, 1], [5, -1], [5, 5]),
    'searchsorted': (
        lambda cp, a: cp.searchsorted(cp.asarray([3.0, 1, 2]), cp.asarray([2.5]), sorter=a), [1, 2, 0], [1, 2, 9], [2]
    ),
    'searchsorted, the method': (
        lambda cp, a: cp.asarray([3.0, 1, 2]).searchsorted(cp.asarray([2.5]), sorter=a), [1, 2, 0], [4, 5, 3], [2]
    ),
    'take_along_axis': (lambda cp, a: cp.take_along_axis(cp.arange(4.0), a, 0), [1], [9], [1]),
    'power': (lambda cp, a: cp.asarray([1, -1, -1, 2, 0]) ** a, [1] * 5, [-1, -1, -2, -1, -1], [1, -1, 1, 0, 0]),
    'power in place': (lambda cp, a: cp.abs(cp.asarray([1, -1, 3])).__ipow__(a), [1, 2, 3], [-1, -3, -1], [1, 1, 0]),
    'power of a number': (lambda cp, a: 3**a, [1, 2], [-1, 2], [0, 9]),
    'add.at': (lambda cp, a: added_at(cp, a), [0, 1], [5, -1], [0, 0, 2]),
    'add.reduceat': (lambda cp, a: cp.add.reduceat(cp.arange(4), a), [0, 1], [0, 7], [3, 3]),
    'put': (lambda cp, a: put(cp, a), [0], [-1], [0, 0, 7]),
    'Generator.exponential': (lambda cp, a: RNG[0].exponential(a), [1.0], [-1.0], [NAN]),
    'Generator.poisson': (lambda cp, a: RNG[0].poisson(a), [1.0], [-1.0], [-1]),
}  # fmt: skip
#: The generator of the stand-in that a test runs on.
RNG: list[Any] = []


def added_at(cp: Any, indices: Any) -> Any:
    target = cp.zeros(3)
    cp.add.at(target, indices, 1.0)
    return target


def put(cp: Any, indices: Any) -> Any:
    target = cp.zeros(3)
    target.put(indices, 7.0)
    return target


def same(found: Any, wanted: Any) -> bool:
    first = found[0] if isinstance(found, tuple) else found
    return bool(np.array_equal(first.get(), np.asarray(wanted, first.dtype), equal_nan=first.dtype.kind in 'fc'))


@pytest.mark.parametrize('name', CALLS)
def test_no_launch_raises_for_its_values(sim: Any, name: str) -> None:
    call, good, bad, wanted = CALLS[name]
    RNG[:] = [sim.random.default_rng(3)]
    assert same(call(sim, sim.asarray(bad)), wanted), call(sim, sim.asarray(bad))
    given = sim.asarray(good)
    with ck.capture(pieces=True) as cap:
        found = call(sim, given)
    cap.graph.launch()
    before = (found[0] if isinstance(found, tuple) else found).get()
    given[...] = sim.asarray(bad)
    cap.graph.launch()
    assert same(found, wanted), found
    given[...] = sim.asarray(good)
    cap.graph.launch()
    if not name.startswith('Generator'):
        assert same(found, before)


#: What the host looks at before or after the work; with the error that it raises, and its words.
LOOKED_AT: dict[str, tuple[Callable[[Any, Any], Any], Any, Any, type[Exception], str]] = {
    'average': (lambda cp, w: cp.average(cp.arange(2.0), weights=w), [1.0, 1], [1.0, -1], ZeroDivisionError, 'to zero'),
    'bincount': (lambda cp, a: cp.bincount(a), [0, 1], [0, -1], ValueError, 'must be non-negative'),
    'choose': (lambda cp, a: cp.choose(a, cp.eye(2)), [0, 1], [0, 2], ValueError, 'choice array'),
    'histogram': (lambda cp, a: cp.histogram(a, 2), [0.0, 1], [0.0, NAN], ValueError, 'range of .* not finite'),
    'histogram by edges': (lambda cp, a: cp.histogram(cp.arange(2.0), a), [0.0, 1], [1.0, 0], ValueError, 'increase'),
    'percentile': (lambda cp, q: cp.percentile(cp.arange(3.0), q), [0.0, 50], [-1.0, -2], ValueError, r'\[0, 100\]'),
    'quantile': (lambda cp, q: cp.quantile(cp.arange(3.0), q), [0.0, 0.5], [2.0, 3], ValueError, r'\[0, 1\]'),
    'put': (lambda cp, a: cp.put(cp.zeros(2), a, 1, mode='raise'), [0, 1], [0, 2], IndexError, 'indices array'),
    'ravel_multi_index': (
        lambda cp, a: cp.ravel_multi_index((a, a), (2, 2), mode='raise'), [0, 1], [0, 2], ValueError, 'coordinates'
    ),
    'unravel_index': (lambda cp, a: cp.unravel_index(a, (2, 2)), [0, 3], [0, 4], ValueError, 'entry in index array'),
}  # fmt: skip


@pytest.mark.parametrize('name', LOOKED_AT)
def test_what_the_host_looks_at_raises_at_the_call(sim: Any, name: str) -> None:
    call, good, bad, error, words = LOOKED_AT[name]
    with pytest.raises(error, match=words):
        call(sim, sim.asarray(bad))
    given = sim.asarray(good)
    with pytest.raises(ck.HostReadError), ck.capture():
        call(sim, given)
    step = ck.graphed(lambda a: call(sim, a))
    for values in (good, good, good, bad, good, bad):
        if values is good:
            step(sim.asarray(values))
            continue
        with pytest.raises(error, match=words):
            step(sim.asarray(values))


def test_each_function_of_the_table_is_called(sim: Any) -> None:
    called = {name.partition(' ')[0].rstrip(',') for name in CALLS} | {'percentile', 'quantile'}
    assert set(UNCHECKED) <= called


def test_percentiles_that_cupy_takes(sim: Any) -> None:
    """It looks at the largest and the smallest alone. There are no weights of cov() here."""
    with pytest.raises(NotImplementedError, match='takes no weights'):
        sim.cov(sim.eye(2), fweights=sim.asarray([2, -1]))
    assert sim.percentile(sim.arange(3.0), sim.asarray([50.0, 200])).get().tolist() == [1, 2]
    assert sim.quantile(sim.arange(3.0), sim.asarray([-1, 0.5])).get().tolist() == [0, 1]


def test_shapes_are_refused_at_the_call(sim: Any) -> None:
    square = 'must be square|at least two-dimensional'
    for name in ('cholesky', 'inv', 'eigh', 'eigvals'):
        for shape in ((2, 3), (3,)):
            with pytest.raises(np.linalg.LinAlgError, match=square):
                getattr(sim.linalg, name)(sim.ones(shape))
    with pytest.raises(ValueError, match='for multidimensional b'):
        sim.linalg.solve(sim.ones((2, 2)), sim.ones((3, 1)))


def test_nanmax_warns_and_reads(sim: Any) -> None:
    with pytest.warns(RuntimeWarning, match='All-NaN slice'):
        assert np.isnan(sim.nanmax(sim.asarray([NAN])).get())
    with pytest.raises(ck.HostReadError), ck.capture():
        sim.nanmin(sim.arange(2.0))


def test_a_body_that_raises_in_a_launch_is_named(sim: Any) -> None:
    @body('refusing')
    def refusing(x: Any) -> Any:
        if (x > 1).any():
            raise ValueError('too large')
        return x

    kernel, x = sim.ElementwiseKernel('T x', 'T y', 'y = x', 'refusing'), sim.ones(2)
    with ck.capture() as cap:
        y = kernel(x)
    cap.graph.launch()
    x += 1
    with pytest.raises(RuntimeError, match=r"body of kernel 'refusing' raised ValueError in a launch \(too large\)"):
        cap.graph.launch()
    x -= 1
    cap.graph.launch()
    assert y.get().tolist() == [1, 1]


# -- in captures: what reads on the host, waits, or comes from before the guard ------------------------------------


def numbers(cp: Any) -> Any:
    return cp.arange(1.0, 7.0)


def matrix(cp: Any) -> Any:
    m = cp.arange(12.0).reshape(3, 4)
    return m @ m.T + cp.eye(3)


def timed(cp: Any) -> Any:
    from cupyx.profiler import time_range

    with time_range('here', sync=True):
        return numbers(cp) * 2


IN_CAPTURES: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    'average': (ck.HostReadError, lambda cp: cp.average(numbers(cp), weights=numbers(cp))),
    'linspace': (ck.HostReadError, lambda cp: cp.linspace(numbers(cp)[0], numbers(cp)[3], 5)),
    'unravel_index': (ck.HostReadError, lambda cp: cp.unravel_index(cp.arange(3) * 2, (3, 4))),
    'choose': (
        ck.HostReadError, lambda cp: cp.choose(cp.arange(3) % 2, cp.stack([numbers(cp)[:3], numbers(cp)[3:]])),
    ),
    'gradient': (ck.HostReadError, lambda cp: cp.gradient(numbers(cp), numbers(cp))),
    'repeat': (ck.HostReadError, lambda cp: numbers(cp)[:3].repeat(cp.array([1, 2, 3]))),
    'nuclear norm': (ck.UnsupportedCallError, lambda cp: cp.linalg.norm(matrix(cp), 'nuc')),
    'spectral norm': (ck.UnsupportedCallError, lambda cp: cp.linalg.norm(matrix(cp), 2)),
    'time_range': (ck.SynchronizationError, timed),
}  # fmt: skip


@pytest.mark.parametrize('name', IN_CAPTURES)
def test_it_is_refused_and_the_capture_is_good(cp: Any, name: str) -> None:
    error, call = IN_CAPTURES[name]
    x = numbers(cp)
    with ck.capture() as cap:
        y = x * 2
        with pytest.raises(error):
            call(cp)
        z = y + 1
    cap.graph.launch()
    assert z.get().tolist() == [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]
