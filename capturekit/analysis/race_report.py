"""``graph.races()``: the search, and where launching is allowed, what launches show in addition."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from operator import setitem
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np

from capturekit.analysis.node_memory import ON_DEVICE, Definitions, joined
from capturekit.analysis.node_view import Look, Node
from capturekit.analysis.races import MemoryBlocks, Observed, Race, Races, Search
from capturekit.driver.cuda import Platform, current
from capturekit.driver.node_accesses import Access, Touched
from capturekit.launch.declared import Declared
from capturekit.launch.graph_memory import GraphMemory
from capturekit.launch.outside_arrays import names_of
from capturekit.launch.plan import Part
from capturekit.model import errors
from capturekit.model.dag import Order
from capturekit.model.progress import each
from capturekit.model.recording import Span
from capturekit.model.source_line import here

# -- find out which kernels write: kernels whose writes only their author knows are run alone, and memory is compared -
#
# A copy of the executable graph has all its nodes disabled except those that are to run, so that each kernel runs after
# all nodes before it, on the values that it would find. Memory is restored. Memory that changed was written; memory
# that did not, while other memory did, is taken as only read, and the report says so. CUDA C++ Programming Guide,
# "Individual Node Enable".


_SWITCHED = frozenset({'kernel', 'memcpy', 'memset'})
#: Kinds of nodes that do nothing to memory, and may run as well.
_HARMLESS = frozenset({'empty', 'event record', 'wait event'})


#: A part of the names of NCCL's kernels, which wait for each other as they run.
_COLLECTIVE = 'ncclDevKernel'


def why_not(look: Look, devices: Collection[int] = ()) -> str:
    """Why nodes of a graph with lanes on these devices can't be run alone; '' if they can."""
    if any(_COLLECTIVE in node.name for node in look.nodes):
        return "NCCL's kernels wait for those of the other ranks: run alone, they would wait for ever"
    if len(devices) > 1:
        return 'the graph is of several devices'
    other = sorted({node.kind for node in look.nodes} - _SWITCHED - _HARMLESS)
    return f'nodes of kind {", ".join(other)} can not be disabled, so that no node can be run alone' if other else ''


@dataclass
class Observation:
    """One observation of one graph, which must not be launched during it.

    ``end`` returns the end of the memory block around an address, None where there is none. ``off`` are the numbers
    of nodes that are disabled, and stay so; ``also`` those of nodes to look at though others of the same kernel are.
    """

    platform: Platform
    g: int
    look: Look
    end: Callable[[int], int | None]
    off: Collection[int] = ()
    also: Collection[int] = ()

    def __post_init__(self) -> None:
        self._device, self._cupy = self.platform.device, self.platform.cupy
        self._handles = self._device.graph_nodes(self.g)
        self._touched: Mapping[int, Touched] = self._device.graph_accesses(self.g)

    def run(self, inside: Callable[[], AbstractContextManager[None]]) -> Observed:
        """Run the kernels, and return what they wrote. Waits for the current stream."""
        number = {handle: n for n, handle in enumerate(self._handles)}
        edges = [(number[a], number[b]) for a, b in self._device.graph_edges(self.g)]
        order = [self._handles[n] for n in Order(len(self._handles), edges).sequence]
        asked = self._asked(order)
        found = Observed()
        if not asked:
            return found
        with inside(), ExitStack() as stack:
            wait = self._cupy.cuda.get_current_stream().synchronize
            saved = self._saved()
            stack.callback(wait)
            for one in saved:
                stack.callback(one)
            x = self._device.graph_instantiate(self.g)
            stack.callback(self._device.graph_exec_destroy, x)
            stack.callback(wait)
            self._walk(x, order, asked, found)
        return found

    def _node(self, handle: int) -> Node:
        return self.look.nodes[self.look.numbers[handle]]

    def _asked(self, order: list[int]) -> dict[int, list[Access]]:
        """The first node of each kernel that may write its arguments, other nodes asked for, and those arguments."""
        found: dict[int, list[Access]] = {}
        names = set()
        for handle in order:
            node = self._node(handle)
            if node.number in self.off:
                continue
            touched = [one for one in self._touched[handle].accesses if one.argument >= 0]
            unknown = any(one.writes is None for one in touched)
            if (unknown and node.name not in names) or node.number in self.also:
                names.add(node.name)
                found[handle] = [one for one in touched if one.writes is not False and not one.exact]
        return {handle: accesses for handle, accesses in found.items() if accesses}

    def _walk(self, x: int, order: list[int], asked: dict[int, list[Access]], found: Observed) -> None:
        for handle in order:
            self._switch(x, handle, False)
        waiting: list[int] = []
        for handle in each('observing kernels', order):
            if handle not in asked:
                waiting.append(handle)
                continue
            if waiting:
                self._launched(x, waiting)
            ranges = [self._range(access) for access in asked[handle]]
            views = [self._bytes(low, high) for low, high in ranges]
            copies = [view.copy() for view in views]
            self._launched(x, [handle])
            seen = [view != copy for view, copy in zip(views, copies)]
            changed = [low + int(one.argmax()) if bool(one.any()) else None for one, (low, _) in zip(seen, ranges)]
            self._note(handle, asked[handle], changed, found)
            waiting = []

    def _launched(self, x: int, some: list[int]) -> None:
        """Launch with these nodes enabled. Nodes that are switched after the launch do not affect it."""
        for on in (True, False):
            for handle in some:
                self._switch(x, handle, on)
            if on:
                self._device.graph_launch(x, self._cupy.cuda.get_current_stream().ptr)

    def _note(self, handle: int, accesses: list[Access], changed: list[int | None], found: Observed) -> None:
        if all(place is None for place in changed):  # what it writes may have been there before
            return
        node = self._node(handle)
        for access, place in zip(accesses, changed):
            key = (node.name, access.argument, access.offset)
            if access.writes is None:
                found.writes[key] = found.writes.get(key, False) or place is not None
            if place is not None:
                found.places[node.number, access.argument, access.offset] = place

    def _switch(self, x: int, handle: int, on: bool) -> None:
        node = self._node(handle)
        if node.kind in _SWITCHED and not (on and node.number in self.off):
            self._device.node_enable(x, handle, on)

    def _range(self, access: Access) -> tuple[int, int]:
        """Ranges that may be written; none where the memory block is not known."""
        low, high = access.extent
        if not access.itemsize:
            high = self.end(low) or low  # not an address, or not of memory that the graph holds
        return low, high

    def _bytes(self, low: int, high: int) -> Any:
        """Memory as an array of bytes."""
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(low, high - low, None, cuda.Device().id)
        return self._cupy.ndarray((high - low,), np.uint8, cuda.MemoryPointer(memory, 0))

    def _saved(self) -> list[Callable[[], None]]:
        """Restore all memory on the device that any node may write."""
        kind = self._cupy.cuda.runtime.pointerGetAttributes
        ranges = [
            self._range(access)
            for touched in self._touched.values()
            for access in touched.accesses
            if access.writes is not False and kind(access.address).type in ON_DEVICE
        ]
        views = [self._bytes(*one) for one in joined((low, high) for low, high in ranges if low < high)]
        return [partial(setitem, view, ..., view.copy()) for view in views]


#: The number of calling functions that are searched for the names of arrays.
_FRAMES = 8


def _names(frame: FrameType | None, array: type) -> dict[str, Any]:
    """The variables of a frame and its callers that are arrays; the inner ones first."""
    found: dict[str, Any] = {}
    for _ in range(_FRAMES):
        if frame is None:
            break
        found = names_of(frame, array) | found
        frame = frame.f_back
    return found


def check(state: Any, observe: bool, frame: FrameType | None) -> None:
    """Refuse an observation that is not possible now, before anything has started."""
    if not isinstance(observe, bool):
        raise TypeError(f'observe is True or False, got {observe!r}')
    if observe and state.gate.occupied():
        raise errors.UnmatchedError(
            'Graph.races(observe=True)',
            location=here(frame),
            rule='It launches the nodes one by one, and this thread has a capture or a rehearsal open.',
            remedy='Ask outside of it, or without observe=True.',
        )


def races_of(state: Any, observe: bool, frame: FrameType | None) -> Races:
    """Make the report for :meth:`Graph.races`, which holds the lock of the graph's state; ``frame`` is its caller's."""
    platform, parts, look = current(), state.parts(), state.look()
    blocks = MemoryBlocks(state.memory, platform.cupy.ndarray, _names(frame, platform.cupy.ndarray))
    devices, off = state.recording.devices, state.names.off
    why = '' if not observe else 'launched in several parts' if len(parts) > 1 else why_not(look, devices)
    told = Definitions(platform.device, state.declared).told(blocks)
    observed, report = Observed(), Search(platform.device, parts, look, blocks, off=off, accesses=told).report
    if observe and not why:
        possible = {node.number for race in report.races if not race.certain for node in (race.first, race.second)}
        observed = Observation(platform, parts[0].graph, look, blocks.end, off, possible).run(state.gate.inside)
        report = Search(platform.device, parts, look, blocks, observed, off, accesses=told).report
        report.notes += observed.notes()
    if why:
        report.notes.append(f'nothing was run: {why}')
    elif observe and platform.simulated:
        report.races = [_tried(platform, parts[0].graph, look, blocks, race) for race in report.races]
    return report


def _tried(platform: Platform, g: int, look: Look, blocks: MemoryBlocks, race: Race) -> Race:
    """The race with the order that gives a different result, if there is one."""
    from capturekit.simulated.device.machine import differing  # not where there is a GPU

    handles = {number: handle for handle, number in look.numbers.items()}
    memory = platform.device.address_spaces[0]  # the device's; the other is the host's
    found = differing(platform.device, memory, g, *(handles[node.number] for node in (race.first, race.second)))
    if found is None:
        return race
    order, places = found
    parts = dict.fromkeys(f'{blocks.words(address, count)} differs' for address, count in places)
    return replace(race, order=tuple(look.numbers[handle] for handle in order), outcome='; '.join(parts))


def races_in(
    platform: Platform,
    parts: list[Part],
    spans: list[Span],
    memory: GraphMemory,
    declared: Mapping[int, Declared],
    frame: FrameType | None,
) -> Races:
    """The races in graphs that were just recorded; ``frame`` has the names of arrays."""
    device, array = platform.device, platform.cupy.ndarray
    if not declared and len(parts) == 1 and not parts[0].graphs[1:]:  # most have none, which is soon seen
        numbers = {handle: n for n, handle in enumerate(device.graph_nodes(parts[0].graph))}
        bare: Any = SimpleNamespace(numbers=numbers, bodies={}, nodes=[Node(n, '') for n in numbers.values()])
        if not Search(device, parts, bare, MemoryBlocks(memory, array, {}), brief=True).report:
            return Races()
    blocks = MemoryBlocks(memory, array, _names(frame, array))
    told = Definitions(device, declared).told(blocks)
    return Search(device, parts, Look(device, parts, spans, memory), blocks, accesses=told).report
