"""The objects of some classes that are alive, as the garbage collector knows them."""

from __future__ import annotations

import gc
from itertools import compress, tee
from typing import Any


def instances(*kinds: type) -> list[Any]:
    """The objects of these classes and of those below them; without what ``gc.freeze`` took away before.

    All that the collector knows is looked through in a few calls into C: a process may have millions of objects, and
    the list of all of them holds tuples that other threads are just making. ``__class__`` is not asked: it may be a
    property.
    """
    ids = frozenset(map(id, _with_those_below(kinds)))
    objects, same = tee(gc.get_objects())
    return list(compress(objects, map(ids.__contains__, map(id, map(type, same)))))


def _with_those_below(kinds: tuple[type, ...]) -> list[type]:
    found = {id(kind): kind for kind in kinds}
    waiting = list(kinds)
    while waiting:
        classes: list[type] = type.__subclasses__(waiting.pop())
        for below in classes:
            if id(below) not in found:
                found[id(below)] = below
                waiting.append(below)
    return list(found.values())
