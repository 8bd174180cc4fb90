"""Readings of a clock that can't reach a result: code that times itself and keeps the times in attributes.

A reading is understood if the statement is ``self.begun = time.time()`` or ``self.took = time.time() - self.begun``,
and if no code that ran names these attributes in any other statement but ``self.took = self.ended - self.begun``. A
launch then takes no readings: the objects were made by the call, and nobody can see them afterwards.
"""

from __future__ import annotations

import dis
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

from capturekit.functions.instructions import single_steps
from capturekit.model.class_layout import MISSING, bases_of, dictionary_of_class, made_by_class_statement
from capturekit.model.host_reads import Site

#: The functions that read a clock and do nothing else.
CLOCKS = (
    time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic, time.monotonic_ns,
    time.process_time, time.process_time_ns, time.thread_time, time.thread_time_ns,
)  # fmt: skip
_VARIABLES = ('LOAD_FAST', 'LOAD_FAST_BORROW', 'LOAD_DEREF')
_PREPARATIONS = ('PUSH_NULL', 'PRECALL')


class Reading(NamedTuple):
    """A statement that reads a clock.

    ``call``: the offset of the call; ``objects``: the variables that hold the objects; ``stored``: the attribute that
    gets the time; ``subtracted``: the one that is subtracted, or ''; ``steps``: where these are in the code.
    """

    call: int
    objects: tuple[str, ...]
    stored: str
    subtracted: str
    steps: frozenset[int]


def readings_of(code: CodeType) -> Iterator[Reading]:
    """The statements of code that read a clock and put the time into an attribute."""
    steps = [one for one in single_steps(code) if one.opname not in _PREPARATIONS]
    for number, step in enumerate(steps):
        if step.opname == 'CALL' and step.arg == 0:
            found = _reading(steps, number)
            if found is not None:
                yield found


def _reading(steps: list[dis.Instruction], call: int) -> Reading | None:
    """The statement whose call of a clock is there."""
    rest = steps[call + 1 : call + 6]
    names = [one.opname for one in rest]
    if any(one.is_jump_target for one in rest):
        return None
    if names[1:2] == ['STORE_ATTR'] and names[0] in _VARIABLES:
        return Reading(steps[call].offset, (rest[0].argval,), rest[1].argval, '', frozenset({rest[1].offset}))
    if len(rest) < 5 or not _subtracts(rest[2]) or names[1] != 'LOAD_ATTR' or names[4] != 'STORE_ATTR':
        return None
    if names[0] not in _VARIABLES or names[3] not in _VARIABLES or 'NULL' in rest[1].argrepr:
        return None
    return Reading(
        steps[call].offset, (rest[0].argval, rest[3].argval), rest[4].argval, rest[1].argval,
        frozenset({rest[1].offset, rest[4].offset}),
    )  # fmt: skip


class Difference(NamedTuple):
    """A statement that subtracts two attributes of an object and puts the difference into a third.

    ``steps``: where the attributes are named in the code.
    """

    read: tuple[str, str]
    stored: str
    steps: frozenset[int]


def differences_of(code: CodeType) -> Iterator[Difference]:
    """The statements of code that put a difference of two attributes of an object into a third of the same object."""
    steps = single_steps(code)
    for number in range(len(steps) - 6):
        part = steps[number : number + 7]
        loads, kinds = (part[0], part[2], part[5]), [one.opname for one in part]
        if any(one.is_jump_target for one in part[1:]) or kinds[6] != 'STORE_ATTR' or not _subtracts(part[4]):
            continue
        same = len({one.argval for one in loads}) == 1 and all(one.opname in _VARIABLES for one in loads)
        if same and kinds[1] == kinds[3] == 'LOAD_ATTR' and not any('NULL' in part[n].argrepr for n in (1, 3)):
            places = frozenset(part[n].offset for n in (1, 3, 6))
            yield Difference((part[1].argval, part[3].argval), part[6].argval, places)


def _subtracts(one: dis.Instruction) -> bool:
    return one.opname == 'BINARY_OP' and one.argrepr == '-'


def reckoned_from(times: set[str], codes: list[CodeType]) -> set[str]:
    """These attributes and those that get differences of them, of these, and so on."""
    found = set(times)
    every = [one for code in codes for one in differences_of(code)]
    while more := {one.stored for one in every if not found.isdisjoint(one.read)} - found:
        found |= more
    return found


class TimeKept(NamedTuple):
    """The attributes that keep a time, and the classes of the objects that have these."""

    names: tuple[str, ...]
    classes: tuple[type, ...]


def is_clock(function: Any) -> bool:
    """Whether a function reads a clock and does nothing else."""
    return any(function is clock for clock in CLOCKS)


class ClockReadings:
    """The clocks that a run has read.

    Attributes:
        times: the attributes that keep times, by name, with the sentence for the case that they count.
        classes: the classes of the objects that have these.
        readings: where the user's code reads a clock, with the sentence for the case that the time counts.
        kept: what keeps the time of each reading there; None: not seen at once.
        followed: the attributes that times were followed to.
    """

    def __init__(self) -> None:
        self.times: dict[str, str] = {}
        self.classes: list[type] = []
        self.readings: dict[Site, str] = {}
        self.kept: dict[Site, list[TimeKept | None]] = {}
        self.followed: dict[str, str] = {}

    def note(self, frame: FrameType, function: Any, sentence: str) -> None:
        """Note a call of a clock in a frame."""
        site = Site(frame.f_code, frame.f_lasti)
        self.readings.setdefault(site, sentence)
        self.kept.setdefault(site, []).append(time_kept(frame, function))

    def keeps(self, name: str) -> bool:
        """Whether attributes of this name keep times."""
        return name in self.times or name in self.followed

    def take_apart(self, followed: dict[str, str], others: list[Site]) -> list[str]:
        """Note where times were followed to. Returns what to say of the others, unless an attribute keeps them."""
        self.followed = followed
        said = []
        for site in others:
            for kept in self.kept[site]:
                if kept is None:
                    said.append(self.readings[site])
                    continue
                for name in kept.names:
                    self.times.setdefault(name, self.readings[site])
                self.classes += kept.classes
        return said


def time_kept(frame: FrameType, function: Any) -> TimeKept | None:
    """Where the time is kept that a call of a clock in a frame reads; None if it may get to another place."""
    if not is_clock(function):
        return None
    for reading in readings_of(frame.f_code):
        if reading.call == frame.f_lasti:
            names = (reading.stored, reading.subtracted) if reading.subtracted else (reading.stored,)
            classes = tuple(type(frame.f_locals.get(variable)) for variable in reading.objects)
            kept = all(only_keeps(cls, name) for cls in classes for name in names)
            return TimeKept(names, classes) if kept else None
    return None


def only_keeps(cls: type, name: str) -> bool:
    """Whether instances of a class keep an attribute without any code of the class seeing it."""
    for base in bases_of(cls):
        if base is object:
            continue
        inside = dictionary_of_class(base)
        if not made_by_class_statement(base) or '__setattr__' in inside or '__getattribute__' in inside:
            return False
        found = inside.get(name, MISSING)
        if found is not MISSING and hasattr(type(found), '__set__'):
            return False
    return '__getattr__' not in {key for base in bases_of(cls) for key in dictionary_of_class(base)}


def only_in_readings(code: CodeType, name: str) -> bool:
    """Whether code names an attribute only in statements that read a clock, or that subtract times."""
    allowed = {offset for reading in readings_of(code) for offset in reading.steps}
    allowed |= {offset for difference in differences_of(code) for offset in difference.steps}
    texts = [text for text in code.co_consts if type(text) is str]
    texts += [text for part in code.co_consts if type(part) in (tuple, frozenset) for text in part if type(text) is str]
    return name not in texts and all(
        one.offset in allowed for one in single_steps(code) if one.argval == name and one.opcode in dis.hasname
    )
