"""One function eagerly and graphed, on states of their own: every result, argument and state equal, call by call."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import capturekit as ck


def plain(value: Any, cp: Any, seen: dict[int, int] | None = None) -> Any:
    """A value to be compared by ``==``: arrays as kind, shape and bytes, and which of them are one object."""
    seen = {} if seen is None else seen
    if isinstance(value, cp.ndarray):
        number = seen.setdefault(id(value), len(seen))
        return ('array', number, str(value.dtype), value.shape, value.get().tobytes())
    if isinstance(value, (np.ndarray, np.generic)):
        return (type(value).__name__, str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, dict):
        return (type(value).__name__, [(key, plain(item, cp, seen)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [plain(item, cp, seen) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (
            type(value).__name__,
            plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, cp, seen),
        )
    if isinstance(value, float):
        return ('float', repr(value))
    if isinstance(value, (set, frozenset, str, bytes, int, complex, type(None))):
        return (type(value).__name__, value)
    return (type(value).__name__, plain(vars(value), cp, seen) if hasattr(value, '__dict__') else None)


def story(
    cp: Any, fn: Callable[..., Any], calls: Sequence[Callable[[Any], Any]], state: Callable[[], Any]
) -> list[Any]:
    """What calls give, one after the other, and at the end once more what the first ones gave."""
    cp.random.seed(7)
    np.random.seed(7)
    random.seed(7)
    told: list[Any] = []
    kept: list[Any] = []
    for make in calls:
        made = make(cp)
        args, kwargs = made if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict) else (made, {})
        args = args if isinstance(args, tuple) else (args,)
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            result = (type(error).__name__, str(error))
        kept.append((args, kwargs, result))
        told.append(plain((args, kwargs, result, state()), cp))
    told.append([plain(entry, cp) for entry in kept])
    told.append(cp.random.random_sample(3).tolist())
    return told


def twins(cp: Any, make: Callable[[Any], Any], calls: Sequence[Callable[[Any], Any]], **options: Any) -> ck.Graphed:
    """``make(cp)`` gives a function, or a function and one that tells its state. Returns the graphed one."""
    stories = []
    graphed: Any = None
    for eager in (True, False):
        made = make(cp)
        fn, state = made if isinstance(made, tuple) else (made, lambda: None)
        if not eager:
            graphed = ck.graphed(fn, **options)
        stories.append(story(cp, fn if eager else graphed, calls, state))
    for number, (wanted, given) in enumerate(zip(*stories)):
        assert given == wanted, f'call {number} differs'
    return graphed  # type: ignore[no-any-return]
