"""Functions with state and with host reads: what calls take after twenty of them, in parts of eager ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import capturekit as ck
from capturekit.functions import faster_way
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, now

BEFORE, ROW, SIZE = 20, 40, 1000


class Momentum:
    def __init__(self, cp: Any) -> None:
        self.velocity, self.rate, self.steps = cp.zeros(SIZE), 0.1, 0

    def replaced(self, p: Any, g: Any) -> Any:
        self.velocity = 0.9 * self.velocity + g
        return p - self.rate * self.velocity

    def counted(self, p: Any, g: Any) -> Any:
        self.steps += 1
        return self.replaced(p, g)

    def in_place(self, p: Any, g: Any) -> Any:
        self.velocity *= 0.9
        self.velocity += g
        return p - self.rate * self.velocity


def programs(cp: Any) -> dict[str, Callable[[], Any]]:
    """What makes each function anew."""
    return {
        'momentum that is replaced': lambda: Momentum(cp).replaced,
        'the same and a counter': lambda: Momentum(cp).counted,
        'momentum in place': lambda: Momentum(cp).in_place,
        'a norm that is read': lambda: lambda p, g: p / float(cp.linalg.norm(g)),
        'a decision': lambda: lambda p, g: p * 2 if float(g.sum()) > 0 else p,
        'a sum': lambda: lambda p, g: p + g,
    }


def lines(cp: Any) -> Iterator[Line]:
    """Calls in a row, and calls that are waited for; each also as they were without a choice of the faster way."""
    for name, make in programs(cp).items():
        yield from compared(cp, name, make)


def compared(cp: Any, name: str, make: Callable[[], Any]) -> Iterator[Line]:
    p, g = cp.arange(float(SIZE)), cp.ones(SIZE)
    chosen, stopwatch = ck.graphed(make()), faster_way.STOPWATCH
    warmed(cp, chosen, p, g)
    faster_way.STOPWATCH = lambda _platform: None
    try:
        launched = ck.graphed(make())
        warmed(cp, launched, p, g)
    finally:
        faster_way.STOPWATCH = stopwatch
    ways = {'graphed': chosen, 'eager': make(), 'always launched': launched}
    for how, measure in (('in a row', in_a_row), ('waited for', waited_for)):
        with no_garbage_collection():
            found = medians(in_turn(25, {way: measure(cp, fn, p, g) for way, fn in ways.items()}))
        yield Line(f'{name}, {how}: graphed / eager', found['graphed'] / found['eager'], 1.05, found)


def warmed(cp: Any, fn: Any, p: Any, g: Any) -> None:
    for _ in range(BEFORE):
        fn(p, g)
    cp.cuda.Device().synchronize()


def in_a_row(cp: Any, fn: Any, p: Any, g: Any) -> Callable[[], float]:
    def timed() -> float:
        begun = now()
        for _ in range(ROW):
            fn(p, g)
        taken = now() - begun
        cp.cuda.Device().synchronize()
        return taken / ROW

    return timed


def waited_for(cp: Any, fn: Any, p: Any, g: Any) -> Callable[[], float]:
    def call(p: Any, g: Any) -> None:
        fn(p, g)
        cp.cuda.Device().synchronize()

    return in_a_row(cp, call, p, g)
