"""Numbers that launches read on the host and reckon with (:mod:`capturekit.functions.reckoned_reads`).

While such a function is recorded, ``array.item()`` gives a
:class:`~capturekit.functions.recorded_number.Number`, whose value code can't see. The graph is cut there. At each
launch the host waits for the part before, reads the value, computes what the code computed of it, in the same order,
and brings the numbers that meet arrays to the device; then the next part is launched. What comes out of a comparison
has to be as it was; else the launch is given up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from capturekit.functions.carried_state import NumberPlace
from capturekit.functions.number_arguments import WIDTH, Unfit
from capturekit.functions.number_functions import taking_numbers
from capturekit.functions.outcomes import ArgumentNumber, OtherOutcome, ReckonedOperators
from capturekit.functions.recordable import must_draw_later
from capturekit.functions.recorded_number import (
    Number,
    computed_now,
    computing_frame,
    in_bytes,
    must_fit,
    numpys_warnings_raised,
    operators_watched,
    unfollowed,
)
from capturekit.functions.variant import Variant
from capturekit.guard import GUARD, OpenCapture
from capturekit.launch.plan import Seam
from capturekit.model import errors
from capturekit.model.host_reads import Read
from capturekit.model.source_line import Place, here

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
    """The numbers of one recording. ``reads`` are those that are reckoned with, and ``operators`` what takes them."""

    def __init__(self, cupy: Any, live: OpenCapture, reads: list[Read], operators: ReckonedOperators) -> None:
        self.cupy, self._live, self._reads = cupy, live, reads
        self._operators = operators
        #: Where the graph puts what is read, and where it finds the numbers: eight bytes each.
        self._room = GUARD.uploads.upload(live, np.zeros(len(reads) * WIDTH, 'u1'))
        self._place = GUARD.uploads.upload(live, np.zeros(ROOM * WIDTH, 'u1'))
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
        now = computed_now(plain, operands)
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
            must_fit(at, dtype, ROOM)
            stage.slots.append((number._index, dtype))
            self._arrays[key] = self.cupy.ndarray((), dtype, self._place.data + at * WIDTH)
        return self._arrays[key]

    def standing(self) -> tuple[int, int]:
        """The instruction that computes at present. Raises if it is none that is known to take such numbers."""
        frame = computing_frame()
        key = (0, 0) if frame is None else (id(frame.f_code), int(frame.f_lasti))
        if key not in self._operators.at:
            raise unfollowed('code that is not followed computes with it')
        return key

    def reads_here(self) -> bool:
        """Whether the code reads an array by the function that it calls at present, and launches reckon with it."""
        frame = computing_frame()
        return frame is not None and (id(frame.f_code), int(frame.f_lasti)) in self._operators.readers

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For the block, note as a refusal that another class's operator method takes a number; and let functions take
        numbers."""
        at = self._operators.at
        watching = operators_watched(lambda frame: (id(frame.f_code), int(frame.f_lasti)) in at)
        with taking_numbers(self, self._operators.places.values()), watching:
            yield

    def ended(self) -> None:
        """Let go of what only the recording needs."""
        self._numbers.clear()
        for place in self._places:
            place.number = None

    def must_be_given(self) -> None:
        """Raise if CuPy has not handed on a number for each read, or if a launch would draw other random numbers."""
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
            with numpys_warnings_raised() if self._by_numpy else nullcontext():
                self._compute(stage)
            numbers = in_bytes([(self._found[index], dtype) for index, dtype in stage.slots])
        except (ArithmeticError, ValueError, Unfit) as error:
            raise _given_up(stage, f'Reckoning with it raises {error!r}') from None
        if numbers.size:
            to = self._place.data + stage.first * WIDTH
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


def _given_up(
    stage: _Stage, rule: str, kind: type[errors.AssumptionError] = errors.AssumptionError
) -> errors.AssumptionError:
    return kind(
        'A number that the host reads and computes with',
        location=stage.at,
        rule=f'{rule}, so the program may go another way from here on. The graph was stopped there.',
        remedy='Use @ck.graphed, which runs such a call eagerly.',
    )


def numbers_of(cupy: Any, live: OpenCapture, variant: Variant, operators: ReckonedOperators) -> ReadNumbers:
    """Let reads of a variant, and attributes, give numbers with which launches reckon anew."""
    assert live.parts.answers is not None
    reads = [variant.rehearsal.reads[number] for number in sorted(variant.reckoned)]
    numbers, others = ReadNumbers(cupy, live, reads, operators), live.parts.answers.late
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
