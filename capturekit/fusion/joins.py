"""Temporaries that copies fill, read straight from what was copied.

``roll``, ``concatenate`` of a few arrays and slices that are assigned make a new array by copies of its parts. A node
that reads such an array element by element can take each element from the source of its part, by index. If nobody else
reads the array, the copies are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

import numpy as np

from capturekit.driver.node_accesses import Access, overlap
from capturekit.fusion.elementwise import ElementOperand, Elementwise, Piece
from capturekit.fusion.iteration_space import common, shortest, split
from capturekit.fusion.runs import Item, access_of, key_of

#: Of so many parts at most.
MOST_PARTS = 4
#: Larger arrays have places that do not fit into 32 bits.
MOST_BYTES = (1 << 31) - 1
#: So many copies are looked at for each node.
MOST_LIVE = 32
_ABSORBED = 'it is part of a fused kernel'


@dataclass(frozen=True)
class Copied:
    """A node that copies elements: its place in the line, where to and where from."""

    place: int
    to: ElementOperand
    source: ElementOperand


@dataclass
class FusionJoins:
    """A line of nodes in which some read from the sources of copies.

    Attributes:
        line: the nodes; copies that may go touch nothing. used: by a node's place those of the copies it does without.
    """

    line: list[Item]
    used: dict[int, set[int]]


def joined(line: Sequence[Item], stays: frozenset[int]) -> FusionJoins:
    """Let the nodes of a line read from the sources of copies, but for copies at the places ``stays``."""
    found = FusionJoins(list(line), {})
    live: list[Copied] = []
    for place, item in enumerate(line):
        if isinstance(item.does, Elementwise) and live:
            found.line[place] = _reading(item, place, live, found.used)
        live = [one for one in live[-MOST_LIVE:] if _holds(one, item)]
        copied = _copied(place, item)
        if copied is not None and place not in stays:
            live.append(copied)
    for place in set().union(*found.used.values()):
        found.line[place] = Item(line[place].number, _ABSORBED, ())
    return found


def _copied(place: int, item: Item) -> Copied | None:
    if item.copies is not None:
        to_address, address, nbytes = item.copies
        return Copied(place, _bytes(to_address, nbytes), _bytes(address, nbytes))
    does = item.does
    if not isinstance(does, Elementwise) or not does.copies:
        return None
    (source,), (to,) = ([one for one in does.operands if one.writes is writes] for writes in (False, True))
    return Copied(place, to, source)


def _bytes(address: int, nbytes: int) -> ElementOperand:
    return ElementOperand('uint8', address, (nbytes,), (1,))


def _holds(one: Copied, item: Item) -> bool:
    """Whether a copy and its source are as they were after a node."""
    if item.memory is None:
        return False
    written = [access for access in item.memory if access.writes is not False]
    ends = [access_of(key_of(end), False) for end in (one.to, one.source)]
    return not any(overlap(access, end) is not False for access in written for end in ends)


def _reading(item: Item, place: int, live: Sequence[Copied], used: dict[int, set[int]]) -> Item:
    """A node that reads from the sources of copies where it can."""
    does = item.does
    assert isinstance(does, Elementwise)
    operands, instead = [], set()
    for operand in does.operands:
        parts = None if operand.number is not None or operand.writes else _parts(operand, live)
        if parts is not None:
            instead |= {one.place for one, _piece in parts}
            operand = _instead(operand, [piece for _one, piece in parts])
        operands.append(operand)
    if not instead:
        return item
    used[place] = instead
    memory = [access for operand in operands if operand.number is None for access in accesses(operand)]
    return Item(item.number, replace(does, operands=tuple(operands)), memory)


def _instead(operand: ElementOperand, pieces: Sequence[Piece]) -> ElementOperand:
    """An operand that is read from pieces; one element has a single place, whatever it is copied from."""
    if prod(operand.shape) == 1:
        return replace(operand, address=pieces[0].address)
    return replace(operand, pieces=tuple(pieces))


def accesses(operand: ElementOperand) -> Iterator[Access]:
    """The memory that an operand uses."""
    if not operand.pieces:
        yield access_of(key_of(operand), operand.writes)
    size = np.dtype(operand.dtype).itemsize
    for piece in operand.pieces:
        yield Access(piece.address, piece.lengths, piece.strides, size, False)


def _parts(operand: ElementOperand, live: Sequence[Copied]) -> list[tuple[Copied, Piece]] | None:
    """The copies that fill an array in one piece, each element once; None if there are none such."""
    item, key = np.dtype(operand.dtype).itemsize, key_of(operand)
    count = prod(key.shape)
    if key.shape not in ((), (count,)) or key.strides not in ((), (item,)) or count * item > MOST_BYTES:
        return None
    whole = access_of(key, False)
    inside = [one for one in live if overlap(access_of(key_of(one.to), True), whole) is not False]
    pieces = [_piece(one, operand, count) for one in inside]
    if not 1 <= len(pieces) <= MOST_PARTS or sum(prod(one.lengths) for one in pieces if one is not None) != count:
        return None
    written = [access_of(key_of(one.to), True) for one in inside]
    if any(overlap(a, b) is not False for a, b in combinations(written, 2)):
        return None
    return [(one, piece) for one, piece in zip(inside, pieces) if piece is not None]


def _piece(one: Copied, operand: ElementOperand, count: int) -> Piece | None:
    """A copy as a part of an array of so many elements in one piece."""
    item = np.dtype(operand.dtype).itemsize
    ends = []
    for end in (one.to, one.source):
        shape, strides = shortest(end.shape, end.strides)
        if end.dtype == 'uint8' and operand.dtype != 'uint8':  # a copy of bytes that lie one after the other
            if shape not in ((), (prod(shape),)) or prod(shape) % item:
                return None
            shape, strides = (prod(shape) // item,), (item,)
        elif end.dtype != operand.dtype:
            return None
        ends.append((shape, strides))
    lengths = common(shape for shape, _strides in ends)
    if lengths is None:
        return None
    to, source = (split(*end, lengths) for end in ends)
    # a copy may go through its elements in any order: here in that of the array
    axes = sorted(zip(to, lengths, source), key=lambda axis: -axis[0])
    if any(stride <= 0 or stride % item for stride, _length, _source in axes):
        return None
    if not axes or axes[-1][0] != item:
        axes.append((item, 1, 0))
    steps, lengths, source = zip(*((stride // item, *more) for stride, *more in axes))
    place, rest = divmod(one.to.address - operand.address, item)
    if rest or place < 0 or any(a % b for a, b in zip([count, *steps], steps)):
        return None
    whole = tuple(a // b for a, b in zip([count, *steps], steps))
    offsets = []
    for step in steps:
        offset, place = divmod(place, step)
        offsets.append(offset)
    if any(o + n > w for o, n, w in zip(offsets, lengths, whole)):
        return None
    return Piece(one.source.address, lengths, source, whole, tuple(offsets))
