"""Warnings that a filter shows each time are shown by launches, too, as eager calls show them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import capturekit as ck
from capturekit.functions.warnings_repeated import RepeatedWarnings, ShownWarning
from capturekit.functions.warnings_shown import FORGETS_IN_CONTEXTS, action_for
from capturekit.guard import watch

pytestmark = pytest.mark.skipif(FORGETS_IN_CONTEXTS, reason='contexts have filters of their own')

LAUNCHED = {
    'a text': "warnings.warn('told')",
    'two': "warnings.warn('told')\n    warnings.warn('and this', RuntimeWarning)",
    'one twice': "for _ in range(2): warnings.warn('told')",
    'an object': "warnings.warn(Mine('told'))",
    'of a helper': "tell('told')",
    'beside state': "model.count += 1; warnings.warn('told'); x = x * model.rate",
    'a value read': 'warnings.warn(str(float(y[0])))',
}
WITHIN = 'with warnings.catch_warnings():\n        '
EAGER = {
    'one that keeps more': "warnings.warn(Keeping('told'))",
    'one with a number': "warnings.warn(UserWarning('told', 3))",
    'its own filter': f"{WITHIN}warnings.simplefilter('ignore', Mine)\n        warnings.warn('told')",
    'gathered by itself': "with warnings.catch_warnings(record=True):\n        warnings.warn('told')",
    'a registry of its own': "warnings.warn_explicit('told', UserWarning, 'told_here.py', 5, 'told_here', {})",
    'with its source': "warnings.warn('told', source=model)",
}


class Mine(UserWarning):
    """A class of a user."""


class Keeping(UserWarning):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.kept = text


class Model:
    def __init__(self) -> None:
        self.count, self.rate = 0, 2.0


def written(text: str) -> dict[str, Any]:
    """A function of a module of its own, and the module's names."""
    names: dict[str, Any] = {'__name__': 'told_here', 'warnings': warnings, 'model': Model()}
    names.update(Mine=Mine, Keeping=Keeping)
    source = f'def tell(text):\n    warnings.warn(text, stacklevel=2)\n\ndef of(x, y):\n    {text}\n    return x * 2\n'
    exec(compile(source, 'told_here.py', 'exec'), names)
    return names


def told(log: list[Any]) -> list[Any]:
    return [(type(one.message), one.message.args, one.category, one.filename, one.lineno) for one in log]


def outcomes(sim: Any, names: dict[str, Any], graphed: bool, calls: int = 6, **options: Any) -> tuple[list[Any], Any]:
    """What calls give and show, and the function."""
    fn = ck.graphed(names['of'], **options) if graphed else names['of']
    found, y = [], sim.ones(1)
    for call in range(calls):
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter('always')
            found.append((float(fn(sim.full(1, call), y)[0]), told(log), names['model'].count))
    return found, fn


@pytest.mark.parametrize('text', LAUNCHED)
def test_launches_show_what_calls_show(sim: Any, text: str) -> None:
    found, fn = outcomes(sim, written(LAUNCHED[text]), True)
    assert found == outcomes(sim, written(LAUNCHED[text]), False)[0]
    assert all(shown for _, shown, _ in found)
    assert sum(variant.launches for variant in fn.variants) >= 3


@pytest.mark.parametrize('text', EAGER)
def test_what_can_not_be_made_again_stays_eager(sim: Any, text: str) -> None:
    found, fn = outcomes(sim, written(EAGER[text]), True)
    assert found == outcomes(sim, written(EAGER[text]), False)[0]
    assert not sum(variant.launches for variant in fn.variants)


@pytest.mark.parametrize(('options', 'launches'), [({'check': 1}, 4), ({'checks': 'later'}, 0)])
def test_each_call_shows_once_whatever_is_compared(sim: Any, options: Any, launches: int) -> None:
    text = LAUNCHED['two']
    found, fn = outcomes(sim, written(text), True, **options)
    assert found == outcomes(sim, written(text), False)[0]
    assert sum(variant.launches for variant in fn.variants) >= launches


def test_a_function_that_shows_them_is_called(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    fn, y = ck.graphed(written(LAUNCHED['two'])['of']), sim.ones(1)
    with warnings.catch_warnings():
        warnings.simplefilter('always')
        monkeypatch.setattr(warnings, 'showwarning', lambda message, *_: seen.append(str(message)))
        for call in range(6):
            fn(sim.full(1, call), y)
    assert seen == ['told', 'and this'] * 6


def test_a_recording_that_fails_shows_each_once(sim: Any) -> None:
    names = written("warnings.warn('told'); cut(x)")
    names['cut'] = lambda x: float(x[0]) and warnings.warn('another', stacklevel=1)
    found, _ = outcomes(sim, names, True)
    assert found == outcomes(sim, names, False)[0]


def test_another_default_is_seen(sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, y = ck.graphed(written(LAUNCHED['a text'])['of']), sim.ones(1)
    with warnings.catch_warnings(record=True) as log:
        warnings.resetwarnings()
        for action in ['always'] * 5 + ['ignore', 'always']:
            monkeypatch.setattr(warnings, 'defaultaction', action)
            fn(y, y)
    assert len(log) == 6
    assert sum(variant.launches for variant in fn.variants) >= 3


def test_other_filters_are_seen(sim: Any) -> None:
    fn, y = ck.graphed(written(LAUNCHED['a text'])['of']), sim.ones(1)
    outcomes_ = []
    for action in ('always', 'always', 'always', 'ignore', 'always', 'error', 'always'):
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter(action)  # type: ignore[arg-type]
            try:
                fn(y, y)
            except UserWarning:
                outcomes_.append(-1)
            else:
                outcomes_.append(len(log))
    assert outcomes_ == [1, 1, 1, 0, 1, -1, 1]
    assert sum(variant.launches for variant in fn.variants) >= 2


@pytest.mark.parametrize(
    ('texts', 'line', 'same'), [(['told'], 3, True), (['told'], 4, False), ([], 3, False), (['told', 'too'], 3, False)]
)
def test_a_run_that_shows_others_is_not_as_recorded(sim: Any, texts: list[str], line: int, same: bool) -> None:
    place = RepeatedWarnings([ShownWarning(UserWarning, ('told',), UserWarning, __file__, 3)])
    assert place.where() == 'the warnings of test_warnings_repeated.py:3' and place.is_as_recorded(None)
    with warnings.catch_warnings(record=True) as log, watch():
        warnings.simplefilter('always')
        place.begin(iter(()))
        for text in texts:
            warnings.warn_explicit(text, UserWarning, __file__, line)
        assert place.is_as_recorded(None) is same
        place.end(None)
        assert not log
        place.change(None)
    assert told(log) == [(UserWarning, ('told',), UserWarning, __file__, 3)]


@pytest.mark.parametrize(
    ('filters', 'action'),
    [
        ([('always', None, UserWarning, None, 0)], 'always'),
        ([('ignore', None, RuntimeWarning, None, 0), ('always', None, Warning, None, 0)], 'always'),
        ([('ignore', None, Warning, None, 4), ('once', None, Warning, None, 7)], 'once'),
        ([('always', None, Warning, 'somewhere', 0), ('always', None, Warning, None, 0)], None),
        ([('error', 'other', Warning, None, 0), ('ignore', 'told', Warning, None, 0)], 'ignore'),
        ([], 'default'),
    ],
)
def test_what_filters_do(monkeypatch: pytest.MonkeyPatch, filters: Any, action: Any) -> None:
    monkeypatch.setattr(warnings, 'filters', filters)
    monkeypatch.setattr(warnings, 'defaultaction', 'default')
    assert action_for('told', UserWarning, 7) == action
