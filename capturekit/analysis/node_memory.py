"""What is known for sure of the memory of a graph's nodes: all bytes that a node may touch, and which it writes.

It is known of CuPy's own kernels, of copies and of memsets, and of child graphs of these. It is not known of kernels
that somebody else wrote, of host functions, of conditional nodes, nor of nodes that events and semaphores order with
work outside of the graph. Of kernels and host functions the user may say it (``ck.reads``, ``ck.writes``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from capturekit.analysis.races import MemoryBlocks, Open, merged_accesses
from capturekit.driver.cuda import current
from capturekit.driver.node_accesses import Access, Touched, covers, linear, overlap
from capturekit.driver.node_reader import NodeInfo
from capturekit.launch.declared import Declared
from capturekit.model.counted import counted
from capturekit.model.dag import Order

_Number = TypeVar('_Number', int, float)

# -- memory of a graph's own that no array lies in any more -----------------------------------------------------------


class FreeMemory:
    """Pieces of free memory, given by first byte and end."""

    def __init__(self, pieces: Iterable[tuple[int, int]] = ()) -> None:
        self.pieces = joined(pieces, True)

    def meets(self, access: Access) -> bool:
        """Whether a byte of an access's extent is free. Then the array that it was an access of is gone: an array's
        block is free as a whole, and what is not free of it belongs to a later one."""
        low, high = access.extent
        found = bisect_left(self.pieces, (high,)) - 1
        return found >= 0 and self.pieces[found][1] > low

    def rest(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """What of a range is not free."""
        for begin, end in self.pieces[max(bisect_left(self.pieces, (low,)) - 1, 0) :]:
            if begin >= high:
                break
            if low < begin:
                yield low, begin
            low = max(low, end)
        if low < high:
            yield low, high


# -- the order that the data of a graph needs, and no more: which edges are left where chance is taken away -----------
#
# Two nodes need their order if they touch the same byte and one of them writes it: a read after a write, a write after
# a read, a write after a write. A node whose memory is not known needs its order with every other one. Nothing is
# ordered here that was not ordered by the recording, so that what its author left open stays open.
#
# The memory is kept as intervals of bytes, and what a later write covers is looked at no more: each node meets the
# nodes that it has to come after, and few others. CUDA C++ Programming Guide, "Graph Structure".


#: What a node touches; None where that is not known, so that it keeps its order with all others.
Memory = Sequence[Access] | None
#: The ancestors of each node are bits of one number: of so many nodes these take 64 MB.
MOST_NODES = 1 << 15
#: More pairs are not compared: a thousand nodes that each need a thousand others.
MOST_PAIRS = 1 << 21


class TooManyError(ValueError):
    """The order is not computed, because it would take too much time or memory."""


def needed_edges(order: Order, touched: Sequence[Memory]) -> list[tuple[int, int]]:
    """The fewest edges that order all pairs of nodes which ``order`` has in an order that their data needs.

    Args:
        order: the order as it was recorded.
        touched: what each node touches.

    Returns edges in the order of their second nodes. No edge is one that others make.

    Raises:
        TooManyError: there are more than 32,768 nodes, or two million pairs to be compared.
    """
    if len(touched) > MOST_NODES:
        raise TooManyError(f'{counted(len(touched), "node")}, and {MOST_NODES:,} are the most')
    return _Needs(order, touched).edges


class _Needs:
    """One walk along the recorded order."""

    def __init__(self, order: Order, touched: Sequence[Memory]) -> None:
        self._order = order
        self._touched = touched
        self._place = {node: place for place, node in enumerate(order.sequence)}
        #: Whether all nodes lie in one row, as those of one lane do.
        self._row = all(a in order.before_each[b] for a, b in pairwise(order.sequence))
        self._open = Open()
        #: By the key of an access, those that it covers: they count again for nodes that do not come after it.
        self._under: dict[int, list[tuple[int, int, Access]]] = {}
        #: The nodes of unknown memory that a node comes after, without those behind others.
        self._stream_order: dict[int, frozenset[int]] = {}
        #: In a row, the nodes that no other needs yet.
        self._ends: set[int] = set()
        self._above: dict[int, int] = {}
        self._pairs = 0
        self.edges: list[tuple[int, int]] = []
        for node in order.sequence:
            before = self._reduced(node, self._needed_by(node))
            self.edges += [(a, node) for a in before]
            self._ends -= set(before)
            self._ends.add(node)

    def _before(self, a: int, b: int) -> bool:
        return self._place[a] < self._place[b] if self._row else self._order.before(a, b)

    # -- what a node has to come after --------------------------------------------------------------------------

    def _needed_by(self, node: int) -> set[int]:
        """Nodes that this one has to come after: with what these come after, all of them."""
        found = set(self._fences_of(node))
        touched = self._touched[node]
        if touched is None:
            found |= self._everything_before(node)
            if self._row:  # who comes after this node comes after all of it
                self._open, self._under = Open(), {}
        else:
            mine = merged_accesses(touched)
            for access in mine:
                found |= self._met(node, access)
            for access in mine:
                self._add(node, access)
        self._pairs += len(found)
        if self._pairs > MOST_PAIRS:
            raise TooManyError(f'more than {counted(MOST_PAIRS, "pair")} of nodes touch the same memory')
        return found

    def _fences_of(self, node: int) -> frozenset[int]:
        before = self._order.before_each[node]
        parts = [frozenset((a,)) if self._touched[a] is None else self._stream_order[a] for a in before]
        found = parts[0] if len(parts) == 1 else frozenset().union(*parts)
        self._stream_order[node] = found
        return found

    def _everything_before(self, node: int) -> set[int]:
        """All nodes before one, back to those of unknown memory, which the rest comes before."""
        if self._row:
            return set(self._ends)
        found: set[int] = set()
        waiting = list(self._order.before_each[node])
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                if self._touched[one] is not None:
                    waiting += self._order.before_each[one]
        return found

    def _met(self, node: int, access: Access) -> set[int]:
        """The earlier nodes that an access has to come after."""
        found: set[int] = set()
        waiting = self._open.touching(access)
        while waiting:
            key, other, earlier = waiting.pop()
            if other in found or (access.writes is False and earlier.writes is False):
                continue
            if not self._before(other, node):
                waiting += self._under.get(key, ())
            elif overlap(earlier, access) is not False:
                found.add(other)
        return found

    def _add(self, node: int, access: Access) -> None:
        """Let later nodes meet an access, in the place of those that it covers."""
        covered = list(self._covered(node, access)) if access.writes is not False and access.exact else []
        key = self._open.add(node, access)
        for old, _other, _earlier in covered:
            self._open.drop(old)
        if covered and not self._row:
            self._under[key] = covered

    def _covered(self, node: int, access: Access) -> Iterator[tuple[int, int, Access]]:
        for key, other, earlier in self._open.touching(access):
            if other != node and covers(access, earlier) and self._before(other, node):
                yield key, other, earlier

    # -- the fewest edges ---------------------------------------------------------------------------------------

    def _reduced(self, node: int, needed: set[int]) -> list[int]:
        """Of the nodes that one has to come after, those that do not come before another of them."""
        above, found = 0, []
        for one in sorted(needed, key=self._place.__getitem__, reverse=True):
            if not above >> self._place[one] & 1:
                found.append(one)
                above |= self._above[one] | 1 << self._place[one]
        self._above[node] = above
        return found[::-1]


_MOVING = frozenset({'kernel', 'memcpy', 'memset'})
#: Of these it is known to the byte what they write, also where that is memory of the host.
_COPYING = frozenset({'memcpy', 'memset'})
#: Parts of the names of NCCL's kernels, which wait for each other, and of capturekit's, which count launches.
_ONCE = ('ncclDevKernel', 'capturekit_')
#: ``cudaMemoryTypeDevice``, ``cudaMemoryTypeManaged``.
ON_DEVICE = (2, 3)


#: Calls of a library whose handle has memory of its own, besides the workspace that it is given.
_WITH_A_STATE = 'cublas.'
#: Kinds of nodes of which the user may say what they touch.
_SAID_OF = frozenset({'kernel', 'host'})
#: Host functions keep their order with each other, as if each wrote this byte, where nothing lies.
_HOST = linear(1, 1, True)


class Definitions:
    """Definitions as they are now, each read once: reading takes longer than all that is done with it.

    ``declared``: what the user says that nodes touch, by their handles.
    """

    def __init__(self, device: Any, declared: Mapping[int, Declared] | None = None) -> None:
        self.infos: Callable[[int], list[NodeInfo]] = cache(device.node_infos)
        self.accesses: Callable[[int], dict[int, Touched]] = cache(device.graph_accesses)
        self.declared = declared or {}

    def by_word(self, g: int, blocks: MemoryBlocks) -> dict[int, list[Access]]:
        """What the user says of nodes that are not known otherwise, by their handles."""
        found: dict[int, list[Access]] = {}
        for info in self.infos(g) if self.declared else ():
            said, touched = self.declared.get(info.handle), self.accesses(g)[info.handle]
            if said is None or not said.whole or info.kind not in _SAID_OF or any(one in info.name for one in _ONCE):
                continue
            if _memory(self, info, touched, blocks) is None:
                accesses = _by_word(info, said, touched, blocks)
                if accesses is not None:
                    found[info.handle] = accesses
        return found

    def own_by_argument(self, g: int, blocks: MemoryBlocks) -> dict[int, tuple[Access, ...]]:
        """Memory of the graph's own that nodes have by an argument and that their library's call does not show.

        A workspace counts as a whole. Only nodes are asked of which all addresses are known.
        """
        touched = self.accesses(g)
        found = {}
        for handle in self.by_word(g, blocks):
            said = self.declared[handle]
            if said.call and touched[handle].complete:
                found[handle] = tuple(replace(one, writes=True) for one in _by_argument(said, touched[handle], blocks))
        return found

    def told(self, blocks: MemoryBlocks, *, whole: bool = False) -> Callable[[int], dict[int, Touched]]:
        """What nodes of a definition touch: as far as the device knows, and as the user says.

        ``whole``: nodes are taken to touch all that the user names. Then races are sure ones, and soon found.
        """

        def of(g: int) -> dict[int, Touched]:
            said = self.by_word(g, blocks).items()
            touched = {handle: Touched(tuple(map(_ordering, one) if whole else one)) for handle, one in said}
            return {**self.accesses(g), **touched}

        return of if self.declared else self.accesses


#: Addresses are no longer than this: those of x86-64 with five levels of pages, the longest of all.
_ADDRESS_BITS = 57


def _by_word(info: NodeInfo, said: Declared, touched: Touched, blocks: MemoryBlocks) -> list[Access] | None:
    """What the user names, what is known besides, and memory of the graph's own that the node has an address of.

    None where the node's addresses can not be read, and the graph's own memory can not be told from other memory.
    """
    found = [replace(access, exact=False) for access in said.accesses]
    if info.kind == 'host':
        return found
    if said.call.startswith(_WITH_A_STATE) and any(_hidden(one, said, blocks) for one in touched.accesses):
        return None
    if not touched.complete:
        whole = blocks.own_ranges()
        if whole is None:
            return None
        found += [linear(low, high - low, None, False) for low, high in whole]
    bounded = [_bounded(access, blocks) for access in touched.accesses if access.writes is not None]
    return found + [one for one in bounded if one is not None] + _by_argument(said, touched, blocks)


def _by_argument(said: Declared, touched: Touched, blocks: MemoryBlocks) -> list[Access]:
    found = []
    for access in touched.accesses:
        around = blocks.around(access.address) if access.writes is None else None
        if around is not None and blocks.is_own(access.address) and not said.has(access.address):
            found.append(linear(around[0], around[1] - around[0], None, False))
    return found


def _hidden(access: Access, said: Declared, blocks: MemoryBlocks) -> bool:
    """Whether an address among a kernel's arguments is one of device memory that its library's call does not show.

    It may be memory of the library's handle, which other calls use as well.
    """
    if access.writes is not None or said.has(access.address) or blocks.is_own(access.address):
        return False
    if access.address >> _ADDRESS_BITS:  # a number that happens to stand there; CUDA's function refuses it
        return False
    return current().cupy.cuda.runtime.pointerGetAttributes(access.address).type in ON_DEVICE


def memory_of(definitions: Definitions, g: int, blocks: MemoryBlocks, *, by_word: bool = False) -> dict[int, Memory]:
    """What each node of a definition touches, by its handle; None where that is not known.

    ``by_word``: whether what the user says counts as known.
    """
    accesses = definitions.accesses(g)
    infos = definitions.infos(g)
    found = {info.handle: _memory(definitions, info, accesses[info.handle], blocks) for info in infos}
    if by_word:
        hosts = {info.handle for info in infos if info.kind == 'host'}
        for handle, said in definitions.by_word(g, blocks).items():
            found[handle] = [*map(_ordering, said), *([_HOST] if handle in hosts else [])]
    return found


def _ordering(access: Access) -> Access:
    """An access for finding an order: of two that share a byte, the later one comes after the earlier one.

    So it covers all that it may touch: who shares a byte with what it covers shares that byte with it.
    """
    return access if access.exact else replace(access, writes=access.writes is not False, exact=True, sure=None)


def _memory(definitions: Definitions, info: NodeInfo, touched: Touched, blocks: MemoryBlocks) -> Memory:
    if info.kind == 'empty':
        return ()
    if info.kind == 'graph':
        inner = list(memory_of(definitions, info.inner, blocks).values())
        known = [one for one in inner if one is not None]
        return [access for one in known for access in one] if len(known) == len(inner) else None
    if info.kind not in _MOVING or not touched.complete:
        return None
    bounded = [_bounded(access, blocks) for access in touched.accesses]
    found = [one for one in bounded if one is not None]
    # a kernel that writes nothing would have no purpose: what it writes can not be seen
    return found if len(found) == len(bounded) and any(one.writes for one in found) else None


def _bounded(access: Access, blocks: MemoryBlocks) -> Access | None:
    """The access with its end: that of its memory block where the node only has an address. None if it has none."""
    if access.writes is None:
        return None
    if access.itemsize:
        return access
    end = blocks.end(access.address)
    if end is None:
        return None
    return replace(access, shape=(end - access.address,), strides=(1,), itemsize=1)


# -- memory that a launch may change ----------------------------------------------------------------------------


class NotRepeatableError(ValueError):
    """A graph can not be launched twice with the same effect as once; the text says why."""


def written_ranges(
    platform: Any,
    definitions: Definitions,
    g: int,
    blocks: MemoryBlocks,
    without: str = '',
    free: FreeMemory | None = None,
) -> list[tuple[int, int]]:
    """Disjoint ranges of memory that hold all that a launch of a definition may write: the device's, or the host's.

    Of a kernel that somebody else wrote these are the whole memory blocks of its arguments. Nodes whose names
    begin with ``without`` are left out, if it is not '', and so is ``free`` memory.

    Raises:
        NotRepeatableError: a node does more than to write such memory.
    """
    device = cache(lambda address: platform.cupy.cuda.runtime.pointerGetAttributes(address).type in ON_DEVICE)
    return joined({*_ranges(definitions, g, blocks, device, without, free or FreeMemory())})


def joined(ranges: Iterable[tuple[_Number, _Number]], touching: bool = False) -> list[tuple[_Number, _Number]]:
    """Ranges in their order, those that overlap as one, and if ``touching`` those that touch.

    Ranges that only touch may be two allocations, and CUDA copies from and to one alone.
    """
    found: list[tuple[_Number, _Number]] = []
    for low, high in sorted(ranges):
        if found and (low < found[-1][1] or (touching and low == found[-1][1])):
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def _ranges(
    definitions: Definitions,
    g: int,
    blocks: MemoryBlocks,
    on_device: Callable[[int], bool],
    without: str,
    free: FreeMemory,
) -> Iterator[tuple[int, int]]:
    accesses: Mapping[int, Touched] = definitions.accesses(g)
    for info in definitions.infos(g):
        if without and info.name.startswith(without):
            continue
        if info.kind not in _MOVING | {'empty', 'graph'} or any(part in info.name for part in _ONCE):
            raise NotRepeatableError(f'a node of it ({_words(info)}) would act twice')
        if info.kind == 'graph':
            yield from _ranges(definitions, info.inner, blocks, on_device, without, free)
            continue
        said = definitions.declared.get(info.handle, Declared())
        for low, high in [one.extent for one in said.accesses if one.writes]:
            if not on_device(low):
                raise NotRepeatableError(f'a node of it writes memory of the host ({_words(info)})')
            yield from free.rest(low, high)
        if not accesses[info.handle].complete:
            own = blocks.own_ranges()
            if not said.call or own is None:
                raise NotRepeatableError(f'it is not known what a node of it writes ({_words(info)})')
            yield from own
        for access in accesses[info.handle].accesses:
            shown = bool(said.call) and access.writes is None and said.has(access.address)
            left_out = shown or access.writes is False or (access.itemsize > 0 and free.meets(access))
            found = None if left_out else _range(access, blocks)
            if found is not None and info.kind not in _COPYING and not on_device(access.address):
                raise NotRepeatableError(f'a node of it writes memory of the host ({_words(info)})')
            if found is not None:
                yield from free.rest(*found)


def _words(info: NodeInfo) -> str:
    return f'{info.kind} {info.name}'.strip()


def _range(access: Access, blocks: MemoryBlocks) -> tuple[int, int] | None:
    """Where an access may write; None if its address is none, or not of memory that the graph holds."""
    around = blocks.around(access.address)
    if access.itemsize and access.writes:
        return access.extent
    if access.itemsize and around is None:
        return access.extent
    return around
