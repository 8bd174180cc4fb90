"""The parameters of CuPy's functions, and keyword arguments put in the positions of their parameters.

A verb of the guard wraps functions that name the same parameter differently (``end``, ``end_event``), or that know
their arguments only by position. The user's code may call any of them with CuPy's names.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary


def signature_of(function: Any) -> inspect.Signature | None:
    """A function's signature; None if it is unknown. Extension modules have it in the first line of the docstring."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        pass
    first = str(getattr(function, '__doc__', None) or '').strip().partition('\n')[0]
    match = re.fullmatch(r'[\w.]+\((.*)\)(?: -> .*)?', first)
    if match is None or ('[' in match[1] and '=' not in match[1]):
        return None
    found: list[inspect.Parameter] = []
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for part in _parts(match[1]):
        name, equals, default = part.lstrip('\\').partition('=')
        word = name.split()[-1]
        if word == '/':
            found = [one.replace(kind=inspect.Parameter.POSITIONAL_ONLY) for one in found]
        elif word.startswith('**'):
            found.append(inspect.Parameter(word[2:], inspect.Parameter.VAR_KEYWORD))
        elif word.startswith('*'):
            kind = inspect.Parameter.KEYWORD_ONLY
            found += [inspect.Parameter(word[1:], inspect.Parameter.VAR_POSITIONAL)] if word[1:] else []
        else:
            found.append(inspect.Parameter(word, kind, default=default if equals else inspect.Parameter.empty))
    return inspect.Signature(found)


def _parts(text: str) -> list[str]:
    """Split a text at the commas outside of brackets."""
    parts, depth = [''], 0
    for letter in text:
        depth += (letter in '([{') - (letter in ')]}')
        if letter == ',' and not depth:
            parts.append('')
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


class _Memo:
    """A question about functions, asked once for each. The answer goes with its function, which nothing here keeps.

    Methods of classes of extension modules, to which no weak reference can be made, live as long as their class.
    """

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self._ask = functools.lru_cache(maxsize=1024)(ask)
        self._plainly = ask
        self._known: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def __call__(self, function: Any) -> Any:
        if type(function) is not FunctionType:
            return self._ask(function)
        found = self._known.get(function)
        if found is None:
            found = self._known[function] = self._plainly(function)
        return found


@_Memo
def _places(function: Any) -> tuple[str, ...]:
    """The names of the parameters that can be passed by position."""
    signature = signature_of(function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(one.name for one in signature.parameters.values() if one.kind in kinds) if signature else ()


@_Memo
def _takes_any_name(verb: Any) -> bool:
    return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in inspect.signature(verb).parameters.values())


def in_order(
    verb: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put keyword arguments in their positions, for verbs that do not have CuPy's names."""
    if _takes_any_name(verb):
        return args, kwargs
    rest = dict(kwargs)
    given = list(args)
    for name in _places(function)[len(args) :]:
        if name not in rest:
            break
        given.append(rest.pop(name))
    return tuple(given), rest
