"""Warnings that code has shown before: Python shows most of them once for each line, and a launch shows none.

Python forgets what it has shown when the filters change, also by ``warnings.catch_warnings`` anywhere in the process.
So an eager run may warn that warned before, even if the run that was followed did not.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import Any

#: The line under which a warning counts as shown for a whole module.
_WHOLE_MODULE = 0


def line_that_warned(values: dict[str, Any], codes: Iterable[CodeType]) -> tuple[CodeType, int] | None:
    """Return which of these codes of a module has warned at which line; None if none has.

    ``values``: the module's dictionary, where Python remembers the text, the category and the line of each warning.
    """
    registry = values.get('__warningregistry__')
    if type(registry) is not dict:
        return None
    shown = {key[-1] for key in list(registry) if type(key) is tuple}
    for code in codes if shown else ():
        if _WHOLE_MODULE in shown:
            return code, code.co_firstlineno
        lines = shown.intersection(line for _start, _end, line in code.co_lines())
        if lines:
            return code, min(lines)
    return None
