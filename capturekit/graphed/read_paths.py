"""What of the watched values a run can have read: those that the lines which ran lead to.

All that code names is watched when it begins to run. A value whose state can't be seen matters only if the code reads
it: the branch for another array library does not run, and of a module that only ``isinstance(x, jnp.ndarray)`` names,
only this class is read. What is found unread is still compared by identity.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from types import CodeType, ModuleType
from typing import Any

from capturekit.graphed.allowlists import FUNCTION_PARTS
from capturekit.graphed.calls_followed import RunRecord
from capturekit.graphed.code_reads import names_shown
from capturekit.graphed.reasons import Reason
from capturekit.graphed.stack_steps import call_of
from capturekit.graphed.value_changes import kept_in
from capturekit.graphed.watched_values import WatchedValue
from capturekit.model.class_layout import bases_of
from capturekit.model.code_steps import CodeStep, Does, steps_of

#: The names that a value is asked for; None: all that the code names, for the value gets elsewhere.
_Asked = set[str] | None
#: What loads the other classes of a tuple.
_OTHERS = Does.ANY_GLOBAL | Does.ANY_VARIABLE
_KINDS = ('global', 'attribute', 'slot', 'class attribute')
_CHECKS = frozenset({'isinstance', 'issubclass'})
#: What these two ask a class for; all else that they read is its metaclass's.
_CHECKED = frozenset({'__instancecheck__', '__subclasscheck__', '__subclasshook__', '__class__', '__bases__'})


def _join(known: dict[Any, _Asked], key: Any, asked: _Asked) -> None:
    before = known.get(key, set())
    known[key] = None if before is None or asked is None else before | asked


def _asked_next(steps: list[CodeStep], number: int) -> _Asked:
    """What the step after a load asks of the value: an attribute, or nothing if it only compares it."""
    if number + 1 == len(steps) or steps[number].is_called:
        return None
    following = steps[number + 1]
    if following.does in Does.ANY_ATTRIBUTE:
        return {following.operand}
    if _is_checked(steps, number):
        return set(_CHECKED)
    equals = following.does == Does.COMPARES and following.operand in ('==', '!=')
    return set() if equals or following.does == Does.COMPARES_IDENTITY else None


def _is_checked(steps: list[CodeStep], number: int) -> bool:
    """Whether a load gives the last argument of ``isinstance`` or ``issubclass``, or an item of a tuple that is it."""
    end, above = number + 1, 0
    while end + 1 < len(steps):
        one = steps[end]
        if one.does == Does.BUILDS_TUPLE and one.amount > above:
            above = 0
        elif one.does in _OTHERS and not one.is_called:
            above += 1
        elif one.does != Does.NOTHING and not (above and one.does == Does.LOADS_ATTRIBUTE):
            break
        end += 1
    if above:
        return False
    calls = (n for n in range(number) if steps[n].operand in _CHECKS and steps[n].does == Does.LOADS_GLOBAL)
    return steps[end].does in Does.ANY_CALL and any(call_of(steps, n) == end for n in calls)


class ReadPaths:
    """Which watched values a run can have read."""

    def __init__(self, run: RunRecord) -> None:
        meetings, holders = run.values.meetings, run.holders.by_id.values()
        #: The objects and classes that the code asks for any attribute, by id; the names of attributes in texts.
        self._full = set(run.names.full)
        self._asked = run.names.strings | run.names.asked_for
        self._entries = list(run.values.entries.values())
        #: What lines that ran ask at once of the values that they load: by the id of the module's dictionary and the
        #: name of a global, and by the name of an attribute.
        self._of_globals: dict[tuple[int, str], _Asked] = {}
        self._attributes: dict[str, _Asked] = {}
        for code, globals_ in run.code.globals_of.values():
            self._load(code, run.lines.of(code), globals_)
        #: By the id of an object: what the code can have asked it for.
        self._used: dict[int, _Asked] = dict.fromkeys(meetings.roots)
        #: The classes of which the code only asks whether an object is of them, by id.
        self._checked: set[int] = set()
        #: Whether the code calls Python's own ``isinstance`` by that name.
        self._own_checks = any(e.key in _CHECKS and not e.where().startswith('builtin ') for e in self._entries)
        #: The classes that are used, or of which an object is, by id.
        self._classes = {id(base) for cls in run.given.of_class for base in bases_of(cls)}
        self._objects = {id(holder.value): holder.value for holder in holders}
        #: The objects of which only what the user's code names is read.
        self._named = {id(holder.value) for holder in holders if holder.owned and not holder.whole}
        self._named -= {
            id(value)
            for value in self._objects.values()
            if issubclass(type(value), enum.EnumMeta) or issubclass(type(type(value)), enum.EnumMeta)
        }
        self._classes_of(meetings.roots)
        self._within = {key: list(found) for key, found in meetings.met.items()}
        self._read: set[int] = set()
        for entry in self._entries:
            for one in kept_in([entry.kept]):
                self._within.setdefault(id(one.value), []).append(entry)
        self._follow()

    def _load(self, code: CodeType, lines: set[int] | None, module: int) -> None:
        """Note the names of the steps of code that ran."""
        steps = steps_of(code)
        for number, one in enumerate(steps):
            if one.does not in Does.USES_NAME or not (lines is None or (one.line or 0) in lines):
                continue
            if one.does in Does.READS_GLOBAL:
                _join(self._of_globals, (module, one.operand), _asked_next(steps, number))
                continue
            loads = one.does in Does.ANY_ATTRIBUTE
            for name in one.operand.split('.'):  # of a module that is imported there
                _join(self._attributes, name, _asked_next(steps, number) if loads else None)
                if one.does in Does.CHANGES_GLOBAL or one.does == Does.IMPORTS:
                    _join(self._of_globals, (module, name), None)
        for name in set(code.co_names) - names_shown(steps):
            _join(self._attributes, name, None)
            _join(self._of_globals, (module, name), None)

    def reads(self, entry: WatchedValue) -> bool:
        """Whether the run can have read a watched value."""
        return id(entry) in self._read

    def matter(self, doubt: Reason) -> bool:
        """Whether a doubt is of a value that the run can have got, or of none."""
        return isinstance(doubt.about, str) or self.reach(doubt.about)

    def reach(self, value: int) -> bool:
        """Whether the run can have got a value, by its id."""
        found = self._within.get(value)
        return value in self._used or not found or any(map(self.reads, found))

    def only_checks(self, cls: type) -> bool:
        """Whether all that the run can have done with a class is to ask whether objects are of it."""
        found = self._used.get(id(cls), set())
        return found is not None and found <= _CHECKED

    def _follow(self) -> None:
        """Find what is read: from what the code has at hand on, through all that it asks for."""
        todo = list(self._entries)
        while todo:
            found = [entry for entry in todo if self._is_read(entry)]
            if not found:
                return
            for entry in found:
                self._read.add(id(entry))
                for one in kept_in([entry.kept]):
                    asked = self._next(entry) if one.value is entry.kept.value else None
                    _join(self._used, id(one.value), asked)
                    self._classes_of([id(one.value)], asked is not None and asked <= _CHECKED)
            todo = [entry for entry in todo if not self.reads(entry)]

    def _classes_of(self, values: Iterable[int], checked: bool = False) -> None:
        """Note that Python may look up special methods of values, in their classes and in those that they are.

        ``checked``: of a class that is a value, only those that ``isinstance`` asks for.
        """
        for value in (self._objects[key] for key in values if key in self._objects):
            self._classes.update(map(id, bases_of(type(value))))
            if issubclass(type(value), type):
                (self._checked if checked else self._classes).update(map(id, bases_of(value)))

    def _is_read(self, entry: WatchedValue) -> bool:
        name = entry.key
        if _is_of_an_object(entry) and not self.reach(id(entry.holder)):
            return False
        if entry.kind not in _KINDS or id(entry.holder) in self._full:
            return True
        if name in self._asked and not self._only_named(entry):
            return True
        if name.startswith('__'):
            checked = name in _CHECKED and id(entry.holder) in self._checked
            return entry.kind != 'class attribute' or id(entry.holder) in self._classes or checked
        if entry.kind == 'global':
            return entry.where().startswith('builtin ') or (id(entry.mapping), name) in self._of_globals
        if entry.kind != 'class attribute' and id(entry.holder) not in self._named:
            return True
        if name not in self._attributes:
            return False
        if entry.kind == 'class attribute':
            return id(entry.holder) in self._classes
        if id(entry.holder) not in self._used:
            return False
        used = self._used[id(entry.holder)]
        return used is None or name in used

    def _only_named(self, entry: WatchedValue) -> bool:
        """Whether code only names attributes of the object that has this one: it never gets to ``getattr``."""
        key = id(entry.holder)
        return entry.kind in ('attribute', 'slot') and key in self._named and self._used.get(key, set()) is not None

    def _next(self, entry: WatchedValue) -> _Asked:
        """What the code asks of a value at once, wherever it loads the name."""
        found: _Asked = None
        if entry.kind == 'global':
            found = self._of_globals.get((id(entry.mapping), entry.key))
        elif entry.kind in _KINDS and id(entry.holder) not in self._full:
            found = self._attributes.get(entry.key)
        return None if found is not None and self._own_checks and found & _CHECKED else found


def _is_of_an_object(entry: WatchedValue) -> bool:
    """Whether nobody can read a watched value without the object that has it. Libraries have their own modules at hand,
    and what a function that runs is made of has been met."""
    if entry.kind == 'function':
        return entry.key not in FUNCTION_PARTS
    return entry.kind in ('attribute', 'slot') and not issubclass(type(entry.holder), (ModuleType, type))
