"""A quick look whether a call is of the kind that was used last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from capturekit.graphed.array_blocks import layout_of
from capturekit.model.plain_values import Held

#: Types of arguments that are the same if they are equal. Floats are as well, but for zeros, which have a sign.
_EQUAL = frozenset({bool, int, str, bytes})
#: Containers that may hold nothing but arrays: dicts by names.
_BOXES = frozenset({list, tuple, dict})
_NAMES = frozenset({str})
#: What a call that needs a closer look is answered with.
NOT_ANSWERED: Any = object()
_Leaves = Callable[[tuple[Any, ...], dict[str, Any]], list[Any] | None]
#: Whether an item of a sequence is as it was.
_Fits = Callable[[Any], bool]
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
    cupy: Any, args: tuple[Any, ...], kwargs: dict[str, Any], form: Any, key: Any, reaches: _Reaches
) -> UsualCall | None:
    """The arguments of a call of a new kind, of which ``form`` is the form; None if each call needs a closer look.

    ``form``: what is left without the arrays. ``key``: what finds the kind.
    ``reaches`` says of the ids of containers whether a recording reaches one of them in another way, too.
    """
    given = (*args, *kwargs.values())
    nodes = _nodes(form)
    inside = [one for value in given for one in _held(value)]
    arrays = [one for one in inside if type(one) is cupy.ndarray]
    if nodes is None or len(nodes) != len(given) or len({*map(id, arrays)}) != len(arrays):
        return None
    tests: list[_Fits] = []
    for n, (value, node) in enumerate(zip(given, nodes)):
        test = _test(cupy.ndarray, n, value, node)
        if test is None:
            return None
        tests.append(test)
    is_one_array = len(given) == 1 and type(given[0]) is cupy.ndarray and not kwargs
    leaves = _of_one(given[0]) if is_one_array else _of_any(tests, given, kwargs, reaches, cupy.ndarray)
    return UsualCall(form, key, _on_device(cupy, arrays, leaves))


def _test(array: type, n: int, value: Any, node: Any) -> _Fits | None:
    """What tells whether argument ``n`` is like this value, whose node in the form is ``node``; None if nothing can."""
    cls = type(value)
    if cls is array:
        return _like_array(n, value)
    if cls in _BOXES and value and all(type(one) is array for one in _held(value)):
        return None if cls is dict and {*map(type, value)} != _NAMES else _like_box(n, value)
    if cls in _EQUAL or (cls is float and value):
        return lambda given: type(given[n]) is cls and (given[n] is value or bool(given[n] == value))
    if cls is float or value is None or (type(node) is Held and node.key == id(value) and not is_dataclass(cls)):
        return lambda given: given[n] is value and type(value) is cls
    return None


def _like_array(n: int, array: Any) -> _Fits:
    """The test of an array. A loop with ``zip`` would take longer than what is compared here."""
    cls, dtype = type(array), array.dtype
    look, layout = layout_of(array)

    def fits(given: Any) -> bool:
        value = given[n]
        return type(value) is cls and value.dtype is dtype and look(value) == layout

    return fits


def _like_box(n: int, box: Any) -> _Fits:
    """The test of a container of arrays."""
    cls, names = type(box), tuple(box) if type(box) is dict else None
    tests = [_like_array(number, array) for number, array in enumerate(_held(box))]

    def fits(given: Any) -> bool:
        value = given[n]
        if type(value) is not cls or len(value) != len(tests):
            return False
        if names is not None:
            if tuple(value) != names or {*map(type, value)} != _NAMES:
                return False
            value = [*value.values()]
        for test in tests:
            if not test(value):
                break
        else:
            return True
        return False

    return fits


def _of_one(array: Any) -> _Leaves:
    """The look at one array, given by position. It is asked at most calls, so it makes none for the comparison."""
    cls, dtype = type(array), array.dtype
    look, layout = layout_of(array)

    def leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        if len(args) != 1 or kwargs:
            return None
        value = args[0]
        return [value] if type(value) is cls and value.dtype is dtype and look(value) == layout else None

    return leaves


def _of_any(tests: list[_Fits], given: tuple[Any, ...], named: Any, reaches: _Reaches, array: type) -> _Leaves:
    """The look at arguments of any type, the last of them ``named``."""
    names, count = tuple(named), len(tests) - len(named)
    boxes = [n for n, value in enumerate(given) if type(value) in _BOXES]
    arrays = [n for n, value in enumerate(given) if n in boxes or type(value) is array]

    def leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        if len(args) != count:
            return None
        if kwargs or names:
            if tuple(kwargs) != names:
                return None
            args = (*args, *kwargs.values())
        for fits in tests:
            if not fits(args):
                return None
        found = [one for n in arrays for one in _held(args[n])] if boxes else [args[n] for n in arrays]
        if len(found) > 1 and len({*map(id, found)}) != len(found):
            return None
        if boxes:
            met = {*map(id, [args[n] for n in boxes])}
            if len(met) != len(boxes) or reaches(met):
                return None
        return found

    return leaves


def devices_of(cupy: Any, leaves: Any) -> tuple[int, ...]:
    """The device of each array, which calls of one kind share; () on a machine with one device."""
    if int(cupy.cuda.runtime.getDeviceCount()) == 1:
        return ()
    return tuple([int(leaf.data.device_id) for leaf in leaves])


def _on_device(cupy: Any, arrays: Any, leaves: _Leaves) -> _Leaves:
    """The look that also takes no call on another device than the current one, nor with arrays of other devices than
    these, if there are several."""
    devices = devices_of(cupy, arrays)
    if int(cupy.cuda.runtime.getDeviceCount()) == 1:
        return leaves
    now = cupy.cuda.get_device_id
    device = now()

    def there(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        found = leaves(args, kwargs) if now() == device else None
        return found if found is not None and devices_of(cupy, found) == devices else None

    return there


def _held(value: Any) -> Any:
    """What a container holds; another value itself."""
    if type(value) is dict:
        return value.values()
    return value if type(value) in _BOXES else (value,)


def _nodes(form: Any) -> list[Any] | None:
    """The nodes of positional and named arguments in the form of ``(args, kwargs)``."""
    if not (isinstance(form, tuple) and len(form) == 3 and form[0] is tuple):
        return None
    _, given, named = form
    if given[0] is not tuple or named[0] is not dict:
        return None
    return [*given[1:], *named[2:]]
