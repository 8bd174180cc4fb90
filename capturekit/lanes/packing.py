"""Temporaries of a graph laid into as little memory as its edges allow: who may run beside whom shares no byte.

Two temporaries may share bytes if all nodes that use the one come before all that use the other, by the edges that the
graph is to have and by those that it was recorded with: then both orders give the same in the packed memory. Of the
places that fit equally well, the one that was given up last is taken, because a device's cache still holds it. (Best
fit: D. Knuth, "The Art of Computer Programming", 2.5.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from capturekit.model.dag import Order

#: Places are multiples of this, as the addresses are that CUDA gives.
UNIT = 512
#: Of the places that are free for a temporary, so many are looked at: those that were given up last.
_LOOKED_AT = 48


@dataclass(frozen=True)
class TemporarySpan:
    """A temporary of ``size`` bytes, and the nodes that use it."""

    size: int
    uses: tuple[int, ...]


@dataclass(frozen=True)
class PackedLayout:
    """The first byte of each temporary in one piece of memory, and how many bytes this has."""

    offsets: tuple[int, ...]
    size: int


def packed(orders: Sequence[Order], spans: Sequence[TemporarySpan]) -> PackedLayout:
    """Lay temporaries into one piece of memory.

    Args:
        orders: each of them has to allow that two temporaries share bytes. They are laid in the sequence of the first.
        spans: the temporaries. One that no node uses takes no bytes.
    """
    place = {node: n for n, node in enumerate(orders[0].sequence)}
    above = [_before_each(order, place) for order in orders]
    arena, offsets = _Arena(), [0] * len(spans)
    uses = [_bits(place[node] for node in span.uses) for span in spans]
    for number in sorted(range(len(spans)), key=lambda n: (uses[n] & -uses[n], n)):
        if uses[number]:
            earlier = -1
            for node in spans[number].uses:
                for before in above:
                    earlier &= before[node]
            size = -(-max(spans[number].size, 1) // UNIT) * UNIT
            offsets[number] = arena.take(size, uses[number], earlier)
    return PackedLayout(tuple(offsets), arena.end)


def _bits(places: Iterator[int]) -> int:
    found = 0
    for one in places:
        found |= 1 << one
    return found


def _before_each(order: Order, place: Mapping[int, int]) -> list[int]:
    """The nodes that come before each, as bits by their place."""
    found = [0] * len(order.before_each)
    for node in order.sequence:
        for a in order.before_each[node]:
            found[node] |= found[a] | 1 << place[a]
    return found


class _Arena:
    """Memory in pieces, each with the nodes of the temporary that has it last, as bits."""

    def __init__(self) -> None:
        self.end = 0
        self._lows: list[int] = []
        self._pieces: dict[int, tuple[int, int]] = {}
        #: The pieces by the last node of who has them, and these nodes as bits.
        self._by_last: dict[int, set[int]] = {}
        self._lasts = 0

    def take(self, size: int, uses: int, earlier: int) -> int:
        """Give so many bytes to the nodes ``uses``: others may have had them that are all among ``earlier``."""
        best: tuple[int, int, int] | None = None
        for low in self._given_up(earlier):
            begin, end = self._around(low, size, earlier)
            short = end - begin < size
            if not short or end == self.end:
                found = (int(short), abs(end - begin - size), begin)
                best = found if best is None or found[:2] < best[:2] else best
            if best is not None and best[:2] == (0, 0):
                break
        begin = self.end if best is None else best[2]
        self._put(begin, begin + size, uses)
        return begin

    def _given_up(self, earlier: int) -> Iterator[int]:
        """Pieces that are free for who comes after ``earlier``, the latest first."""
        wanted, looked_at = earlier & self._lasts, 0
        while wanted and looked_at < _LOOKED_AT:
            last = wanted.bit_length() - 1
            wanted ^= 1 << last
            for low in sorted(self._by_last[last]):
                if self._is_free(low, earlier):
                    looked_at += 1
                    yield low

    def _is_free(self, low: int, earlier: int) -> bool:
        uses = self._pieces[low][1]
        return uses & earlier == uses

    def _around(self, low: int, size: int, earlier: int) -> tuple[int, int]:
        """The free pieces around one, until they have so many bytes."""
        begin, end = low, self._pieces[low][0]
        while end - begin < size and end < self.end and self._is_free(end, earlier):
            end = self._pieces[end][0]
        at = bisect_left(self._lows, begin)
        while end - begin < size and at > 0 and self._is_free(self._lows[at - 1], earlier):
            at -= 1
            begin = self._lows[at]
        return begin, end

    def _put(self, low: int, high: int, uses: int) -> None:
        """Let nodes have the bytes of the pieces from ``low`` on, and new ones behind the last."""
        at = bisect_left(self._lows, low)
        while at < len(self._lows) and self._lows[at] < high:
            old = self._lows.pop(at)
            end, others = self._pieces.pop(old)
            self._note(old, others, False)
            if end > high:
                self._add(high, end, others)
        self._add(low, high, uses)
        self.end = max(self.end, high)

    def _add(self, low: int, high: int, uses: int) -> None:
        insort(self._lows, low)
        self._pieces[low] = high, uses
        self._note(low, uses, True)

    def _note(self, low: int, uses: int, there: bool) -> None:
        last = uses.bit_length() - 1
        lows = self._by_last.setdefault(last, set())
        (lows.add if there else lows.discard)(low)
        self._lasts = self._lasts | 1 << last if lows else self._lasts & ~(1 << last)
