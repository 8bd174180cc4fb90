"""The functions whose code runs, which are looked for: their defaults and closures are watched."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from inspect import CO_NESTED
from types import CodeType, FrameType, FunctionType
from typing import Any

from capturekit.functions.attributes import Attributes
from capturekit.functions.collector import Before, functions_of
from capturekit.functions.follow_time import FollowTime
from capturekit.functions.ownership import LibraryState, Ownership, asked_by_user
from capturekit.functions.return_paths import function_of
from capturekit.functions.understood import FUNCTION_PARTS
from capturekit.functions.watched_values import WatchedValues, read_cell
from capturekit.model.class_layout import MISSING, among, bases_of, dictionary_of_class


class FunctionsFound:
    """Finds the functions that run, and watches what they are made of."""

    def __init__(
        self,
        values: WatchedValues,
        attributes: Attributes,
        library: LibraryState,
        ownership: Ownership,
        before: Before,
        time: FollowTime,
    ) -> None:
        self._values, self._attributes, self._library = values, attributes, library
        self._ownership, self._before, self._time = ownership, before, time
        #: By the id of code: the functions that have it.
        self.known: dict[int, list[FunctionType]] = {}
        #: The code whose functions were looked for, by id.
        self.searched: set[int] = set()
        #: By the ids of the functions of one code that may have run: what to say if no watched value leads to one.
        self.ran: dict[tuple[int, ...], str] = {}
        #: By the id of a module's globals: its functions when one was first looked for, by the id of their code.
        self.by_module: dict[int, dict[int, list[FunctionType]]] = {}
        #: Code that is written inside of code that ran: the run may have made functions of it.
        self.inside: set[int] = set()
        #: The function that is followed; the code that calls it.
        self.outermost: tuple[FunctionType | None, CodeType | None] = None, None
        #: The functions that ran and that Python has told; those that are watched, by id.
        self._told: dict[int, FunctionType] = {}
        self._watched: dict[int, FunctionType] = {}
        self._swept: set[int] = set()

    def inside_library(self, frame: FrameType) -> None:
        """Keep what code of Python's own modules names, and what its function is made of if the user calls it."""
        self._library.inside_library(frame)
        code = frame.f_code
        asked = asked_by_user(frame.f_back, self._ownership.skip)
        for function in (frame.f_globals.get(code.co_name), *self._methods(code, frame.f_locals)):
            if asked and type(function) is FunctionType and function.__code__ is code:
                self.parts_of(function)

    def find(self, frame: FrameType, code: CodeType, variables: Any) -> bool:
        """Find the function that runs, whose defaults and closure are watched.

        False if it is not found, and the run did not make it: where Python does not tell it, all objects are
        looked through, and ``gc.freeze`` takes functions out of the lists.
        """
        if code.co_name.startswith('<') and code.co_name != '<lambda>':
            return True  # a comprehension: its cells are those of the function around it
        if self._is_outermost(frame, code):
            return True
        self.known.setdefault(id(code), [])
        if id(code) not in self.searched:
            self.searched.add(id(code))
            named = frame.f_globals.get(code.co_name)
            wrapped = named.__dict__.get('__wrapped__') if type(named) is FunctionType else None
            self._add_known(code, [named, wrapped, *self._methods(code, variables)])
        running = self._running(frame, code, variables)
        were_there = [one for one in running if id(one) in self._watched or self._was_there(one)]
        for function in were_there:
            if id(function) not in self._watched:
                self.watch(function)
        key = tuple(map(id, running))
        if running and key not in self.ran and self._calls_it(frame) and len(were_there) == len(running):
            self.ran[key] = f'the function runs {code.co_name}, which is reached in a way that is not followed'
        return bool(running) or id(code) in self.inside

    def is_new(self, frame: FrameType, code: CodeType) -> bool:
        """Whether the function that runs is to be found: it has a closure, or is none of those that were."""
        if code.co_freevars or id(code) not in self.searched:
            return True
        function = function_of(frame)
        return function is not None and id(function) not in self._told

    def _running(self, frame: FrameType, code: CodeType, variables: Any) -> list[FunctionType]:
        """The function that runs; where Python does not tell it, all that may be it."""
        function = function_of(frame)
        if function is not None:
            self._told[id(function)] = function
            self.know(function)
            return [function]
        candidates = self.known[id(code)]
        running = [function for function in candidates if _runs(function, variables)]
        if id(code) not in self._swept and (not running or _is_made_again(code)):
            self._swept.add(id(code))
            self._add_known(code, self._functions_of(frame.f_globals).get(id(code), ()))
            running = [function for function in candidates if _runs(function, variables)]
        return running

    def _is_outermost(self, frame: FrameType, code: CodeType) -> bool:
        """Whether this is the call by which the run begins: its function is known, and watched."""
        function, caller = self.outermost
        below = frame.f_back
        return function is not None and function.__code__ is code and below is not None and below.f_code is caller

    def _was_there(self, function: FunctionType) -> bool:
        """Whether a function was there before the run.

        To ask the collector is dear, and the run makes functions of code inside of code that ran. One that it makes in
        another way is watched, too, which does no harm.
        """
        return id(function.__code__) not in self.inside or self._before.had(function)

    def _calls_it(self, frame: FrameType) -> bool:
        """Whether the user's code calls it: in a kernel's launch, a function may stand for the kernel."""
        return asked_by_user(frame.f_back, self._ownership.skip)

    def _functions_of(self, module: dict[str, Any]) -> dict[int, list[FunctionType]]:
        if id(module) not in self.by_module:
            self._time.pause()
            self.by_module[id(module)] = functions_of(module)
            self._time.resume()
        return self.by_module[id(module)]

    def _add_known(self, code: CodeType, found: Iterable[object]) -> None:
        for function in found:
            if type(function) is FunctionType and function.__code__ is code:
                self.know(function)

    def _methods(self, code: CodeType, variables: Any) -> Iterator[object]:
        """Functions of the class of the first argument that have this code. Where they were found is watched."""
        if not code.co_argcount:
            return
        first = variables.get(code.co_varnames[0])
        classes = bases_of(first) if issubclass(type(first), type) else bases_of(type(first))
        for cls in classes:
            members = dictionary_of_class(cls)
            for name in (code.co_name, *members):  # named tuples have a lambda as their __new__
                found = members.get(name)
                inner = _unwrapped(found)
                if type(inner) is FunctionType and inner.__code__ is code:
                    self._attributes.class_attribute(cls, name, found)
                    yield inner
                    break

    def watch(self, function: FunctionType) -> None:
        """Watch a function that runs and that was there before: its code, defaults and closure."""
        self._watched[id(function)] = function
        self.know(function)
        self.parts_of(function)
        name = function.__name__
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            where = ('variable', f' of the closure of {name}')
            get = functools.partial(read_cell, cell)
            self._values.watch('variable', cell, variable, get(), where, None, get)

    def parts_of(self, function: FunctionType) -> None:
        """Watch the code and the defaults of a function."""
        for part in FUNCTION_PARTS:
            get = functools.partial(getattr, function, part)
            self._values.watch('function', function, part, get(), ('', f' of {function.__name__}'), None, get)

    def forget(self) -> None:
        """Let go of the functions that were found."""
        for found in (self.known, self.by_module, self._told):
            found.clear()

    def know(self, function: FunctionType) -> None:
        """Note a function, by its code."""
        known = self.known.setdefault(id(function.__code__), [])
        if not any(other is function for other in known):
            known.append(function)


def _unwrapped(member: Any) -> Any:
    """The function of a method, of a class or static method, and the getter of a property."""
    inner = member.__func__ if among(type(member), (classmethod, staticmethod)) else member
    return inner.fget if type(inner) is property else inner


def _is_made_again(code: CodeType) -> bool:
    """Whether several functions may have this code, as inner functions do: it is then unknown which of them runs."""
    return bool(code.co_flags & CO_NESTED) or code.co_name == '<lambda>'


def _runs(function: FunctionType, variables: Any) -> bool:
    """True if a frame with these variables can be a call of the function: its closure has the same values."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    return all(read_cell(cell) is variables.get(name, MISSING) for name, cell in cells)
