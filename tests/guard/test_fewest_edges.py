"""Forks and joins by scopes and by events give a graph the edges that order its nodes as CUDA does, and few more."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest

import capturekit as ck
from capturekit.guard import events

Program = list[Any]


def programs(choose: random.Random, depth: int = 0) -> Program:
    """Work, and scopes of lanes, which have such programs on each lane, waits between lanes, and work beside them."""
    found: Program = []
    for _ in range(choose.randrange(1, 5)):
        if depth < 3 and choose.random() < 0.6:
            lanes = [programs(choose, depth + 1) if choose.random() < 0.8 else [] for _ in range(choose.choice([2, 3]))]
            waits = [choose.sample(range(len(lanes)), 2) for _ in range(choose.randrange(2))]
            found.append((lanes, waits, choose.random() < 0.3))
        elif choose.random() < 0.8:
            found.append('work')
    return found


def by_scopes(program: Program, work: Callable[[], Any], cp: Any) -> None:
    for item in program:
        if item == 'work':
            work()
            continue
        bodies, waits, beside = item
        with ck.fork(len(bodies)) as lanes:
            for lane, body in zip(lanes, bodies):
                with lane:
                    by_scopes(body, work, cp)
            if beside:
                work()
                cp.cuda.get_current_stream().record()
            for first, then in waits:
                lanes[then].wait_event(lanes[first].record())
                with lanes[then]:
                    work()


def edges(cp: Any, record: Callable[[Callable[[], Any]], None]) -> tuple[int, set[tuple[int, int]]]:
    """The number of nodes of a capture, and its edges."""
    x, kept = cp.ones(4), []
    cp.cuda.runtime.deviceSynchronize()
    with cp.cuda.Stream(non_blocking=True), ck.capture() as cap:
        record(lambda: kept.append(x * 2))
    cap.graph.launch()
    cp.cuda.runtime.deviceSynchronize()
    assert all(one.get().tolist() == [2.0] * 4 for one in kept)
    return len(kept), {(a, b) for a, b in cap.graph.describe().arrows}


def order(nodes: int, found: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """All pairs of which one comes after the other."""
    before: list[set[int]] = [set() for _ in range(nodes)]
    for a, b in sorted(found, key=lambda edge: edge[1]):
        assert a < b
        before[b] |= {a} | before[a]
    return {(a, b) for b in range(nodes) for a in before[b]}


class Streams:
    """Random work on a few streams, records of events, and waits for them: also for old ones and for one's own."""

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        self.steps: Program = []
        for _ in range(choose.randrange(20, 60)):
            kind = choose.choice(['work', 'work', 'record', 'record', 'wait', 'wait', 'wait'])
            self.steps.append((kind, choose.randrange(4), choose.random()))

    def __call__(self, work: Callable[[], Any], cp: Any) -> None:
        origin = cp.cuda.get_current_stream()
        streams = [origin, *(cp.cuda.Stream(non_blocking=True) for _ in range(3))]
        known = [origin.record()]
        for one in streams[1:]:
            one.wait_event(known[0])
        for kind, stream, chosen in self.steps:
            if kind == 'work':
                with streams[stream]:
                    work()
            elif kind == 'record':
                known.append(streams[stream].record())
            else:  # mostly for the latest ones
                streams[stream].wait_event(known[int(len(known) * max(chosen, 0.7 * (chosen > 0.3)))])
        for one in streams[1:]:
            origin.wait_event(one.record())


@pytest.mark.parametrize('seed', range(18))
def test_lanes_are_ordered_as_cuda_does(cp: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By scopes of lanes, and by random waits."""
    program = functools.partial(by_scopes, programs(random.Random(seed))) if seed < 6 else Streams(seed)
    nodes, found = edges(cp, lambda work: program(work, cp))
    monkeypatch.setattr(events, 'passed_by', lambda *_: set())
    count, all_of_cuda = edges(cp, lambda work: program(work, cp))
    assert nodes == count
    assert order(nodes, found) == order(nodes, all_of_cuda)
    assert len(found) <= len(all_of_cuda)


def test_a_loop_of_events_has_as_many_edges_as_it_has_to(cp: Any) -> None:
    steps = 12
    sides = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]

    def loop(work: Callable[[], Any]) -> None:
        origin = cp.cuda.get_current_stream()
        for _ in range(steps):
            forked = origin.record()
            for side in sides:
                side.wait_event(forked)
                with side:
                    work()
            for side in sides:
                origin.wait_event(side.record())
            work()

    nodes, found = edges(cp, loop)
    assert nodes == steps * 3
    assert len(found) == 2 * (steps - 1) + 2 * steps


@pytest.mark.parametrize('beside', [False, True])
def test_a_loop_of_scopes_has_as_many_edges_as_it_has_to(cp: Any, beside: bool) -> None:
    steps = 12
    program = [([['work'], ['work']], [], False), *(['work'] if beside else [])] * steps
    nodes, found = edges(cp, lambda work: by_scopes(program, work, cp))
    assert nodes == steps * (2 + beside)
    assert len(found) == 4 * (steps - 1) + 2 * beside
