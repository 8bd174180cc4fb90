"""The command line of machines that try random graphs, in several processes, on a GPU or simulated."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.conftest import why_no_gpu

#: Given CuPy, the first seed, how many programs and how many seconds: returns how many programs differ.
Job = Callable[[Any, int, int, float], int]


def several(module: str, first: int, count: int, jobs: int, seconds: float) -> int:
    """Try programs in several processes; return how many of them failed."""
    each = -(-count // jobs)
    command = [sys.executable, '-m', module, '--jobs', '1', '--seconds', str(seconds)]
    running = [
        subprocess.Popen([*command, '--first', str(low), '--count', str(min(each, first + count - low))])
        for low in range(first, first + count, each)
    ]
    return sum(one.wait() != 0 for one in running)


def main(module: str, about: str | None, one_job: Job) -> int:
    arguments = argparse.ArgumentParser(prog=f'python -m {module}', description=about)
    arguments.add_argument('--count', type=int, default=200, help='how many programs (default %(default)s)')
    arguments.add_argument('--first', type=int, default=0, help='the first seed (default %(default)s)')
    arguments.add_argument('--jobs', type=int, default=1, help='processes (default %(default)s)')
    arguments.add_argument('--seconds', type=float, default=math.inf, help='no new program after so many')
    given = arguments.parse_args()
    if given.jobs > 1:
        return int(several(module, given.first, given.count, given.jobs, given.seconds) > 0)
    if why_no_gpu() is None:
        import cupy as cp

        return int(one_job(cp, given.first, given.count, given.seconds) > 0)
    from capturekit.simulated import SimulatedDevice, install, uninstall

    install(SimulatedDevice(0))
    try:
        import cupy as cp

        return int(one_job(cp, given.first, given.count, given.seconds) > 0)
    finally:
        uninstall()
