"""What became of the calls of a graphed function: which were launched, and whether nearly each was of a new kind."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import length_hint
from typing import Any, NamedTuple

from capturekit.graphed import policy
from capturekit.graphed.allowlists import module_of
from capturekit.graphed.faster_way import FASTER, TIMED
from capturekit.graphed.kinds import Kind
from capturekit.graphed.ownership import is_cupys
from capturekit.graphed.reasons import NONE, Reason
from capturekit.launch.plan import Seam
from capturekit.model.class_layout import bases_of
from capturekit.model.counters import LOG
from capturekit.model.source_line import Place

#: Why calls run eagerly that could be launched later.
WATCHED, CHECKED = 'to see what they read', 'because a host read gave another value'
NESTED, BESIDE = 'within another call of this function', 'because another thread was in a graphed function'
_VALUE = re.compile(r'(?<= )-?\d[^ ]*')


class Tally:
    """Counts calls, and says once why some run eagerly. ``logged`` are the reasons that were already logged."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.logged: set[str] = set()
        self._eager: Counter[str] = Counter()
        #: The function, as often as its next calls run eagerly without a look; how often it was, and why they do.
        self.unseen: Iterator[Any] = iter(())
        self._let, self._why_unseen = 0, ''
        self._alike: dict[str, str] = {}  # the first of the reasons that differ only in the values that they name
        #: How many were launched, of kinds that were dropped.
        self.dropped = 0
        #: How many ran eagerly, without the first ones of each kind, since so many had been launched.
        self.in_vain = self._launched = 0
        #: What the logger was told last.
        self.said = NONE

    @property
    def eager(self) -> Counter[str]:
        """How many calls ran eagerly, by reason."""
        left = length_hint(self.unseen)
        if left < self._let:
            self._eager[self._why_unseen] += self._let - left
            self._let = left
        return self._eager

    def let_run(self, calls: int, why: str) -> None:
        """Let so many of the next calls run eagerly without a look."""
        assert self.eager is not None  # those that ran until now are counted
        self.unseen, self._let, self._why_unseen = repeat(self._fn, calls), calls, why

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return str(getattr(self._fn, '__qualname__', repr(self._fn)))

    def launched(self, kinds: Iterable[Kind]) -> int:
        """How many calls were launched, of these kinds and of those that were dropped."""
        return self.dropped + sum(kind.launches() for kind in kinds)

    def none_was_launched(self, kinds: Iterable[Kind]) -> bool:
        """Whether no call was launched among those that are counted as in vain; else the count begins anew."""
        before, self._launched = self._launched, self.launched(kinds)
        self.in_vain *= before == self._launched
        return self.in_vain > 0

    def ran(self, why: str, in_vain: bool = True) -> None:
        """Count a call that runs eagerly, and whether a launch of it was to be hoped for."""
        if why not in self._eager:
            why = self._alike.setdefault(_VALUE.sub('#', why), why)
        self._eager[why] += 1
        if why is not FASTER and why is not TIMED:
            self.in_vain += in_vain

    def say(self, reason: Reason) -> None:
        """Say once why calls run eagerly."""
        self.said = reason
        kind = re.sub(r'\d+', '#', reason)  # the same reason with other numbers is not logged again
        if kind not in self.logged:
            self.logged.add(kind)
            code = getattr(self._fn, '__code__', None)
            at = '' if code is None else f' ({Place(code.co_filename, code.co_firstlineno, "").short})'
            LOG.warning('%s%s runs eagerly: %s', self.name, at, reason)

    def say_seams(self, seams: Sequence[Seam]) -> None:
        """Say once that many calls stand between the graphs of a recording."""
        if len(seams) > policy.FEW_SEAMS and 'seams' not in self.logged:
            self.logged.add('seams')
            where = ', '.join(dict.fromkeys(f'{seam.name} at {seam.at}' for seam in seams))
            LOG.warning(
                '%s: %d calls that no capture can hold stand between its graphs (%s). Each waits for the device: '
                'compare with the eager run (pieces=False), and see fn.variants[0].seams for what each costs.',
                self.name, len(seams), where,
            )  # fmt: skip


_FORM = 'Pass arrays of the same form each time, padded to one size for example'
_AS_ARRAY = 'Pass it as an array (cp.asarray(value)), of the same shape and dtype each time'


class _Form(NamedTuple):
    """What differs between arrays of different kinds of calls."""

    shape: Any
    dtype: str
    strides: Any


class Newness:
    """Whether nearly each call of a function is of a new kind, and which argument makes it new."""

    def __init__(self, fn: Callable[..., Any], limit: int) -> None:
        self._fn = fn
        self._limit = limit
        self._patience = limit + policy.NEW_KINDS
        self._new = self._again = 0
        #: The kinds that there were, by hash.
        self._known: set[int] = set()
        self._last: dict[str, Any] = {}
        self._changing: set[str] = set()
        self.came_back = 0
        self.warning = ''

    def seen(self, key: Any, args: Any, kwargs: Any, why: str = '') -> str:
        """Note a call of a new kind, or of one that was dropped; return the warning that is due, or ''.

        ``key`` is the kind's. ``why``: why numbers can't be read from the device's memory instead.
        """
        if self.warning:
            return ''
        self._new += 1
        self._again += hash(key) in self._known
        self._known.add(hash(key))
        now = self._named(args, kwargs)
        self._changing |= {name for name, text in now.items() if name in self._last and self._last[name] != text}
        self._last = now
        if self._new - self.came_back < self._patience:
            return ''
        if self._again:
            self.warning = (
                f'nearly each call is of a kind that was dropped: {len(self._known)} kinds of calls come in turn, and '
                f'only the last {self._limit} are kept. Keep more, by `ck.graphed(limit=...)`'
            )
            return self.warning
        arrays = {name for name in self._changing if isinstance(now.get(name), _Form)}
        values = self._changing - arrays
        said = [f'{_all(arrays)} has another shape, dtype or strides at nearly each call. {_FORM}'] if arrays else []
        if values or not arrays:
            said.append(f'{_all(values) or "an argument"} has another value at nearly each call. {_AS_ARRAY}')
            said += [f'Its graph could not read it as a number: {why}'] if why else []
        self.warning = f'nearly each call is of a new kind, and none comes back: {". ".join(said)}'
        return self.warning

    def _named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments by name, each with a value that differs between kinds of calls."""
        try:
            given = inspect.signature(self._fn).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):
            given = {str(number): value for number, value in enumerate(args)} | kwargs
        return {name: _word(value) for name, value in given.items()}


def _all(names: set[str]) -> str:
    return ', '.join(sorted(names))


def _word(value: Any) -> Any:
    """A value that differs for arguments of different kinds of calls; it is found without calling the user's code."""
    if type(value) in (int, float, complex, str, bool, bytes, type(None)):
        return repr(value)
    if hasattr(type(value), 'strides') and any(is_cupys(module_of(base)) for base in bases_of(type(value))):
        return _Form(value.shape, str(value.dtype), value.strides)
    if type(value) in (list, tuple):
        return [_word(part) for part in value]
    return type(value), id(value)
