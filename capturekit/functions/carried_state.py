"""State of Python's that a graphed function changes at each call: every launch makes the same changes again.

An array that an attribute, a global or an item held before a call is brought to the graph like an argument, and what
the function put in its place comes back like a result. Numbers and texts are put there again; a counter is counted on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from capturekit.functions.watched_value import WatchedValue
from capturekit.launch.graph_memory import extent
from capturekit.model import errors
from capturekit.model.class_layout import MISSING, layout_of
from capturekit.model.pytree import Form, put_together, take_apart


class CarriedPlace:
    """One place whose value changes: a watched value, or an item of a dict or a list in it.

    ``path``: the keys that lead from the watched value to the item. ``form`` and ``forms``: what it held when the run
    began, and the form of each array in that; None where that is compared at each call. ``delta``: what is added to a
    counter; None where the value that the run left is put there.
    """

    def __init__(self, entry: WatchedValue, path: tuple[Any, ...], delta: int | None = None) -> None:
        self.entry = entry
        self.path = path
        self.delta = delta
        self.form: Form = None
        self.forms: list[Any] | None = None

    def where(self) -> str:
        """The place in words."""
        return self.entry.where(''.join(f'[{key!r}]' for key in self.path))

    def expect(self, value: Any, array: type) -> None:
        """Bring the arrays of this value to the graph, and those that are there at later calls."""
        arrays, self.form = take_apart(value, lambda one: type(one) is array)
        self.forms = [_form_of(one) for one in arrays]

    def read(self) -> Any:
        """What is there now; MISSING if there is no such place any more."""
        value = self.entry.read()
        for key in self.path:
            if type(value) is not dict and type(value) is not list:
                return MISSING
            try:
                value = value[key]
            except (KeyError, IndexError):
                return MISSING
        return value

    def write(self, value: Any) -> None:
        """Put a value there."""
        entry = self.entry
        if self.path:
            container = entry.read()
            for key in self.path[:-1]:
                container = container[key]
            container[self.path[-1]] = value
        elif entry.kind == 'variable':
            entry.holder.cell_contents = value
        elif entry.kind == 'slot':
            entry.member.__set__(entry.holder, value)
        elif entry.kind == 'global':
            entry.holder[entry.key] = value
        else:
            dictionary = layout_of(type(entry.holder)).dictionary
            assert dictionary is not None
            dictionary(entry.holder)[entry.key] = value

    def arrays(self, array: type) -> list[Any] | None:
        """The arrays that are there now; None where something else is there than what the recording can take."""
        if self.delta is not None:
            return [] if type(self.read()) is int else None
        if self.forms is None:
            return []
        try:
            arrays, form = take_apart(self.read(), lambda one: type(one) is array)
        except TypeError:
            return None
        return arrays if form == self.form and [_form_of(one) for one in arrays] == self.forms else None


class CarriedState:
    """All places that a run changes in a way that is understood. ``began`` are the arrays that they held before it."""

    def __init__(self, places: Sequence[CarriedPlace], array: type, began: list[Any]) -> None:
        self.places = list(places)
        self.began = began
        self._array = array
        self._stored = [place for place in places if place.delta is None]
        self._counted = [place for place in places if place.delta is not None]

    def unfit(self) -> str | None:
        """Say which place holds something that a launch can't begin with; None if none does."""
        place = next((one for one in self.places if one.arrays(self._array) is None), None)
        return None if place is None else f'{place.where()} holds another kind of value than when recorded'

    def arrays(self) -> list[Any]:
        """The arrays that a call begins with, which the places hold now."""
        return [one for place in self.places for one in place.arrays(self._array) or ()]

    @contextmanager
    def holding(self, arrays: Sequence[Any]) -> Iterator[None]:
        """Put other arrays into the places for a run of the function; afterwards all places hold what they held."""
        before = [(place, place.read()) for place in self.places]
        left = iter(arrays)
        try:
            for place in self.places:
                if place.forms is not None:
                    place.write(put_together(place.form, [next(left) for _ in place.forms]))
            begun = [(place, place.read()) for place in self._counted]
            yield
            for place, value in begun:
                if place.read() != value + place.delta:
                    raise errors.UnsupportedCallError(
                        f'The number in {place.where()}',
                        rule='It is counted otherwise than in the eager run.',
                        remedy='Let it depend on the arguments alone.',
                    )
        finally:
            for place, value in before:
                place.write(value)

    def after(self) -> tuple[Any, ...]:
        """What the run has put in the places."""
        return tuple([place.read() for place in self._stored])

    def write(self, values: Sequence[Any]) -> None:
        """Leave what :meth:`after` told of a run, with arrays of a launch in it, and count on."""
        for place in self._counted:
            place.write(place.read() + place.delta)
        for place, value in zip(self._stored, values):
            place.write(value)


def share_memory(arrays: Sequence[Any], others: Sequence[Any], outside: Sequence[tuple[int, int]]) -> bool:
    """Whether one of these arrays lies on another of them, on one of the others or on one of these extents."""
    own = [extent(one) for one in arrays]
    spans = [*own, *[extent(one) for one in others], *outside]
    return any(
        low < end and start < high
        for number, (low, high) in enumerate(own)
        for start, end in (*spans[:number], *spans[number + 1 :])
    )


def _form_of(array: Any) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype, array.data.device_id
