"""How things are timed: in turn, many times over, and then medians and ratios within the one run."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import capturekit as ck
from capturekit.model.cleanup import Uncollected

now = time.perf_counter
#: How often each thing is done, if nothing else is said.
REPEATS = 25


@dataclass
class Line:
    """One line of the table: a ratio, what it should be at most, and the medians behind it (by name, with a unit)."""

    name: str
    ratio: float | None = None
    target: float | None = None
    medians: dict[str, float] = field(default_factory=dict)
    unit: str = 'us'
    note: str = ''
    #: Why there is no ratio: a check that failed, or what was raised.
    error: str = ''

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        ratio = '      -' if self.ratio is None else f'{self.ratio:7.3f}'
        target = '' if self.target is None else f' (at most {self.target:.2f})'
        values = ', '.join(f'{name} {value:.3g} {self.unit}' for name, value in self.medians.items())
        note = f'\n{"":10}{self.note}' if self.note else ''
        error = f'\n{"":10}ERROR: {self.error}' if self.error else ''
        return f'{ratio}   {self.name}{target}{": " if values else ""}{values}{note}{error}'


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Held off for what is compared, as it is in the block of a capture."""
    gc.collect()
    with Uncollected():
        yield


def recorded(work: Callable[[Any], object], **options: Any) -> Any:
    """A capture of ``work(cap)``."""
    with ck.capture(**options) as cap:
        work(cap)
    return cap


def seconds(call: Callable[[], Any]) -> float:
    start = now()
    call()
    return now() - start


def in_turn(repeats: int, calls: dict[str, Callable[[], float]], warm: int = 2) -> dict[str, list[float]]:
    """What each call returns, ``repeats`` times, taken in turn and in changing order; the first rounds don't count."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for n in range(warm + repeats):
        names.append(names.pop(0))
        for name in names:
            value = calls[name]()
            if n >= warm:
                samples[name].append(value)
    return samples


def medians(samples: dict[str, list[float]], scale: float = 1e6) -> dict[str, float]:
    return {name: statistics.median(values) * scale for name, values in samples.items()}


def compared(
    name: str,
    calls: dict[str, Callable[[], float]],
    one: str,
    other: str,
    repeats: int | None = None,
    *,
    scale: float = 1e6,
    warm: int = 2,
    **about: Any,
) -> Line:
    """The line of two ways to do a thing, with the medians of all."""
    with no_garbage_collection():
        found = medians(in_turn(repeats or REPEATS, calls, warm), scale)
    return Line(name, found[one] / found[other], medians=found, **about)


def finished(cp: Any, call: Callable[[], Any]) -> Callable[[], float]:
    """A function that returns the seconds from a call until the idle device has done its work."""

    def timed() -> float:
        cp.cuda.runtime.deviceSynchronize()
        start = now()
        call()
        cp.cuda.runtime.deviceSynchronize()
        return now() - start

    return timed


def batch(
    cp: Any, call: Callable[[], Any], count: int = 200, wait: Callable[[], Any] = lambda: None
) -> Callable[[], float]:
    """A function that makes a call many times over, returns the host's seconds of one, and leaves the device idle."""

    def timed() -> float:
        start = now()
        for _ in range(count):
            call()
            wait()
        taken = now() - start
        cp.cuda.runtime.deviceSynchronize()
        return taken / count

    return timed
