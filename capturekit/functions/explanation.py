"""The text of ``fn.explain()``: why calls of a graphed function are eager or launched."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from capturekit.functions.environment import Environment
from capturekit.functions.kind_words import Compared, Said, once, told_together
from capturekit.functions.kinds import Kind
from capturekit.functions.number_arguments import NumberArguments
from capturekit.functions.variant import Variant
from capturekit.model.counted import counted

_REMEDIES = (
    ('the function changes a setting or a log', 'Do that outside of the function.'),
    ('the function changes', 'Return the new value, and let the caller store it.'),
    ('the function creates', 'Return the new value, and let the caller store it; or create it before the first call.'),
    ('the function rebinds', 'Return the new value, and let the caller store it.'),
    ('the function deletes', 'Let the caller delete it.'),
    ('the function draws', 'Draw with cupy.random, or pass what was drawn.'),
    ('the function reads time.', 'Read the clock outside of the function.'),
    ('the function reads or writes a file', 'Do that outside of the function.'),
    ('the function starts or feeds a thread', 'Let the caller talk to the thread.'),
    ('the function opens a capture', 'Leave that capture out: the decorator records the function.'),
    ('the function is', 'Decorate a plain function, which returns its results.'),
    ('the function warns', 'Repair what the warning says, or filter it before the call.'),
    ('the result', 'Return arrays, numbers and texts, or lists, tuples and dicts of such.'),
    ('it reads so much', 'Graph a smaller part of the function.'),
    ('an argument lies on an array', 'Pass another array, or a copy.'),
    ('an argument is a part', 'Pass the whole array, or a copy of the part.'),
    ('the host read', 'Return the array, and read it outside; or decide with cp.where.'),
    ('what it depends on', 'Pass what changes as an array.'),
    ('another thread', 'Let one thread call it first, until it is recorded.'),
    ('it uses locks', 'Do that outside of the function.'),
    ('with checks', "Leave checks='later' out; or return the new value, and let the caller store it."),
    ('what it reads', 'Pass what changes as an array; or write into the array that is there, in place.'),
    ('watching its runs', 'Pass what changes as an array; or graph a smaller part of the function.'),
)

#: So many reasons for eager calls are told, those of most calls.
_TOLD = 4
#: What would change a reason of which no more is known.
OTHERWISE = 'Move that line out of the function.'


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
    return '\n'.join(lines + told_together((key, _said(kind)) for key, kind in kinds.items()) + _costs(kinds.values()))


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
    follow = sum(kind.cost.in_all for kind in kinds) * 1e3
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
    said += once([_of(variant) for variant in kind.variants])
    if kind.why_eager:
        said.append(f'calls ran eagerly because {kind.why_eager}')
        said.append(f'what would change that: {remedy_for(kind.why_eager)}')
    return said


def _last(entry: tuple[str, bool]) -> tuple[bool, bool, str]:
    """The sort key for names: functions and their parts come late, CuPy's names last, since there are many of both."""
    words, of_cupy = entry
    part = words.startswith('__') or ' of function' in words
    return of_cupy, part and not words.startswith(('variable ', 'global ')), words


def remedy_for(reason: str, otherwise: str = OTHERWISE) -> str:
    """What would change a reason; ``otherwise``, where no more is known."""
    return next((words for start, words in _REMEDIES if reason.startswith(start)), otherwise)


def _of(variant: Variant) -> list[Said]:
    said: list[Said] = [f'{variant.state}: {counted(variant.calls, "call")}, {counted(variant.launches, "launch")}']
    if variant.state == 'rehearsed':
        said.append('ran eagerly once, and is recorded when it comes back')
    if variant.reason:
        said.append(f'eager because {variant.reason}')
        said.append(f'what would change that: {remedy_for(variant.reason)}')
        return said
    environment = variant.environment
    entries = () if environment is None else environment.entries
    compared = {(one.where(), one.kind == 'of CuPy') for one in entries if one.where()}
    said.append(Compared(words for words, _ in sorted(compared, key=_last)))
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
