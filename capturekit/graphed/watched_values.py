"""What a run has shown so far: what can not be watched, names in code, uses of objects, and the watched values.

The values are watched while a function runs, and compared at later calls.
"""

from __future__ import annotations

import enum
import os
import threading
import types
from collections.abc import Callable, Iterable
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from capturekit.graphed.allowlists import MAKERS
from capturekit.graphed.collector import Before
from capturekit.graphed.follow_time import FollowTime
from capturekit.graphed.ownership import LibraryState, Ownership, is_itself, is_library_frame, named_in
from capturekit.graphed.reasons import Reason, Why
from capturekit.graphed.settings import Setting
from capturekit.graphed.value_changes import ALONE
from capturekit.guard import GUARD
from capturekit.model.class_layout import MISSING, ClassLayout, among, found_in_class, name_of
from capturekit.model.kept_values import LIMIT, IsArray, Keeper, Kept
from capturekit.model.plain_values import a, plain_key


class Doubts:
    """Why a run's recording may not stand for later calls."""

    def __init__(self, skip: Callable[[str], bool]) -> None:
        self.unwatchable: list[Reason] = []
        self._skip = skip

    def say(self, sentence: str, why: Why = Why.OTHER) -> None:
        """Note a reason."""
        self.unwatchable.append(Reason(sentence, why))

    def add(self, frame: FrameType | None, action: str) -> None:
        """Note that something is not understood: what it is, and the user's line."""
        self.unwatchable.append(self.unknown(frame, action))

    def unknown(self, frame: FrameType | None, action: str) -> Reason:
        """Say that something is not understood."""
        return Reason(f'the function {action}{self.line(frame)}: what that reads is not known')

    def line(self, frame: FrameType | None) -> str:
        """The user's line at which a frame was entered."""
        while frame is not None and is_library_frame(frame, self._skip):
            frame = frame.f_back
        return '' if frame is None else f' at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}'


class NamesUsed:
    """The names in code, and the names that code has as texts; :class:`Holders` adds to them."""

    def __init__(self) -> None:
        self.attributes: set[str] = set()
        self.strings: set[str] = set()
        #: The objects and classes of the user all of whose attributes count, by id.
        self.full: dict[int, Any] = {}
        #: What may be asked of arrays, and can't be compared.
        self.of_cupy: set[str] = set()
        #: Whether the ``__getattr__`` of a module reads attributes of an object by names.
        self.finds = False
        #: Whether code may do anything with ``sys.modules``, and not only ask for modules by constant names.
        self.opens_modules = False
        #: The attributes that objects, and their classes, had when code asked them for computed names, and whether code
        #: took the ``__dict__`` of an object that the run has made.
        self.asked_for: set[str] = set()
        self.takes_new = False

    def of_arrays(self) -> str | None:
        """What the code may have asked an array for that gives its address or says who owns its memory; or None."""
        return min(self.of_cupy, default=None)


class ObjectUses:
    """The comparisons by identity in a run, and the classes of which it has made objects."""

    def __init__(self, is_array: IsArray) -> None:
        self._is_array = is_array
        #: Which code compares identities; '' if none does.
        self.identities = ''
        #: By the id of code: its parameters that it compares by identity, and its name and file.
        self.compared: dict[int, tuple[set[str], str]] = {}
        #: Whether a number or a text is an argument, in whose place another call may have an equal one.
        self.plain = False
        #: The classes of objects that are hashed by their address, of which the run has made some.
        self.by_address: set[str] = set()
        #: The classes of such objects that the run may have made without an event, by id.
        self.perhaps_made: dict[int, type] = {}
        #: The names of code that makes a set of another one by a method.
        self.copied_sets: set[str] = set()
        #: By the id of a class with a method ``__del__``: it, and how many of its objects the run has made, less those
        #: for which that method has run.
        self.finalized: dict[int, list[Any]] = {}

    def identity(self, chains: Iterable[tuple[str, ...] | None], start: Any, own: Any, where: str) -> None:
        """Note which code compares by identity what it names, if an equal object may come in its place."""
        for chain in chains:
            value = MISSING if chain is None else start.get(chain[0], own.get(chain[0], MISSING))
            for name in () if chain is None else chain[1:]:
                value = named_in(value, name)
            if value is MISSING or self._is_array(value) or not is_itself(value):
                self.identities = self.identities or where

    def compare_parameters(self, code: CodeType, variables: Any) -> None:
        """Note whether code asks by identity for something in whose place a recording may get an equal object."""
        names, where = self.compared.get(id(code), (set(), ''))
        if not all(self._is_array(variables.get(name)) or is_itself(variables.get(name)) for name in names):
            self.identities = self.identities or where

    def makes(self, cls: type, perhaps: bool = False) -> None:
        """Note a class of which the run makes objects. ``perhaps``: where it calls the class, which is no event."""
        if hashed_by_address(cls) and perhaps:
            self.perhaps_made[id(cls)] = cls
        elif hashed_by_address(cls):
            self.by_address.add(name_of(cls))
        if found_in_class(cls, '__del__') is not MISSING:
            self.finalized.setdefault(id(cls), [cls, 0])[1] += 1


def hashed_by_address(cls: type) -> bool:
    """Whether the hash of a class's objects is made of their address."""
    return found_in_class(cls, '__hash__') is object.__hash__


def is_hashed_by_value(value: object) -> bool:
    """Whether the hash of a value has nothing to do with an address: numbers, texts, and tuples and sets of such."""
    if type(value) is tuple or type(value) is frozenset:
        return all(map(is_hashed_by_value, value))
    if plain_key(value) is None or issubclass(type(type(value)), enum.EnumMeta):
        return False
    return bool(value == value)  # no nan, whose hash is that of its address


class Holder(NamedTuple):
    """An object whose attributes are watched, and their values when the run first used it.

    ``kind``: 'object', 'class', 'module', 'function'. ``owned``: it belongs to the user, whose code names all that is
    read of it. ``whole``: all of its attributes are watched. ``missing``: names that code looked for and did not find.
    """

    value: Any
    cls: type
    kind: str
    layout: ClassLayout
    start: dict[str, Any]
    slots: dict[str, Any]
    owned: bool
    whole: bool
    missing: set[str]

    @property
    def whose(self) -> str:
        """The words that say whose an attribute is: `` of module train``."""
        if self.kind == 'module':
            return f' of module {self.start.get("__name__")}'
        if self.kind == 'function':
            return f' of function {getattr(self.value, "__name__", "")}'
        return f' of {a(type(self.value))}'


class WatchedValue:
    """One value that is watched.

    Attributes:
        kind: 'global', 'variable' (a closure's), 'attribute', 'slot', 'class attribute', 'function', 'of CuPy' ...
        holder: the dict of the globals, the cell, the object, the class or the function.
        key: the name.
        kept: its value when the run began (:class:`capturekit.model.kept_values.Kept`).
        get: the function that reads it, where no dictionary holds it; else None.
    """

    __slots__ = ('_where', 'get', 'holder', 'kept', 'key', 'kind', 'mapping', 'member')

    def __init__(
        self, kind: str, holder: Any, key: str, kept: Kept, where: tuple[str, str], mapping: Any, get: Any = None
    ) -> None:
        self.kind = kind
        self.holder = holder
        self.key = key
        self.kept = kept
        self._where = where
        self.mapping = mapping
        self.member: Any = None
        self.get = get

    @property
    def value(self) -> Any:
        """The value when the run began, :data:`capturekit.model.pytree.MISSING` if there was none."""
        return self.kept.value

    @property
    def holds_containers(self) -> bool:
        """Whether it is or holds something that may be reached in another way, too. What settings hold is read by
        nobody else."""
        return self.kept.kind not in ALONE and self.kind not in ('state', 'draws', 'contents')

    @property
    def attribute(self) -> str:
        """The name of the attribute that it is; '' for other places."""
        return self.key if self.kind in ('attribute', 'slot', 'class attribute') else ''

    def where(self, path: str = '') -> str:
        """The value's place in words: ``global cfg["lr"] of train.py``."""
        before, after = self._where
        return f'{before} {self.key}{path}{after}'.strip()

    def read(self) -> Any:
        """The value now."""
        if self.get is not None:
            return self.get()
        return self.mapping.get(self.key, MISSING)


#: Tells of a value and a number how many other numbers earlier runs have found there; None if one has found this one.
OtherNumbers = Callable[[WatchedValue, Any], 'int | None']


def itself(value: Any) -> Any:
    """The value, where a function that reads it is asked for."""
    return value


def read_cell(cell: CellType) -> Any:
    """What a variable of a closure holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def held_in_closure(function: FunctionType) -> list[Any]:
    """The functions that the variables of a function's closure hold, and containers, in which it may keep answers."""
    inside = [read_cell(cell) for cell in function.__closure__ or ()]
    return [one for one in inside if type(one) in (FunctionType, dict, list, set)]


def of_this_thread(local: Any) -> dict[str, Any]:
    """The attributes that a ``threading.local`` has in this thread."""
    found: dict[str, Any] = threading.local.__getattribute__(local, '__dict__')
    return found


def read_attribute(dictionary: Callable[[Any], dict[str, Any]], value: object, name: str) -> Any:
    """An attribute in an object's dictionary."""
    return dictionary(value).get(name, MISSING)


def read_unguarded(dictionary: Callable[[Any], dict[str, Any]], value: object, name: str) -> Any:
    """The same, and what stands behind it where the guard has put something in its place."""
    return GUARD.installation.original_of(dictionary(value).get(name, MISSING))


ABSENT = Kept('same', MISSING)
#: Methods of classes written in C, which are not bound to an object.
UNBOUND = (types.WrapperDescriptorType, types.MethodDescriptorType)


def _nothing(value: object) -> None:
    """Take no note of a value."""


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

    def doubt(self, sentence: str) -> Reason:
        """Say why the value that is met, or what it is bound to, can't be compared."""
        return Reason(sentence, about=id(self._outer))


class WatchedValues:
    """Keeps the values that the code of a run can have read.

    ``note`` is called with each value that is kept by identity: :meth:`ValuesMet.note
    <capturekit.graphed.watched_objects.ValuesMet.note>`.
    """

    def __init__(self, is_array: IsArray, doubts: Doubts) -> None:
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
        #: What was met since the attributes of objects were watched last, which :class:`Holders` takes: objects; what
        #: values are bound to, and where these are (it is watched with its contents); names that objects such as an
        #: ``attrgetter`` ask others for; and whether something was met that asks others for any attribute.
        self.pending: list[Any] = []
        self.also: list[tuple[Any, str]] = []
        self.asked_names: set[str] = set()
        self.asks_all = False
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
        asks, self.named = self.asks_all, value
        if kind == 'function' and key == '__code__':
            entry.kept = Kept('same', value)
        else:
            entry.kept = self.keeper.keep(value)
        if (any(value is one for one in MAKERS) or among(type(value), UNBOUND)) and key == value.__name__:
            # code that calls it by its own name says which attributes it reads, or that it can't
            self.asks_all = asks
        self._kept += self.keeper.count
        if entry.kept.kind == 'big' or self._kept > LIMIT:
            self._doubts.say(f'{self.at} holds too many values to compare at each call')
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
        self.also.append((value, self.at))

    def end(self) -> None:
        """Tell nobody any more: who is told holds this object, and so all that was met."""
        self.keeper.met, self.note = None, _nothing


class RunParts:
    """What a run has shown so far, to which all parts of a watch add; what was there before it; and the time."""

    def __init__(self, is_array: IsArray, skip: Callable[[str], bool], before: Before, time: FollowTime) -> None:
        self.ownership, self.doubts = Ownership(skip), Doubts(skip)
        self.names, self.uses = NamesUsed(), ObjectUses(is_array)
        self.library = LibraryState(self.ownership)
        self.values = WatchedValues(is_array, self.doubts)
        self.before, self.time = before, time
