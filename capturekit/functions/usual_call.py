"""A quick look whether a call is of the kind that was used last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

from capturekit.model.plain_values import Held

#: Types of arguments that are the same if they are equal. Floats are as well, but for zeros, which have a sign.
_EQUAL = frozenset({bool, int, str, bytes})
#: The type is not written as one: mypy would take it for that of the argument.
_Row = tuple[Any, Any, Any, Any, bool]
#: Containers that may hold nothing but arrays: dicts by names.
_BOXES = frozenset({list, tuple, dict})
_NAMES = frozenset({str})


class UsualCall:
    """The arguments of a kind of call, if each is an array, a list, tuple or dict of arrays, a number, a text, None,
    or compared by identity.

    ``form`` and ``key`` are those of the kind. All other arguments, and arrays that are there twice, need a closer
    look: :func:`capturekit.model.pytree.take_apart`. ``reaches`` says of the ids of containers whether a recording
    reaches one of them in another way, too.
    """

    __slots__ = ('_boxes', '_count', '_device', '_device_now', '_names', '_reaches', '_rows', 'form', 'key')

    def __init__(
        self,
        cupy: Any,
        names: tuple[str, ...],
        rows: list[_Row],
        form: Any,
        key: Any,
        reaches: Callable[[set[int]], bool],
    ) -> None:
        self.form = form
        self.key = key
        self._reaches = reaches
        self._boxes = any(row[0] in _BOXES for row in rows)
        self._names = names
        self._count = len(rows) - len(names)
        #: For each argument its type; of arrays dtype, shape and strides; of containers None, the rows of what they
        #: hold, and the names of a dict; of others None, the value, None, and whether an equal one is the same.
        self._rows = rows
        self._device_now = cupy.cuda.get_device_id
        self._device = self._device_now()

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The arrays among the arguments of a call of this kind; None for other calls, and where it takes a look."""
        if len(args) != self._count or self._device_now() != self._device:
            return None
        if kwargs or self._names:
            if tuple(kwargs) != self._names:
                return None
            args = (*args, *kwargs.values())
        leaves: list[Any] = []
        for value, (cls, dtype, known, strides, by_equality) in zip(args, self._rows):
            if type(value) is not cls:
                return None
            if dtype is not None:
                if value.dtype is not dtype or value.shape != known or value.strides != strides:
                    return None
                leaves.append(value)
            elif cls in _BOXES:
                if cls is dict:
                    if tuple(value) != strides or {*map(type, value)} != _NAMES:
                        return None
                    value = value.values()
                if not _holds(value, known, leaves):
                    return None
            elif value is not known and not (by_equality and value == known):
                return None
        count = len(leaves)
        if count > 1 and (leaves[0] is leaves[1] if count == 2 else len({*map(id, leaves)}) != count):
            return None
        if self._boxes and not self._boxes_alone(args):
            return None
        return leaves

    def _boxes_alone(self, args: tuple[Any, ...]) -> bool:
        """Whether each container is there once, and is reached in no other way."""
        boxes = [id(value) for value, row in zip(args, self._rows) if row[0] in _BOXES]
        met = set(boxes)
        return len(met) == len(boxes) and not self._reaches(met)


def _holds(box: Any, rows: Any, leaves: list[Any]) -> bool:
    """Whether a container holds arrays as described by ``rows``, which are added to ``leaves``."""
    if len(box) != len(rows):
        return False
    for value, (cls, dtype, shape, strides, _) in zip(box, rows):
        if type(value) is not cls or value.dtype is not dtype or value.shape != shape or value.strides != strides:
            return False
        leaves.append(value)
    return True


def usual_call(
    cupy: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    form: Any,
    key: Any,
    reaches: Callable[[set[int]], bool] = lambda met: False,
) -> UsualCall | None:
    """The arguments of a call of a new kind, of which ``form`` is the form; None if each call needs a closer look.

    ``form``: what is left without the arrays; their number if there is nothing else. ``key``: what finds the kind.
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
    return UsualCall(cupy, tuple(kwargs), rows, form, key, reaches)


def _held(value: Any) -> Any:
    """What a container holds; another value itself."""
    if type(value) is dict:
        return value.values()
    return value if type(value) in _BOXES else (value,)


def _row(array: Any) -> _Row:
    return type(array), array.dtype, array.shape, array.strides, False


def _nodes(form: Any) -> list[Any] | None:
    """The nodes of positional and named arguments in the form of ``(args, kwargs)``."""
    if not (isinstance(form, tuple) and len(form) == 3 and form[0] is tuple):
        return None
    _, given, named = form
    if given[0] is not tuple or named[0] is not dict:
        return None
    return [*given[1:], *named[2:]]
