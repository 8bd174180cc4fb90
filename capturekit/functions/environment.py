"""The Python values that a function read, apart from its arrays, and whether they are unchanged.

:class:`capturekit.functions.watch.Watch` makes an :class:`Environment` from one run. It compares identities first, and
compares by value only what is another object. It calls no code of the user.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from capturekit.functions import comparison
from capturekit.functions.carried_state import CarriedState, StateBefore
from capturekit.functions.comparison import GONE, IdentityTables, Same, is_setting
from capturekit.functions.outcomes import NOTHING, Reckoned
from capturekit.functions.outcomes import Kept as KeptReads
from capturekit.functions.sharing import Replaced, Sharing, holds_containers
from capturekit.functions.watched_values import WatchedValue
from capturekit.guard import GUARD
from capturekit.model.class_layout import (
    MISSING,
    attributes_of,
    form_of_class,
    name_of,
)
from capturekit.model.kept_values import UNCHANGING, Kept, contents_of
from capturekit.model.plain_values import a, is_nan, show
from capturekit.model.value_changes import ValueDifference, containers, difference

#: Up to so many names of libraries are compared one by one.
_FEW = 32


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


class Environment:
    """All that a run read besides its arguments. It keeps these objects alive."""

    #: Whether the function may use memory outside of an array's elements, so that a copy of the array is not enough.
    far = False
    #: Whether code compares identities: an equal object then counts as a change.
    by_identity = False
    #: Whether code asks if two objects are the same, so that numbers and texts count so, too.
    asks_identities = False
    #: The globals of modules, each with the names that the user's code has for them, also on lines that did not run.
    named: Sequence[tuple[dict[str, Any], frozenset[str]]] = ()
    #: Whether it is not to be kept: following the run took too long, or it would keep alive what is held weakly.
    too_much = False
    #: Why launches repeat no changes of Python state; '' if they may.
    not_repeated = ''
    #: The host reads whose values are only kept, by number, each with what has to come out as it did.
    kept: KeptReads = types.MappingProxyType({})
    #: The host reads with whose values launches reckon, if need be.
    reckoned: Reckoned = NOTHING
    #: CuPy's compiler, and the sources that the run had it make kernels of: what it did there was not followed.
    compiler: tuple[CodeType | None, frozenset[Any]] = None, frozenset()

    def __init__(
        self,
        entries: list[WatchedValue],
        objects: list[tuple[Any, type, Any, Any]],
        arrays: list[Any],
        unwatchable: list[str],
        written: str | None,
        missing: list[tuple[Any, Any, frozenset[str], str]] | None = None,
        bases: list[tuple[type, tuple[Any, ...]]] | None = None,
        names: list[tuple[Any, Any, list[str]]] | None = None,
        forms: list[tuple[Any, Any]] | None = None,
        carried: CarriedState | None = None,
    ) -> None:
        self.entries = entries
        #: The values in it that can't be compared, in sentences.
        self.unwatchable = unwatchable
        self._objects, self._arrays, self._sharing = objects, arrays, Sharing(entries, objects)
        #: Dictionaries with the names that code did not find in them; classes with the bases that they had.
        self._missing: list[tuple[Any, frozenset[str]]] = []
        self._unfound = missing or []
        #: Objects all of whose attributes count, and their names in order; arrays, and their shapes and strides.
        self._names, self._forms, self._bases = names or [], forms or [], bases or []
        #: Those of them that are about objects, in the place of which others may come.
        self._at_first = self._objects, self._unfound, self._names
        #: The containers that the run reached, by id (a call with one of them as an argument is of another kind); and
        #: the objects that are compared by identity.
        self.reached, self.known = set[int](), set[int]()
        #: The containers among the arguments that are compared by value, by id.
        self.own: dict[int, Any] = {}
        #: The changes that the run makes and that launches repeat, or None.
        self.carried = carried
        #: The attributes in which objects that the run made keep times of a clock.
        self.times: frozenset[str] = frozenset()
        self._written = written
        self._empty()
        if written is None:
            self._prepare()
        else:
            self._slow.extend(entries)
            self._choose()

    def _empty(self) -> None:
        """Forget the prepared tables."""
        self._tables = IdentityTables()
        self._slow: list[WatchedValue] = []
        #: The containers in these values.
        self._held: list[Any] = []
        self._settings: list[Callable[[], Any]] = []
        #: Names in modules of CuPy, with their values, and with what replaces them while the guard is installed.
        self._inner: list[tuple[Any, list[str], list[Any], bool]] = []
        self._inner_found: list[tuple[Any, list[tuple[str, Any]]]] = []
        self._inner_absent: list[tuple[Any, frozenset[str]]] = []
        self._inner_sizes: list[tuple[Any, int]] = []
        self._sizes: list[tuple[str, Any, int]] = []
        #: What ``changed`` asks first: whether all of this is as it was.
        self._same: Same = lambda: False
        #: The same where that is all there is to compare; else False, and :meth:`changed` has to be asked. It may raise
        #: one of :data:`capturekit.functions.comparison.GONE`, which means False, too.
        self.as_before: Same = self._same
        #: Whether there is more to compare, by rules that take longer.
        self._more = False

    def state_before(self) -> StateBefore:
        """The Python state that a run can reach, as it is now."""
        objects = [(value, get) for value, cls, get, _ in self._objects if cls not in (ModuleType, FunctionType)]
        missing = [(get(value), names) for get, value, names, _ in self._unfound]
        return StateBefore(self.entries, objects, missing, self.named)

    def keep_inner(
        self, found: Iterable[tuple[Any, dict[str, Any], bool]], sizes: Iterable[tuple[str, Any, int]] = ()
    ) -> None:
        """Compare names of libraries, too: (dictionary of a module or class, its values, whether these are all).

        ``sizes``: classes and modules in which no new name may appear, and the number of their names."""
        self._sizes = list(sizes)
        self._inner = [(values, list(names), list(names.values()), whole) for values, names, whole in found]
        self._lay_inner()
        self._choose()

    def _lay_inner(self) -> None:
        """Prepare the comparison of CuPy's own names."""
        self._inner_found, self._inner_absent = [], []
        for values, names, _, _ in self._inner:
            pairs = [(name, values.get(name, MISSING)) for name in names]  # read once: the guard may come and go
            found = [pair for pair in pairs if pair[1] is not MISSING]
            if found:
                self._inner_found.append((values, found))
            if len(found) < len(names):
                gone = frozenset(name for name, value in pairs if value is MISSING)
                self._inner_absent.append((_keys(values), gone))
        self._inner_sizes = [(values, len(values)) for values, _, _, whole in self._inner if whole]
        self._inner_sizes += [(values, size) for _, values, size in self._sizes]

    def _another(self) -> str | None:
        """The first of CuPy's own names that has changed; the guard's wrappers count as what they replace."""
        original_of = GUARD.installation.original_of
        for values, names, before, whole in self._inner:
            now = {
                name: found
                for name in (list(values) if whole else names)
                if (found := original_of(values.get(name))) is not None
            }
            then = dict(zip(names, before))
            for name in (*names, *now):
                found = now.get(name)
                if (None if found is MISSING else found) is not then.get(name):
                    place = values.get('__name__') or values.get('__module__') or 'an object of a library'
                    return f'{name} of {place} is not what it was'
        for name, values, size in self._sizes:
            if len(values) != size:
                return f'{name} has {len(values)} names and had {size} when recorded'
        return None

    def arrays(self) -> list[Any]:
        """The arrays in it, which are compared by identity."""
        return list(self._arrays)

    def containers(self) -> list[Any]:
        """The containers that the run read, and those among the arguments, as they are now."""
        return [*self._sharing.containers(), *self.own.values()]

    def written(self) -> str | None:
        """Say which watched value the run itself changed, or what can't be watched; None if there is nothing."""
        return self._written

    def leave_out(self, setting: str) -> None:
        """Do not compare a setting: the recording shows that nothing depends on it."""
        gone = [entry for entry in self.entries if entry.kind == 'state' and entry.where() == setting]
        self.entries = [entry for entry in self.entries if entry not in gone]
        self._settings = [get for get in self._settings if not any(get is entry.get for entry in gone)]
        self._choose()

    def same(self) -> bool:
        """Whether everything is the same, by a look that takes far less time than the comparison of what is not."""
        try:
            return self._same() and (not self._more or self._rest_same())
        except GONE:
            return False

    def changed(self) -> str | None:
        """None if everything is as it was when the run began; else a sentence about the first thing that isn't."""
        if self.same():
            return None
        try:
            return self._compare()
        except GONE as error:  # an object may have another class by now, which has not what was read
            return f'what it read can not be compared any more: {error}'

    def _rest_same(self) -> bool:
        """Whether what takes longer is as it was: changes that are repeated, and values compared by their rules."""
        if self.carried is not None and self.carried.unfit() is not None:
            return False
        if any(self._difference(entry) is not None for entry in self._slow):
            return False
        if self.by_identity:
            return True
        held = self._held_slowly()
        return len(held) == len(self._held) and all(map(operator.is_, held, self._held))

    def _held_slowly(self) -> list[Any]:
        """The containers in values that are compared by their rules: equal ones may be shared in another way."""
        return [now for _, now in containers((one.kept, one.read()) for one in self._slow if holds_containers(one))]

    def _difference(self, entry: WatchedValue) -> ValueDifference | None:
        """Compare one watched value by the rules for its kind."""
        value = entry.read()
        found = difference(entry.kept, value)
        if found is not None:
            return found
        replaced = self.by_identity and _replaced(entry.kept, value, set(), self._asks(entry))
        if replaced or (entry.kind != 'state' and _is_another_nan(entry.kept, value, set())):
            return ValueDifference('', 'is or holds another object, equal to the one that was there')
        return None

    def _asks(self, entry: WatchedValue) -> bool:
        """Whether code may ask if a number or a text in it is the same object. What settings hold, only we read."""
        return self.asks_identities and entry.kind not in ('state', 'draws', 'contents')

    def _compare(self) -> str | None:
        """Compare everything by its rules. Equal values that are other objects replace the kept ones."""
        for value, cls, get, attributes in self._objects:
            if type(value) is not cls:
                return f'an object that was {a(cls)} is {a(type(value))}'
            if self.carried is not None and get(value) is not attributes:
                return f'{a(cls)} has another __dict__ than when recorded'
        for cls, form in self._bases:
            if form_of_class(cls) != form:
                return f'class {name_of(cls)} has another name or other bases than when recorded'
        for get, value, attributes in self._names:
            if list(get(value)) != attributes:
                return f'{a(type(value))} has attributes {", ".join(get(value))} and had {", ".join(attributes)}'
        other = self._another()
        if other is not None:
            return other
        for array, form in self._forms:
            if (array.shape, array.strides) != form:
                return f'an array is of shape {array.shape} and was of shape {form[0]} when recorded'
        for get, value, names, where in self._unfound:
            mapping = get(value)
            if not names.isdisjoint(mapping):
                name = min(names.intersection(mapping))
                return f'{where.format(name)} is {show(mapping[name])} and was not there when recorded'
        for entry in self.entries:
            found = self._difference(entry)
            if found is not None:
                hidden = entry.value is True and entry.kind in ('state', 'draws')
                return f'{entry.where(found.path)} {"changed since" if hidden else found.text + " when"} recorded'
        unfit = None if self.carried is None else self.carried.unfit()
        if unfit is not None:
            return unfit
        if self._written is None:
            shared = None if self.by_identity else self._sharing.changed()
            if shared is not None:
                return f'{shared} when recorded'
            self._move_on()
            self._prepare()
        return None

    def _move_on(self) -> None:
        """Go on with the objects that are there now, equal to those that were."""
        replaced = Replaced()
        for entry in self.entries:
            replaced.look(entry.kept, entry.read())
        objects, unfound, names = self._at_first
        self._objects = [(value, cls, get, get(value)) for value, cls, get, _ in replaced.moved(objects, 0)]
        self._unfound, self._names = list(replaced.moved(unfound, 1)), list(replaced.moved(names, 1))

    def _prepare(self) -> None:
        """Prepare the tables of identities, which ``changed`` compares first."""
        self._lay_missing()
        self._lay_inner()
        self._tables, self._slow = IdentityTables(), []
        reached = set[int]()
        dictionaries = {id(value): get(value) for value, _, get, _ in self._objects}
        for entry in self.entries:
            if entry.kind == 'attribute':
                entry.mapping = dictionaries.get(id(entry.holder), entry.mapping)
            value = entry.read()
            _note_containers(entry.kept, value, reached, self.known)
            # what the run has changed is no row: no call has begun with the old value since
            changed = self.carried is not None and difference(entry.kept, value) is not None
            if changed or not self._tables.add(entry, value):
                self._slow.append(entry)
        self._settings = [*self._sharing.memory()]
        self._note_reached(reached)
        self._choose()

    def _lay_missing(self) -> None:
        """Prepare the comparison of names that were not found. All names of some objects are compared anyway."""
        whole = {(get, id(value)): attributes for get, value, attributes in self._names}
        self._missing = [
            (_keys(get(value)), names)
            for get, value, names, _ in self._unfound
            if (get, id(value)) not in whole or not names.isdisjoint(whole[get, id(value)])
        ]

    def _note_reached(self, reached: set[int]) -> None:
        """Add to the containers that entries hold those that grow, and the objects whose attributes are compared."""
        grown = set[int]() if self.carried is None else self.carried.lists()
        objects = {id(value) for value, _, _, _ in self._objects}
        self.reached, self.known = reached | grown | objects, self.known | objects

    def _choose(self) -> None:
        """Choose what ``changed`` has to look at."""
        self._settings += [one.get for one in self._slow if one.get is not None and is_setting(one)]
        self._slow = [one for one in self._slow if not is_setting(one)]
        self._held = self._held_slowly()
        inner = [(values, *pair) for values, found in self._inner_found for pair in found]
        few = inner if len(inner) <= _FEW else []
        tables = (
            (comparison.objects, [self._objects]),
            (comparison.all_names, [[one for one in self._names if one[2]]]),
            (comparison.no_names, [_without_names(self._names)]),
            (comparison.classes, [self._bases]),
            (comparison.arrays, [self._forms]),
            (comparison.many_names, [[] if few else self._inner_found]),
        )
        rest = [compare(*table) for compare, table in tables if any(table)]
        rest += [*self._tables.comparisons(), *self._settings]
        self._more = bool(self._slow) or self.carried is not None
        functions = [*self._tables.functions.values()]
        absent = [(_keys(mapping), frozenset({key})) for mapping, key in self._tables.absent]
        absent += [*self._missing, *self._inner_absent]
        self._same = comparison.names_and_code([*self._tables.rows, *few], functions, absent, self._inner_sizes, rest)
        self.as_before = (lambda: False) if self._more else self._same


def _without_names(names: Iterable[tuple[Any, Any, list[str]]]) -> list[tuple[Any, list[Any]]]:
    """The objects that have no names, by what lists their names."""
    found: dict[Any, list[Any]] = {}
    for get, value, known in names:
        if not known:
            found.setdefault(get, []).append(value)
    return [*found.items()]


def _keys(mapping: Any) -> Any:
    """A view of a dictionary's keys, or of those of a class. To ask it for few names takes no look at all keys."""
    return dict.keys(mapping) if isinstance(mapping, dict) else mapping.keys()


def _replaced(kept: Kept, value: Any, seen: set[tuple[int, int]], plain: bool) -> bool:
    """Whether an equal value is, or holds, another object than the one that was kept. Tuples are not compared so,
    numbers and texts only if ``plain``."""
    if plain and kept.kind == 'plain' and value is not kept.value:
        return True
    if kept.kind in ('plain', 'same', 'method', 'big', 'carried') or (id(kept), id(value)) in seen:
        return False
    seen.add((id(kept), id(value)))
    if value is not kept.value and not issubclass(type(value), UNCHANGING):
        return True
    contents = contents_of(value)
    items = [] if contents is None else contents[2]
    return any(_replaced(part, item, seen, plain) for part, item in zip(kept.parts, items))


def _is_another_nan(kept: Kept, value: Any, seen: set[int]) -> bool:
    """Whether an equal value is, or holds, another number that is not equal to itself than the one that was kept."""
    if kept.kind == 'plain':
        return value is not kept.value and is_nan(value)
    if not kept.parts or id(kept) in seen:
        return False
    seen.add(id(kept))
    contents = contents_of(value)
    return contents is not None and any(_is_another_nan(part, one, seen) for part, one in zip(kept.parts, contents[2]))


def _note_containers(kept: Kept, value: Any, reached: set[int], known: set[int]) -> None:
    """Add the ids of a container and of those that it holds, at any depth; and those of objects to ``known``."""
    if kept.kind == 'same':
        known.add(id(value))
    if kept.kind in ('plain', 'same', 'method', 'carried') or id(value) in reached:
        return
    reached.add(id(value))
    contents = contents_of(value)
    for part, item in zip(kept.parts, attributes_of(value).values() if contents is None else contents[2]):
        _note_containers(part, item, reached, known)
