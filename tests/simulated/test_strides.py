"""Strides of arrays without elements: CuPy gives new ones zeros, unlike NumPy, and keeps those of views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck


@pytest.mark.parametrize('order', ['C', 'F'])
@pytest.mark.parametrize('shape', [(0, 3), (3, 0), (0,), (2, 0, 3)])
def test_new_arrays_without_elements(cp: Any, shape: tuple[int, ...], order: str) -> None:
    a = cp.empty(shape, order=order)
    assert a.strides == a.T.strides == (0,) * len(shape)
    assert (a * 2).strides == a.strides


VIEWS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    'rows': (lambda a: a[2:2], (24, 8)),
    'columns': (lambda a: a[:, 1:1], (24, 8)),
    'transposed': (lambda a: a[4:].T, (8, 24)),
    'flat': (lambda a: a[4:].reshape(-1), (8,)),
    'reshaped': (lambda a: a[4:].reshape(3, 0), (8, 8)),
    'of the same shape': (lambda a: a[4:].reshape(-1, 3), (24, 8)),
    'another dtype': (lambda a: a[2:2].view('i4'), (24, 4)),
    'an axis more': (lambda a: a[4:][:, None], (24, 0, 8)),
}


@pytest.mark.parametrize('name', VIEWS)
def test_views_without_elements(cp: Any, name: str) -> None:
    make, strides = VIEWS[name]
    assert make(cp.ones((4, 3))).strides == strides


def test_a_new_array_reshaped_to_its_own_shape(cp: Any) -> None:
    assert cp.empty((0, 3)).reshape(-1, 3).strides == (0, 0)
    assert cp.empty((0, 3)).reshape(3, 0).strides == (8, 8)


@pytest.mark.parametrize('name', VIEWS)
def test_results_of_graphed_functions(cp: Any, name: str) -> None:
    make, strides = VIEWS[name]
    fn = ck.graphed(lambda x: (make(x * 2), cp.empty((0, 3))))
    for _ in range(4):
        view, new = fn(cp.ones((4, 3)))
        assert (view.strides, new.strides) == (strides, (0, 0))
    assert [variant.state for variant in fn.variants] == ['recorded']
