"""Functions that say whether what a run read is as it was. Each compares one kind of thing, in a table bound to it.

A comparison may also raise, where what it looks for is gone: see :data:`GONE`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from capturekit.functions.array_blocks import layout_of
from capturekit.model.class_layout import form_of_class
from capturekit.model.plain_values import exact

Same = Callable[[], bool]
#: What a comparison raises where a name, a variable or a slot is gone.
GONE = (LookupError, ValueError, AttributeError, RuntimeError, TypeError)
_is = operator.is_
_GET = operator.itemgetter.__call__


def names_and_code(
    rows: Sequence[tuple[Any, Any, Any]],
    functions: Sequence[tuple[Any, Any, Any, Any]],
    absent: Sequence[tuple[Any, frozenset[str]]],
    sizes: Sequence[tuple[Any, int]],
    rest: Sequence[Same],
) -> Same:
    """Whether dictionaries hold what they held, functions have the parts that they had, names are missing that were
    missing, and dictionaries have the sizes that they had; then the ``rest``.

    Nearly each run reads such things, so they are compared without a call for each kind of them.
    """
    empty = [keys for keys, _ in absent if not keys]  # such as the dictionaries of most functions
    lacking = [(keys.isdisjoint, names) for keys, names in absent if keys]

    def same() -> bool:
        for mapping, key, value in rows:
            if mapping[key] is not value:
                return False
        for function, code, defaults, keywords in functions:
            if (
                function.__code__ is not code
                or function.__defaults__ is not defaults
                or function.__kwdefaults__ is not keywords
            ):
                return False
        if any(empty):
            return False
        for lacks, names in lacking:
            if not lacks(names):
                return False
        for mapping, size in sizes:
            if len(mapping) != size:
                return False
        for one in rest:
            if one() is not True:
                break
        else:
            return True
        return False

    return same


def objects(table: Sequence[tuple[Any, type, Any, Any]]) -> Same:
    """Whether objects are of the class that they were of, and have the same ``__dict__``."""

    def same() -> bool:
        for value, cls, get, attributes in table:
            if type(value) is not cls or get(value) is not attributes:
                return False
        return True

    return same


def all_names(table: Sequence[tuple[Any, Any, list[str]]]) -> Same:
    """Whether objects have the names that they had, in that order."""

    def same() -> bool:
        for get, value, names in table:
            if [*get(value)] != names:
                break
        else:
            return True
        return False

    return same


def no_names(table: Sequence[tuple[Any, Sequence[Any]]]) -> Same:
    """Whether objects that had no names have none, as most functions: by what lists their names, in C."""
    return lambda: not any(any(map(get, values)) for get, values in table)


def classes(table: Sequence[tuple[type, Any]]) -> Same:
    """Whether classes have the names and bases that they had."""

    def same() -> bool:
        for cls, form in table:
            if form_of_class(cls) != form:
                break
        else:
            return True
        return False

    return same


def arrays(table: Sequence[tuple[Any, Any]]) -> Same:
    """Whether arrays have the shapes and strides that they had."""
    if any((array.shape, array.strides) != form for array, form in table):
        return lambda: False
    looks = [(array, *layout_of(array)) for array, _ in table]

    def same() -> bool:
        for array, look, layout in looks:
            if look(array) != layout:
                break
        else:
            return True
        return False

    return same


def many_names(table: Sequence[tuple[Any, Sequence[tuple[str, Any]]]]) -> Same:
    """Whether dictionaries hold what they held, of which there may be hundreds: compared entirely in C."""
    mappings = [values for values, _ in table]
    whole = [[*found, found[0]] for _, found in table]  # of two or more an itemgetter makes a tuple
    getters = [operator.itemgetter(*[name for name, _ in found]) for found in whole]
    before = [value for found in whole for _, value in found]
    return lambda: all(map(_is, chain.from_iterable(map(_GET, getters, mappings)), before))


def variables(cells: Sequence[tuple[Any, Any]], slots: Sequence[tuple[Any, Any, Any]]) -> Same:
    """Whether the variables of closures and the slots of objects hold what they held."""

    def same() -> bool:
        for cell, value in cells:
            if cell.cell_contents is not value:
                return False
        for get, value, item in slots:
            if get(value) is not item:
                break
        else:
            return True
        return False

    return same


def attributes_of_functions(table: Sequence[tuple[Any, str, Any]]) -> Same:
    """Whether functions have the attributes that they had: their texts, types and dictionaries."""
    functions, names, before = zip(*table)
    return lambda: all(map(_is, map(getattr, functions, names), before))


def returned(table: Sequence[tuple[Callable[[], Any], Any]]) -> Same:
    """Whether functions return what they returned."""

    def same() -> bool:
        for get, value in table:
            if get() is not value:
                break
        else:
            return True
        return False

    return same


def containers(
    sequences: Sequence[tuple[Any, Any]],
    numbers: Sequence[tuple[Any, Any, bytes]],
    shown: Sequence[tuple[Callable[[Any], list[Any]], Any, list[Any]]],
) -> Same:
    """Whether containers and arrays of NumPy hold what they held, and functions show what they showed of an object."""
    holders, sizes = [holder for holder, _ in sequences], [len(items) for _, items in sequences]
    held = [one for _, items in sequences for one in items]

    def same() -> bool:
        if [*map(len, holders)] != sizes or not all(map(_is, chain.from_iterable(holders), held)):
            return False
        for array, kind, data in numbers:
            flags = array.flags
            now = array.dtype, array.shape, array.strides, (flags.writeable, flags.aligned)
            if now != kind[:4] or array.tobytes() != data or exact(array.dtype) != kind[4]:
                return False
        for show, value, items in shown:
            seen = show(value)
            if len(seen) != len(items) or not all(map(_is, seen, items)):
                return False
        return True

    return same
