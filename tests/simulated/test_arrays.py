"""Arrays of the simulated CuPy: strides without elements, and results of classes that are derived from ndarray.

New arrays without elements have strides of zero, unlike NumPy's, and views keep theirs. An elementwise function's
result is of the first input's class that is derived from ndarray.
"""

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


# -- derived classes --------------------------------------------------------------------------------------------

KEEP: dict[str, Callable[[Any, Any], Any]] = {
    'arithmetic': lambda cp, x: x * 2,
    'the other way round': lambda cp, x: 1 - x,
    'two arrays': lambda cp, x: cp.arange(4.0) + x,
    'a function': lambda cp, x: cp.sin(x),
    'two results': lambda cp, x: cp.divmod(x, 2)[1],
    'where': lambda cp, x: cp.where(x > 1, x, 0),
    'clip': lambda cp, x: x.clip(1, 2),
    'a part': lambda cp, x: x[1:],
    'another shape': lambda cp, x: x.reshape(2, 2),
    'as an array': lambda cp, x: cp.asarray(x),
}
LOSE: dict[str, Callable[[Any, Any], Any]] = {
    'a sum': lambda cp, x: x.sum(),
    'a copy': lambda cp, x: x.copy(),
    'another array': lambda cp, x: cp.array(x),
    'another dtype': lambda cp, x: x.astype('f4'),
    'one after the other': lambda cp, x: cp.concatenate([x, x]),
}


def marked(cp: Any) -> Any:
    class Marked(cp.ndarray):  # type: ignore[misc, name-defined]
        mark = 'none'

        def __array_finalize__(self, obj: Any) -> None:
            self.mark = getattr(obj, 'mark', 'none')

    x = cp.arange(4.0).view(Marked)
    x.mark = 'mine'
    return x


@pytest.mark.parametrize('name', KEEP)
def test_the_class_is_kept(cp: Any, name: str) -> None:
    x = marked(cp)
    found = KEEP[name](cp, x)
    assert type(found) is type(x) and found.mark == 'mine'


@pytest.mark.parametrize('name', LOSE)
def test_the_class_is_lost(cp: Any, name: str) -> None:
    assert type(LOSE[name](cp, marked(cp))) is cp.ndarray


def test_a_given_output_stays_what_it_is(cp: Any) -> None:
    out = cp.zeros(4)
    assert cp.add(marked(cp), 1, out=out) is out and type(out) is cp.ndarray
