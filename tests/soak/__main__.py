"""``python -m tests.soak``: see the package's text."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import tests.soak
from capturekit.model.progress import say
from tests.soak import agreement, captures, exits, sanitizer
from tests.soak.ground import cupy

PARTS = ('agreement', 'captures', 'exits', 'sanitizer')
_GPU_ONLY = ('agreement', 'sanitizer')


def main() -> int:
    parser = argparse.ArgumentParser(
        'python -m tests.soak', description=tests.soak.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('parts', nargs='*', metavar='part', help=f'some of {", ".join(PARTS)} (default: all)')
    parser.add_argument('--programs', type=int, default=20_000, help='of agreement (default: %(default)s)')
    parser.add_argument('--part', type=int, default=0, help='which programs of agreement, to split them (default: 0)')
    parser.add_argument('--captures', type=int, default=10_000, help='of captures (default: %(default)s)')
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f'there is no part {unknown[0]!r}: {", ".join(PARTS)}')
    cp, simulated = cupy()
    if simulated:
        say('no GPU: on the simulated device')
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        'agreement': lambda: agreement.run(given.programs, given.part, say),
        'captures': lambda: captures.run(cp, given.captures, say),
        'exits': lambda: exits.run(cp, say),
        'sanitizer': lambda: sanitizer.run(say),
    }
    failed = 0
    for part in given.parts or [one for one in PARTS if not (simulated and one in _GPU_ONLY)]:
        try:
            print(json.dumps({part: runs[part](), 'simulated': simulated}), flush=True)
        except sanitizer.Absent as error:
            print(json.dumps({part: 'absent', 'why': str(error)}), flush=True)
            failed += part in given.parts
        except AssertionError as error:
            print(json.dumps({part: 'failed', 'why': str(error)[:4000]}), flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
