"""Programs of one package, in this process: ``python -m tests.packages.child LIBRARY PACKAGE PROGRAM...``.

The library is cupy or numpy. A line of JSON is written for what this runs on, one before each program and one after
it. The process ends early, with status 3, once the device has failed: nothing that ran after that would tell anything.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
import warnings
from collections.abc import Callable
from typing import Any

import capturekit as ck
from tests.ledger.outcomes import decide_without_times
from tests.packages.judge import judge, wait
from tests.packages.registry import load

DEVICE_FAILED = 3
#: The environment variable which says that what can be launched is launched, however long that takes.
ALWAYS = 'PACKAGES_ALWAYS_LAUNCHED'
#: The one which says that no times are taken.
UNTIMED = 'PACKAGES_UNTIMED'


def machine(cp: Any, package: str) -> dict[str, str]:
    """What this runs on, and the version of the package."""
    found = {'python': platform.python_version(), 'capturekit': ck.__version__}
    found |= {name: importlib.metadata.version(name) for name in ('numpy', package)}
    if cp.__name__ == 'cupy':
        found |= {'cupy': cp.__version__, 'gpu': _gpu(cp)}
    return found


def _gpu(cp: Any) -> str:
    if hasattr(cp, '__capturekit_simulated__'):
        return 'the simulated device'
    return str(cp.cuda.runtime.getDeviceProperties(0)['name'].decode())


def run(cp: Any, package: str, names: list[str], write: Callable[[Any], None]) -> int:
    """Run these programs of a package and write what became of each."""
    write({'machine': machine(cp, package)})
    programs = {one.name: one for one in load()[package]}
    for name in names:
        write({'begun': name})
        write({'row': judge(programs[name], cp, UNTIMED not in os.environ)})
        try:
            wait(cp)
        except Exception as error:
            print(f'after {name} the device has failed: {error}', file=sys.stderr)
            return DEVICE_FAILED
    return 0


def main() -> int:
    warnings.simplefilter('ignore')
    if ALWAYS in os.environ:
        decide_without_times()
    out = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what packages print is none of the lines

    def write(value: Any) -> None:
        out.write(json.dumps(value) + '\n')
        out.flush()

    library, package, *names = sys.argv[1:]
    return run(importlib.import_module(library), package, names, write)


if __name__ == '__main__':
    sys.exit(main())
