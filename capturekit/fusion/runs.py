"""A line of nodes divided into runs, each of which becomes one kernel, and the memory that such a run uses.

A fused kernel does all that its members do to one element, before or after it does so to any other one. So members have
one number of elements, and two members use the same memory only element by element: the same elements with the same
numbers, or none. A member may be moved behind nodes that are no members, if these touch nothing that it touches.

A temporary that is never needed in memory is only a register: it may lie across other memory of the kernel. Each array
that takes the memory of one that is gone is a register of its own, as often as that happens.

Work on one element can be *spread*: each thread of a kernel over many elements does it, and the thread of the first
element writes its result. So nobody in the kernel may read from memory what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from capturekit.analysis.node_memory import Memory
from capturekit.driver.node_accesses import Access, overlap
from capturekit.fusion.elementwise import ElementOperand, Elementwise, Piece
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace, FusedStep
from capturekit.fusion.fused_reduction import uses_number

# -- the shapes in which elements are gone through: brought to their shortest form, and several brought to one --------
#
# CuPy numbers the elements of an iteration in C order. Two arrays belong to one iteration if they have as many
# elements; their axes can be split and joined as long as each element keeps its number.


Shape = tuple[int, ...]


def shortest(shape: Sequence[int], strides: Sequence[int]) -> tuple[Shape, Shape]:
    """The same elements in the same order, with as few axes as possible."""
    lengths: list[int] = []
    steps: list[int] = []
    for length, stride in zip(shape, strides):
        if length == 1:
            continue
        if lengths and steps[-1] == length * stride:
            lengths[-1], steps[-1] = lengths[-1] * length, stride
        else:
            lengths.append(length)
            steps.append(stride)
    return tuple(lengths), tuple(steps)


def common(shapes: Iterable[Shape]) -> Shape | None:
    """The shape with the fewest axes into which all of these, of one size, can be split; None if there is none."""
    found = {1}
    for shape in shapes:
        inner = 1
        for length in reversed(shape):
            inner *= length
            found.add(inner)
    inner_first = sorted(found)
    if any(b % a for a, b in pairwise(inner_first)):
        return None
    return tuple(b // a for a, b in pairwise(inner_first))[::-1]


def split(shape: Shape, strides: Shape, to: Shape) -> Shape:
    """The strides of an array of ``shape`` whose axes are split into those of ``to``."""
    found: list[int] = []
    axes = list(zip(shape, strides))
    length, stride = axes.pop() if axes else (1, 0)
    for wanted in reversed(to):
        while length == 1 and axes:
            length, stride = axes.pop()
        found.append(stride if length > 1 else 0)
        length, stride = max(length // wanted, 1), stride * wanted
    return tuple(reversed(found))


def apart(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """True if surely no two elements share a byte."""
    reach = itemsize
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, shape) if n > 1):
        if stride < reach:
            return False
        reach += stride * (length - 1)
    return True


#: The most members of a run, and the most arrays: beyond these registers run out.
MOST_MEMBERS = 64
MOST_PLACES = 40
#: A kernel may have 4 KB of arguments.
MOST_BYTES = 3500
#: Each thread does so many operations on one element at most.
MOST_ONES = 8
#: The largest number, a complex one.
_NUMBER = 16
#: Beyond every place of a line.
_NEVER = 1 << 62
_ARRANGED = 'it uses memory of the run in another arrangement'
_GONE = 'it uses memory again that the run has used for something else'
_READ = 'it changes an element that every thread reads'
_FULL = 'each thread does as much work on one element as it may'


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


def key_of(operand: ElementOperand) -> Key:
    """The elements of an operand that is an array."""
    return Key(operand.dtype, operand.address, *shortest(operand.shape, operand.strides), operand.pieces)


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
    to, where from, and how many. ``copying``: by a dtype the operation that does such a copy element by element.
    ``reduces``: it is a reduction, which may take in the run in front of it.
    """

    number: int
    does: Elementwise | str
    memory: Sequence[Access] | None
    copies: tuple[int, int, int] | None = None
    copying: Callable[[str], Any] | None = None
    reduces: bool = False


@dataclass
class Run:
    """Members, by their places in the line, and the elements that they use.

    ``does`` is what each member does as a part of the run. ``operands`` has for each member the elements of its
    operands, in their order; None for numbers. ``spread`` are the places of members whose work is spread. ``until`` is
    the place of the node at which the run ended: it could be moved to any place before that.
    """

    members: list[int] = field(default_factory=list)
    does: list[Elementwise] = field(default_factory=list)
    spread: set[int] = field(default_factory=set)
    until: int = _NEVER
    used: dict[Key, Used] = field(default_factory=dict)
    operands: list[tuple[Key | None, ...]] = field(default_factory=list)
    #: By the elements as they are in memory those that the run has in their place now.
    latest: dict[Key, Key] = field(default_factory=dict)
    #: Operands that are read from several parts.
    joins: dict[Key, None] = field(default_factory=dict)
    size: int = 0
    #: Bytes of the numbers among the arguments, at most.
    numbers: int = 0

    def joined(self, place: int, does: Elementwise, spread: bool = False) -> Run | str:
        """This run with one more member; or why that can not be."""
        if len(self.members) >= MOST_MEMBERS:
            return 'the run before it is as long as a run may be'
        made = Run([*self.members, place], [*self.does, does], self.spread | ({place} if spread else set()))
        made.used = {key: replace(one) for key, one in self.used.items()}
        made.operands, made.latest, made.joins = list(self.operands), dict(self.latest), dict(self.joins)
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
        return _FULL if spread and len(made.spread) > MOST_ONES else made

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

    def _use_parts(self, place: int, operand: ElementOperand) -> Key | str:
        """An operand is read from its parts, by index: nothing that the run writes may lie there."""
        for one in operand.pieces:
            key, access = Key(operand.dtype, one.address, one.lengths, one.strides, (), True), one.access(operand.dtype)
            if any(use.writes and overlap(access, use.access) is not False for use in self.used.values()):
                return _ARRANGED
            self.used.setdefault(key, Used(access, True, False, place))
        self.joins[key_of(operand)] = None
        return key_of(operand)

    def _use(self, place: int, operand: ElementOperand) -> Key | str:
        base = key_of(operand)
        access = access_of(base, operand.writes)
        spread = place in self.spread
        if operand.writes and not spread and not apart(base.shape, base.strides, access.itemsize):
            return 'it writes elements more than once'
        key = self.latest.get(base, base)
        known = self.used.get(key)
        if known is not None and known.gone >= 0:
            if not operand.sure:
                return _GONE
            key, known = base._replace(turn=key.turn + 1), None
        if operand.writes and spread and (operand.reads or (known is not None and known.reads)):
            return _READ
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


def meet(a: Iterable[Access], b: Sequence[Access]) -> bool:
    """Whether two nodes need their order."""
    return any((x.writes is not False or y.writes is not False) and overlap(x, y) is not False for x in a for y in b)


def conflict(run: Run, memory: Sequence[Access] | None) -> bool:
    """Whether a node needs its order with a member of a run."""
    return memory is None or meet((use.access for use in run.used.values()), memory)


# -- nodes that copy bytes, taken as elementwise work: so a kernel that has the values writes them itself -------------
#
# CuPy copies an array that lies in one piece (``y[...] = x``, ``x.copy()``) by a node that copies bytes.


#: Dtypes that move so many bytes as one element, whatever they are.
_WORDS = {1: 'uint8', 2: 'uint16', 4: 'uint32', 8: 'uint64'}
_NAME = 'cupy_copy'


def as_elements(item: Item, now: Sequence[Run]) -> Elementwise | None:
    """A copy as work on the elements that a run has in a register; None if no run has what is copied."""
    assert item.copies is not None
    _to, source, nbytes = item.copies
    for run in reversed(now):
        for key, use in run.used.items():
            size = np.dtype(key.dtype).itemsize
            count = prod(key.shape)
            dense = (key.shape, key.strides) in (((), ()), ((count,), (size,)))
            # memory that is read as a truth value may hold other numbers, of which a register has not all bits
            every_bit = key.dtype != 'bool' or not use.reads
            if dense and (key.address, count * size) == (source, nbytes) and use.gone < 0 and every_bit:
                return _copy(item, key.dtype, count)
    return None


def as_one_element(item: Item) -> Elementwise | None:
    """A copy of a few bytes as work on one element."""
    assert item.copies is not None
    dtype = _WORDS.get(item.copies[2])
    return _copy(item, dtype, 1) if dtype is not None else None


def _copy(item: Item, dtype: str, count: int) -> Elementwise | None:
    if item.copying is None or item.copies is None:
        return None
    to, source, _nbytes = item.copies
    size = np.dtype(dtype).itemsize
    shape, strides = ((count,), (size,)) if count > 1 else ((), ())
    if to % size or source % size:
        return None
    output = ElementOperand(dtype, to, shape, strides, None, False, True, True)
    return Elementwise(_NAME, item.copying(dtype), (ElementOperand(dtype, source, shape, strides), output), True)


# -- work on one element as a part of a kernel over many, as the quotient of two sums that scales an array ------------
#
# Each thread of the kernel does it, which takes less time than a kernel of its own. A kernel that reads the result has
# it in a register. A kernel that has nothing to do with it can do it as well: it only has to run when the work may be
# done.


#: So many runs on either side are looked at for work that nobody in them reads.
_BESIDE = 8


def _is_one(run: Run) -> bool:
    """Whether each thread of another kernel can do the work of a run."""
    return run.size == 1 and not any(uses_number(does.operation) for does in run.does)


def _spread(does: Elementwise, size: int) -> Elementwise:
    """The same work done for each of so many elements."""
    operands = [one if one.number is not None else replace(one, shape=(size,), strides=(0,)) for one in does.operands]
    return replace(does, operands=tuple(operands))


def ones_before(does: Elementwise, memory: Memory, now: Sequence[Run]) -> list[list[Run]]:
    """Runs of one element that have to be done before a node: what to take into its run, the most promising first.

    First all of them, then those alone whose results it reads for all of its elements. ``now`` are the runs that can
    still be moved to the node.
    """
    if does.size <= 1:
        return [[]]
    every = [run for run in now if _is_one(run) and conflict(run, memory)]
    whole = {key_of(one)[:2] for one in does.operands if one.number is None and not one.writes and not any(one.strides)}
    read = [run for run in every if any(use.writes and key[:2] in whole for key, use in run.used.items())]
    return [several for n, several in enumerate((every, read, [])) if several or n == 2]


def with_ones(run: Run, ones: Sequence[Run], size: int) -> Run | str:
    """A run over so many elements that does the work of runs of one element before its next member."""
    for one in ones:
        for place, does in zip(one.members, one.does):
            grown = run.joined(place, _spread(does, size), spread=True)
            if isinstance(grown, str):
                return grown
            run = grown
    return run


def ridden(runs: Sequence[Run], line: Sequence[Item]) -> list[Run]:
    """Runs where those over many elements do the work of runs of one element, if they can be moved to one place.

    A run that a reduction may take in does only what can be moved to the reduction.
    """
    left = list(runs)
    for one in runs:
        if not _is_one(one):
            continue
        at = next(n for n, run in enumerate(left) if run is one)
        for n in _beside(at, len(left)):
            run = left[n]
            taken = run.until < len(line) and line[run.until].reduces and one.until <= run.until
            whole = _together(run, one) if run.size > 1 and not taken else None
            if whole is not None:
                left[n] = whole
                del left[at]
                break
    return left


def _beside(at: int, count: int) -> Iterator[int]:
    """The numbers of the runs around one, later ones first."""
    yield from range(at + 1, min(at + 1 + _BESIDE, count))
    yield from range(at - 1, max(at - 1 - _BESIDE, -1), -1)


def _together(run: Run, one: Run) -> Run | None:
    """A run over many elements and one of one element in one place; None where that can not be.

    Where each can be moved behind the other, neither touches what the other one writes.
    """
    until = min(run.until, one.until)
    if max(*run.members, *one.members) >= until:
        return None
    steps = [(place, does, place in run.spread) for place, does in zip(run.members, run.does)]
    steps += [(place, _spread(does, run.size), True) for place, does in zip(one.members, one.does)]
    made = Run()
    for place, does, spread in sorted(steps, key=lambda step: step[0]):
        grown = made.joined(place, does, spread)
        if isinstance(grown, str):
            return None
        made = grown
    made.until = until
    return made


#: So many runs are looked at for each node.
MOST_OPEN = 8


@dataclass
class FusionPlan:
    """The runs of a line, and for other elementwise nodes why they are in none, by place."""

    runs: list[Run]
    why: dict[int, str]


def runs_of(line: Sequence[Item], alone: Collection[int] = ()) -> FusionPlan:
    """Divide a line of nodes, each of which comes after the one before it, into runs of two members and more.

    A run may have one member if that reads an array from several parts.

    Args:
        alone: the places of nodes that begin a run of their own.
    """
    division = _Division(alone)
    for place, item in enumerate(line):
        division.take(place, item)
    made = ridden(division.made, line)
    several = [run for run in made if len(run.members) > 1 or run.joins]
    found = [run for run in several if any(line[place].copies is None for place in run.members)]
    inside = {place for run in found for place in run.members}
    for run in made:
        if len(run.members) == 1 and not run.joins:
            division.why.setdefault(run.members[0], 'no elementwise kernel of the same elements is next to it')
    return FusionPlan(found, {place: text for place, text in division.why.items() if place not in inside})


class _Division:
    """A line that is being divided. ``now`` are the runs that may have further members, the last one used last."""

    def __init__(self, alone: Collection[int]) -> None:
        self._alone = alone
        self._now: list[Run] = []
        self.made: list[Run] = []
        self.why: dict[int, str] = {}

    def take(self, place: int, item: Item) -> None:
        """Put the next node into a run, and end the runs that can not be moved behind it."""
        chosen, does = None, item.does
        if isinstance(does, str) and item.copies is not None:
            does = as_elements(item, self._now) or as_one_element(item) or does
        if isinstance(does, str):
            self.why[place] = does
        else:
            chosen = self._chosen(place, does, item.memory)
        for run in self._now:
            if run is not chosen and conflict(run, item.memory):
                run.until = place
        self._now = [run for run in self._now if run is chosen or run.until != place]
        if chosen is not None:
            self._now = [*(run for run in self._now if run is not chosen), chosen]
        for run in self._now[:-MOST_OPEN]:
            run.until = place + 1
        self._now = self._now[-MOST_OPEN:]

    def _chosen(self, place: int, does: Elementwise, memory: Memory) -> Run | None:
        """The run that takes a node as its last member, which is then in it: a new one where no other does; or None."""
        now = self._now if place not in self._alone else []
        before = ones_before(does, memory, now)
        for run in reversed(now):
            if run.size == does.size and any(self._grown(run, place, does, ones) for ones in before):
                return run
        run = Run()
        if any(self._grown(run, place, does, ones) for ones in before):
            self.made.append(run)
            return run
        return None

    def _grown(self, run: Run, place: int, does: Elementwise, ones: Sequence[Run]) -> bool:
        """Let a run take a node, and the work of runs of one element before it, if it can."""
        before = with_ones(run, ones, does.size)
        grown = before if isinstance(before, str) else before.joined(place, does)
        if isinstance(grown, str):
            self.why[place] = grown
            return False
        vars(run).update(vars(grown))
        self.why.pop(place, None)
        self._now = [one for one in self._now if not any(one is other for other in ones)]
        self.made = [one for one in self.made if not any(one is other for other in ones)]
        return True


# -- the description of a fused kernel, made from a run of nodes and from what of it has to be written ----------------


def harmless(run: Run) -> list[Key]:
    """What a run may write although nobody needs it."""
    return [key for key, use in run.used.items() if use.writes and use.gone < 0 and not use.across]


def kernel_of(run: Run, stores: Mapping[Key, bool]) -> FusedKernel:
    """One kernel for the members of a run. ``stores`` says which elements it writes."""
    written = dict(stores)
    if not any(written.values()):  # a kernel that writes nothing can not be described; one write does no harm
        written[harmless(run)[-1]] = True
    in_memory = [key for key, use in run.used.items() if not key.part and (use.reads or written[key])]
    wholes = [piece.whole for key in run.joins for piece in key.pieces]
    shape = common([*(key.shape for key in in_memory), *wholes]) or (1,)
    places: list[FusedPlace] = []
    number_of: dict[Key, int] = {}
    for key, use in run.used.items():
        if key.part:
            continue
        number_of[key] = len(places)
        if key in in_memory:
            strides = split(key.shape, key.strides, shape)
            places.append(FusedPlace(key.dtype, key.address, shape, strides, use.reads, written[key]))
        else:
            places.append(FusedPlace(key.dtype, 0, (), (), False, False))
    for key in run.joins:
        number_of[key] = len(places)
        places.append(FusedPlace(key.dtype, 0, (), (), True, False, key.pieces))
    numbers: list[tuple[str, bytes]] = []
    steps: list[FusedStep] = []
    for does, keys in zip(run.does, run.operands):
        operands = []
        for operand, used in zip(does.operands, keys):
            if used is None:
                numbers.append((operand.dtype, operand.number))
                operands.append(-len(numbers))
            else:
                operands.append(number_of[used])
        steps.append(FusedStep(does.operation, tuple(operands)))
    return FusedKernel(shape, tuple(places), tuple(numbers), tuple(steps))
