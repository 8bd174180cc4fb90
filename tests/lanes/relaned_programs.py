"""Random programs, recorded as they are and in the order that their data needs: every launch has to give equal bits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import capturekit as ck
from tests.agreement.choices import Choices
from tests.agreement.trying import Kind, Outcome
from tests.analysis.test_races import ARRAYS, LANES, VIEWS, N, Op, Wait, record
from tests.lanes.test_relane import OPERATIONS, SAME, run

#: One way to make a graph of a program: it returns the graph, the arrays to fill before a launch, and those to read.
Way = Callable[[Any], tuple[ck.Graph, list[Any], list[Any]]]
#: Launches of each graph: the first one is compared by capturekit itself.
LAUNCHES = 3


def of_views(chance: random.Random) -> list[Op | Wait]:
    """Kernels on views of two arrays, which share bytes or do not, on three lanes with waits, or on one."""
    lanes = chance.choice((1, LANES))
    found: list[Op | Wait] = []
    for _ in range(chance.randint(2, 14)):
        if lanes > 1 and not chance.randrange(3):
            found.append(Wait(*chance.sample(range(LANES), 2)))
        else:
            views = [(chance.randrange(ARRAYS), chance.choice(sorted(VIEWS))) for _ in range(2)]
            found.append(Op(chance.randrange(lanes), views[0], chance.choice((None, views[1]))))
    return found


def of_arrays(chance: random.Random) -> list[tuple[str, int, int]]:
    """Ordinary code with temporaries, products, reductions, scans and sorts."""
    return [(chance.choice(OPERATIONS), chance.randrange(4), chance.randrange(4)) for _ in range(chance.randint(2, 12))]


def with_views(program: list[Op | Wait], relaned: bool) -> Way:
    def way(cp: Any) -> tuple[ck.Graph, list[Any], list[Any]]:
        arrays = [cp.arange(N, dtype=cp.float32) for _ in range(ARRAYS)]
        graph = record(cp, arrays, program)
        if relaned and not graph.races():
            graph.relane()
        return graph, arrays, arrays

    return way


def with_arrays(program: list[tuple[str, int, int]], **options: Any) -> Way:
    def way(cp: Any) -> tuple[ck.Graph, list[Any], list[Any]]:
        inputs = [cp.zeros((4, 4)) for _ in range(4)]
        arrays = list(inputs)
        with ck.capture(**options) as cap:
            run(cp, program, arrays)
        return cap.graph, inputs, [*arrays, *inputs]

    return way


def ways(seed: int) -> tuple[Any, Way, Way]:
    """A program by its seed, and the two ways to make a graph of it."""
    chance = random.Random(seed)
    if seed % 2:
        ops = of_views(chance)
        return ops, with_views(ops, False), with_views(ops, True)
    steps = of_arrays(chance)
    return steps, with_arrays(steps), with_arrays(steps, lanes='auto')


def launched(cp: Any, graph: ck.Graph, inputs: list[Any], outputs: list[Any]) -> list[list[bytes]]:
    """What launches leave, each from the same start."""
    found = []
    for _ in range(LAUNCHES):
        for number, one in enumerate(inputs):
            one[...] = cp.arange(one.size, dtype=one.dtype).reshape(one.shape) / 7 * (number + 1)
        graph.launch()
        found.append([cp.asnumpy(one).tobytes() for one in outputs])
    return found


def tried(cp: Any, seed: int) -> tuple[str, str]:
    """What became of one program, in a word, and what is wrong with it, or ''."""
    program, plainly, anew = ways(seed)
    first, second = plainly(cp), anew(cp)
    try:
        if first[0].races():
            return 'with races', ''
        wanted, found = launched(cp, *first), launched(cp, *second)
        report = second[0].relane(report=True)
        changed = set(second[0].edges) != set(first[0].edges)
        wrong = [*wanted, *found] != [wanted[0]] * (2 * LAUNCHES) or report.compared not in ('', SAME)
        word = 'with other edges' if changed else 'as recorded'
        return word, f'seed {seed}: {report.compared}: {program}' if wrong else ''
    finally:
        for graph in (first[0], second[0]):
            graph.close()


def kind(cp: Any) -> Kind:
    """These programs, on this CuPy."""

    def run(_choices: Choices, seed: int, _number: int) -> Outcome:
        word, error = tried(cp, seed)
        return Outcome(error, Counter([word]))

    return Kind(lambda choices: choices.below(1 << 30), run, tries=0)
