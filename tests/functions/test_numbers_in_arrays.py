"""Launches make arrays anew of numbers that they reckon with: ``np.array(costs)``, as plain runs do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.functions.test_reckoned_reads import ODD, alike, launches, ordinary

#: What is done with a list of numbers, with the first of which the function reckons, too.
Use = Callable[[Any, Any, Any], Any]


def filling(body: str, before: str = '', reckons: str = 'costs[0] * x') -> Any:
    """A function that fills a list with three numbers, does ``body`` with it, and reckons with the first."""

    def maker(cp: Any) -> Any:
        kept = Kept()
        space = {'cp': cp, 'np': np, 'math': math, 'KEPT': kept, 'KEPT_LISTS': [], 'caught': caught, 'shifted': shifted}
        text = [
            'def work(x):',
            '    costs = []',
            *(f'    {one}' for one in before.splitlines()),
            '    for number in range(3):',
            '        costs.append((x + number).sum().item())',
            f'    y = {reckons}',
            *(f'    {one}' for one in body.splitlines()),
        ]
        exec('\n'.join(text), space)
        return space['work'], lambda: vars(kept)

    return maker


class Kept:
    """What is there before the function is called."""


def caught(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def shifted(costs: Any) -> Any:
    return costs


NATURAL: dict[str, tuple[str, ...]] = {
    'returned': ('return y, np.array(costs)',),
    'by asarray': ('return y, np.asarray(costs)',),
    'beside the list': ('found = np.array(costs)\nreturn y, found, costs',),
    'two of them': ('return y, {"all": np.array(costs), "again": np.array(costs)}',),
    'with constants': ('return y, np.array(costs)', 'costs.append(2.5)'),
    'how many': ('found = np.array(costs)\nreturn y * len(found), found',),
    'a list that is written down': ('return y, np.array([costs[1], costs[0]])',),
    'a list in a list': ('return y, np.array([[costs[1]], [costs[0]]])',),
    'a number alone': ('return y, np.array(costs[1])',),
    'of computed numbers': (
        'return y, np.array(more), more',
        'more = []',
        'costs[0] * x\n    more.append(costs[0] / 3)',
    ),
    'of whole numbers': ('more.append(math.floor(costs[0] % 7.0))\nreturn y, np.array(more), more', 'more = []'),
    'dropped': ('found = np.array(costs)\nreturn y',),
}
OTHERS: dict[str, tuple[str, ...]] = {
    'twice the same one': ('found = np.array(costs)\nreturn y, found, [found, costs]',),
    'an item is reckoned with': ('return y, x * np.array(costs)[1]',),
    'an item of single precision': ("return y, x.astype('f4') * np.array(costs)[1]",),
    'an item divided by zero': ('found = np.array(costs)\nreturn y, x * (1 / (found[0] - found[0] * 1.0 + 0.0))',),
    'an item of a list that is reckoned with later': (
        'found = np.array(costs)\nreturn costs[1] * x, found',
    ),
    'an item meets the device': ('return y, cp.sqrt(np.array(costs)[1])',),
    'an item is returned': ('return y, np.array(costs)[1]',),
    'an item as a text': ('return y, str(np.array(costs)[1])',),
    'an item is compared': ('found = np.array(costs)\nreturn y * (2 if found[1] > 5 else 3)',),
    'an item is compared by is': ('found = np.array(costs)\nreturn y * (2 if found[1] is costs[1] else 3)',),
    'an item is asked for nan': ('found = np.array(costs)\nreturn y * (2 if np.isnan(found[1]) else 3)',),
    'an item is caught': ('found = np.array(costs)\nreturn y, caught(lambda: found[0] * 2)',),
    'its type': ('return y, np.array(costs).dtype.char',),
    'its type decides': ("return y * (2 if np.array(costs).dtype == 'f8' else 3)",),
    'its shape': ('return y, np.array(costs).shape',),
    'its sum': ('return y, np.array(costs).sum()',),
    'twice': ('return y, np.array(costs) * 2',),
    'a part of it': ('return y, np.array(costs)[1:]',),
    'an array of the device': ('return y, cp.asarray(np.array(costs))',),
    'another type is asked for': ("return y, np.array(costs, 'f4')",),
    'of text': ('return y, np.array([str(costs[0])])',),
    'with a text': ('return y, np.array([costs[0], "a"]).dtype.char',),
    'with whole numbers': ('return y, np.array(costs)', 'costs.append(2)'),
    'with a truth value': ('return y, np.array(costs)', 'costs.append(True)'),
    'with nothing': ('return y, np.array(costs)', 'costs.append(None)'),
    'with a number of NumPy': ('return y, np.array(costs)', "costs.append(np.float32(0.1))"),
    'with lists of another length': ('return y, caught(lambda: np.array([costs, [1.0]]))',),
    'in a dictionary': ('return y, np.array({"a": costs[0]}).shape',),
    'in a tuple': ('return y, np.array((costs[0], costs[1]))',),
    'put into an attribute': ('KEPT.costs = np.array(costs)\nreturn y',),
    'put into a list outside': ('KEPT_LISTS.append(np.array(costs))\nreturn y',),
    'changed later': ('found = np.array(costs)\nfound[0] = 3.0\nreturn y, found',),
    'given to another function': ('return y, shifted(np.array(costs))',),
    'beside one that is only kept': ('costs.append(float(x.max()))\nreturn y, np.array(costs)',),
    'beside one that is only kept, first': (
        'more = [float(x.max())]\nmore.append(costs[0])\nreturn y, np.array(more), float(x.min())',
    ),
    'of all objects': ('return y, np.array(costs, object).tolist()',),
    'by a name that is computed': ("return y, getattr(np, 'arr' + 'ay')(costs)",),
    'stacked': ('return y, np.stack([np.array(costs), np.array(costs)])',),
}  # fmt: skip


@pytest.mark.parametrize('how', NATURAL)
def test_each_launch_makes_them_anew(sim: Any, how: str) -> None:
    assert launches(alike(sim, filling(*NATURAL[how]), ordinary(12))) >= 8


@pytest.mark.parametrize('how', [one for one in NATURAL if one not in ('two of them', 'dropped', 'how many')])
def test_each_has_memory_of_its_own(sim: Any, how: str) -> None:
    """As in an eager run: it can be given another size, and nothing else holds its memory."""
    fn = alike(sim, filling(*NATURAL[how]), ordinary(6))
    made = [one for one in fn(sim.arange(3.0)) if isinstance(one, np.ndarray)]
    assert launches(fn) >= 4 and [(one.base, one.flags.owndata) for one in made] == [(None, True)] * len(made) != []


@pytest.mark.parametrize('how', [*NATURAL, *OTHERS])
def test_whatever_is_done_with_them_is_right(sim: Any, how: str) -> None:
    fn = alike(sim, filling(*{**NATURAL, **OTHERS}[how]), [*ordinary(6), *ODD, *ordinary(3)])
    assert not any('eager run' in variant.reason for variant in fn.variants), 'it was launched, and was wrong'


ASKED: dict[str, tuple[str, ...]] = {
    'by NumPy': ('return y * (2 if np.isnan(costs[0]) or np.isinf(costs[1]) else 3)',),
    'whether it is finite': ('return y * (2 if np.isfinite(costs[0]) else 3), np.isfinite(costs[1])',),
}


@pytest.mark.parametrize('how', ASKED)
def test_numpy_tells_of_each_whether_it_is_nan(sim: Any, how: str) -> None:
    assert launches(alike(sim, filling(*ASKED[how]), ordinary(12))) >= 8
    alike(sim, filling(*ASKED[how]), [*ordinary(5), *ODD, *ordinary(3), *reversed(ODD)])


SLICES: dict[str, str] = {
    'the first ones': '[0:2]', 'from one on': '[1:]', 'backwards': '[::-1]', 'all but the last': '[:-1]',
    'none': '[4:]', 'of a variable': '[len(x) - 3:2]',
}  # fmt: skip


def sliced(of: str) -> Any:
    """A function of which another one takes some of the results, as libraries do."""

    def maker(cp: Any) -> Any:
        space = {'cp': cp, 'np': np}
        text = f"""
def inner(x):
    v = float(x.sum())
    costs = [float(x.max())]
    more = costs[0] * v
    return x * v, v * 2, np.array(costs), more

def work(x):
    found = inner(x){of}
    return found, x * 2
"""
        exec(text, space)
        return space['work'], tuple

    return maker


@pytest.mark.parametrize('how', SLICES)
def test_some_of_several_results_are_right(sim: Any, how: str) -> None:
    found = launches(alike(sim, sliced(SLICES[how]), ordinary(12)))
    assert found >= 8 or how in ('of a variable', 'backwards')
    alike(sim, sliced(SLICES[how]), [*ordinary(5), *ODD])
