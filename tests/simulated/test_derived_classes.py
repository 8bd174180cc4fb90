"""Results of classes that are derived from ndarray: an elementwise function's are of the first such input's class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
