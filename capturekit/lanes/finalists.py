"""The last rounds between orders: the best ones in packed memory beside their own, and the winner with priorities.

Packed memory is taken where it is not slower beyond doubt. Priorities are taken where they are faster beyond doubt:
kernels with the longest path behind them go first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from capturekit.graph.half_changed import taking_back
from capturekit.lanes.contest import BEHIND_ONE, NEEDED, RECORDED, Candidate, Contest
from capturekit.lanes.lane_order import ranks
from capturekit.lanes.needed import rewire
from capturekit.lanes.packed import pack
from capturekit.lanes.report import OrderTimes
from capturekit.model.dag import Order

#: So many orders, besides the recorded one, get packed memory to be timed in.
_PACKED = 2

_Times = Mapping[int, tuple[float, ...]]


def last_rounds(contest: Contest, orders: Mapping[int, Candidate], times: _Times) -> tuple[Candidate, OrderTimes]:
    """Choose a candidate, and tell what launches of each took. The definition is as before afterwards."""
    lanes = {name: one for name, one in times.items() if name > 0}
    simulated = contest.sight.platform.simulated
    told = OrderTimes(times[RECORDED], times[NEEDED], simulated, lanes, times.get(BEHIND_ONE, ()))
    best = orders[told.best]
    packed = _in_packed_memory(contest, orders, times)
    if packed:
        best, again = _beside_their_own(contest, orders, packed)
        told = replace(told, packed={name: again[name, True] for name in packed})
    ranked = _with_priorities(contest, best)
    if ranked is not None:
        last = contest.times({False: best, True: ranked})
        told = replace(told, by_priority=last[True])
        best = ranked if beats(last[True], last[False]) else best
    return best, replace(told, chosen=(best.name, best.packing is not None, bool(best.by_priority)))


# -- packed memory ------------------------------------------------------------------------------------------------


def _beside_their_own(
    contest: Contest, orders: Mapping[int, Candidate], packed: Mapping[int, Candidate]
) -> tuple[Candidate, Mapping[tuple[int, bool], tuple[float, ...]]]:
    """Time orders in packed memory and in their own; return the best, and the times by order and whether packed."""
    pairs = {(name, False): orders[name] for name in packed} | {(name, True): one for name, one in packed.items()}
    chosen = None
    try:
        again = contest.times(pairs)
        chosen = _fastest(again)
    finally:
        for key, one in pairs.items():
            if one.packing is not None and key != chosen:
                one.packing.drop()
    return pairs[chosen], again


def _in_packed_memory(contest: Contest, orders: Mapping[int, Candidate], times: _Times) -> dict[int, Candidate]:
    """The recorded order and the best others, each with its temporaries packed, where that saves anything."""
    others = sorted((name for name in orders if name != RECORDED), key=lambda name: np.median(times[name]))
    return {name: one for name in [RECORDED, *others[:_PACKED]] if (one := _packed(contest, orders[name])) is not None}


def _packed(contest: Contest, one: Candidate) -> Candidate | None:
    state, levels = contest.state, contest.levels
    declared = state.declared
    packing = pack(state, levels, contest.sight, one.edges[0])
    if packing is None:
        return None
    present = [level.present for level in levels]
    try:
        return replace(one, made=contest.with_edges(levels, one.edges), packing=packing)
    finally:
        with taking_back():
            rewire(state.device, levels, present)
            packing.aim_back()
            state.declared = declared


# -- priorities ---------------------------------------------------------------------------------------------------


def _with_priorities(contest: Contest, one: Candidate) -> Candidate | None:
    """The same with a priority for each kernel; None where that changes nothing, or the user has given some."""
    state, level = contest.state, contest.levels[0]
    if one.name == RECORDED or state.recording.by_priority:
        return None
    least, greatest = state.device.priorities()
    wanted = ranks(Order(len(level.handles), one.edges[0]), contest.took, least, greatest)
    if len(set(wanted)) < 2:
        return None
    present, kernels = level.present, level.kernels(state.device)
    before = level.priorities(state.device, kernels)
    chosen = {n: wanted[n] for n in kernels}
    try:
        if one.packing is not None:
            one.packing.aim(state.declared)
        level.give_priorities(state.device, chosen)
        made = contest.with_edges([level], one.edges, by_priority=True)
    finally:
        with taking_back():
            level.give_priorities(state.device, before)
            rewire(state.device, [level], [present])
            if one.packing is not None:
                one.packing.aim_back()
    return replace(one, made=made, by_priority=chosen)


# -- times --------------------------------------------------------------------------------------------------------


def beats(times: Sequence[float], others: Sequence[float]) -> bool:
    """Whether three quarters of some times are shorter than three quarters of others."""
    return bool(np.percentile(times, 75) < np.percentile(others, 25))


def _fastest(times: Mapping[tuple[int, bool], tuple[float, ...]]) -> tuple[int, bool]:
    """The order of the shortest median among those that beat the recorded one, by its number and whether packed."""
    faster = [key for key, one in times.items() if key[0] != RECORDED and beats(one, times[RECORDED, False])]
    name = min(faster, key=lambda key: float(np.median(times[key])), default=(RECORDED, True))[0]
    return name, not beats(times[name, False], times[name, True])
