"""Host reads that each launch makes anew, because their values are only kept.

While such a function is recorded (:mod:`capturekit.functions.reckoned_reads`), each read gets a marker in the place of
the value: a number that no other read has. Where the result then differs from that of the eager run, it has to hold a
marker in the place of the value that was read. There a launch puts the value that it has read. Nothing else may
differ.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from capturekit.functions.outcomes import Kept, ReadOutcome, all_of, all_on_device
from capturekit.model import errors
from capturekit.model.host_reads import Read
from capturekit.model.plain_values import HeldArray

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNED = 16


class _Kept(NamedTuple):
    """A read: the marker that the recording gets, and where a launch keeps the value, in bytes."""

    read: Read
    marker: NDArray[Any]
    offset: int
    outcomes: tuple[ReadOutcome, ...]

    @property
    def is_number(self) -> bool:
        return self.marker.size == 1 and self.marker.dtype.kind == 'f'

    def became(self, then: float, now: float) -> bool:
        """Whether a number of the result was this value, and has become the marker."""
        return self.is_number and _same(then, self.read.value.item()) and _same(now, self.marker.item())

    def found_in(self, room: NDArray[Any]) -> NDArray[Any]:
        """The value that a launch has kept."""
        like = self.marker
        return np.frombuffer(room, np.uint8, like.nbytes, self.offset).view(like.dtype).reshape(like.shape)


class _InArray(NamedTuple):
    """A NumPy array of the result: ``like`` it, with one value as a whole or some in places of the flat array."""

    like: NDArray[Any]
    whole: _Kept | None
    places: list[tuple[int, _Kept]]


class LateReads:
    """The reads of one recording that each launch makes anew.

    ``kept``: the numbers of these among ``reads``, each with what has to come out as it did.

    Raises:
        UnsupportedCallError: there is no marker for one of them.
    """

    def __init__(self, cupy: Any, reads: Sequence[Read], kept: Kept) -> None:
        self._cupy = cupy
        self._kept: list[_Kept] = []
        taken = {_identity(read.value) for read in reads}
        end = 0
        for number in sorted(kept):
            marker = _marker(reads[number], taken, kept[number])
            self._kept.append(_Kept(reads[number], marker, end, kept[number]))
            end += -(-marker.nbytes // _ALIGNED) * _ALIGNED
        #: Where a launch keeps the values, as bytes.
        self.room = cupy.ndarray((end,), 'u1')
        #: What a launch puts into the result, in order.
        self._wanted: list[_Kept | _InArray] = []

    @property
    def used(self) -> bool:
        """Whether the result holds any value that was read."""
        return bool(self._wanted)

    def take(self, read: Read, array: Any) -> tuple[NDArray[Any], tuple[Any, NDArray[Any]] | None] | None:
        """Keep what an array holds at each launch; return the marker, and what has to be as it was: what and how.

        None: the value of the read is assumed.
        """
        found = next((one for one in self._kept if one.read is read), None)
        if found is None:
            return None
        self.room[found.offset : found.offset + found.marker.nbytes] = array.reshape(-1).view(np.uint8)
        if not found.outcomes:
            return found.marker, None
        now = all_on_device(self._cupy, found.outcomes, array, read.parameters)
        return found.marker, (now, all_of(found.outcomes, read.value.item(), read.parameters))

    def placed(self, form: Any, then: Any, now: Any, first: int) -> Any:
        """The form of a result, in which leaves from number ``first`` on stand for what a launch has read.

        ``then`` and ``now`` are the forms of the eager run's result and of this one, described in the same way. Raises
        UnsupportedCallError if they differ in anything else.
        """
        if then is None or now is None:
            raise _differs('A value in it can not be compared.')
        self._compare(then, now)
        return self._replaced(form, first)

    def values(self, room: NDArray[Any]) -> list[Any]:
        """What a launch puts into the result; ``room`` is what it has kept."""
        found: list[Any] = []
        numbers: dict[int, Any] = {}  # a number that is in two places is one object there
        for one in self._wanted:
            if isinstance(one, _Kept):
                if id(one) not in numbers:
                    numbers[id(one)] = one.found_in(room).item()
                found.append(numbers[id(one)])
                continue
            made = one.like.copy(order='K')
            if one.whole is not None:
                made[...] = one.whole.found_in(room)
            for place, kept in one.places:
                made.flat[place] = kept.found_in(room).item()
            made.flags.writeable = one.like.flags.writeable
            found.append(made)
        return found

    # -- comparing the results --------------------------------------------------------------------------------

    def _compare(self, then: Any, now: Any) -> None:
        """Raise if two forms differ in anything but markers in the places of values."""
        if isinstance(now, HeldArray) and isinstance(then, HeldArray):
            before, after = cast(Any, then.value), cast(Any, now.value)
            self._compare_arrays(before, after)
        elif type(now) is tuple and type(then) is tuple and len(now) == len(then):
            if _is_number(now) and _is_number(then):
                self._compare_numbers(float(then[1]), float(now[1]))
            else:
                for one, other in zip(then, now):
                    self._compare(one, other)
        elif then != now:
            raise _differs('A value in it that is not an array differs from the eager run: an address, a time, an id.')

    def _compare_numbers(self, then: float, now: float) -> None:
        if not _same(then, now):
            if not any(one.became(then, now) for one in self._kept):
                raise _differs('A number in it was computed on the host from one that was read.')
        elif self._of(now) is not None:
            raise _differs('A number in it can not be told from one that was read.')

    def _compare_arrays(self, then: NDArray[Any], now: NDArray[Any]) -> None:
        if _layout(then) != _layout(now):
            raise _differs('A NumPy array in it is of another shape or type than in the eager run.')
        whole = self._of_whole(now)
        if whole is not None:
            if _bytes(then) != _bytes(whole.read.value):
                raise _differs('A NumPy array in it can not be told from one that was read.')
        elif now.dtype == np.float64:
            for one, other in zip(then.flat, now.flat):
                self._compare_numbers(float(one), float(other))
        elif _bytes(then) != _bytes(now):
            raise _differs('A NumPy array in it was computed on the host from what was read.')

    def _of(self, number: float) -> _Kept | None:
        """The read whose marker this number is."""
        return next((one for one in self._kept if one.is_number and _same(one.marker.item(), number)), None)

    def _of_whole(self, array: NDArray[Any]) -> _Kept | None:
        """The read whose marker this array is."""
        for one in self._kept:
            alike = one.marker.shape == array.shape and one.marker.dtype == array.dtype
            if alike and _bytes(one.marker) == _bytes(array):
                return one
        return None

    def _replaced(self, node: Any, first: int) -> Any:
        """A form with leaves in the places of markers."""
        found: _Kept | _InArray | None = None
        if isinstance(node, HeldArray):
            found = self._in_array(cast(Any, node.value))
        elif type(node) is tuple and _is_number(node):
            found = self._of(float(node[1]))
        elif type(node) is tuple:
            return tuple([self._replaced(part, first) for part in node])
        if found is None:
            return node
        self._wanted.append(found)
        return first + len(self._wanted) - 1

    def _in_array(self, array: NDArray[Any]) -> _InArray | None:
        whole = self._of_whole(array)
        if whole is not None or array.dtype != np.float64:
            return None if whole is None else _InArray(array, whole, [])
        found = [(place, self._of(float(number))) for place, number in enumerate(array.flat)]
        places = [(place, one) for place, one in found if one is not None]
        return _InArray(array, None, places) if places else None


def _is_number(node: tuple[Any, ...]) -> bool:
    return len(node) == 2 and node[0] is float


def _layout(array: NDArray[Any]) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.strides, array.flags.writeable


def _bytes(array: NDArray[Any]) -> bytes:
    return array.tobytes('C')


def _same(a: float, b: float) -> bool:
    """Whether two numbers have equal bits."""
    return struct.pack('d', a) == struct.pack('d', b)


def _identity(array: NDArray[Any]) -> Any:
    """What two markers must not have in common: a number, or the bytes of an array."""
    return float(array.item()) if array.size == 1 and array.dtype.kind == 'f' else _bytes(array)


def _marker(read: Read, taken: set[Any], outcomes: tuple[ReadOutcome, ...]) -> NDArray[Any]:
    """An array like the one that was read, with other values, which no other read has and of which the same comes out.

    Where nothing has to come out, numbers are far away, so that code shows the difference which sees the value in a way
    that is not known. Else numbers a little larger are tried first, then numbers a little smaller.
    """
    if not outcomes:
        made = _other(_far_from(read.value), taken, 1)
        taken.add(_identity(made))
        return made
    wanted = all_of(outcomes, read.value.item(), read.parameters).tolist()
    for step in (1, -1):
        made = _other(read.value, taken, step)
        if all_of(outcomes, made.item(), read.parameters).tolist() == wanted:
            taken.add(_identity(made))
            return made
    raise _differs('A number that is read has no neighbour of which the same comes out.')


def _far_from(value: NDArray[Any]) -> NDArray[Any]:
    """Numbers of another sign and size, where they are finite."""
    if value.dtype.kind not in 'fc':
        return value
    with np.errstate(all='ignore'):
        found = (value * -1.375 - 1000.25).astype(value.dtype)
    return np.where(np.isfinite(found), found, value)


def _other(value: NDArray[Any], taken: set[Any], step: int) -> NDArray[Any]:
    made = np.array(value, order='C')
    if made.dtype.kind in 'fc':
        made[~np.isfinite(made)] = 1.5
    bits = made.reshape(-1).view(f'u{made.dtype.itemsize // (2 if made.dtype.kind == "c" else 1)}')
    while _identity(made) in taken:
        bits += np.array(step % (1 << 8 * bits.itemsize), bits.dtype)
    return made


def _differs(rule: str) -> errors.UnsupportedCallError:
    return errors.UnsupportedCallError('The result', rule=rule, remedy='Return what depends on the arguments alone.')
