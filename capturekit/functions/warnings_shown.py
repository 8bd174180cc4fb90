"""Warnings that code has shown before: Python shows most of them once for each line, and a launch shows none.

Python forgets what it has shown when the filters change, also by ``warnings.catch_warnings`` anywhere in the process.
An eager run would then show the warning again, even if the run that was followed did not. So a launch answers a call
only as long as Python has forgotten nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

_REGISTRY = '__warningregistry__'
#: The line under which a warning counts as shown for a whole module.
_WHOLE_MODULE = 0
#: The actions of filters by which Python shows a warning each time.
EACH_TIME = frozenset({'always', 'all'})
#: Since Python 3.14 a context may have filters of its own, so that what was shown is not known for all of them.
FORGETS_IN_CONTEXTS = sys.version_info >= (3, 14)


class ShownWarnings(NamedTuple):
    """Warnings that lines of one module have shown: its dictionary, what Python remembers of each, and one line."""

    module: dict[str, Any]
    remembered: tuple[tuple[Any, ...], ...]
    code: CodeType
    line: int

    def are_remembered(self) -> bool:
        """Whether Python remembers that it has shown them, so that it does not show them again."""
        registry = self.module.get(_REGISTRY)
        shows = warnings.defaultaction in EACH_TIME or any(  # type: ignore[attr-defined]
            one[0] in EACH_TIME and one[2] is Warning for one in warnings.filters
        )
        if type(registry) is not dict or shows:  # the warning below would be shown
            return False
        with suppress(_Asked):
            # Python looks for it, and first forgets everything else if the filters have changed.
            warnings.warn_explicit(_Probe(), _Asked, '', 1, '', registry)
        return all(one in registry for one in self.remembered)


class _Asked(Warning):
    """Raised where Python looks whether it has shown a warning before."""


class _Probe(str):
    """The text of a warning that is never shown."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise _Asked


def action_for(text: str, category: type[Warning], line: int) -> str | None:
    """What Python does with such a warning, whichever module it comes from; None if the module counts."""
    for action, texts, one_category, modules, one_line in warnings.filters:
        if not issubclass(category, one_category) or one_line not in (0, line):
            continue
        if texts is None or (text == texts if isinstance(texts, str) else texts.match(text)):
            return action if modules is None else None
    default: str = warnings.defaultaction  # type: ignore[attr-defined]
    return default


def forget_ours() -> None:
    """Let Python forget what it has shown for lines of capturekit: it takes these for warnings of CuPy's compiled code,
    and all functions that call it come by these lines."""
    for values in _our_modules(len(sys.modules)):
        values.pop(_REGISTRY, None)


def _is_shown_each_time(key: tuple[Any, ...]) -> bool:
    """Whether Python does not ask whether it has shown a warning before, so that the run itself tells if it warns.

    ``key``: the text, the category, and mostly the line.
    """
    return action_for(str(key[0]), key[1], key[-1]) in EACH_TIME


@lru_cache(1)
def _our_modules(_number: int) -> list[dict[str, Any]]:
    """The dictionaries of capturekit's modules, looked up again when there is another number of modules."""
    return [vars(module) for name, module in list(sys.modules.items()) if name.startswith('capturekit.')]


def shown_before(
    values: dict[str, Any], codes: Iterable[CodeType], lines_of: Callable[[CodeType], set[int] | None]
) -> ShownWarnings | None:
    """Return the warnings that lines of these codes of a module have shown; None if there are none.

    ``values``: the module's dictionary, where Python remembers the text, the category and the line of each warning.
    ``lines_of``: returns the lines of a code that ran; None: any of them may have run.
    """
    registry = values.get(_REGISTRY)
    if type(registry) is not dict:
        return None
    shown = [key for key in list(registry) if type(key) is tuple and not _is_shown_each_time(key)]
    found: dict[tuple[Any, ...], tuple[CodeType, int]] = {}
    for code in codes if shown else ():
        ran = lines_of(code)
        lines = {line for _start, _end, line in code.co_lines()} if ran is None else ran
        for key in shown:
            if key[-1] == _WHOLE_MODULE or key[-1] in lines:
                found.setdefault(key, (code, key[-1] or code.co_firstlineno))
    if not found:
        return None
    return ShownWarnings(values, tuple(found), *min(found.values(), key=lambda place: place[1]))
