"""A block that opens a capture must not be suspended: other code that runs then would be recorded as part of it.

``yield`` and ``await`` suspend. From Python 3.12 on the interpreter reports this (``sys.monitoring``, ``PY_YIELD``),
and the error is raised at the ``yield`` itself; before, it can't be noticed in time, and a capture in a generator or
coroutine is refused when it is opened. Generators that contextlib drives are allowed: while they are suspended, the
body of the user's ``with`` block runs, as intended for a context manager around ``ck.capture``.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from capturekit.model.errors import GeneratorError
from capturekit.model.source_line import Place, here

_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_RULE = 'What runs while a block is suspended would be recorded as if it belonged to it.'
_REMEDY = 'Leave the `with ck.capture()` block before `yield` or `await`; contextlib.contextmanager may wrap it.'
#: Where nobody can say whether the block is suspended.
_UNSEEN = (
    'It may be suspended in the block, and what runs then would be recorded, too: this Python does not report that '
    '(Python 3.12 and later do, if a tool number of sys.monitoring is free).'
)
_CALLED = 'Put the `with ck.capture()` block into a plain function, and call that here.'
_NAME = 'capturekit'

_lock = threading.Lock()
_watched: list[FrameType] = []
_tool: int | None = None


def forbid_suspension(frame: FrameType) -> Callable[[], None]:
    """Make suspending ``frame`` an error until the returned function is called.

    Raises:
        GeneratorError: the frame can suspend, and this Python can't report when it does.
    """
    while frame.f_back is not None and frame.f_code.co_filename.endswith('contextlib.py'):
        frame = frame.f_back  # for ExitStack.enter_context, the block belongs to the caller
    outer = frame.f_back
    driven = outer is not None and outer.f_code.co_filename.endswith('contextlib.py')
    if not frame.f_code.co_flags & _SUSPENDS or driven:
        return lambda: None
    if sys.version_info < (3, 12) or not _watch(frame):
        raise _error('A capture was opened in a generator or coroutine', here(frame), _UNSEEN, _CALLED)
    return lambda: _unwatch(frame)


def _error(what: str, at: Place | None, rule: str = _RULE, remedy: str = _REMEDY) -> GeneratorError:
    return GeneratorError(what, location=at, rule=rule, remedy=remedy)


def _watch(frame: FrameType) -> bool:
    """Ask the interpreter to report yields in the frame's code. False if no tool number is free."""
    global _tool
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    with _lock:
        if _tool is None:
            free = [n for n in (4, 3) if monitoring.get_tool(n) is None]
            if not free:
                return False
            _tool = free[0]
            monitoring.use_tool_id(_tool, _NAME)
            monitoring.register_callback(_tool, monitoring.events.PY_YIELD, _yielding)
        _watched.append(frame)
        monitoring.set_local_events(_tool, frame.f_code, monitoring.events.PY_YIELD)
        return True


def _unwatch(frame: FrameType) -> None:
    global _tool
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    with _lock:
        _watched.remove(frame)
        if _tool is None:
            return
        if not any(other.f_code is frame.f_code for other in _watched):
            monitoring.set_local_events(_tool, frame.f_code, 0)
        if not _watched:
            monitoring.register_callback(_tool, monitoring.events.PY_YIELD, None)
            monitoring.free_tool_id(_tool)
            _tool = None


def _yielding(code: CodeType, offset: int, value: object) -> None:
    frame = sys._getframe(1)
    if any(other is frame for other in _watched):
        raise _error('A generator suspended inside `with ck.capture()`', here(frame))
