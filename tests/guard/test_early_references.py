"""References that were taken before any capture, as array-agnostic packages take them, meet the guard all the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck

NAMES = ('svd', 'eigh', 'lstsq', 'pinv', 'eigvalsh', 'cond', 'matrix_rank')


class Backend:
    """As packages do that serve several array libraries."""

    def __init__(self, cp: Any) -> None:
        self.table = {name: getattr(cp.linalg, name) for name in NAMES}
        self.svd = cp.linalg.svd
        self.thin = functools.partial(cp.linalg.svd, full_matrices=False)
        self.copyto = cp.copyto
        self.asnumpy = cp.asnumpy

    def norm(self, y: Any) -> Any:
        return self.table['svd'](y)[1]


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    'an attribute': lambda backend, y: backend.svd(y),
    'a partial': lambda backend, y: backend.thin(y),
    'in a method': lambda backend, y: backend.norm(y),
    **{name: lambda backend, y, name=name: backend.table[name](*[y] * (1 + (name == 'lstsq'))) for name in NAMES},
}


@pytest.mark.parametrize('call', CALLS)
def test_calls_that_no_capture_can_hold_are_refused(cp: Any, call: str) -> None:
    backend = Backend(cp)
    x = cp.arange(16.0).reshape(4, 4) + cp.eye(4)
    with ck.capture() as cap:
        y = x * 2
        with pytest.raises(ck.UnsupportedCallError, match=r'cupy\.linalg\.\w+\(\)'):
            CALLS[call](backend, y)
        y += 1
    cap.graph.launch()
    assert np.array_equal(y.get(), x.get() * 2 + 1)


@pytest.mark.parametrize('call', ['an attribute', 'a partial', 'in a method'])
def test_they_are_made_between_two_graphs(cp: Any, call: str) -> None:
    backend = Backend(cp)
    x = cp.diag(cp.arange(1.0, 5.0))
    with ck.capture(pieces=True) as cap:
        y = x * 2
        found = CALLS[call](backend, y)
        values = (found if call == 'in a method' else found[1]) + 1
    cap.graph.launch()
    assert np.allclose(np.sort(values.get()), [3, 5, 7, 9])


def test_the_host_reads_through_an_early_name(cp: Any) -> None:
    backend = Backend(cp)
    x = cp.arange(4.0)
    with ck.capture() as cap:
        y = x * 2
        with pytest.raises(ck.HostReadError):
            backend.asnumpy(y)
    cap.graph.launch()
    assert backend.asnumpy(y).tolist() == [0, 2, 4, 6]
