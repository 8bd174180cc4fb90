"""``capturekit doctor``: what this machine can do, and what does not fit together."""

from __future__ import annotations

import argparse
import json
from typing import Any

_DESCRIPTION = """\
Look at this machine: GPU, driver, CuPy, cuda-bindings, Python; versions that do not fit together; whether CuPy has the
names that capturekit wraps, and whether its libraries can be recorded. A small capture is made and launched, in a
process of its own: on the GPU, or where there is none on the simulated device. The last line is the verdict; the exit
status is 0 if it is good and 1 if not.
"""


def add(commands: Any) -> None:
    """Add ``doctor`` to the commands."""
    parser = commands.add_parser(
        'doctor',
        help='say what this machine can do, and what does not fit together',
        description=_DESCRIPTION,
    )
    parser.add_argument(
        '--json', action='store_true', help='print JSON: the verdict, the findings and the facts behind them'
    )
    parser.set_defaults(go=_go)


def _go(given: argparse.Namespace) -> int:
    from capturekit.cli.doctor import examine  # its imports are slow, and every command line imports this file

    report = examine()
    print(json.dumps(report.to_json(), indent=1) if given.json else report)
    return 0 if report.good else 1
