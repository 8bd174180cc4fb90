"""Two nodes that nothing orders, run one way round and the other: what comes out, and whether it is the same.

Only the simulated device can be told in which order to run a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from capturekit.model.dag import Order
from capturekit.simulated.device.address_space import AddressSpace


def differing(
    device: Any, memory: AddressSpace, g: int, first: int, second: int
) -> tuple[list[int], list[tuple[int, int]]] | None:
    """Run a definition with the node ``first`` before ``second``, and the other way round, from the same memory.

    Returns the second order, as handles, and where it left other bytes: address of the first, and how many, for each
    memory block. None where both orders give the same, or the edges allow one of them only. Memory is as before.
    """
    handles = device.graph_nodes(g)
    number = {handle: n for n, handle in enumerate(handles)}
    edges = [(number[a], number[b]) for a, b in device.graph_edges(g)]
    if first not in number or second not in number:  # in a body, which runs or does not
        return None
    a, b = number[first], number[second]
    try:
        orders = [Order(len(handles), [*edges, extra]).sequence for extra in ((a, b), (b, a))]
    except ValueError:
        return None
    device.finish()
    before = memory.contents()
    x = device.graph_instantiate(g)
    try:
        results = []
        for order in orders:
            _run(device, x, [handles[n] for n in order])
            results.append(memory.contents())
            memory.restore(before)
    finally:
        memory.restore(before)
        device.graph_exec_destroy(x)
    found = []
    for address, one in results[0].items():
        apart = np.flatnonzero(one != results[1].get(address, one))
        if apart.size:
            found.append((address + int(apart[0]), int(apart.size)))
    return ([handles[n] for n in orders[1]], found) if found else None


def _run(device: Any, x: int, order: Sequence[int]) -> None:
    device.launch_in_order(x, order)
