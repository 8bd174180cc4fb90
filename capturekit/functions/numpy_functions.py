"""Functions of NumPy that make a number of numbers, by which launches reckon: ``x * np.exp(-rate * step)``.

NumPy asks a number that it gets for ``__array_ufunc__``, so nothing has to stand in the place of these functions. What
they make is a ``numpy.float64``, with which operators of Python's compute as NumPy does: they warn where Python's
numbers raise. A launch that would warn is given up, and the call runs eagerly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from capturekit.functions.code_that_ran import CodeThatRan, RanCode
from capturekit.functions.handed_on import loader_of
from capturekit.functions.recorded_number import OF_NUMPY


def is_of_numpy(program: CodeThatRan, code: RanCode, place: int) -> bool:
    """Whether a call is of a function of NumPy that makes a number of numbers."""
    number = loader_of(code.steps, place)
    if number is None or place in code.entering or code.steps[place].opname != 'CALL':
        return False
    step = code.steps[number]
    function: Any = OF_NUMPY.get(step.argval)
    known = function is not None and getattr(np, step.argval, None) is function
    if not known or code.steps[place].arg != function.nin:
        return False
    by_module = step.opname in ('LOAD_ATTR', 'LOAD_METHOD')
    load, wanted = (code.steps[number - 1], np) if by_module else (step, function)
    return load.opname in ('LOAD_GLOBAL', 'LOAD_NAME') and program.global_in(code, load.argval) is wanted
