"""Which nodes of a line of nodes can become one kernel.

A fused kernel does all that its members do to one element, before or after it does so to any other one. So members have
one number of elements, and two members use the same memory only element by element: the same elements with the same
numbers, or none. A member may be moved behind nodes that are no members, if these touch nothing that it touches.

A temporary that is never needed in memory is only a register: it may lie across other memory of the kernel. Each array
that takes the memory of one that is gone is a register of its own, as often as that happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from capturekit.analysis.iteration_space import Shape, apart, common, shortest
from capturekit.driver.elementwise import Elementwise, Operand, Piece
from capturekit.driver.node_accesses import Access, overlap

#: The most members of a run, and the most arrays: beyond these registers run out.
MOST_MEMBERS = 64
MOST_PLACES = 40
#: A kernel may have 4 KB of arguments.
MOST_BYTES = 3500
#: The largest number, a complex one.
_NUMBER = 16
#: So many runs are looked at for each node.
MOST_OPEN = 8
_ARRANGED = 'it uses memory of the run in another arrangement'
_GONE = 'it uses memory again that the run has used for something else'


class Key(NamedTuple):
    """What makes two operands the same elements of memory, in the same order."""

    dtype: str
    address: int
    shape: Shape
    strides: Shape
    pieces: tuple[Piece, ...] = ()
    #: Whether it is only a part that is read by index.
    part: bool = False
    #: How often the run has used these elements and something else in their place before.
    turn: int = 0


def key_of(operand: Operand) -> Key:
    """The elements of an operand that is an array."""
    return Key(operand.dtype, operand.address, *shortest(operand.shape, operand.strides), operand.pieces)


def parts_of(operand: Operand) -> list[Key]:
    """The parts that an operand is read from."""
    return [Key(operand.dtype, one.address, one.lengths, one.strides, (), True) for one in operand.pieces]


def access_of(key: Key, writes: bool) -> Access:
    """The memory of these elements."""
    return Access(key.address, key.shape, key.strides, np.dtype(key.dtype).itemsize, writes)


@dataclass
class Used:
    """The elements that a run uses: whether the memory is read first, and whether they are written.

    ``since`` is the place of the member that uses them first. ``gone`` is that of a member that wrote other elements
    across them, so that they must stay in a register; -1 if there is none. ``across``: they lie across other elements
    that the run reads from memory, so that they must stay in a register as well.
    """

    access: Access
    reads: bool
    writes: bool
    since: int
    gone: int = -1
    across: bool = False


@dataclass
class Item:
    """A node of a line. ``does`` is what it computes for each element, or why that is not known or of no use here.

    ``memory`` is all that it touches; None where that is not known. ``copies``: of a copy of bytes on the device, where
    to, where from, and how many.
    """

    number: int
    does: Elementwise | str
    memory: Sequence[Access] | None
    copies: tuple[int, int, int] | None = None


@dataclass
class Run:
    """Members, by their places in the line, and the elements that they use.

    ``operands`` has for each member the elements of its operands, in their order; None for numbers.
    """

    members: list[int] = field(default_factory=list)
    used: dict[Key, Used] = field(default_factory=dict)
    operands: list[tuple[Key | None, ...]] = field(default_factory=list)
    #: By the elements as they are in memory those that the run has in their place now.
    latest: dict[Key, Key] = field(default_factory=dict)
    #: Operands that are read from several parts.
    joins: dict[Key, None] = field(default_factory=dict)
    size: int = 0
    #: Bytes of the numbers among the arguments, at most.
    numbers: int = 0

    def joined(self, place: int, does: Elementwise) -> Run | str:
        """This run with one more member; or why that can not be."""
        if len(self.members) >= MOST_MEMBERS:
            return 'the run before it is as long as a run may be'
        used = {key: Used(**vars(one)) for key, one in self.used.items()}
        made = Run([*self.members, place], used, list(self.operands), dict(self.latest), dict(self.joins))
        made.size = does.size
        made.numbers = self.numbers + _NUMBER * sum(one.number is not None for one in does.operands)
        why = made._use_all(place, does)
        if why:
            return why
        shapes = [key.shape for key in made.used if not key.part]
        if common([*shapes, *(piece.whole for key in made.joins for piece in key.pieces)]) is None:
            return 'its elements are arranged in another way'
        in_memory = [key for key, use in made.used.items() if use.gone < 0 or use.reads]
        if len(in_memory) > MOST_PLACES or _bytes(in_memory) + made.numbers > MOST_BYTES:
            return 'the run before it has as many arrays as a kernel may have'
        return made

    def _use_all(self, place: int, does: Elementwise) -> str:
        """A member uses its operands, those that it only reads first. Return why it can not."""
        keys: dict[int, Key] = {}
        for n, operand in sorted(enumerate(does.operands), key=lambda one: one[1].writes):
            if operand.number is not None:
                continue
            found = self._use_parts(place, operand) if operand.pieces else self._use(place, operand)
            if isinstance(found, str):
                return found
            keys[n] = found
        self.operands.append(tuple(keys.get(n) for n in range(len(does.operands))))
        return ''

    def _use_parts(self, place: int, operand: Operand) -> Key | str:
        """An operand is read from its parts, by index: nothing that the run writes may lie there."""
        for key in parts_of(operand):
            access = access_of(key, False)
            if any(use.writes and overlap(access, use.access) is not False for use in self.used.values()):
                return _ARRANGED
            self.used.setdefault(key, Used(access, True, False, place))
        self.joins[key_of(operand)] = None
        return key_of(operand)

    def _use(self, place: int, operand: Operand) -> Key | str:
        base = key_of(operand)
        access = access_of(base, operand.writes)
        if operand.writes and not apart(base.shape, base.strides, access.itemsize):
            return 'it writes elements more than once'
        key = self.latest.get(base, base)
        known = self.used.get(key)
        if known is not None and known.gone >= 0:
            if not operand.sure:
                return _GONE
            key, known = base._replace(turn=key.turn + 1), None
        across = False
        for other, use in self.used.items():
            if other._replace(turn=0) == base or not (use.writes or operand.writes):
                continue
            if overlap(access, use.access) is False or (use.gone >= 0 and known is not None):
                continue
            if known is not None or not operand.sure or use.since == place:
                return _ARRANGED
            across = across or use.reads
            if use.gone < 0:
                use.gone = place
        if known is None:
            self.used[key] = Used(access, operand.reads, operand.writes, place, across=across)
            self.latest[base] = key
        elif operand.writes and not known.writes:
            known.writes, known.access = True, access
        return key


def _bytes(used: Sequence[Key]) -> int:
    return sum((48 if key.part else 16) + 24 * max(len(key.shape), 1) for key in used) + 64


def conflict(run: Run, memory: Sequence[Access] | None) -> bool:
    """Whether a node needs its order with a member of a run."""
    if memory is None:
        return True
    return any(
        (one.writes is not False or use.writes) and overlap(one, use.access) is not False
        for use in run.used.values()
        for one in memory
    )


@dataclass
class Plan:
    """The runs of a line, and for other elementwise nodes why they are in none, by place."""

    runs: list[Run]
    why: dict[int, str]


def runs_of(line: Sequence[Item], alone: frozenset[int] = frozenset()) -> Plan:
    """Divide a line of nodes, each of which comes after the one before it, into runs of two members and more.

    A run may have one member if that reads an array from several parts.

    Args:
        alone: the places of nodes that begin a run of their own.
    """
    made: list[Run] = []
    now: list[Run] = []
    why: dict[int, str] = {}
    for place, item in enumerate(line):
        chosen = None
        if isinstance(item.does, str):
            why[place] = item.does
        else:
            chosen = _chosen(now if place not in alone else [], place, item.does, why)
        for run in list(now):
            if run is not chosen and conflict(run, item.memory):
                now.remove(run)
        if chosen is None and not isinstance(item.does, str):
            first = Run().joined(place, item.does)
            if isinstance(first, str):
                why[place] = first
                continue
            now.append(first)
            made.append(first)
        elif chosen is not None:
            now.remove(chosen)
            now.append(chosen)
        now[: -MOST_OPEN or None] = []
    found = [run for run in made if len(run.members) > 1 or run.joins]
    inside = {place for run in found for place in run.members}
    for run in made:
        if len(run.members) == 1 and not run.joins:
            why.setdefault(run.members[0], 'no elementwise kernel of the same elements is next to it')
    return Plan(found, {place: text for place, text in why.items() if place not in inside})


def _chosen(now: Sequence[Run], place: int, does: Elementwise, why: dict[int, str]) -> Run | None:
    """The run that takes a node as its last member, which is then in it."""
    for run in reversed(now):
        if run.size != does.size:
            continue
        grown = run.joined(place, does)
        if isinstance(grown, str):
            why[place] = grown
            continue
        vars(run).update(vars(grown))
        why.pop(place, None)
        return run
    return None
