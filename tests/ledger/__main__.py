"""The command ``python -m tests.ledger``."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

import capturekit as ck
from tests.ledger.compare import KEPT, Ledger, compared, merged, read, reasons, table, write
from tests.ledger.outcomes import decide_without_times
from tests.ledger.programs import KINDS


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m tests.ledger', description='Which calls are launched, by program.')
    parser.add_argument('--only', nargs='+', choices=KINDS, metavar='KIND', help=f'only some of {", ".join(KINDS)}')
    parser.add_argument(
        '--out', type=Path, metavar='FILE', help='where the ledger goes; kinds that were not run stay there'
    )
    parser.add_argument('--random', type=int, default=2000, metavar='N', help='so many random programs (%(default)s)')
    parser.add_argument('--gpu', action='store_true', help='run on the CuPy that is installed')
    parser.add_argument(
        '--compare', type=Path, nargs='+', metavar=('OLD', 'NEW'), help='compare two ledgers, or OLD with the kept one'
    )
    return parser


def made(about: dict[str, str], kinds: list[str], gpu: bool, count: int) -> Ledger:
    """Run the programs, and say how far it is."""
    decide_without_times()
    ledger, begun = Ledger(about, {}), time.monotonic()
    for kind in kinds:
        for name, calls in KINDS[kind](gpu, count):
            ledger.programs[f'{kind}/{name}'] = calls
            if len(ledger.programs) % 50 == 0:
                print(f'{time.monotonic() - begun:6.0f} s: {len(ledger.programs)} programs, {kind}', file=sys.stderr)
    return ledger


def main() -> int:
    parser = options()
    given = parser.parse_args()
    if given.compare:
        lines, fewer = compared(read(given.compare[0]), read((*given.compare, KEPT)[1]))
        print('\n'.join(lines))
        return int(fewer)
    device = 'a GPU' if given.gpu else 'simulated'
    about = {'python': platform.python_version(), 'device': device, 'capturekit': ck.__version__}
    old = read(given.out) if given.only and given.out and given.out.exists() else Ledger(about, {})
    if old.about != about:
        parser.error(f'{given.out} was made on {old.about}, and this is {about}')
    ledger = made(about, given.only or list(KINDS), given.gpu, given.random)
    if given.out:
        write(merged(old, ledger), given.out)
    print(table(ledger))
    print('\n'.join(f'{calls:6} {reason}' for reason, calls in reasons(ledger).most_common(20)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
