"""Python state that a graphed function changes at each call, and that every launch changes again.

An array that an attribute, a global or an item held before a call is brought to the graph like an argument, and what
the function put in its place comes back like a result. Numbers and texts are put there again; a counter is counted on.

Each launch puts another object there, of the same class, with its arrays. Such an object is of a class written in
Python and has nothing but attributes, which hold arrays, numbers, texts, lists, tuples, dicts and objects of that
kind. Nobody else may hold it, or the one that was there before.

Other values change only in the middle of a run, as in ``d["k"] = 0; d["k"] = new``. A recording that ends in that
middle, or goes another way, would leave what it has put there, which may be an array of the graph, for the eager run
that follows: :class:`StateBefore` puts back what was there.
"""

from __future__ import annotations

import array
import functools
import warnings
from abc import ABCMeta
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from capturekit.graphed.call_turns import is_alone
from capturekit.graphed.ownership import in_package, is_whole
from capturekit.graphed.value_changes import containers, difference, replaced
from capturekit.graphed.watched_values import WatchedValue
from capturekit.guard import GUARD
from capturekit.model import errors
from capturekit.model.class_layout import (
    MISSING,
    among,
    attributes_of,
    bases_of,
    found_in_class,
    layout_of,
    made_by_class_statement,
    solid_base,
)
from capturekit.model.cleanup import undoing
from capturekit.model.kept_values import Kept, contents_of
from capturekit.model.pytree import Form, put_together, take_apart
from capturekit.model.skipped_exits import Lock, contextmanager
from capturekit.model.source_line import Place, here

#: The types of dicts in which places may be.
DICTS: tuple[type, ...] = (dict, defaultdict, OrderedDict)


class CarriedPlace:
    """One place whose value changes: a watched value, or an item of a dict or a list in it.

    ``path``: the keys that lead from the watched value to the item. ``how``: what launches do with it, in a word.
    """

    how = 'changed'

    def __init__(self, entry: WatchedValue, path: tuple[Any, ...]) -> None:
        self.entry = entry
        self.path = path

    def where(self) -> str:
        """The place in words."""
        return self.entry.where(''.join(f'[{key!r}]' for key in self.path))

    def read(self) -> Any:
        """The value that is there now; MISSING if the place does not exist any more."""
        value = self.entry.read()
        for key in self.path:
            if type(value) in DICTS:
                value = dict.get(value, key, MISSING)  # which makes no item in a defaultdict
            elif type(value) is list and type(key) is int and key < len(value):
                value = value[key]
            else:
                return MISSING
        return value

    def put(self, value: Any) -> None:
        """Put a value there."""
        entry, holder = self.entry, self.holder()
        if holder is not None:
            holder[self.path[-1] if self.path else entry.key] = value
        elif entry.kind == 'variable':
            entry.holder.cell_contents = value
        else:
            entry.member.__set__(entry.holder, value)

    def holder(self) -> Any:
        """The dict or the list that holds the value; None for a variable of a closure, and for a slot."""
        entry = self.entry
        if self.path:
            container = entry.read()
            for key in self.path[:-1]:
                container = container[key]
            return container
        if entry.kind in ('variable', 'slot'):
            return None
        if entry.kind == 'global':
            return entry.holder
        dictionary = layout_of(type(entry.holder)).dictionary
        assert dictionary is not None
        return dictionary(entry.holder)

    def arrays(self, array: type) -> list[Any] | None:
        """The arrays that are here when a call begins; None if a launch can't begin with this value."""
        return []

    def before(self) -> Any:
        """What :meth:`end` needs to restore the present value."""
        return self.read()

    def begin(self, left: Iterator[Any]) -> None:
        """Put arrays in other memory there, for a run."""

    def is_as_recorded(self, before: Any) -> bool:
        """Whether a run that has ended made the same change here as the eager run."""
        return True

    def end(self, before: Any) -> None:
        """Restore the value that was there when :meth:`before` was called."""
        self.put(before)

    def after(self) -> Any:
        """The value that a run has put there."""
        return self.read()

    def change(self, value: Any) -> None:
        """Change the place as a run does; ``value`` is what :meth:`after` returned, with the arrays of a launch."""
        self.put(value)


class StoredPlace(CarriedPlace):
    """A place that gets another value. Arrays that it holds before are copied to the graph, other values compared."""

    def __init__(self, entry: WatchedValue, path: tuple[Any, ...]) -> None:
        super().__init__(entry, path)
        #: What it held when the run began, and the form of each array in that; None where that is compared.
        self.form: Form = None
        self.forms: list[Any] | None = None

    def expect(self, value: Any, array: type) -> list[Any]:
        """Treat the arrays in this value, here and at later calls, as arguments of the graph. Returns them."""
        arrays, self.form = take_apart(value, lambda one: type(one) is array)
        self.forms = [_form_of(one) for one in arrays]
        return arrays

    def arrays(self, array: type) -> list[Any] | None:
        if self.forms is None:
            return []
        try:
            arrays, form = take_apart(self.read(), lambda one: type(one) is array)
        except TypeError:
            return None
        return arrays if form == self.form and [_form_of(one) for one in arrays] == self.forms else None

    def begin(self, left: Iterator[Any]) -> None:
        if self.forms is not None:
            self.put(put_together(self.form, [next(left) for _ in self.forms]))


#: By so much counters are moved while a function is recorded.
_ELSEWHERE = (1 << 40) + 12345


class Counter(CarriedPlace):
    """A whole number that the function only adds constants to, ``delta`` in all."""

    def __init__(self, entry: WatchedValue, path: tuple[Any, ...], delta: int) -> None:
        super().__init__(entry, path)
        self.delta = delta

    def arrays(self, array: type) -> list[Any] | None:
        return [] if type(self.read()) is int else None

    def begin(self, left: Iterator[Any]) -> None:
        self.put(self.read() + _ELSEWHERE)  # so that code which sees the number makes another change

    def is_as_recorded(self, before: Any) -> bool:
        return bool(self.read() == before + _ELSEWHERE + self.delta)

    def after(self) -> Any:
        return None

    def change(self, value: Any) -> None:
        holder, key = self.holder(), self.path[-1] if self.path else self.entry.key
        if holder is None:
            self.put(self.read() + self.delta)
        else:
            holder[key] += self.delta  # in one step, so that a destructor which calls the function counts


class NumberPlace(CarriedPlace):
    """An attribute that holds another number at each call, with which each launch reckons.

    ``then`` is what it held when the run began. ``number`` takes the place of that while the function is recorded.
    ``changes``: whether the function puts a number there; else only others do.
    """

    def __init__(self, entry: WatchedValue, then: Any, changes: bool = True) -> None:
        super().__init__(entry, ())
        self.then = then
        self.changes, self.how = changes, 'changed' if changes else 'read anew'
        self.number: Any = None
        self._stood: Any = None

    def arrays(self, array: type) -> list[Any] | None:
        return [] if type(self.read()) is type(self.then) else None

    def begin(self, left: Iterator[Any]) -> None:
        self._stood = self.number
        if self.number is not None:
            self.put(self.number)

    def is_as_recorded(self, before: Any) -> bool:
        return self.changes or self.read() is (before if self._stood is None else self._stood)

    def after(self) -> Any:
        return self.read() if self.changes else None

    def change(self, value: Any) -> None:
        if self.changes:
            self.put(value)


class GrowingList(CarriedPlace):
    """A list that the function only appends ``count`` items to."""

    def __init__(self, entry: WatchedValue, grown: list[Any], count: int) -> None:
        super().__init__(entry, ())
        #: The list object. Another one is refused, because it is not known who else holds it.
        self.grown = grown
        self.count = count

    def arrays(self, array: type) -> list[Any] | None:
        return [] if self.read() is self.grown else None

    def before(self) -> Any:
        return len(self.read())

    def is_as_recorded(self, before: Any) -> bool:
        return bool(len(self.read()) == before + self.count)

    def end(self, before: Any) -> None:
        del self.read()[before:]

    def after(self) -> Any:
        return tuple(self.read()[-self.count :])

    def change(self, value: Any) -> None:
        self.read().extend(value)


class CarriedState:
    """All places that a run changes in a way that is understood.

    ``began`` are the arrays that they held before it, ``tuples`` the tuples and objects that it put there.
    """

    def __init__(
        self, places: Sequence[CarriedPlace], array: type, began: list[Any], tuples: Sequence[Any] = ()
    ) -> None:
        self.places = list(places)
        self.began = began
        self.tuples = list(tuples)
        self._array = array

    def unfit(self) -> str | None:
        """Say which place holds a value that a launch can't begin with; None if there is none."""
        place = next((one for one in self.places if one.arrays(self._array) is None), None)
        return None if place is None else f'{place.where()} holds another kind of value than when recorded'

    def numbers(self) -> list[NumberPlace]:
        """The places whose numbers launches reckon with."""
        return [place for place in self.places if isinstance(place, NumberPlace)]

    def lists(self) -> set[int]:
        """The lists that grow, by id."""
        return {id(place.grown) for place in self.places if isinstance(place, GrowingList)}

    def arrays(self) -> list[Any]:
        """The arrays that the places hold now, when a call begins."""
        return [one for place in self.places for one in place.arrays(self._array) or ()]

    @contextmanager
    def holding(self, arrays: Sequence[Any]) -> Iterator[None]:
        """Put other arrays into the places for a run of the function; afterwards restore all places."""
        left, before = iter(arrays), [(place, place.before()) for place in self.places]
        with undoing() as undo:
            for place, value in reversed(before):
                undo.push(functools.partial(place.end, value))
            for place in self.places:
                place.begin(left)
            yield
            for place, value in before:
                if not place.is_as_recorded(value):
                    raise errors.UnsupportedCallError(
                        f'The change of {place.where()}',
                        rule='It differs from the change in the eager run.',
                    )

    def after(self) -> tuple[Any, ...]:
        """What the run has put in the places."""
        return tuple([place.after() for place in self.places])

    def change(self, values: Sequence[Any]) -> None:
        """Change all places as the run did; ``values`` is what :meth:`after` returned, with the arrays of a launch."""
        with _CHANGING:
            for place, value in zip(self.places, values):
                place.change(value)


#: Held while places are changed, so that threads do so one after the other. What is dropped there may have a destructor
#: that calls a graphed function.
_CHANGING = Lock()


def _form_of(array: Any) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype, array.dtype.char, array.data.device_id


class NotUnderstood(Exception):
    """No launch can make this change again."""


class PlaceChange(NamedTuple):
    """One value that changed: where it is kept (in ``inside``, or the watched value itself), and its value now."""

    path: tuple[Any, ...]
    inside: Kept | None
    number: int
    kept: Kept
    now: Any


def changes_in(
    kept: Kept, value: Any, path: tuple[Any, ...], inside: Kept | None = None, number: int = 0
) -> Iterator[PlaceChange]:
    """The values that changed inside a watched value, each by its full path. Raises NotUnderstood."""
    if difference(kept, value) is None:
        if replaced(kept, value) is not None:
            raise NotUnderstood
        return
    is_dict = type(value) in DICTS
    if value is not kept.value or not (is_dict or type(value) is list):
        if kept.kind == 'carried' or value is kept.value:
            raise NotUnderstood
        yield PlaceChange(path, inside, number, kept, value)
        return
    if type(value) is list and not path and kept.kind == 'items' and len(value) > len(kept.parts):
        yield PlaceChange(path, inside, number, kept, value)
        return
    labels: list[Any] = list(range(len(value)))
    if is_dict:
        labels, was = list(value), [label.value for label in kept.labels[: len(value)]]
        if not all(map(is_label, labels)) or labels != was or [*map(_types_in, labels)] != [*map(_types_in, was)]:
            raise NotUnderstood
    factory = [value.default_factory] if type(value) is defaultdict and value.default_factory is not None else []
    rest = kept.parts[len(labels) :]
    if kept.kind not in ('dict', 'items') or len(kept.parts) != len(labels) + len(factory):
        raise NotUnderstood
    if any(difference(part, made_by) is not None for part, made_by in zip(rest, factory)):
        raise NotUnderstood
    for position, (label, part) in enumerate(zip(labels, list(kept.parts))):
        yield from changes_in(part, value[label], (*path, label), kept, position)


def is_label(key: Any) -> bool:
    """Whether a launch finds an item again by its key: texts, whole numbers, and tuples of such."""
    return all(map(is_label, key)) if type(key) is tuple else type(key) in (str, int)


def _types_in(key: Any) -> Any:
    """The type of a key, and those in it: equal keys may be of other types."""
    return [_types_in(one) for one in key] if type(key) is tuple else type(key)


_METACLASSES = (type, ABCMeta)


def is_remade(value: Any) -> bool:
    """Whether a value is an object of a class of which a launch can make another object."""
    cls = type(value)
    if not among(type(cls), _METACLASSES) or cls is object or solid_base(cls) is not object or is_whole(cls):
        return False
    if contents_of(value) is not None or found_in_class(cls, '__del__') is not MISSING:
        return False
    bases = bases_of(cls)[:-1]
    return all(made_by_class_statement(base) for base in bases) and not any(map(in_package, bases))


def parts_of(value: Any) -> list[Any] | None:
    """What a launch puts into the container or the object that it makes in the place of this one; None for others."""
    cls = type(value)
    if cls is tuple or cls is list:
        return list(value)
    if cls is dict:
        return [*value.values()] if all(type(key) is str for key in value) else None
    return [*attributes_of(value).values()] if is_remade(value) else None


def consists_of(value: Any, is_leaf: Callable[[Any], bool]) -> bool:
    """Whether a value is made of such containers and objects, and of nothing else than ``is_leaf`` returns True for.

    All but tuples have to be there once.
    """
    made = [*made_in(value)]
    once = [id(one) for one in made if type(one) is not tuple]
    inside = [value, *(part for one in made for part in parts_of(one) or ())]
    return len(once) == len({*once}) and all(is_leaf(one) or parts_of(one) is not None for one in inside)


def made_in(value: Any) -> Iterator[Any]:
    """The containers and objects in a value, but for empty tuples, of which Python has one.

    One that is in two places comes twice, and what is in it once.
    """
    todo, seen = [value], set[int]()
    while todo:
        one = todo.pop()
        parts = parts_of(one)
        if parts is not None and (parts or type(one) is not tuple):
            yield one
        todo += [] if id(one) in seen else parts or []
        seen.add(id(one))


def objects_in(value: Any) -> dict[int, Any]:
    """The objects, lists and dicts in any value, by id. What was there before may hold itself, or a part twice."""
    return {id(one): one for one in made_in(value) if type(one) is not tuple}


#: The kinds of watched values that are places where code puts values.
_PLACES = frozenset({'global', 'variable', 'attribute', 'slot', 'class attribute', 'function', 'context'})
#: Those that hold containers besides.
_HOLDING = _PLACES | {'argument', 'bound'}
#: The types of containers whose contents are put back; theirs count, whatever a class derived from them says.
_KINDS: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
_BYTES = (bytearray, array.array)
_LEFT = (
    'A recording was given up in the middle of the function, and a NumPy array or bytearray that it reaches holds '
    'other numbers than before. Another thread runs that may have put them there, so they are left: a function that '
    'changes such memory and puts it back goes on from the middle. Let it change a copy.'
)


class StateBefore:
    """The values in the places that a run can have reached, and what their containers and objects hold.

    ``objects``: those whose attributes the run has used, each with the function that gives its dictionary. ``missing``:
    dictionaries, each with names that the run has not found in it. ``named``: the globals of modules, each with the
    names in code that ran, also on lines that did not: ``except:`` and ``finally`` may come to those.
    """

    def __init__(
        self,
        entries: Sequence[WatchedValue],
        objects: list[tuple[Any, Callable[[Any], Any]]],
        missing: list[tuple[Any, frozenset[str]]],
        named: Sequence[tuple[dict[str, Any], frozenset[str]]],
    ) -> None:
        self._classes = [(value, type(value)) for value, _ in objects]
        self._missing = [(names, found) for names, found in missing if type(names) is dict]
        held = [(entry, entry.read()) for entry in entries if entry.kind in _HOLDING]
        self._places = [(entry, value) for entry, value in held if entry.kind in _PLACES and _behind(value) is value]
        reached = [now for _, now in containers((entry.kept, value) for entry, value in held)]
        self._globals = [(names, name, names[name]) for names, found in named for name in found.intersection(names)]
        self._globals = [one for one in self._globals if _is_data(one[2])]
        kinds = [
            (one, next((kind for kind in _KINDS if isinstance(one, kind)), None))
            for one in (*reached, *(get(value) for value, get in objects), *(value for _, _, value in self._globals))
        ]
        self._contents = [(one, kind, kind(one)) for one, kind in kinds if kind is not None]
        self._alone = is_alone()  # else another thread may fill such memory meanwhile
        self._numbers = [(one, one.copy()) for one in map(_of_numbers, reached) if one is not None]
        self._bytes = [(one, one[:]) for one in reached if type(one) in _BYTES]

    def put_back(self) -> None:
        """Put all of it back that is another one now."""
        for value, cls in self._classes:
            if type(value) is not cls:
                object.__setattr__(value, '__class__', cls)
        for container, kind, before in self._contents:
            if isinstance(container, dict):
                _put_items_back(container, kind, before)
            elif [*map(id, kind(container))] != [*map(id, before)]:
                kind.clear(container)
                (set.update if kind is set else kind.extend)(container, before)
        for names, missing in self._missing:
            for name in missing.intersection(names):
                del names[name]
        for names, name, value in self._globals:
            if names.get(name) is not value and _is_data(names.get(name)):
                names[name] = value
        for entry, value in self._places:
            if _behind(entry.read()) is not value:
                put_there(entry, value)
        filled: list[tuple[Any, Any, Any]]
        filled = [(one, ..., before) for one, before in self._numbers if one.tobytes() != before.tobytes()]
        filled += [(one, slice(None), before) for one, before in self._bytes if one != before]
        if self._alone:
            for one, everything, before in filled:
                one[everything] = before
        elif filled:
            at = here() or Place('<unknown>', 0, '')
            warnings.warn_explicit(_LEFT, RuntimeWarning, at.file, at.line)


def _is_data(value: Any) -> bool:
    """Whether a global is no function, class or module: in the place of these a recording may have put others."""
    return not callable(value) and not isinstance(value, ModuleType)


def _behind(value: Any) -> Any:
    """What the guard has put a wrapper in the place of; any other value itself."""
    return GUARD.installation.original_of(value)


def _of_numbers(value: Any) -> Any:
    """The array of NumPy's, if a value is one that code may write into; else None."""
    array_of_numbers = isinstance(value, np.ndarray) and value.flags.writeable
    return np.ndarray.view(value, np.ndarray) if array_of_numbers else None


def _put_items_back(container: dict[Any, Any], kind: Any, before: dict[Any, Any]) -> None:
    """Put the items of a dict back. One that was taken out and comes back would stand at the end."""
    for key in [key for key in kind.keys(container) if key not in before]:
        kind.pop(container, key)
    if [*kind.keys(container)] != [*before]:
        kind.clear(container)
    for key, value in before.items():
        if dict.get(container, key, MISSING) is not value:
            kind.__setitem__(container, key, value)


def put_there(entry: WatchedValue, value: Any) -> None:
    """Put a value into the place of a watched one, or nothing where there was nothing."""
    if entry.kind == 'variable' and value is MISSING:
        del entry.holder.cell_contents
    elif entry.kind in ('class attribute', 'function') and value is MISSING:
        (type if entry.kind == 'class attribute' else object).__delattr__(entry.holder, entry.key)
    elif entry.kind == 'class attribute':
        type.__setattr__(entry.holder, entry.key, value)
    elif entry.kind == 'function':
        setattr(entry.holder, entry.key, value)
    elif entry.kind == 'context' and value is not MISSING:
        entry.holder.set(value)
    elif value is not MISSING:
        CarriedPlace(entry, ()).put(value)
    elif entry.kind != 'context':
        dict.pop(entry.mapping, entry.key)
