"""What the stand-in's functions do with values that NumPy's refuse: CuPy's kernels take any, and its host looks at few.

Each call is made eagerly and recorded on good values, and then launched on bad ones.
"""

from __future__ import annotations

import re
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
#: A call with an array that is good, and then bad; what CuPy gives for the bad one. Of a tuple the first is compared.
CALLS: list[tuple[str, Any, Any, Any]] = [
    ('cp.linalg.cholesky(a)', EYE, BAD, ONLY_NAN), ('cp.linalg.cholesky(a)', [[1.0]], [[-1.0]], [[NAN]]),
    ('cp.linalg.cholesky(a)', EYES, [EYE, BAD], [EYE, ONLY_NAN]),
    ('cp.linalg.solve(a, cp.ones(2))', EYE, SINGULAR, [NAN, NAN]),
    ('cp.linalg.solve(a, cp.ones((2, 2, 1)))[0]', EYES, [EYE, SINGULAR], [[1], [1]]),
    ('cp.linalg.inv(a)', EYE, [[0.0, 0], [0, 0]], ONLY_NAN), ('cp.linalg.matrix_power(a, -1)', EYE, SINGULAR, ONLY_NAN),
    ('cp.linalg.tensorinv(a.reshape(2, 1, 2))', EYE, ONLY_NAN, [[[NAN], [NAN]]] * 2),
    ('cp.linalg.tensorsolve(a, cp.ones(2))', EYE, SINGULAR, [NAN, NAN]),
    ('cp.linalg.eigh(a)', EYES, STACK, [[2, 2], [NAN, NAN]]),
    ('cp.linalg.eig(a)[0].real', EYES, STACK, [[2, 2], [NAN, NAN]]),
    ('cp.linalg.eigvals(a).real', EYES, STACK, [[2, 2], [NAN, NAN]]),
    ('cp.linalg.eigvalsh(a)', EYES, STACK, [[2, 2], [NAN, NAN]]),
    ('cp.linalg.svd(a, compute_uv=False)', EYES, STACK, [[2, 2], [NAN, NAN]]),
    ('cp.linalg.cond(a)', EYES, STACK, [1, NAN]), ('cp.linalg.matrix_rank(a)', EYES, STACK, [2, 0]),
    ('cp.linalg.pinv(a)', EYE, ONLY_NAN, ONLY_NAN), ('cp.linalg.lstsq(a, cp.ones(2))', EYE, ONLY_NAN, [NAN, NAN]),
    ('cp.linalg.norm(a, 2)', EYE, ONLY_NAN, NAN),
    ('cp.polyfit(a, cp.ones(4), 1)', [0.0, 1, 2, 3], [NAN] * 4, [NAN, NAN]),
    ('cp.roots(a)', [1.0, 3, 2], [1.0, NAN, 1], [NAN, NAN]),
    ('cp.digitize(cp.asarray([0.5, 2.5]), a)', [0.0, 1, 2], [1.0, 0, 2], [2, 3]),
    ('cp.digitize(cp.asarray([0.5, 2.5]), a)', [0.0, 1, 2], [2.0, 1, 0], [2, 0]),
    ('cp.ravel_multi_index((a, a), (2, 3))', [0, 1], [5, -1], [5, 5]),
    ('cp.searchsorted(cp.asarray([3.0, 1, 2]), cp.asarray([2.5]), sorter=a)', [1, 2, 0], [1, 2, 9], [2]),
    ('cp.asarray([3.0, 1, 2]).searchsorted(cp.asarray([2.5]), sorter=a)', [1, 2, 0], [4, 5, 3], [2]),
    ('cp.take_along_axis(cp.arange(4.0), a, 0)', [1], [9], [1]),
    ('cp.asarray([1, -1, -1, 2, 0]) ** a', [1] * 5, [-1, -1, -2, -1, -1], [1, -1, 1, 0, 0]),
    ('cp.abs(cp.asarray([1, -1, 3])).__ipow__(a)', [1, 2, 3], [-1, -3, -1], [1, 1, 0]),
    ('3**a', [1, 2], [-1, 2], [0, 9]), ('added_at(cp, a)', [0, 1], [5, -1], [0, 0, 2]),
    ('cp.add.reduceat(cp.arange(4), a)', [0, 1], [0, 7], [3, 3]), ('put(cp, a)', [0], [-1], [0, 0, 7]),
    ('rng.exponential(a)', [1.0], [-1.0], [NAN]), ('rng.poisson(a)', [1.0], [-1.0], [-1]),
]  # fmt: skip


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


def callable_of(sim: Any, call: str) -> Callable[[Any], Any]:
    known = {'cp': sim, 'rng': sim.random.default_rng(3), 'added_at': added_at, 'put': put}
    made: Callable[[Any], Any] = eval(f'lambda a: {call}', known)
    return made


@pytest.mark.parametrize(('call', 'good', 'bad', 'wanted'), CALLS, ids=[one[0] for one in CALLS])
def test_no_launch_raises_for_its_values(sim: Any, call: str, good: Any, bad: Any, wanted: Any) -> None:
    function = callable_of(sim, call)
    assert same(function(sim.asarray(bad)), wanted), function(sim.asarray(bad))
    given = sim.asarray(good)
    with ck.capture(pieces=True) as cap:
        found = function(given)
    cap.graph.launch()
    before = (found[0] if isinstance(found, tuple) else found).get()
    given[...] = sim.asarray(bad)
    cap.graph.launch()
    assert same(found, wanted), found
    given[...] = sim.asarray(good)
    cap.graph.launch()
    if not call.startswith('rng.'):
        assert same(found, before)


#: What the host looks at before or after the work; with the error that it raises, and its words.
LOOKED_AT: list[tuple[str, Any, Any, type[Exception], str]] = [
    ('cp.average(cp.arange(2.0), weights=a)', [1.0, 1], [1.0, -1], ZeroDivisionError, 'to zero'),
    ('cp.bincount(a)', [0, 1], [0, -1], ValueError, 'must be non-negative'),
    ('cp.choose(a, cp.eye(2))', [0, 1], [0, 2], ValueError, 'choice array'),
    ('cp.histogram(a, 2)', [0.0, 1], [0.0, NAN], ValueError, 'range of .* not finite'),
    ('cp.histogram(cp.arange(2.0), a)', [0.0, 1], [1.0, 0], ValueError, 'increase'),
    ('cp.percentile(cp.arange(3.0), a)', [0.0, 50], [-1.0, -2], ValueError, r'\[0, 100\]'),
    ('cp.quantile(cp.arange(3.0), a)', [0.0, 0.5], [2.0, 3], ValueError, r'\[0, 1\]'),
    ("cp.put(cp.zeros(2), a, 1, mode='raise')", [0, 1], [0, 2], IndexError, 'indices array'),
    ("cp.ravel_multi_index((a, a), (2, 2), mode='raise')", [0, 1], [0, 2], ValueError, 'coordinates'),
    ('cp.unravel_index(a, (2, 2))', [0, 3], [0, 4], ValueError, 'entry in index array'),
]  # fmt: skip


@pytest.mark.parametrize(('call', 'good', 'bad', 'error', 'words'), LOOKED_AT, ids=[one[0] for one in LOOKED_AT])
def test_what_the_host_looks_at_raises_at_the_call(
    sim: Any, call: str, good: Any, bad: Any, error: type[Exception], words: str
) -> None:
    function = callable_of(sim, call)
    with pytest.raises(error, match=words):
        function(sim.asarray(bad))
    given = sim.asarray(good)
    with pytest.raises(ck.HostReadError), ck.capture():
        function(given)
    step = ck.graphed(function)
    for values in (good, good, good, bad, good, bad):
        if values is good:
            step(sim.asarray(values))
            continue
        with pytest.raises(error, match=words):
            step(sim.asarray(values))


def test_each_function_of_the_table_is_called() -> None:
    named = {word for call, *_ in (*CALLS, *LOOKED_AT) for word in re.findall(r'\w+', call)}
    assert set(UNCHECKED) <= named | {'power'}  # which is ``**``


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


#: What reads on the host, waits, or comes from before the guard.
IN_CAPTURES: dict[str, type[Exception]] = {
    'cp.linspace(x[0], x[3], 5)': ck.HostReadError, 'cp.gradient(x, x)': ck.HostReadError,
    "cp.linalg.norm(cp.eye(3), 'nuc')": ck.UnsupportedCallError, 'timed(x)': ck.SynchronizationError,
}  # fmt: skip


def timed(x: Any) -> Any:
    from cupyx.profiler import time_range

    with time_range('here', sync=True):
        return x * 2


@pytest.mark.parametrize('call', IN_CAPTURES)
def test_it_is_refused_and_the_capture_is_good(cp: Any, call: str) -> None:
    x = cp.arange(1.0, 7.0)
    with ck.capture() as cap:
        y = x * 2
        with pytest.raises(IN_CAPTURES[call]):
            eval(call, {'cp': cp, 'x': x, 'timed': timed})
        z = y + 1
    cap.graph.launch()
    assert z.get().tolist() == [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]
