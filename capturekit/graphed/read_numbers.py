"""Numbers that launches read on the host, and compute with or only keep (:mod:`capturekit.graphed.value_flow`).

While a function that computes is recorded, ``array.item()`` gives a
:class:`~capturekit.graphed.recorded_number.Number`, whose value code can not see. The graph is cut there. At each
launch the host waits for the part before, reads the value, computes what the code computed of it, in the same order,
and brings the numbers that meet arrays to the device; then the next part is launched. What comes out of a comparison
has to be as it was; else the launch is given up.

Where values are only kept, each read gets a marker in the place of the value: a number that no other read has. Where
the result then differs from that of the eager run, it has to hold a marker in the place of the value that was read.
There a launch puts the value that it has read. Nothing else may differ.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from capturekit.graphed import recorded_number
from capturekit.graphed.carried_state import NumberPlace
from capturekit.graphed.number_arguments import ROOM as ROOM_OF_CALLS
from capturekit.graphed.number_arguments import WIDTH, Unfit
from capturekit.graphed.outcomes import (
    ArgumentNumber,
    Kept,
    OtherOutcome,
    ReadOutcome,
    ReckonedOperators,
    all_of,
    all_on_device,
)
from capturekit.graphed.recordable import must_draw_later
from capturekit.graphed.recorded_number import Number, unfollowed
from capturekit.graphed.variant import Variant
from capturekit.guard import GUARD, OpenCapture
from capturekit.launch.plan import Seam
from capturekit.model import errors
from capturekit.model.host_reads import Read
from capturekit.model.plain_values import HeldArray
from capturekit.model.skipped_exits import contextmanager
from capturekit.model.source_line import Place, here

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


#: Up to so many reads one function reckons with, and so many numbers of them meet arrays. The host waits at each read.
READS = ROOM = 256
#: So many numbers are computed of them.
STEPS = 1024


class _Step(NamedTuple):
    """How a number is computed; ``outcome``: what has to come out of a comparison, which is no number."""

    plain: Callable[..., Any]
    indices: tuple[int, ...]
    outcome: Any = None


class _Stage:
    """What the host does between two parts: what it reads, what it computes then, and which numbers it brings.

    ``begins``: the index of the first number that it reads by ``read``. ``slots``: each with the number's index and
    dtype, from the slot numbered ``first`` on.
    """

    def __init__(self, begins: int, read: Callable[[], list[Any]], first: int, at: Place | None) -> None:
        self.begins, self.read, self.first, self.at = begins, read, first, at
        #: Whether it has been done, for a call that the host makes while the function is recorded.
        self.is_done = False
        self.steps: list[_Step] = []
        self.slots: list[tuple[int, Any]] = []


class _ReadValue(np.ndarray[Any, Any]):
    """The value of a read as CuPy has it on the host, of which only ``item()`` can be asked."""

    give: Any = None

    def __array_finalize__(self, of: Any) -> None:
        self.give = getattr(of, 'give', None)

    def item(self, *_args: Any) -> Any:
        """The number that nobody can see."""
        return self.give()


class NumberRead(Seam):
    """A read on the host at each launch, between two parts."""


class ReadNumbers:
    """The numbers of one recording. ``operators``: what takes them; ``place``: where the graph finds them, eight bytes
    each. ``reads`` are those that are reckoned with, which the graph that ``live`` records reads."""

    #: How many numbers may meet arrays.
    most = ROOM

    def __init__(
        self, cupy: Any, place: Any, operators: ReckonedOperators, reads: Sequence[Read] = (), live: Any = None
    ) -> None:
        self.cupy, self._place, self._operators, self._live, self._reads = cupy, place, operators, live, reads
        #: Where the graph puts what is read.
        self._room: Any = GUARD.uploads.upload(live, np.zeros(len(reads) * WIDTH, 'u1')) if reads else None
        self._kinds: list[type] = []
        self._numbers: dict[Any, Number] = {}
        self._arrays: dict[tuple[int, str], Any] = {}
        self._stages: list[_Stage] = []
        self._places: Sequence[NumberPlace | ArgumentNumber] = []
        #: How many numbers are read on the device, and how many of them CuPy has handed on.
        self._read_there = self._asked = 0
        #: Whether some are NumPy's.
        self._by_numpy = False
        #: The numbers of the launch under way, by index.
        self._found: list[Any] = []

    # -- while it is recorded ---------------------------------------------------------------------------------

    def take(self, read: Read, array: Any) -> tuple[Any, None] | None:
        """Read at each launch; return what the recording gets instead. None: the value of the read is assumed."""
        if not any(one is read for one in self._reads):
            return None
        at, dtype, first = here(), read.value.dtype, self._read_there * WIDTH
        if self._read_there == READS:
            raise unfollowed(f'more than {READS} are read')
        self._read_there += 1
        there = self._room[first : first + array.nbytes]
        there[...] = array.reshape(-1).view(np.uint8)
        self._cut('a number that is read', at, lambda: [there.get().view(dtype).item()])
        made = self._new(read.value.item())
        given = np.array(read.value).view(_ReadValue)
        given.give = lambda: self._given(made)
        return given, None

    def take_state(self, places: Sequence[NumberPlace | ArgumentNumber]) -> None:
        """Let places hold numbers with which launches reckon, from the beginning on."""
        self._places = places
        if places:
            self._cut('numbers of attributes and arguments', None, lambda: [place.read() for place in places])
        for place in places:
            place.number = self._new(place.then)

    def _cut(self, name: str, at: Place | None, read: Callable[[], list[Any]]) -> None:
        """End this part of the graph. Before the next one the host reads, and does what is added to the stage."""
        GUARD.parts.cut_on_host(self._live, at)
        slots = sum(len(stage.slots) for stage in self._stages)
        stage = _Stage(len(self._kinds), read, slots, at)
        self._stages.append(stage)
        GUARD.parts.plan_of(self._live).steps.append(NumberRead(name, at, lambda: self._go(stage)))

    def _stage(self) -> _Stage:
        """The stage that takes what is added: another one, where the last one has been done."""
        if self._stages[-1].is_done:
            self._cut('numbers that are computed', self._stages[-1].at, list)
        return self._stages[-1]

    def constant(self, value: Any) -> Number:
        """A number that is the same at every launch."""
        key = (type(value), value if type(value) is int else struct.pack('d', value))
        known = self._numbers.get(key)
        return self._computed(_Step(lambda: value, ()), value, key) if known is None else known

    def computed(self, plain: Callable[..., Any], operands: tuple[Number, ...]) -> Number:
        """A number that is computed again at each launch."""
        indices = tuple(one._index for one in operands)
        now = recorded_number.computed_now(plain, operands)
        self._by_numpy = self._by_numpy or type(now) is np.float64
        if not self._operators.at[self.standing()]:
            raise unfollowed('what is computed from it is used otherwise')
        return self._computed(_Step(plain, indices), now, None)

    def compared(self, plain: Callable[..., bool], operands: tuple[Number, ...]) -> bool:
        """What comes out of a comparison, which has to be the same at every launch."""
        outcome = plain(*[one._now for one in operands])
        if type(outcome) not in (bool, np.bool_):
            raise unfollowed(f'comparing it gives a {type(outcome).__name__}')
        self._stage().steps.append(_Step(plain, tuple(one._index for one in operands), outcome))
        return outcome

    def array(self, number: Number, dtype: Any) -> Any:
        """The array without axes that kernels read a number from, as ``dtype``."""
        key = number._index, dtype.char
        if key not in self._arrays:
            stage = self._stage()
            at = sum(len(stage.slots) for stage in self._stages)
            recorded_number.must_fit(at, dtype, self.most)
            stage.slots.append((number._index, dtype))
            self._arrays[key] = self.cupy.ndarray((), dtype, self._place.data + at * WIDTH)
        return self._arrays[key]

    def standing(self) -> tuple[int, int]:
        """The step that computes at present. Raises if it is none that is known to take such numbers."""
        frame = recorded_number.computing_frame()
        key = (0, 0) if frame is None else (id(frame.f_code), int(frame.f_lasti))
        if key not in self._operators.at:
            raise unfollowed('code that is not followed computes with it')
        return key

    def reads_here(self) -> bool:
        """Whether the code reads an array by the function that it calls at present, and launches reckon with it."""
        frame = recorded_number.computing_frame()
        return frame is not None and (id(frame.f_code), int(frame.f_lasti)) in self._operators.readers

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For the block, note as a refusal that another class's operator method takes a number; and let functions take
        numbers."""
        at = self._operators.at
        watching = recorded_number.operators_watched(lambda frame: (id(frame.f_code), int(frame.f_lasti)) in at)
        with recorded_number.taking_numbers(self, self._operators.places.values()), watching:
            yield

    def ended(self) -> None:
        """Let go of what only the recording needs."""
        self._numbers.clear()
        for place in self._places:
            place.number = None

    def must_be_given(self) -> None:
        """Raise if CuPy has not handed on a number for each read, or if a launch would draw other random numbers."""
        if self._live is not None:
            must_draw_later(self._live)
        if self._asked != self._read_there:
            raise unfollowed('it is read in another way than by item()')

    def _given(self, number: Number) -> Number:
        self._asked += 1
        return number

    def _new(self, now: Any) -> Number:
        if len(self._kinds) == STEPS:
            raise unfollowed(f'more than {STEPS} are computed')
        self._kinds.append(type(now))
        return Number(self, len(self._kinds) - 1, now)

    def _computed(self, step: _Step, now: Any, key: Any) -> Number:
        self._stage().steps.append(step)
        made = self._new(now)
        if key is not None:
            self._numbers[key] = made
        return made

    # -- at each launch ---------------------------------------------------------------------------------------

    def value(self, source: int) -> Any:
        """A number of the last launch."""
        return self._found[source]

    def _go(self, stage: _Stage) -> None:
        """Read, compute, and bring the numbers to the device, on the current stream."""
        stage.is_done = True
        self._found = self._found[: stage.begins]
        try:
            for value in stage.read():
                self._add(value)
            self._bring(stage, self._place)
        except (ArithmeticError, ValueError, Unfit) as error:
            raise _given_up(stage, f'Reckoning with it raises {error!r}') from None

    def _bring(self, stage: _Stage, place: Any) -> None:
        """Compute, and bring the numbers to the device."""
        with recorded_number.numpys_warnings_raised() if self._by_numpy else nullcontext():
            self._compute(stage)
        numbers = recorded_number.in_bytes([(self._found[index], dtype) for index, dtype in stage.slots])
        if numbers.size:
            to = place.data + stage.first * WIDTH
            to.copy_from_host_async(numbers.ctypes.data, numbers.nbytes, self.cupy.cuda.get_current_stream())

    def _compute(self, stage: _Stage) -> None:
        for plain, indices, outcome in stage.steps:
            value = plain(*[self._found[index] for index in indices])
            if outcome is None:
                self._add(value)
            elif value is not outcome:
                raise _given_up(stage, 'What it is compared with is now on its other side', OtherOutcome)

    def _add(self, value: Any) -> None:
        if type(value) is not self._kinds[len(self._found)]:
            raise Unfit('a number is of another type than while recording')
        self._found.append(value)


class NumberSlots(ReadNumbers):
    """The numbers of each call, for one graph: the host computes with them before the launch, and compares none.

    ``place`` is the graph's copy of what :func:`capturekit.graphed.number_arguments.room` makes; ``values`` are the
    numbers of the call that is recorded.
    """

    most = ROOM_OF_CALLS

    def __init__(self, cupy: Any, place: Any, operators: ReckonedOperators, values: Sequence[Any]) -> None:
        super().__init__(cupy, place, operators)
        self._stages.append(_Stage(0, list, 0, None))
        self.numbers = [self._new(value) for value in values]

    def compared(self, _plain: Callable[..., bool], _operands: tuple[Number, ...]) -> bool:
        """Refuse a comparison."""
        raise unfollowed('it is compared with another number')

    def fill(self, target: Any, values: Sequence[Any]) -> None:
        """Bring the numbers of a call to the device, on CuPy's current stream. Raises Unfit."""
        self._found = []
        try:
            for value in values:
                self._add(value)
            self._bring(self._stages[0], target)
        except (ArithmeticError, ValueError) as error:
            raise Unfit(str(error)) from error


def _given_up(
    stage: _Stage, rule: str, kind: type[errors.AssumptionError] = errors.AssumptionError
) -> errors.AssumptionError:
    return kind(
        'A number that the host reads and computes with',
        location=stage.at,
        rule=f'{rule}, so the program may go another way from here on. The graph was stopped there.',
    )


def numbers_of(cupy: Any, live: OpenCapture, variant: Variant) -> ReadNumbers:
    """Let reads of a variant, and attributes, give numbers with which launches reckon anew."""
    assert live.parts.answers is not None
    reads = [variant.rehearsal.reads[number] for number in sorted(variant.reckoned)]
    place = GUARD.uploads.upload(live, np.zeros(ROOM * WIDTH, 'u1'))
    numbers, others = ReadNumbers(cupy, place, variant.reckonable.operators, reads, live), live.parts.answers.late
    live.parts.answers.late = lambda read, array: numbers.take(read, array) or others(read, array)
    state = [] if variant.carried is None else variant.carried.numbers()
    numbers.take_state([*state, *variant.arguments])
    return numbers


def or_numbers(is_array: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """What recognises arrays in a result, and such numbers."""
    return lambda value: type(value) is Number or is_array(value)


def as_recorded(leaf: Any) -> Any:
    """A number of a result as it was while recording; an array itself."""
    return leaf._now if type(leaf) is Number else leaf


def source_of(leaf: Any) -> int | None:
    """Where launches find what they put in the place of a number; None for arrays."""
    return leaf._index if type(leaf) is Number else None
