"""What it takes to go to another device in a graph: copies, waits, and whole branches that are moved there by hand.

A branch that ``devices='auto'`` would move takes its input along and brings its result back. It is timed beside the
same branch on one lane and on a lane of its own, both on the first device; and on the second device without the copies,
as a program would have it that keeps its data there. Each way gives the same bits, which is checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import capturekit as ck
from tests.benchmarks.lanes import back_to_back
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection, recorded

ROUNDS = 7
#: Copies in a row in one graph, and bytes of each.
COPIES, SIZES = 20, (8, 1 << 16, 1 << 20, 1 << 23, 1 << 26, 1 << 28)
#: Kernels in a row, each waiting for the one before it.
HOPS = 100


@dataclass(frozen=True)
class Branch:
    """Work on an input that lies on the first device; its result is needed there. ``count`` times, on so many rows."""

    title: str
    work: Callable[[Any, Any], Any]
    shape: tuple[int, ...]
    count: int


def _small(cp: Any, x: Any) -> Any:
    return cp.tanh(x) + 1


def _product(cp: Any, x: Any) -> Any:
    return (x @ x) * (1 / x.shape[0])


BRANCHES = (
    Branch('20 small kernels on 16 kB', _small, (4096,), 10),
    Branch('200 small kernels on 16 kB', _small, (4096,), 100),
    Branch('20 kernels on 16 MB', _small, (1 << 22,), 10),
    Branch('20 kernels on 256 MB', _small, (1 << 26,), 10),
    Branch('products of 256', _product, (256, 256), 10),
    Branch('products of 1024', _product, (1024, 1024), 10),
    Branch('products of 4096', _product, (4096, 4096), 5),
)


def parts(cp: Any, small: bool, timed: bool) -> dict[str, Callable[[], Iterator[Line]]]:
    """Copies and waits, and each branch. On fewer than two devices there is nothing to measure."""
    if cp.cuda.runtime.getDeviceCount() < 2:
        raise SystemExit('this table needs two GPUs')
    branches = [Branch(b.title, b.work, (8,) * len(b.shape), 2) for b in BRANCHES] if small else BRANCHES
    return {
        'copies': lambda: checked('copies', copies(cp, SIZES[:2] if small else SIZES, timed)),
        'waits': lambda: checked('waits', waits(cp, 4 if small else HOPS, timed)),
        'branches': lambda: (line for one in branches for line in checked(one.title, moved(cp, one, timed))),
    }


def checked(title: str, lines: Iterator[Line]) -> Iterator[Line]:
    """The lines; where a check fails, one that says so."""
    try:
        yield from lines
    except AssertionError as error:
        yield Line(title, error=str(error))


def arrays(cp: Any, device: int, value: Any) -> Any:
    with cp.cuda.Device(device):
        made = cp.asarray(value)
        cp.cuda.Device().synchronize()
    return made


def copies(cp: Any, sizes: tuple[int, ...], timed: bool) -> Iterator[Line]:
    """A copy to the other device beside one on the same device: the time of one of several in a row."""
    for nbytes in sizes:
        value = np.arange(nbytes // 8, dtype='f8')
        x, here, there = (arrays(cp, device, one) for device, one in ((0, value), (0, value * 0), (1, value * 0)))

        def row(_cap: Any, to: Any, source: Any = x) -> None:
            for _ in range(COPIES):
                cp.copyto(to, source)

        graphs = {
            'same device': recorded(partial(row, to=here)).graph,
            'other device': recorded(partial(row, to=there)).graph,
        }
        for graph in graphs.values():
            graph.launch()
        cp.cuda.Device().synchronize()
        assert all(bool((cp.asnumpy(to) == value).all()) for to in (here, there)), 'a copy differs'
        yield line(cp, f'copies of {nbytes:,} bytes: to the other device / on the same', graphs, COPIES, timed)


def waits(cp: Any, hops: int, timed: bool) -> Iterator[Line]:
    """Kernels of one thread, each waiting for the one before: on one lane, on two of one device, on two devices."""

    def record(cap: Any, devices: list[int]) -> None:
        with cap.fork(devices=devices) as lanes:
            for hop in range(hops):
                lane, before = lanes[hop % len(lanes)], lanes[(hop - 1) % len(lanes)]
                if hop and lane is not before:
                    with before:
                        event = before.stream.record()
                    lane.stream.wait_event(event)
                with lane:
                    cp.add(counters[lane.device], 1, out=counters[lane.device])

    counters = [arrays(cp, device, np.zeros(1)) for device in (0, 1)]
    ways = {'one lane': [0], 'two lanes': [0, 0], 'two devices': [0, 1]}
    graphs = {name: recorded(partial(record, devices=devices)).graph for name, devices in ways.items()}
    for graph in graphs.values():
        graph.launch()
    cp.cuda.Device().synchronize()
    assert [float(cp.asnumpy(one)[0]) for one in counters] == [2.5 * hops, hops / 2], 'a kernel is missing'
    yield line(
        cp, f'{hops} kernels in turn: on two devices / on two lanes', graphs, hops, timed, 'two devices', 'two lanes'
    )


def moved(cp: Any, branch: Branch, timed: bool) -> Iterator[Line]:
    """Two equal branches: on one lane, on two, one of them on the other device, and there with its data."""
    value = np.random.default_rng(2).uniform(-1, 1, branch.shape).astype('f4')
    x, there = arrays(cp, 0, value), arrays(cp, 1, value)

    def run(start: Any) -> Any:
        for _ in range(branch.count):
            start = branch.work(cp, start)
        return start

    def record(cap: Any, devices: list[int], carried: bool) -> None:
        if len(devices) == 1:
            found[:] = [run(x), run(x + 0)]
            return
        with cap.fork(devices=devices) as (first, second):
            with first:
                one = run(x)
            with second:
                two = run((cp.asarray(x) if carried else there) + 0)
        found[:] = [one, cp.asarray(two) if carried else two]

    ways = {
        'one lane': ([0], True),
        'two lanes': ([0, 0], True),
        'moved': ([0, 1], True),
        'data there': ([0, 1], False),
    }
    graphs: dict[str, ck.Graph] = {}
    wanted: Any = None
    for name, (devices, carried) in ways.items():
        found: list[Any] = []
        graphs[name] = recorded(partial(record, devices=devices, carried=carried), lines=False).graph
        graphs[name].launch()
        cp.cuda.Device().synchronize()
        results = [cp.asnumpy(one) for one in found]
        wanted = results[0] if wanted is None else wanted
        assert all((one == wanted).all() for one in results), f'{branch.title}, {name}: other bits'
    yield line(cp, f'{branch.title}: moved / two lanes', graphs, 1, timed, 'moved', 'two lanes')


def line(cp: Any, title: str, graphs: Any, count: int, timed: bool, one: str = '', other: str = '') -> Line:
    """The time of one of ``count`` things in each graph; the ratio of two graphs, by default the last to the first."""
    try:
        if not timed:
            return Line(title, note='checked')
        with no_garbage_collection():
            found = medians(
                in_turn(ROUNDS, {name: back_to_back(cp, graph) for name, graph in graphs.items()}), 1e6 / count
            )
        names = list(found)
        return Line(title, found[one or names[-1]] / found[other or names[0]], medians=found)
    finally:
        for graph in graphs.values():
            graph.close()
