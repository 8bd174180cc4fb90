"""What a method of a capture refuses is told to the guard, as is what the guard refuses itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from capturekit.guard import GUARD
from capturekit.guard.refusals import OWN
from capturekit.model import errors
from capturekit.model.counters import refused

_P = ParamSpec('_P')
_R = TypeVar('_R')


def told(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Tell the guard what a method of a capture refuses, because the block may catch it and go on."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except errors.CaptureError as error:
            GUARD.has_refused(error, OWN)
            refused(error)
            raise

    return call
