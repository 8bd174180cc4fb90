"""``python -m tests.benchmarks [TABLE] [--json PATH] [--only PART ...]``: what capturekit costs and what it gains.

Five tables: ``costs``, which is what no name gives, ``workloads``, ``peers``, which is what one would pick instead,
``lanes``, programs of one stream on lanes by hand and on lanes that capturekit finds, and ``memory``. Each line is a
ratio of two things measured in this one run, with the medians behind it. It needs a GPU and takes some minutes.

Workloads are checked against NumPy before they are timed; a check that fails is a line with an error, and an exit
status of 1. Without a GPU, or with ``--check``, all tables but ``costs`` run their checks and measure nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

from capturekit.cli.script_runner import why_no_gpu
from tests.benchmarks.machine import machine
from tests.benchmarks.timing import Line, now
from tests.captured import simulated

ABOUT = 'What capturekit costs and what it gains, as ratios within one run. Needs a GPU; takes some minutes.'
TABLES = ('costs', 'workloads', 'peers', 'lanes', 'memory')
Parts = dict[str, Callable[[], Iterator[Line]]]


def parts_of(table: str, cp: Any, small: bool, timed: bool) -> Parts:
    """The parts of a table by name; ``small``: sizes for the simulated device, ``timed``: else it is only checked."""
    from tests.benchmarks import costs, deciding, graphed, graphs, lanes, peaks, peers, wild, workloads

    if table == 'lanes':
        return lanes.parts(cp, small, timed)
    if table == 'memory':
        return {'memory': lambda: peaks.peaks(cp, small, timed)}
    if table != 'costs':
        some = workloads.parts(cp, small) if table == 'workloads' else peers.parts(cp, small)
        return {
            name: lambda part=part: (line for one in part() for line in workloads.lines(cp, one, timed))
            for name, part in some.items()
        }
    of_cupy = {
        'recording': costs.recording,
        'launching': costs.launching,
        'nodes': costs.nodes,
        'updating': graphs.updating,
        'relaning': graphs.relaning,
        'graphed': graphed.calls,
        'stateful': graphed.stateful,
        'deciding': deciding.deciding,
        'rebinding': graphs.rebinding,
        'watching': costs.watching,
    }
    return {'beside': costs.beside, **{name: partial(lines, cp) for name, lines in of_cupy.items()}, 'wild': wild.lines}


def given() -> argparse.Namespace:
    """What was asked for on the command line."""
    arguments = argparse.ArgumentParser(prog='python -m tests.benchmarks', description=ABOUT)
    arguments.add_argument('table', nargs='?', default='costs', choices=TABLES, help='what to measure (default costs)')
    arguments.add_argument('--json', metavar='PATH', help='write the machine and all lines to a file')
    arguments.add_argument('--check', action='store_true', help='all but costs: check, and measure nothing')
    arguments.add_argument('--only', nargs='+', metavar='PART', help='only these parts; an unknown one lists them all')
    found = arguments.parse_args()
    if found.check and found.table == 'costs':
        arguments.error('costs has no checks of its own')
    return found


def main() -> int:
    options = given()
    why = why_no_gpu()
    if why is None:
        return on_a_gpu(options)
    if options.table == 'costs':
        print(f'the benchmarks need a GPU with CuPy: {why}', file=sys.stderr)
        return 2
    return on_the_simulated_device(options, why)


def on_a_gpu(options: argparse.Namespace) -> int:
    os.environ['CUPY_TF32'] = '0'
    import cupy as cp

    about = machine(cp)
    beside_others = options.table in ('workloads', 'peers')
    if beside_others:
        about['TF32'] = 'off, in CuPy and in torch'
    print(', '.join(f'{name} {value}' for name, value in about.items()))
    if options.check:
        print('checks alone: nothing is measured and no file written')
        options.json = None
    with cp.cuda.Stream(non_blocking=True) if beside_others else nullcontext():
        return run(options, parts_of(options.table, cp, False, not options.check), about)


def on_the_simulated_device(options: argparse.Namespace, why: str) -> int:
    """The checks, at sizes that NumPy can do; no file is written."""
    print(f'on the simulated device ({why}): checks alone, at small sizes; nothing is measured and no file written')
    options.json = None
    with simulated() as cp:
        return run(options, parts_of(options.table, cp, True, False), {})


def run(options: argparse.Namespace, every: Parts, about: dict[str, str]) -> int:
    """Print the lines of each part, and write them if asked to; 1 if one has an error."""
    unknown = set(options.only or ()) - set(every)
    if unknown:
        print(f'no such part: {", ".join(sorted(unknown))}; there are {", ".join(every)}', file=sys.stderr)
        return 2
    lines: list[dict[str, Any]] = []
    for name in options.only or every:
        start = now()
        print(f'\n  ratio   {name}')
        for line in every[name]():
            print(line, flush=True)
            lines.append({'part': name, **line.to_json()})
        print(f'{"":10}({now() - start:.1f} s)', flush=True)
        if options.json:  # after each part: a run that is cut short leaves what it measured
            with open(options.json, 'w', encoding='utf-8') as f:
                json.dump({'machine': about, 'lines': lines}, f, indent=1)
                f.write('\n')
    failed = sum(bool(line['error']) for line in lines)
    if failed:
        print(f'\n{failed} of {len(lines)} lines are errors', file=sys.stderr)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
