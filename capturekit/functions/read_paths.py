"""What of the watched values a run can have read: those that the lines which ran lead to.

All that code names is watched when it begins to run. A value whose state can't be seen matters only if the code reads
it: the branch for another array library does not run, and of a module that only ``isinstance(x, jnp.ndarray)`` names,
only this class is read. What is found unread is still compared by identity.
"""

from __future__ import annotations

import dis
import enum
import sys
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from capturekit.functions.code_reads import GLOBALS_READ, line_number, names_shown, nested, single_steps
from capturekit.functions.readable_state import is_cupys, is_pythons
from capturekit.functions.understood import PACKAGES
from capturekit.functions.watched_value import Holder, WatchedValue
from capturekit.model.class_layout import bases_of
from capturekit.model.kept_values import Kept

#: The names that a value is asked for; None: all that the code names, for the value gets elsewhere.
_Asked = set[str] | None
_ATTRIBUTES = ('LOAD_ATTR', 'LOAD_METHOD')
#: Names by which code reads attributes that it does not name.
_OPENING = frozenset('getattr vars globals dir eval exec attrgetter methodcaller __dict__ __getattribute__'.split())
_KINDS = ('global', 'attribute', 'slot', 'class attribute')


class Doubt(str):
    """A sentence that says why a value can't be compared: ``value`` is its id."""

    value: int


class Meetings:
    """Notes in which watched values each value that is kept by identity was met."""

    def __init__(self) -> None:
        #: The watched value that is being kept.
        self.entry: WatchedValue | None = None
        #: The values that were met outside of the contents of a watched value, by id.
        self.roots: set[int] = set()
        self.met: dict[int, list[WatchedValue]] = {}
        self._outer: Any = None
        self._depth = 0

    def begin(self, value: Any) -> None:
        """A value is met: in a watched value, by way of another one, or where the code has it at hand."""
        self._depth += 1
        if self._depth == 1:
            self._outer = value
        if self.entry is None or self._depth > 1:
            self.roots.add(id(value))
        else:
            self.met.setdefault(id(value), []).append(self.entry)

    def end(self) -> None:
        self._depth -= 1

    def doubt(self, sentence: str) -> Doubt:
        """Say why the value that is met, or what it is bound to, can't be compared."""
        doubt = Doubt(sentence)
        doubt.value = id(self._outer)
        return doubt


class _Loads(NamedTuple):
    """Names that lines which ran load, and what they ask of the value there at once.

    ``of_globals``: by the id of the module's dictionary and the name.
    """

    of_globals: dict[tuple[int, str], _Asked]
    attributes: dict[str, _Asked]

    def add_all(self, code: CodeType, lines: set[int] | None, module: int) -> None:
        """Note the names of the instructions that ran."""
        instructions = single_steps(code)
        for number, one in enumerate(instructions):
            if one.opcode not in dis.hasname or type(one.argval) is not str:
                continue
            if lines is None or (line_number(one) or 0) in lines:
                self.add(instructions, number, module)
        for name in set(code.co_names) - names_shown(instructions):
            _join(self.attributes, name, None)
            _join(self.of_globals, (module, name), None)

    def add(self, instructions: list[dis.Instruction], number: int, module: int) -> None:
        """Note the name of an instruction."""
        one = instructions[number]
        if one.opname in GLOBALS_READ:
            _join(self.of_globals, (module, one.argval), _asked_next(instructions, number))
            return
        loads = one.opname in _ATTRIBUTES
        for name in one.argval.split('.'):  # of a module that is imported there
            _join(self.attributes, name, _asked_next(instructions, number) if loads else None)
            if one.opname.endswith(('_GLOBAL', '_NAME')):
                _join(self.of_globals, (module, name), None)


def _join(known: dict[Any, _Asked], key: Any, asked: _Asked) -> None:
    before = known.get(key, set())
    known[key] = None if before is None or asked is None else before | asked


def _asked_next(instructions: list[dis.Instruction], number: int) -> _Asked:
    """What the instruction after a load asks of the value: an attribute, or nothing if it only compares it."""
    if number + 1 == len(instructions) or 'NULL' in instructions[number].argrepr:
        return None
    following = instructions[number + 1]
    if following.opname in _ATTRIBUTES:
        return {following.argval}
    compares = following.opname == 'IS_OP' or (following.opname == 'COMPARE_OP' and following.argval in ('==', '!='))
    return set() if compares else None


class NamedInside:
    """The names that code of a library uses; all names, if it may read attributes that it does not name."""

    def __init__(self, codes: Iterable[CodeType]) -> None:
        self.names: set[str] = set()
        for code in codes:
            for inner in nested(code):
                self.names.update(inner.co_names)
        self.all = not self.names.isdisjoint(_OPENING)


class ReadPaths:
    """Which watched values a run can have read.

    Arguments:
        entries: the watched values.
        meetings: where they met what they hold.
        codes: the user's code that ran, the lines of it that ran (None: any), and its globals by id.
        asked: the names of attributes that code has in texts.
        holders: the objects whose attributes are watched.
        classes: the classes of what the caller gave.
        libraries: by the name of a library, what its code that ran names.
        full: the objects and classes that the code asks for any attribute, by id.
    """

    def __init__(
        self,
        entries: Iterable[WatchedValue],
        meetings: Meetings,
        codes: Iterable[tuple[CodeType, set[int] | None, int]],
        asked: set[str],
        holders: list[Holder],
        classes: Iterable[type],
        libraries: dict[str, NamedInside],
        full: set[int],
    ) -> None:
        self._full = full
        self._libraries = libraries
        self._asked = asked
        self._loads = _Loads({}, {})
        for code, lines, globals_ in codes:
            self._loads.add_all(code, lines, globals_)
        #: By the id of an object: what the code can have asked it for.
        self._used: dict[int, _Asked] = dict.fromkeys(meetings.roots)
        #: The classes that are used, or of which an object is, by id.
        self._classes = {id(base) for cls in classes for base in bases_of(cls)}
        self._objects = {id(holder.value): holder.value for holder in holders}
        #: The objects of which only what the user's code names is read.
        self._named = {id(holder.value) for holder in holders if holder.owned and not holder.whole}
        self._named -= {id(value) for value in self._objects.values() if _is_enumerated(value)}
        #: The modules of libraries that are not understood as a whole, and the names of these libraries.
        self._modules = {id(holder.value): name for holder in holders if (name := _library_of(holder))}
        self._classes_of(meetings.roots)
        self._within = {key: list(found) for key, found in meetings.met.items()}
        self._read: set[int] = set()
        self._entries = list(entries)
        for entry in self._entries:
            for value in _inside(entry.kept):
                self._within.setdefault(id(value), []).append(entry)
        self._follow()

    def reads(self, entry: WatchedValue) -> bool:
        """Whether the run can have read a watched value."""
        return id(entry) in self._read

    def matter(self, sentence: str) -> bool:
        """Whether what a sentence says is of a value that the run can have got."""
        return not isinstance(sentence, Doubt) or self.reach(sentence.value)

    def reach(self, value: int) -> bool:
        """Whether the run can have got a value, by its id."""
        found = self._within.get(value)
        return value in self._used or not found or any(map(self.reads, found))

    def _follow(self) -> None:
        """Find what is read: from what the code has at hand on, through all that it asks for."""
        todo = list(self._entries)
        while todo:
            found = [entry for entry in todo if self._is_read(entry)]
            if not found:
                return
            for entry in found:
                self._read.add(id(entry))
                for value in _inside(entry.kept):
                    _join(self._used, id(value), self._next(entry) if value is entry.kept.value else None)
                    self._classes_of([id(value)])
            todo = [entry for entry in todo if not self.reads(entry)]

    def _classes_of(self, values: Iterable[int]) -> None:
        """Note that Python may look up special methods of values, in their classes and in those that they are."""
        for value in (self._objects[key] for key in values if key in self._objects):
            for cls in (type(value), value):
                if issubclass(type(cls), type):
                    self._classes.update(map(id, bases_of(cls)))

    def _is_read(self, entry: WatchedValue) -> bool:
        name = entry.key
        if entry.kind not in _KINDS or name in self._asked or id(entry.holder) in self._full:
            return True
        if name.startswith('__'):
            return entry.kind != 'class attribute' or id(entry.holder) in self._classes
        if entry.kind == 'global':
            return entry.where().startswith('builtin ') or (id(entry.mapping), name) in self._loads.of_globals
        if entry.kind != 'class attribute' and id(entry.holder) not in self._named and self._inside_reads(entry):
            return True
        if name not in self._loads.attributes:
            return False
        if entry.kind == 'class attribute':
            return True
        if id(entry.holder) not in self._used:
            return False
        used = self._used[id(entry.holder)]
        return used is None or name in used

    def _inside_reads(self, entry: WatchedValue) -> bool:
        """Whether a library's own code can have read an attribute of something that is its own."""
        library = self._modules.get(id(entry.holder))
        if library is None:
            return True
        named = self._libraries.get(library)
        return named is not None and (named.all or entry.key in named.names)

    def _next(self, entry: WatchedValue) -> _Asked:
        """What the code asks of a value at once, wherever it loads the name."""
        if entry.kind == 'global':
            return self._loads.of_globals.get((id(entry.mapping), entry.key))
        if id(entry.holder) in self._full:
            return None
        return self._loads.attributes.get(entry.key) if entry.kind in _KINDS else None


def _library_of(holder: Holder) -> str:
    """The library of a module that is neither the user's nor of a package that is understood as a whole; else ''."""
    if holder.kind != 'module' or holder.owned:
        return ''
    top = str(holder.start.get('__name__', '')).partition('.')[0]
    understood = top in PACKAGES or is_cupys(top) or is_pythons(top) or top in sys.builtin_module_names
    return '' if understood else top


def _is_enumerated(value: Any) -> bool:
    """Whether a value is an enumeration or a member of one: Python's own code reads their attributes."""
    return issubclass(type(value), enum.EnumMeta) or issubclass(type(type(value)), enum.EnumMeta)


def _inside(kept: Kept) -> Iterator[Any]:
    """A kept value, and the values in it."""
    todo, seen = [kept], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one.value
        todo += one.parts
