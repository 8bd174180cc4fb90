"""Names of a module's globals that all of its code only calls, or calls functions of: it never sees what is there."""

from __future__ import annotations

import sys
import threading
from collections.abc import Container, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from capturekit.functions.collector import functions_of
from capturekit.functions.given_names import GLOBALS_READ
from capturekit.functions.handed_on import call_of
from capturekit.functions.instructions import nested, single_steps
from capturekit.model.class_layout import dictionary_of_class


def is_called_by(codes: Iterable[CodeType], name: str, of_module: Container[str] = ()) -> bool:
    """Whether code calls at once what it loads under the name of a global, with plain arguments.

    ``of_module``: functions of the module that is there. Code takes attributes of that alone, and calls these at once.
    """
    inner = {id(one): one for code in codes for one in nested(code)}
    return all(_only_calls(code, name, of_module) for code in inner.values() if name in code.co_names)


def is_only_called(namespace: dict[str, Any], name: str, of_module: Container[str] = ()) -> bool:
    """Whether all functions with these globals do so."""
    functions = {id(one): one for found in functions_of(namespace).values() for one in found}
    if _may_run_meanwhile(namespace) or not all(id(one) in functions for one in _by_name(namespace)):
        return False
    return is_called_by([function.__code__ for function in functions.values()], name, of_module)


def _by_name(namespace: dict[str, Any]) -> Iterator[FunctionType]:
    """The functions that the module and its classes have by a name. If one of these is not listed among all of the
    module's, ``gc.freeze`` has taken it out of the collector's lists, and others with it."""
    for value in list(namespace.values()):
        members = list(dictionary_of_class(value).values()) if issubclass(type(value), type) else [value]
        yield from (one for one in members if type(one) is FunctionType and one.__globals__ is namespace)


def _may_run_meanwhile(namespace: dict[str, Any]) -> bool:
    """Whether code of the module itself, which no function has, may run in another thread."""
    main: Any = sys.modules.get('__main__')
    if namespace is getattr(main, '__dict__', None):
        return threading.current_thread() is not threading.main_thread()
    return bool(getattr(namespace.get('__spec__'), '_initializing', False))


def _only_calls(code: CodeType, name: str, of_module: Container[str]) -> bool:
    steps = single_steps(code)
    for number, step in enumerate(steps):
        if step.argval != name or not step.opname.endswith(('_GLOBAL', '_GLOBALS', '_NAME')):
            continue
        loads = number if step.opname in GLOBALS_READ else None
        if of_module and loads is not None:
            loads = number + 1 if steps[number + 1].opname in ('LOAD_ATTR', 'LOAD_METHOD') else None
            if loads is not None and steps[loads].argval not in of_module:
                continue
        call = None if loads is None else call_of(steps, loads)
        if call is None or steps[call].opname != 'CALL':
            return False
    return True
