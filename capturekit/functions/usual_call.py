"""A quick look whether a call is of the kind that was used last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from capturekit.functions.array_blocks import strides_to_compare
from capturekit.model.plain_values import Held

#: Types of arguments that are the same if they are equal. Floats are as well, but for zeros, which have a sign.
_EQUAL = frozenset({bool, int, str, bytes})
#: Of an argument its type; of arrays dtype, shape, and strides to compare; of containers None, the rows of what they
#: hold, and the names of a dict; of others None, the value, None, and whether an equal one is the same. The type is not
#: written as one: mypy would take it for that of the argument.
_Row = tuple[Any, Any, Any, Any, bool]
#: Containers that may hold nothing but arrays: dicts by names.
_BOXES = frozenset({list, tuple, dict})
_NAMES = frozenset({str})
_Leaves = Callable[[tuple[Any, ...], dict[str, Any]], list[Any] | None]
_Reaches = Callable[[set[int]], bool]


class UsualCall(NamedTuple):
    """The arguments of a kind of call, if each is an array, a list, tuple or dict of arrays, a number, a text, None,
    or compared by identity.

    ``form`` and ``key`` are those of the kind. ``leaves(args, kwargs)`` returns the arrays among the arguments of a
    call of this kind, and None for other calls. Those with other arguments, and with arrays that are there twice, need
    a closer look: :func:`capturekit.model.pytree.take_apart`.
    """

    form: Any
    key: Any
    leaves: _Leaves


def usual_call(
    cupy: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    form: Any,
    key: Any,
    reaches: _Reaches = lambda met: False,
) -> UsualCall | None:
    """The arguments of a call of a new kind, of which ``form`` is the form; None if each call needs a closer look.

    ``form``: what is left without the arrays; their number if there is nothing else. ``key``: what finds the kind.
    ``reaches`` says of the ids of containers whether a recording reaches one of them in another way, too.
    """
    given = (*args, *kwargs.values())
    nodes = range(len(given)) if isinstance(form, int) else _nodes(form)
    inside = [one for value in given for one in _held(value)]
    arrays = [id(one) for one in inside if type(one) is cupy.ndarray]
    if nodes is None or len(nodes) != len(given) or len({*arrays}) != len(arrays):
        return None
    rows: list[_Row] = []
    for value, node in zip(given, nodes):
        cls = type(value)
        if cls is cupy.ndarray:
            rows.append(_row(value))
        elif cls in _BOXES and value and all(type(one) is cupy.ndarray for one in _held(value)):
            names = tuple(value) if cls is dict else None
            if names is not None and {*map(type, names)} != _NAMES:
                return None
            rows.append((cls, None, tuple([_row(one) for one in _held(value)]), names, False))
        elif cls in _EQUAL or cls is float or value is None:
            rows.append((cls, None, value, None, cls in _EQUAL or (cls is float and bool(value))))
        elif type(node) is Held and node.key == id(value) and not is_dataclass(cls):
            rows.append((cls, None, value, None, False))
        else:
            return None
    leaves = _of_arrays(rows) if isinstance(form, int) else _of_any(rows, tuple(kwargs), reaches)
    return UsualCall(form, key, _on_device(cupy, leaves))


def _of_arrays(rows: list[_Row]) -> _Leaves:
    """The look at arguments that are all arrays, given by position."""
    count = len(rows)

    def leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        if kwargs or len(args) != count:
            return None
        for value, (cls, dtype, shape, strides, _) in zip(args, rows):
            if type(value) is not cls or value.dtype is not dtype or value.shape != shape:
                return None
            if not value._c_contiguous if strides is None else value.strides != strides:
                return None
        return None if count > 1 and _twice(args) else [*args]

    return leaves


def _of_any(rows: list[_Row], names: tuple[str, ...], reaches: _Reaches) -> _Leaves:
    """The look at arguments of any type, of which the last are given by ``names``."""
    count, boxes = len(rows) - len(names), any(row[0] in _BOXES for row in rows)

    def leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        if len(args) != count:
            return None
        if kwargs or names:
            if tuple(kwargs) != names:
                return None
            args = (*args, *kwargs.values())
        arrays: list[Any] = []
        for value, row in zip(args, rows):
            cls, dtype, known, more, by_equality = row
            if type(value) is not cls:
                return None
            if dtype is not None or cls in _BOXES:
                if cls is dict and (tuple(value) != more or {*map(type, value)} != _NAMES):
                    return None
                held = _held(value)
                if not _holds(held, (row,) if dtype is not None else known):
                    return None
                arrays += held
            elif value is not known and not (by_equality and value == known):
                return None
        if (len(arrays) > 1 and _twice(arrays)) or (boxes and not _boxes_alone(args, rows, reaches)):
            return None
        return arrays

    return leaves


def _on_device(cupy: Any, leaves: _Leaves) -> _Leaves:
    """The look that also takes no call on another device than the current one, if there are several."""
    if int(cupy.cuda.runtime.getDeviceCount()) == 1:
        return leaves
    now = cupy.cuda.get_device_id
    device = now()
    return lambda args, kwargs: leaves(args, kwargs) if now() == device else None


def _holds(box: Any, rows: Any) -> bool:
    """Whether a container holds arrays as described by ``rows``."""
    if len(box) != len(rows):
        return False
    for value, (cls, dtype, shape, strides, _) in zip(box, rows):
        if type(value) is not cls or value.dtype is not dtype or value.shape != shape:
            return False
        if not value._c_contiguous if strides is None else value.strides != strides:
            return False
    return True


def _twice(arrays: Any) -> bool:
    """Whether one of two arrays or more is there twice."""
    return arrays[0] is arrays[1] if len(arrays) == 2 else len({*map(id, arrays)}) != len(arrays)


def _boxes_alone(args: tuple[Any, ...], rows: list[_Row], reaches: _Reaches) -> bool:
    """Whether each container is there once, and is reached in no other way."""
    boxes = [id(value) for value, row in zip(args, rows) if row[0] in _BOXES]
    met = set(boxes)
    return len(met) == len(boxes) and not reaches(met)


def _held(value: Any) -> Any:
    """What a container holds; another value itself."""
    if type(value) is dict:
        return value.values()
    return value if type(value) in _BOXES else (value,)


def _row(array: Any) -> _Row:
    return type(array), array.dtype, array.shape, strides_to_compare(array), False


def _nodes(form: Any) -> list[Any] | None:
    """The nodes of positional and named arguments in the form of ``(args, kwargs)``."""
    if not (isinstance(form, tuple) and len(form) == 3 and form[0] is tuple):
        return None
    _, given, named = form
    if given[0] is not tuple or named[0] is not dict:
        return None
    return [*given[1:], *named[2:]]
