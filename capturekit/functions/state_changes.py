"""What a run changed in Python state, and whether every launch can make the same change again.

A change is understood if a place (an attribute, a global, a variable of a closure, an item of a dict or a list in one
of these) gets an array, a number, a text, or a tuple of such; the first three also if they get a list, a dict or an
object that the run made of such. The value before is compared at each call, like all that
the function reads. There are three exceptions: arrays, which the graph gets like arguments; whole numbers that the
function only counts with; and lists that it only appends to.
"""

from __future__ import annotations

import dis
import gc
import operator
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from capturekit.functions.carried_state import CarriedPlace, CarriedState, Counter, GrowingList, StoredPlace
from capturekit.functions.clock_uses import only_in_readings, only_keeps, reckoned_from
from capturekit.functions.objects_put import consists_of, holds_one_of, made_in, objects_in, parts_of
from capturekit.functions.read_paths import ReadPaths
from capturekit.functions.run_record import RunRecord
from capturekit.functions.watched_value import WatchedValue
from capturekit.model.class_layout import MISSING, attributes_of, bases_of, made_by_class_statement
from capturekit.model.kept_values import Kept
from capturekit.model.pytree import take_apart
from capturekit.model.source_line import is_ours
from capturekit.model.value_changes import difference, replaced

_KINDS = ('attribute', 'slot', 'global', 'variable')
_OF_OBJECTS = ('attribute', 'slot')
#: The names of functions and attributes through which code reads values that it does not name.
OPENING = frozenset(
    'locals vars globals eval exec dir _getframe currentframe f_locals f_globals gc ctypes inspect '
    'pickle attrgetter methodcaller cell_contents __dict__ __getattribute__ __get__ __getstate__ '
    '__reduce__ __reduce_ex__ __self__ __closure__ __globals__'.split()
)
_OPENERS: tuple[Any, ...] = (
    locals, vars, globals, eval, exec, dir, operator.attrgetter, operator.methodcaller, sys._getframe,
)  # fmt: skip
#: Methods of an amount by which it sees the number that it is added to, whatever function stands there.
_REFLECTED = frozenset({'__radd__', '__rsub__'})
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_COPIES = {('COPY', 1), ('DUP_TOP', None)}
_SWAPS = {('SWAP', 2), ('ROT_TWO', None)}
#: Instructions that put one value on the stack.
_LOADS = frozenset(
    'LOAD_CONST LOAD_SMALL_INT LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_DEREF LOAD_GLOBAL LOAD_NAME'.split()
)
#: Attributes that libraries look up in any object to find out its type.
ASKED_FOR = frozenset({'data', 'dtype', 'flags', 'itemsize', 'nbytes', 'ndim', 'shape', 'size', 'strides', 'T'})


#: A function of (instructions, number): the instructions of an understood use that begins with this one, or none.
_Use = Callable[[list[dis.Instruction], int], set[int]]


class NotUnderstood(Exception):
    """No launch can make this change again."""


class _Change(NamedTuple):
    """One value that changed: where it is kept (in ``inside``, or the watched value itself), and its value now."""

    path: tuple[Any, ...]
    inside: Kept | None
    number: int
    kept: Kept
    now: Any


class StateChanges:
    """The changes of one run, collected value by value; ``carried`` returns those that launches make again.

    ``paths``: which of the watched values the run can have read; None: all.
    """

    def __init__(self, run: RunRecord, paths: ReadPaths | None) -> None:
        self._run = run
        self._paths = paths
        self._array = run.array
        self._found: dict[tuple[int, Any], tuple[CarriedPlace, _Change]] = {}
        #: The tuples, objects and what these hold that the run put in places. A launch puts others there.
        self._tuples: list[Any] = []

    def add(self, entry: WatchedValue, value: Any) -> bool:
        """Add a watched value that has changed. False if the change is not understood."""
        if entry.kind not in _KINDS or self._array is None or self._run.code_watch.clock.keeps(entry.key):
            return False
        try:
            for change in _changes(entry.kept, value, ()):
                place = _location(entry) if change.inside is None else (id(change.inside.value), change.number)
                if place not in self._found:
                    self._found[place] = self._place(entry, change), change
                    grown = change.now[len(change.kept.parts) :] if change.now is change.kept.value else [change.now]
                    for one in grown:
                        self._put(one)
                elif change.inside is None:  # two names lead to one place, which would be changed twice
                    raise NotUnderstood
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
        if not self._found or self._array is None:
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

    def carries(self, entry: WatchedValue) -> bool:
        """Whether launches put something else in the place of a watched value."""
        return any(place.entry is entry and not place.path for place, _ in self._found.values())

    def growing(self) -> list[GrowingList]:
        """The lists that the run has only appended to, as launches do again."""
        return [place for place, _ in self._found.values() if isinstance(place, GrowingList)]

    def _place(self, entry: WatchedValue, change: _Change) -> CarriedPlace:
        before, now = change.kept.value, change.now
        if before is MISSING or now is MISSING:
            raise NotUnderstood
        if before is now:
            if not self._only_grows(entry, change.kept, now):
                raise NotUnderstood
            return GrowingList(entry, now, len(now) - len(change.kept.parts))
        if type(before) is int and type(now) is int and not change.path and self._counts(entry):
            return Counter(entry, now - before)
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
        if any(map(self._keeps_times, objects_in(value).values())):
            return False
        try:
            take_apart(value, self._is_array)
        except TypeError:  # something is in it twice
            return False
        return True

    def held_elsewhere(self) -> str | None:
        """Say which object was replaced that others hold, or that the run has changed; None if there is none."""
        for place, change in self._found.values():
            before = change.kept.value
            objects = objects_in(before) if isinstance(place, StoredPlace) and not place.path else {}
            if not objects:
                continue
            changed = difference(change.kept, before) is not None
            if changed or any(id(other.entry.holder) in objects for other, _ in self._found.values()):
                return f'the function rebinds {place.where()}, and changes the object that was there'
            for entry in self._run.values.entries.values():
                inside = entry is place.entry or (entry.kind in _OF_OBJECTS and id(entry.holder) in objects)
                if not inside and holds_one_of(entry.kept, objects):
                    return f'the function rebinds {place.where()}, and {entry.where()} holds what was there'
        return None

    def _is_state(self, value: Any) -> bool:
        cls = type(value)
        if cls is tuple:
            return all(self._is_state(part) for part in value)
        return cls is self._array or cls in _PLAIN

    def _keeps_times(self, value: Any) -> bool:
        """Whether an object has an attribute in which times of a clock end: a launch reads no clock."""
        clock = self._run.code_watch.clock
        return any(name in clock.times or name in clock.followed for name in attributes_of(value))

    def _is_leaf(self, value: Any) -> bool:
        return type(value) is self._array or type(value) in _PLAIN

    def _is_array(self, value: Any) -> bool:
        return type(value) is self._array

    def _has_arrays(self, value: Any) -> bool:
        parts = parts_of(value)
        return type(value) is self._array if parts is None else any(map(self._has_arrays, parts))

    # -- counters and lists that grow -------------------------------------------------------------------------

    def _counts(self, entry: WatchedValue) -> bool:
        """Whether all that happens to a whole number is that amounts are added which do not depend on it."""
        codes = self._run.code.codes.values()
        named = any(not _REFLECTED.isdisjoint((code.co_name, *code.co_names)) for code, _ in codes)
        reflected = named or any(
            entry.key in _REFLECTED and (self._paths is None or self._paths.reads(entry))
            for entry in self._run.values.entries.values()
        )
        reflected = reflected or any(_makes_a_class(code) for code, foreign in codes if not foreign)
        return not reflected and self._is_only(entry, counting)

    def _is_only(self, entry: WatchedValue, use: _Use) -> bool:
        """Whether all code that ran uses values of this name in this way only."""
        run, name = self._run, entry.key
        if run.names.everything or name in ASKED_FOR or name.startswith('__') or name in run.names.strings:
            return False
        if entry.kind == 'slot' or any(opens(one) for one in run.values.entries.values()):
            return False
        if entry.kind == 'attribute':
            holder = run.holders.by_id.get(id(entry.holder))
            if holder is None or holder.whole or not holder.owned or id(holder.value) in run.names.full:
                return False
            if not _is_pythons_all_through(type(holder.value)):
                return False
        return all(
            name not in code.co_names or is_ours(code.co_filename) if foreign else self._only_used(code, name, use)
            for code, foreign in run.code.codes.values()
        )

    def times_that_count(self) -> Iterator[str]:
        """For each attribute that keeps the time of a clock and may be read otherwise: the sentence that says so."""
        run, times = self._run, self._run.code_watch.clock.times
        if not times:
            return
        own = run.code.own()
        in_full = any(id(base) in run.names.full for cls in run.code_watch.clock.classes for base in bases_of(cls))
        opened = run.names.everything or in_full or any(map(opens, run.values.entries.values()))
        opened = opened or any(not OPENING.isdisjoint(code.co_names) for code in own)
        for name in reckoned_from(set(times), own) - times.keys():
            times[name] = next(iter(times.values()))
            opened = opened or not all(only_keeps(cls, name) for cls in run.code_watch.clock.classes)
        for name, sentence in times.items():
            named = any(
                foreign and name in code.co_names and not is_ours(code.co_filename)
                for code, foreign in run.code.codes.values()
            )
            if opened or named or name in run.names.strings or not all(only_in_readings(code, name) for code in own):
                yield sentence

    def _is_only_stored(self, entry: WatchedValue, change: _Change) -> bool:
        """Whether no code that ran reads an attribute that gets another value: what it held before does not matter."""
        plain = type(change.kept.value) in _PLAIN and not change.path
        return plain and entry.kind == 'attribute' and self._is_only(entry, storing)

    def _only_used(self, code: CodeType, name: str, use: _Use) -> bool:
        """Whether code uses values of this name in one way only, or gives them to objects that this run made."""
        if code.co_name == '__init__' and id(code) not in self._run.code.begun_again:
            return only_used(code, name, lambda steps, number: use(steps, number) | beginning(code, steps, number))
        return only_used(code, name, use)

    def _only_grows(self, entry: WatchedValue, kept: Kept, now: list[Any]) -> bool:
        """Whether a list has only got new items, which launches can append, and is used in no other way."""
        count = len(kept.parts)
        if kept is not entry.kept or not self._is_only(entry, appending):
            return False
        if any(difference(part, item) is not None for part, item in zip(kept.parts, now)):
            return False
        others = [one.kept for one in self._run.values.entries.values() if one is not entry]
        return all(self._is_state(item) for item in now[count:]) and not _holds(others, kept)


def _makes_a_class(code: CodeType) -> bool:
    """Whether code may call ``type`` with a dict of methods, whose names are seen nowhere."""
    if 'type' not in code.co_names:
        return False
    calls = [one for one in dis.get_instructions(code) if one.opname.startswith('CALL')]
    return any(one.arg == 3 or one.opname == 'CALL_FUNCTION_EX' for one in calls)


def opens(entry: WatchedValue) -> bool:
    """Whether a value reads attributes that code does not name. ``getattr`` is followed under its own name."""
    return any(entry.value is opener for opener in _OPENERS) or (entry.value is getattr and entry.key != 'getattr')


def _holds(values: list[Kept], kept: Kept) -> bool:
    """Whether one of these values is, or holds, the kept value."""
    todo, seen = list(values), set[int]()
    while todo:
        one = todo.pop()
        if one is kept:
            return True
        if one.parts and id(one) not in seen:
            seen.add(id(one))
            todo += one.parts
    return False


def _location(entry: WatchedValue) -> tuple[int, Any]:
    """The identity of a watched value's place: two entries may lead to one place."""
    if entry.kind == 'variable':
        return id(entry.holder), ''
    if entry.kind == 'slot':
        return id(entry.holder), id(entry.member)
    return id(entry.mapping), entry.key


def _is_pythons_all_through(cls: type) -> bool:
    """Whether a class and all of its bases are Python classes."""
    return all(base is object or made_by_class_statement(base) for base in bases_of(cls))


def _changes(
    kept: Kept, value: Any, path: tuple[Any, ...], inside: Kept | None = None, number: int = 0
) -> Iterator[_Change]:
    """The values that changed inside a watched value, each by its full path. Raises NotUnderstood."""
    if difference(kept, value) is None:
        if replaced(kept, value) is not None:
            raise NotUnderstood
        return
    if value is not kept.value or type(value) not in (dict, list):
        if kept.kind == 'carried' or value is kept.value:
            raise NotUnderstood
        yield _Change(path, inside, number, kept, value)
        return
    if type(value) is list and not path and kept.kind == 'items' and len(value) > len(kept.parts):
        yield _Change(path, inside, number, kept, value)
        return
    labels = list(value) if type(value) is dict else list(range(len(value)))
    if kept.kind not in ('dict', 'items') or len(labels) != len(kept.parts):
        raise NotUnderstood
    if type(value) is dict and (
        [type(label) for label in labels] != [type(label.value) for label in kept.labels]
        or any(type(label) not in (str, int) for label in labels)
        or labels != [label.value for label in kept.labels]
    ):
        raise NotUnderstood
    for position, (label, part) in enumerate(zip(labels, list(kept.parts))):
        yield from _changes(part, value[label], (*path, label), kept, position)


def only_used(code: CodeType, name: str, use: _Use) -> bool:
    """Whether a code object uses this name only in the way of ``use``, and in no string."""
    if not OPENING.isdisjoint(code.co_names):
        return False
    word = re.compile(rf'(?<!\w){re.escape(name)}(?!\w)')
    if any(word.search(text) for text in _texts(code.co_consts)):
        return False
    if name not in (*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return True
    steps = [one for one in dis.get_instructions(code) if one.opname not in _LEFT_OUT]
    named = {n for n, one in enumerate(steps) if one.opcode in _NAMING and one.argval == name}
    understood: set[int] = set()
    for number in named:
        understood |= use(steps, number)
    return named <= understood


_LEFT_OUT = ('CACHE', 'EXTENDED_ARG', 'NOP', 'PUSH_NULL')
_NAMING = frozenset({*dis.hasname, *dis.hasfree})


def beginning(code: CodeType, steps: list[dis.Instruction], number: int) -> set[int]:
    """The instruction that stores an attribute of the object that ``__init__`` is given."""
    itself = code.co_varnames[0] if code.co_argcount else None
    stored = steps[number].opname == 'STORE_ATTR' and not steps[number].is_jump_target and number > 0
    kept = all(one.argval != itself for one in steps if one.opname.startswith(('STORE_FAST', 'DELETE_FAST')))
    loads = stored and steps[number - 1].opname in ('LOAD_FAST', 'LOAD_FAST_BORROW')
    return {number} if kept and loads and steps[number - 1].argval == itself else set()


def storing(steps: list[dis.Instruction], number: int) -> set[int]:
    """The instruction that stores an attribute."""
    return {number} if steps[number].opname == 'STORE_ATTR' else set()


def appending(steps: list[dis.Instruction], number: int) -> set[int]:
    """The instruction that loads a list, if its method ``append`` is loaded from it at once."""
    following = steps[number + 1 : number + 2]
    loads = steps[number].opname in ('LOAD_ATTR', 'LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_DEREF')
    method = any(
        one.opname in ('LOAD_METHOD', 'LOAD_ATTR') and one.argval == 'append' and not one.is_jump_target
        for one in following
    )
    return {number} if loads and method else set()


def counting(steps: list[dis.Instruction], number: int) -> set[int]:
    """The instructions that load and store the value, if this one begins ``place += amount``.

    The amount may be anything that is read without a call: it does not come from the value, whose other uses are
    understood, too.
    """
    load = steps[number]
    attribute = load.opname == 'LOAD_ATTR'
    if not attribute and load.opname not in ('LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_DEREF'):
        return set()
    end = number + 1
    depth = 0
    while end < len(steps) and not (depth == 1 and _adds_in_place(steps[end])):
        taken, depth = _needs(steps[end], depth)
        if not taken or steps[end].is_jump_target:
            return set()
        end += 1
    found = steps[end : end + (3 if attribute else 2)]
    if len(found) < (3 if attribute else 2) or any(one.is_jump_target for one in found):
        return set()
    store = found[-1]
    if attribute and (_plainly(found[1]) not in _SWAPS or number == 0 or _plainly(steps[number - 1]) not in _COPIES):
        return set()
    if store.opname != load.opname.replace('LOAD', 'STORE') or store.argval != load.argval:
        return set()
    return {number, end + len(found) - 1}


def _adds_in_place(one: dis.Instruction) -> bool:
    return one.opname in ('INPLACE_ADD', 'INPLACE_SUBTRACT') or (
        one.opname == 'BINARY_OP' and one.argrepr in ('+=', '-=')
    )


def _needs(one: dis.Instruction, depth: int) -> tuple[bool, int]:
    """Whether an instruction reads a part of the amount, and how many values of it lie on the stack then."""
    if one.opname in _LOADS and 'NULL' not in one.argrepr:
        return True, depth + 1
    if one.opname == 'LOAD_ATTR' and 'NULL' not in one.argrepr:
        return depth > 0, depth
    if one.opname in ('BINARY_SUBSCR', 'BINARY_OP', 'BINARY_ADD', 'BINARY_SUBTRACT', 'BINARY_MULTIPLY'):
        return depth > 1, depth - 1
    return one.opname == 'UNARY_NEGATIVE' and depth > 0, depth


def _plainly(one: dis.Instruction) -> tuple[str, Any]:
    return one.opname, one.arg


def _texts(constants: Any) -> Iterator[str]:
    for one in constants:
        if type(one) is str:
            yield one
        elif type(one) in (tuple, frozenset):
            yield from _texts(one)
