"""A graph's temporaries moved into less memory, once the order of its nodes is known.

``lanes='auto'`` gives each temporary memory of its own while it records, so that no order comes from memory that is
used again. Afterwards the edges tell who may run beside whom, and all others may share bytes. The graph as it was
recorded stays, until a launch of both has given the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from capturekit.analysis.node_memory import memory_of
from capturekit.graph.launching import aim
from capturekit.graph.sight import Sight
from capturekit.graph.state import GraphState, whole_or_closed
from capturekit.lanes.edges import Level, NewEdges, edges_of, instantiate
from capturekit.lanes.packing import Aim, NodeWord, Packing, SeenNode, Temporary, TemporarySpan, examined, packed
from capturekit.lanes.report import Pairs
from capturekit.launch.graph_memory import PoolBlock
from capturekit.model.dag import Order
from capturekit.model.errors import CudaCallError

_CALL = 'Graph.relane()'


def pack(state: GraphState, levels: Sequence[Level], sight: Sight, edges: Pairs) -> Packing | None:
    """Let the definition have packed temporaries; None where it can not, or where that would save nothing."""
    try:
        packing = _packing(state, levels, sight, edges)
    except (CudaCallError, MemoryError):
        return None
    if packing is None:
        return None
    with whole_or_closed(state, _CALL):
        try:
            state.declared = packing.aim(state.declared)
        except CudaCallError:
            packing.aim_back()
            packing.drop()
            return None
    state.index = None
    return packing


def put_back(state: GraphState, packing: Packing) -> None:
    """Let the definition's temporaries lie again where they were recorded; no executable graph uses others."""
    state.declared, state.index = packing.aim_back(), None
    packing.drop()


def unpack(state: GraphState, why: str = 'the graph was changed before the first launch') -> None:
    """Do without packed memory whose first launch is still to come: nothing else has shown that it is right."""
    new_edges = edges_of(state)
    if new_edges is None or new_edges.packing is None:
        return
    packing, new_edges.packing, new_edges.report.packed, new_edges.report.unpacked = new_edges.packing, None, None, why
    with whole_or_closed(state, _CALL), state.relaxed():
        state.declared, state.index = packing.aim_back(), None
        instantiate(state)
        packing.drop()
    if new_edges.trial is not None:
        new_edges.trial.gone = ()
    if new_edges.report.kept:
        state.restore(new_edges)
    aim(state)


@contextmanager
def as_recorded(state: GraphState) -> Iterator[None]:
    """Let the definition's temporaries lie where they were recorded, as long as nothing has shown that their packed
    memory is right: what is found out in here holds for the recorded addresses."""
    new_edges = edges_of(state)
    packing = None if new_edges is None else new_edges.packing
    if packing is None:
        yield
        return
    with whole_or_closed(state, _CALL):
        state.declared, state.index = packing.aim_back(), None
    try:
        yield
    finally:
        with whole_or_closed(state, _CALL):
            state.declared, state.index = packing.aim(state.declared), None


def _packing(state: GraphState, levels: Sequence[Level], sight: Sight, edges: Pairs) -> Packing | None:
    """Temporaries laid for an order, as a packing that is not applied yet; None where it would save nothing.

    Where the packed memory is that of other graphs as well, it saves something in any case.

    The nodes have the addresses that they were recorded with. Raises MemoryError and CudaCallError.
    """
    if len(levels) > 1 or state.plan is not None or any(one.call != NewEdges.call for one in state.alterations):
        return None
    level = levels[0]
    recorded = Order(len(level.handles), level.recorded)
    if 'movable' not in sight.found:
        sight.found['movable'] = _movable_blocks(state, level, sight, recorded)
    aims, moved = sight.found['movable']
    spans = [TemporarySpan(one.high - one.low, tuple(recorded.sequence[n] for n in one.uses)) for one, _block in moved]
    orders = [recorded] if set(edges) == set(level.recorded) else [recorded, Order(len(level.handles), edges)]
    layout, least = packed(orders, spans), 0 if state.memory.packs else 1
    saved = sum(one.size for one in spans) - layout.size
    if not spans or saved < least:
        return None
    return Packing(state.memory, aims, moved, layout, sight.definitions.own_by_argument(level.graph, sight.blocks))


def _movable_blocks(
    state: GraphState, level: Level, sight: Sight, recorded: Order
) -> tuple[list[Aim], list[tuple[Temporary, PoolBlock]]]:
    """The temporaries that may lie elsewhere, and the nodes that have addresses of them."""
    blocks = sorted(state.memory.temporaries(), key=_low)
    found = _examined(level, sight, recorded, blocks) if blocks else []
    aims = [one for one in _aims(state.device, level.graph, found) if one.settled()]
    return aims, [(one, block) for one, block in zip(found, blocks) if not one.stays]


def _examined(level: Level, sight: Sight, recorded: Order, blocks: Sequence[PoolBlock]) -> list[Temporary]:
    known, g = sight.definitions, level.graph
    infos = {info.handle: info for info in known.infos(g)}
    touched, alone = known.accesses(g), memory_of(known, g, sight.blocks)
    memory = memory_of(known, g, sight.blocks, by_word=True) if known.declared else alone
    handles = [level.handles[n] for n in recorded.sequence]
    nodes = [SeenNode(infos[h], touched[h], memory[h], known.declared.get(h), alone[h] is None) for h in handles]
    place = {handle: number for number, handle in enumerate(handles)}
    return examined(
        nodes,
        [Temporary(_low(one), _low(one) + one.size, _lives(one, place), one.of_library) for one in blocks],
    )


def _aims(device: Any, g: int, blocks: Sequence[Temporary]) -> list[Aim]:
    words: dict[int, list[tuple[NodeWord, Temporary]]] = {}
    for block in blocks:
        for word in block.words if not block.stays else ():
            words.setdefault(word.info.handle, []).append((word, block))
    return [Aim(device, g, several[0][0].info, several) for several in words.values()]


def _low(block: PoolBlock) -> int:
    return int(block.pointer.ptr)


def _lives(block: PoolBlock, place: Mapping[int, int]) -> list[tuple[int, int]] | None:
    """When a block was in use, by the places of nodes; None where that is not known."""
    found = []
    for since, until in block.lives:
        if since is None or not place.keys() >= {*since, *(until or ())}:
            return None
        end = len(place) if until is None else max((place[node] for node in until), default=-1)
        found.append((max((place[node] for node in since), default=-1), end))
    return found
