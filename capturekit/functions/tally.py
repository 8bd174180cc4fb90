"""What became of the calls of a graphed function: how many were launched, and why the others ran eagerly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from capturekit.functions.faster_way import FASTER, TIMED
from capturekit.functions.kinds import Kind
from capturekit.launch.plan import Seam
from capturekit.model.counters import LOG
from capturekit.model.source_line import Place

#: Why calls run eagerly that could be launched later.
WATCHED, CHECKED = 'to see what they read', 'because a host read gave another value'
NESTED, BESIDE = 'within another call of this function', 'because another thread was in a graphed function'
#: After so many calls that ran eagerly since the last launch, each of them of a kind that was there before, the user is
#: told. None: never.
FEW: int | None = 6
#: Up to so many calls of the host between graphs, recording in pieces is likely to be worth it.
FEW_SEAMS = 4
_VALUE = re.compile(r'(?<= )-?\d[^ ]*')


class Tally:
    """Counts calls, and says once why some run eagerly. ``logged`` are the reasons that were already logged."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.logged: set[str] = set()
        #: How many calls ran eagerly, by reason.
        self.eager: Counter[str] = Counter()
        self._alike: dict[str, str] = {}  # the first of the reasons that differ only in the values that they name
        #: How many were launched, of kinds that were dropped.
        self.dropped = 0
        #: How many ran eagerly, without the first ones of each kind, since so many had been launched.
        self.in_vain = self._launched = 0
        #: What the logger was told last.
        self.said = ''

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
        self.eager[self._alike.setdefault(_VALUE.sub('#', why), why)] += 1
        if why is not FASTER and why is not TIMED:
            self.in_vain += in_vain

    def say(self, reason: str) -> None:
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
        if len(seams) > FEW_SEAMS and 'seams' not in self.logged:
            self.logged.add('seams')
            where = ', '.join(dict.fromkeys(f'{seam.name} at {seam.at}' for seam in seams))
            LOG.warning(
                '%s: %d calls that no capture can hold stand between its graphs (%s). Each waits for the device: '
                'compare with the eager run (pieces=False), and see fn.variants[0].seams for what each costs.',
                self.name, len(seams), where,
            )  # fmt: skip
