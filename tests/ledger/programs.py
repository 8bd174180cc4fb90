"""The programs of the ledger by kind, each with what becomes of its calls."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from capturekit.simulated import SimulatedDevice, install, uninstall
from tests.agreement import python_programs
from tests.agreement.choices import seeded
from tests.agreement.program_runner import Machine
from tests.benchmarks import peers, workloads
from tests.benchmarks.wild import PROGRAMS, wild_modules
from tests.benchmarks.workloads import check
from tests.corpus.harness import GUIDE
from tests.ledger.outcomes import absent, noted
from tests.packages.judge import Judging, in_words
from tests.packages.registry import load

#: A program's name, and what became of its calls one after the other.
Line = tuple[str, list[str]]
#: The seed of the random programs.
SEED = 1


@contextmanager
def _device(gpu: bool) -> Iterator[Any]:
    """CuPy: the one that is installed, or the simulated one."""
    if not gpu:
        install(SimulatedDevice(0))
    try:
        yield sys.modules['cupy'] if not gpu else __import__('cupy')
    finally:
        if not gpu:
            uninstall()


def _of(run: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """What becomes of the calls of a program that ``run``, called so, runs."""
    with noted() as calls:
        try:
            run(*args, **options)
        except Exception as error:
            calls.append(absent(in_words(error)))
    return calls


def of_corpus(gpu: bool, _count: int) -> Iterator[Line]:
    """Those for the sentences of the guide."""
    with Machine(gpu) as machine:
        for one in GUIDE:
            yield one.name, _of(machine.run, one.program(), True)


def of_wild(gpu: bool, _count: int) -> Iterator[Line]:
    """Those of ``samples/wild``, and the two among them that have another form."""
    with _device(gpu) as cp, wild_modules() as module:
        import capturekit as ck

        for name in PROGRAMS:
            program, beside = module(name), module('side_by_side')
            size = beside.size(program.SIZES)
            yield name, _of(program.run, ck.graphed(program.step), *size)
            if name == 'kalman':
                yield 'kalman filter', _of(program.run_filter, program.GraphedFilter, *size)
            if name == 'mlp':
                yield 'mlp generator', _of(program.run, ck.graphed(program.step), *size, generator=True)
        cp.cuda.runtime.deviceSynchronize()


def of_workloads(gpu: bool, _count: int) -> Iterator[Line]:
    """Those of the benchmarks: the usual workloads, and the programs that peers run, too."""
    with _device(gpu) as cp, cp.cuda.Stream(non_blocking=True):
        parts = {**workloads.parts(cp, small=True), **{f'peers {k}': v for k, v in peers.parts(cp, True).items()}}
        for part, make in parts.items():
            for workload in make():
                way = workload.ways()['graphed']()
                try:
                    yield f'{part}: {workload.title}', _of(check, workload, way, workload.reference())
                finally:
                    way.close()


def of_random(gpu: bool, count: int) -> Iterator[Line]:
    """The first of the random programs."""
    with Machine(gpu) as machine:
        for number in range(count):
            yield str(number), _of(machine.run, python_programs.program(seeded(f'{SEED}/{number}')), True)


def of_packages(gpu: bool, _count: int) -> Iterator[Line]:
    """Those on public packages, each package's in a process of its own."""
    for package, programs in load().items():
        names = [one.name for one in programs]
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield from ((f'{package}.{name}', [absent('the package')]) for name in names)
            continue
        for row in Judging(package, 'cupy' if gpu else 'simulated', timed=False, always=True).rows(names, 300):
            yield f'{package}.{row["program"]}', row.get('calls') or [absent(row['text'])]


KINDS = {
    'corpus': of_corpus, 'wild': of_wild, 'workloads': of_workloads, 'packages': of_packages, 'random': of_random,
}  # fmt: skip
