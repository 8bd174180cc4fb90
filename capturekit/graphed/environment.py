"""The Python values that a function read, apart from its arrays, and whether they are unchanged.

:class:`capturekit.graphed.watch.Watch` makes an :class:`Environment` from one run. It calls no code of the user. Most
of what a run read is the same object at the next call, which is asked by a few calls into C (:class:`IdentityTables`).
What is another object, or can not be held in such a table, is compared by the rules for its kind.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from capturekit.graphed.array_blocks import extent_of, layout_of, shared_memory
from capturekit.graphed.carried_state import CarriedState, StateBefore
from capturekit.graphed.outcomes import NOTHING, Reckoned
from capturekit.graphed.outcomes import Kept as KeptReads
from capturekit.graphed.reasons import NONE, Reason
from capturekit.graphed.value_changes import ALONE, ValueDifference, containers, difference, in_pairs, is_unchanging
from capturekit.graphed.watched_values import WatchedValue
from capturekit.guard import GUARD
from capturekit.model.class_layout import MISSING, among, form_of_class, name_of
from capturekit.model.kept_values import DEFAULT_FACTORY, UNCHANGING, Kept, answers_of, contents_of
from capturekit.model.plain_values import a, exact, is_nan, may_change, show
from capturekit.model.skipped_exits import contextmanager

Same = Callable[[], bool]
#: A dictionary, a name and a value; or a function, what it is asked about, and what it has returned.
Rows = list[tuple[Any, Any, Any]]
#: What a comparison raises where a name, a variable or a slot is gone.
_GONE = (LookupError, ValueError, AttributeError, RuntimeError, TypeError)
_FUNCTION_PARTS = ('__code__', '__defaults__', '__kwdefaults__')
_DICTS = (dict, OrderedDict, defaultdict, Counter)
#: Up to so many names of libraries are compared one by one.
_FEW = 32
_is = operator.is_
_CELL = vars(CellType)['cell_contents'].__get__
#: What we alone read of settings and of generators of random numbers may be made anew each time.
_MADE_ANEW = ('state', 'draws', 'contents')


@contextmanager
def unchanged_by_failures(environment: Environment | None) -> Iterator[None]:
    """A block that leaves the Python state which a run can reach as it was, if it raises."""
    before = None if environment is None else environment.state_before()
    try:
        yield
    except BaseException:
        if before is not None:
            before.put_back()
        raise


@dataclass(frozen=True)
class RunSummary:
    """What a watched run has read and changed; made once, when it has ended."""

    #: What the run has changed itself, or can't be watched; None: nothing. And all that can't be compared.
    written: Reason | None = None
    unwatchable: Sequence[Reason] = ()
    entries: Sequence[WatchedValue] = ()
    #: Objects and their classes, with what gets their ``__dict__``, and that one; names that code did not find.
    objects: Sequence[tuple[Any, type, Any, Any]] = ()
    missing: Sequence[tuple[Any, Any, frozenset[str], str]] = ()
    arrays: Sequence[Any] = ()
    #: Objects all of whose attributes count, and their names in order; arrays, and their shapes and strides; classes
    #: with the bases that they had.
    names: Sequence[tuple[Any, Any, list[str]]] = ()
    forms: Sequence[tuple[Any, Any]] = ()
    bases: Sequence[tuple[type, tuple[Any, ...]]] = ()
    #: Dictionaries of modules and classes of libraries, names in them with their values, and whether these are all;
    #: those in which no new name may appear, and the number of their names.
    inner: Sequence[tuple[Any, dict[str, Any], bool]] = ()
    sizes: Sequence[tuple[str, Any, int]] = ()
    #: The changes that the run makes and that launches repeat, or None; and why launches repeat none.
    carried: CarriedState | None = None
    not_repeated: Reason = NONE
    #: The containers among the arguments that are compared by value, by id.
    own: Mapping[int, Any] = field(default_factory=dict)
    #: The attributes in which objects that the run made keep times of a clock.
    times: frozenset[str] = frozenset()
    #: The globals of modules, each with the names that the user's code has for them, also on lines that did not run.
    named: Sequence[tuple[dict[str, Any], frozenset[str]]] = ()
    #: The host reads whose values are only kept, by number, each with what has to come out as it did; and those with
    #: whose values launches reckon, if need be.
    kept: KeptReads = field(default_factory=dict)
    reckoned: Reckoned = NOTHING
    #: CuPy's compiler, and the sources that the run had it make kernels of: what it did there was not followed.
    compiler: tuple[CodeType | None, frozenset[Any]] = None, frozenset()
    #: Whether it is not to be kept: following the run took too long, or it would keep alive what is held weakly.
    too_much: bool = False
    #: Whether the function may use memory outside of an array's elements, so that a copy of the array is not enough.
    far: bool = False
    #: Whether code asks if two objects are the same, so that numbers and texts have to be the same objects, too.
    asks_identities: bool = False


class Environment:
    """All that a run read besides its arguments. It keeps these objects alive.

    Numbers, texts and tuples are compared by value; what can be changed has to be the same object, and hold the same.
    """

    def __init__(self, run: RunSummary) -> None:
        self.run = run
        self.entries = run.entries
        #: The containers that the run reached, by id (a call with one of them as an argument is of another kind); and
        #: the objects that are compared by identity.
        self.reached, self.known = set[int](), set[int]()
        #: The values that no table of identities holds; and the tables.
        self._slow: Sequence[WatchedValue] = run.entries
        self._tables = IdentityTables(run)
        #: Whether everything is the same, by a look that takes far less time than :meth:`changed`.
        self.same: Same = lambda: False
        self._prepare()

    def state_before(self) -> StateBefore:
        """The Python state that a run can reach, as it is now."""
        objects = [(value, get) for value, cls, get, _ in self.run.objects if cls not in (ModuleType, FunctionType)]
        missing = [(get(value), names) for get, value, names, _ in self.run.missing]
        return StateBefore(self.entries, objects, missing, self.run.named)

    def _another(self) -> str | None:
        """The first of CuPy's own names that has changed; the guard's wrappers count as what they replace."""
        original_of = GUARD.installation.original_of
        for values, before, whole in self.run.inner:
            for name in dict.fromkeys((*before, *(list(values) if whole else ()))):
                now, then = original_of(values.get(name)), before.get(name)
                if (None if now is MISSING else now) is not then:
                    place = values.get('__name__') or values.get('__module__') or 'an object of a library'
                    return f'{name} of {place} is not what it was'
        for name, values, size in self.run.sizes:
            if len(values) != size:
                return f'{name} has {len(values)} names and had {size} when recorded'
        return None

    def containers(self) -> list[Any]:
        """The containers that the run read, and those among the arguments, as they are now."""
        read = containers((entry.kept, entry.read()) for entry in self.entries if entry.holds_containers)
        return [*(now for _, now in read), *self.run.own.values()]

    def leave_out(self, setting: str) -> None:
        """Do not compare a setting: the recording shows that nothing depends on it."""
        gone = [entry for entry in self.entries if entry.kind == 'state' and entry.where() == setting]
        self.entries = [entry for entry in self.entries if entry not in gone]
        self._slow = [entry for entry in self._slow if entry not in gone]
        self._tables.leave_out(gone)
        self._choose()

    def changed(self) -> Reason | None:
        """None if everything is as it was when the run began; else a sentence about the first thing that isn't."""
        if self.same():
            return None
        try:
            found = self._compare()
        except _GONE as error:  # an object may have another class by now, which has not what was read
            found = f'what it read can not be compared any more: {error}'
        return found if found is None or isinstance(found, Reason) else Reason(found)

    def _rest_same(self) -> bool:
        """Whether what takes longer is as it was: changes that are repeated, and values compared by their rules."""
        if self.run.carried is not None and self.run.carried.unfit() is not None:
            return False
        return all(self._difference(entry) is None for entry in self._slow)

    def _difference(self, entry: WatchedValue) -> ValueDifference | None:
        """Compare one watched value by the rules for its kind."""
        kept, value = entry.kept, entry.read()
        found = difference(kept, value)
        may_be_another = entry.kind not in _MADE_ANEW and (value is not kept.value or kept.parts)
        if found is None and may_be_another and _is_another(kept, value, self.run.asks_identities):
            return ValueDifference('', 'is or holds another object, equal to the one that was there')
        return found

    def _compare(self) -> str | None:
        """Compare everything by its rules. Equal values that are other objects replace the kept ones."""
        for value, cls, _, _ in self.run.objects:
            if type(value) is not cls:
                return f'an object that was {a(cls)} is {a(type(value))}'
        for cls, form in self.run.bases:
            if form_of_class(cls) != form:
                return f'class {name_of(cls)} has another name or other bases than when recorded'
        for get, value, attributes in self.run.names:
            if list(get(value)) != attributes:
                return f'{a(type(value))} has attributes {", ".join(get(value))} and had {", ".join(attributes)}'
        other = self._another()
        if other is not None:
            return other
        for array, form in self.run.forms:
            if (array.shape, array.strides) != form:
                return f'an array is of shape {array.shape} and was of shape {form[0]} when recorded'
        for get, value, names, where in self.run.missing:
            mapping = get(value)
            if not names.isdisjoint(mapping):
                name = min(names.intersection(mapping))
                return f'{where.format(name)} is {show(mapping[name])} and was not there when recorded'
        for entry in self.entries:
            found = self._difference(entry)
            if found is not None:
                hidden = entry.value is True and entry.kind in ('state', 'draws')
                text = f'{entry.where(found.path)} {"changed since" if hidden else found.text + " when"} recorded'
                return Reason(text, about=entry.attribute)
        for value, cls, get, attributes in self.run.objects:
            if get(value) is not attributes:
                return f'{a(cls)} has another __dict__ than when recorded'
        if self.run.carried is not None and (unfit := self.run.carried.unfit()) is not None:
            return unfit
        if any(extent_of(value) != extent for value, extent in self._tables.shared):
            return 'arrays or buffers share memory in another way than they did when recorded'
        if self.run.written is None:
            self._prepare()
        return None

    def _prepare(self) -> None:
        """Prepare the tables of identities, which :attr:`same` compares."""
        tables, self._slow = IdentityTables(self.run), []
        objects = {id(value) for value, _, _, _ in self.run.objects}
        reached, known = set[int](), objects.copy()
        values = [entry.read() for entry in self.entries]
        for kept, value in in_pairs((entry.kept, value) for entry, value in zip(self.entries, values)):
            if kept.kind == 'same':
                known.add(id(value))
            elif kept.kind not in ALONE:
                reached.add(id(value))
        for entry, value in zip(self.entries, values):
            # what the run has changed is no row: no call has begun with the old value since
            changed = (self.run.written or self.run.carried) is not None and difference(entry.kept, value) is not None
            if changed or not tables.add(entry, value):
                self._slow.append(entry)
        if self.run.written is None:
            grown = set[int]() if self.run.carried is None else self.run.carried.lists()
            self.reached, self.known = reached | grown | objects, self.known | known
            whole = {(get, id(value)): attributes for get, value, attributes in self.run.names}
            tables.absent += [
                (keys_of(get(value)), names)
                for get, value, names, _ in self.run.missing
                if (get, id(value)) not in whole or not names.isdisjoint(whole[get, id(value)])
            ]
        for values, before, _ in self.run.inner:
            now = {name: values.get(name, MISSING) for name in before}  # read once: the guard may come and go
            gone = frozenset(name for name, value in now.items() if value is MISSING)
            tables.absent += [(keys_of(values), gone)] if gone else []
            tables.inner += [(values, name, value) for name, value in now.items() if value is not MISSING]
        tables.sizes = [(values, len(values)) for values, _, complete in self.run.inner if complete]
        tables.sizes += [(values, size) for _, values, size in self.run.sizes]
        tables.shared = shared_memory(self.containers())
        self._tables = tables
        self._choose()

    def _choose(self) -> None:
        """Choose what :attr:`same` has to look at."""
        more = bool(self._slow) or self.run.carried is not None
        self.same = self._tables.comparison([self._rest_same] if more else [])


def _is_another(kept: Kept, value: Any, plain: bool) -> bool:
    """Whether an equal value is, or holds, another object than the one that was kept. Of what never changes, an equal
    object is as good; but not of a number that is not equal to itself, nor, if ``plain``, of any number or text."""
    for then, now in in_pairs([(kept, value)]):
        if now is then.value or then.kind == 'big':
            continue
        if (plain or is_nan(now)) if then.kind == 'plain' else not (then.kind in ALONE or is_unchanging(now)):
            return True
    return False


def keys_of(mapping: Any) -> Any:
    """A view of a dictionary's keys, or of those of a class. To ask it for few names takes no look at all keys."""
    return dict.keys(mapping) if isinstance(mapping, dict) else mapping.keys()


class IdentityTables:
    """Values that were read, by how they are read again. All hold what is there when they are added."""

    def __init__(self, run: RunSummary) -> None:
        self._run = run
        #: Entries of dictionaries, and those of libraries, of which there may be hundreds.
        self.rows: Rows = []
        self.inner: Rows = []
        #: The keys of dictionaries, with names that are missing there; dictionaries that may not grow, and their sizes.
        self.absent: list[tuple[Any, frozenset[str]]] = []
        self.sizes: list[tuple[Any, int]] = []
        #: The code and the defaults of functions, by the function's id.
        self.functions: dict[int, tuple[Any, Any, Any, Any]] = {}
        #: Functions that have to return the same object, and those that have to return an equal one.
        self.identical: Rows = []
        self.equal: Rows = []
        #: Settings: functions that say by True that one is as it was.
        self.settings: list[Callable[[], Any]] = []
        #: What shares its memory, and where that lies.
        self.shared: Sequence[tuple[Any, tuple[int, int]]] = ()
        self._sequences: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()

    def add(self, entry: WatchedValue, value: Any) -> bool:
        """Add a watched value and what it holds; False if it has to be compared by its rules."""
        if entry.kind == 'variable' and value is not MISSING:
            self.identical.append((_CELL, entry.holder, value))
        elif entry.kind == 'slot' and value is not MISSING:
            self.identical.append((entry.member.__get__, entry.holder, value))
        elif entry.kind == 'function' and entry.key in _FUNCTION_PARTS:
            function = entry.holder
            self.functions[id(function)] = (function, *[getattr(function, part) for part in _FUNCTION_PARTS])
        elif entry.kind in ('argument', 'bound'):
            pass
        elif entry.mapping is None:
            if entry.kind == 'state' and entry.get is not None and entry.value is True:
                self.settings.append(entry.get)
                return True
            if entry.get is None or entry.get() is not value:  # it returns another object each time
                return False
            if entry.kind == 'function' and type(entry.holder) is FunctionType:
                self.identical.append((operator.attrgetter(entry.key), entry.holder, value))
            else:
                self.identical.append((operator.call, entry.get, value))
        elif (raw := entry.mapping.get(entry.key, MISSING)) is MISSING:
            self.absent.append((keys_of(entry.mapping), frozenset({entry.key})))
        else:
            self.rows.append((entry.mapping, entry.key, raw))  # which may be what the guard has put there
        return self._add_contents(entry.kept, value)

    def leave_out(self, settings: Sequence[WatchedValue]) -> None:
        """Do not compare these settings."""
        self.settings = [get for get in self.settings if not any(get is entry.get for entry in settings)]

    def _add_contents(self, kept: Kept, value: Any) -> bool:
        """Add what a container holds; False if it can't be compared fast."""
        if kept.kind == 'plain':
            return not may_change(value)
        if kept.kind in ('same', 'method') or id(value) in self._seen:
            return True
        self._seen.add(id(value))
        contents = contents_of(value)
        if kept.kind in ('big', 'carried') or contents is None or any(part.kind == 'carried' for part in kept.parts):
            return False
        _, labels, items, _ = contents
        if any(may_change(one) for one in (items if kept.kind == 'set' else labels)):
            return False
        return self._lay(value, labels, items) and all(map(self._add_contents, kept.parts, items))

    def _lay(self, value: Any, labels: list[Any], items: list[Any]) -> bool:
        """Add the items of one container; False if there is no fast comparison of them."""
        cls = type(value)
        if among(cls, _DICTS):
            count = len(value)
            self._sequences += [(value, labels[:count]), (value.values(), items[:count])]
            if cls is defaultdict:
                self.identical.append((DEFAULT_FACTORY.__get__, value, DEFAULT_FACTORY.__get__(value)))
        elif cls is np.ndarray and not value.dtype.hasobject:
            self.equal.append((_state_of_array, value, _state_of_array(value)))
        elif among(cls, (list, deque, set)):
            self._sequences.append((value, items))
        elif cls is functools._lru_cache_wrapper:
            self.equal.append((lambda cache: [*map(id, answers_of(cache))], value, [*map(id, items)]))
        else:
            return issubclass(cls, UNCHANGING)
        return True

    def comparison(self, rest: Sequence[Same]) -> Same:
        """What compares all of it, and then asks the ``rest``."""
        asked, all_names = [*self.settings, *rest], self._run.names
        if any((array.shape, array.strides) != form for array, form in self._run.forms):
            return lambda: False
        equal: Rows = [(lambda one, get=get: [*get(one)], value, names) for get, value, names in all_names if names]
        equal += [(form_of_class, cls, form) for cls, form in self._run.bases]
        equal += [(look, array, layout) for array, _ in self._run.forms for look, layout in (layout_of(array),)]
        equal += [*self.equal, *((extent_of, value, extent) for value, extent in self.shared)]
        nameless = [(get, value) for get, value, names in all_names if not names]
        asked += [_no_names(nameless)] if nameless else []
        asked += [_sequences(self._sequences)] if self._sequences else []
        rows, few = self.rows, len(self.inner) <= _FEW
        if few:
            rows = [*rows, *self.inner]
        else:
            asked.append(_many_names(self.inner))
        return self._all_same(rows, equal, asked)

    def _all_same(self, rows: Rows, equal: Rows, rest: Sequence[Same]) -> Same:
        """Whether dictionaries hold what they held, functions have the parts that they had, names are missing that were
        missing, dictionaries have the sizes that they had, objects are of the class that they were of and have the same
        ``__dict__``, and functions return what they returned; then the ``rest``.

        Nearly each run reads such things, so they are compared without a call for each kind of them.
        """
        functions, sizes, objects, identical = [*self.functions.values()], self.sizes, self._run.objects, self.identical
        empty = [keys for keys, _ in self.absent if not keys]  # such as the dictionaries of most functions
        lacking = [(keys.isdisjoint, names) for keys, names in self.absent if keys]

        def same() -> bool:
            try:
                for mapping, key, value in rows:
                    if mapping[key] is not value:
                        return False
                for function, code, defaults, keywords in functions:
                    if (
                        function.__code__ is not code
                        or function.__defaults__ is not defaults
                        or function.__kwdefaults__ is not keywords
                    ):
                        return False
                if any(empty):
                    return False
                for lacks, names in lacking:
                    if not lacks(names):
                        return False
                for mapping, size in sizes:
                    if len(mapping) != size:
                        return False
                for value, cls, get, attributes in objects:
                    if type(value) is not cls or get(value) is not attributes:
                        return False
                for get, value, item in identical:
                    if get(value) is not item:
                        return False
                for get, value, before in equal:
                    if get(value) != before:
                        return False
                for one in rest:
                    if one() is not True:
                        return False
            except _GONE:
                return False
            return True

        return same


def _no_names(rows: Sequence[tuple[Any, Any]]) -> Same:
    """Whether objects that had no names have none, as most functions."""
    getters, values = zip(*rows)
    return lambda: not any(map(operator.call, getters, values))


def _many_names(rows: Rows) -> Same:
    """Whether dictionaries hold what they held, compared entirely in C."""
    mappings, names, before = zip(*rows)
    return lambda: all(map(_is, map(operator.getitem, mappings, names), before))


def _sequences(held: Sequence[tuple[Any, Any]]) -> Same:
    """Whether containers hold what they held."""
    holders, sizes = [holder for holder, _ in held], [len(items) for _, items in held]
    before = [one for _, items in held for one in items]
    return lambda: [*map(len, holders)] == sizes and all(map(_is, chain.from_iterable(holders), before))


def _state_of_array(array: Any) -> tuple[Any, ...]:
    """All that is to be seen of an array of NumPy."""
    flags = array.flags
    state = array.dtype, array.shape, array.strides, (flags.writeable, flags.aligned)
    return *state, array.tobytes(), exact(array.dtype)
