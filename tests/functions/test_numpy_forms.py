"""NumPy arrays with equal values that differ in form: a function sees the form, so each has recordings of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import plain_key
from capturekit.model.pytree import put_together, take_apart


class Derived(np.ndarray):
    """A class without anything of its own."""


def but_read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def not_aligned(array: Any) -> Any:
    raw = np.zeros(array.nbytes + 1, 'u1')
    found = raw[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


NUMBERS: dict[str, Callable[[], Any]] = {
    'as made': lambda: np.arange(6.0).reshape(2, 3).copy(),
    'by columns': lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    'with gaps': lambda: np.repeat(np.arange(6.0).reshape(2, 3), 2, axis=0)[::2],
    'with gaps in rows': lambda: np.repeat(np.arange(6.0).reshape(2, 3), 2, axis=1)[:, ::2],
    'turned': lambda: np.arange(6.0).reshape(2, 3)[::-1].copy()[::-1],
    'other byte order': lambda: np.arange(6.0).reshape(2, 3).astype('>f8'),
    'read only': lambda: but_read_only(np.arange(6.0).reshape(2, 3).copy()),
    'not aligned': lambda: not_aligned(np.arange(6.0).reshape(2, 3)),
    'metadata': lambda: np.arange(6.0).reshape(2, 3).astype(np.dtype('f8', metadata={'unit': 3})),
    'derived': lambda: np.arange(6.0).reshape(2, 3).view(Derived),
    'float32': lambda: np.arange(6.0).reshape(2, 3).astype('f4'),
    'objects': lambda: np.arange(6.0).reshape(2, 3).astype(object),
    'objects by columns': lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3).astype(object)),
    'objects read only': lambda: but_read_only(np.arange(6.0).reshape(2, 3).astype(object)),
    'objects with gaps': lambda: np.repeat(np.arange(6.0).reshape(2, 3).astype(object), 2, axis=0)[::2],
}
_TWO = {'names': ['a', 'b'], 'formats': ['f4', 'f4']}
FIELDS: dict[str, Callable[[], Any]] = {
    'packed': lambda: np.zeros(2, [('a', 'f4'), ('b', 'f4')]),
    'other offsets': lambda: np.zeros(2, np.dtype({**_TWO, 'offsets': [4, 0]})),
    'longer': lambda: np.zeros(2, np.dtype({**_TWO, 'offsets': [0, 4], 'itemsize': 16})),
    'aligned': lambda: np.zeros(2, np.dtype([('a', 'f4'), ('b', 'f4')], align=True)),
    'with a title': lambda: np.zeros(2, [(('first', 'a'), 'f4'), ('b', 'f4')]),
    'a record': lambda: np.zeros(2, np.dtype((np.record, [('a', 'f4'), ('b', 'f4')]))),
    'with rows': lambda: np.zeros(2, [('a', 'f4', (1,)), ('b', 'f4')]),
    'metadata in a field': lambda: np.zeros(2, [('a', np.dtype('f4', metadata={'unit': 3})), ('b', 'f4')]),
    'bytes': lambda: np.zeros(2, 'V8'),
}
ONES: dict[str, Callable[[], Any]] = {
    'a scalar': lambda: np.float64(2.0),
    'no axis': lambda: np.array(2.0),
    'one element': lambda: np.array([2.0]),
    'one row': lambda: np.array([[2.0, 2.0]]),
    'one row with a gap': lambda: np.full((4, 2), 2.0)[::2][:1],
}


def form(array: Any) -> Any:
    """All that code can ask an array for, but where it lies and who owns it."""
    flags, dtype = array.flags, array.dtype
    ways = flags.c_contiguous, flags.f_contiguous, flags.writeable, flags.aligned
    kind = dtype.str, dtype.char, dtype.type, dtype.itemsize, dtype.isalignedstruct, str(dtype.fields), dtype.metadata
    inside = [one[0].metadata for one in (dtype.fields or {}).values()]
    raw = None if dtype.hasobject or dtype.fields else array.tobytes('A')  # else there are addresses or padding
    return type(array), array.shape, array.strides, ways, kind, inside, repr(array.tolist()), raw


def form_of_copy(array: Any) -> Any:
    """The form in arguments and what it is made from anew; None if calls with the array are not recorded."""
    try:
        found = take_apart((array,), lambda value: False)[1]
    except TypeError:
        return None
    assert form(put_together(found, ())[0]) == form(array)
    return found


def as_kept(array: Any) -> Any:
    kind, _labels, items, data = contents_of(array) or ('', [], [], plain_key(array))
    return type(array), kind, [(type(one), id(one) if isinstance(one, np.dtype) else one) for one in items], data


ALL = {**NUMBERS, **FIELDS, **ONES}


@pytest.mark.parametrize('one', ALL)
def test_arrays_of_two_forms_are_told_apart(one: str) -> None:
    array, key = ALL[one](), plain_key(ALL[one]().dtype)
    found, kept = form_of_copy(array), as_kept(array)
    for name, make in ALL.items():
        if name != one:
            other = make()
            assert form(array) != form(other)
            assert found is None or found != form_of_copy(other), name
            assert kept != as_kept(other), name
            assert key is None or one not in FIELDS or name not in FIELDS or key != plain_key(other.dtype), name
