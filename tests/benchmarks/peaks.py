"""What graphs hold of the device's memory, against the most that the same work takes eagerly.

Pools only grow, so what they hold in the end is their peak. ``device`` is what the driver says is gone since before:
with it come the executable graphs themselves, and what libraries and CuPy's other pools took. A graph with matrix
products holds a workspace for cuBLAS, which the eager run has outside of its pool; the variants of a function share it,
and their temporaries. Graphs that take their memory from one pool share none of it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import capturekit as ck
from tests.benchmarks.timing import Line
from tests.benchmarks.workloads import CheckFailed, Classifier

VARIANTS = 20
Inputs = list[tuple[Any, ...]]


def row_of_operations(x: Any) -> Any:
    """Elementwise work on eight arrays at a time."""
    parts = [x * k + 1 for k in range(8)]
    for _ in range(5):
        parts = [a * 0.5 + b for a, b in zip(parts, parts[1:] + parts[:1])]
    return sum(parts)


def jobs(cp: Any, small: bool) -> Iterator[tuple[str, Callable[..., Any], Inputs]]:
    """A function each, and its arguments in twenty sizes; the last is the largest."""
    step = 64 if small else 1 << 16
    yield (
        'operations on eight arrays',
        row_of_operations,
        [(cp.arange(n * step, dtype='f4') / np.float32(n * step),) for n in range(1, VARIANTS + 1)],
    )
    net = Classifier(cp, VARIANTS, *((8, 4, 6, 12) if small else (32, 32, 64, 128)))
    images, *weights = net.arguments()
    yield ('image classifier', net.function(cp), [(images[:n].copy(), *weights) for n in range(1, VARIANTS + 1)])


def peaks(cp: Any, small: bool, measured: bool = True) -> Iterator[Line]:
    """Each job eagerly, as one graph, as twenty variants of a graphed function, and these from one pool."""
    for name, fn, inputs in jobs(cp, small):
        wanted = [fn(*args).get() for args in inputs]
        one, every = eagerly(cp, fn, inputs[-1:]), eagerly(cp, fn, inputs)
        measures = {
            'one graph': (one, partial(recorded, cp, fn, inputs[-1], wanted[-1])),
            f'{VARIANTS} variants of a graphed function': (every, partial(graphed, cp, fn, inputs, wanted)),
            f'{VARIANTS} variants that take from one pool': (
                every,
                partial(graphed, cp, fn, inputs, wanted, pool=True),
            ),
        }
        for title, (eager, measure) in measures.items():
            full = f'memory, {name}: {title} / eager'
            try:
                found = measure()
            except Exception as error:
                yield Line(full, unit='MB', error=f'{type(error).__name__}: {error}'.splitlines()[0])
            else:
                yield against(full, title, found, eager) if measured else Line(full, unit='MB', note='checked')


def against(full: str, title: str, found: tuple[int, int], eager: tuple[int, int]) -> Line:
    """Megabytes of both, in their pools and on the device; the ratio is of the pools."""
    sizes = {title: found[0], 'eager': eager[0], f'{title}, device': found[1], 'eager, device': eager[1]}
    return Line(full, found[0] / eager[0], medians={key: value / 1e6 for key, value in sizes.items()}, unit='MB')


def eagerly(cp: Any, fn: Callable[..., Any], inputs: Inputs) -> tuple[int, int]:
    """The bytes that a pool of its own has in the end, and that the device has lost."""
    gone, pool = fresh(cp), cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        for args in inputs:
            fn(*args)
    found = int(pool.total_bytes()), gone()
    pool.free_all_blocks()
    return found


def recorded(cp: Any, fn: Callable[..., Any], args: tuple[Any, ...], wanted: Any) -> tuple[int, int]:
    gone = fresh(cp)
    with ck.capture() as cap:
        out = fn(*args)
    try:
        cap.graph.launch()
        found = int(cap.graph.memory_bytes), gone()
        same(out.get(), wanted)
    finally:
        cap.graph.close()
    return found


def graphed(cp: Any, fn: Callable[..., Any], inputs: Inputs, wanted: list[Any], pool: bool = False) -> tuple[int, int]:
    """Each size is called three times: eagerly, recorded, launched."""
    gone = fresh(cp)
    shared = cp.cuda.MemoryPool() if pool else None
    step = ck.graphed(limit=VARIANTS, pool=shared)(fn)
    try:
        for _ in range(3):
            for args, right in zip(inputs, wanted):
                same(step(*args).get(), right)
        states = [variant.state for variant in step.variants]
        if states != ['recorded'] * VARIANTS:
            raise CheckFailed(f'the variants are {", ".join(map(str, states))}')
        held = sum(int(variant.graph.memory_bytes) for variant in step.variants)
        held += 0 if step.memory is None else step.memory.memory_bytes
        found = held if shared is None else int(shared.total_bytes()), gone()
    finally:
        step.clear()
        if shared is not None:
            shared.free_all_blocks()
    return found


def same(found: Any, wanted: Any) -> None:
    if not np.allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max()):
        raise CheckFailed('differs from the eager run')


def fresh(cp: Any) -> Callable[[], int]:
    """What tells how many bytes of the device are gone since now; what nobody uses is given back first."""
    gc.collect()
    cp.get_default_memory_pool().free_all_blocks()

    def free() -> int:
        cp.cuda.runtime.deviceSynchronize()
        return int(cp.cuda.runtime.memGetInfo()[0])

    before = free()
    return lambda: before - free()
