"""``cap.cond`` and ``cap.loop``: decisions on the device that return values.

What the functions return lies in memory of the bodies. So it is copied, in the body, into arrays that belong to the
work around the decision.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from capturekit.guard.open_capture import OpenCapture
from capturekit.model.source_line import here
from capturekit.recorder.conditional import Branch, branches, loop

_NUMBERS = (bool, int, float, complex, np.generic)


def conditional(live: OpenCapture, condition: Any, then: Any, otherwise: Any, operands: tuple[Any, ...]) -> Any:
    """Record :meth:`capturekit.Capture.cond`."""
    _callable('cond()', then, otherwise)
    results: list[Any] = []
    with branches(live, condition) as both:
        for branch, function, place in zip(both, (then, otherwise), ('then', 'otherwise')):
            with branch:
                found = _arrays(live, function(*operands), branch, f'What `{place}` returns')
                if branch.wrong is None and not results:
                    results = [_mapped(lambda one: _outside(live, one), found)]
                if branch.wrong is None:
                    _write(results[0], found, branch, 'What `then` and `otherwise` return')
                del found
    return results[0]


def repeated(live: OpenCapture, condition: Any, body: Any, state: Any, limit: int | None) -> Any:
    """Record :meth:`capturekit.Capture.loop`."""
    _callable('loop()', condition, body)
    cupy = live.platform.cupy
    state = _mapped(lambda one: one.copy(order='C'), _arrays(live, state, None, 'The state'))
    going = cupy.empty((), '?')
    _ask(going, condition(_mapped(lambda one: one, state)))
    with loop(live, going, limit) as passes:
        found = _arrays(live, body(_mapped(lambda one: one, state)), passes, 'What `body` returns')
        if passes.wrong is None:
            mems = {id(one.data.mem) for _path, one in _leaves(state) if isinstance(one, cupy.ndarray)}
            # a value that lies in another place of the state must be read before that is written
            found = _mapped(lambda one: one.copy() if id(one.data.mem) in mems else one, found)
            _write(state, found, passes, 'The state and what `body` returns')
        if passes.wrong is None:
            _ask(going, condition(_mapped(lambda one: one, state)))
        del found
    return state


def _callable(call: str, *functions: Any) -> None:
    for one in functions:
        if not callable(one):
            raise TypeError(f'{call} takes functions, not {type(one).__name__}: write `lambda: ...`')


def _ask(going: Any, asked: Any) -> None:
    """Write into the condition what the function says."""
    if not isinstance(asked, type(going)) or asked.size != 1 or asked.dtype.kind not in 'biu':
        form = f'{asked.dtype}{list(asked.shape)}' if isinstance(asked, type(going)) else type(asked).__name__
        raise TypeError(f'`condition` must return a CuPy array of one element, boolean or a whole number, not {form}')
    going[...] = asked.reshape(()) != 0


def _outside(live: OpenCapture, array: Any) -> Any:
    """An array like this one for the work around the open body; if that is a body, too, the array belongs to it."""
    pointer = live.graph_memory.grow(max(int(array.nbytes), 1))
    for around in live.decisions.open[-2:-1]:
        around.made[int(pointer.mem.ptr)] = here()
    return live.platform.cupy.ndarray(array.shape, array.dtype, pointer)


def _arrays(live: OpenCapture, tree: Any, branch: Branch | None, what: str) -> Any:
    """The same tree with arrays in the place of numbers; an error, at the end of the branch, for other things."""
    cupy = live.platform.cupy
    for path, one in _leaves(tree):
        if not isinstance(one, (cupy.ndarray, type(None), *_NUMBERS)):
            wrong = TypeError(f'{what} must hold CuPy arrays and numbers: {path or "it"} is {type(one).__name__}')
            if branch is None:
                raise wrong
            branch.wrong = wrong
            return None
    return _mapped(
        lambda one: one if isinstance(one, cupy.ndarray) else cupy.full((), one, np.asarray(one).dtype), tree
    )


def _write(targets: Any, found: Any, branch: Branch, what: str) -> None:
    """Copy each array of ``found`` into its place, or refuse the branch where the two differ."""
    into, values = list(_leaves(targets)), list(_leaves(found))
    form, other = _form(targets), _form(found)
    if form != other:
        branch.wrong = TypeError(f'{what} must have the same form: {form} and {other}')
    for (path, target), (_path, value) in zip(into, values):
        if branch.wrong is None and target is not None and (target.shape, target.dtype) != (value.shape, value.dtype):
            known, new = (f'{one.dtype}{list(one.shape)}' for one in (target, value))
            branch.wrong = TypeError(
                f'{what} must have the same shapes and dtypes: {path or "it"} is {known} and {new}'
            )
    for (_path, target), (_other, value) in zip(into, values) if branch.wrong is None else ():
        if target is not None and target is not value:
            target[...] = value


# -- trees --------------------------------------------------------------------------------------------------------


def _items(tree: Any) -> list[tuple[Any, str, Any]] | None:
    """What a container holds, with the place as it is written; None for what is no container."""
    if isinstance(tree, (tuple, list)):
        return [(n, f'[{n}]', one) for n, one in enumerate(tree)]
    if isinstance(tree, dict):
        return sorted(((key, f'[{key!r}]', one) for key, one in tree.items()), key=lambda item: item[1])
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        return [(name, f'.{name}', getattr(tree, name)) for name in names]
    return None


def _leaves(tree: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    items = _items(tree)
    if items is None:
        yield path, tree
    for _key, label, one in items or ():
        yield from _leaves(one, path + label)


def _form(tree: Any) -> str:
    """The containers of a tree, with * for each array."""
    items = _items(tree)
    if items is None:
        return 'None' if tree is None else '*'
    return f'{type(tree).__name__}({", ".join(f"{label}: {_form(one)}" for _key, label, one in items)})'


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """A new tree with changed leaves."""
    items = _items(tree)
    if items is None:
        return None if tree is None else change(tree)
    parts = {key: _mapped(change, one) for key, _label, one in items}
    if isinstance(tree, dict):
        made = copy.copy(tree)  # keeps the order of the keys
        made.update(parts)
        return made
    if isinstance(tree, (tuple, list)):
        named = getattr(type(tree), '_make', type(tree))
        return named(parts.values())
    return dataclasses.replace(tree, **parts)
