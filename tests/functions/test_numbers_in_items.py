"""Launches reckon with numbers that items of dicts hold, and put the new ones there, as plain runs do, to the bit."""

from __future__ import annotations

import collections
import json
import math
from typing import Any

import pytest

from tests.functions.test_reckoned_reads import alike, launches, ordinary

MODULE = """
class Owner:
    def __init__(self, state):
        self.state = state
        self.n, self.rate = 0, 0.5

    def counted(self):
        self.state['n'] += 1
        return self.state['n']

class Words(dict):
    def __getitem__(self, key):
        return dict.__getitem__(self, key) + 1

def moved_on(state, by):
    state['n'] += by

def maker(state):
    one, seen = Owner(state), []
    def work(x):
{body}
        return x
    return work, lambda: [one.state, STATE, state, seen, one.n, one.rate]
"""
#: By which expression code has the dict: an attribute, a variable of a closure, a global, a local variable.
DICTS = {'an attribute': 'one.state', 'a closure': 'state', 'a global': 'STATE', 'a variable': 'mine'}
NATURAL: dict[str, str] = {
    'a running mean': "D['n'] += 1; x = x / D['n']",
    'Adam': "D['n'] += 1; t = D['n']; x = x / (1 - 0.9**t) / math.sqrt(1 - 0.999**t)",
    'a rate that decays': "D['rate'] *= 0.9; x = x * D['rate'] - D['rate']",
    'one item of another': "D['n'] += 1; D['rate'] = 0.1 * 0.9 ** D['n']; x = x * D['rate']",
    'used, then changed': "x = x * D['n']; D['n'] = D['n'] + 2",
    'under a variable key': "for key in ('n', 'rate'): D[key] += 1; x = x * D[key]",
    'looked for first': "if 'n' in D: D['n'] = D['n'] + 1\nx = x * D['n']",
    'with the length of the dict': "D['n'] += len(D); x = x * D['n']",
    'a number that is read': "D['rate'] += x.sum().item(); x = x / D['rate']",
    'a read number alone': "D['rate'] = x.sum().item()",
    'a mean of what is read': "D['rate'] += float(x.max()); D['n'] += 1; seen.append(D['rate'] / D['n'])",
    'a branch that is taken once': "D['n'] += 1; x = x * D['n'] if D['n'] < 100 else x",
}
#: What else may be done with the dict, or with its items.
SEEN: dict[str, str] = {
    'the sum of all': "D['n'] += 1; x = x * sum(v for v in D.values() if type(v) in (int, float))",
    'as a text': "D['n'] *= 10; x = x * len(str(D))",
    'by get': "D['n'] += 1; x = x * D.get('n', 3)",
    'by get, of the type': "D['n'] += 1; x = x * (2 if isinstance(D.get('n'), int) else 3)",
    'of the type': "D['n'] += 1; x = x * (2 if isinstance(D['n'], int) else 3)",
    'copied': "D['n'] += 1; x = x * dict(D)['n']",
    'unpacked': "D['n'] += 1; x = x * {**D}['n']",
    'compared': "D['n'] += 1; x = x * (2 if D == {'n': 4, 'rate': 0.5, 'odd': None} else 3)",
    'as JSON': "D['n'] *= 9; x = x * len(json.dumps(D))",
    'with all items': "D['n'] += 1; x = x * [*D.items()][0][1]",
    'each by its key': "D['n'] += 1\nfor key in D:\n    x = x * (2 if D[key] == 4 else 3)",
    'by setdefault': "D['n'] += 1; x = x * D.setdefault('n', 7)",
    'updated': "D.update(n=D['n'] + 1); x = x * D['n']",
    'merged': "D.update({'n': D['n'] + 1}); x = x * D['n']",
    'by |=': "D['n'] += 1; D |= {'more': 1}; x = x * D['n']",
    'popped and put back': "D['n'] = D.pop('n') + 1; x = x * D['n']",
    'formatted': "D['n'] *= 10; x = x * len(f\"{D['n']}\")",
    'as an index': "D['n'] += 1; x = x[D['n'] % 2 :]",
    'as a range': "D['n'] += 1\nfor number in range(D['n'] % 3): x = x + number",
    'in another container': "D['n'] += 1; seen.append([D['n']]); x = x * seen[-1][0]",
    'in a list that grows': "D['n'] += 1; seen.append(D['n']); x = x * len(seen)",
    'in an attribute': "D['n'] += 1; one.n = D['n']; x = x * one.n",
    'through an attribute, asked for its type': "D['n'] += 1; one.n = D['n']; x = x * (2 if type(one.n) is int else 3)",
    'another dict in the same variable': "d = D; d['n'] += 1; d = {'n': d['n']}; x = x * len(repr(d))",
    'another dict, later': "d = {'n': 1}; d = D; d['n'] += 1; d = {'rate': d['n']}; x = x * len(repr(d))",
    'one of two': "d = D if x.size else {}; d['n'] += 1; x = x * d['n'] * len(repr(d))",
    'under a computed key': "D['n' + ''] += 1; key = 'n'; x = x * D[key[:1]]",
    'by another key': "D['n'] += 1; D[True] = D['n']; x = x * len(repr(D[1]))",
    'what was there before': "old = D['n']; D['n'] += 1; x = x * (old if old is not D['n'] else 5)",
    'given to a function of C': "D['n'] += 1; x = x * max([D['n'], 3], key=abs)",
    'through a function': "moved_on(D, 2); x = x * D['n']",
    'through two functions': "moved_on(D, 2); moved_on({'n': 1}, 3); x = x * D['n']",
    'in a comprehension': "D['n'] += 1; x = x * sum([D['n'] for _ in (1, 2)])",
    'in a function of its own': "D['n'] += 1; x = x * (lambda: D['n'])()",
    'as arguments by name': "D['n'] += 1; x = x * dict(**D)['n']",
    'matched': "D['n'] += 1\nmatch D:\n    case {'n': 4}: x = x * 2\n    case {'n': found}: x = x * found",
    'an error in between': "D['n'] += 1\ntry:\n    D['no']\nexcept KeyError:\n    D['rate'] += 1\nx *= D['rate']",
    'deleted': "D['n'] += 1; x = x * D['n']; del D['odd']; D['odd'] = None",
    'not a number for once': "D['n'] = None if D['n'] == 3 else (D['n'] or 0) + 1; x = x * (D['n'] or 9)",
    'through a method': "x = x * one.counted() if D is one.state else x * (D['n'] or 1)",
}


def made(text: str, name: str, kind: Any = dict, more: int = 0) -> Any:
    """What makes a function of this text, which has the dict in this way, and its state."""

    def maker(cp: Any) -> Any:
        of = DICTS[name]
        lines = ['mine = one.state'] if of == 'mine' else []
        lines += [' ' * (len(line) - len(line.lstrip())) + part for line in text.split('\n') for part in [line.strip()]]
        body = '\n'.join('        ' + line for line in lines)
        state = kind(*[int] if kind is collections.defaultdict else [], {'n': 2, 'rate': 0.5, 'odd': None})
        state.update({f'more {number}': number for number in range(more)})
        space: dict[str, Any] = {'math': math, 'json': json, 'cp': cp, 'STATE': state}
        exec(MODULE.replace('{body}', body).replace("D[", f'{of}[').replace('D.', f'{of}.').replace('(D', f'({of}')
             .replace(' D', f' {of}').replace('*D', f'*{of}'), space)  # fmt: skip
        work, told = space['maker'](state)
        return work, lambda: [repr(one) for one in told()]

    return maker


@pytest.mark.parametrize('number', range(len(NATURAL)), ids=[*NATURAL])
def test_each_launch_reckons_anew(sim: Any, number: int) -> None:
    text, name = [*NATURAL.values()][number], [*DICTS][number % len(DICTS)]
    assert launches(alike(sim, made(text, name), ordinary(9))) >= 4


@pytest.mark.parametrize('number', range(len(SEEN)), ids=[*SEEN])
def test_what_sees_the_dict_is_right(sim: Any, number: int) -> None:
    alike(sim, made([*SEEN.values()][number], [*DICTS][number % len(DICTS)]), ordinary(7))


@pytest.mark.parametrize('number', range(0, len(NATURAL), 3))
def test_other_dicts(sim: Any, number: int) -> None:
    text, kind = [*NATURAL.values()][number], [collections.OrderedDict, collections.defaultdict][number % 2]
    assert launches(alike(sim, made(text, 'an attribute', kind), ordinary(10))) >= 5


@pytest.mark.parametrize('more', [20, 200])
def test_numbers_in_large_dicts_are_not_looked_for(sim: Any, more: int) -> None:
    """Calls with those run eagerly, however many of their numbers change."""
    text = "D['n'] += 1; x = x / D['n']\nfor key in D: D[key] = D[key] and D[key] + 1"
    for each in (text.partition('\n')[0], text):
        launched = launches(alike(sim, made(each, 'an attribute', more=more), ordinary(8)))
        assert (launched > 0) == (more == 20 and each is not text)


@pytest.mark.parametrize('text', [NATURAL['Adam'], NATURAL['a number that is read'], SEEN['the sum of all']])
def test_on_a_device(cp: Any, text: str) -> None:
    assert (launches(alike(cp, made(text, 'an attribute'), ordinary(10))) >= 5) == (text is not SEEN['the sum of all'])
