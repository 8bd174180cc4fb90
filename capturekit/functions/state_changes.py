"""What a run changed in Python state, and whether every launch can make the same change again.

A change is understood if a place (an attribute, a global, a variable of a closure, an item of a dict or a list in one
of these) gets an array, a number, a text, or a tuple of such. The value before is compared at each call, like all that
the function reads. There are three exceptions: arrays, which the graph gets like arguments; whole numbers that the
function only counts with; and lists that it only appends to.
"""

from __future__ import annotations

import dis
import operator
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from capturekit.functions.carried_state import CarriedPlace, CarriedState, Counter, GrowingList, StoredPlace
from capturekit.functions.code_met import CodeMet
from capturekit.functions.watched_value import WatchedValue
from capturekit.model.class_layout import MISSING, bases_of, made_by_class_statement
from capturekit.model.kept_values import Kept
from capturekit.model.source_line import is_ours
from capturekit.model.value_changes import difference

_KINDS = ('attribute', 'slot', 'global', 'variable')
#: The names of functions and attributes through which code reads values that it does not name.
_OPENING = frozenset(
    'locals vars globals eval exec dir getattr _getframe currentframe stack f_locals f_globals gc ctypes inspect '
    'pickle copy deepcopy attrgetter methodcaller cell_contents __dict__ __getattribute__ __get__ __getstate__ '
    '__reduce__ __reduce_ex__ __self__ __closure__ __globals__'.split()
)
_OPENERS: tuple[Any, ...] = (
    locals, vars, globals, eval, exec, dir, getattr, operator.attrgetter, operator.methodcaller, sys._getframe,
)  # fmt: skip
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_COPIES = {('COPY', 1), ('DUP_TOP', None)}
_SWAPS = {('SWAP', 2), ('ROT_TWO', None)}
_NUMBERS = ('LOAD_CONST', 'LOAD_SMALL_INT')
#: Attributes that libraries look up in any object to find out its type.
_ASKED_FOR = frozenset({'data', 'dtype', 'flags', 'itemsize', 'nbytes', 'ndim', 'shape', 'size', 'strides', 'T'})


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
    """The changes of one run, collected value by value; ``carried`` returns those that launches make again."""

    def __init__(self, watch: CodeMet) -> None:
        self._watch = watch
        self._array = watch._array
        self._found: dict[tuple[int, Any], tuple[CarriedPlace, _Change]] = {}
        #: The tuples that the run put in places. After a launch there is an equal tuple instead of the same one.
        self._tuples: list[Any] = []

    def add(self, entry: WatchedValue, value: Any) -> bool:
        """Add a watched value that has changed. False if the change is not understood."""
        if entry.kind not in _KINDS or self._array is None:
            return False
        try:
            for change in _changes(entry.kept, value, ()):
                place = _location(entry) if change.inside is None else (id(change.inside.value), change.number)
                if place not in self._found:
                    self._found[place] = self._place(entry, change), change
                    self._put(change.now)
                elif change.inside is None:  # two names lead to one place, which would be changed twice
                    raise NotUnderstood
        except NotUnderstood:
            return False
        return True

    def _put(self, value: Any) -> None:
        """Note the tuples in a value. A tuple that is in two places would be two tuples after a launch."""
        for one in _tuples_in(value):
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
                if not (self._is_state(before) and self._has_arrays(before)):
                    continue
                began += place.expect(before, self._array)
            hole = Kept('carried', None)
            if change.inside is None:
                place.entry.kept = hole
            else:
                change.inside.parts[change.number] = hole
        return CarriedState([place for place, _ in self._found.values()], self._array, began, self._tuples)

    def _place(self, entry: WatchedValue, change: _Change) -> CarriedPlace:
        before, now = change.kept.value, change.now
        if before is MISSING or now is MISSING:
            raise NotUnderstood
        if before is now:
            if not self._only_grows(entry, change.kept, now):
                raise NotUnderstood
            return GrowingList(entry, now, len(now) - len(change.kept.parts))
        if type(before) is int and type(now) is int and not change.path and self._is_only(entry, counting):
            return Counter(entry, now - before)
        if not self._is_state(now) or any(self._watch._before.had(one) for one in _tuples_in(now)):
            raise NotUnderstood
        return StoredPlace(entry, change.path)

    def _is_state(self, value: Any) -> bool:
        cls = type(value)
        if cls is tuple:
            return all(self._is_state(part) for part in value)
        return cls is self._array or cls in _PLAIN

    def _is_array(self, value: Any) -> bool:
        return type(value) is self._array

    def _has_arrays(self, value: Any) -> bool:
        return any(self._has_arrays(part) for part in value) if type(value) is tuple else type(value) is self._array

    # -- counters and lists that grow -------------------------------------------------------------------------

    def _is_only(self, entry: WatchedValue, use: _Use) -> bool:
        """Whether all code that ran uses values of this name in this way only."""
        watch, name = self._watch, entry.key
        if watch._everything or name in _ASKED_FOR or name.startswith('__') or name in watch._strings:
            return False
        if entry.kind == 'slot' or any(one.value is opener for one in watch._entries.values() for opener in _OPENERS):
            return False
        if entry.kind == 'attribute':
            holder = watch._holders.get(id(entry.holder))
            if holder is None or holder.whole or not holder.owned or not _is_pythons_all_through(type(holder.value)):
                return False
        return all(
            name not in code.co_names or is_ours(code.co_filename) if foreign else only_used(code, name, use)
            for code, foreign in watch._codes.values()
        )

    def _only_grows(self, entry: WatchedValue, kept: Kept, now: list[Any]) -> bool:
        """Whether a list has only got new items, which launches can append, and is used in no other way."""
        count = len(kept.parts)
        if kept is not entry.kept or not self._is_only(entry, appending):
            return False
        if any(difference(part, item) is not None for part, item in zip(kept.parts, now)):
            return False
        others = [one.kept for one in self._watch._entries.values() if one is not entry]
        return all(self._is_state(item) for item in now[count:]) and not _holds(others, kept)


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


def _tuples_in(value: Any) -> list[Any]:
    return [value, *[inner for part in value for inner in _tuples_in(part)]] if type(value) is tuple and value else []


def _is_pythons_all_through(cls: type) -> bool:
    """Whether a class and all of its bases are Python classes."""
    return all(base is object or made_by_class_statement(base) for base in bases_of(cls))


def _changes(
    kept: Kept, value: Any, path: tuple[Any, ...], inside: Kept | None = None, number: int = 0
) -> Iterator[_Change]:
    """The values that changed inside a watched value, each by its full path. Raises NotUnderstood."""
    if difference(kept, value) is None:
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
    if not _OPENING.isdisjoint(code.co_names):
        return False
    word = re.compile(rf'(?<!\w){re.escape(name)}(?!\w)')
    if any(word.search(text) for text in _texts(code.co_consts)):
        return False
    steps = [one for one in dis.get_instructions(code) if one.opname not in _LEFT_OUT]
    named = {n for n, one in enumerate(steps) if one.opcode in _NAMING and one.argval == name}
    understood: set[int] = set()
    for number in named:
        understood |= use(steps, number)
    return named <= understood


_LEFT_OUT = ('CACHE', 'EXTENDED_ARG', 'NOP', 'PUSH_NULL')
_NAMING = frozenset({*dis.hasname, *dis.hasfree})


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
    """The instructions that load and store the value, if this one begins ``place += number``."""
    load = steps[number]
    attribute = load.opname == 'LOAD_ATTR'
    if not attribute and load.opname not in ('LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_DEREF'):
        return set()
    length = 5 if attribute else 4
    found = steps[number : number + length]
    if len(found) < length or any(one.is_jump_target for one in found[1:]):
        return set()
    constant, operator, store = found[1], found[2], found[-1]
    if constant.opname not in _NUMBERS or type(constant.argval) is not int:
        return set()
    if operator.opname not in ('INPLACE_ADD', 'INPLACE_SUBTRACT') and (
        operator.opname != 'BINARY_OP' or operator.argrepr not in ('+=', '-=')
    ):
        return set()
    if attribute and (_plainly(found[3]) not in _SWAPS or number == 0 or _plainly(steps[number - 1]) not in _COPIES):
        return set()
    if store.opname != load.opname.replace('LOAD', 'STORE') or store.argval != load.argval:
        return set()
    return {number, number + length - 1}


def _plainly(one: dis.Instruction) -> tuple[str, Any]:
    return one.opname, one.arg


def _texts(constants: Any) -> Iterator[str]:
    for one in constants:
        if type(one) is str:
            yield one
        elif type(one) in (tuple, frozenset):
            yield from _texts(one)
