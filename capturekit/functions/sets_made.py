"""What the sets that a run makes get as members, as far as the interpreter tells (from Python 3.12 on).

It tells of each call of ``set`` and ``frozenset``, with the first argument, and of each call of a method, with the set,
after it has been changed. What a generator yields is seen as well. A member is *settled* if its hash is that of its
value, or that of the address of an object that was there before the run: all calls have the same.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from capturekit.functions.code_reads import nested, single_steps
from capturekit.functions.handed_on import call_of
from capturekit.functions.lines_run import NOTHING
from capturekit.model.class_layout import among
from capturekit.model.plain_values import is_nan, plain_key

#: Methods that add members, and what makes sets.
ADDING = frozenset({'add', 'update', 'symmetric_difference_update', '__ior__', '__ixor__'})
_MAKING = (set, frozenset)
_LOADS = ('LOAD_ATTR', 'LOAD_METHOD', 'LOAD_SUPER')
#: Containers whose members are seen without running code.
_SEEN: tuple[Any, ...] = (str, bytes, range, list, tuple, dict, set, frozenset, type({}.keys()))
#: So many members are looked at, and so many of them may be objects.
_MOST, _MOST_OBJECTS = 10_000, 50


def speaks_of_sets(code: CodeType) -> bool:
    """Whether code may make sets by a call, or give them members."""
    names = {name for inner in nested(code) for name in inner.co_names}
    return not names.isdisjoint({*ADDING, 'set', 'frozenset'})


class SetsMade:
    """Collects it while a run is followed. ``had`` tells whether an object was there before the run."""

    def __init__(self, had: Callable[[object], bool]) -> None:
        self._had = had
        #: By code and offset: whether all sets that this call made had settled members.
        self._made: dict[tuple[int, int], bool] = {}
        #: The code of generators that were seen to begin, and whether all that it yielded was settled.
        self._yielded: dict[int, bool] = {}
        #: Whether a set was seen with a member that is not settled.
        self._unsettled = False

    def yields(self, code: CodeType, value: Any) -> None:
        """Note what a generator of the user's yields; None where it ends."""
        settled = self._yielded.get(id(code), True)
        self._yielded[id(code)] = settled and self._settled(value)

    def called(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        """Note that a call has ended."""
        if any(function is one for one in _MAKING):
            place = id(code), offset
            known = first is NOTHING or self._members_settled(first)
            self._made[place] = self._made.get(place, True) and known
            return
        changed = first if type(function) is types.MethodDescriptorType else getattr(function, '__self__', None)
        if issubclass(type(changed), set) and function.__name__ in ADDING:
            self._unsettled = self._unsettled or not self._members_settled(changed)

    def settled_at(self, code: CodeType, offset: int) -> bool:
        """Whether all sets that a call there made have had settled members only."""
        return not self._unsettled and self._made.get((id(code), offset), True)

    def _members_settled(self, value: Any) -> bool:
        if type(value) is types.GeneratorType:
            return self._yielded.get(id(value.gi_code), False)
        if not among(type(value), _SEEN) or len(value) > _MOST:
            return False
        members = [one for one in value if not among(type(one), (str, int, bool))] if type(value) is not str else []
        return len(members) <= _MOST_OBJECTS and all(map(self._settled, members))

    def _settled(self, member: Any) -> bool:
        if among(type(member), (tuple, frozenset)):
            return len(member) <= _MOST_OBJECTS and all(map(self._settled, member))
        if plain_key(member) is not None:
            return not is_nan(member)
        return gc.is_tracked(member) and self._had(member)


def hands_on_adding(codes: Iterable[CodeType]) -> bool:
    """Whether code loads a method that adds members without calling it at once: nobody tells of the calls then."""
    for code in codes:
        for inner in nested(code):
            steps = single_steps(inner)
            for number, step in enumerate(steps):
                if step.argval in ADDING and step.opname.startswith(_LOADS) and call_of(steps, number) is None:
                    return True
    return False
