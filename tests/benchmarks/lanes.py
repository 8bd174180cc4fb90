"""Programs of one stream: as recorded, on lanes by hand, and on lanes that capturekit finds.

Each way is checked against the eager run before anything is timed. By hand, branches go to 2, 4, ... lanes in turn, and
the best number counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import capturekit as ck
from tests.benchmarks.one_stream import Program, one_after_the_other, programs
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, recorded

#: At most so much of the time by hand at the best, and of the time on one lane.
OF_HAND, OF_ONE = 0.95, 1.02
ROUNDS = 9
LANES = (2, 4, 8, 16, 32)
#: One timing takes at least this long, in seconds.
LEAST = 2e-3


def parts(cp: Any, small: bool, timed: bool) -> dict[str, Callable[[], Iterator[Line]]]:
    """The lines of each program, by its name."""
    made = programs(cp, small)
    return {name: partial(lines, cp, make, timed) for name, make in made.items()}


def lines(cp: Any, make: Callable[[], Program], timed: bool) -> Iterator[Line]:
    """Two ratios: what was found against one lane, and against lanes by hand."""
    program = make()
    wanted = [cp.asnumpy(one) for one in program.run(one_after_the_other)]
    graphs: dict[str, Any] = {}
    about: Any = None
    try:
        for name, options in ways(program).items():
            cap, found = record(program, name, options)
            graphs[name] = cap.graph
            if name == 'found':
                about = cap.graph.relane(rounds=ROUNDS)
            cap.graph.launch()
            check(cp, name, found, wanted)
        yield from compared(cp, program, graphs, about) if timed else [Line(program.title, note='checked')]
    except AssertionError as error:
        yield Line(program.title, error=str(error))
    finally:
        for graph in graphs.values():
            graph.close()


def ways(program: Program) -> dict[str, dict[str, Any]]:
    """The options of the capture of each way; those by hand have a number of lanes for a name."""
    by_hand: dict[str, dict[str, Any]] = {str(n): {} for n in LANES if n <= max(program.branches, 2)}
    return {'one lane': {}, **by_hand, 'found': {'lanes': 'auto'}}


def record(program: Program, way: str, options: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Record a program, and return the arrays that a launch fills."""
    found: list[Any] = []

    def work(cap: Any) -> None:
        parallel = partial(cap.parallel, lanes=int(way)) if way.isdigit() else one_after_the_other
        found.extend(program.run(parallel))

    return recorded(work, lines=False, **options), found


def check(cp: Any, way: str, found: list[Any], wanted: list[Any]) -> None:
    """Raise AssertionError where results differ by more than a product in another order."""
    assert len(found) == len(wanted), f'{way}: {len(found)} results, and {len(wanted)} eagerly'
    for array, value in zip(found, wanted):
        scale = float(np.abs(value).max()) + 1e-30
        apart = float(np.abs(cp.asnumpy(array) - value).max()) / scale
        assert apart < np.sqrt(np.finfo(value.dtype).eps), f'{way}: differs from the eager run by {apart:.1e}'


def compared(cp: Any, program: Program, graphs: dict[str, Any], about: Any) -> Iterator[Line]:
    with no_garbage_collection():
        found = medians(in_turn(ROUNDS, {name: back_to_back(cp, graph) for name, graph in graphs.items()}))
    one, auto = found['one lane'], found['found']
    best = min((name for name in found if name.isdigit()), key=found.__getitem__)
    figures = {'one lane': one, f'{best} lanes by hand': found[best], 'found': auto}
    yield Line(
        f'{program.title}: found / one lane',
        auto / one,
        OF_ONE,
        figures,
        note=f'{about.in_short}; {about.times or about.untimed}',
    )
    yield Line(f'{program.title}: found / by hand', auto / found[best], OF_HAND, figures)


def back_to_back(cp: Any, graph: ck.Graph) -> Callable[[], float]:
    """A function that returns the seconds of one launch, of as many in a row as take some milliseconds."""
    start, end = cp.cuda.Event(), cp.cuda.Event()

    def run(count: int) -> float:
        start.record()
        for _ in range(count):
            graph.launch()
        end.record()
        end.synchronize()
        return float(cp.cuda.get_elapsed_time(start, end)) * 1e-3

    run(1)
    count = max(1, min(50, int(LEAST / max(run(1), 1e-6))))
    return lambda: run(count) / count
