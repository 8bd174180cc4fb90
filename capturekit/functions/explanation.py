"""The text of ``fn.explain()``: why calls of a graphed function are eager or launched."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from capturekit.functions.environment import Environment
from capturekit.functions.kind_words import Compared, Said, once, told_together
from capturekit.functions.kinds import Kind
from capturekit.functions.number_arguments import NumberArguments
from capturekit.functions.readable_state import is_cupys
from capturekit.functions.understood import module_of
from capturekit.functions.variant import Variant
from capturekit.model.class_layout import bases_of
from capturekit.model.counted import counted

#: After so many new kinds of calls in a row, more than are kept, the user is warned of it.
_MANY = 8
_REMEDIES = (
    ('the function changes', 'Return the new value, and let the caller store it.'),
    ('the function creates', 'Return the new value, and let the caller store it; or create it before the first call.'),
    ('the function rebinds', 'Return the new value, and let the caller store it.'),
    ('the function deletes', 'Let the caller delete it.'),
    ('the function draws', 'Draw with cupy.random, or pass what was drawn.'),
    ('the function reads or writes a file', 'Do that outside of the function.'),
    ('the function starts or feeds a thread', 'Let the caller talk to the thread.'),
    ('an argument lies on an array', 'Pass another array, or a copy.'),
    ('an argument is a part', 'Pass the whole array, or a copy of the part.'),
    ('the host read', 'Return the array, and read it outside; or decide with cp.where.'),
    ('what it depends on', 'Pass what changes as an array.'),
    ('watching its runs', 'Pass what changes as an array; or graph a smaller part of the function.'),
)


class Newness:
    """Whether nearly each call of a function is of a new kind, and which argument makes it new."""

    def __init__(self, fn: Callable[..., Any], limit: int) -> None:
        self._fn = fn
        self._patience = limit + _MANY
        self._new = 0
        self._last: dict[str, Any] = {}
        self._changing: set[str] = set()
        self.came_back = 0
        self.warning = ''

    def seen(self, args: Any, kwargs: Any, why: str = '') -> str:
        """Note a call of a new kind; return the warning that is due, or ''.

        ``why``: why numbers can't be read from the device's memory instead.
        """
        self._new += 1
        now = self._named(args, kwargs)
        self._changing |= {name for name, text in now.items() if name in self._last and self._last[name] != text}
        self._last = now
        if self.warning or self._new - self.came_back < self._patience:
            return ''
        names = ', '.join(sorted(self._changing)) or 'an argument'
        self.warning = (
            f'nearly each call is of a new kind, and none comes back: {names} has another value at nearly each call. '
            'Pass it as an array (cp.asarray(value)), of the same shape and dtype each time'
            + (f'. Its graph could not read it as a number: {why}' if why else '')
        )
        return self.warning

    def _named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments by name, each with a value that differs between kinds of calls."""
        try:
            given = inspect.signature(self._fn).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):
            given = {str(number): value for number, value in enumerate(args)} | kwargs
        return {name: _word(value) for name, value in given.items()}


def _word(value: Any) -> Any:
    """A value that differs for arguments of different kinds of calls; it is found without calling the user's code."""
    if type(value) in (int, float, complex, str, bool, bytes, type(None)):
        return repr(value)
    if hasattr(type(value), 'strides') and any(is_cupys(module_of(base)) for base in bases_of(type(value))):
        return value.shape, str(value.dtype), value.strides
    if type(value) in (list, tuple):
        return [_word(part) for part in value]
    return type(value), id(value)


def explanation(
    name: str, kinds: Mapping[Any, Kind], newness: str, numbers: NumberArguments, unwatched: Mapping[str, int]
) -> str:
    """The text of ``fn.explain()``. ``unwatched``: how many calls ran eagerly without being watched, by reason."""
    lines = [f'{name}: {counted(len(kinds), "kind")} of calls']
    if numbers.positions:
        lines.append(f'  numbers that each call brings to the graph: argument {", ".join(map(str, numbers.positions))}')
    if numbers.reason:
        lines.append(f'  numbers that are a part of the kind: {numbers.reason}')
    if newness:
        lines.append(f'  eager where a kind is new: {newness}.')
    for why, calls in unwatched.items():
        lines.append(f'  {counted(calls, "call")} ran eagerly and unwatched, because {why}')
    return '\n'.join(lines + told_together((key, _said(kind)) for key, kind in kinds.items()) + _costs(kinds.values()))


def _costs(kinds: Collection[Kind]) -> list[str]:
    """What comparing takes at a call, measured now, and what following runs has taken so far."""
    found = [variant.environment for kind in kinds for variant in kind.variants if variant.environment is not None]
    if not found:
        return []
    compare = max(map(_comparison, found)) * 1e6
    follow = sum(kind.cost.in_all for kind in kinds) * 1e3
    took = f'{compare:.0f} us at a call to compare what was read, {follow:.0f} ms so far to follow runs'
    return [f'  what that takes: up to {took}; with pure=True neither']


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
    said += once([_of(variant) for variant in kind.variants])
    if kind.why_eager:
        said.append(f'calls ran eagerly because {kind.why_eager}')
        said.append(f'what would change that: {_remedy(kind.why_eager)}')
    return said


def _last(entry: tuple[str, bool]) -> tuple[bool, bool, str]:
    """The sort key for names: functions and their parts come late, CuPy's names last, since there are many of both."""
    words, of_cupy = entry
    part = words.startswith('__') or ' of function' in words
    return of_cupy, part and not words.startswith(('variable ', 'global ')), words


def _remedy(reason: str) -> str:
    found = next((words for start, words in _REMEDIES if reason.startswith(start)), '')
    return found or 'move that line out of the function.'


def _of(variant: Variant) -> list[Said]:
    said: list[Said] = [f'{variant.state}: {counted(variant.calls, "call")}, {counted(variant.launches, "launch")}']
    if variant.state == 'rehearsed':
        said.append('ran eagerly once, and is recorded when it comes back')
    if variant.reason:
        said.append(f'eager because {variant.reason}')
        said.append(f'what would change that: {_remedy(variant.reason)}')
        return said
    environment = variant.environment
    entries = () if environment is None else environment.entries
    compared = {(one.where(), one.kind == 'of CuPy') for one in entries if one.where()}
    said.append(Compared(words for words, _ in sorted(compared, key=_last)))
    if variant.carried is not None:
        said += [f'changed at each launch: {place.where()}' for place in variant.carried.places]
    said += [f'checked on the device at each launch: {read}' for read in variant.assumptions]
    for number, outcomes in variant.kept.items():
        checked = '; what is asked of it is checked on the device' if outcomes else ''
        said.append(f'made anew at each launch{checked}: {variant.rehearsal.reads[number]}')
    said += [f'called by the host at each launch: {seam}' for seam in variant.seams]
    if variant.relaned is not None:
        said.append(f'order of the nodes: {variant.relaned.in_short}')
    if variant.stream_order is not None:
        said.append(variant.stream_order.words())
    return said
