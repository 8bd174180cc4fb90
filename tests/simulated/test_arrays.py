"""Arrays of the simulated CuPy: strides without elements, and results of classes that are derived from ndarray.

New arrays without elements have strides of zero, unlike NumPy's, and views keep theirs. An elementwise function's
result is of the first input's class that is derived from ndarray.
"""

from __future__ import annotations

from typing import Any

import pytest

import capturekit as ck


@pytest.mark.parametrize('order', ['C', 'F'])
@pytest.mark.parametrize('shape', [(0, 3), (3, 0), (0,), (2, 0, 3)])
def test_new_arrays_without_elements(cp: Any, shape: tuple[int, ...], order: str) -> None:
    a = cp.empty(shape, order=order)
    assert a.strides == a.T.strides == a.reshape(shape).strides == (0,) * len(shape)
    assert (a * 2).strides == a.strides
    assert cp.empty((0, 3)).reshape(3, 0).strides == (8, 8)


#: Views without elements of 4 x 3 numbers, and their strides.
VIEWS: dict[str, tuple[int, ...]] = {
    'a[2:2]': (24, 8), 'a[:, 1:1]': (24, 8), 'a[4:].T': (8, 24), 'a[4:].reshape(-1)': (8,),
    'a[4:].reshape(3, 0)': (8, 8), 'a[4:].reshape(-1, 3)': (24, 8), "a[2:2].view('i4')": (24, 4),
    'a[4:][:, None]': (24, 0, 8),
}  # fmt: skip


@pytest.mark.parametrize('view', VIEWS)
def test_views_without_elements(cp: Any, view: str) -> None:
    """Also as results of graphed functions."""
    make = eval(f'lambda a: {view}')
    assert make(cp.ones((4, 3))).strides == VIEWS[view]
    fn = ck.graphed(lambda x: (make(x * 2), cp.empty((0, 3))))
    for _ in range(4):
        found, new = fn(cp.ones((4, 3)))
        assert (found.strides, new.strides) == (VIEWS[view], (0, 0))
    assert [variant.state for variant in fn.variants] == ['recorded']


KEEP = [
    'x * 2', '1 - x', 'cp.arange(4.0) + x', 'cp.sin(x)', 'cp.divmod(x, 2)[1]', 'cp.where(x > 1, x, 0)', 'x.clip(1, 2)',
    'x[1:]', 'x.reshape(2, 2)', 'cp.asarray(x)',
]  # fmt: skip
LOSE = ['x.sum()', 'x.copy()', 'cp.array(x)', "x.astype('f4')", 'cp.concatenate([x, x])', 'cp.add(x, 1, out=plain)']


@pytest.mark.parametrize('call', [*KEEP, *LOSE])
def test_a_derived_class_is_kept_or_lost(cp: Any, call: str) -> None:
    class Marked(cp.ndarray):  # type: ignore[misc, name-defined]
        mark = 'none'

        def __array_finalize__(self, obj: Any) -> None:
            self.mark = getattr(obj, 'mark', 'none')

    x, plain = cp.arange(4.0).view(Marked), cp.zeros(4)
    x.mark = 'mine'
    found = eval(call, {'cp': cp, 'x': x, 'plain': plain})
    assert type(found) is (Marked if call in KEEP else cp.ndarray)
    assert getattr(found, 'mark', 'mine') == 'mine'
    assert (found is plain) == ('plain' in call)
