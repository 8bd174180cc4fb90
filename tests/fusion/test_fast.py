"""``fuse='fast'``: more is fused, and the first launch lets numbers differ as far as rounding goes, and no further."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.model.errors import UpdateError
from tests.examples import examples
from tests.fusion.compared import SAME


def softmax(cp: Any, x: Any) -> Any:
    e = cp.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def numbers(shape: tuple[int, ...], low: float = -3, high: float = 3, dtype: str = 'f4') -> Any:
    return np.random.default_rng(0).uniform(low, high, shape).astype(dtype)


def error(found: Any, wanted: Any) -> float:
    """The largest difference, as a part of the number and the mean of all."""
    return float((np.abs(found.get() - wanted) / (np.abs(wanted) + np.abs(wanted).mean())).max())


def recorded(function: Callable[..., Any], *args: Any, fuse: Any = 'fast') -> tuple[Any, Any]:
    """The report and the result of a fused graph after two launches."""
    with ck.capture(fuse=fuse) as cap:
        found = function(*args)
    for _ in range(2):
        cap.graph.launch()
    return cap.fused, found


def test_sums_and_maxima_of_rows_are_fused(cp: Any) -> None:
    host = numbers((96, 256))
    report, found = recorded(softmax, cp, cp.asarray(host))
    assert report.fast and report.compared.startswith(SAME), report
    assert [len(one.nodes) for one in report.kernels] == [3], report
    assert '1 fused kernel that may round otherwise' in str(report)
    assert error(found, softmax(np, host.astype('f8'))) < 1e-5


@pytest.mark.parametrize('shape', [(7, 3), (5, 129), (300, 17), (2, 4000), (1, 700)])
@pytest.mark.parametrize('name', ['sum', 'prod', 'min', 'max'])
def test_rows_of_any_length(cp: Any, name: str, shape: tuple[int, int]) -> None:
    host = numbers(shape, 0.99, 1.01)
    host[0, 1] = np.nan
    work = lambda x: getattr(x * 2 - 1, name)(axis=-1)  # noqa: E731
    report, found = recorded(work, cp.asarray(host))
    wanted = getattr(host.astype('f8') * 2 - 1, name)(axis=-1)
    assert report.kernels and report.compared.startswith(SAME), report
    assert np.array_equal(np.isnan(found.get()), np.isnan(wanted))
    assert np.allclose(found.get(), wanted, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize('name', ['any', 'nansum', 'argmax'])
def test_rows_that_cupy_gives_to_blocks_of_cub(cp: Any, name: str) -> None:
    host = np.floor(numbers((40, 500)) * 9)
    host[3] = np.nan if name.startswith('nan') else 0
    host[3, 7] = 1
    report, found = recorded(lambda x: getattr(cp, name)(x * 2, axis=-1), cp.asarray(host))
    assert report.compared.startswith(SAME) or not report, report
    assert report.kernels or current().simulated or name == 'argmax', report
    assert np.array_equal(found.get(), getattr(np, name)(host * 2, axis=-1))


@pytest.mark.parametrize('count', [1, 1000, 1 << 20, 3 * 10**6, 1_000_003])
@pytest.mark.parametrize('name', ['sum', 'max'])
def test_all_elements(cp: Any, name: str, count: int) -> None:
    """On a GPU, CUB takes one kernel for a few thousand elements, and two for more."""
    host = numbers((count,))

    def work(x: Any) -> Any:
        total = getattr(x * x + 1, name)()
        return cp.sqrt(total) + 1, total

    report, (root, total) = recorded(work, cp.asarray(host))
    wanted = getattr(host.astype('f8') ** 2 + 1, name)()
    assert report.compared.startswith(SAME), report
    assert abs(float(total) / wanted - 1) < 1e-5 and abs(float(root) / (np.sqrt(wanted) + 1) - 1) < 1e-5
    inside = sum(len(one.nodes) for one in report.kernels)
    assert inside == report.nodes or (count == 1_000_003 and inside == 4), report  # a prime number stays CUB's


@pytest.mark.parametrize('dtype', ['i4', 'i8', 'u4', 'u8', 'f8'])
def test_rows_of_other_dtypes(cp: Any, dtype: str) -> None:
    host = np.random.default_rng(0).integers(0, 100, (6, 200)).astype(dtype)
    work = lambda x: ((x + 1).max(axis=-1), (x * 3).min(axis=-1), (x + 2).sum(axis=-1))  # noqa: E731
    report, found = recorded(work, cp.asarray(host))
    assert report.compared.startswith(SAME) and len(report.kernels) >= 1, report
    for one, wanted in zip(found, work(host)):
        assert np.array_equal(one.get(), wanted)


def test_the_report_of_equal_bits_tells_what_fast_would_fuse(cp: Any) -> None:
    x = cp.asarray(numbers((8, 300)))
    report, _found = recorded(lambda: (x * 2).sum(axis=-1), fuse=True)
    (why,) = [why for node, why in report.alone if 'CUB' in why]
    assert why.endswith("; fuse='fast' does fuse it") and not report.fast
    with ck.capture() as cap:
        y = x.sum(axis=-1)  # nothing is in front of it: fast does not help
    assert all('fast' not in why for _node, why in cap.graph.fuse().alone)
    assert y is not None


def test_a_graph_is_fused_in_one_way(cp: Any) -> None:
    """So is another one that it takes over."""
    x = cp.asarray(numbers((8, 300)))

    def record() -> tuple[Any, Any]:
        with ck.capture() as cap:
            y = (x * 2).sum(axis=-1)
        return cap.graph, y

    (graph, y), (other, z) = record(), record()
    with pytest.raises(ValueError, match="how must be 'exact' or 'fast', got 'quick'"):
        graph.fuse('quick')
    report = graph.fuse('fast')
    assert graph.fuse('fast') is report and report.kernels
    with pytest.raises(UpdateError, match="has been fused with 'fast'"):
        graph.fuse()
    exact = (x.get().astype('f8') * 2).sum(axis=-1)
    graph.launch()
    assert error(y, exact) < 1e-5
    graph.update(other)
    assert graph.fuse('fast').fast
    graph.launch()
    assert error(z, exact) < 1e-5


@pytest.mark.parametrize('truths', [False, True])
def test_more_than_rounding_is_not_let_through(cp: Any, caplog: pytest.LogCaptureFixture, truths: bool) -> None:
    """Sums whose terms cancel out are nothing but rounding: these differ in another order of sums, as do signs."""
    half = numbers((64, 2000))
    x = cp.asarray(np.concatenate([half, -np.random.default_rng(1).permuted(half, axis=1)], axis=1))

    def work() -> Any:
        found = (x * 1.1).sum(axis=-1)
        return found > 0 if truths else found

    expected = work().get().tobytes()
    with pytest.warns(RuntimeWarning, match='differ by more than rounding'):
        report, found = recorded(work)
    assert not report and 'the first launch gave something else' in report.kept
    assert found.get().tobytes() == expected
    graphed = ck.graphed(work, fuse='fast')
    with caplog.at_level(logging.WARNING, 'capturekit'):
        for _ in range(4):
            assert graphed().get().tobytes() == expected
    assert 'differ by more than rounding' in caplog.text


@pytest.mark.parametrize('changes', [False, True])
def test_calls_of_a_graphed_function(cp: Any, changes: bool) -> None:
    host = numbers((40, 500))

    @ck.graphed(fuse='fast')
    def work(x: Any) -> Any:
        if changes:
            x *= x.max(axis=-1, keepdims=True)
        return (x * x).sum(axis=-1)

    for n in range(4):
        x, wanted = cp.asarray(host + n), (host + n).astype('f8')
        if changes:
            wanted *= wanted.max(axis=-1, keepdims=True)
        assert error(work(x), (wanted * wanted).sum(axis=-1)) < 1e-5
        assert error(x, wanted) < 1e-5
    (variant,) = work.variants
    assert variant.fused is not None and variant.fused.fast and variant.fused.compared.startswith(SAME), variant.fused


STEPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    'add': lambda xp, a, b: a + b,
    'multiply': lambda xp, a, b: a * b,
    'both': lambda xp, a, b: a * b + a,
    'divide': lambda xp, a, b: a / (b + 1),
    'root': lambda xp, a, b: xp.sqrt(a),
    'square': lambda xp, a, b: a * a + b * b,
    'hypot': lambda xp, a, b: xp.hypot(a, b),
    'rows': lambda xp, a, b: a.sum(axis=-1, keepdims=True) / 8 + b,
    'largest': lambda xp, a, b: a / a.max(axis=-1, keepdims=True) + b,
    'columns': lambda xp, a, b: a.mean(axis=0) + b,
    'exp': lambda xp, a, b: xp.exp(-a) + b,
}


def run(xp: Any, steps: list[tuple[str, int, int]], given: list[Any]) -> list[Any]:
    found = list(given)
    for name, a, b in steps:
        found.append(STEPS[name](xp, found[a % len(found)], found[b % len(found)]))
        found[-1] = found[-1] / (1 + found[-1])  # so that no number gets large
    return found[len(given) :][-3:]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9
    )
)
@pytest.mark.parametrize('dtype', ['f4', 'f8'])
def test_random_chains_are_as_accurate_as_float64(cp: Any, steps: list[tuple[str, int, int]], dtype: str) -> None:
    """Of positive numbers, where no step loses digits."""
    host = [numbers((12, 160), 0.5, 2, dtype), numbers((12, 160), 0.1, 1, dtype), numbers((160,), 1, 3, dtype)]
    arrays = [cp.asarray(one) for one in host]
    report, found = recorded(lambda: run(cp, steps, arrays))
    wanted = run(np, steps, [one.astype('f8') for one in host])
    assert 'differs' not in report.compared, report
    for one, exact in zip(found, wanted):
        assert error(one, exact) < (2e-6 if dtype == 'f4' else 1e-14), report
