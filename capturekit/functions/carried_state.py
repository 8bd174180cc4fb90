"""Python state that a graphed function changes at each call, and that every launch changes again.

An array that an attribute, a global or an item held before a call is brought to the graph like an argument, and what
the function put in its place comes back like a result. Numbers and texts are put there again; a counter is counted on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from capturekit.functions.watched_value import WatchedValue
from capturekit.model import errors
from capturekit.model.class_layout import MISSING, layout_of
from capturekit.model.pytree import Form, put_together, take_apart

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
        raise NotImplementedError

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
        raise NotImplementedError

    def change(self, value: Any) -> None:
        """Change the place as a run does; ``value`` is what :meth:`after` returned, with the arrays of a launch."""
        raise NotImplementedError


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

    def after(self) -> Any:
        return self.read()

    def change(self, value: Any) -> None:
        self.put(value)


#: By so much counters are moved while a function is recorded.
_ELSEWHERE = (1 << 40) + 12345


class Counter(CarriedPlace):
    """A whole number that the function only adds ``delta`` to."""

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
            holder[key] += self.delta  # in one step, so that a destructor which calls the function counts, too


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
        try:
            for place in self.places:
                place.begin(left)
            yield
            for place, value in before:
                if not place.is_as_recorded(value):
                    raise errors.UnsupportedCallError(
                        f'The change of {place.where()}',
                        rule='It differs from the change in the eager run.',
                        remedy='Let it depend on the arguments alone.',
                    )
        finally:
            for place, value in before:
                place.end(value)

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
_CHANGING = threading.RLock()


def _form_of(array: Any) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype, array.dtype.char, array.data.device_id
