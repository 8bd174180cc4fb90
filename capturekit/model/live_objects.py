"""The objects of some classes that are alive, as the garbage collector knows them."""

from __future__ import annotations

import gc
from typing import Any


def collections() -> int:
    """How often garbage was collected so far."""
    return sum(one['collections'] for one in gc.get_stats())


def instances(*kinds: type, since: int = -1) -> list[Any]:
    """The objects of these classes and of those below them; without what ``gc.freeze`` took away before.

    ``__class__`` is not asked: it may be a property. ``since``: only objects made since :func:`collections` said so
    are needed. If nothing was collected since, only the youngest have to be looked through.
    """
    objects = gc.get_objects(generation=0) if since == collections() else gc.get_objects()
    return [one for one in objects if issubclass(type(one), kinds)]
