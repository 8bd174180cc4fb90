"""Warnings that code has shown before: Python shows most of them once for each line, and a launch shows none.

Python forgets what it has shown when the filters change, also by ``warnings.catch_warnings`` anywhere in the process.
So an eager run may warn that warned before, even if the run that was followed did not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import CodeType
from typing import Any

_REGISTRY = '__warningregistry__'
#: The line under which a warning counts as shown for a whole module.
_WHOLE_MODULE = 0


def forget_ours() -> None:
    """Let Python forget what it has shown for lines of capturekit: it takes these for warnings of CuPy's compiled code,
    and all functions that call it come by these lines."""
    for values in _our_modules(len(sys.modules)):
        values.pop(_REGISTRY, None)


@lru_cache(1)
def _our_modules(_number: int) -> list[dict[str, Any]]:
    """The dictionaries of capturekit's modules, looked up again when there is another number of modules."""
    return [vars(module) for name, module in list(sys.modules.items()) if name.startswith('capturekit.')]


def line_that_warned(
    values: dict[str, Any], codes: Iterable[CodeType], lines_of: Callable[[CodeType], set[int] | None]
) -> tuple[CodeType, int] | None:
    """Return which of these codes of a module has warned at which line; None if none has.

    ``values``: the module's dictionary, where Python remembers the text, the category and the line of each warning.
    ``lines_of``: returns the lines of a code that ran; None: any of them may have run.
    """
    registry = values.get(_REGISTRY)
    if type(registry) is not dict:
        return None
    shown = {key[-1] for key in list(registry) if type(key) is tuple}
    for code in codes if shown else ():
        if _WHOLE_MODULE in shown:
            return code, code.co_firstlineno
        ran = lines_of(code)
        lines = shown.intersection({line for _start, _end, line in code.co_lines()} if ran is None else ran)
        if lines:
            return code, min(lines)
    return None
