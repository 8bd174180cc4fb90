"""What the code that ran names, which is watched: globals, builtins, imports and attributes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from capturekit.functions.attributes import Attributes
from capturekit.functions.code_met import ClockReadings, CodeMet
from capturekit.functions.code_reads import READERS, CodeNames, names_by_line, names_of
from capturekit.functions.collector import Before
from capturekit.functions.doubts import Doubts, NamesUsed, Unsettled
from capturekit.functions.given_values import GivenValues
from capturekit.functions.hidden_state import SEEDED, overwrites_entropy
from capturekit.functions.holders import Holders
from capturekit.functions.library_state import LibraryState
from capturekit.functions.lines_run import LinesRun
from capturekit.functions.loaded_values import MODULES, is_in_place, module_named
from capturekit.functions.names_asked import NamesAsked
from capturekit.functions.object_uses import ObjectUses, is_hashed_by_value
from capturekit.functions.sets_made import SetsSeen
from capturekit.functions.settings import DEPTH, settings_of
from capturekit.functions.watched_values import WatchedValues
from capturekit.model.class_layout import MISSING, bases_of, dictionary_of_class

#: ``Py_TPFLAGS_IMMUTABLETYPE``: code can't set attributes of such a class; CuPy's ``_ndarray_base`` is one.
_IMMUTABLE = 1 << 8
#: Functions that compare by identity.
_ASKING = frozenset({'is_', 'is_not'})
#: Code that names one of these is told of its calls.
_TOLD = READERS | {SEEDED, 'hash'}


class CodeWatch:
    """Watches what code names: all of it when it begins to run, or line by line where lines are told of.

    ``array``: the class of arrays, whose methods the user may replace.
    """

    def __init__(
        self,
        values: WatchedValues,
        holders: Holders,
        attributes: Attributes,
        names: NamesUsed,
        asked: NamesAsked,
        given: GivenValues,
        code: CodeMet,
        uses: ObjectUses,
        unsettled: Unsettled,
        library: LibraryState,
        doubts: Doubts,
        lines: LinesRun,
        before: Before,
        array: type | None = None,
    ) -> None:
        self._values, self._holders, self._attributes, self._names = values, holders, attributes, names
        self._asked, self._given, self._code, self._uses, self._unsettled = asked, given, code, uses, unsettled
        self._library, self._doubts, self._lines, self._array = library, doubts, lines, array
        self.sets = SetsSeen(before.had)
        self.clock = ClockReadings()
        #: The globals of the user's code, as they were when it was met, and the file, by id.
        self.globals: dict[int, tuple[dict[str, Any], dict[str, Any], str]] = {}
        #: The globals that code writes and that were not there, with their file, by the id of the dictionary and name.
        self.made: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        #: What to say of the calls of ``hash``, by code and offset, whose arguments are not told next.
        self.to_hash: dict[tuple[int, int], str] = {}
        #: The code and offset of the last call that made a generator with a seed.
        self.seeding: tuple[int, int] | None = None
        #: What reads the modules that code asks ``sys.modules`` for, by name.
        self._modules_watched: dict[str, Callable[[], Any]] = {}
        #: What each line of a code object names.
        self._by_line: dict[int, dict[int, CodeNames]] = {}

    def collect(self, frame: FrameType, code: CodeType) -> None:
        """Watch what a code object names when it runs for the first time: line by line where lines are told of."""
        self._code.globals_of[id(code)] = code, id(frame.f_globals)
        whole = names_of(code)
        if code.co_filename != '<string>':  # there, dataclasses compares with its own constant
            self._uses.compared[id(code)] = whole.parameters, f'{code.co_name} of {os.path.basename(code.co_filename)}'
        for setting in settings_of(code):
            self._values.depends_on(setting)
        if self._lines.told:
            lines, calls = self.sets.follow(code)
            by_line = self._by_line[id(code)] = names_by_line(code)
            lines = lines or any(names.looked_at for names in by_line.values())
            self._lines.follow(code, lines, calls or not _TOLD.isdisjoint(code.co_names))
            self._watch_named(frame, by_line[0])
        else:
            self._watch_named(frame, whole)

    def came_to(self, frame: FrameType, first: bool) -> None:
        """Watch what a line names that is about to run for the first time, and look at the sets in its variables."""
        if self.sets.has_locals(frame.f_code):
            self.sets.line(frame.f_code, frame.f_locals)
        names = self._by_line[id(frame.f_code)].get(frame.f_lineno)
        if names is not None and first:
            self._watch_named(frame, names)
        for of, attribute in () if names is None else names.looked_at:
            if attribute == '__dict__':
                self._asked.look_at_all(of.value_in(frame))
            else:
                asked = of.value_in(frame)
                self._modules_asked(frame, [asked if type(asked) is str else None])

    def look_at_call(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        """Look at what a set is made of, and at the object that is asked for an attribute."""
        generator = self.sets.call(code, offset, function, first)
        if generator is not None:
            self._lines.tell_values(generator, self.sets.yielded)
        doubt = self.to_hash.pop((id(code), offset), None)
        if doubt is not None and not (function is hash and is_hashed_by_value(first)):
            self._doubts.unwatchable.append(doubt)
        if overwrites_entropy(function, first):
            self.seeding = id(code), offset
        elif self.seeding == (id(code), offset):
            self.seeding = None
        self._asked.call_asks(code, offset, function, first)

    def _watch_named(self, frame: FrameType, names: CodeNames) -> None:
        code, values = frame.f_code, frame.f_globals
        if id(values) not in self.globals:
            self.globals[id(values)] = (values, dict(values), os.path.basename(code.co_filename))
        _, start, file = self.globals[id(values)]
        if names.unknown:
            self._doubts.unwatchable.append(f'{code.co_name} of {file} uses {names.unknown}, which is not understood')
        self._names.of_cupy |= names.of_arrays
        own = frame.f_builtins
        for name in sorted(names.read | names.written):
            if name in names.written and name not in start:
                self.made[id(values), name] = (values, file)
            if not self._of_globals(values, name):
                self._builtin(own, name)
        if code.co_filename != '<string>':  # there, dataclasses compares with its own constant
            self._uses.identity(names.identities, start, own, f'{code.co_name} of {file}')
            if not _ASKING.isdisjoint(names.read | names.attributes):
                self._uses.identities = self._uses.identities or f'{code.co_name} of {file}'
        for name, level in names.imports:
            self._imported(frame, name, level)
        self._modules_asked(frame, names.modules)
        self._holders.name(names.attributes, names.strings, names.everything)
        for cls in self._given.of_class:
            self._attributes.class_names(cls, self._names.attributes)
        for base in bases_of(self._array) if self._array is not None else ():
            if not base.__flags__ & _IMMUTABLE:
                self._library.inside_of(base, dictionary_of_class(base))
                self._library.complete.add(id(base))
        self._holders.settle()

    def _of_globals(self, values: dict[str, Any], name: str) -> bool:
        """Watch a name of a module that has been met. False if the module had no such name."""
        _, start, file = self.globals[id(values)]
        if name in start:
            self.watch_global(values, name, start[name], file)
        else:
            self._attributes.absent.setdefault(id(values), (values, set(), f'global {{}} of {file}'))[1].add(name)
        return name in start

    def _builtin(self, own: dict[str, Any], name: str) -> None:
        if name in own:
            asks = self._unsettled.asks_all
            self._values.watch('global', own, name, own[name], ('builtin', ''), own)
            # code that names getattr says which attributes it reads with it, or that it can't
            self._unsettled.asks_all = asks
        else:
            self._attributes.absent.setdefault(id(own), (own, set(), 'builtin {}'))[1].add(name)

    def recursion(self, frame: FrameType) -> None:
        """Note code that calls itself: it may reach the limit of calls in calls."""
        outer = frame.f_back if DEPTH in self._values.settings else None
        while outer is not None and id(outer.f_code) in self._code.codes:
            if outer.f_code is frame.f_code:
                self._values.depends_on(DEPTH)
                break
            outer = outer.f_back

    def _imported(self, frame: FrameType, name: str, level: int) -> None:
        """Watch a module that code imports where it runs."""
        if level:
            package = str(frame.f_globals.get('__package__') or '').rsplit('.', level - 1)[0]
            name = f'{package}.{name}' if name else package
        parts = name.split('.')
        for count in range(1, len(parts) + 1):
            part = '.'.join(parts[:count])
            self._values.watch('import', sys.modules, part, sys.modules.get(part, MISSING), ('module', ''), sys.modules)

    def _modules_asked(self, frame: FrameType, names: Iterable[str | None]) -> None:
        """Watch the modules that code asks ``sys.modules`` for by their names, or all of them."""
        for name in names:
            if name is not None and frame.f_globals.get('sys') is sys:
                same = functools.partial(is_in_place, sys.modules)
                self._values.watch('state', sys, MODULES, True, ('which dict is', ' of sys'), None, same)
                if name not in self._modules_watched:  # without a key: code may do anything with such a module
                    get = self._modules_watched[name] = functools.partial(module_named, name)
                    self._values.watch('import', get, '', get(), (f'module {name}', ''), None, get)
            elif not self._names.opens_modules:
                self._names.opens_modules = True
                holder = self._holders.by_id.get(id(sys))
                if holder is not None:
                    self._attributes.attribute_of(holder, MODULES)

    def watch_global(self, values: dict[str, Any], name: str, value: Any, file: str) -> None:
        """Watch a global of a module."""
        self._values.watch('global', values, name, value, ('global', f' of {file}'), values)
