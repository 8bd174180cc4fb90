"""Calls of functions written in C that may read anything, where it can be seen what they read."""

from __future__ import annotations

import os
from types import FrameType
from typing import Any

from capturekit.functions.address_hashes import is_comparison_of_ids
from capturekit.functions.code_watch import CodeWatch
from capturekit.functions.doubts import Doubts
from capturekit.functions.formats import attributes_in
from capturekit.functions.holders import Holders
from capturekit.functions.lines_run import LinesRun
from capturekit.functions.object_uses import ObjectUses
from capturekit.functions.own_globals import name_of_global
from capturekit.functions.setting_uses import is_by_locale
from capturekit.functions.settings import LOCALE
from capturekit.functions.watched_values import WatchedValues

_OF_ADDRESSES = (('builtins', 'hash'), ('builtins', 'id'))
_OF_TEXTS = (('builtins.str', 'format'), ('builtins.str', 'format_map'))


class SeenThrough:
    """The calls of ``id``, ``hash``, ``globals`` and ``str.format`` of which it is seen what becomes of them."""

    def __init__(
        self,
        values: WatchedValues,
        holders: Holders,
        code_watch: CodeWatch,
        uses: ObjectUses,
        doubts: Doubts,
        lines: LinesRun,
    ) -> None:
        self._values, self._holders, self._code_watch = values, holders, code_watch
        self._uses, self._doubts, self._lines = uses, doubts, lines

    def shows(self, frame: FrameType, what: tuple[str, str]) -> bool:
        """Whether code of the user shows what it asks ``id``, ``hash`` or ``globals`` for; that is watched then."""
        code = frame.f_code
        if what == ('builtins', 'id') and is_comparison_of_ids(frame):
            self._uses.identities = self._uses.identities or f'{code.co_name} of {os.path.basename(code.co_filename)}'
            return True
        if what in _OF_ADDRESSES and what[1] in code.co_names and self._lines.of(code) is not None:
            sentence = self._doubts.sentence(frame, f'calls {".".join(what)}')
            self._code_watch.to_hash[id(code), frame.f_lasti] = sentence
            return True
        name = name_of_global(frame) if what == ('builtins', 'globals') else None
        if name is None:
            return False
        self._code_watch.global_named(frame, name)
        return True

    def formats(self, function: Any, what: tuple[str, str]) -> bool:
        """Watch the attributes that the text names whose method ``format`` is called. False for other functions."""
        text = getattr(function, '__self__', None) if what in _OF_TEXTS else None
        names = attributes_in(text) if type(text) is str else None
        if names is None:
            return False
        if is_by_locale(str(text)):
            self._values.depends_on(LOCALE)
        self._holders.name(names, names, False)
        self._holders.settle()
        return True
