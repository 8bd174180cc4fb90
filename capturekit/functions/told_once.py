"""Whether the user is told that a graphed function runs eagerly: once, by a warning that shows without being asked for.

The warning names the line of the call, which is always the user's: the function may be a library's. It comes before
the function runs, so that a program that takes warnings for errors finds nothing done.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np

from capturekit.functions.explanation import OTHERWISE, remedy_for
from capturekit.functions.faster_way import TimedWays
from capturekit.functions.kinds import Kind
from capturekit.functions.tally import Tally
from capturekit.model.counted import counted
from capturekit.model.errors import PerformanceWarning
from capturekit.model.source_line import Place, here

_ATTRIBUTE = re.compile(r'attribute (\w+) of ')
_LESS = 'Leave it undecorated, or graph a function that does more at each call.'
_BY_NAME = 'An attribute of another name, which arrays do not have, could be computed with at each launch. '


def tell_of_calls(tally: Tally, fn: Any, kind: Kind | None, launched: int) -> None:
    """Warn that calls run eagerly, the last one of this kind; ``launched``: how many were launched."""
    cause = (cause_of(kind) if kind is not None else '') or tally.said or 'each call goes another way'
    named = _ATTRIBUTE.search(cause)
    more = _BY_NAME if named is not None and hasattr(np.ndarray, named[1]) else ''
    eager = tally.eager.total()
    words = f'{eager} of the {counted(launched + eager, "call")} of {tally.name} ran eagerly'
    remedy = remedy_for(cause, '' if '. ' in cause else OTHERWISE)
    _warn(f'{words}: {cause.rstrip(".")}. {more}{remedy}'.rstrip(), fn)


def tell_of_times(name: str, fn: Any, contest: TimedWays) -> None:
    """Warn that a function runs eagerly since that is faster."""
    _warn(f'Calls of {name} run eagerly, since that is faster: {contest}. {_LESS}', fn)


def cause_of(kind: Kind) -> str:
    """Why the last calls of a kind ran eagerly; '' if nothing is known."""
    with kind.lock:
        first = kind.variants[0] if kind.variants else None
        if first is not None and first.reason:
            return first.reason
        changed = None if first is None or kind.transient else first.changed()
        if changed:
            return f'what it reads besides its arguments is another one at nearly each call: {changed}'
        return kind.why_missed or kind.why_eager


def _warn(words: str, fn: Any) -> None:
    code = getattr(fn, '__code__', None)
    own = None if code is None else Place(code.co_filename, code.co_firstlineno, '')
    at = here() or own
    defined = '' if own is None else f' It is defined at {own.short}.'
    words = f'{words}{defined} `explain()` tells more.'
    if at is not None:
        warnings.warn_explicit(words, PerformanceWarning, at.file, at.line)
