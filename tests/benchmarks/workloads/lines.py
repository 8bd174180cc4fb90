"""The workloads as lines: each way checked, then all of them timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, now
from tests.benchmarks.workloads.way import Absent, Way, Workload, check

ROUNDS = 15
#: One timing takes at least this long, in seconds: calls are repeated until it does.
LEAST = 4e-3
MOST_CALLS = 2_000
#: Calls before the first timing: importing the other libraries may have changed what a recording depends on.
WARM = 4
#: Further ratios: this way against that one.
AGAINST = (
    ('graph', 'torch graph'),
    ('fused graph', 'torch graph'),
    ('fused graph', 'fused'),
    ('graph, fused', 'fused graph'),
    ('graph, fast', 'fused graph'),
    ('graphed', 'graph'),
    ('torch graph', 'torch eager'),
    ('fused graph', "torch's own kernel in a graph"),
    ('graphed, fused', 'torch compile'),
    ('graphed, fused', 'jax'),
)


def lines(cp: Any, workload: Workload, timed: bool = True, ways: Sequence[str] = ()) -> Iterator[Line]:
    """Check every way of a workload, then time those that passed: a line for each, and for each further ratio.

    A way that fails is a line with an error, and one that is not here says so; both have no ratio. ``ways``: only
    these, and ``eager``, with which all are compared.
    """
    good: dict[str, Way] = {}
    bad: list[Line] = []
    made: list[Way] = []
    try:
        wanted = workload.reference()
        for name, make in workload.ways().items():
            if ways and name not in ('eager', *ways):
                continue
            try:
                made.append(way := make())
                check(workload, way, wanted)
                good[name] = way
            except Absent as absent:
                bad.append(Line(title(workload, name), note=f'absent: {absent}'))
            except Exception as error:
                bad.append(Line(title(workload, name), error=f'{type(error).__name__}: {error}'.splitlines()[0]))
        found = compared(cp, good) if timed and 'eager' in good else {}
        for name, way in good.items():
            yield of_one(title(workload, name), name, found, way)
        yield from bad
        for name, against in AGAINST:
            if name in found and against in found:
                yield ratio(f'{workload.title}: {name} / {against}', found, name, against)
    finally:
        for way in made:
            way.close()


def title(workload: Workload, name: str) -> str:
    return f'{workload.title}: eager' if name == 'eager' else f'{workload.title}: {name} / eager'


def of_one(title: str, name: str, found: dict[str, float], way: Way) -> Line:
    """A way against the eager one; the eager way's own line has the medians of all."""
    note = f'checked; {way.about()}'.removesuffix('; ')
    if not found:
        return Line(title, note=note)
    if name == 'eager':
        return Line(title, medians=found, note=note)
    return ratio(title, found, name, 'eager', note)


def ratio(title: str, found: dict[str, float], name: str, against: str, note: str = '') -> Line:
    medians = {key: found[key] for key in (name, against)}
    return Line(title, found[name] / found[against], medians=medians, note=note)


def compared(cp: Any, ways: dict[str, Way]) -> dict[str, float]:
    """Microseconds of a call of each way, the device's work included: the medians of rounds taken in turn."""
    with no_garbage_collection():
        return medians(in_turn(ROUNDS, {name: batched(cp, way) for name, way in ways.items()}))


def batched(cp: Any, way: Way) -> Callable[[], float]:
    """A function that returns the seconds of one call: of so many that they take some milliseconds together."""

    call = way.call

    def run(count: int) -> float:
        cp.cuda.runtime.deviceSynchronize()
        start = now()
        for _ in range(count):
            call()
        way.wait()
        cp.cuda.runtime.deviceSynchronize()
        return now() - start

    count = 1
    run(WARM)
    while run(count) < LEAST and count < MOST_CALLS:
        count *= 2
    return lambda: run(count) / count
