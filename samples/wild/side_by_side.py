"""What the programs beside it share: the same run eagerly and with ``ck.graphed``, compared, timed and reported."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp

import capturekit as ck

#: Calls that are not timed: the first ones run eagerly and record.
WARM = 4

Results = dict[str, cp.ndarray]
Sizes = dict[str, tuple[int, int]]
Run = Callable[[Callable[..., Any], int, int], Results]


class Timed:
    """A function, called through; ``per_call`` is the time of a call, in microseconds, without the first ones."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0
        self.per_call = float('nan')
        self._start = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.calls == WARM:
            cp.cuda.Device().synchronize()
            self._start = time.perf_counter()
        self.calls += 1
        return self.function(*args, **kwargs)

    def done(self) -> None:
        """Wait for the device and take the time."""
        cp.cuda.Device().synchronize()
        if self.calls > WARM:
            self.per_call = (time.perf_counter() - self._start) / (self.calls - WARM) * 1e6


def device() -> str:
    """The name of the GPU, or 'the simulated device'."""
    name = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)['name'].decode()
    return 'the simulated device' if 'simulated' in name else name


def size(sizes: Sizes) -> tuple[int, int]:
    """(n, steps) for the device that is used."""
    return sizes['simulated' if 'simulated' in device() else 'gpu']


def arguments(
    argv: Sequence[str] | None, about: str | None, sizes: Sizes, flags: Sequence[str] = ()
) -> argparse.Namespace:
    """Read ``--n``, ``--steps`` and the flags; the defaults are those of the device that is used."""
    n, steps = size(sizes)
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--n', type=int, default=n, help=f'size of the problem (default here: {n})')
    parser.add_argument('--steps', type=int, default=steps, help=f'calls, at most (default here: {steps})')
    for flag in flags:
        parser.add_argument(flag, action='store_true')
    return parser.parse_args(argv)


def timed_run(run: Run, step: Callable[..., Any], n: int, steps: int) -> tuple[Results, Timed]:
    """Run a program with this step; return its results, and the step as it was timed."""
    timed = Timed(step)
    found = run(timed, n, steps)
    timed.done()
    return found, timed


def largest_error(found: Results, wanted: Results) -> float:
    """The largest difference in any result, relative to the largest value of that result."""
    if found.keys() != wanted.keys() or any(found[name].shape != wanted[name].shape for name in wanted):
        return float('inf')
    errors = [0.0]
    for name, want in wanted.items():
        scale = float(abs(want).max()) or 1.0
        errors.append(float(abs(found[name].astype('f8') - want.astype('f8')).max()) / scale)
    return float('nan') if any(error != error for error in errors) else max(errors)


def tolerance(wanted: Results) -> float:
    """The largest error that rounding may make: sums are taken in another order, step after step."""
    return 1e-5 if any(array.dtype == cp.float32 for array in wanted.values()) else 1e-6


def report(name: str, graphed: Any) -> None:
    """Print the state of each variant that ``graphed`` has made of a function."""
    for number, variant in enumerate(graphed.variants):
        seams = variant.seams if isinstance(variant.seams, int) else len(variant.seams)
        why = f'; {variant.reason}' if variant.reason else ''
        print(
            f'{name}, variant {number}: {variant.state}, {variant.calls} calls, {variant.launches} launches, '
            f'{seams} seams{why}'
        )


def compare(run: Run, step: Callable[..., Any], n: int, steps: int) -> Results:
    """Run with ``step`` and with ``ck.graphed(step)`` from the same start; print what came out, and how fast.

    Ends the program where the results differ. Returns the eager ones.
    """
    graphed = ck.graphed(step)
    wanted, eager = timed_run(run, step, n, steps)
    found, launched = timed_run(run, graphed, n, steps)
    error = largest_error(found, wanted)
    print(f'on {device()}: n = {n}, {eager.calls} calls eagerly, {launched.calls} graphed')
    print(
        f'per call: eager {eager.per_call:.1f} us, graphed {launched.per_call:.1f} us, '
        f'{eager.per_call / launched.per_call:.2f} times as fast'
    )
    report(step.__name__, graphed)
    print(f'largest error against eager: {error:.2g}')
    graphed.clear()
    if not (error <= tolerance(wanted) and launched.calls == eager.calls):
        raise SystemExit('the graphed run differs from the eager run')
    return wanted
