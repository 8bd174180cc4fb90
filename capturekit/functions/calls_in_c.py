"""The functions written in C that the user's code calls, directly or through the standard library."""

from __future__ import annotations

import _warnings
import os
import string
from types import FrameType
from typing import Any

from capturekit.functions.code_met import is_clock
from capturekit.functions.code_reads import READERS
from capturekit.functions.hidden_state import DRAWING
from capturekit.functions.object_uses import is_hash_of_a_value
from capturekit.functions.ownership import asked_by_user, asks_for_backends, called_by, python_module
from capturekit.functions.run_record import RunRecord
from capturekit.functions.settings import CODECS, DEPTH, HANDLED, LOCALE, REGISTERED, WARNINGS, is_by_locale
from capturekit.functions.understood import BY_ADDRESS, owner_of, reads

_own_folder = os.path.dirname(os.path.abspath(__file__))

#: Functions written in C of which it counts that a library calls them, by id.
COUNTS_ANYWHERE = frozenset(map(id, (os.urandom, _warnings.warn, _warnings.warn_explicit)))
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
        self._doubts, self._before, self._lines = run.doubts, run.before, run.lines

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
