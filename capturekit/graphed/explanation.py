"""What the user is told of a graphed function: the text of ``fn.explain()``, and the warning that it runs eagerly.

The warning is shown once, without being asked for. It names the line of the call, which is always the user's: the
function may be a library's. It comes before the function runs, so that a program that takes warnings for errors finds
nothing done.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from capturekit.graphed.environment import Environment
from capturekit.graphed.faster_way import TimedWays
from capturekit.graphed.kinds import Kind
from capturekit.graphed.number_arguments import Mark, NumberArguments
from capturekit.graphed.reasons import DIFFERENT, NONE, Reason, Why
from capturekit.graphed.tally import Tally
from capturekit.graphed.variant import Variant
from capturekit.model.counted import counted
from capturekit.model.errors import PerformanceWarning
from capturekit.model.plain_values import Held
from capturekit.model.source_line import Place, here

#: Texts are cut to so many characters, and so many of the compared values are named.
_LONG, _NAMED = 40, 12
#: A line, or the names of what is compared.
Said = str | tuple[str, ...]
_BRACKETS = {tuple: '({})', list: '[{}]'}


def given(key: Any) -> str:
    """The arguments of a kind of call: arrays by dtype and shape, others by value."""
    described = [one for one in key[2:] if isinstance(one, tuple) and len(one) == 4 and hasattr(one[2], 'name')]
    arrays = [f'{one[2].name}{list(one[0])}' for one in described]
    form = key[0][0]
    if not (type(form) is tuple and len(form) == 3 and form[0] is tuple):
        return ', '.join(arrays) or 'no arguments'
    _, positional, named = form
    words = [_words(part, arrays) for part in positional[1:]]
    if len(named) > 1 and named[1]:
        words += [f'{name}={_words(part, arrays)}' for name, part in zip(named[1], named[2:])]
    return ', '.join(words) or 'no arguments'


def _words(part: Any, arrays: Sequence[str]) -> str:
    """One argument, as :func:`capturekit.model.pytree.take_apart` describes it."""
    if type(part) is int:
        return arrays[part] if part < len(arrays) else 'an array'
    cls = part[0] if type(part) is tuple and part else part
    if cls in _BRACKETS:
        inside = ', '.join(_words(one, arrays) for one in part[1:])
        return _BRACKETS[cls].format(inside)
    if cls is dict and len(part) > 1 and type(part[1]) is tuple:
        named = zip(part[1], part[2:])
        return '{' + ', '.join(f'{_key(name)}: {_words(one, arrays)}' for name, one in named) + '}'
    if cls is type(None):
        return 'None'
    if isinstance(part, Held):
        return repr(part.value if type(part.value) is Mark else part)[1:-1]
    if not isinstance(cls, type):
        return 'an object'
    if cls in (int, float, complex, bool, str, bytes) and len(part) == 2:
        text = repr(part[1])
        return text if len(text) <= _LONG else text[: _LONG - 3] + '...'
    return cls.__name__


def _key(key: Any) -> str:
    """A key of a dict: a text stands as it is, others with their type."""
    return repr(key[1] if type(key) is tuple and len(key) == 2 else key)


def _names_of(compared: tuple[str, ...], last: tuple[str, ...]) -> list[str]:
    """The lines for what is compared; ``last``: what was in the entry before, which is not said again."""
    if compared and compared == last:
        return [f'compared at each call: the arguments, and the same {len(compared)} others']
    return [
        f'compared at each call: shapes, dtypes and values of the arguments, and {len(compared)} others',
        *(f'  {entry}' for entry in compared[:_NAMED]),
        *(['  ...'] if len(compared) > _NAMED else []),
    ]


def told_in_turn(kinds: Iterable[tuple[Any, list[Said]]]) -> list[str]:
    """Lines for kinds of calls, each a key and what is said of it."""
    lines, last = list[str](), tuple[str, ...]()
    for number, (key, said) in enumerate(kinds, 1):
        lines.append(f'  kind {number}: {given(key)}')
        for part in said:
            lines += [f'    {line}' for line in ([part] if isinstance(part, str) else _names_of(part, last))]
            last = last if isinstance(part, str) else part
    return lines


#: So many reasons for eager calls are told, those of most calls.
_TOLD = 4


def explanation(
    name: str, kinds: Mapping[Any, Kind], newness: str, numbers: NumberArguments, launched: int, eager: Counter[str]
) -> str:
    """The text of ``fn.explain()``. ``launched``: how many calls were; ``eager``: how many were not, by reason."""
    lines = [_in_short(launched, eager)]
    lines.append(f'{name}: {counted(len(kinds), "kind")} of {"call" if len(kinds) == 1 else "calls"}')
    if numbers.positions:
        lines.append(f'  numbers that each call brings to the graph: argument {", ".join(map(str, numbers.positions))}')
    if numbers.reason:
        lines.append(f'  numbers that are a part of the kind: {numbers.reason}')
    if newness:
        lines.append(f'  eager where a kind is new: {newness}.')
    return '\n'.join(lines + told_in_turn((key, _said(kind)) for key, kind in kinds.items()) + _costs(kinds.values()))


def _in_short(launched: int, eager: Counter[str]) -> str:
    """How many calls were launched, and why others ran eagerly, in one line."""
    others = eager.total()
    told = eager.most_common(_TOLD)
    why = ', '.join(f'{calls} {reason}' for reason, calls in told)
    if len(eager) > len(told):
        why += f', {others - sum(calls for _, calls in told)} for other reasons'
    return f'launched {launched} of {launched + others}' + (f'; {others} eager: {why}' if others else '')


def _costs(kinds: Collection[Kind]) -> list[str]:
    """What comparing takes at a call, measured now, and what following runs has taken so far."""
    found = [variant.environment for kind in kinds for variant in kind.variants if variant.environment is not None]
    if not found:
        return []
    compare = max(map(_comparison, found)) * 1e6
    follow = sum(kind.seconds for kind in kinds) * 1e3
    took = f'comparing takes up to {compare:.0f} us at a call, and following runs has taken {follow:.0f} ms'
    return [f'  {took}; pure=True saves both']


def _comparison(environment: Environment) -> float:
    """The seconds that a comparison takes; the least of three, since the first one may prepare the others."""
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        environment.changed()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def _said(kind: Kind) -> list[Said]:
    """What is said of a kind."""
    said: list[Said] = []
    if kind.shared:
        said.append('arguments that share memory, as they lie')
    if not kind.variants:
        said.append('seen once: it runs eagerly and is watched when it comes back')
    if kind.contest is not None and kind.contest.took is not None:
        said.append(f'{kind.contest}' + (': it runs eagerly, and is tried again' if kind.contest.eager else ''))
    said += [words for variant in kind.variants for words in _of(variant)]
    if kind.why_eager:
        said.append(f'calls ran eagerly because {kind.why_eager}')
        said.append(f'what would change that: {kind.why_eager.why.remedy}')
    return said


def _last(entry: tuple[str, bool]) -> tuple[bool, bool, str]:
    """The sort key for names: functions and their parts come late, CuPy's names last, since there are many of both."""
    words, of_cupy = entry
    part = words.startswith('__') or ' of function' in words
    return of_cupy, part and not words.startswith(('variable ', 'global ')), words


def _of(variant: Variant) -> list[Said]:
    said: list[Said] = [f'{variant.state}: {counted(variant.calls, "call")}, {counted(variant.launches, "launch")}']
    if variant.state == 'rehearsed':
        said.append('ran eagerly once, and is recorded when it comes back')
    if variant.reason:
        said.append(f'eager because {variant.reason}')
        said.append(f'what would change that: {variant.reason.why.remedy}')
        return said
    environment = variant.environment
    entries = () if environment is None else environment.entries
    compared = {(one.where(), one.kind == 'of CuPy') for one in entries if one.where()}
    said.append(tuple([words for words, _ in sorted(compared, key=_last)]))
    if variant.carried is not None:
        said += [f'{place.how} at each launch: {place.where()}' for place in variant.carried.places]
    said += [f'checked on the device at each launch: {read}' for read in variant.assumptions]
    for number, outcomes in variant.kept.items():
        checked = ', and how it compares is checked on the device' if outcomes else ''
        said.append(f'read anew at each launch{checked}: {variant.rehearsal.reads[number]}')
    said += [f'called by the host at each launch: {seam}' for seam in variant.seams]
    if variant.relaned is not None:
        said.append(f'order of the nodes: {variant.relaned.in_short}')
    if variant.stream_order is not None:
        said.append(variant.stream_order.words())
    return said


_LESS = 'Leave it undecorated, or graph a function that does more at each call.'
_BY_NAME = 'An attribute of another name, which arrays do not have, could be computed with at each launch. '


def tell_of_calls(tally: Tally, fn: Any, kind: Kind | None, launched: int) -> None:
    """Warn that calls run eagerly, the last one of this kind; ``launched``: how many were launched."""
    cause = (cause_of(kind) if kind is not None else NONE) or tally.said or Reason('each call goes another way')
    more = _BY_NAME if cause.about and hasattr(np.ndarray, str(cause.about)) else ''
    eager = tally.eager.total()
    words = f'{eager} of the {counted(launched + eager, "call")} of {tally.name} ran eagerly'
    remedy = '' if cause.why is Why.TOLD else cause.why.remedy
    _warn(f'{words}: {cause.rstrip(".")}. {more}{remedy}'.rstrip(), fn)


def tell_of_times(name: str, fn: Any, contest: TimedWays) -> None:
    """Warn that a function runs eagerly since that is faster."""
    _warn(f'Calls of {name} run eagerly, since that is faster: {contest}. {_LESS}', fn)


def cause_of(kind: Kind) -> Reason:
    """Why the last calls of a kind ran eagerly."""
    with kind.lock:
        first = kind.variants[0] if kind.variants else None
        if first is not None and first.reason:
            return first.reason
        changed = None if first is None else first.changed()
        if changed:
            return Reason(f'{DIFFERENT}: {changed}', Why.READS, changed.about)
        return kind.why_missed or kind.why_eager


def _warn(words: str, fn: Any) -> None:
    code = getattr(fn, '__code__', None)
    own = None if code is None else Place(code.co_filename, code.co_firstlineno, '')
    at = here() or own
    defined = '' if own is None else f' It is defined at {own.short}.'
    words = f'{words}{defined} `explain()` tells more.'
    if at is not None:
        warnings.warn_explicit(words, PerformanceWarning, at.file, at.line)
