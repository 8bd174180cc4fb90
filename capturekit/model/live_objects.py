"""The objects of some classes that are alive, as the garbage collector knows them."""

from __future__ import annotations

import gc
from typing import Any


def instances(*kinds: type) -> list[Any]:
    """The objects of these classes and of those below them; without what ``gc.freeze`` took away before.

    ``__class__`` is not asked: it may be a property.
    """
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]
