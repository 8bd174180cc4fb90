"""The code that a run enters: the user's, which is followed, libraries', and functions written in C; and imports."""

from __future__ import annotations

import _warnings
import gc
import os
import string
import sys
from types import CodeType, FrameType
from typing import Any

from capturekit.functions.code_met import is_clock
from capturekit.functions.code_reads import READERS
from capturekit.functions.doubts import is_hash_of_a_value
from capturekit.functions.hidden_state import DRAWING, SEEDED
from capturekit.functions.ownership import asked_by_user, asks_for_backends, called_by, is_library_frame, python_module
from capturekit.functions.readable_state import is_cupys
from capturekit.functions.return_paths import Caller
from capturekit.functions.run_record import RunRecord
from capturekit.functions.settings import CODECS, DEPTH, HANDLED, LOCALE, REGISTERED, WARNINGS, is_by_locale
from capturekit.functions.understood import ALLOCATORS, BY_ADDRESS, FOLLOWED, owner_of, reads
from capturekit.model.source_line import is_ours

_VARIABLE = (0x04, 0x08)  # CO_VARARGS, CO_VARKEYWORDS
_SUSPENDS = 0x2A0  # the code of generators and coroutines

#: The frame under which all finders and loaders run, and the modules that they load.
_IMPORT = sys.modules['_frozen_importlib']._find_and_load.__code__

_own_folder = os.path.dirname(os.path.abspath(__file__))


class PythonCalls:
    """Follows the calls of functions written in Python.

    ``outermost``: the code that calls the function which is watched.
    """

    def __init__(self, run: RunRecord, outermost: CodeType) -> None:
        self._values, self._holders, self._hidden, self._functions = run.values, run.holders, run.hidden, run.functions
        self._code, self._code_watch, self._given, self._uses = run.code, run.code_watch, run.given, run.uses
        self._library, self._libraries, self._out_of_sight = run.library, run.libraries, run.out_of_sight
        self._lines, self._ownership, self._doubts, self._before = run.lines, run.ownership, run.doubts, run.before
        self._ignore, self._outermost = run.given.ignore, outermost
        #: The frame of Python's import system while a module is imported.
        self.importing: FrameType | None = None

    def while_importing(self, importing: FrameType, frame: FrameType, event: str) -> None:
        """Skip the code that finds, loads and runs a module: it runs once, so no later call reads what it reads."""
        if event == 'return' and frame is importing:
            self.importing = None
            name = frame.f_locals.get('name')
            if name not in sys.modules and asked_by_user(importing.f_back, self._ownership.skip):
                self._doubts.add(importing.f_back, f'imports {name}, which is not found')
        elif event == 'call' and frame.f_code.co_name == '<module>':
            self._module_begins(frame, importing)

    def _module_begins(self, frame: FrameType, importing: FrameType) -> None:
        if asked_by_user(importing.f_back, self._ownership.skip):
            self._doubts.add(importing.f_back, f'imports {frame.f_globals.get("__name__")} for the first time')

    def called(self, frame: FrameType) -> None:
        """Follow a call that begins."""
        code = frame.f_code
        if code is _IMPORT:
            self.importing = frame
            return
        if code is self._libraries.compiler and self._libraries.compiles(frame):
            return
        known = self._code.codes.get(id(code)) or self._met(frame, code)
        if code.co_flags & _SUSPENDS and id(frame) in self._hidden.suspended:
            self._hidden.resumed = self._hidden.resumed or self._hidden.suspended[id(frame)][1]
        if known[1]:
            return self._leaves(frame, code)
        self._runs(frame, code)
        count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in _VARIABLE)
        if not count and not code.co_freevars:
            if self._functions.is_new(frame, code):
                self._identify(frame, code, {})
            return
        variables = frame.f_locals
        self._uses.compare_parameters(code, variables)
        self._code_watch.recursion(frame)
        arguments = [variables[name] for name in code.co_varnames[:count] if name in variables]
        if code.co_name == '__del__' and arguments and id(type(arguments[0])) in self._uses.finalized:
            self._uses.finalized[id(type(arguments[0]))][1] -= 1
        if code.co_name == '__init__' and arguments:
            if id(arguments[0]) not in self._holders.by_id:
                self._before.made(arguments[0])
                self._uses.makes(type(arguments[0]))
            elif self._before.had(arguments[0]):
                self._code.begun_again.add(id(code))
        for number, argument in enumerate(arguments):
            if code.co_varnames[number] != '.0' and (self._ignore is None or not self._ignore(argument)):
                self._values.at = f'argument {code.co_varnames[number]} of {code.co_name}'
                self._given.argument(argument)
        if self._functions.is_new(frame, code):
            self._identify(frame, code, variables)
        self._holders.settle()

    def _leaves(self, frame: FrameType, code: CodeType) -> None:
        """A call enters code of a library. It is noted if it is one in the user's code."""
        if code.co_name == '__init__' and code.co_argcount:
            self._before.made(frame.f_locals.get(code.co_varnames[0]))
        self._libraries.entered(frame)
        below = frame.f_back
        known = None if below is None else self._code.codes.get(id(below.f_code))
        if below is not None and known is not None and not known[1]:
            self._code.left_at.add((id(below.f_code), below.f_lasti))

    def _identify(self, frame: FrameType, code: CodeType, variables: Any) -> None:
        if not self._functions.find(frame, code, variables):
            why = ' after gc.freeze()' if gc.get_freeze_count() else ''
            self._doubts.add(frame, f'runs {code.co_name}, whose function object is not found{why},')

    def _runs(self, frame: FrameType, code: CodeType) -> None:
        """Note from where the user's code is called, and whether it now runs with other globals than before: names in
        it are watched where it first found them."""
        caller = _caller_of(frame, self._outermost)
        further = self._code.callers.setdefault(id(code), {}).setdefault(caller, set())
        if caller is not None and frame.f_back is not None:
            further.add(_caller_of(frame.f_back, self._outermost))
        self._code.direct.enters(caller, frame)
        if self._code.globals_of[id(code)][1] == id(frame.f_globals):
            return
        said = self._doubts.sentence(frame, f'runs {code.co_name} with the globals of several modules')
        if said not in self._doubts.unwatchable:
            self._doubts.unwatchable.append(said)

    def _met(self, frame: FrameType, code: CodeType) -> tuple[CodeType, bool]:
        """Note that code runs for the first time; if it is the user's, watch what it names."""
        foreign = code.co_filename.startswith(_own_folder) or is_library_frame(frame, self._ownership.skip)
        foreign = foreign or code.co_name == '<module>' or code.co_name in ALLOCATORS
        known = self._code.codes[id(code)] = (code, foreign)
        self._code.ran_in.setdefault(id(frame.f_globals), (frame.f_globals, []))[1].append(code)
        self._functions.inside.update(id(part) for part in code.co_consts if type(part) is CodeType)
        if not foreign:
            self._code_watch.collect(frame, code)
            return known
        if code.co_name != '<module>' and not is_ours(code.co_filename):
            self._out_of_sight.name(code.co_names, self._holders.by_id.values())
        if SEEDED in code.co_names and self._lines.told:
            self._lines.follow_calls(code)
        if is_cupys(frame.f_globals.get('__name__')):
            self._library.inside_cupy(frame)
        elif code.co_name == '<module>':
            self._module_begins(frame, frame)
        elif python_module(code.co_filename).partition('.')[0] in FOLLOWED:
            self._functions.inside_library(frame)
        return known


def _caller_of(frame: FrameType, outermost: CodeType) -> Caller:
    """The code that a frame was called from; None for the function that is watched."""
    below = frame.f_back
    return None if below is None or below.f_code is outermost else (id(below.f_code), below.f_lasti)


#: Functions written in C of which it counts that a library calls them, by id.
COUNTS_ANYWHERE = frozenset(map(id, (os.urandom, _warnings.warn, _warnings.warn_explicit)))
#: Methods that make a set of another one, which may then get other members.
_COPYING = tuple(('builtins.set', name) for name in ('copy', 'difference', 'intersection', '__copy__'))
_OF_TEXTS = (('builtins.str', 'format'), ('builtins.str', 'format_map'))
#: Functions written in C, and the settings that what they do depends on.
_SETTINGS_OF = {
    ('_abc', 'get_cache_token'): REGISTERED, ('sys', 'getrecursionlimit'): DEPTH,
    ('sys', 'exc_info'): HANDLED, ('sys', 'exception'): HANDLED, ('builtins.str', 'encode'): CODECS,
    ('builtins.bytes', 'decode'): CODECS, ('builtins.bytearray', 'decode'): CODECS,
    ('_warnings', 'warn'): WARNINGS, ('_warnings', 'warn_explicit'): WARNINGS,
}  # fmt: skip


class CallsInC:
    """Looks up what functions written in C read."""

    def __init__(self, run: RunRecord) -> None:
        self._values, self._holders, self._code, self._code_watch = run.values, run.holders, run.code, run.code_watch
        self._asked, self._libraries, self._ownership = run.asked, run.libraries, run.ownership
        self._doubts, self._before, self._lines, self._uses = run.doubts, run.before, run.lines, run.uses

    def called(self, frame: FrameType, function: Any) -> None:
        """Look up a function written in C that the user's code calls, directly or through the standard library."""
        code = frame.f_code
        known = self._code.codes.get(id(code))
        if known is not None and known[1] and not python_module(code.co_filename):
            self._called_by_library(frame, function)
            return
        if code is DRAWING:
            return
        what = (owner_of(function), function.__name__)
        if what[1] in READERS and what[0] == 'builtins':
            if python_module(code.co_filename) == 'inspect' and called_by(frame, 'signature'):
                return
            if (known is not None and not known[1]) or asked_by_user(frame, self._ownership.skip):
                self._asked.asked(frame, what[1] == 'hasattr')
            return
        if what[0] == 'time' and self._timed(frame, function):
            return
        self._note_setting(what)
        if what in _COPYING:
            self._uses.copied_sets.add(code.co_name)
        if (
            what in self._libraries.calls
            or code.co_filename.startswith(_own_folder)
            or self._pops_from_a_set(frame, function, what)
        ):
            return
        if not asked_by_user(frame, self._ownership.skip):
            return
        if what == ('builtins', 'id') and python_module(code.co_filename) in BY_ADDRESS:
            return
        if what == ('builtins', 'hash') and ((known is not None and known[1]) or is_hash_of_a_value(frame)):
            return
        if (known is not None and self._hashes(frame, what)) or self._formats_plainly(function, what):
            return
        self._libraries.calls.add(what)
        found = reads(function)
        if found is None or asks_for_backends(what[0]):
            self._doubts.add(frame, f'calls {".".join(what)}')
        elif found == 'names':
            self._holders.name((), (), True)
            self._holders.settle()

    def _hashes(self, frame: FrameType, what: tuple[str, str]) -> bool:
        """Whether code of the user calls ``hash``, and is told next of what."""
        code = frame.f_code
        told = what == ('builtins', 'hash') and 'hash' in code.co_names and self._lines.of(code) is not None
        if told:
            sentence = self._doubts.sentence(frame, f'calls {".".join(what)}')
            self._code_watch.to_hash[id(code), frame.f_lasti] = sentence
        return told

    def _formats_plainly(self, function: Any, what: tuple[str, str]) -> bool:
        """Whether the method ``format`` of a text is called that names no attributes of what it is given."""
        text = getattr(function, '__self__', None) if what in _OF_TEXTS else None
        if type(text) is not str or _names_attributes(text):
            return False
        if is_by_locale(text):
            self._values.depends_on(LOCALE)
            self._holders.settle()
        return True

    def _note_setting(self, what: tuple[str, str]) -> None:
        """Note the setting on which depends what a function does."""
        setting = _SETTINGS_OF.get(what)
        if setting is not None:
            self._values.depends_on(setting)
            self._holders.settle()

    def _pops_from_a_set(self, frame: FrameType, function: Any, what: tuple[str, str]) -> bool:
        """Whether the user's set loses an element: it goes on where the last ``pop`` ended, which nobody can see."""
        if what != ('builtins.set', 'pop') or not self._before.had(getattr(function, '__self__', None)):
            return False
        self._doubts.add(frame, 'takes an element out of a set by pop(), which goes on where the last one ended')
        return True

    def _called_by_library(self, frame: FrameType, function: Any) -> None:
        if function is os.urandom:
            self._libraries.draws_entropy(frame)
        elif id(function) in COUNTS_ANYWHERE:  # it warns
            self._values.depends_on(WARNINGS)
            self._holders.settle()

    def _timed(self, frame: FrameType, function: Any) -> bool:
        """Note where the user's code reads a clock. False if a library's code does, or if it is no clock."""
        known = self._code.codes.get(id(frame.f_code))
        if known is None or known[1] or not is_clock(function):
            return False
        line = self._doubts.line(frame)
        sentence = f'the function reads time.{function.__name__}(){line}: each launch would repeat the first time'
        self._code_watch.clock.note(frame, sentence)
        return True


def _names_attributes(text: str) -> bool:
    """Whether a text may name attributes in its fields, as ``{0.rate}`` does, or in formats within fields."""
    parser: Any = string.Formatter()
    try:
        parts = [*parser.parse(text)]
    except ValueError:
        return True
    return any(field is not None and ('.' in field or _names_attributes(inner)) for _, field, inner, _ in parts)
