"""What the garbage collector knows: the objects that are there, the functions that have some code."""

from __future__ import annotations

import functools
import gc
import operator
from itertools import chain, compress, islice, repeat, starmap, tee
from types import CodeType, FrameType, FunctionType
from typing import Any

# What the collector lists may be a tuple that another thread is just making, and that thread fails if somebody else
# holds it; a frame that is held keeps all of its variables when it ends. So neither is ever held where threads can
# switch: each of the two works in one call into C.

_NEVER_HELD = frozenset(map(id, (tuple, FrameType)))


def known_to_the_collector() -> dict[int, Any]:
    """The objects that the garbage collector knows, by id; without frames and tuples, whose attributes nobody watches.

    The collector's list is gone through twice, side by side: for the objects and for their types. (What ``tee`` keeps
    would be in the list, and hold it.) The last two of the outer chain have nothing to add and let go of the list.
    """
    twice = chain.from_iterable(map(repeat, starmap(gc.get_objects, [()]), [2]))
    objects, types_ = chain.from_iterable(islice(twice, 1)), map(type, chain.from_iterable(islice(twice, 1)))
    held = map(operator.not_, map(_NEVER_HELD.__contains__, map(id, types_)))
    found = list(chain(compress(objects, held), held, twice))
    known = dict(zip(map(id, found), found))
    found.clear()  # it holds itself
    return known


def functions_of(code: CodeType) -> list[FunctionType]:
    """The functions with this code."""
    objects, same = tee(chain.from_iterable(starmap(gc.get_referrers, [(code,)])))
    return list(compress(objects, map(functools.partial(operator.is_, FunctionType), map(type, same))))
