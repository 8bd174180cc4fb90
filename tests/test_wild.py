"""Programs written without capture in mind (``samples/wild``): right against NumPy, and graphed equal to eager."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import capturekit as ck
from tests.benchmarks import wild
from tests.command import started
from tests.test_samples import run_sample

Array = NDArray[Any]
Load = Callable[[str], Any]

#: Each program's n and steps in these tests.
TINY = {'kmeans': (200, 40), 'conjugate_gradient': (32, 10), 'kalman': (3, 40), 'fdtd': (16, 60), 'mlp': (4, 9)}


@pytest.fixture
def load(sim: Any) -> Iterator[Load]:
    """Imports a program on the simulated device of this test."""
    with wild.wild_modules() as load:
        yield load


def on_host(results: dict[str, Any]) -> dict[str, Array]:
    return {name: array.get() for name, array in results.items()}


def test_every_program_is_here() -> None:
    assert TINY.keys() == set(wild.PROGRAMS)
    assert {path.stem for path in wild.WILD.glob('*.py')} == TINY.keys() | {'side_by_side'}


# -- eagerly, against NumPy ---------------------------------------------------------------------------------------


def lloyd(points: Array, centers: Array, tolerance: float, max_iter: int) -> tuple[Array, Array, int]:
    """K-means, one cluster after the other."""
    centers = centers.copy()
    labels = np.zeros(len(points), int)
    for iteration in range(1, max_iter + 1):
        labels = np.array([np.argmin([np.sum((point - center) ** 2) for center in centers]) for point in points])
        before = centers.copy()
        for k in set(labels.tolist()):
            centers[k] = points[labels == k].mean(axis=0)
        if max(np.linalg.norm(centers - before, axis=1)) < tolerance:
            return centers, labels, iteration
    return centers, labels, max_iter


def test_kmeans(load: Load) -> None:
    program = load('kmeans')
    n, steps = TINY['kmeans']
    points = program.blobs(n).get()
    centers, labels, iterations = lloyd(points, points[: program.CLUSTERS], program.TOLERANCE, steps)
    assert 3 < iterations < steps
    timed = load('side_by_side').Timed(program.step)
    found = on_host(program.run(timed, n, steps))
    assert timed.calls == iterations
    np.testing.assert_allclose(found['centers'], centers, rtol=1e-9)
    assert np.array_equal(found['labels'], labels)
    assert found['inertia'] == pytest.approx(((points - centers[labels]) ** 2).sum())


def test_kmeans_with_empty_clusters(load: Load) -> None:
    program = load('kmeans')
    points = program.blobs(60)
    start = points[: program.CLUSTERS].copy()
    start[[3, 17]] = 1e3
    centers, labels = program.kmeans(points, start, 4)
    want, want_labels, _ = lloyd(points.get(), start.get(), program.TOLERANCE, 4)
    np.testing.assert_allclose(centers.get(), want, rtol=1e-9)
    assert np.array_equal(labels.get(), want_labels)
    assert np.all(centers.get()[[3, 17]] == 1e3)


def test_conjugate_gradient(load: Load) -> None:
    program = load('conjugate_gradient')
    n, steps = TINY['conjugate_gradient']
    line = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    matrix = np.kron(line, np.eye(n)) + np.kron(np.eye(n), line)
    want = np.linalg.solve(matrix, program.charges(n).get().ravel()).reshape(n, n)
    timed = load('side_by_side').Timed(program.step)
    found = on_host(program.run(timed, n, steps))
    assert 1 < timed.calls < steps  # it converged
    np.testing.assert_allclose(found['x'], want, rtol=1e-6, atol=1e-8)


def filtered(zs: Array, dt: float) -> tuple[Array, Array]:
    """The states and last covariance of one track, by the textbook."""
    F = np.eye(4) + dt * np.eye(4, k=2)
    H = np.eye(2, 4)
    Q = 0.05 * np.diag([dt**2, dt**2, 1, 1])
    x, P = np.zeros(4), np.eye(4)
    states = []
    for z in zs:
        x, P = F @ x, F @ P @ F.T + Q
        if not np.isnan(z).any():
            gain = np.linalg.solve(H @ P @ H.T + 0.25 * np.eye(2), H @ P).T
            x, P = x + gain @ (z - H @ x), P - gain @ H @ P
        states.append(x)
    return np.array(states), P


@pytest.mark.parametrize('form', ['function', 'class', 'graphed class'])
def test_kalman(load: Load, form: str) -> None:
    program = load('kalman')
    n, steps = TINY['kalman']
    zs = program.measurements(n, steps).get()
    assert 0 < np.isnan(zs).sum() < zs.size / 2
    if form == 'function':
        found = on_host(program.run(program.step, n, steps))
    elif form == 'class':
        found = on_host(program.run_filter(program.KalmanFilter, n, steps))
    else:
        found = on_host(program.run_filter(program.GraphedFilter, n, steps))
        program.GraphedFilter.update.clear()
    for track in range(n):
        states, P = filtered(zs[:, track], program.DT)
        np.testing.assert_allclose(found['history'][:, track], states, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found['P'][track], P, rtol=1e-9, atol=1e-12)


def yee(side: int, steps: int, eps: Array, courant: float) -> tuple[Array, Array, Array]:
    """The fields after some steps, cell by cell."""
    ez, hx, hy = np.zeros((side, side)), np.zeros((side, side - 1)), np.zeros((side - 1, side))
    mur = (courant - 1) / (courant + 1)
    inner, last = range(1, side - 1), side - 1
    for t in range(steps):
        for i in range(side):
            for j in range(side - 1):
                hx[i, j] -= courant * (ez[i, j + 1] - ez[i, j])
                hy[j, i] += courant * (ez[j + 1, i] - ez[j, i])
        old = ez.copy()
        for i in inner:
            for j in inner:
                ez[i, j] += courant / eps[i, j] * (hy[i, j] - hy[i - 1, j] - hx[i, j] + hx[i, j - 1])
        ez[side // 2, side // 4] += np.exp(-(((t - 30) / 10) ** 2))
        for edge, beside in ((0, 1), (last, last - 1)):
            for j in range(side):
                ez[edge, j] = old[beside, j] + mur * (ez[beside, j] - old[edge, j])
        for edge, beside in ((0, 1), (last, last - 1)):
            for i in range(side):
                ez[i, edge] = old[i, beside] + mur * (ez[i, beside] - old[i, edge])
    return ez, hx, hy


def test_fdtd(load: Load) -> None:
    program = load('fdtd')
    n, steps = TINY['fdtd']
    found = on_host(program.run(program.step, n, steps))
    assert found['t'] == steps
    for name, want in zip(('ez', 'hx', 'hy'), yee(n, steps, program.glass(n).get(), program.COURANT)):
        assert abs(want).max() > 0.01
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5 * abs(want).max())


def trained(program: Any, masks: Callable[[int], Array], n: int, steps: int) -> tuple[dict[str, Array], list[float]]:
    """Parameters and losses after some steps in double precision, sample by sample."""
    params, _ = program.initial()
    weights: dict[str, Array] = {key: value.get().astype('f8') for key, value in params.items()}
    velocity = {key: np.zeros_like(value) for key, value in weights.items()}
    x, y = (array.get().astype('f8') for array in program.data(n))
    losses = []
    for step in range(steps):
        keep = masks(step) >= 0.5
        grads = {key: np.zeros_like(value) for key, value in weights.items()}
        loss = 0.0
        for k in range(n):
            at = (step * n + k) % len(x)
            before = x[at] @ weights['W1'] + weights['b1']
            hidden = np.where(keep[k] & (before > 0), before, 0) * 2
            diff = hidden @ weights['W2'] + weights['b2'] - y[at]
            loss += (diff**2).sum() / (n * diff.size)
            out = 2 * diff / (n * diff.size)
            inner = np.where(keep[k] & (before > 0), weights['W2'] @ out, 0) * 2
            grads['W2'] += np.outer(hidden, out)
            grads['b2'] += out
            grads['W1'] += np.outer(x[at], inner)
            grads['b1'] += inner
        for key in weights:
            velocity[key] = 0.9 * velocity[key] - 0.01 * grads[key]
            weights[key] = weights[key] + velocity[key]
        losses.append(loss)
    return weights, losses


@pytest.mark.parametrize('generator', [False, True])
def test_mlp(load: Load, generator: bool) -> None:
    program = load('mlp')
    n, steps = TINY['mlp'][0], program.BATCHES + 2  # once through the data, and further
    shape = (n, program.HIDDEN)
    # A RandomState's numbers are the device's own: a second one tells them. A Generator's are NumPy's in the stand-in.
    legacy, modern = program.cp.random.RandomState(2), np.random.default_rng(2)

    def masks(_step: int) -> Array:
        return modern.random(shape, dtype=np.float32) if generator else legacy.random_sample(shape).get()

    want, losses = trained(program, masks, n, steps)
    found = on_host(program.run(program.step, n, steps, generator))
    np.testing.assert_allclose(found.pop('losses'), losses, rtol=1e-4)
    assert found.keys() == want.keys()
    for key in want:
        np.testing.assert_allclose(found[key], want[key], rtol=1e-3, atol=1e-5)


# -- graphed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('sim', [0, pytest.param(1, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize(('name', 'options'), [*((name, {}) for name in TINY), ('mlp', {'generator': True})])
def test_graphed_equals_eager(load: Load, name: str, options: dict[str, bool]) -> None:
    program, beside = load(name), load('side_by_side')
    graphed = ck.graphed(program.step)
    eager, launched = beside.Timed(program.step), beside.Timed(graphed)
    want = program.run(eager, *TINY[name], **options)
    for _ in range(2):  # a second time with what the first one recorded
        launched.calls = 0
        found = program.run(launched, *TINY[name], **options)
        assert launched.calls == eager.calls
        assert beside.largest_error(found, want) <= beside.tolerance(want)
    assert graphed.variants
    graphed.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    'command', [*(f'{name} --n {n} --steps {steps}' for name, (n, steps) in TINY.items()), 'mlp --generator', 'fdtd']
)
def test_script(command: str) -> None:
    name, *args = command.split()
    # What is logged comes to standard error in a process of its own alone.
    where, times, *rest = run_sample(Path(wild.WILD, f'{name}.py'), *args, said=[], way=started)
    assert re.fullmatch(r'on the simulated device: n = \d+, (\d+) calls eagerly, \1 graphed', where)
    assert re.fullmatch(r'per call: eager [\d.]+ us, graphed [\d.]+ us, [\d.]+ times as fast', times)
    assert re.fullmatch(r'\w+, variant 0: \w+, \d+ calls, \d+ launches, \d+ seams.*', rest[0])
    assert any(re.fullmatch(r'largest error against eager: [\d.e-]+', line) for line in rest)
    if name == 'kalman':
        assert any(line.startswith('GraphedFilter.update, variant 0: recorded, ') for line in rest)


def test_a_difference_is_noticed(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    """The programs would say so if a graphed run came out otherwise."""
    program, beside = load('fdtd'), load('side_by_side')

    def run(step: Any, n: int, steps: int) -> Any:
        found = program.run(step, n, steps)
        found['ez'] *= 1 + 1e-3 * (step.function is not program.step)
        return found

    with pytest.raises(SystemExit, match='the graphed run differs from the eager run'):
        beside.compare(run, program.step, *TINY['fdtd'])
    assert 'largest error against eager: 0.001' in capsys.readouterr().out
