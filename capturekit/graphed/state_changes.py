"""What a run changed in Python state, and whether every launch can make the same change again.

A change is understood if a place (an attribute, a global, a variable of a closure, an item of a dict or a list in one
of these) gets an array, a number, a text, or a tuple of such; the first three also if they get a list, a dict or an
object that the run made of such. The value before is compared at each call, like all that
the function reads. There are three exceptions: arrays, which the graph gets like arguments; whole numbers that the
function only counts with; and lists that it only appends to. For these, the steps that name the place are
looked at, on lines that ran: each has to begin a pattern that is understood.
"""

from __future__ import annotations

import gc
import operator
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from capturekit.graphed.calls_followed import RunRecord
from capturekit.graphed.carried_state import (
    CarriedPlace,
    CarriedState,
    Counter,
    GrowingList,
    NotUnderstood,
    NumberPlace,
    PlaceChange,
    StoredPlace,
    changes_in,
    consists_of,
    made_in,
    objects_in,
    parts_of,
)
from capturekit.graphed.reasons import Reason, Why
from capturekit.graphed.stack_steps import call_of
from capturekit.graphed.value_changes import containers, difference, kept_in
from capturekit.graphed.watched_values import OtherNumbers, WatchedValue
from capturekit.model.class_layout import MISSING, attributes_of, bases_of, made_by_class_statement
from capturekit.model.code_steps import CodeStep, Does, steps_of
from capturekit.model.kept_values import Kept
from capturekit.model.pytree import take_apart
from capturekit.model.source_line import is_ours

#: The names of functions and attributes through which code reads values that it does not name.
OPENING = frozenset(
    'locals vars globals eval exec dir _getframe currentframe f_locals f_globals gc ctypes inspect '
    'pickle attrgetter methodcaller cell_contents __dict__ __getattribute__ __get__ __getstate__ '
    '__reduce__ __reduce_ex__ __self__ __closure__ __globals__'.split()
)
OPENERS: tuple[Any, ...] = (
    locals, vars, globals, eval, exec, dir, operator.attrgetter, operator.methodcaller, sys._getframe,
)  # fmt: skip
#: A function of (steps, number): the steps of an understood use that begins with this one, or none.
Use = Callable[[list[CodeStep], int], set[int]]
_Steps = list[CodeStep]
_COPY, _SWAP = (Does.COPIES, 1), (Does.SWAPS, 2)
#: How Python copies a container and a key, and how it puts a new item below them.
_COPIES_BOTH = [(Does.COPIES, 2), (Does.COPIES, 2)]
_SINKS = [(Does.SWAPS, 3), (Does.SWAPS, 2)]
#: What loads what is in a place, and what stores something there.
_OF_PLACES = {
    Does.LOADS_ATTRIBUTE: Does.STORES_ATTRIBUTE, Does.LOADS_GLOBAL: Does.STORES_GLOBAL,
    Does.LOADS_NAME: Does.STORES_NAME, Does.LOADS_CELL: Does.STORES_CELL,
}  # fmt: skip


class PlaceUses:
    """The uses of one name in code that ran. ``of_attributes``: only attributes of this name are places, no globals."""

    def __init__(self, name: str, of_attributes: bool) -> None:
        self._name, self._of_attributes = name, of_attributes
        self._word = re.compile(rf'(?<!\w){re.escape(name)}(?!\w)')

    def named_in(self, code: CodeType) -> bool:
        """Whether a library's code names a place."""
        return self._name in code.co_names and any(map(self._names, steps_of(code)))

    def only(self, code: CodeType, lines: set[int] | None, use: Use) -> bool:
        """Whether code uses the places only in the way of ``use``, and loads no text with the name.

        ``lines``: those that ran; None: any.
        """
        if opens_where_it_ran(code, lines) or self._in_texts(code):
            return False
        if self._name not in (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars):
            return True
        steps = [one for one in steps_of(code) if one.does not in Does.NO_VALUE]
        named = {n for n, one in enumerate(steps) if self._names(one) and _ran(one, lines)}
        understood: set[int] = set()
        for number in named:
            understood |= use(steps, number)
        return named <= understood

    def _names(self, one: CodeStep) -> bool:
        named = one.does in Does.USES_ANY_NAME and one.operand == self._name
        return named and not (self._of_attributes and one.does in Does.ANY_GLOBAL)

    def _in_texts(self, code: CodeType) -> bool:
        if not any(map(self._word.search, texts_in(code.co_consts))):
            return False
        loaded = [one.operand if one.does == Does.LOADS_CONSTANT else one.names for one in steps_of(code)]
        return any(map(self._word.search, texts_in(loaded)))


def opens_where_it_ran(code: CodeType, lines: set[int] | None, unless_named: bool = False) -> bool:
    """Whether code names, on lines that ran, what reads values without naming them.

    ``unless_named``: not where it takes one item out of a ``__dict__``, by a name that :func:`items_named` tells.
    """
    if OPENING.isdisjoint(code.co_names):
        return False
    steps = steps_of(code)
    return any(
        one.does in Does.USES_NAME
        and one.operand in OPENING
        and _ran(one, lines)
        and not (unless_named and _item_named(steps, number))
        for number, one in enumerate(steps)
    )


def items_named(code: CodeType) -> set[str]:
    """The names of attributes that code takes out of a ``__dict__``: ``x.__dict__.get('name')``."""
    if '__dict__' not in code.co_names:
        return set()
    steps = steps_of(code)
    return {name for name in (_item_named(steps, number) for number in range(len(steps))) if name}


def _item_named(steps: list[CodeStep], number: int) -> str:
    """The constant name of the item that is taken out of a ``__dict__`` which is loaded there; '' if there is none."""
    after = steps[number + 1 : number + 3]
    if steps[number].operand != '__dict__' or len(after) < 2 or any(one.is_jump_target for one in after):
        return ''
    if after[0].operand == 'get' and after[0].does in Does.ANY_ATTRIBUTE:
        is_item = call_of(steps, number + 1) is not None
        name = after[1]
    else:
        is_item, name = after[1].does == Does.GETS_ITEM, after[0]
    return name.operand if is_item and name.does == Does.LOADS_CONSTANT and type(name.operand) is str else ''


def storing(steps: _Steps, number: int) -> set[int]:
    """The step that stores an attribute."""
    return {number} if steps[number].does == Does.STORES_ATTRIBUTE else set()


def appending(steps: _Steps, number: int) -> set[int]:
    """The step that loads a list, if its method ``append`` is loaded from it at once."""
    after = steps[number + 1 : number + 2]
    method = any(one.does in Does.ANY_ATTRIBUTE and one.operand == 'append' and not one.is_jump_target for one in after)
    return {number} if steps[number].does in _OF_PLACES and method else set()


def counting(steps: _Steps, number: int) -> set[int]:
    """The steps that load and store the value, if this one begins ``place += 1``, or with another constant."""
    load = steps[number]
    attribute = load.does == Does.LOADS_ATTRIBUTE
    found = steps[number + 1 : number + (5 if attribute else 4)]
    if load.does not in _OF_PLACES or len(found) < 3 + attribute or any(one.is_jump_target for one in found):
        return set()
    store = found[-1]
    if not _adds_a_constant(*found[:2]):
        return set()
    if attribute and (_plainly(found[2]) != _SWAP or number == 0 or _plainly(steps[number - 1]) != _COPY):
        return set()
    if store.does != _OF_PLACES[load.does] or store.operand != load.operand:
        return set()
    return {number, number + len(found)}


def counting_item(counted: Any) -> Use:
    """The use of a dict whose items have constant keys, where one of them only counts by constants."""

    def use(steps: _Steps, number: int) -> set[int]:
        key, *rest = steps[number + 1 : number + 10] or steps[-1:]
        if steps[number].does not in _OF_PLACES or key.does != Does.LOADS_CONSTANT or type(key.operand) is not str:
            return set()
        adds = [_plainly(one) for one in rest[:2]] == _COPIES_BOTH
        item = rest[2 * adds : 2 * adds + 1]
        if any(one.is_jump_target for one in (key, *rest[: 2 * adds], *item)):
            return set()
        stores = [one.does for one in item] == [Does.STORES_ITEM] and not adds
        loads = [one.does for one in item] == [Does.GETS_ITEM]
        if key.operand == counted and not (adds and loads and _counts_on(rest[3:])):
            return set()
        return {number} if stores or loads else set()

    return use


def _counts_on(steps: _Steps) -> bool:
    """Whether a constant is added to the item that was loaded, and the sum stored in its place."""
    if len(steps) < 5 or any(one.is_jump_target for one in steps[:5]) or not _adds_a_constant(*steps[:2]):
        return False
    return [_plainly(one) for one in steps[2:4]] == _SINKS and steps[4].does == Does.STORES_ITEM


def _adds_a_constant(amount: CodeStep, adds: CodeStep) -> bool:
    constant = type(amount.operand) is int and amount.does == Does.LOADS_CONSTANT
    return constant and adds.does == Does.OPERATES and adds.operand in ('+=', '-=')


def _ran(one: CodeStep, lines: set[int] | None) -> bool:
    return lines is None or (one.line or 0) in lines


def _plainly(one: CodeStep) -> tuple[str, Any]:
    return one.does, one.amount


def texts_in(constants: Any) -> Iterator[str]:
    """The texts among constants, at any depth."""
    for one in constants:
        if type(one) is str:
            yield one
        elif type(one) in (tuple, frozenset):
            yield from texts_in(one)


_KINDS = ('attribute', 'slot', 'global', 'variable')
_OF_OBJECTS = ('attribute', 'slot')
#: The types of numbers that launches reckon with.
_RECKONED = (int, float, np.float64)
#: So many other numbers earlier runs have found where others than the function change a number at nearly each call.
_FEW = 2
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.float64)
#: Attributes that libraries look up in any object to find out its type.
ASKED_FOR = frozenset({'data', 'dtype', 'flags', 'itemsize', 'nbytes', 'ndim', 'shape', 'size', 'strides', 'T'})


class NewNumber(NamedTuple):
    """A number with which launches may reckon. ``changes``: whether the function may put another one there."""

    location: tuple[int, Any]
    entry: WatchedValue
    change: PlaceChange
    changes: bool


class StateChanges:
    """The changes of one run, collected value by value; ``carried`` returns those that launches make again."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self._array = run.array
        self._found: dict[tuple[int, Any], tuple[CarriedPlace, PlaceChange]] = {}
        self._met: set[int] | None = None
        #: The tuples, objects and what these hold that the run put in places. A launch puts others there.
        self._tuples: list[Any] = []

    def add(self, entry: WatchedValue, value: Any) -> bool:
        """Add a watched value that has changed. False if the change is not understood."""
        if entry.kind not in _KINDS or self._array is None or entry.key in self._run.code_watch.times:
            return False
        try:
            for change in changes_in(entry.kept, value, ()):
                place = _location(entry, change)
                if place not in self._found:
                    self._found[place] = self._place(entry, change), change
                    grown = change.now[len(change.kept.parts) :] if change.now is change.kept.value else [change.now]
                    for one in grown:
                        self._put(one)
                elif change.inside is None or self._found[place][1].inside is None:
                    raise NotUnderstood  # two names lead to one place, which would be changed twice
        except NotUnderstood:
            return False
        return True

    def _put(self, value: Any) -> None:
        """Note the tuples and objects in a value. One that is in two places would be two of them after a launch."""
        for one in made_in(value):
            if any(one is other for other in self._tuples):
                raise NotUnderstood
            self._tuples.append(one)

    def carried(self) -> CarriedState | None:
        """The changes that launches repeat. Earlier values are not compared any more if that is not needed."""
        if self._array is None or not self._found:
            return None
        began: list[Any] = []
        for place, change in self._found.values():
            before = change.kept.value
            if isinstance(place, StoredPlace):
                if self._may_be_put(before, place.path) and (self._has_arrays(before) or objects_in(before)):
                    began += place.expect(before, self._array)
                    self._forget(objects_in(before))
                elif not self._is_only_stored(place.entry, change):
                    continue
            hole = Kept('carried', None)
            if change.inside is None:
                place.entry.kept = hole
            else:
                change.inside.parts[change.number] = hole
        return CarriedState([place for place, _ in self._found.values()], self._array, began, self._tuples)

    def _forget(self, objects: dict[int, Any]) -> None:
        """Do not watch objects in the place of which launches find others: their form is compared."""
        for key, entry in [*self._run.values.entries.items()]:
            if id(entry.holder) in objects:
                del self._run.values.entries[key]
        for one in objects:
            self._run.holders.by_id.pop(one, None)

    def new_numbers(self, others: OtherNumbers) -> list[NewNumber]:
        """The numbers in attributes with which launches may reckon if nothing else is done with what has such a name:
        those that the run changed, and those that others change."""
        found = []
        for location, (place, change) in self._found.items():
            numbers = type(change.kept.value) in _RECKONED and type(change.now) in _RECKONED
            if not isinstance(place, StoredPlace) or not numbers or not self._is_plain_place(place.entry, change):
                continue
            new = others(place.entry, change.now) is not None
            if new and not self._is_only_stored(place.entry, change):
                found.append(NewNumber(location, place.entry, change, True))
        for entry in self._run.values.entries.values():
            number = self._number_in(entry)
            if number is None or _location(entry) in self._found or (others(entry, number.now) or 0) < _FEW:
                continue
            if self._is_plain_place(entry, number):
                found.append(NewNumber(_location(entry), entry, number, False))
        return found

    def reckon_with(self, number: NewNumber) -> None:
        """Let launches reckon with a number."""
        place = NumberPlace(number.entry, number.change.kept.value, number.changes)
        self._found[number.location] = place, number.change

    def where_numbers_stay(self, stores: set[str]) -> list[NewNumber] | None:
        """The numbers that the run has left as they were, or has replaced by equal ones, in places of these names: with
        other numbers launches put others there. None if they can not."""
        found = []
        for entry in self._run.values.entries.values():
            change = self._number_in(entry) if entry.key in stores else None
            if change is None or _location(entry) in self._found:
                continue
            if not self._is_plain_place(entry, change):
                return None
            found.append(NewNumber(_location(entry), entry, change, True))
        return found

    @staticmethod
    def _number_in(entry: WatchedValue) -> PlaceChange | None:
        """The number that an attribute was when the run began, as no change."""
        kept = entry.kept
        is_number = type(kept.value) in _RECKONED and entry.kind in _OF_OBJECTS
        return PlaceChange((), None, 0, kept, kept.value) if is_number else None

    def _is_plain_place(self, entry: WatchedValue, change: PlaceChange) -> bool:
        """Whether it is an attribute of an object whose classes are all written in Python."""
        return entry.kind == 'attribute' and not change.path and self._is_seen_by_name(entry)

    def _is_seen_by_name(self, entry: WatchedValue) -> bool:
        """Whether only code that names an attribute comes to it, of an object that has it."""
        holder = self._run.holders.by_id.get(id(entry.holder))
        if holder is None or not holder.owned or holder.whole or id(holder.value) in self._run.names.full:
            return False
        of_python = all(base is object or made_by_class_statement(base) for base in bases_of(type(holder.value)))
        return of_python and id(entry.mapping) not in self._dicts()

    def _dicts(self) -> set[int]:
        """The dicts that the run has met as values, by id: the attributes of an object may be one of them."""
        if self._met is None:
            entries = self._run.values.entries.values()
            met = {id(then) for then, _ in containers((one.kept, one.kept.value) for one in entries)}
            self._met = met | self._run.given.own.keys()
        return self._met

    def carries(self, entry: WatchedValue) -> bool:
        """Whether launches put something else in the place of a watched value."""
        return any(place.entry is entry and not place.path for place, _ in self._found.values())

    def growing(self) -> list[GrowingList]:
        """The lists that the run has only appended to, as launches do again."""
        return [place for place, _ in self._found.values() if isinstance(place, GrowingList)]

    def _place(self, entry: WatchedValue, change: PlaceChange) -> CarriedPlace:
        before, now = change.kept.value, change.now
        if before is MISSING or now is MISSING:
            raise NotUnderstood
        if before is now:
            if not self._only_grows(entry, change.kept, now):
                raise NotUnderstood
            return GrowingList(entry, now, len(now) - len(change.kept.parts))
        if type(before) is int and type(now) is int and self._counts(entry, change.path):
            return Counter(entry, change.path, now - before)
        if not self._may_be_put(now, change.path) or any(map(self._was_there, made_in(now))):
            raise NotUnderstood
        return StoredPlace(entry, change.path)

    def _was_there(self, value: Any) -> bool:
        """Whether a container or an object was there before the run."""
        if type(value) is dict and not gc.is_tracked(value):  # it holds nothing that the collector has to know of
            return id(value) in self._run.values.keeper.memory or id(value) in self._run.given.own
        return self._run.before.had(value)

    def _may_be_put(self, value: Any, path: tuple[Any, ...]) -> bool:
        """Whether a launch can put such a value in a place: arrays, numbers, texts, tuples, or what is made of such."""
        if self._is_state(value):
            return True
        if path or self._run.uses.identities or not consists_of(value, self._is_leaf):
            return False
        times = self._run.code_watch.times  # a launch reads no clock
        if any(not times.isdisjoint(attributes_of(one)) for one in objects_in(value).values()):
            return False
        try:
            take_apart(value, lambda one: type(one) is self._array)
        except TypeError:  # something is in it twice
            return False
        return True

    def held_elsewhere(self) -> Reason | None:
        """Say which object was replaced that others hold, or that the run has changed; None if there is none."""
        for place, change in self._found.values():
            before = change.kept.value
            objects = objects_in(before) if isinstance(place, StoredPlace) and not place.path else {}
            if not objects:
                continue
            changed = difference(change.kept, before) is not None
            if changed or any(id(other.entry.holder) in objects for other, _ in self._found.values()):
                text = f'the function rebinds {place.where()}, and changes the object that was there'
                return Reason(text, Why.CHANGES)
            for entry in self._run.values.entries.values():
                inside = entry is place.entry or (entry.kind in _OF_OBJECTS and id(entry.holder) in objects)
                if not inside and any(id(one.value) in objects for one in kept_in([entry.kept])):
                    text = f'the function rebinds {place.where()}, and {entry.where()} holds what was there'
                    return Reason(text, Why.CHANGES)
        return None

    def _is_state(self, value: Any) -> bool:
        return all(map(self._is_state, value)) if type(value) is tuple else self._is_leaf(value)

    def _is_leaf(self, value: Any) -> bool:
        return type(value) is self._array or type(value) in _PLAIN

    def _has_arrays(self, value: Any) -> bool:
        parts = parts_of(value)
        return type(value) is self._array if parts is None else any(map(self._has_arrays, parts))

    # -- counters and lists that grow -------------------------------------------------------------------------

    def _counts(self, entry: WatchedValue, path: tuple[Any, ...]) -> bool:
        """Whether all that happens to a whole number is that constants are added."""
        if not path:
            return self._is_only(entry, counting)
        dict_of_its_own = len(path) == 1 and entry.kept.kind == 'dict' and not self._is_held(entry)
        return dict_of_its_own and self._is_only(entry, counting_item(path[0]))

    def _is_held(self, entry: WatchedValue) -> bool:
        """Whether what a place holds is a part of another watched value, too, or has the attributes of an object."""
        if any(id(one.mapping) == id(entry.value) for one in self._run.values.entries.values()):
            return True
        others = (one.kept for one in self._run.values.entries.values() if one is not entry)
        return any(one is entry.kept for one in kept_in(others))

    def _is_only(self, entry: WatchedValue, use: Use) -> bool:
        """Whether all code that ran uses values of this name in this way only."""
        run, name = self._run, entry.key
        if name in ASKED_FOR or name.startswith('__') or name in run.names.strings:
            return False
        if entry.kind == 'slot' or any(opens(one) for one in run.values.entries.values()):
            return False
        if entry.kind == 'attribute' and not self._is_seen_by_name(entry):
            return False
        codes = [(code, foreign) for code, foreign in run.code.codes.values() if not is_ours(code.co_filename)]
        are_globals = any(id(entry.mapping) == globals_ for _, globals_ in run.code.globals_of.values())
        uses = PlaceUses(name, entry.kind == 'attribute' and not are_globals)
        return all(
            not uses.named_in(code) if foreign else uses.only(code, run.lines.of(code), use) for code, foreign in codes
        )

    def _is_only_stored(self, entry: WatchedValue, change: PlaceChange) -> bool:
        """Whether no code that ran reads an attribute that gets another value: what it held before does not matter."""
        plain = type(change.kept.value) in _PLAIN and not change.path
        return plain and entry.kind == 'attribute' and self._is_only(entry, storing)

    def _only_grows(self, entry: WatchedValue, kept: Kept, now: list[Any]) -> bool:
        """Whether a list has only got new items, which launches can append, and is used in no other way."""
        count = len(kept.parts)
        if kept is not entry.kept or not self._is_only(entry, appending):
            return False
        if any(difference(part, item) is not None for part, item in zip(kept.parts, now)):
            return False
        return all(self._is_state(item) for item in now[count:]) and not self._is_held(entry)


def opens(entry: WatchedValue) -> bool:
    """Whether a value reads attributes that code does not name. ``getattr`` is followed under its own name."""
    return any(entry.value is opener for opener in OPENERS) or (entry.value is getattr and entry.key != 'getattr')


def _location(entry: WatchedValue, change: PlaceChange | None = None) -> tuple[int, Any]:
    """The identity of the place of a watched value, or of a change in it: two entries may lead to one place."""
    if change is not None and change.inside is not None:
        return id(change.inside.value), change.path[-1] if change.inside.kind == 'dict' else change.number
    if entry.kind == 'variable':
        return id(entry.holder), ''
    if entry.kind == 'slot':
        return id(entry.holder), id(entry.member)
    return id(entry.mapping), entry.key
