"""The values that are watched in a run, as they were when it began."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from capturekit.functions.doubts import Doubts, Unsettled
from capturekit.functions.read_paths import Meetings
from capturekit.functions.settings import Setting
from capturekit.functions.understood import MAKERS
from capturekit.functions.watched_value import WatchedValue
from capturekit.model.class_layout import MISSING, among
from capturekit.model.kept_values import LIMIT, IsArray, Keeper, Kept

ABSENT = Kept('same', MISSING)
#: Methods of classes written in C, which are not bound to an object.
UNBOUND = (types.WrapperDescriptorType, types.MethodDescriptorType)


def _nothing(value: object) -> None:
    """Take no note of a value."""


class WatchedValues:
    """Keeps the values that the code of a run can have read.

    ``note`` is called with each value that is kept by identity: :meth:`ValuesMet.note
    <capturekit.functions.values_met.ValuesMet.note>`.
    """

    def __init__(self, is_array: IsArray, doubts: Doubts, unsettled: Unsettled) -> None:
        self.is_array = is_array
        self.note: Callable[[Any], None] = _nothing
        self.keeper = Keeper(is_array, met=self.meet)
        self.entries: dict[tuple[str, int, str], WatchedValue] = {}
        self.meetings = Meetings()
        #: The settings, as they were when the run began, that no code so far depends on.
        self.settings: dict[str, Setting] = {}
        #: In words, where the value is that is kept.
        self.at = ''
        #: The value that is watched under a name of its own, as code calls it.
        self.named: Any = None
        #: What a module calls for names that it does not have, while it is met as that.
        self.finder: Any = None
        self._doubts = doubts
        self._unsettled = unsettled
        self._kept = 0

    def watch(
        self, kind: str, holder: Any, key: str, value: Any, where: tuple[str, str], mapping: Any, get: Any = None
    ) -> WatchedValue | None:
        """Watch a value, unless its place is watched: see :class:`WatchedValue` for the arguments."""
        if (kind, id(holder), key) in self.entries:
            return None
        entry = WatchedValue(kind, holder, key, ABSENT, where, mapping, get)
        self.entries[kind, id(holder), key] = entry
        if value is MISSING:
            return entry
        before, self.at = self.at, entry.where()
        outer, self.meetings.entry = self.meetings.entry, entry
        asks, self.named = self._unsettled.asks_all, value
        if kind == 'function' and key == '__code__':
            entry.kept = Kept('same', value)
        else:
            entry.kept = self.keeper.keep(value)
        if (any(value is one for one in MAKERS) or among(type(value), UNBOUND)) and key == value.__name__:
            # code that calls it by its own name says which attributes it reads, or that it can't
            self._unsettled.asks_all = asks
        self._kept += self.keeper.count
        if entry.kept.kind == 'big' or self._kept > LIMIT:
            self._doubts.unwatchable.append(f'{self.at} holds too many values to compare at each call')
        self.at, self.meetings.entry = before, outer
        return entry

    def watch_state(self, name: str, get: Callable[[], Any]) -> None:
        """Watch what a function returns: a setting of a library."""
        self.watch('state', get, name, get(), ('', ''), None, get)

    def depends_on(self, name: str | None) -> None:
        """Watch a setting, as it was when the run began."""
        setting = self.settings.pop(name or '', None)
        if setting is not None:
            self.watch('state', setting.get, '', setting.value, (name or '', ''), None, setting.get)

    def meet(self, value: Any) -> None:
        """Note an object that is kept by identity: it may have attributes, or hidden state."""
        self.meetings.begin(value)
        self.note(value)
        self.meetings.end()

    def opaque(self, what: str) -> None:
        """Note why the value that is met can't be compared. It counts if the run can have got it."""
        self._doubts.unwatchable.append(self.meetings.doubt(f'{self.at} {what}'))

    def keep_also(self, value: Any) -> None:
        """Keep what a value is bound to, with its contents."""
        self._unsettled.also.append((value, self.at))

    def end(self) -> None:
        """Tell nobody any more: who is told holds this object, and so all that was met."""
        self.keeper.met, self.note = None, _nothing
