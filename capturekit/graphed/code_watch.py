"""What the code that ran names, which is watched: globals, builtins, imports and attributes; and the lines that ran.

Code may ask for attributes by ``getattr`` and its like, by names that are values. A name that is in the code, or in a
variable, is seen. Of an object that is seen (from Python 3.12 on), a computed name may be any: all attributes of that
object and of its class count then, and of no other.

From Python 3.12 on the interpreter tells of each line before it runs (``sys.monitoring``), once, and only in code that
the run has met; in some code it tells of each line each time, and of calls. One run at a time is told. For one that
begins meanwhile, and in older Pythons, all lines count.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from capturekit.graphed.allowlists import INTERFACES
from capturekit.graphed.code_reads import MODULES, READERS, CodeNames, LoadedValue, names_by_line, names_of
from capturekit.graphed.hidden_state import SEEDED, overwrites_entropy
from capturekit.graphed.reasons import Reason
from capturekit.graphed.return_paths import Caller, ReturnPaths
from capturekit.graphed.sets_made import SetsSeen
from capturekit.graphed.settings import DEPTH, settings_of
from capturekit.graphed.watched_objects import GivenValues, Holders
from capturekit.graphed.watched_values import RunParts, is_hashed_by_value
from capturekit.model.class_layout import (
    MISSING,
    attributes_of,
    bases_of,
    dictionary_of_class,
    layout_of,
    made_by_class_statement,
    solid_base,
)
from capturekit.model.code_steps import Does, steps_of
from capturekit.model.host_reads import Site
from capturekit.model.kept_values import contents_of
from capturekit.model.plain_values import plain_key

#: The functions that read a clock and do nothing else.
CLOCKS = (
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns,
    time.process_time, time.process_time_ns, time.thread_time, time.thread_time_ns,
)  # fmt: skip


class CodeMet:
    """What is known of the code that ran; :class:`PythonCalls` adds to it."""

    def __init__(self) -> None:
        #: The code that ran, and whether it is a library's, by id.
        self.codes: dict[int, tuple[CodeType, bool]] = {}
        #: By the id of code that ran: from where it was called, and from where the calling code was called then.
        self.callers: dict[int, dict[Caller, set[Caller]]] = {}
        #: The calls in the user's code, by its id and the offset, that entered code of libraries.
        self.left_at: set[tuple[int, int]] = set()
        self.direct = ReturnPaths()
        #: The user's code, and the globals of its functions, by id.
        self.globals_of: dict[int, tuple[CodeType, int]] = {}
        #: By dictionary of a module: the code that ran, the user's and libraries'.
        self.ran_in: dict[int, tuple[dict[str, Any], list[CodeType]]] = {}

    def own(self) -> list[CodeType]:
        """The user's code that ran."""
        return [code for code, foreign in self.codes.values() if not foreign]

    def named(self) -> list[tuple[dict[str, Any], frozenset[str]]]:
        """The globals of modules whose code of the user's ran, each with the names in all of that code."""
        own = {id(code) for code in self.own()}
        return [
            (names, frozenset(name for code in codes if id(code) in own for name in code.co_names))
            for names, codes in self.ran_in.values()
        ]


_NAME = 'capturekit: lines that ran'
_monitoring: Any = getattr(sys, 'monitoring', None)
_DISABLE = _monitoring.DISABLE if _monitoring is not None else None
#: The run that is told of lines.
_followed: list[LinesRun] = []


class LinesRun:
    """Tells of lines: ``begin``, ``follow`` for each code object as it begins to run, ``end``.

    ``came_to`` is called in the thread of the run when it comes to a line, with the frame, and whether it is the first
    time. ``called`` is called before calls that code makes, with the code, the offset, the function and its first
    argument. Neither may raise.
    """

    def __init__(
        self, came_to: Callable[[FrameType, bool], None], called: Callable[[CodeType, int, Any, Any], None]
    ) -> None:
        self._came_to: Callable[[FrameType, bool], None] | None = came_to
        self._called: Callable[[CodeType, int, Any, Any], None] | None = called
        self._thread = threading.get_ident()
        self._tool: int | None = None
        self._codes: dict[int, CodeType] = {}
        self._ran: dict[int, set[int]] = {}
        #: The code of which each line is told each time, by id.
        self._each_time: set[int] = set()
        #: To whom the values of generators are told, by the id of their code.
        self._values: dict[int, Callable[[CodeType, Any], None]] = {}

    def begin(self) -> None:
        """Begin, if the interpreter can tell of lines and no other run is told."""
        if _monitoring is None or _followed:
            return
        _followed[:] = [self]
        for tool in (5, 4, 3):
            if _monitoring.get_tool(tool) is None:
                self._tool = tool  # a signal may end this at any call: from now on ``end`` frees it
                _monitoring.use_tool_id(tool, _NAME)
                self._register(self._line, self._call, self._yield)
                return
        _followed.clear()

    def _register(self, *callbacks: Callable[..., Any] | None) -> None:
        events = _monitoring.events
        for event, callback in zip((events.LINE, events.CALL, events.PY_YIELD), callbacks):
            _monitoring.register_callback(self._tool, event, callback)

    @property
    def told(self) -> bool:
        """Whether lines are told of in this run."""
        return self._tool is not None

    def follow(self, code: CodeType, each_time: bool, calls: bool) -> None:
        """Tell of the lines of code that begins to run for the first time."""
        self._ran[id(code)] = {0}  # what belongs to no line
        if each_time:
            self._each_time.add(id(code))
        events = _monitoring.events
        self._tell(code, events.LINE | (events.CALL if calls else 0))

    def follow_calls(self, code: CodeType) -> None:
        """Tell of the calls of code whose lines are not told of."""
        self._tell(code, _monitoring.events.CALL)

    def tell_values(self, code: CodeType, yielded: Callable[[CodeType, Any], None]) -> None:
        """Tell of all values that generators of this code give."""
        if id(code) not in self._values:
            self._values[id(code)] = yielded
            self._tell(code, _monitoring.events.PY_YIELD)

    def _tell(self, code: CodeType, events: int) -> None:
        self._codes[id(code)] = code
        events |= _monitoring.get_local_events(self._tool, code)
        _monitoring.set_local_events(self._tool, code, events)

    def end(self) -> None:
        """Tell no more. Which lines ran is still known. A second call ends what the first has left."""
        self._came_to = self._called = None  # they hold the run, and so all that it has met
        tool = self._tool
        if tool is None:
            _followed[:] = [one for one in _followed if one is not self]
            return
        for code in self._codes.values():
            _monitoring.set_local_events(tool, code, 0)
        self._register(None, None, None)
        self._values.clear()
        _followed.clear()
        self._tool = None
        _monitoring.free_tool_id(tool)

    def of(self, code: CodeType) -> set[int] | None:
        """The lines of code that ran; None: any may have run."""
        return self._ran.get(id(code))

    def _line(self, code: CodeType, line: int) -> Any:
        if threading.get_ident() != self._thread or self._came_to is None:
            return None
        ran = self._ran[id(code)]
        first = line not in ran
        ran.add(line)
        self._came_to(sys._getframe(1), first)
        return None if id(code) in self._each_time else _DISABLE

    def _yield(self, code: CodeType, _offset: int, value: Any) -> None:
        yielded = self._values.get(id(code))
        if yielded is not None and threading.get_ident() == self._thread and self._called is not None:
            yielded(code, value)

    def _call(self, code: CodeType, offset: int, function: Any, argument: Any) -> None:
        if threading.get_ident() == self._thread and self._called is not None and id(code) in self._codes:
            self._called(code, offset, function, argument)


def caught_in(codes: list[tuple[CodeType, set[int] | None]]) -> bool:
    """Whether code may have gone on after an exception. ``codes``: each with its lines that ran; None: any."""
    swallows = any(not {code.co_name, *code.co_names}.isdisjoint(_SWALLOWING) for code, _ in codes)
    return any(_may_catch(code, lines, swallows) for code, lines in codes)


def _may_catch(code: CodeType, lines: set[int] | None, swallows: bool) -> bool:
    """``swallows``: whether what a ``with`` calls at its end may stop an exception."""
    steps = steps_of(code)
    handles = [step.line for step in steps if step.does == Does.HANDLES]
    if not handles or lines is None:
        return bool(handles)
    managed = {step.line for step in steps if step.does == Does.EXITS}
    return any(line in lines and (swallows or line not in managed) for line in handles)


#: Names of what may stop an exception at the end of a ``with``.
_SWALLOWING = frozenset({'__exit__', 'suppress', 'ExitStack'})


_BY_NAMES = (getattr, setattr, hasattr, delattr)
_own_folder = os.path.dirname(os.path.abspath(__file__))


class NamesAsked:
    """The attributes that a run asks for by names which are values."""

    def __init__(self, run: RunParts, holders: Holders, lines: LinesRun) -> None:
        self._values, self._holders, self._names = run.values, holders, run.names
        self._ownership, self._lines, self._before = run.ownership, lines, run.before
        #: Code that calls ``getattr`` or its like, and where: see :class:`capturekit.graphed.code_reads.CodeNames`.
        self._asking: dict[int, CodeType] = {}
        self._sites: dict[tuple[int, int], str | LoadedValue] = {}
        #: Code and offset of a call that asks an object for a computed name. The object is told next.
        self._to_ask: tuple[int, int] | None = None

    def call_asks(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        """Note what a call that begins is going to ask for: which object was not known yet."""
        if self._to_ask is None or not any(function is one for one in _BY_NAMES):
            return
        told, self._to_ask = self._to_ask == (id(code), offset), None
        if not told or not self._takes_in_full(first):
            self._holders.by_unseen_names()
        self._holders.settle()

    def look_at_all(self, value: Any) -> None:
        """Watch all attributes of a value: code takes its ``__dict__``."""
        if value is MISSING or not self._takes_in_full(value, True):
            self._holders.by_unseen_names()
        self._holders.settle()

    def answer_all(self) -> None:
        """Take it that a call whose object was not told may have asked any object."""
        if self._to_ask is not None:
            self._to_ask = None
            self._holders.by_unseen_names()

    def asked(self, frame: FrameType, tests: bool) -> None:
        """Watch the attribute that code of the user, or of Python itself for it, asks ``getattr`` or its like for.

        ``tests``: it asks by ``hasattr``, which gives the code nothing of the attribute.
        """
        code = frame.f_code
        if code.co_filename.startswith(_own_folder):
            return
        if id(code) not in self._asking:
            self._asking[id(code)] = code
            self._sites |= names_of(code).sites
        given = self._sites.get((id(code), frame.f_lasti))
        name = given.value_in(frame) if isinstance(given, LoadedValue) else given
        self.answer_all()
        if type(name) is not str:
            self._to_ask = id(code), frame.f_lasti
            if self._lines.of(code) is None:
                self.answer_all()
        elif tests and name in INTERFACES:
            self._holders.name((name,))
            self._holders.settle()
        elif name not in self._names.strings and not (name == '__dict__' and self._wraps(frame)):
            self._holders.name((name,), (name,))
            self._holders.settle()

    def _takes_in_full(self, value: Any, takes: bool = False) -> bool:
        """Watch all attributes of an object and of its class. False if it is not one that has nothing else.

        ``takes``: whether code gets its ``__dict__``, by which it may see them later.
        """
        cls = type(value)
        if id(value) in self._names.full:
            self._had(value)
            return True
        of_thread = cls is threading.local
        if not of_thread and (not _is_plain(value) or any(map(self._ownership.is_foreign_class, bases_of(cls)[:-1]))):
            return False
        if self._before.had(value):
            self._values.meet(value)
            self._holders.settle()
            holder = self._holders.by_id.get(id(value))
            if holder is None or holder.kind != 'object' or not holder.owned:
                return False
            for name in sorted(holder.start.keys() | holder.slots.keys()):
                self._holders.attribute_of(holder, name)
            self._names.full[id(value)] = value
        elif takes or of_thread:
            self._names.takes_new = True
        if of_thread:
            return True
        self._had(value)
        self._holders.hold_class(cls)
        for base in bases_of(cls)[:-1]:
            if id(base) not in self._names.full:
                self._names.full[id(base)] = base
                self._holders.class_names(
                    cls, [name for name in dictionary_of_class(base) if not name.startswith('__')]
                )
        return True

    def _had(self, value: Any) -> None:
        """Note what an object has when it is asked, and its class, for the run may take it away again."""
        self._names.asked_for.update(attributes_of(value), layout_of(type(value)).slots)
        for base in bases_of(type(value))[:-1]:
            self._names.asked_for.update(dictionary_of_class(base))

    def _wraps(self, frame: FrameType) -> bool:
        """Watch all attributes of a function that ``functools.wraps`` copies to one that the run made."""
        if frame.f_code is not functools.update_wrapper.__code__:
            return False
        wrapper, wrapped = frame.f_locals['wrapper'], frame.f_locals['wrapped']
        wrapped = wrapped.__func__ if type(wrapped) is MethodType else wrapped
        if type(wrapper) is not FunctionType or type(wrapped) is not FunctionType or self._before.had(wrapper):
            return False
        if self._before.had(wrapped):
            where, get = ('', f' of {wrapped.__name__}'), functools.partial(getattr, wrapped, '__dict__')
            self._values.watch('function', wrapped, '__dict__', get(), where, None, get)
            self._holders.settle()
        return True


def _is_plain(value: Any) -> bool:
    """Whether a value is an object of a Python class that has attributes and nothing else."""
    cls = type(value)
    plain = type(cls) is type and solid_base(cls) is object and plain_key(value) is None and contents_of(value) is None
    return plain and all(made_by_class_statement(base) for base in bases_of(cls)[:-1])


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
        self, run: RunParts, holders: Holders, given: GivenValues, lines: LinesRun, array: type | None
    ) -> None:
        self._values, self._holders, self._names, self._uses = run.values, holders, run.names, run.uses
        self._library, self._doubts, self._given = run.library, run.doubts, given
        self._lines, self._array = lines, array
        self.met, self.asked = CodeMet(), NamesAsked(run, holders, lines)
        self.sets = SetsSeen(run.before.had)
        #: Where the user's code reads a clock, with the reason for the case that the time counts; and the attributes to
        #: which times were followed.
        self.clock: dict[Site, Reason] = {}
        self.times: set[str] = set()
        #: The globals of the user's code, as they were when it was met, and the file, by id.
        self.globals: dict[int, tuple[dict[str, Any], dict[str, Any], str]] = {}
        #: The globals that code writes and that were not there, with their file, by the id of the dictionary and name.
        self.made: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        #: What to say of the calls of ``hash``, by code and offset, whose arguments are not told next.
        self.to_hash: dict[tuple[int, int], Reason] = {}
        #: The code and offset of the last call that made a generator with a seed.
        self.seeding: tuple[int, int] | None = None
        #: What reads the modules that code asks ``sys.modules`` for, by name.
        self._modules_watched: dict[str, Callable[[], Any]] = {}
        #: What each line of a code object names.
        self._by_line: dict[int, dict[int, CodeNames]] = {}

    def collect(self, frame: FrameType, code: CodeType) -> None:
        """Watch what a code object names when it runs for the first time: line by line where lines are told of."""
        self.met.globals_of[id(code)] = code, id(frame.f_globals)
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
                self.asked.look_at_all(of.value_in(frame))
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
        self.asked.call_asks(code, offset, function, first)

    def _watch_named(self, frame: FrameType, names: CodeNames) -> None:
        code, values = frame.f_code, frame.f_globals
        if id(values) not in self.globals:
            self.globals[id(values)] = (values, dict(values), os.path.basename(code.co_filename))
        _, start, file = self.globals[id(values)]
        if names.unknown:
            self._doubts.say(f'{code.co_name} of {file} uses {names.unknown}, which is not understood')
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
        self._holders.name(names.attributes, names.strings)
        for cls in self._given.of_class:
            self._holders.class_names(cls, self._names.attributes)
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
            self._holders.absent.setdefault(id(values), (values, set(), f'global {{}} of {file}'))[1].add(name)
        return name in start

    def _builtin(self, own: dict[str, Any], name: str) -> None:
        if name in own:
            asks = self._values.asks_all
            self._values.watch('global', own, name, own[name], ('builtin', ''), own)
            # code that names getattr says which attributes it reads with it, or that it can't
            self._values.asks_all = asks
        else:
            self._holders.absent.setdefault(id(own), (own, set(), 'builtin {}'))[1].add(name)

    def recursion(self, frame: FrameType) -> None:
        """Note code that calls itself: it may reach the limit of calls in calls."""
        outer = frame.f_back if DEPTH in self._values.settings else None
        while outer is not None and id(outer.f_code) in self.met.codes:
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
        modules = sys.modules
        for name in names:
            if name is not None and frame.f_globals.get('sys') is sys:
                where = ('which dict is', ' of sys')
                self._values.watch('state', sys, MODULES, True, where, None, lambda: sys.modules is modules)
                if name not in self._modules_watched:  # without a key: code may do anything with such a module
                    get = self._modules_watched[name] = functools.partial(sys.modules.get, name, MISSING)
                    self._values.watch('import', get, '', get(), (f'module {name}', ''), None, get)
            elif not self._names.opens_modules:
                self._names.opens_modules = True
                holder = self._holders.by_id.get(id(sys))
                if holder is not None:
                    self._holders.attribute_of(holder, MODULES)

    def watch_global(self, values: dict[str, Any], name: str, value: Any, file: str) -> None:
        """Watch a global of a module."""
        self._values.watch('global', values, name, value, ('global', f' of {file}'), values)
