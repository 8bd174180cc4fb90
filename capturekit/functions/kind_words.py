"""Kinds of calls in words: what was given, and which kinds are told together because the same is said of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Union

from capturekit.functions.number_arguments import Mark
from capturekit.model.counted import counted
from capturekit.model.plain_values import Held

#: Texts are cut to so many characters, and so many of the compared values are named.
_LONG, _NAMED = 40, 12
#: A line, or the names of what is compared.
Said = Union[str, 'Compared']
_BRACKETS = {tuple: '({})', list: '[{}]'}


def given(key: Any, values: bool = True) -> str:
    """The arguments of a kind of call: arrays by dtype and shape, others by value, or by type without ``values``."""
    arrays = [f'{one[2].name}{list(one[0])}' for one in key[2:] if _is_array(one)]
    form = key[0][0] if type(key[0]) is tuple else None
    if not (type(form) is tuple and len(form) == 3 and form[0] is tuple):
        return ', '.join(arrays) or 'no arguments'
    _, positional, named = form
    words = [_words(part, arrays, values) for part in positional[1:]]
    if len(named) > 1 and named[1]:
        words += [f'{name}={_words(part, arrays, values)}' for name, part in zip(named[1], named[2:])]
    return ', '.join(words) or 'no arguments'


def _is_array(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 4 and hasattr(one[2], 'name')


def _words(part: Any, arrays: Sequence[str], values: bool) -> str:
    """One argument, as :func:`capturekit.model.pytree.take_apart` describes it."""
    if type(part) is int:
        return arrays[part] if part < len(arrays) else 'an array'
    cls = part[0] if type(part) is tuple and part else part
    if cls in _BRACKETS:
        inside = ', '.join(_words(one, arrays, values) for one in part[1:])
        return _BRACKETS[cls].format(inside)
    if cls is dict and len(part) > 1 and type(part[1]) is tuple:
        named = zip(part[1], part[2:])
        return '{' + ', '.join(f'{_key(name)}: {_words(one, arrays, values)}' for name, one in named) + '}'
    if cls is type(None):
        return 'None'
    if isinstance(part, Held):
        return repr(part.value if type(part.value) is Mark else part)[1:-1]
    if not isinstance(cls, type):
        return 'an object'
    if cls in (int, float, complex, bool, str, bytes) and len(part) == 2:
        text = repr(part[1]) if values else f'a different {cls.__name__} in each'
        return text if len(text) <= _LONG else text[: _LONG - 3] + '...'
    return cls.__name__


def _key(key: Any) -> str:
    """A key of a dict: a text stands as it is, others with their type."""
    return repr(key[1] if type(key) is tuple and len(key) == 2 else key)


def numbered(numbers: Iterable[int]) -> str:
    """``kind 3``, or ``kinds 1 to 4, 6 and 8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [
        f'{run[0]} to {run[-1]}' if len(run) > 2 else f'{run[0]}, {run[-1]}' if len(run) == 2 else f'{run[0]}'
        for run in runs
    ]
    if len(words) == 1 and len(runs[0]) == 1:
        return f'kind {words[0]}'
    return 'kinds ' + ', '.join(words)


class Compared(tuple[str, ...]):
    """The names of what is compared at each call."""

    def lines(self, last: Compared | None) -> list[str]:
        """Its lines; ``last``: what was compared in the entry before, which is not said again."""
        if self and self == last:
            return [f'compared at each call: the arguments, and the same {len(self)} others']
        return [
            f'compared at each call: shapes, dtypes and values of the arguments, and {len(self)} others',
            *(f'  {entry}' for entry in self[:_NAMED]),
            *(['  ...'] if len(self) > _NAMED else []),
        ]


def told_together(kinds: Iterable[tuple[Any, list[Said]]]) -> list[str]:
    """Lines for kinds of calls, each a key and what is said of it; kinds of which the same is said have one entry."""
    groups: dict[tuple[str, tuple[Said, ...]], list[tuple[int, Any]]] = {}
    for number, (key, said) in enumerate(kinds, 1):
        groups.setdefault((given(key, values=False), tuple(said)), []).append((number, key))
    lines, last = [], None
    for (alike, parts), members in groups.items():
        words = alike if len(members) > 1 else given(members[0][1])
        lines.append(f'  {numbered([number for number, _key in members])}: {words}')
        for part in parts:
            if isinstance(part, Compared):
                lines += [f'    {line}' for line in part.lines(last)]
                last = part
            else:
                lines.append(f'    {part}')
    return lines


def once(variants: Iterable[list[Said]]) -> list[Said]:
    """What is said of variants; what the same is said of more than one that follow each other is said once."""
    said: list[Said] = []
    for body, alike in groupby(variants):
        count = len(list(alike))
        first, *others = body
        said += [f'{first} (in each of {counted(count, "variant")})' if count > 1 else first, *others]
    return said
