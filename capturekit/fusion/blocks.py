"""Where values lie that one fused kernel hands to later ones: in as few blocks of memory as can be.

A recorded graph uses one temporary's memory again for the next as CuPy's pool hands it out, and a result often gets a
block that temporaries had before. After fusing, few of these temporaries are left. They are gathered in blocks of their
own, each where that one lay which was needed no longer most recently: so a result's block holds nothing else, and calls
of a graphed function can let the nodes write into the caller's array instead of copying the result. Only values that
nobody but fused kernels of one row of nodes touches are moved, and only into memory that holds nothing but such values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from capturekit.analysis.node_memory import FreeMemory, Memory
from capturekit.driver.node_accesses import Access
from capturekit.fusion.fused_kernel import FusedKernel, FusedPlace
from capturekit.fusion.lines import Definition, Fusing, Fusion
from capturekit.model.dag import Order

#: Values of fewer bytes in all stay where they are: to copy a small result takes no longer than to change a node.
LEAST_BYTES = 8 << 20
#: CuPy's memory blocks begin at multiples of this.
_ALIGNED = 512
#: A value that one kernel hands to the next needs no more blocks than these, with the one that it lies in.
_SPARE = 2
#: Of more accesses nothing is moved: looking at each with each takes too long.
_MOST = 4096


@dataclass(frozen=True)
class _Use:
    """An access of a node: its place in the row of nodes, and the address in a fused kernel that it is made by.

    ``at`` is the number of the kernel's place, and that of the piece there; None for what can not be moved.
    """

    row: int
    access: Access
    at: tuple[int, int] | None = None


@dataclass
class _Value:
    """What a fused kernel writes, with all who read it; ``until`` is the place of the last one in the row.

    ``over``: the place of the node that writes over all of it; -1 if there is none.
    """

    low: int
    high: int
    uses: list[_Use] = field(default_factory=list)
    over: int = -1

    @property
    def since(self) -> int:
        """The place of the kernel that writes it."""
        return self.uses[0].row

    @property
    def until(self) -> int:
        """The place of the last kernel that reads it."""
        return self.uses[-1].row


def gather(fusion: Fusion, known: Definition, recorded: Sequence[Memory]) -> None:
    """Let the values between the kernels of a fusion lie in few blocks; ``fusion`` is changed.

    ``known`` is the definition without the nodes that are left out; ``recorded`` what all nodes touch.
    """
    memory, free = known.memory, known.free
    row = _row(fusion, len(memory))
    kernels = {one.nodes[-1]: n for n, one in enumerate(fusion.kernels)}
    if any(memory[node] is None and node not in known.blind for node in row if node not in kernels):
        return
    uses: list[_Use] = []
    for place, node in enumerate(row):
        if node in kernels:
            uses += _uses(place, fusion.kernels[kernels[node]])
        else:
            uses += [_Use(place, one) for one in memory[node] or ()]
    unknown = [place for place, node in enumerate(row) if node not in kernels and memory[node] is None]
    values = _values(uses, free, unknown) if len(uses) <= _MOST else []
    if sum(high - low for low, high in {(one.low, one.high) for one in values}) < LEAST_BYTES:
        return
    homes = sorted([*_homes(values, uses, free), *_spare(values, uses, free, recorded)])
    if any(a[1] > b[0] for a, b in pairwise(homes)):
        return
    for place, by in housed(values, homes).items():
        n = kernels[row[place]]
        kernel = fusion.kernels[n].kernel
        assert isinstance(kernel, FusedKernel)
        fusion.kernels[n] = replace(fusion.kernels[n], kernel=_aimed(kernel, by))


def _row(fusion: Fusion, count: int) -> list[int]:
    """The nodes that are left, each of which comes after the one before it; [] if they are no row."""
    gone = set(fusion.gone)
    order = Order(count, fusion.edges)
    left = [node for node in order.sequence if node not in gone]
    return left if all(order.before(a, b) for a, b in pairwise(left)) else []


def _uses(row: int, one: Fusing) -> Iterator[_Use]:
    """The accesses of a fused kernel: what it reads first."""
    movable = isinstance(one.kernel, FusedKernel)
    for n, place in enumerate(one.kernel.places):
        for k, part in enumerate(place.parts):
            yield _Use(row, part.access(False), (n, k) if movable else None)
        if place.loads and not place.pieces:
            yield _Use(row, place.access(False), (n, -1) if movable and not place.stores else None)
    for n, place in enumerate(one.kernel.places):
        if place.stores:
            yield _Use(row, place.access(True), (n, -1) if movable and not place.loads else None)


def _values(uses: Sequence[_Use], free: FreeMemory, unknown: Sequence[int]) -> list[_Value]:
    """What fused kernels write and only fused kernels read, until it is written over as a whole or for good.

    ``unknown``: the places of nodes that may read memory which is not free.
    """
    found = []
    for number, use in enumerate(uses):
        low, high = use.access.extent
        if use.access.writes and use.at is not None and use.access.dense:
            value = _Value(low, high, [use])
            if _followed(value, uses[number + 1 :]):
                hidden = value.over >= 0 and not any(value.since < place < value.over for place in unknown)
                found += [value] if hidden or not [*free.rest(low, high)] else []
    return found


def _followed(value: _Value, later: Sequence[_Use]) -> bool:
    """Find who reads a value. False where it can not be moved."""
    for use in later:
        low, high = use.access.extent
        if low >= value.high or high <= value.low:
            continue
        inside = value.low <= low and high <= value.high
        if use.access.writes is not False:
            value.over = use.row
            whole = use.access.exact and use.access.dense and (low, high) == (value.low, value.high)
            return whole and use.row > value.since
        if not inside or use.at is None or use.row == value.since:
            return False
        value.uses.append(use)
    return True


def _homes(values: Sequence[_Value], uses: Sequence[_Use], free: FreeMemory) -> list[tuple[int, int]]:
    """The memory in which nothing but such values ever lies."""
    mine = {id(use) for one in values for use in one.uses}
    others = FreeMemory(use.access.extent for use in uses if id(use) not in mine)
    every = sorted({(one.low, one.high) for one in values})
    return [one for one in every if [*others.rest(*one)] == [one] and not [*free.rest(*one)]]


def _spare(
    values: Sequence[_Value], uses: Sequence[_Use], free: FreeMemory, recorded: Sequence[Memory]
) -> list[tuple[int, int]]:
    """Blocks of temporaries that no node uses any more, as large as the largest value."""
    size = max((one.high - one.low for one in values), default=0)
    taken = FreeMemory(use.access.extent for use in uses)
    found: list[tuple[int, int]] = []
    filled = [one for several in recorded for one in several or () if one.writes and one.exact and one.dense]
    for low, high in sorted({one.extent for one in filled}):
        apart = not found or found[-1][1] <= low
        if size and high - low >= size and apart and [*taken.rest(low, high)] == [(low, high)]:
            found += [] if [*free.rest(low, high)] else [(low, high)]
        if len(found) == _SPARE:
            break
    return found


def housed(values: Sequence[_Value], homes: Sequence[tuple[int, int]]) -> dict[int, dict[tuple[int, int], int]]:
    """For each place in the row the distances by which the addresses of a kernel move; {} if not all find room."""
    busy = dict.fromkeys(homes, -1)
    found: dict[int, dict[tuple[int, int], int]] = {}
    for value in sorted(values, key=lambda one: one.since):
        size = value.high - value.low
        able = [
            home
            for home, until in busy.items()
            if until < value.since and home[1] - home[0] >= size and (home[0] - value.low) % _ALIGNED == 0
        ]
        if not able:
            if any(low < value.high and value.low < high for low, high in homes):
                return {}
            continue  # it stays, and is in nobody's way
        home = max(able, key=lambda one: (busy[one], -(one[1] - one[0])))
        busy[home] = value.until
        for use in value.uses if home[0] != value.low else ():
            assert use.at is not None
            found.setdefault(use.row, {})[use.at] = home[0] - value.low
    return found


def _aimed(kernel: FusedKernel, by: dict[tuple[int, int], int]) -> FusedKernel:
    """A kernel some of whose addresses lie so much further."""
    places: list[FusedPlace] = []
    for n, place in enumerate(kernel.places):
        pieces = tuple(replace(one, address=one.address + by.get((n, k), 0)) for k, one in enumerate(place.pieces))
        places.append(replace(place, address=place.address + by.get((n, -1), 0), pieces=pieces))
    return replace(kernel, places=tuple(places))
