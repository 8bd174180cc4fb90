"""The five programs of ``samples/wild``, written without capture in mind: per call eagerly, and with ``ck.graphed``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import capturekit as ck
from tests.benchmarks.timing import Line, compared

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


def lines(repeats: int = 5) -> Iterator[Line]:
    """A line for each program: whole runs in turn, each from the same start; the first calls of a run don't count."""
    with wild_modules() as load:
        for name in PROGRAMS:
            yield line(load, name, repeats)


def line(load: Callable[[str], Any], name: str, repeats: int) -> Line:
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
        calls = {'graphed': timed('graphed', graphed), 'eager': timed('eager', program.step)}
        made = compared(f'{name}, per call: graphed / eager', calls, 'graphed', 'eager', repeats, warm=1)
        error = beside.largest_error(results['graphed'], results['eager'])
        assert error <= beside.tolerance(results['eager']), f'{name}: graphed and eager differ by {error:g}'
        states = ', '.join(str(variant.state) for variant in graphed.variants)
        made.note = f'{made.medians["eager"] / made.medians["graphed"]:.2f} times as fast; equal; variants: {states}'
        return made
    finally:
        graphed.clear()
