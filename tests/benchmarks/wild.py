"""The five programs of ``samples/wild``, written without capture in mind: per call eagerly, and with ``ck.graphed``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import capturekit as ck
from tests.benchmarks.timing import Line, in_turn, medians, no_garbage_collection

WILD = Path(__file__).parents[2] / 'samples' / 'wild'
PROGRAMS = ('kmeans', 'conjugate_gradient', 'kalman', 'fdtd', 'mlp')
#: Calls of one timed run, at most.
STEPS = 200


@contextmanager
def wild_modules() -> Iterator[Callable[[str], Any]]:
    """A function that imports modules of ``samples/wild`` as its scripts do; afterwards they are forgotten."""
    names: set[str] = {path.stem for path in WILD.glob('*.py')}
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(WILD))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(WILD))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def rows(repeats: int = 5) -> list[dict[str, Any]]:
    """A row for each program: microseconds per call, graphed / eager as ``ratio``, and the states of the variants."""
    with wild_modules() as load:
        return [row(load, name, repeats) for name in PROGRAMS]


def lines() -> Iterator[Line]:
    """The rows as lines of the table."""
    for found in rows():
        yield Line(
            f'{found["name"]}, per call: graphed / eager',
            found['ratio'],
            medians={'graphed': found['graphed_us'], 'eager': found['eager_us']},
            note=f'{1e6 / found["graphed_us"]:,.0f} calls a second, {1 / found["ratio"]:.2f} times as fast; '
            f'equal; variants: {found["state"]}',
        )


def row(load: Callable[[str], Any], name: str, repeats: int) -> dict[str, Any]:
    """Whole runs in turn, each from the same start; the first calls of a run don't count."""
    program, beside = load(name), load('side_by_side')
    n, steps = beside.size(program.SIZES)
    results: dict[str, Any] = {}
    graphed = ck.graphed(program.step)

    def timed(kind: str, step: Callable[..., Any]) -> Callable[[], float]:
        def once() -> float:
            results[kind], clock = beside.timed_run(program.run, step, n, min(steps, STEPS))
            return float(clock.per_call) * 1e-6

        return once

    try:
        with no_garbage_collection():
            calls = {'eager': timed('eager', program.step), 'graphed': timed('graphed', graphed)}
            found = medians(in_turn(repeats, calls, warm=1))
        error = beside.largest_error(results['graphed'], results['eager'])
        assert error <= beside.tolerance(results['eager']), f'{name}: graphed and eager differ by {error:g}'
        return {
            'name': name,
            'eager_us': found['eager'],
            'graphed_us': found['graphed'],
            'ratio': found['graphed'] / found['eager'],
            'state': ', '.join(str(variant.state) for variant in graphed.variants),
        }
    finally:
        graphed.clear()
