"""What calls leave, laid out as leaves on the host, and how two such differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capturekit.graphed.checks import TOLERANCES

#: The outcomes of a comparison, from the best to the worst.
EQUAL, NEAR, WRONG = 'equal', 'near', 'wrong'
NUMBERS = (bool, int, float, complex, np.generic)


@dataclass(frozen=True)
class Leaf:
    """One part of a value: where it stands, what it is, and its value: a NumPy array or something plain."""

    path: str
    kind: str
    value: Any


@dataclass(frozen=True)
class Found:
    """What a comparison found: an outcome, and where and how the first part differs that has it."""

    outcome: str = EQUAL
    text: str = ''


def leaves(value: Any, cp: Any, path: str = '') -> Iterator[Leaf]:
    """The parts of a value, copied to the host now. Raises TypeError for what can't be compared."""
    kind = type(value).__name__
    if isinstance(value, cp.ndarray):
        yield Leaf(path, 'array', np.array(value if cp is np else value.get()))
    elif isinstance(value, np.ndarray):
        yield Leaf(path, 'array of the host', np.array(value))
    elif isinstance(value, NUMBERS):
        yield Leaf(path, kind, np.asarray(value))
    elif value is None or isinstance(value, (str, bytes)):
        yield Leaf(path, kind, value)
    elif isinstance(value, dict):
        yield Leaf(path, kind, tuple(map(repr, value)))
        for key, part in value.items():
            yield from leaves(part, cp, f'{path}[{key!r}]')
    elif isinstance(value, (tuple, list)):
        yield Leaf(path, kind, len(value))
        for number, part in enumerate(value):
            yield from leaves(part, cp, f'{path}[{number}]')
    else:
        raise TypeError(f'{path}: a {kind} can not be compared')


def compare(want: Sequence[Leaf], got: Sequence[Leaf]) -> Found:
    """The worst difference between two values."""
    if [(leaf.path, leaf.kind) for leaf in want] != [(leaf.path, leaf.kind) for leaf in got]:
        return Found(WRONG, _of_structure(want, got))
    worst = Found()
    for mine, theirs in zip(want, got):
        found = _of_leaf(mine.value, theirs.value)
        if found.outcome == WRONG:
            return Found(WRONG, f'{mine.path}: {found.text}')
        if found.outcome == NEAR and worst.outcome == EQUAL:
            worst = Found(NEAR, f'{mine.path}: {found.text}')
    return worst


def _of_structure(want: Sequence[Leaf], got: Sequence[Leaf]) -> str:
    for mine, theirs in zip(want, got):
        if (mine.path, mine.kind) != (theirs.path, theirs.kind):
            return f'{theirs.path} is of kind {theirs.kind}, and {mine.path} of kind {mine.kind}'
    return f'{len(got)} parts and not {len(want)}'


def _of_leaf(want: Any, got: Any) -> Found:
    if not isinstance(want, np.ndarray) or not isinstance(got, np.ndarray):
        return Found() if want == got else Found(WRONG, f'{got!r} and not {want!r}')
    if want.shape != got.shape:
        return Found(WRONG, f'shape {got.shape} and not {want.shape}')
    if want.dtype != got.dtype:
        return Found(WRONG, f'dtype {got.dtype} and not {want.dtype}')
    if want.tobytes() == got.tobytes():
        return Found()
    return _of_numbers(want, got)


def _of_numbers(want: Any, got: Any) -> Found:
    """Numbers whose bits differ: floating-point ones may be apart by a part of the largest."""
    if want.dtype.kind not in 'fc':
        return Found(WRONG, f'{int((want != got).sum())} of {want.size} elements differ')
    bound = TOLERANCES[np.finfo(want.dtype).dtype.itemsize]
    finite = np.abs(want[np.isfinite(want)])
    largest = float(finite.max()) if finite.size else 0.0
    with np.errstate(invalid='ignore', over='ignore'):
        apart = np.abs(want - got)
        alike = (want == got) | (np.isnan(want) & np.isnan(got))
        wrong = ~(alike | (apart <= bound * largest))
    if wrong.any():
        first = tuple(int(n) for n in np.argwhere(wrong)[0])
        return Found(WRONG, f'{int(wrong.sum())} of {want.size}; at {list(first)} {got[first]} and not {want[first]}')
    most = float(apart[~alike].max()) / largest if largest and not alike.all() else 0.0
    return Found(NEAR, f'by up to {most:.1e} of the largest')
