"""Launches reckon on with whole numbers that are read, as counts are, by ``item()`` and by ``int()``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.functions.test_number_functions import written
from tests.functions.test_reckoned_reads import ODD, alike, launches, ordinary

#: How a whole number is read.
READS: dict[str, str] = {
    'int of a count': 'int((x * 7 % 5 > 2).sum()) + int(x.astype("i8").sum())',
    'int of floats': 'int(x.max())',
    'an item': 'x.astype("i8").sum().item()',
    'single precision': 'int(x.astype("f4").max())',
    'small': 'x.astype("i4").astype("i1").max().item()',
    'positive': 'int(abs(x).max().astype("u4"))',
    'float of a whole number': 'float(x.astype("i4").sum())',
    'int of an item': 'int(x.max().item() * 2)',
    'the place of the largest': 'int(x.argmax()) + int(abs(x).max()) * 2',
}
#: What a function makes of the number.
TEXTS: dict[str, str] = {
    'with an array': 'x * v + (x - 1) / (abs(v) + 1)',
    'a share': 'x, v / 3, v // 2, v % 5',
    'returned': 'x * 2, v',
    'by max': 'x.sum() / max(v, 1)',
    'compared': 'x * 2 if v > -1000 else x * 3',
    'with whole numbers': 'x.astype("i8") * v, x.astype("i4") + v',
    'a power': 'x * 0.5 ** abs(v), v ** 2',
    'as int again': 'x + int(v)',
}
SEEN: dict[str, str] = {
    'as an index': 'x[v % 3]',
    'as a size': 'cp.ones(abs(v) % 4) * x[0]',
    'as a range': 'x * sum(n for n in range(abs(v) % 4))',
    'the type': 'x * (2 if type(v) is int else 3)',
    'by isinstance': 'x * (2 if isinstance(v, int) else 3)',
    'as a text': 'x * len(f"{v}")',
    'bits': 'x * ((v & 3) + (v >> 1))',
    'a truth value': 'x * 2 if v else x',
    'int with a base': 'x * int("11", base=abs(v) % 3 + 2) if v % 2 else x * int("7")',
    'a shape': 'x.reshape(1 + 2 * (v % 2), -1)',
    'an axis': 'cp.ones((2, 3)).sum(axis=v % 2)',
    'in unsigned bytes': 'x.astype("u1") + v',
    'in bytes': 'x.astype("i1") * v',
    'of a large one': 'x * (v * 10**20)',
    'a method': 'x * v.bit_length()',
    'in a set': 'x * len({v, 3})',
    'the class itself': 'x * int.__add__(v, 1)',
    'another int': 'x * (lambda int: int(v))(abs)',
}


def in_turn(texts: list[str], times: int) -> list[tuple[str, str]]:
    """Each of these with as many kinds of reads, which take turns."""
    reads = [*READS] * (len(texts) * times)
    return [(how, reads[number * times + turn]) for number, how in enumerate(texts) for turn in range(times)]


@pytest.mark.parametrize(('how', 'read'), in_turn([*TEXTS], 1))
def test_each_launch_reckons_anew(sim: Any, how: str, read: str) -> None:
    assert launches(alike(sim, written(TEXTS[how], READS[read]), ordinary(10))) >= 4


@pytest.mark.parametrize(('how', 'read'), in_turn([*SEEN], 1))
@pytest.mark.filterwarnings('ignore:invalid value', 'ignore:overflow', 'ignore:divide by zero')
def test_what_sees_the_number_is_right(sim: Any, how: str, read: str) -> None:
    alike(sim, written((TEXTS | SEEN)[how], READS[read]), [*ordinary(5), *ODD[::2]])


@pytest.mark.parametrize('how', ['with an array', 'a share', 'by max', 'with whole numbers', 'as an index'])
def test_on_a_device(cp: Any, how: str) -> None:
    fn = alike(cp, written((TEXTS | SEEN)[how], READS['int of a count']), ordinary(12))
    assert (launches(fn) >= 6) == (how in TEXTS)
