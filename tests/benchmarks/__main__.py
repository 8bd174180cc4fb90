"""``python -m tests.benchmarks [--json PATH] [--only PART ...]``: what capturekit costs and what it gains, as ratios.

Each line is a ratio of two things timed in turn in this one run; below it are the medians that it was made of. It needs
a GPU and takes some minutes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.timing import Line, now

ABOUT = 'What capturekit costs and what it gains, as ratios within one run. Needs a GPU; takes some minutes.'
PACKAGES = ('cupy-cuda13x', 'cupy-cuda12x', 'cuda-bindings', 'cuda-core', 'torch', 'numpy')


def machine(cp: Any) -> dict[str, str]:
    """The device and the versions that the numbers hold for."""
    import capturekit

    runtime = cp.cuda.runtime
    found = {
        'device': runtime.getDeviceProperties(cp.cuda.Device().id)['name'].decode(),
        'driver': f'CUDA {runtime.driverGetVersion()}',
        'runtime': f'CUDA {runtime.runtimeGetVersion()}',
        'python': platform.python_version(),
        'capturekit': capturekit.__version__,
    }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = 'absent'
    return found


def parts(cp: Any) -> dict[str, Callable[[], Iterator[Line]]]:
    from tests.benchmarks import costs, deciding, graphed, jobs, rebinding, updating, wild

    return {
        'beside': costs.beside,
        'recording': lambda: costs.recording(cp),
        'launching': lambda: costs.launching(cp),
        'nodes': lambda: costs.nodes(cp),
        'updating': lambda: updating.updating(cp),
        'jobs': lambda: jobs.main_jobs(cp),
        'graphed': lambda: graphed.calls(cp),
        'deciding': lambda: deciding.solvers(cp),
        'rebinding': lambda: rebinding.against_copies(cp),
        'wild': wild.lines,
    }


def main() -> int:
    arguments = argparse.ArgumentParser(prog='python -m tests.benchmarks', description=ABOUT)
    arguments.add_argument('--json', metavar='PATH', help='write the machine and all lines to a file')
    arguments.add_argument(
        '--only',
        nargs='+',
        metavar='PART',
        help='beside, recording, launching, nodes, updating, jobs, graphed, deciding, rebinding or wild',
    )
    options = arguments.parse_args()
    try:
        import cupy as cp

        about = machine(cp)
    except (ImportError, RuntimeError) as error:
        print(f'the benchmarks need a GPU with CuPy: {error}', file=sys.stderr)
        return 2
    print(', '.join(f'{name} {value}' for name, value in about.items()))
    every = parts(cp)
    unknown = set(options.only or ()) - set(every)
    if unknown:
        arguments.error(f'no such part: {", ".join(sorted(unknown))}')
    lines: list[dict[str, Any]] = []
    for name, measure in every.items():
        if options.only and name not in options.only:
            continue
        start = now()
        print(f'\n  ratio   {name}')
        for line in measure():
            print(line, flush=True)
            lines.append({'part': name, **line.to_json()})
        print(f'{"":10}({now() - start:.1f} s)', flush=True)
        if options.json:  # after each part: a run that is cut short leaves what it measured
            with open(options.json, 'w', encoding='utf-8') as f:
                json.dump({'machine': about, 'lines': lines}, f, indent=1)
                f.write('\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
