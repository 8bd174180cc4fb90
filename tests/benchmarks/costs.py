"""What capturekit costs: beside CuPy with no capture open, while recording, at a launch, by the number of nodes, and
where calls to CUDA are watched."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import capturekit as ck
from capturekit.driver.cuda import current
from capturekit.guard import GUARD
from tests.benchmarks.timing import Line, batch, compared, medians, now, recorded, seconds

ROOT = Path(__file__).parents[2]


def beside() -> Iterator[Line]:
    """Elementwise operations with no capture open, before and after the import of capturekit in one and the same
    process. Five processes, the median of their ratios."""
    ran = [
        subprocess.run(
            [sys.executable, '-m', 'tests.benchmarks.worker'], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
        )
        for _ in range(5)
    ]
    found: list[dict[str, float]] = [json.loads(one.stdout) for one in ran]
    _, again, *states = found[0]
    spread = [one[again] / one['first'] for one in found]
    for state in states:
        yield Line(
            f'CuPy op, no capture open: {state} / before the import',
            statistics.median(one[state] / one['first'] for one in found),
            target=1.0,
            medians=medians({'with': [one[state] for one in found], 'without': [one[again] for one in found]}),
            note=f'five processes; without capturekit, measured twice in each: {min(spread):.3f} to {max(spread):.3f}',
        )


def recorders(cp: Any, operations: Callable[[], None], issue: dict[str, list[float]]) -> dict[str, Callable[[], float]]:
    """The same operations recorded with and without the guard; both with a pool of their own, as a capture needs.

    What the operations alone take is added to ``issue``.
    """

    def bare() -> float:
        start = now()
        stream, pool = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
        with cp.cuda.using_allocator(pool.malloc), stream:
            stream.begin_capture()
            issue['bare'].append(seconds(operations))
            graph = stream.end_capture()
        taken = now() - start
        del graph
        return taken

    def guarded(kind: str, lines: bool) -> float:
        start = now()
        with ck.capture(lines=lines) as cap:
            issue[kind].append(seconds(operations))
        taken = now() - start
        cap.graph.close()
        return taken

    return {
        'capturekit': lambda: guarded('capturekit', True),
        'without lines': lambda: guarded('without lines', False),
        'bare': bare,
    }


def recording(cp: Any, count: int = 1000) -> Iterator[Line]:
    """Recording 1,000 operations, from opening the capture to the graph that can be launched."""
    x = cp.arange(1024, dtype='f4')
    side = cp.cuda.Stream(non_blocking=True)

    def chain() -> None:
        y = x
        for _ in range(count):
            y = y + 1

    def in_place() -> None:
        for _ in range(count):
            cp.add(x, 1, x)

    def forked() -> None:
        main = cp.cuda.get_current_stream()
        for _ in range(count // 10):
            side.wait_event(main.record())
            with side:
                for _ in range(5):
                    x + 1
            for _ in range(5):
                x + 2
            main.wait_event(side.record())

    for name, operations, target in (
        ('operations with new arrays', chain, 1.10),
        ('operations in place', in_place, 1.10),
        ('operations, a fork and a join every 10 of them', forked, None),
    ):
        taken: dict[str, list[float]] = {'capturekit': [], 'without lines': [], 'bare': []}
        first = compared(
            f'recording {count:,} {name}: guard / bare begin_capture ... end_capture, per op',
            recorders(cp, operations, taken),
            'capturekit',
            'bare',
            scale=1e6 / count,
            target=target,
        )
        found, issue = first.medians, medians({kind: values[2:] for kind, values in taken.items()}, 1e6 / count)
        first.note = (
            f'the operations alone, without opening and ending: {issue["capturekit"] / issue["bare"]:.3f} '
            f'({issue["capturekit"]:.3g} / {issue["bare"]:.3g} us)'
        )
        yield first
        yield Line(
            f'recording {count:,} {name}: lines not followed / bare, per op', found['without lines'] / found['bare']
        )
        yield Line(
            f'recording {count:,} {name}: lines followed / not followed, per op',
            found['capturekit'] / found['without lines'],
            target=1.5,
        )


def launching(cp: Any) -> Iterator[Line]:
    """The host's time for one launch of a graph of one kernel; batches that the device can keep up with."""
    x = cp.arange(1024, dtype='f4')
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        cap = recorded(lambda _cap: x + 1)
        stream.begin_capture()
        keep = x + 1
        cupy_graph = stream.end_capture()
        graph, handle, ptr = cap.graph, cap.graph.graphExec, stream.ptr
        raw = cp.cuda.runtime.graphLaunch
        from cuda.bindings import runtime

        bound, bound_stream = runtime.cudaGraphExec_t(handle), runtime.cudaStream_t(ptr)
        calls: dict[str, Callable[[], Any]] = {
            'graph.launch()': graph.launch,
            'graph.launch(stream)': lambda: graph.launch(stream),
            'cupy.cuda.runtime.graphLaunch': lambda: raw(handle, ptr),
            'cupy.cuda.Graph.launch()': cupy_graph.launch,
            'cuda.bindings cudaGraphLaunch': lambda: runtime.cudaGraphLaunch(bound, bound_stream),
        }
        line = compared(
            'graph.launch() / cupy.cuda.runtime.graphLaunch with a constant stream',
            {name: batch(cp, call) for name, call in calls.items()},
            'graph.launch()',
            'cupy.cuda.runtime.graphLaunch',
            40,
            target=1.15,
        )
        del keep
    yield line
    found = line.medians
    for name in found:
        if name not in ('graph.launch()', 'cupy.cuda.runtime.graphLaunch'):
            yield Line(f'graph.launch() / {name}', found['graph.launch()'] / found[name])


def nodes(cp: Any, sizes: tuple[int, ...] = (100, 1_000, 10_000, 100_000)) -> Iterator[Line]:
    """The cost of a node by the number of nodes: recording, ending and instantiating."""
    totals: dict[str, list[float]] = {'capturekit': [], 'bare': []}
    for count in sizes:
        repeats, warm = {100: (25, 3), 1_000: (15, 2), 10_000: (5, 1)}.get(count, (2, 0))
        line = compared(
            f'{count:,} nodes: capturekit / bare CuPy, per node',
            counted(cp, count),
            'capturekit',
            'bare',
            repeats,
            warm=warm,
        )
        for kind, value in line.medians.items():
            totals[kind].append(value)
        yield line
    for kind, target in (('capturekit', 1.3), ('bare', None)):
        values = totals[kind]
        yield Line(
            f'flatness over {sizes[0]:,} ... {sizes[-1]:,} nodes, {kind}: dearest / cheapest size, per node',
            max(values) / min(values),
            target=target,
            medians={f'{count:,}': value for count, value in zip(sizes, values)},
        )


def counted(cp: Any, count: int) -> dict[str, Callable[[], float]]:
    """Two ways to a graph of ``count`` operations in place, which return the seconds of a node."""
    add, x, runtime = cp.add, cp.zeros(64, 'f4'), cp.cuda.runtime
    add(x, 1, x)

    def operations() -> None:
        for _ in range(count):
            add(x, 1, x)

    def guarded() -> float:
        start = now()
        with ck.capture() as cap:
            operations()
        taken = now() - start
        assert cap.recording.node_count == count
        cap.graph.close()
        return taken / count

    def bare() -> float:
        start = now()
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            runtime.streamBeginCapture(stream.ptr, runtime.streamCaptureModeRelaxed)
            operations()
            graph = runtime.streamEndCapture(stream.ptr)
            handle = runtime.graphInstantiate(graph)
        taken = now() - start
        runtime.graphExecDestroy(handle)
        runtime.graphDestroy(graph)
        return taken / count

    return {'capturekit': guarded, 'bare': bare}


# -- that the calls to CUDA are watched --------------------------------------------------------------------------


@contextmanager
def watched() -> Iterator[None]:
    told: list[Any] = []
    hear = told.append
    GUARD.state.call_watch.open(current(), hear)
    try:
        yield
    finally:
        GUARD.state.call_watch.close(hear)


def without_and_with(name: str, measure: Callable[[bool], float], per: int = 1) -> Line:
    """A line of a thing done without and with a watch, in turn."""
    calls = {'without': lambda: measure(False), 'watched': lambda: measure(True)}
    return compared(name, calls, 'watched', 'without', scale=1e6 / per)


def watching(cp: Any, count: int = 1000) -> Iterator[Line]:
    """Recording, a capture, and an operation outside of captures; each without and with a watch."""
    x = cp.arange(1024, dtype='f4')

    def operations() -> None:
        for _ in range(count):
            cp.add(x, 1, x)

    def recording(watch: bool) -> float:
        with ck.capture(watch=watch, lines=False) as cap:
            taken = seconds(operations)
        cap.graph.close()
        return taken

    def opening(watch: bool) -> float:
        start = now()
        with ck.capture(watch=watch, lines=False) as cap:
            cp.add(x, 1, x)
        taken = now() - start
        cap.graph.close()
        return taken

    def eager(watch: bool) -> float:
        with watched() if watch else nullcontext():
            taken = seconds(operations)
            cp.cuda.Device().synchronize()
        return taken

    yield without_and_with('recording 1,000 operations in place: watched / not watched, per op', recording, count)
    yield without_and_with('a capture of one operation: watched / not watched', opening)
    yield without_and_with('CuPy op, no capture open: watched / not watched', eager, count)
