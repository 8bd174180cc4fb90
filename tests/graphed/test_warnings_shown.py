"""Functions that warn stay eager, so that their warnings are shown as without graphs."""

from __future__ import annotations

import random
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import capturekit as ck
from capturekit.graphed.settings import shown_before


def other_filters() -> None:
    """Set other filters and take them back, which makes Python forget what it has shown."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')


#: What happens between two calls: what the filters are then, or what has become of what Python remembers.
CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    'nothing': lambda names: None,
    'a filter that shows once': lambda names: warnings.simplefilter('default'),
    'a filter that shows always': lambda names: warnings.simplefilter('always'),
    'a filter that shows never': lambda names: warnings.simplefilter('ignore'),
    'a filter that raises': lambda names: warnings.simplefilter('error'),
    'a filter for modules': lambda names: warnings.simplefilter('module'),
    'a filter for the process': lambda names: warnings.simplefilter('once'),
    'a filter for one text': lambda names: warnings.filterwarnings('always', 'told'),
    'other filters for a while': lambda names: other_filters(),
    'what was shown is dropped': lambda names: names.pop('__warningregistry__', None),
    'another dict': lambda names: names.__setitem__('__warningregistry__', {}),
    'an equal dict': lambda names: names.__setitem__('__warningregistry__', dict(names.get('__warningregistry__', {}))),
    'no filters at all': lambda names: warnings.resetwarnings(),
}
TEXTS = {
    'by Python': "warnings.warn('told'); return x * 2",
    'by NumPy': 'return x * float(np.array([2 + 1j]).astype(float)[0])',
    'at two lines': "warnings.warn('told')\n    warnings.warn('told', RuntimeWarning)\n    return x * 2",
    'twice at a line': "[warnings.warn(text) for text in ('told', 'told too', 'told')]; return x * 2",
    'by a function': "tell('told'); return x * 2",
    'with a filter of its own': "with warnings.catch_warnings():\n        warnings.warn('told')\n    return x * 2",
    'caught': "try: warnings.warn('told')\n    except UserWarning: return x * 3\n    return x * 2",
}


def written(text: str) -> tuple[Any, dict[str, Any]]:
    """A function of a module of its own, and the module's names."""
    names: dict[str, Any] = {'__name__': 'told_here', 'warnings': warnings, 'np': np}
    source = f'def tell(text):\n    warnings.warn(text, stacklevel=2)\n\ndef of(x):\n    {text}\n'
    exec(compile(source, 'told_here.py', 'exec'), names)
    return names['of'], names


def outcomes(text: str, changes: list[str], x: Any, graphed: bool) -> tuple[list[Any], Any]:
    """What calls give and show, with a change before each, and the graphed function."""
    function, names = written(text)
    fn = ck.graphed(function) if graphed else function
    found: list[Any] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter('default')
        for change in changes:
            CHANGES[change](names)
            before = len(told)
            try:
                result: Any = float(fn(x)[0])
            except Warning as error:
                result = type(error), str(error)
            shown = [(str(one.message), one.category, one.lineno, one.filename) for one in told[before:]]
            found.append((result, shown))
    return found, fn


@pytest.fixture
def showing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what the tests set."""
    for name in ('onceregistry', 'defaultaction'):
        monkeypatch.setattr(warnings, name, getattr(warnings, name))


def test_one_that_was_shown_keeps_it_eager_until_it_is_filtered(sim: Any, showing: None) -> None:
    changes = ['nothing'] * 4 + ['a filter that shows never'] * 4
    found, fn = outcomes(TEXTS['by Python'], changes, sim.ones(1), True)
    assert [bool(shown) for _, shown in found] == [True] + [False] * 7
    assert [(one.state, one.launches) for one in fn.variants] == [('recorded', 3), ('eager', 0)]
    assert fn.variants[1].reason == 'the function warns at told_here.py:5, which a launch would not do'


@pytest.mark.parametrize('how', TEXTS)
@pytest.mark.parametrize('change', CHANGES)
def test_it_is_shown_as_without_graphs(sim: Any, showing: None, how: str, change: str) -> None:
    for changes in (['nothing'] * 4 + [change] + ['nothing'] * 4, ['nothing'] * 3 + [change] * 4):
        found, _ = outcomes(TEXTS[how], changes, sim.ones(1), True)
        assert found == outcomes(TEXTS[how], changes, sim.ones(1), False)[0]


@pytest.mark.parametrize('seed', range(6))
def test_random_changes_come_out_alike(sim: Any, showing: None, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(6):
        how = draw.choice([*TEXTS])
        changes = draw.choices([*CHANGES], [12 if name == 'nothing' else 1 for name in CHANGES], k=14)
        found, _ = outcomes(TEXTS[how], changes, sim.ones(1), True)
        assert found == outcomes(TEXTS[how], changes, sim.ones(1), False)[0], (how, changes)


def test_what_a_module_remembers() -> None:
    code: types.CodeType = sys._getframe().f_code
    line = code.co_firstlineno + 1
    inside: dict[Any, Any] = {('text', UserWarning, line): True}

    def lines(registry: Any, ran: set[int] | None = None) -> Any:
        shown = shown_before({} if registry is None else {'__warningregistry__': registry}, [code], lambda _: ran)
        return None if shown is None else shown[1]

    assert lines(None) is lines({'version': 3}) is lines({('text', UserWarning, 10**6): True}) is None
    assert lines(inside) == lines(inside, {line}) == line
    assert lines(inside, {line + 1}) is None
    whole: dict[Any, Any] = {('text', UserWarning, 0): True}
    assert lines(whole, {line + 1}) == code.co_firstlineno
