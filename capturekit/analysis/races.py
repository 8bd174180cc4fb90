"""``graph.races()``: nodes that touch the same memory, one of them writing, and no path of edges between them.

A launch runs such a pair in any order, or at once, and the order may be another one each time. What the nodes touch
comes from their arguments, as bytes: disjoint views of one array are no race, and a block that was handed out again on
another lane is. CUDA C++ Programming Guide, "Graph Structure".
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

from capturekit.analysis.node_view import Look, Node
from capturekit.driver.node_accesses import Access, Touched, covers, linear, overlap, together
from capturekit.launch.array_extent import extent
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.plan import Part
from capturekit.model.counted import counted
from capturekit.model.dag import Order
from capturekit.model.shown import Shown

#: The most accesses of one node that are compared with each other, and the most reads with another read.
_MANY = 64
#: The word for an access, by whether it writes.
DOES = {True: 'writes', False: 'reads', None: 'reads or writes'}


@dataclass
class Observed:
    """The observation of nodes that ran alone.

    Attributes:
        writes: by a kernel's name, an argument's number and the offset of an address in it, whether anything there had
            changed afterwards. Unchanged memory is taken as only read.
        places: by a node's number, argument and offset, the address of a byte that had changed.
    """

    writes: dict[tuple[str, int, int], bool] = field(default_factory=dict)
    places: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def notes(self) -> Iterator[str]:
        """Notes on memory that is taken as only read, because it did not change."""
        read: dict[str, set[int]] = {}
        for (name, argument, _offset), writes in self.writes.items():
            if not writes:
                read.setdefault(name, set()).add(argument)
        for name, arguments in read.items():
            told = ', '.join(map(str, sorted(arguments)))
            yield f'taken as only read, because it was unchanged after {name} had run: its argument {told}'


@dataclass(frozen=True)
class Race:
    """Two nodes that touch the same memory in no order.

    Attributes:
        first, second: the nodes, as they were recorded.
        memory: which memory, in words: a variable's name where one is known.
        address, nbytes: where what both touch lies, from the first byte to the last.
        writes: what each of them does there: True, False, or None where that is not known.
        certain: False where it is not known that one of the two writes, or that both touch the same byte.
        count: pairs of nodes that the same two lines made, on the same lanes; this is the first.
        order, outcome: on the simulated device, an order of nodes by number that the edges allow, and the memory whose
            contents it makes differ from those of the order of recording.
    """

    first: Node
    second: Node
    memory: str
    address: int
    nbytes: int
    writes: tuple[bool | None, bool | None]
    certain: bool
    count: int = 1
    order: tuple[int, ...] = ()
    outcome: str = ''

    @property
    def missing(self) -> tuple[int, int]:
        """The edge that is missing, as a pair of nodes' numbers."""
        return self.first.number, self.second.number

    @property
    def remedy(self) -> str:
        """What to write, and where."""
        a, b = self.first, self.second
        if a.lane is None or b.lane is None or a.lane == b.lane:
            seen = '' if a.at is not None else ' Record with `lines=True` to see their lanes and lines.'
            return f'Put an edge from node {a.number} to node {b.number}.{seen}'
        where = ''.join(f', {word} {node.at}' for word, node in (('after', a), ('before', b)) if node.at is not None)
        return (
            f'Let lane {b.lane} wait for lane {a.lane}{where}: '
            f'`lane{b.lane}.wait_event(lane{a.lane}.record())`; or do both on one lane.'
        )

    def __str__(self) -> str:
        head = 'race' if self.certain else 'possible race'
        lines = [
            f'{head}: {self.memory} is accessed in no fixed order'
            + (f' ({counted(self.count, "pair")})' if self.count > 1 else '')
        ]
        lines += [f'  {DOES[w]}: node {node}' for w, node in zip(self.writes, (self.first, self.second))]
        if self.outcome:
            words = [str(n) for n in self.order]
            order = ', '.join(words if len(words) <= 16 else [*words[:8], '...', *words[-7:]])
            lines += [f'  in the order {order}: {self.outcome}']
        return '\n'.join([*lines, f'  {self.remedy}'])


@dataclass(repr=False)
class Races(Shown):
    """What :meth:`Graph.races` found. True if there is anything; a sequence of :class:`Race`, the certain ones first.

    Attributes:
        races: the findings.
        nodes: how many nodes were looked at.
        compared: pairs of nodes that touch the same bytes, one of them perhaps writing.
        unknown: the nodes whose accesses are not known: host functions, kernels that read tables of addresses.
        notes: further remarks.
    """

    races: list[Race] = field(default_factory=list)
    nodes: int = 0
    compared: int = 0
    unknown: list[Node] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def certain(self) -> list[Race]:
        """The races that are certain."""
        return [race for race in self.races if race.certain]

    def __len__(self) -> int:
        return len(self.races)

    def __iter__(self) -> Iterator[Race]:
        return iter(self.races)

    def __getitem__(self, number: int) -> Race:
        return self.races[number]

    def __str__(self) -> str:
        sure = len(self.certain)
        head = f'{counted(self.nodes, "node")}, {counted(self.compared, "pair")} on the same memory: '
        head += f'{counted(sure, "race")}, {len(self.races) - sure} possible'
        lines = [head, *map(str, self.races)]
        if self.unknown:
            some = ', '.join(str(node) for node in self.unknown[:3])
            more = ', ...' if self.unknown[3:] else ''
            lines.append(f'not examined, {counted(len(self.unknown), "node")}: {some}{more}')
        return '\n'.join([*lines, *self.notes])


class MemoryBlocks:
    """The memory blocks that a graph's nodes use, and what to call them."""

    def __init__(self, memory: GraphMemory, array: Any, names: Mapping[str, Any]) -> None:
        things = (one for thing in memory.held() for one in (thing if isinstance(thing, list) else [thing]))
        held = {(int(p.mem.ptr), int(p.mem.ptr) + int(p.mem.size)) for p in things if hasattr(p, 'mem')}
        self._own, self._holds, self._private = memory.chunks(), memory.holds, memory.private
        self._ranges = [sorted(held), sorted(self._own)]
        self._names = sorted(
            ((*extent(value), name) for name, value in names.items() if isinstance(value, array) and value.size),
            key=lambda one: (one[1] - one[0], one[2]),
        )

    def end(self, address: int) -> int | None:
        """The end of the block that an address lies in; None if there is no such block."""
        found = self.around(address)
        return None if found is None else found[1]

    def around(self, address: int) -> tuple[int, int] | None:
        """The first byte of the block that an address lies in and the one after its last; None if there is none."""
        for blocks in self._ranges:
            found = bisect_left(blocks, (address + 1,)) - 1
            if found >= 0 and address < blocks[found][1]:
                return blocks[found]
        return None

    def is_own(self, address: int) -> bool:
        """Whether an address lies in the graph's own memory; with a pool of the user's, in any that the graph holds."""
        return self._holds(address)

    def own_ranges(self) -> list[tuple[int, int]] | None:
        """Where the graph's own memory lies; None where that is not known, in a pool of the user's."""
        return self._own if self._private else None

    def words(self, address: int, nbytes: int) -> str:
        """The name of the memory at an address."""
        for low, high, name in self._names:
            if low <= address < high:
                return name
        inside = any(low <= address < high for low, high in self._own)
        whose = "memory of the graph's own" if inside else 'memory'
        return f'{whose} at {address:#x} ({counted(nbytes, "byte")})'


class Open:
    """Accesses that later ones may conflict with, by where they lie: of each size class in order of address.

    Reads are kept apart from the others, because they are many and conflict with few.
    """

    def __init__(self) -> None:
        self._writing: dict[int, list[tuple[int, int, int]]] = {}
        self._reading: dict[int, list[tuple[int, int, int]]] = {}
        self._accesses: dict[int, tuple[int, Access]] = {}
        self._keys = count()

    def _classes(self, access: Access) -> dict[int, list[tuple[int, int, int]]]:
        return self._reading if access.writes is False else self._writing

    def add(self, node: int, access: Access) -> int:
        """Add an access; return the key that :meth:`drop` takes."""
        (low, high), key = access.extent, next(self._keys)
        self._accesses[key] = (node, access)
        insort(self._classes(access).setdefault((high - low).bit_length(), []), (low, high, key))
        return key

    def touching(self, access: Access, reads: int = 0) -> list[tuple[int, int, Access]]:
        """(key, node, access) of all that shares a byte with an access, from its first byte to its last.

        For a read: all that may write, and at most ``reads`` other reads.
        """
        low, high = access.extent
        most = reads if access.writes is False else len(self._accesses)
        found = []
        for classes, limit in ((self._writing, len(self._accesses)), (self._reading, most)):
            for size, entries in classes.items() if limit else ():
                stop = bisect_left(entries, (high,))
                start = max(bisect_left(entries, (low - (1 << size),)), stop - limit)
                found += [(key, *self._accesses[key]) for _begin, end, key in entries[start:stop] if end > low]
        return found

    def drop(self, key: int) -> None:
        _node, access = self._accesses.pop(key)
        low, high = access.extent
        entries = self._classes(access)[(high - low).bit_length()]
        del entries[bisect_left(entries, (low, high, key))]


@dataclass
class _Level:
    """The nodes of one graph: in the order of recording, with what they touch and the edges between them."""

    handles: list[int]
    touched: list[Touched]
    order: Order


@dataclass
class Search:
    """One search for races in what a graph holds now. ``off`` are the numbers of nodes that are disabled.

    Without ``compare`` only the accesses of each node are collected. ``accesses`` tells what the nodes of a definition
    touch; None: the device is asked, with ``brief`` only about nodes that another one is in no order with.
    """

    device: Any
    parts: Sequence[Part]
    look: Look
    blocks: MemoryBlocks
    observed: Observed = field(default_factory=Observed)
    off: Collection[int] = ()
    compare: bool = True
    accesses: Callable[[int], dict[int, Touched]] | None = None
    brief: bool = False

    def __post_init__(self) -> None:
        self._found: dict[Any, Race] = {}
        self._counts: Counter[Any] = Counter()
        self._words = cache(self.blocks.words)
        #: A number for each line, lane and kernel, by a node's number: pairs of these are one finding.
        self._origins: list[int] = []
        seen: dict[Any, int] = {}
        for node in self.look.nodes:
            self._origins.append(seen.setdefault((node.lane, node.at, node.name), len(seen)))
        #: What each node touches, by its number, as far as anyone knows.
        self.touched: dict[int, Touched] = {}
        self.report = Races(nodes=len(self.look.nodes))
        for part in self.parts:
            self._graph(part.graph)
        races = (replace(race, count=self._counts[key]) for key, race in self._found.items())
        self.report.races = sorted(races, key=lambda race: (not race.certain, race.missing))

    def _graph(self, g: int) -> Touched:
        """Search a graph and the bodies in it; return what all of it touches."""
        device, look = self.device, self.look
        handles = device.graph_nodes(g)
        number = {handle: n for n, handle in enumerate(handles)}
        order = Order(len(handles), [(number[a], number[b]) for a, b in device.graph_edges(g)])
        asked = {handles[n] for n in order.unordered()} if self.brief else number.keys()
        known = self.accesses(g) if self.accesses else device.graph_accesses(g, asked)
        touched = []
        for handle in handles:
            if handle in look.bodies:
                touched.append(together([self._graph(body) for body in look.bodies[handle]]))
            elif handle not in asked or look.numbers[handle] in self.off:
                touched.append(Touched())
            else:
                touched.append(self._resolved(handle, known[handle]))
            self.touched[look.numbers[handle]] = touched[-1]
        if self.compare:
            self._level(_Level(handles, touched, order))
        return together(touched)

    def _resolved(self, handle: int, touched: Touched) -> Touched:
        """The accesses of a node, with what the blocks and the observation add."""
        node = self.look.nodes[self.look.numbers[handle]]
        if not touched.complete:
            self.report.unknown.append(node)
        found = []
        for access in touched.accesses:
            if access.writes is None:
                access = replace(access, writes=self.observed.writes.get((node.name, access.argument, access.offset)))
            place = self.observed.places.get((node.number, access.argument, access.offset))
            if place is not None and not access.exact:
                access = replace(access, writes=True, sure=linear(place, 1, True))
            if not access.itemsize:
                end = self.blocks.end(access.address)
                if end is None:  # not an address, or not of memory that the graph holds
                    continue
                access = replace(access, shape=(end - access.address,), strides=(1,), itemsize=1)
            found.append(access)
        return Touched(tuple(found), touched.complete)

    def _level(self, level: _Level) -> None:
        open_ = Open()
        for node in level.order.sequence:
            mine = merged_accesses(level.touched[node].accesses)
            for access in mine:
                self._against(level, open_, node, access)
            for access in mine:
                open_.add(node, access)

    def _against(self, level: _Level, open_: Open, node: int, access: Access) -> None:
        before = level.order.before
        for key, other, earlier in open_.touching(access, _MANY):
            if before(other, node):
                # a later node that conflicts with the earlier one conflicts with this one, too
                if _WEIGHT[access.writes] >= _WEIGHT[earlier.writes] and covers(access, earlier):
                    open_.drop(key)
            elif access.writes is not False or earlier.writes is not False:
                self._compare(level, (other, earlier), (node, access))

    def _compare(self, level: _Level, one: tuple[int, Access], other: tuple[int, Access]) -> None:
        self.report.compared += 1
        shared = overlap(one[1], other[1])
        if shared is False:
            return
        (a, first), (b, second) = (one, other) if one[0] <= other[0] else (other, one)
        a, b = (self.look.numbers[level.handles[n]] for n in (a, b))
        (low, high), (start, end) = first.extent, second.extent
        low, high = max(low, start), min(high, end)
        certain = shared is True and (first.writes is True or second.writes is True)
        words = self._words(low, high - low)
        key = (self._origins[a], self._origins[b], words if certain else '', certain)
        self._counts[key] += 1
        if key not in self._found:
            nodes, writes = self.look.nodes, (first.writes, second.writes)
            self._found[key] = Race(nodes[a], nodes[b], words, low, high - low, writes, certain)


#: Of accesses that write, may write, and read only.
_WEIGHT = {True: 2, None: 1, False: 0}


def merged_accesses(accesses: Iterable[Access]) -> list[Access]:
    """Leave out accesses that another access of the same node covers."""
    found: list[Access] = []
    ordered = sorted(accesses, key=lambda one: _WEIGHT[one.writes], reverse=True)
    # an exact access covers its like, and hashing takes longer than that is to see
    for access in ordered if all(one.exact for one in ordered) else dict.fromkeys(ordered):
        if not any(covers(one, access) for one in found[:_MANY]):
            found.append(access)
    return found
