"""Questions to the garbage collector, which objects exist and which functions a module has; and who else asks it."""

from __future__ import annotations

import functools
import gc
import operator
from collections.abc import Iterator
from itertools import chain, compress, islice, repeat, starmap, tee
from threading import get_ident
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import Any

from capturekit.graphed.follow_time import FollowTime

# The collector's list may have a tuple that another thread is just making, and that thread fails if other code holds
# it; a frame that is held keeps all of its variables when it ends. So neither is ever held where threads can switch:
# each of these functions works in one call into C.

_NEVER_HELD = frozenset(map(id, (tuple, FrameType)))
#: The objects that were made since the last collection.
_YOUNG = (0,)


#: The end of a list, where the newest objects are.
_NEWEST = operator.itemgetter(slice(-256, None))


def _young() -> Iterator[Any]:
    return chain.from_iterable(starmap(gc.get_objects, [_YOUNG]))


def _newest() -> Iterator[Any]:
    return chain.from_iterable(map(_NEWEST, starmap(gc.get_objects, [_YOUNG])))


def _held_young() -> dict[int, Any]:
    """The young objects by id, without frames and tuples, whose attributes are never watched.

    The collector's list is gone through twice, side by side: for the objects and for their types. (What ``tee`` keeps
    would be in the list, and hold it.) The last two of the outer chain have nothing to add and let go of the list.
    """
    twice = chain.from_iterable(map(repeat, starmap(gc.get_objects, [_YOUNG]), [2]))
    objects, types_ = chain.from_iterable(islice(twice, 1)), map(type, chain.from_iterable(islice(twice, 1)))
    held = map(operator.not_, map(_NEVER_HELD.__contains__, map(id, types_)))
    found = list(chain(compress(objects, held), held, twice))
    known = dict(zip(map(id, found), found))
    found.clear()  # it holds itself
    return known


class Before:
    """Knows which of the collector's objects existed before ``with Before(FollowTime()) as before:``.

    The time that collections take is left out of the time given.

    Objects begin in the collector's youngest generation and leave it when it collects. So only the few that are young
    at the beginning have to be kept in mind, and those that a collection finds young later were made in between. With
    millions of objects in the process, listing all of them would take a second.
    """

    def __init__(self, follow_time: FollowTime) -> None:
        self._follow_time = follow_time
        self._thread = get_ident()
        self._before: dict[int, Any] = {}
        self._since: set[int] = set()

    def __enter__(self) -> Before:
        self._before = _held_young()
        gc.callbacks.append(self._collecting)
        return self

    def __exit__(self, *_: object) -> None:
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)
        self._before.clear()
        self._since.clear()

    def made(self, value: object) -> None:
        """Note that an object was made in between."""
        self._since.add(id(value))

    def had(self, value: object) -> bool:
        """True if the object was there before."""
        if id(value) in self._since:
            return False
        if id(value) in self._before:
            return True
        # to the end of the list: one that is left holds itself
        if operator.countOf(map(id, _newest()), id(value)) or operator.countOf(map(id, _young()), id(value)):
            self._since.add(id(value))
        if id(value) in self._since:  # by now: asking for the young may have made the collector collect
            return False
        self._before[id(value)] = value
        return True

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        own = get_ident() == self._thread
        if own and phase == 'start':
            self._follow_time.pause()
        elif own:
            self._follow_time.resume()
        if phase == 'start':
            self._since.update(set(map(id, _young())) - self._before.keys())


#: The functions of ``gc``, by id.
OF_COLLECTOR = frozenset(id(one) for one in vars(gc).values() if type(one) is BuiltinFunctionType)


def functions_of(module: dict[str, Any]) -> dict[int, list[FunctionType]]:
    """The functions with these globals, by the id of their code.

    One look at all objects serves all code of a module: among a million objects it takes a fifth of a second. Objects
    that ``gc.freeze`` took out of the collector's lists are not found.
    """
    objects, same = tee(chain.from_iterable(starmap(gc.get_referrers, [(module,)])))
    functions = list(compress(objects, map(functools.partial(operator.is_, FunctionType), map(type, same))))
    found: dict[int, list[FunctionType]] = {}
    for function in functions:
        found.setdefault(id(function.__code__), []).append(function)
    return found
