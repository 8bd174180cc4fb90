"""The stand-in answers in a capture as CuPy does: what reads on the host, waits, or comes from before the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck


def numbers(cp: Any) -> Any:
    return cp.arange(1.0, 7.0)


def matrix(cp: Any) -> Any:
    m = cp.arange(12.0).reshape(3, 4)
    return m @ m.T + cp.eye(3)


def timed(cp: Any) -> Any:
    from cupyx.profiler import time_range

    with time_range('here', sync=True):
        return numbers(cp) * 2


CALLS: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    'average': (ck.HostReadError, lambda cp: cp.average(numbers(cp), weights=numbers(cp))),
    'linspace': (ck.HostReadError, lambda cp: cp.linspace(numbers(cp)[0], numbers(cp)[3], 5)),
    'unravel_index': (ck.HostReadError, lambda cp: cp.unravel_index(cp.arange(3) * 2, (3, 4))),
    'choose': (
        ck.HostReadError, lambda cp: cp.choose(cp.arange(3) % 2, cp.stack([numbers(cp)[:3], numbers(cp)[3:]])),
    ),
    'gradient': (ck.HostReadError, lambda cp: cp.gradient(numbers(cp), numbers(cp))),
    'real_if_close': (ck.HostReadError, lambda cp: cp.real_if_close(numbers(cp) + 0j)),
    'repeat': (ck.HostReadError, lambda cp: numbers(cp)[:3].repeat(cp.array([1, 2, 3]))),
    'nuclear norm': (ck.UnsupportedCallError, lambda cp: cp.linalg.norm(matrix(cp), 'nuc')),
    'spectral norm': (ck.UnsupportedCallError, lambda cp: cp.linalg.norm(matrix(cp), 2)),
    'time_range': (ck.SynchronizationError, timed),
}  # fmt: skip


@pytest.mark.parametrize('name', CALLS)
def test_it_is_refused_and_the_capture_is_good(cp: Any, name: str) -> None:
    error, call = CALLS[name]
    x = numbers(cp)
    with ck.capture() as cap:
        y = x * 2
        with pytest.raises(error):
            call(cp)
        z = y + 1
    cap.graph.launch()
    assert z.get().tolist() == [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]


def test_references_from_before_the_guard(cp: Any) -> None:
    svd, x = cp.linalg.svd, matrix(cp)
    with ck.capture() as cap:
        with pytest.raises(ck.UnsupportedCallError, match='svd'):
            svd(x)
        y = x * 2
    cap.graph.launch()
    assert np.array_equal(y.get(), x.get() * 2)


def test_a_call_by_the_host_in_the_middle(cp: Any) -> None:
    """Memory that a later part has yet to read is not poisoned by the part before."""

    def function(matrix: Any) -> Any:
        t = matrix * 3
        _, vectors = cp.linalg.eigh(matrix)
        u = t + vectors
        del t
        v = u * 2
        x = v + 1
        y = x * 2
        z = y + 1
        return z.sum()

    graphed = ck.graphed(function)
    for n in range(5):
        assert float(graphed(matrix(cp) + n)) == float(function(matrix(cp) + n))
