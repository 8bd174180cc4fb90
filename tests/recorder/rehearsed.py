"""What tests of rehearsals share: a call rehearsed and recorded, the line that it names, the error of a launch."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest

import capturekit as ck
from tests.captured import capture


def rehearsed(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[ck.Rehearsal, ck.Capture, Any]:
    """Rehearse a call and record it: the rehearsal, the capture, and what the recorded call returned."""
    rehearsal = ck.rehearse(fn, *args)
    with capture(rehearsal=rehearsal, **options) as cap:
        result = fn(*args)
    return rehearsal, cap, result


def failed(cap: ck.Capture) -> ck.AssumptionError:
    """The error of a launch."""
    with pytest.raises(ck.AssumptionError) as info:
        cap.graph.launch()
    return info.value


def line_of(fn: Callable[..., Any], text: str) -> int:
    """The line of a function on which ``text`` stands."""
    code: CodeType = fn.__code__
    with open(code.co_filename, encoding='utf-8') as f:
        lines = f.read().splitlines()
    (found,) = [n for n in range(code.co_firstlineno, len(lines) + 1) if text in lines[n - 1]][:1]
    return found


def same(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
